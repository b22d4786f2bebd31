"""Failpoints act at the passage that they were armed for, and only what was declared can be armed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import failpoints

PROGRAM = """
import sys
from penstock import failpoints
point = failpoints.declare("test.point", "a step")
other = failpoints.declare("test.other", "another step")
failpoints.arm_from_environment()
for passage in range(1, 5):
    print(passage, flush=True)
    failpoints.failpoint(point)
    failpoints.failpoint(other)
print("end", flush=True)
"""


def start(specs: str) -> subprocess.Popen[str]:
    environment = {**os.environ, failpoints.ENVIRONMENT: specs}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(specs: str) -> tuple[int, list[str], str]:
    process = start(specs)
    said, complained = process.communicate(timeout=60)
    return process.returncode, said.split(), complained


@pytest.fixture
def point() -> Iterator[str]:
    name = "test.here"
    failpoints.declare(name, "a step of this test")
    yield name
    failpoints.disarm()
    del failpoints._declared[name]


@pytest.mark.parametrize(("specs", "reached"), [("test.point=kill", 1), ("test.point=kill@3", 3)])
def test_kill_ends_the_process_by_sigkill(specs: str, reached: int) -> None:
    code, said, _ = run(specs)
    assert code == -signal.SIGKILL
    assert said == [str(number) for number in range(1, reached + 1)]


def test_stop_stops_the_process_until_it_is_continued() -> None:
    process = start("test.point=stop@2")
    stat = Path(f"/proc/{process.pid}/stat")
    deadline = time.monotonic() + 120
    while stat.read_text().rpartition(") ")[2][0] != "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said.split()) == (0, ["1", "2", "3", "4", "end"])


def test_error_raises_once() -> None:
    code, said, complained = run("test.other=error@2")
    assert (code, said) == (1, ["1", "2"])
    assert complained.rstrip().endswith("FailpointError: test.other")


def test_delay_sleeps_at_each_passage_from_its_first(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("penstock.failpoints.time.sleep", slept.append)
    failpoints.arm(f"{point}=delay:250@2")
    for _ in range(4):
        failpoints.failpoint(point)
    assert slept == [0.25] * 3


def test_several_may_be_armed() -> None:
    code, said, _ = run("test.other=delay:1, test.point=kill@2 ,")
    assert (code, said) == (-signal.SIGKILL, ["1", "2"])


def test_nothing_happens_when_nothing_is_armed() -> None:
    assert run("") == (0, ["1", "2", "3", "4", "end"], "")


@pytest.mark.parametrize(
    "spec",
    ["x=kill", "{}", "{}=", "{}=explode", "{}=kill:3", "{}=delay", "{}=delay:", "{}=delay:-1", "{}=delay:²", "{}=kill@",
     "{}=kill@0", "{}=kill@-1", "{}=kill@two", "=kill", "{}=kill=error"],
)  # fmt: skip
def test_what_is_no_spec_is_refused_whole(point: str, spec: str) -> None:
    with pytest.raises(failpoints.SpecError):
        failpoints.arm(f"{point}=error," + spec.format(point))
    failpoints.failpoint(point)  # nothing was armed


def test_an_undeclared_name_is_refused_with_those_there_are() -> None:
    code, said, complained = run("test.pint=kill")
    assert (code, said) == (1, [])
    assert "no failpoint `test.pint`; there are: test.other, test.point" in complained


def test_declared_names_can_be_listed_and_are_declared_once(point: str) -> None:
    assert failpoints.declared("test.h") == {point: "a step of this test"}
    with pytest.raises(ValueError, match="declared twice"):
        failpoints.declare(point, "again")
