"""Installs a wheel in an empty virtual environment and tries there what it promises.

Without `--wheel` it makes the sdist, and from it the wheel; `--make FOLDER` makes them there and tries nothing. Nothing of the
checkout is on the path of what runs: `installed.py` is copied away and run by the new environment's pytest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOR_READERS = {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "ROADMAP.md", "ARCHITECTURE.md", "CONTRIBUTING.md"}


def main() -> None:
    """Exits with the first command's code that fails."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--wheel", type=Path, help="by default one is made")
    options.add_argument("--make", type=Path, metavar="FOLDER", help="only make sdist and wheel, in a folder that is made anew")
    options.add_argument("--python", default=sys.executable, help="the Python whose environment the wheel goes into")
    given = options.parse_args()
    if given.make:
        shutil.rmtree(given.make, ignore_errors=True)
        print(_made(given.make.absolute()))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-package-") as folder:
        away = Path(folder, "a b")  # users' folders have blanks in their names
        away.mkdir()
        wheel = given.wheel.resolve() if given.wheel else _made(Path(folder, "dist"))
        environment = away / "venv"
        found = Path(shutil.which(given.python) or given.python).absolute()  # a link of a virtual environment stays that
        _run([str(found), "-m", "venv", str(environment)], away)
        python = str(environment / "bin" / "python")
        _run([python, "-m", "pip", "install", "-q", str(wheel), "pytest"], away)
        shutil.copy(HERE / "installed.py", away / "test_installed.py")
        _run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_installed.py"], away)


def _made(folder: Path) -> Path:
    """The wheel of this checkout, as a packager makes it, with nothing inside but what is ours."""
    folder.mkdir(parents=True)
    build = [sys.executable, "-m", "build", "--outdir", str(folder)]
    # Only one setup.py at a time writes penstock.egg-info. The wheel, which takes longer, is made of the sdist's own files.
    _run(["flock", str(ROOT / "build" / "lock"), *build, "--sdist", str(ROOT)], folder, quiet=True)
    (sdist,) = folder.glob("*.tar.gz")
    _look_into_sdist(sdist)
    with tempfile.TemporaryDirectory(prefix="penstock-sdist-") as files, tarfile.open(sdist) as archive:
        archive.extractall(files, filter="data")
        _run([*build, "--wheel", str(Path(files, sdist.name.removesuffix(".tar.gz")))], folder, quiet=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _look_into_sdist(archive: Path) -> None:
    """Exits unless it has what a reader of a published version looks for."""
    with tarfile.open(archive) as sdist:
        missing = FOR_READERS - {name.partition("/")[2] for name in sdist.getnames()}
    if missing:
        sys.exit(f"`{archive.name}` has no {', '.join(sorted(missing))}")


def _run(command: list[str], folder: Path, *, quiet: bool = False) -> None:
    """Runs a command with no environment of this one's Python; what a quiet one prints is only shown if it fails."""
    print("+", *command, flush=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=folder, env=kept, check=False, text=True,
        stdout=subprocess.PIPE if quiet else None, stderr=subprocess.STDOUT if quiet else None,
    )  # fmt: skip
    if done.returncode != 0 and quiet:
        print(done.stdout)
    if done.returncode != 0:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
