"""The life of a service process, run as one: what it prints, how signals end it, what its errors become."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from penstock.pipeline.service import run_until_stopped
what = sys.argv[1]

async def start():
    print("starting", flush=True)
    if what == "slow": await asyncio.sleep(600)
    if what == "bad start": raise OSError("no way")

async def run():
    if what == "ends": return
    if what == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(600))
            group.create_task(fail())
    try:
        await asyncio.sleep(600)
    finally:
        print("run ended", flush=True)

async def fail(): raise ValueError("inner")
async def close(): print("closed", flush=True)

try:
    run_until_stopped("thing", start, run, close)
except Exception as error:
    print(f"raised {error}")
print("out")
"""


def start(what: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, what], stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_what_runs_then_closes(number: int) -> None:
    process = start("")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["starting\n", "penstock thing started\n"]
    process.send_signal(number)
    assert said(process) == ["run ended", "closed", "out"]


def test_a_signal_during_the_start_ends_it_before_it_says_started() -> None:
    process = start("slow")
    assert process.stdout is not None and process.stdout.readline() == "starting\n"
    process.send_signal(signal.SIGTERM)
    assert said(process) == ["closed", "out"]


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        ("bad start", ["starting", "closed", "raised no way", "out"]),
        ("group", ["starting", "penstock thing started", "closed", "raised inner", "out"]),
        ("ends", ["starting", "penstock thing started", "closed", "out"]),
    ],
)
def test_it_closes_and_tells_the_first_cause(what: str, lines: list[str]) -> None:
    assert said(start(what)) == lines
