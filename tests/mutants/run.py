"""Takes guards out of a copy of the tree, one at a time, and runs the tests that have to fail without them: `make mutants`.

    make mutants                                         all of `table.py`
    PYTHONPATH=tests python -m mutants.run KAFKA-8400    those whose names have that in them

First the tests run with all guards in their place, as one that fails anyway finds nothing. The exit code is 1 if a mutant isn't
found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants"
PASSED, FAILED = 0, 1
"""pytest's exit codes; any other says that it couldn't run the tests."""


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of mutants; default: all")
    asked = parser.parse_args()
    chosen = {name: one for name, one in MUTANTS.items() if not asked.names or any(part in name for part in asked.names)}
    if not chosen:
        parser.error(f"no mutant has {' or '.join(asked.names)} in its name")
    copy()
    tests = sorted({test for one in chosen.values() for test in one.tests})
    if run(tests) != PASSED:
        print("these tests fail with all guards in their place, and find nothing: " + " ".join(tests))
        return 1
    survived = [name for name, one in chosen.items() if not find(name, one)]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mutants are found", flush=True)
    return 1 if survived else 0


def copy() -> None:
    """The tree with what is built of it. Times stay, so that only what a mutant changes is compiled."""
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    built = [ROOT / "pyx" / "wire" / "messages.py", *(ROOT / "pyx").rglob("*.so"), *(ROOT / "build" / "cython").rglob("*.*")]
    for path in [*(ROOT / name for name in listed.stdout.decode().split("\0") if name), *built]:
        to = COPY / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.is_file():
            shutil.copy2(path, to, follow_symlinks=False)


def find(name: str, mutant: Mutant) -> bool:
    """Whether one of the tests fails without the guard."""
    source = COPY / mutant.file
    whole = source.read_text()
    kept = built_of(mutant)
    try:
        source.write_text(whole.replace(mutant.guard, mutant.broken))
        if not build(mutant):
            print(f"NOT BUILT  {name}", flush=True)
            return False
        code = run(mutant.tests)
    finally:
        source.write_text(whole)
        for path, content in kept.items():
            path.unlink(missing_ok=True)  # A process may have it mapped.
            path.write_bytes(content)
            path.chmod(0o755)
    verdict = {PASSED: "SURVIVES", FAILED: "found"}.get(code, f"NOT RUN ({code})")
    print(f"{verdict:10} {name}", flush=True)
    return code == FAILED


def built_of(mutant: Mutant) -> dict[Path, bytes]:
    """What is built of the file, as it is with the guard."""
    if mutant.module is None:
        return {}
    made = mutant.module.replace(".", "/")
    found = [*(COPY / "pyx").glob(f"{made}.*.so"), *(COPY / "build" / "cython" / "penstock" / "pyx").glob(f"{made}.cpp")]
    return {path: path.read_bytes() for path in found}


def build(mutant: Mutant) -> bool:
    """Compile what the mutant changes; whether that could be done."""
    if mutant.module is None:
        return True
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"],
        cwd=COPY, env={**os.environ, "PENSTOCK_MODULES": mutant.module}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        print(done.stdout + done.stderr)
    return done.returncode == 0


def run(tests: Iterable[str]) -> int:
    """pytest's exit code. The copy comes before the tree in which Python would look."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=COPY, env={**os.environ, "PYTHONPATH": str(COPY)}, capture_output=True, text=True,
    )  # fmt: skip
    (COPY / "last.log").write_text(done.stdout + done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
