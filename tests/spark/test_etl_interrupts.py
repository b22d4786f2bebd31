"""Ctrl-C and SIGTERM at any moment of a load end it with one line, and no JVM is left; one that dies is said to have."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import deltalake
import pytest

from penstock.pipeline.etl.run import ROWS_WRITTEN
from support.etl_world import World
from support.harness import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NIGHT = "2013-01-01"
LIMIT_S = 300.0  # Spark takes a minute of processor time to start and write a night


def descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have, by pid."""
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it may end while we look
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in (task / "children").read_text().split():
                    found |= {int(child)} | descendants(int(child))
    return found


def lives(pid: int) -> bool:
    """Whether a process is there and isn't just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Command:
    """`penstock etl` in a process group of its own, as a shell starts it; and all pids that were seen below it."""

    def __init__(self, world: World, failpoints: str = "") -> None:
        self.said = world.folder / "said"
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "etl", "--config", str(world.config), "--night", NIGHT],
                stdout=said,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PENSTOCK_FAILPOINTS": failpoints},
                process_group=0,
            )
        self.seen: set[int] = set()

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait for something."""
        deadline = time.monotonic() + LIMIT_S
        while not reached():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said.read_text()
            self.seen |= descendants(self.process.pid)
            time.sleep(0.02)

    def says(self, words: str) -> bool:
        return words in self.said.read_text()

    def end(self, number: int) -> tuple[int, list[str]]:
        """Signal the group; the exit code and the lines that are no progress. No process may be left."""
        self.seen |= descendants(self.process.pid)
        os.killpg(self.process.pid, number)
        code = self.process.wait(LIMIT_S)
        assert [pid for pid in self.seen if lives(pid)] == []
        return code, [line for line in self.said.read_text().splitlines() if " INFO " not in line]


@pytest.fixture
def world(shared_broker: BrokerProcess, tmp_path: Path) -> World:
    world = World(shared_broker.bootstrap, tmp_path)
    world.events(NIGHT, 30)
    world.send("2013-01-02", [b"{}"] * 2)
    world.arrive()
    return world


@pytest.fixture
def run(world: World) -> Iterator[Callable[..., Command]]:
    made: list[Command] = []

    def start(failpoints: str = "") -> Command:
        made.append(Command(world, failpoints))
        return made[-1]

    yield start
    for command in made:
        for pid in [command.process.pid, *command.seen]:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        command.process.wait()


def jvms(command: Command) -> list[int]:
    """The JVMs below the command."""
    found = []
    for pid in descendants(command.process.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/exe").readlink().name == "java":
                found.append(pid)
    return found


@pytest.mark.parametrize(
    ("number", "after_s"),
    [(signal.SIGINT, 0.0), (signal.SIGINT, 0.4), (signal.SIGINT, 1.5), (signal.SIGTERM, 0.2), (signal.SIGTERM, 4.0)],
)
def test_no_jvm_outlives_a_load_that_is_interrupted_as_spark_starts(
    run: Callable[..., Command], world: World, number: int, after_s: float
) -> None:
    command = run()
    command.until(lambda: command.says("starting Spark"))
    moment = time.monotonic() + after_s
    command.until(lambda: time.monotonic() >= moment)
    code, said = command.end(number)
    assert code == (130 if number == signal.SIGINT else -number), said
    assert said == [f"penstock: interrupted: night {NIGHT} isn't loaded; run it again"]
    assert not list(world.folder.glob("table/*/*.parquet"))


def test_a_night_that_is_interrupted_as_it_is_written_is_loaded_once_by_the_next_run(
    run: Callable[..., Command], world: World
) -> None:
    command = run(f"{ROWS_WRITTEN}=delay:{LIMIT_S * 1000:.0f}")
    command.until(lambda: bool(list(world.folder.glob("table/*/*.parquet"))))
    code, said = command.end(signal.SIGINT)
    assert (code, said) == (130, [f"penstock: interrupted: night {NIGHT} isn't loaded; run it again"])
    assert not list(world.folder.glob("table/_delta_log/*.json")), "a first night makes its table in its own commit"
    done = world.etl("--night", NIGHT)
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 30), done.stderr
    assert deltalake.DeltaTable(world.table).to_pyarrow_table().num_rows == 30


def test_a_jvm_that_dies_is_said_to_have_died(run: Callable[..., Command], world: World) -> None:
    command = run()
    command.until(lambda: command.says("reads"))
    (jvm,) = jvms(command)
    os.kill(jvm, signal.SIGKILL)
    assert command.process.wait(LIMIT_S) == 1
    (line,) = [line for line in command.said.read_text().splitlines() if " INFO " not in line]
    assert line.startswith("penstock: Spark's JVM ended by SIGKILL, and what it said last is in `")
    assert "run the night again" in line and "schema" not in line


def test_spark_that_can_not_start_gives_its_reason_in_one_line(world: World) -> None:
    done = world.etl("--night", NIGHT, "--set", "spark.master=lcal[2]")
    (line,) = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert (done.returncode, done.stdout) == (1, "")
    assert line == "penstock: Spark did not start: Master must either be yarn or start with spark, k8s, or local"
