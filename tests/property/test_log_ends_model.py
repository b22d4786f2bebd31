"""Random lives of logs that nobody damages: whatever ends a life, the next one opens, and misses nothing."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.record.rawbatch import split
from support.logs import NOW_MS, TOPIC_ID, batch

LIVES = 40
"""Of one log, one after the other."""
STEPS = 12


class World:
    """A log, what is known of it, and what a power cut can't take."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.dice = dice
        self.roots = root
        self.number = 0
        self.config = {
            "segment_bytes": dice.choice([320, 500, 900]),
            "retention_ms": -1,
            "retention_bytes": dice.choice([-1, 300, 1200]),
            "index_interval_bytes": dice.choice([0, 100, 4096]),
            "file_delete_delay_ms": dice.choice([0, 60_000]),
            "flush_messages": dice.choice([1, 7, 1 << 62]),
        }
        self.root.mkdir()
        self.opened = True
        self.start = self.end = self.flushed = 0
        self.logs = self.open("kill")

    @property
    def root(self) -> Path:
        return self.roots / str(self.number)

    def open(self, ended: str) -> LogManager:
        logs = LogManager()
        logs.lead("t", TOPIC_ID, 0, 0, str(self.root), self.config, ended == "stop", power_cut=ended == "power cut")
        # Before that, a start doesn't take the boot id into `.lock`: the next one still takes it for a power cut.
        self.opened = ended != "power cut" or self.dice.random() < 0.7
        if self.opened:
            logs.write_overdue_checkpoints(str(self.root))
        return logs

    def step(self) -> None:
        logs = self.logs
        match self.dice.choice(["append"] * 5 + ["delete", "upkeep", "half upkeep", "roll", "flush", "rolled", "checkpoint"]):
            case "append":
                count = self.dice.randint(1, 3)
                assert logs.append_client("t", 0, batch(count, size=self.dice.choice([1, 50]))).base_offset == self.end
                self.end += count
            case "delete":
                logs.delete_records([("t", TOPIC_ID, 0, self.dice.randint(self.start, self.end))])
            case "upkeep":
                logs.upkeep("t", 0, NOW_MS)
            case "half upkeep":
                logs.upkeep("t", 0, NOW_MS, remove=False)
                if self.dice.random() < 0.5:
                    logs.write_checkpoints()
                if self.dice.random() < 0.3:
                    logs.remove_expired(str(self.root), NOW_MS)
            case "roll":
                logs.upkeep("t", 0, 1 << 50)
            case "flush":
                logs.flush("t", 0)
                self.flushed = self.end
            case "rolled":
                logs.flush_rolled(int(time.time() * 1000) + 1001)
            case "checkpoint":
                logs.write_checkpoints()
        self.start = logs.offsets("t", 0).log_start
        # Sealed segments may be flushed by now; all is, where it is due so often.
        often = self.config["flush_messages"] < 1 << 62
        self.flushed = self.end if often else max(self.flushed, logs.segments("t", 0)[-1].base_offset)

    def die(self) -> None:
        """A folder as the end of the process, or of the machine, leaves it."""
        ended = self.dice.choice(["stop", "kill", "kill", "power cut"])
        if ended == "stop":
            self.logs.stop("t", 0)
            if self.dice.random() < 0.9:
                self.logs.write_checkpoints()
        before = self.root
        self.number += 1
        shutil.copytree(before, self.root)
        if ended == "power cut":
            self.cut()
        shutil.rmtree(before)
        if ended == "kill" and not self.opened:
            ended = "power cut"
        self.logs = self.open(ended)
        found = self.logs.offsets("t", 0)
        assert found.log_end >= (self.flushed if ended == "power cut" else self.end), ended
        assert found.log_start <= self.start, ended
        self.start, self.end = found.log_start, found.log_end
        self.flushed = self.end if ended == "stop" else min(self.flushed, self.end)

    def cut(self) -> None:
        """Take batches that weren't flushed off the end."""
        end = self.dice.randint(min(self.flushed, self.end), self.end)
        for path in sorted((self.root / "t-0").glob("*.log"), reverse=True):
            data = path.read_bytes()
            size = int.from_bytes(data[8:12], "big")
            ends, at = [0], 0
            while size and at + 12 + size <= len(data):
                at += 12 + size
                ends.append(at)
                size = int.from_bytes(data[at + 8 : at + 12], "big")
            raws = split(data[: ends[-1]])
            kept = [raw for raw in raws if raw.next_offset <= end or raw.base_offset < self.flushed]
            if len(kept) < len(raws):
                os.truncate(path, sum(raw.size_in_bytes for raw in kept))
            if kept or int(path.stem) <= self.flushed:
                break
            if self.dice.random() < 0.5:
                path.unlink()


@pytest.mark.parametrize("seed", range(int(os.environ.get("ENDS_LOGS", "10"))))
def test_nothing_is_missed_that_nobody_lost(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), random.Random(seed))
        for _ in range(LIVES):
            for _ in range(world.dice.randrange(STEPS)):
                world.step()
            world.die()
