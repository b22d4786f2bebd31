"""References in the values of properties, by the names of Kafka's config providers (KIP-297, KIP-421), always on:

    ${file:/path:key}         the value of a key in a property file
    ${directory:/path:name}   what a file in a folder holds, without the newline at its end
    ${env:NAME}               a variable of the environment

A path that isn't absolute is a credential that systemd gave the unit (`LoadCredential=`). For a command by hand, which has
none, it is looked for where systemd itself looks, in /etc/credstore, which root alone can read. Other `${...}` stay as they
are: the mirror's `${topic}`, and Spark's own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from penstock import javaproperties

CREDENTIALS = "CREDENTIALS_DIRECTORY"
CREDSTORE = "/etc/credstore"
REFERENCE = re.compile(r"\$\{(?:(?P<kind>file|directory):(?P<path>[^:}]*):(?P<key>[^}]*)|env:(?P<name>[^}]*))\}")


def resolve(text: str) -> str:
    """A value with what its references stand for. Raises ValueError, whose words show none of that."""
    return REFERENCE.sub(_resolve, text)


def _resolve(found: re.Match[str]) -> str:
    if found["name"] is not None:
        value = os.environ.get(found["name"])
        if value is None:
            raise ValueError(f"`{found[0]}` stands for nothing: the environment has no `{found['name']}`")
        return value
    path = Path(os.environ.get(CREDENTIALS) or CREDSTORE, found["path"])
    if found["kind"] == "directory":
        if Path(found["key"]).name != found["key"]:
            raise ValueError(f"`{found[0]}` stands for nothing: `{found['key']}` is no name of a file")
        return _read(path / found["key"], found[0]).rstrip("\r\n")
    texts = javaproperties.parse(_read(path, found[0]), str(path))
    if found["key"] not in texts:
        raise ValueError(f"`{found[0]}` stands for nothing: `{path}` has no `{found['key']}`")
    return texts[found["key"]]


def _read(path: Path, reference: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"`{reference}` stands for nothing: cannot read `{path}`: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"`{reference}` stands for nothing: `{path}` is no text") from None
