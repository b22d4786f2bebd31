"""What the log's own functions cost, in tight loops inside this process: without sockets, threads and other requests.

Each figure is CPU time of one call through Python's door; `door ns` is a call that does next to nothing, so what is above it is
the work. An append holds the check, which holds the checksum.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import frames
from penstock.bench.case import Case, Sample
from penstock.bench.sides import PENSTOCK
from penstock.bench.world import MIB, World
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import RawBatch

TOPIC = "functions"
SEGMENT_BYTES = 32 * MIB
CALLS_MAX = 20_000
BYTES_MAX = 512 * MIB
READS = 5_000


def each_ns(count: int, work: Callable[[int], object]) -> float:
    """CPU time of this process for one call, the loop's own included."""
    started = time.process_time_ns()
    for number in range(count):
        work(number)
    return (time.process_time_ns() - started) / count


@dataclass
class Functions(Case):
    """One batch again and again: checksum, check, append, read; beside it a bare pwrite of the same bytes."""

    name: str
    title: str
    batch_bytes: int
    record_bytes: int
    sides: tuple[str, ...] = (PENSTOCK,)

    def run(self, world: World, side: str) -> Sample:
        folder = world.path(self.name)
        folder.mkdir()
        logs = LogManager()
        config = {"segment_bytes": SEGMENT_BYTES, "retention_bytes": SEGMENT_BYTES, "file_delete_delay_ms": 0}
        logs.lead(TOPIC, bytes(range(16)), 0, 0, str(folder), config)
        try:
            return self._measure(world, logs, folder)
        finally:
            logs.stop(TOPIC, 0)
            shutil.rmtree(folder)

    def _measure(self, world: World, logs: LogManager, folder: Path) -> Sample:
        records = max(1, self.batch_bytes // (self.record_bytes + frames.RECORD_OVERHEAD))
        body = frames.batch(frames.letters(self.record_bytes, records))
        count = world.scaled(min(CALLS_MAX, BYTES_MAX // len(body)), least=20)
        sample = {
            "door ns": each_ns(count, lambda _: logs.offsets(TOPIC, 0)),
            "CRC32C ns": each_ns(count, lambda _: crc32c(body)),
            "check ns": each_ns(count, lambda _: RawBatch(body).check(client=True)),
            "append ns": self._append(logs, body, count),
            "bare pwrite ns": self._pwrite(folder / "bare", body, count),
        }
        kept = logs.offsets(TOPIC, 0)
        choose = random.Random(1)
        places = [choose.randrange(kept.log_start, kept.log_end) for _ in range(world.scaled(READS, least=20))]
        sample["find and read one batch ns"] = each_ns(len(places), lambda number: logs.read(TOPIC, 0, places[number], 1))
        return sample

    def _append(self, logs: LogManager, body: bytes, count: int) -> float:
        """In pieces, between which retention frees pages that the next piece takes again; that isn't counted."""
        spent, piece = 0.0, max(1, SEGMENT_BYTES // len(body))
        for first in range(0, count, piece):
            calls = min(piece, count - first)
            spent += calls * each_ns(calls, lambda _: logs.append_client(TOPIC, 0, body))
            logs.upkeep(TOPIC, 0, int(time.time() * 1000))
        return spent / count

    def _pwrite(self, path: Path, body: bytes, count: int) -> float:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            turn = max(1, SEGMENT_BYTES // len(body))
            os.posix_fallocate(fd, 0, turn * len(body))
            return each_ns(count, lambda number: os.pwrite(fd, body, number % turn * len(body)))
        finally:
            os.close(fd)


CASES: list[Case] = [
    Functions("functions-100b", "functions in tight loops, one record of 100 B a batch", 100, 100),
    Functions("functions-16k", "functions in tight loops, 16 KB batches", 16_384, 1024),
    Functions("functions-1m", "functions in tight loops, 1 MB batches", 1_000_000, 1024),
]
