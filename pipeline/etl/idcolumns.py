"""The fields that `penstock.dedupe.id` names, held against the columns of the tables that are loaded after dedupe."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config import Config
from penstock.pipeline import job
from penstock.pipeline.etl import columntypes
from penstock.pipeline.idfields import Path, json_paths, path_text
from penstock.suggestions import nearest


def id_fields_missing(config: Config) -> list[str]:
    """A sentence for each field of the id that a table has no column for: a slip in its name would let every repeat pass.

    Raises ConfigError for a schema that can't be read.
    """
    kind, _, fields = str(config["penstock.dedupe.id"]).partition(":")
    if kind != "json" or not config["penstock.dedupe.id.in.schema"]:
        return []
    found = []
    for table in job.table_names(config):
        key, after = job.key_of(table, "schema"), job.key_of(table, "after")
        if config.get(key) and config.get(after, "dedupe") == "dedupe":
            columns = {name: text for name, text, _ in map(columntypes.named, columntypes.split(config[key]))}
            found += [_missing(path, columns, key) for path in json_paths(fields)]
    return [sentence for sentence in found if sentence]


def _missing(path: Path, columns: Mapping[str, str], key: str) -> str:
    """The sentence on a path that leads to no column; empty for one that does."""
    there = columns
    for depth, name in enumerate(path):
        if name not in there:
            return (
                f"`penstock.dedupe.id` names `{path_text(path)}`, and `{key}` has no `{path_text(path[: depth + 1])}`"
                f"{_near(path, depth, there, columns)}: a record without that field has no id, and its repeats pass. Correct "
                "the name, or set `penstock.dedupe.id.in.schema=false` if events have the field and the table doesn't"
            )
        kind, inner = columntypes.parts(there[name])
        there = dict(inner) if kind == "struct" else {}
    return ""


def _near(path: Path, depth: int, there: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """A question for a name that may be a slip."""
    whole = ".".join(path)
    if len(path) > 1 and whole in columns:
        return f" (is {path_text((whole,))} meant? A name with a dot in it stands in backquotes)"
    near = nearest(path[depth], there)
    return f" (is `{path_text((*path[:depth], near))}` meant?)" if near else ""
