"""The Debian packages and bundles of this checkout, made for a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LO = Path(__file__).resolve().parents[1] / "deploy" / "lo"
ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "deploy" / "ansible"


def build(folder: Path, *options: str) -> list[Path]:
    """Build the packages into a folder: options of `deploy/deb/build.py`."""
    lock = ROOT / "build" / "lock"  # only one setup.py at a time writes penstock.egg-info
    command = ["flock", str(lock), sys.executable, str(ROOT / "deploy/deb/build.py"), "--fast", "--out", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.splitlines()]


def bundle(folder: Path, packages: list[Path], tar: Path) -> Path:
    """Make a bundle of packages; returns its archive."""
    command = [sys.executable, str(ROOT / "deploy/deb/bundle.py"), "--out", str(folder), "--tar", str(tar)]
    done = subprocess.run([*command, *map(str, packages)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tar


def in_a_box(work: Path, files: Path, given: Path, script: str, *arguments: str) -> list[str]:
    """The lines that a script of `tests/deploy/lo` prints on a machine that has the files of a folder and a network of `lo`
    alone."""
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", str(LO / "box.sh")]
    command += [str(work), str(files), str(given), script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
