"""Jars through Maven, kept in the user's cache folder: fetched once, whole or not at all.

A set of jars is described by its pom; the folder that holds the set is named after the pom's hash, so a
changed version is another folder and an old one is never half updated.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from penstock.errors import os_error_text
from penstock.pipeline.etl.children import CHILDREN

NAMED = 8  # jars that a message names
COPY_GOAL = "dependency:copy-dependencies"
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class MavenError(RuntimeError):
    """Maven is missing or could not fetch a set of jars; the text ends with what it said."""


@dataclass(frozen=True)
class Jar:
    """A dependency: its coordinates, and whether the jars that it needs itself come along."""

    coordinates: str
    transitive: bool = False


def pom(jars: Iterable[Jar]) -> str:
    """The text of a pom that depends on the jars."""
    entries = []
    for jar in jars:
        group, artifact, version = (escape(word) for word in jar.coordinates.split(":"))
        exclusions = "" if jar.transitive else ALONE
        entries.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version>{exclusions}</dependency>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion>\n"
        "<groupId>penstock</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>\n"
        "<dependencies>\n" + "\n".join(entries) + "\n</dependencies></project>\n"
    )


def cache_folder() -> Path:
    """Where sets of jars are kept: `$XDG_CACHE_HOME/penstock/jars`, by default under `~/.cache`."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "penstock" / "jars"


def installed_folder() -> Path:
    """Where a package that brings sets of jars along has put them."""
    return Path(sys.prefix) / "share" / "penstock" / "jars"


def fetch(jars: Iterable[Jar]) -> list[Path]:
    """The paths of the jars (and of what they need, where asked), fetched if they are neither installed nor there already.

    Several processes may ask at once: one fetches, the others wait. Raises MavenError.
    """
    jars = list(jars)
    text = pom(jars)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    if (installed_folder() / name).is_dir():
        return sorted((installed_folder() / name).glob("*.jar"))
    folder = cache_folder() / name
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with (folder.parent / f"{folder.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not folder.is_dir():
                    _fetch_into(folder, text, jars)
        except OSError as error:
            raise MavenError(
                f"jars can't be kept in `{folder.parent}` ({os_error_text(error)}): let XDG_CACHE_HOME name a folder that this "
                "user may write"
            ) from None
    return sorted(folder.glob("*.jar"))


def _fetch_into(folder: Path, text: str, jars: Sequence[Jar]) -> None:
    """Run Maven into a folder aside, and rename it: a folder that has the final name is whole."""
    aside = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    (aside / "pom.xml").write_text(text, encoding="utf-8")
    command = ["mvn", "-q", "-B", "-f", str(aside / "pom.xml"), COPY_GOAL]
    command += [f"-DoutputDirectory={aside}", "-DincludeScope=runtime"]
    try:
        code, said = CHILDREN.run(command)
    except FileNotFoundError:
        raise MavenError("`mvn` is not installed; Debian has it as the package `maven`") from None
    if code != 0 or not any(aside.glob("*.jar")):
        names = [jar.coordinates.split(":")[1] for jar in jars]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise MavenError(f"Maven could not fetch {', '.join(names[:NAMED])}{more} into `{folder}`: {said.strip()[-2000:]}")
    aside.rename(folder)
