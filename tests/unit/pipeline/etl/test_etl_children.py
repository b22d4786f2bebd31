"""The programs that a load starts: none outlives it, whoever of them started more."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from penstock.pipeline.etl.children import Children
from penstock.pipeline.etl.errors import EtlError


def test_a_program_is_ended_with_those_that_it_started(tmp_path: Path) -> None:
    children = Children()
    pid = tmp_path / "pid"
    process = children.start(["sh", "-c", f"sleep 1000 & echo $! > {pid}.part; mv {pid}.part {pid}; wait"])
    while not pid.exists():
        time.sleep(0.01)
    children.end()
    assert process.returncode is not None
    stat = Path(f"/proc/{pid.read_text().strip()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_none_starts_once_they_are_to_end() -> None:
    children = Children()
    children.end()
    with pytest.raises(EtlError):
        children.start(["true"])


def test_a_program_that_runs_to_its_end_is_ended_by_another_thread() -> None:
    children = Children()
    ended: list[tuple[int, str]] = []
    runs = threading.Thread(target=lambda: ended.append(children.run(["sh", "-c", "echo begun; exec sleep 1000"])))
    runs.start()
    while not children.running():
        time.sleep(0.01)
    children.end()
    runs.join()
    assert [code < 0 for code, _ in ended] == [True]
    assert not children.running()
