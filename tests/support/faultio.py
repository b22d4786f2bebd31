"""The library that makes calls on files fail, or hang, in a process that it is preloaded into; see faultio.c."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def build(folder: Path) -> Path:
    """Compile it into a folder; its path, for LD_PRELOAD."""
    library = folder / "faultio.so"
    source = Path(__file__).parent / "faultio.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def run(script: str, library: Path, control: Path, *arguments: object, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a script of Python under the library, to its end; it finds the control file's path in FAULT_CTL."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": ":".join(sys.path),
            "LD_PRELOAD": str(library),
            "FAULT_CTL": str(control),
        },
    )
