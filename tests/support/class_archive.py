"""Archives of Java classes (class data sharing): finding, reading and checking its classes is half of what a JVM's start costs.

An archive is made once for a checkout, in `build/classes`. A JVM that finds other jars than those it was made of ignores it.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "classes"


def archived(name: str, made_of: str, run: Callable[[Path], None]) -> list[str]:
    """Options for JVMs that share the classes of an archive.

    `made_of` names what the classes come from, for one the class path. `run` runs a program once and lets it write the
    classes that it has loaded into the given file.
    """
    java = Path(shutil.which("java") or "java").resolve()
    key = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} {made_of}".encode()).hexdigest()[:16]
    archive = FOLDER / f"{name}-{key}.jsa"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            for old in FOLDER.glob(f"{name}-*.jsa"):
                old.unlink()
            aside = archive.with_suffix(".aside")
            run(aside)
            if not aside.exists():  # the JVM was killed as it wrote it: the next process tries again
                return []
            aside.replace(archive)
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
