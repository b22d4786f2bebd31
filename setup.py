"""Generates the wire messages and compiles the Cython modules; everything else is in pyproject.toml."""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import Cython.Build.Cache
from Cython.Build import cythonize
from Cython.Build.Cache import Cache
from setuptools import Extension, setup

ROOT = Path(__file__).parent
# By way of the link `penstock/pyx`: an sdist has the files there and no folders beside it.
PYX = ROOT / "penstock" / "pyx"
# A module is listed, not globbed: a source that is missing from a package then fails the build.
# Value: the libraries that it links. PENSTOCK_MODULES=log.append,log.read builds only those (for a quick turn while working).
MODULES: dict[str, list[str]] = {
    "record.crc": ["z"],
    "record.codec": ["snappy", "lz4", "zstd", "z"],
    "record.batch": [],
    "record.messageset": [],
    "record.rawbatch": [],
    "record.builder": [],
    "record.convert": [],
    "record.upconvert": [],
    "log.validator": [],
    "record.columns": [],
    "producer.partitioning": [],
    "producer.recordqueue": [],
    "producer.enqueuer": [],
    "record.rewrite": [],
    "linux.descriptors": [],
    "log.room": [],
    "log.endslots": [],
    "log.writeout": [],
    "log.damage": [],
    "log.segment": [],
    "log.producerstate": [],
    "log.swap": [],
    "log.epochproof": [],
    "log.recovery": [],
    "log.proof": [],
    "compaction.offsetmap": [],
    "compaction.pace": [],
    "compaction.txntrack": [],
    "compaction.cleankeys": [],
    "compaction.cleaned": [],
    "compaction.cleansegments": [],
    "compaction.cleaner": [],
    "log.topictally": [],
    "log.partition": [],
    "log.openfiles": [],
    "log.upkeep": [],
    "log.lifecycle": [],
    "log.replicas": [],
    "log.append": [],
    "log.truncation": [],
    "log.following": [],
    "log.read": [],
    "log.logconfig": [],
    "log.logtable": [],
    "log.replicatable": [],
    "log.logmanager": [],
    "net.workers": [],
    "net.coldreader": [],
    "request.leaders": [],
    "request.acks": [],
    "request.producerequest": [],
    "request.verification": [],
    "request.produce": [],
    "request.produceflush": [],
    "request.fetchset": [],
    "request.refusals": [],
    "request.sessions": [],
    "request.fetch": [],
    "request.fetchconvert": [],
    "request.fetchread": [],
    "request.fetchanswer": [],
    "net.admission": [],
    "net.closures": [],
    "net.control": [],
    "net.requesttimes": [],
    "net.mailbox": [],
    "net.waiting": [],
    "net.plane": [],
    "net.input": [],
    "net.requests": [],
    "net.output": [],
    "net.connection": [],
    "net.acceptor": [],
    "net.reactor": [],
    "net.border": [],
    "net.fetchreply": [],
    "net.fetchrequest": [],
    "net.fetchlink": [],
    "net.fetcher": [],
    "ids.place": [],
    "linux.kernel": [],
    "ids.store": ["rocksdb"],
}
FLAGS = ["-O2", "-g0", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function", "-std=c++17"]
# What Debian hardens its own packages with.
FLAGS += ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong"]
LINK_FLAGS = ["-Wl,-z,relro,-z,now"]
if os.environ.get("PENSTOCK_DEBUG"):
    FLAGS += ["-O1", "-g", "-U_FORTIFY_SOURCE", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]

if shutil.which("ccache") and "CC" not in os.environ and "CXX" not in os.environ:
    # A checkout beside this one, or a fresh clone, compiles only what is new: paths are hashed relative to the checkout.
    os.environ.update(CC="ccache gcc", CXX="ccache g++", CCACHE_BASEDIR=str(ROOT.resolve()), CCACHE_NOHASHDIR="1")

wanted = os.environ.get("PENSTOCK_MODULES")
chosen = wanted.split(",") if wanted else list(MODULES)

subprocess.run([sys.executable, str(PYX / "wire" / "codegen.py")], check=True)


def extensions() -> list[Extension]:
    """The chosen modules, by their Cython sources."""
    return [
        Extension(
            f"penstock.pyx.{name}",
            [f"penstock/pyx/{name.replace('.', '/')}.pyx"],
            libraries=MODULES[name],
            extra_compile_args=FLAGS,
            extra_link_args=LINK_FLAGS,
            language="c++",
        )
        for name in chosen
    ]


@functools.cache
def file_hash(filename: str) -> str:
    """What the cache of translations knows a file by: its content, and its path within the checkout or within Cython.

    Cython's own function takes the whole path. Cython's .pxd files have another one in each environment, so that a fresh clone
    or a wheel would find nothing in the cache.
    """
    own, path = Path(Cython.__file__).parent, Path(os.path.normpath(filename))
    name = path.relative_to(own) if path.is_relative_to(own) else path
    return hashlib.sha256(f"{name}\n".encode() + path.read_bytes()).hexdigest()


Cython.Build.Cache.file_hash = file_hash


def cythonized() -> list[Extension]:
    """Translate the chosen modules; any performance hint fails the build.

    A hint says that a function without the GIL would take it after a call, or make a Python object: in the data
    plane that is a fault (ARCHITECTURE.md). Cython only prints it, from processes of its own: that is read here.
    """
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            translated = cythonize(
                extensions(),
                build_dir="build/cython",
                # A fresh clone, or the wheel that is built from an sdist, translates only what is new.
                cache=True,
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
            source = name.replace(".", "/")
            if any(f"/{source}." in hint for hint in hints):
                made = ROOT / "build" / "cython" / "penstock" / "pyx" / f"{source}.cpp"
                for path in (made, *Path(Cache(None).path).glob(f"{made.name}-*")):
                    path.unlink(missing_ok=True)
        sys.exit("the build fails on performance hints:\n" + "\n".join(hints))
    return list(translated)


# `python -m build` runs commands that only list sources, with a Cython of its own whose files are newer than all that was
# translated here: they would translate everything again.
commands = set(sys.argv[1:])
lists = commands & {"egg_info", "dist_info", "sdist"} and not commands & {"build", "build_ext", "bdist_wheel", "editable_wheel"}
setup(ext_modules=extensions() if lists else cythonized())
