"""The library that makes calls on files fail, or hang, in a process that it is preloaded into; see faultio.c."""

from __future__ import annotations

import subprocess
from pathlib import Path


def build(folder: Path) -> Path:
    """Compile it into a folder; its path, for LD_PRELOAD."""
    library = folder / "faultio.so"
    source = Path(__file__).parent / "faultio.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library
