"""The programs of pipeline/DELIVERY.md as they stand there, killed with kill -9 again and again: what each promises holds."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.pipeline.clients.consumer import Consumer
from penstock.pipeline.clients.producer import Producer
from support import asking
from support.harness import BrokerProcess
from support.patience import until

GUIDE = Path(__file__).parents[2] / "pipeline" / "DELIVERY.md"
COUNT = 300
KILLS = 4


def program(title: str) -> str:
    """The code below a title of the guide."""
    found = re.search(rf"^## {title}\n.*?^```python\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    assert found is not None, title
    return found[1]


class World:
    """Records, the program that reads them, and its restarts."""

    SMALL_TURNS = r'("auto.offset.reset": "\w+")', r'\1, "max.poll.records": 7'

    def __init__(self, broker: BrokerProcess, folder: Path, title: str, new_topic: Callable[[str], str]) -> None:
        self.broker = broker
        self.folder = folder
        self.orders, self.totals = new_topic("orders"), new_topic("totals")
        asking.create(broker, self.orders, self.totals, partitions=2)
        # The broker's address, names of the test's own, and turns that are small enough to be killed in.
        code = program(title).replace("localhost:9092", broker.bootstrap)
        code = code.replace('"orders"', repr(self.orders)).replace('"totals"', repr(self.totals))
        code = code.replace("collector-1", f"collector-{self.orders}")
        code, turns = re.subn(*self.SMALL_TURNS, code)
        assert turns == 1, "its turns are not small"
        self._code = code.replace("isolation_level=None)", "isolation_level=None, timeout=60)")
        self.output = folder / "output"
        self._results = Consumer(broker.bootstrap, **{"auto.offset.reset": "earliest", "isolation.level": "read_committed"})
        self._results.assign([(self.totals, 0), (self.totals, 1)])
        self._values: list[str] = []

    def close(self) -> None:
        """End what looks at the results."""
        self._results.close()

    def fill(self, first: int, count: int) -> None:
        with Producer(self.broker.bootstrap) as producer:
            for i in range(first, first + count):
                producer.send(self.orders, b"k", b"%d" % i, partition=i % 2)

    def run_until(self, done: Callable[[], bool], what: str) -> None:
        """Run the program until something holds, then kill it."""
        with self.output.open("ab") as output, (self.folder / "errors").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", self._code], cwd=self.folder, stdout=output, stderr=errors, stdin=subprocess.DEVNULL
            )
            try:
                until(lambda: done() or process.poll() is not None, what, (self.folder / "errors").read_text)
                assert process.poll() is None, (self.folder / "errors").read_text()
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def printed(self) -> list[str]:
        """What was worked on so far; a line that the kill cut short doesn't count."""
        text = self.output.read_text() if self.output.exists() else ""
        return text[: text.rfind("\n") + 1].split()

    def stored(self) -> list[str]:
        """What the database has."""
        with sqlite3.connect(self.folder / "totals.db", timeout=60) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'results'").fetchall()
            return [value for (value,) in database.execute("SELECT value FROM results")] if tables else []

    def produced(self) -> list[str]:
        """What the topic of results has."""
        while records := self._results.poll(0.3):
            self._values += [record.value.decode() for record in records if record.value is not None]
        return self._values


class FileWorld(World):
    """Its records are lines of a file, whose last line isn't written to its end yet; its results are in the topic `orders`."""

    SMALL_TURNS = "1 << 20", "20"

    def __init__(self, broker: BrokerProcess, folder: Path, title: str, new_topic: Callable[[str], str]) -> None:
        super().__init__(broker, folder, title, new_topic)
        self._file = folder / "orders.log"
        self._file.write_bytes(b"k ")
        self._results.assign([(self.orders, 0), (self.orders, 1)])

    def fill(self, first: int, count: int) -> None:
        with self._file.open("ab") as file:
            for i in range(first, first + count):
                file.write(b"%d\nk " % i)


def kill_again_and_again(world: World, results: Callable[[], list[str]], *, last: bool = True) -> Counter[str]:
    """Records, a kill while they are worked on, more records; gives how often each was worked on. last: wait for all."""
    each = COUNT // (KILLS + 1)
    for i in range(KILLS):
        world.fill(i * each, each)
        some = len(results()) + 5
        world.run_until(lambda: len(results()) > some, f"results of run {i}")  # noqa: B023
    world.fill(KILLS * each, each)
    wanted = {str(n) for n in range(COUNT)} if last else {str(COUNT - 1), str(COUNT - 2)}
    world.run_until(lambda: wanted <= set(results()), "the last results")
    return Counter(results())


@pytest.fixture
def make_world(shared_broker: BrokerProcess, tmp_path: Path, new_topic: Callable[[str], str]) -> Iterator[Callable[..., World]]:
    """A function that makes the world of a program."""
    with ExitStack() as stack:

        def make(title: str, kind: type[World] = World) -> World:
            world = kind(shared_broker, tmp_path, title, new_topic)
            stack.callback(world.close)
            return world

        yield make


def test_at_most_once(make_world: Callable[..., World]) -> None:
    world = make_world("At most once")
    counts = kill_again_and_again(world, world.printed, last=False)
    assert max(counts.values()) == 1


def test_at_least_once(make_world: Callable[..., World]) -> None:
    world = make_world("At least once")
    counts = kill_again_and_again(world, world.printed)
    assert set(counts) == {str(n) for n in range(COUNT)}


def test_exactly_once_into_a_topic(make_world: Callable[..., World]) -> None:
    world = make_world("Exactly once, into a topic")
    assert kill_again_and_again(world, world.produced) == Counter(str(n) for n in range(COUNT))


def test_exactly_once_out_of_a_file(make_world: Callable[..., World]) -> None:
    world = make_world("Exactly once, out of a file", FileWorld)
    assert kill_again_and_again(world, world.produced) == Counter(str(n) for n in range(COUNT))


def test_exactly_once_into_a_database(make_world: Callable[..., World]) -> None:
    world = make_world("Exactly once, into a database")
    assert kill_again_and_again(world, world.stored) == Counter(str(n) for n in range(COUNT))
