"""The syntax of Java's property files, which Kafka's own files have.

`key=value` (or `key: value`) lines, `#` and `!` comments, a backslash at a line's end continues it, and backslash escapes
(`\\\\`, `\\t`, `\\u00e9`, ...) stand for their character. Stricter than Java: a key without a value sign is an error.
"""

from __future__ import annotations

import re

_LINE = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:]\s*(.*)\Z", re.S)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.S)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(content: str, where: str, twice: list[str] | None = None) -> dict[str, str]:
    """The keys and values. Raises ValueError with the line's number, and without its words: one may be a password.

    `twice` gets a sentence for each key that stands there a second time; the last value is in force, as in Java.
    """
    texts: dict[str, str] = {}
    lines: dict[str, int] = {}
    line, started_at = "", 0
    # Only these end a line in Java; `splitlines` knows many more.
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", re.sub(r"(\r\n|\r|\n)\Z", "", content)), 1):
        piece = raw.strip(" \t\f")
        if not line:
            if not piece or piece[0] in "#!":
                continue
            started_at = number
        line += piece
        if (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"{where}, line {started_at}: it is not of the form key=value")
        key = _unescape(match[1])
        if key in lines and twice is not None:
            twice.append(f"{where}, line {started_at}: `{key}` stands in line {lines[key]} already: leave one of them")
        texts[key], lines[key] = _unescape(match[2]), started_at
        line = ""
    if line:
        raise ValueError(f"{where}, line {started_at}: the file ends inside a continued line")
    return texts


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _CONTROL.get(found[2], found[2]), text)
    # Two escapes may be the halves of one character; half of one alone can't be written anywhere.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
