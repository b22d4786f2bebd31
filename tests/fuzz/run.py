"""Runs the fuzz targets, each in a process of its own for a bounded time; ends with an error at the first finding.

    make fuzz SECONDS=10                                       every target, 10 seconds each
    PYTHONPATH=tests python -m fuzz.run codec --seconds 600    one of them, longer

What a target has learnt stays in build/fuzz/corpus/TARGET, an input that it fell over in build/fuzz/found/TARGET-*;
`PYTHONPATH=tests python -m fuzz.run TARGET --again FILE` shows it again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import atheris
from fuzz.build import FUZZ, build

HERE = Path(__file__).resolve().parent
DONE = re.compile(r"#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+) corp: (\d+)")
RSS_LIMIT_MB = 3000
INPUT_BYTES_MAX = 4096


def environment(work: Path) -> dict[str, str]:
    """The sanitizers' runtime comes before everything else, and Python's own allocator would hide overruns from it."""
    runtime = Path(atheris.path()) / "asan_with_fuzzer.so"
    return {
        **os.environ,
        "LD_PRELOAD": str(runtime),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_segv=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": f"{FUZZ}{os.pathsep}{HERE.parent}",  # the instrumented build, and the tests' helpers
        "PENSTOCK_FUZZ_WORK": str(work),
    }


def run(target: str, seconds: int, runs: int, seed: int, again: Path | None) -> bool:
    """One target; whether it found nothing."""
    corpus, found = FUZZ / "corpus" / target, FUZZ / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    arguments = [f"-artifact_prefix={found}/{target}-", f"-rss_limit_mb={RSS_LIMIT_MB}", "-timeout=20"]
    if again is not None:
        arguments.append(str(again))
    else:
        arguments += [str(corpus), f"-max_total_time={seconds}", f"-runs={runs}", f"-seed={seed}"]
        arguments.append(f"-max_len={INPUT_BYTES_MAX}")
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as work:
        done = subprocess.run(
            [sys.executable, str(HERE / "targets.py"), target, *arguments],
            env=environment(Path(work)), capture_output=True, text=True, errors="replace",
        )  # fmt: skip
    said = DONE.search(done.stderr)
    if said and said[1] == "0":
        print(f"{target}: no input was run", flush=True)
        return False
    if done.returncode == 0 and (said or again is not None):
        figures = "{} runs, {} edges, {} features, {} inputs kept".format(*said.groups()) if said else "no finding"
        print(f"{target}: {figures}", flush=True)
        return True
    print(f"{target}: FOUND something\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}", flush=True)
    return False


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=int, default=10, help="for each target")
    parser.add_argument("--runs", type=int, default=-1, help="at most so many inputs for each target")
    parser.add_argument("--seed", type=int, default=1, help="of the dice; 0: another one each time")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--again", type=Path, help="an input to run alone")
    asked = parser.parse_args()
    build()
    listed = subprocess.run(
        [sys.executable, str(HERE / "targets.py"), "--list"],
        env={**os.environ, "PYTHONPATH": f"{FUZZ.parent.parent}{os.pathsep}{HERE.parent}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    targets = asked.targets or listed.stdout.split()
    if not targets:
        sys.exit("there is no target to fuzz")
    with ThreadPoolExecutor(asked.jobs) as pool:
        results = list(pool.map(lambda name: run(name, asked.seconds, asked.runs, asked.seed, asked.again), targets))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
