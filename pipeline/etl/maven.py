"""Jars through Maven, kept in the user's cache folder: fetched once, whole or not at all, and only those of `jars.lock`.

A set of jars is described by its pom; the folder that holds the set is named after the pom's hash, so a
changed version is another folder and an old one is never half updated.

`jars.lock` names each jar of each set with its SHA-256, those too that a jar needs itself. A process holds the files against
it before it uses them, wherever they come from. `python -m penstock.pipeline.etl.maven GROUP:ARTIFACT:VERSION ...` puts a
set there (`+` behind a version: with what it needs); it believes what Maven fetches, so look at it before you commit it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from penstock.errors import os_error_text
from penstock.hints import quoted
from penstock.pipeline.etl.children import CHILDREN

NAMED = 8  # jars that a message names
COPY_GOAL = "dependency:copy-dependencies"
LOCK = Path(__file__).with_name("jars.lock")
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class MavenError(RuntimeError):
    """Maven is missing or could not fetch a set of jars (the text ends with what it said), or they aren't those of the lock."""


@dataclass(frozen=True)
class Jar:
    """A dependency: its coordinates, and whether the jars that it needs itself come along."""

    coordinates: str
    transitive: bool = False

    @classmethod
    def parse(cls, text: str) -> Jar:
        """What `str` writes. Raises ValueError."""
        coordinates = text.removesuffix("+")
        if coordinates.count(":") != 2:
            raise ValueError(f"`{text}` isn't GROUP:ARTIFACT:VERSION")
        return cls(coordinates, text.endswith("+"))

    def __str__(self) -> str:
        return self.coordinates + ("+" if self.transitive else "")


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
    hashes = locked(jars)
    text = pom(jars)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    if (installed_folder() / name).is_dir():
        return _held_against(installed_folder() / name, hashes)
    folder = cache_folder() / name
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with (folder.parent / f"{folder.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not folder.is_dir():
                    _fetch_into(folder, text, jars, hashes)
        except OSError as error:
            raise MavenError(
                f"jars can't be kept in `{folder.parent}` ({os_error_text(error)}): let XDG_CACHE_HOME name a folder that this "
                "user may write"
            ) from None
    return _held_against(folder, hashes)


def locked(jars: Iterable[Jar]) -> dict[str, str]:
    """The SHA-256 of each file of a set, by name. Raises MavenError if the set isn't in `jars.lock`."""
    name = _name(jars)
    hashes = _sets().get(name)
    if hashes is None:
        hint = f"hint: python -m {quoted(__name__)} {shlex.join(name.split())}"
        raise MavenError(f"the jars `{name}` have no hashes in `{LOCK}`\n{hint}")
    return hashes


def _name(jars: Iterable[Jar]) -> str:
    return " ".join(map(str, jars))


def _sets() -> dict[str, dict[str, str]]:
    """The lock: for each set, by its jars, the hashes by file name."""
    sets: dict[str, dict[str, str]] = {}
    hashes: dict[str, str] = {}
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            hashes = sets.setdefault(line[1:-1], {})
        elif line and not line.startswith("#"):
            digest, file = line.split()
            hashes[file] = digest
    return sets


@functools.cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _held_against(folder: Path, hashes: Mapping[str, str]) -> list[Path]:
    """The jars of a folder, if it has those of the lock and no other ones. Raises MavenError."""
    found = {path.name: path for path in sorted(folder.glob("*.jar"))}
    for name in sorted({*found, *hashes}):
        digest = _digest(found[name]) if name in found else None
        if digest == hashes.get(name):
            continue
        if digest is None:
            said = f"`{folder}` lacks `{name}`"
        elif name not in hashes:
            said = f"`{folder / name}` isn't among the jars of `{LOCK}`"
        else:
            said = f"`{folder / name}` has SHA-256 {digest}, `{LOCK}` says {hashes[name]}"
        raise MavenError(
            f"{said}; it isn't used\nhint: remove {quoted(folder)}, and the file from Maven's own folder "
            "(~/.m2/repository), so that both are fetched again; if they come the same, don't use them"
        )
    return list(found.values())


def _fetch_into(folder: Path, text: str, jars: Sequence[Jar], hashes: Mapping[str, str] | None) -> None:
    """Run Maven into a folder aside, and rename it: a folder that has the final name is whole. Without hashes Maven is
    believed."""
    aside = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    (aside / "pom.xml").write_text(text, encoding="utf-8")
    command = ["mvn", "-q", "-B", "--strict-checksums", "-f", str(aside / "pom.xml"), COPY_GOAL]
    command += [f"-DoutputDirectory={aside}", "-DincludeScope=runtime"]
    try:
        code, said = CHILDREN.run(command)
    except FileNotFoundError:
        raise MavenError("`mvn` is not installed; Debian has it as the package `maven`") from None
    if code != 0 or not any(aside.glob("*.jar")):
        names = [jar.coordinates.split(":")[1] for jar in jars]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise MavenError(f"Maven could not fetch {', '.join(names[:NAMED])}{more} into `{folder}`: {said.strip()[-2000:]}")
    if hashes is not None:
        _held_against(aside, hashes)
    aside.rename(folder)


def lock(jars: Sequence[Jar]) -> None:
    """Put a set into `jars.lock` as Maven fetches it now. Raises MavenError."""
    with tempfile.TemporaryDirectory() as folder:
        fetched = Path(folder) / "jars"
        _fetch_into(fetched, pom(jars), jars, None)
        hashes = {path.name: _digest(path) for path in fetched.glob("*.jar")}
    sets = {**_sets(), _name(jars): hashes}
    head = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    lines = [
        line
        for name in sorted(sets)
        for line in ("", f"[{name}]", *(f"{digest}  {file}" for file, digest in sorted(sets[name].items())))
    ]
    LOCK.write_text("\n".join([*head, *lines, ""]), encoding="utf-8")


def main() -> int:
    """Put the set that the arguments name into the lock."""
    try:
        lock([Jar.parse(word) for word in sys.argv[1:]])
    except (MavenError, ValueError) as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
