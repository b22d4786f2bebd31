"""`penstock config`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from penstock.config import Property
from penstock.hints import quoted
from penstock.pipeline import job
from penstock.pipeline.clients import properties
from penstock.pipeline.etl import valuerules

CLIENTS = {schema.part: schema for schema in (properties.PRODUCER, properties.CONSUMER)}


@click.command("config")
@click.option("--list", "every", is_flag=True, help="All of them.")
@click.option("--types", "types", is_flag=True, help="Instead, the types of a column, and the JSON values that each takes.")
@click.option("--client", "client", type=click.Choice(list(CLIENTS)), help="Instead, those of a Python client of ours.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON list.")
@click.option("--markdown", "as_page", is_flag=True, help="As a table in Markdown.")
@click.argument("words", nargs=-1, metavar="[TEXT]...")
def command(every: bool, types: bool, client: str | None, as_json: bool, as_page: bool, words: tuple[str, ...]) -> None:
    """The properties of a pipeline's file with their defaults: all, or those whose name contains a text.

    Example: penstock config etl.schema
    """
    if [every, types, client is not None, bool(words)].count(True) != 1:
        raise click.UsageError("give --list, --types, --client, or a part of a property's name")
    if client is not None:
        _show_client(client, as_json=as_json, as_page=as_page)
        return
    if types:
        _show_types(as_json=as_json, as_page=as_page)
        return
    rows = [_row(prop) for prop in job.SCHEMA.properties.values() if every or any(word in prop.name for word in words)]
    if as_json:
        click.echo(json.dumps(rows))
        return
    if not rows:
        raise click.ClickException(f"no property's name contains {' or '.join(f'`{word}`' for word in words)}")
    if as_page:
        click.echo(_page(rows), nl=False)
        return
    for row in rows:
        needed = f"needed by {', '.join(row['needed_by'])}" if row["needed_by"] else f"default {_text(row['default'])}"
        click.echo(f"{row['name']} ({needed})\n    {row['doc']}")


def _show_client(part: str, *, as_json: bool, as_page: bool) -> None:
    rows = [_client_row(part, prop) for prop in CLIENTS[part].properties.values()]
    if as_json:
        click.echo(json.dumps(rows))
        return
    if as_page:
        click.echo(_client_page(part, rows), nl=False)
        return
    for row in rows:
        also = f"; also {', '.join(row['also'])}" if row["also"] else ""
        whose = "" if row["whose"] == "Kafka" else f"; of {row['whose']}"
        click.echo(f"{row['name']} (default {_text(row['default'])}{also}{whose})\n    {row['doc']}")


def _client_row(part: str, prop: Property) -> dict[str, Any]:
    also = [old for old, name in properties.ALIASES.get(part, {}).items() if name == prop.name]
    whose = properties.NOT_KAFKAS.get(prop.name, "Kafka")
    return {"name": prop.name, "default": prop.default, "also": also, "whose": whose, "doc": prop.doc}


def _client_page(part: str, rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"# The properties of `{part.capitalize()}`",
        "",
        f"Made by `penstock config --client {quoted(part)} --markdown` from `properties.py`; a test holds it equal.",
        "Names are written with dots, or with underscores as names of arguments. *Whose* says who has defined a name.",
    ]
    if part in properties.ALIASES:
        lines += [
            "*Also* are names that Kafka had before 0.9, or librdkafka has.",
            "The `batch.size` of Kafka before 0.9 counted messages: that is `batch.num.messages` here.",
        ]
    lines += ["", "| property | default | also | whose | what it is |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        also = ", ".join(f"`{name}`" for name in row["also"])
        cells = f"`{row['name']}`", _text(row["default"]), also, row["whose"], row["doc"]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _show_types(*, as_json: bool, as_page: bool) -> None:
    if as_page:
        click.echo(valuerules.page(), nl=False)
        return
    rules = {", ".join(names): valuerules.rule_of(names[0]).takes for names in valuerules.SHOWN}
    click.echo(json.dumps(rules) if as_json else "\n".join(f"{names}\n    {takes}" for names, takes in rules.items()))


def _row(prop: Property) -> dict[str, Any]:
    needed = [part for part, names in job.NEEDED.items() if any(prop.name in one.split("|") for one in names)]
    return {"name": prop.name, "default": prop.default, "needed_by": needed, "doc": prop.doc}


def _page(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table that Markdown shows."""
    lines = [
        "# The properties of a pipeline's file",
        "",
        "Made by `penstock config --list --markdown` from the table in `job.py`; a test holds it equal.",
        "",
        "| property | default | needed by | what it is |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = f"`{row['name']}`", _text(row["default"]), ", ".join(row["needed_by"]), row["doc"]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    if value is None or value in ("", []):
        return "none"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
