"""Generates the wire messages and compiles the Cython modules; everything else is in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
# A module is listed, not globbed: a source that is missing from a package then fails the build.
# Value: the libraries that it links. PENSTOCK_MODULES=a,b builds only those (for a quick turn while working).
MODULES: dict[str, list[str]] = {
    "crc": ["z"],
    "codec": ["snappy", "lz4", "zstd", "z"],
    "batch": [],
    "columns": [],
    "rewrite": [],
    "segment": [],
    "producerstate": [],
    "recovery": [],
    "partition": [],
    "reader": [],
    "produce": [],
    "fetch": [],
    "control": [],
    "waiting": [],
    "connection": [],
    "reactor": [],
    "border": [],
    "rocks": ["rocksdb"],
}
FLAGS = ["-O2", "-g0", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function", "-std=c++17"]
if os.environ.get("PENSTOCK_DEBUG"):
    FLAGS += ["-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]

wanted = os.environ.get("PENSTOCK_MODULES")
chosen = wanted.split(",") if wanted else list(MODULES)

generator = ROOT / "pyx" / "wire" / "codegen.py"
subprocess.run([sys.executable, str(generator)], check=True)

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"penstock.pyx.{name}",
                [f"penstock/pyx/{name}.pyx"],
                libraries=MODULES[name],
                extra_compile_args=FLAGS,
                language="c++",
            )
            for name in chosen
        ],
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
)
