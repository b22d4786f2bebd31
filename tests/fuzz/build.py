"""Compiles the data plane once more, for fuzzing: clang's coverage counters, AddressSanitizer and UBSan.

The C++ that Cython made for the ordinary build is compiled again into `build/fuzz/penstock`, a package of links to the
Python sources beside sanitized modules. Only what changed is compiled, through ccache where it is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[2]
FUZZ = ROOT / "build" / "fuzz"
MADE = ROOT / "build" / "cython" / "penstock" / "pyx"
FLAGS = [
    "-O1", "-g1", "-std=c++17", "-fPIC", "-fno-omit-frame-pointer", "-w",
    # A finding ends the run: one that is only printed is one that nobody reads.
    "-fsanitize=address,undefined,fuzzer-no-link", "-fno-sanitize=vptr,function", "-fno-sanitize-recover=undefined",
]  # fmt: skip
# A checkout next to this one, or a fresh clone, compiles only what is new: ccache hashes paths relative to the checkout.
CCACHE = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
COMPILER = [*(["ccache"] if shutil.which("ccache") else []), "clang++"]
# Asked for once, before there are threads: sysconfig's first answer is not thread-safe.
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
INCLUDES = [f"-I{sysconfig.get_paths()['include']}", f"-I{numpy.get_include()}"]
LIBRARIES = ["-lz", "-lsnappy", "-llz4", "-lzstd"]
# The id store is not a parser, and RocksDB's headers take a minute.
LEFT_OUT = {"rocks"}
LINKED = ("bench", "broker", "dedupe", "mirror", "pipeline")


def sources() -> list[Path]:
    """The C++ files of the modules that exist now."""
    names = sorted(source.relative_to(ROOT / "pyx").with_suffix("") for source in (ROOT / "pyx").rglob("*.pyx"))
    return [MADE / f"{name}.cpp" for name in names if str(name) not in LEFT_OUT]


def link_tree() -> Path:
    """Make `build/fuzz/penstock`: every Python file and folder of the package, but none of its compiled modules."""
    package = FUZZ / "penstock"
    folders = [path.parent.relative_to(ROOT) for path in (ROOT / "pyx").rglob("__init__.py") if path.parent.name != "wire"]
    for source, into in ((ROOT / "penstock", package), *((ROOT / folder, package / folder) for folder in sorted(folders))):
        into.mkdir(parents=True, exist_ok=True)
        for entry in source.iterdir():
            link = into / entry.name
            wanted = entry.suffix == ".py" or (entry.is_dir() and entry.name in (*LINKED, "wire"))
            if wanted and not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(entry.resolve())
    return package / "pyx"


def compile_module(cpp: Path, into: Path) -> None:
    """Compile one module unless it is newer than its source. Raises SystemExit with the compiler's words."""
    module = into / cpp.parent.relative_to(MADE) / f"{cpp.stem}{SUFFIX}"
    if module.exists() and module.stat().st_mtime >= cpp.stat().st_mtime:
        return
    fresh, made = module.with_suffix(".new"), module.with_suffix(".o")
    for command in (
        [*COMPILER, *FLAGS, *INCLUDES, "-c", str(cpp), "-o", str(made)],
        ["clang++", *FLAGS, "-shared", str(made), "-o", str(fresh), *LIBRARIES],
    ):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **CCACHE})
        if done.returncode != 0:
            sys.exit(f"{cpp.name} does not compile for fuzzing:\n{done.stderr}")
    made.unlink()
    fresh.replace(module)


def build() -> Path:
    """Everything; returns the folder to put in front of `sys.path`."""
    into = link_tree()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda cpp: compile_module(cpp, into), sources()))
    return FUZZ


if __name__ == "__main__":
    build()
