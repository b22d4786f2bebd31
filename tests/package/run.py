"""Makes the sdist, from it the wheel, installs that in an empty virtual environment and tries there what it promises.

Nothing of the checkout is on the path of what runs: `installed.py` is copied away and run by the new environment's pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOR_READERS = {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "ROADMAP.md", "ARCHITECTURE.md", "CONTRIBUTING.md"}


def main() -> None:
    """Exits with the first command's code that fails."""
    with tempfile.TemporaryDirectory(prefix="penstock-package-") as folder:
        made, away = Path(folder, "dist"), Path(folder, "a b")  # users' folders have blanks in their names
        away.mkdir()
        lock = ROOT / "build" / "lock"  # only one setup.py at a time writes penstock.egg-info
        _run(["flock", str(lock), sys.executable, "-m", "build", "--outdir", str(made), str(ROOT)], away, quiet=True)
        _look_into_sdist(*made.glob("*.tar.gz"))
        (wheel,) = made.glob("*.whl")
        environment = away / "venv"
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")
        _run([python, "-m", "pip", "install", "-q", str(wheel), "pytest"], away)
        shutil.copy(HERE / "installed.py", away / "test_installed.py")
        _run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_installed.py"], away)


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
