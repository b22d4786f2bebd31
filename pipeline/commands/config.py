"""`penstock config`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from penstock.config import Property
from penstock.pipeline import job
from penstock.pipeline.etl import valuerules


@click.command("config")
@click.option("--list", "every", is_flag=True, help="All of them.")
@click.option("--types", "types", is_flag=True, help="Instead, the types of a column, and the JSON values that each takes.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON list.")
@click.option("--markdown", "as_page", is_flag=True, help="As a table in Markdown.")
@click.argument("words", nargs=-1, metavar="[TEXT]...")
def command(every: bool, types: bool, as_json: bool, as_page: bool, words: tuple[str, ...]) -> None:
    """The properties of a pipeline's file with their defaults: all, or those whose name contains a text.

    Example: penstock config etl.schema
    """
    if [every, types, bool(words)].count(True) != 1:
        raise click.UsageError("give --list, --types, or a part of a property's name")
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
