"""Where dedupe finds a record's id, as `penstock.dedupe.id` says it: `key`, `header:NAME`, or `json:FIELD` of the value.

FIELD may be a path into nested objects (`json:meta.id`), and several paths together are one id (`json:user,ts`). A name that
has a dot, a comma or a backquote in it stands in backquotes, a backquote inside twice: "json:`user.id`".
"""

from __future__ import annotations

import re

Path = tuple[str, ...]
"""The names from a value's own field to the one that is meant."""

NAME = r"(?:`(?:[^`]|``)+`|[^`.,\s](?:[^`.,]*[^`.,\s])?)"
PATH = rf"{NAME}(?:\.{NAME})*"
PATHS = re.compile(rf"{PATH}(?:,\s*{PATH})*")


def parse_id(text: str) -> str:
    """Check where a record's id is. Raises ValueError."""
    if re.fullmatch(r"key|(header|json):.+", text, re.DOTALL) is None:
        raise ValueError("is neither `key` nor `header:NAME` nor `json:FIELD`")
    if text.startswith("json:"):
        json_paths(text.removeprefix("json:"))
    return text


def json_paths(text: str) -> list[Path]:
    """The paths of what follows `json:`. Raises ValueError."""
    if PATHS.fullmatch(text) is None:
        raise ValueError(
            "names no fields: give FIELD, OBJECT.FIELD or FIELD,FIELD, with backquotes around a name that has `.` or `,` in it"
        )
    found = [tuple(map(_name, re.findall(NAME, path))) for path in re.findall(PATH, text)]
    if len(set(found)) < len(found):
        raise ValueError("names a field twice")
    return found


def path_text(path: Path) -> str:
    """A path as `penstock.dedupe.id` takes it."""
    return ".".join(name if re.fullmatch(NAME, name) else f"`{name.replace('`', '``')}`" for name in path)


def paths_text(paths: list[Path]) -> str:
    """Paths as one text, by which they are known from others. One plain field is its own name, as it has always been noted."""
    if len(paths) == 1 and len(paths[0]) == 1:
        return paths[0][0]
    return ",".join(".".join(f"`{name.replace('`', '``')}`" for name in path) for path in paths)


def _name(text: str) -> str:
    return text[1:-1].replace("``", "`") if text.startswith("`") else text
