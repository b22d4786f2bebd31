"""Generates the wire messages and compiles the Cython modules; everything else is in pyproject.toml."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
# By way of the link `penstock/pyx`: an sdist has the files there and no folders beside it.
PYX = ROOT / "penstock" / "pyx"
# A module is listed, not globbed: a source that is missing from a package then fails the build.
# Value: the libraries that it links. PENSTOCK_MODULES=a,b builds only those (for a quick turn while working).
MODULES: dict[str, list[str]] = {
    "crc": ["z"],
    "codec": ["snappy", "lz4", "zstd", "z"],
    "batch": [],
    "messageset": [],
    "rawbatch": [],
    "builder": [],
    "convert": [],
    "ingest": [],
    "columns": [],
    "rewrite": [],
    "descriptors": [],
    "room": [],
    "damage": [],
    "segment": [],
    "producerstate": [],
    "swap": [],
    "epochproof": [],
    "recovery": [],
    "proof": [],
    "offsetmap": [],
    "pace": [],
    "txntrack": [],
    "cleanindex": [],
    "cleaned": [],
    "compact": [],
    "compactor": [],
    "partition": [],
    "upkeep": [],
    "append": [],
    "read": [],
    "logconfig": [],
    "logtable": [],
    "logs": [],
    "reader": [],
    "verification": [],
    "produce": [],
    "fetchset": [],
    "sessions": [],
    "fetch": [],
    "fetchconvert": [],
    "fetchread": [],
    "fetchanswer": [],
    "admission": [],
    "closures": [],
    "control": [],
    "waiting": [],
    "input": [],
    "requests": [],
    "output": [],
    "connection": [],
    "mailbox": [],
    "acceptor": [],
    "reactor": [],
    "planes": [],
    "border": [],
    "rocks": ["rocksdb"],
}
FLAGS = ["-O2", "-g0", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function", "-std=c++17"]
if os.environ.get("PENSTOCK_DEBUG"):
    FLAGS += ["-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]

wanted = os.environ.get("PENSTOCK_MODULES")
chosen = wanted.split(",") if wanted else list(MODULES)

subprocess.run([sys.executable, str(PYX / "wire" / "codegen.py")], check=True)


def cythonized() -> list[Extension]:
    """Translate the chosen modules; any performance hint fails the build.

    A hint says that a function without the GIL would take it after a call, or make a Python object: in the data
    plane that is a fault (ARCHITECTURE.md). Cython only prints it, from processes of its own: that is read here.
    """
    modules = [
        Extension(
            f"penstock.pyx.{name}",
            [f"penstock/pyx/{name}.pyx"],
            libraries=MODULES[name],
            extra_compile_args=FLAGS,
            language="c++",
        )
        for name in chosen
    ]
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            extensions = cythonize(
                modules,
                build_dir="build/cython",
                nthreads=os.cpu_count() or 1,
                compiler_directives={
                    "language_level": 3,
                    "boundscheck": False,
                    "wraparound": False,
                    "cdivision": True,
                    "initializedcheck": False,
                    "legacy_implicit_noexcept": False,
                    "embedsignature": True,
                },
            )
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            said.seek(0)
            text = said.read().decode(errors="replace")
            sys.stderr.write(text)
    hints = [line for line in text.splitlines() if line.startswith("performance hint")]
    if hints:
        # What was translated goes again, so that the next build says the same.
        for name in chosen:
            if any(f"/{name}." in hint for hint in hints):
                (ROOT / "build" / "cython" / "penstock" / "pyx" / f"{name}.cpp").unlink(missing_ok=True)
        sys.exit("the build fails on performance hints:\n" + "\n".join(hints))
    return list(extensions)


setup(ext_modules=cythonized())
