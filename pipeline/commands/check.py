"""`penstock check`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from penstock.config import Config, ConfigError, read_texts
from penstock.pipeline import job
from penstock.pipeline.etl import declared, places
from penstock.pipeline.etl.idcolumns import id_fields_missing
from penstock.pipeline.etl.night import time_zone
from penstock.pipeline.options import PIPELINE_FILE, SET
from penstock.pipeline.stages import topics

WRONG = 2  # the exit code of every command for a wrong configuration


@click.command("check")
@PIPELINE_FILE
@SET
@click.option("--for", "parts", multiple=True, type=click.Choice(list(job.NEEDED)), help="Only for this part. [all]")
@click.option("--json", "as_json", is_flag=True, help="The findings as a JSON list.")
def command(path: Path, overrides: tuple[str, ...], parts: Sequence[str], as_json: bool) -> None:
    """Check a pipeline's file without asking a cluster or starting anything: all findings at once.

    Exit codes: 0 nothing is wrong, 2 something is.

    Example: penstock check --config pipeline.properties --for etl
    """
    found: list[str] = []
    texts = read_texts(path, overrides, found)
    found += findings(texts, parts or list(job.NEEDED))
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(found) if found else f"nothing is wrong with {path}")
    if found:
        raise SystemExit(WRONG)


def findings(texts: dict[str, str], parts: Sequence[str]) -> list[str]:
    """All that is wrong with a pipeline's keys and values for some parts, one sentence each."""
    config, found = job.SCHEMA.validate(texts)
    meant = [name for name in map(job.SCHEMA.meant, texts) if name is not None]
    given = [name for name, text in texts.items() if text.strip()]
    # A value that can't be read was given all the same: what is wrong with it has been said.
    found += [f"the pipeline's file lacks {words}" for words in job.lacking(config, parts, [*meant, *given])]
    if "mirror" in parts:
        found += job.one_cluster(config) + topics.wrong(config)
    questions: list[Callable[[], Any]] = []
    if "dedupe" in parts:
        questions.append(lambda: job.deduped(config))
    if config.get("topics") and {"etl", "audit"} & set(parts):
        questions.append(lambda: job.check_tables(config))
        questions += [lambda name=name: job.input_topic(job.one_table(config, name)) for name in job.table_names(config)]  # type: ignore[misc]
    if {"etl", "audit"} & set(parts):
        found += job.idle_keys(config)
        keys = [job.key_of(name, key) for name in job.table_names(config) for key in ("table", "rejects")]
        questions += [lambda place=config[key]: places.at(place, config) for key in keys if config.get(key)]  # type: ignore[misc]
    if "etl" in parts:
        questions.append(lambda: time_zone(config["penstock.etl.time.zone"]))
        questions += [lambda name=name: _declared(config, name) for name in job.table_names(config)]  # type: ignore[misc]
        questions.append(config.secrets)
    if {"dedupe", "etl"} & set(parts):
        questions.append(lambda: found.extend(id_fields_missing(config)))
    for question in questions:
        try:
            question()
        except ConfigError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))


def _declared(config: Config, table: str) -> None:
    schema, event_day, columns = (config.get(job.key_of(table, key)) for key in ("schema", "event.day", "record.columns"))
    if schema and event_day:
        declared.parse(schema, event_day, columns or (), job.key_of(table, ""))
