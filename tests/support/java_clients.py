"""Java's clients over a cluster that fails (`JavaClients.java`), and what they were told, as the history checker takes it."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from support.history import Assigned, Commit, History, Outcome, Poll, Send, check, decode
from support.kafka_jars import jvm, kafka_classpath
from support.patience import until

SOURCE = Path(__file__).with_name("JavaClients.java")
END_S = 150.0


class JavaClients:
    """A JVM with these clients of the newest version, started; `counts` says how much each has been told."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *clients: str, folder: Path) -> None:
        self.history = History()
        self.counts: Counter[str] = Counter()
        self._said = folder / "java-clients.log"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                ["java", *jvm(), "-cp", kafka_classpath(), str(SOURCE), bootstrap, topic, str(partitions), *clients],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
            )  # fmt: skip
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, *words = line.rstrip("\n").split("\t")
            _TAKE[kind](self, *words)

    def _send(
        self, producer: str, number: str, partition: str, value: str, outcome: str, offset: str, started: str, ended: str,
        transaction: str = "",
    ) -> None:  # fmt: skip
        known = int(offset) if int(offset) >= 0 else None
        times = float(started), float(ended)
        send = Send(producer, int(number), int(partition), value, Outcome(outcome), known, *times, transaction or None)
        self.history.sends.append(send)
        self.counts[producer] += outcome == Outcome.OK.value

    def _poll(self, consumer: str, assignment: str, records: str, started: str, ended: str) -> None:
        got = [one.split(":", 2) for one in records.split(" ")]
        read = [(int(partition), int(offset), decode(payload.encode())) for partition, offset, payload in got]
        self.history.polls.append(Poll(consumer, int(assignment), read, float(started), float(ended)))
        self.counts[consumer] += len(read)

    def _assigned(self, group: str, positions: str, started: str) -> None:
        self.history.assigned.append(Assigned(group, _positions(positions), float(started)))

    def _commit(self, group: str, positions: str, outcome: str, started: str, ended: str) -> None:
        self.history.commits.append(Commit(group, _positions(positions), Outcome(outcome), float(started), float(ended)))

    def wait_for(self, more: int, *clients: str) -> None:
        """Until each of these was told so much more: of sends that are there, of records that are read."""
        before = self.counts.copy()

        def all_have() -> bool:
            assert self._process.poll() is None, self.said()
            return all(self.counts[one] - before[one] >= more for one in clients)

        until(all_have, f"{more} more of {clients}", lambda: f"{self.counts}\n{self.said()}")

    def end(self) -> None:
        """Have producers end and all be read; nothing that was told may be wrong."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(END_S)
        self._thread.join(END_S)
        assert self._process.returncode == 0, self.said()
        assert check(self.history) == []

    def close(self) -> None:
        """Whatever state it is in."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def said(self) -> str:
        """The last of its log."""
        return self._said.read_text(errors="replace")[-6000:]


def _positions(words: str) -> dict[int, int]:
    pairs = (one.split(":") for one in words.split(" ") if one)
    return {int(partition): int(offset) for partition, offset in pairs}


_TAKE: dict[str, Callable[..., None]] = {
    "send": JavaClients._send,
    "poll": JavaClients._poll,
    "assigned": JavaClients._assigned,
    "commit": JavaClients._commit,
}
