"""A datacenter's collector: sends one airport's flights, day by day, and keeps a ledger of what was acknowledged.

Run as `python -m penstock.pipeline.demo.collector`. It takes days (`2013-01-05`) from standard input, a line each,
and answers `acked 2013-01-05 50` a chunk and `done 2013-01-05` a day.

The ledger has a line `sent DAY CHUNK COUNT` before a chunk goes out and `acked DAY CHUNK COUNT` once every answer
was seen. A collector that dies in between sends the whole chunk again at its next start: it can't know whether the
broker has it. Those are the duplicates that the dedupe stage is for.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import click

from penstock import failpoints
from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.demo import flights

CHUNK_EVENTS = 50
ANSWER_NOT_SEEN = failpoints.declare("demo.answer_not_seen", "a chunk is stored, its answer not yet noted")


class Ledger:
    """What was sent and what was acknowledged, in a text file that survives the collector's death."""

    def __init__(self, path: Path) -> None:
        self.acked: set[tuple[str, int]] = set()
        if path.exists():
            # A kill may cut the last line short: a line counts only when its newline is there.
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n") and line.startswith("acked "):
                    _, day, chunk, _ = line.split()
                    self.acked.add((day, int(chunk)))
        self._file = path.open("a", buffering=1)
        self._file.write("\n")

    def sent(self, day: str, chunk: int, count: int) -> None:
        """Note that a chunk is about to go out."""
        self._file.write(f"sent {day} {chunk} {count}\n")

    def note_acked(self, day: str, chunk: int, count: int) -> None:
        """Note that every event of a chunk was acknowledged."""
        self._file.write(f"acked {day} {chunk} {count}\n")
        self.acked.add((day, chunk))


def _send_day(producer: Producer, topic: str, day: str, events: list[flights.Event], ledger: Ledger) -> None:
    for number, start in enumerate(range(0, len(events), CHUNK_EVENTS)):
        chunk = events[start : start + CHUNK_EVENTS]
        if (day, number) not in ledger.acked:
            ledger.sent(day, number, len(chunk))
            sends = [producer.send(topic, event.key, event.value, event.timestamp_ms) for event in chunk]
            producer.flush()
            for send in sends:
                send.result()
            failpoints.failpoint(ANSWER_NOT_SEEN)
            ledger.note_acked(day, number, len(chunk))
        print(f"acked {day} {len(chunk)}", flush=True)
    print(f"done {day}", flush=True)


@click.command()
@click.option("--bootstrap", required=True, help="The datacenter's broker, host:port.")
@click.option("--origin", required=True, type=click.Choice(flights.ORIGINS), help="The airport.")
@click.option("--topic", required=True)
@click.option("--codec", required=True, help="compression.type of the batches.")
@click.option("--last-day", default=flights.LAST_DAY.isoformat(), help="No day after this one will be asked for.")
@click.option("--ledger", required=True, type=click.Path(path_type=Path), help="The ledger's file.")
def collect(bootstrap: str, origin: str, topic: str, codec: str, last_day: str, ledger: Path) -> None:
    """Send the days that standard input names."""
    failpoints.arm_from_environment()
    days = flights.events(origin, datetime.date.fromisoformat(last_day))
    book = Ledger(ledger)
    properties: dict[str, Any] = {"compression.type": codec, "linger.ms": 5, "client.id": f"collector-{origin}"}
    producer = Producer(bootstrap, **properties)
    print("ready", flush=True)
    for line in sys.stdin:
        day = line.strip()
        _send_day(producer, topic, day, days.get(datetime.date.fromisoformat(day), []), book)
    producer.close()


if __name__ == "__main__":
    collect()
