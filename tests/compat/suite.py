"""What a suite of others' tests is, and the ways to fetch one: each through its registry's own client, into a cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"
# A test's name and what came of it.
Outcome = tuple[str, str]


class FetchError(RuntimeError):
    """A suite could not be fetched or built; the text ends with what the tool said."""


@dataclass
class Run:
    """One run of a suite against a broker: where, what of it, and where its files go."""

    bootstrap: str  # one address, or with several brokers theirs, with commas
    work: Path  # empty, for this run's logs
    cache: Path  # kept between runs
    only: str = ""  # a regular expression of names of tests; empty: all
    group_protocol: str = "classic"
    brokers: int = 1
    log_dir: Path | None = None  # the first broker's folder of logs, where it is on this machine
    jobs: int = 2
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def copies(self) -> int:
        """The replication factor of topics that a suite makes: all that the brokers can have, at most three."""
        return min(self.brokers, 3)

    def wants(self, name: str) -> bool:
        """Whether a test is to be run."""
        return re.search(self.only, name) is not None

    def done(self, name: str, command: Sequence[str | Path], limit_s: float, folder: Path, **changes: str) -> str:
        """Run a program in a folder to its end; its output, both streams, which is also kept as `<name>.out`.

        Raises CheckError when it fails or isn't done after `limit_s`.
        """
        path = self.work / f"{name}.out"
        with path.open("ab") as out:
            try:
                code = subprocess.run(
                    [str(word) for word in command],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env={**self.environment, **changes},
                    timeout=limit_s,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                raise CheckError(f"not done after {limit_s} s: {path}") from None
        text = path.read_text(errors="replace")
        if code:
            raise CheckError(f"exit code {code}: {path}")
        return text


class CheckError(AssertionError):
    """A test failed; the text says how."""


Check = Callable[[Run], None]


def expect(held: bool, *what: object) -> None:
    """Raises CheckError with `what` unless it held."""
    if not held:
        raise CheckError(" ".join(str(one) for one in what)[:2000])


def each(run: Run, checks: Mapping[str, Check]) -> Iterator[Outcome]:
    """The outcomes of checks that are Python functions, one after the other; why one failed goes to `<name>.why`."""
    for name, check in checks.items():
        if not run.wants(name):
            continue
        try:
            check(run)
        except (CheckError, subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
            (run.work / f"{name}.why").write_text(f"{type(error).__name__}: {error}\n")
            yield name, FAIL
        else:
            yield name, PASS


def tool(name: str) -> str:
    """The path of a program. Raises FetchError when it isn't installed."""
    found = shutil.which(name)
    if found is None:
        raise FetchError(f"{name} is not installed")
    return found


def call(command: Sequence[str | Path], folder: Path, limit_s: float = 1800) -> str:
    """A program's output. Raises FetchError with the end of what it said when it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [tool(str(command[0])), *(str(word) for word in command[1:])]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise FetchError(f"{' '.join(words)}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def _once(target: Path, make: Callable[[Path], None]) -> Path:
    """The folder `target`, made by `make` in another place and moved there whole."""
    if not target.is_dir():
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        make(part)
        part.rename(target)
    return target


def _unpack(archive: Path, to: Path) -> None:
    """A tar file's only folder becomes `to`."""
    inside = to / "unpacked"
    with tarfile.open(archive) as tar:
        tar.extractall(inside, filter="data")
    (top,) = inside.iterdir()
    for entry in top.iterdir():
        entry.rename(to / entry.name)
    shutil.rmtree(inside)


def npm_package(cache: Path, name: str, version: str) -> Path:
    """The unpacked files of an npm package; nothing of it is run."""

    def make(part: Path) -> None:
        said = call(["npm", "pack", "--silent", f"{name}@{version}"], part)
        archive = part / said.split()[-1]
        _unpack(archive, part)
        archive.unlink()

    return _once(cache / f"npm-{name.replace('/', '-').lstrip('@')}-{version}", make)


def node_modules(cache: Path, package: str) -> Path:
    """The `node_modules` that has an npm package (`name@version`) and what it needs; no script of theirs is run."""

    def make(part: Path) -> None:
        flags = ["--silent", "--no-fund", "--no-audit", "--ignore-scripts", "--omit=optional"]
        call(["npm", "install", *flags, "--prefix", part, package], part)

    return _once(cache / f"node-{package.replace('/', '-').lstrip('@')}", make) / "node_modules"


def python_source(cache: Path, name: str, version: str) -> Path:
    """The unpacked source distribution of a Python package."""

    def make(part: Path) -> None:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation"]
        call([*pip, "--no-binary", name, "-d", part, f"{name}=={version}"], part)
        (archive,) = part.glob("*.tar.gz")
        _unpack(archive, part)
        archive.unlink()

    return _once(cache / f"python-{name}-{version}", make)


def python_environment(cache: Path, packages: Sequence[str]) -> Path:
    """The interpreter of a virtual environment that has these packages."""
    key = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    folder = cache / f"venv-{key}"
    ready = folder / "ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        call([sys.executable, "-m", "venv", folder], cache)
        call([folder / "bin" / "pip", "-q", "install", *packages], cache)
        ready.touch()
    return folder / "bin" / "python"


def go_module(cache: Path, path: str, version: str) -> Path:
    """A writable copy of a Go module's files."""

    def make(part: Path) -> None:
        said = call(["go", "mod", "download", "-json", f"{path}@{version}"], cache)
        found = re.search(r'"Dir": "([^"]+)"', said)
        if found is None:
            raise FetchError(f"go knows no folder of {path}@{version}: {said}")
        shutil.copytree(found[1], part, dirs_exist_ok=True)
        for folder, _, files in os.walk(part):
            for name in (".", *files):
                entry = Path(folder) / name
                entry.chmod(entry.stat().st_mode | 0o200)

    return _once(cache / f"go-{path.replace('/', '-')}-{version}", make)
