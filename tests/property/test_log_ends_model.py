"""Random lives of logs: whatever ends a life, the next one opens and misses nothing that nobody has lost. What somebody takes
away after a kill -9, it misses."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from penstock.broker.tools.logrepair import accept
from penstock.durable import boot_id
from penstock.pyx.log.checkpoint import OURS
from penstock.pyx.log.endslots import NAME
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.logtable import CorruptLogError
from penstock.pyx.record.rawbatch import split
from support.logs import NOW_MS, batch

LIVES = 40
"""Of one log, one after the other."""
STEPS = 12


FOLDERS = ("a", "b")


class World:
    """A log in one of two log folders, what is known of it, and what a power cut can't take."""

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
        self.folder = "a"
        for folder in FOLDERS:
            (self.root / folder).mkdir(parents=True)
        self.opened = True
        self.topic_id = dice.randbytes(16)
        self.start = self.end = self.flushed = 0
        self.logs = self.open("kill")

    @property
    def root(self) -> Path:
        return self.roots / str(self.number)

    @property
    def place(self) -> str:
        return str(self.root / self.folder)

    def open(self, ended: str) -> LogManager:
        logs = LogManager()
        logs.lead("t", self.topic_id, 0, 0, self.place, self.config, ended == "stop", power_cut=ended == "power cut")
        # Before that, a start doesn't take the boot id into `.lock`: the next one still takes it for a power cut.
        self.opened = ended != "power cut" or self.dice.random() < 0.7
        if self.opened:
            for folder in FOLDERS:
                logs.write_overdue_checkpoints(str(self.root / folder))
        return logs

    def step(self) -> None:
        logs = self.logs
        others = ["delete", "upkeep", "half upkeep", "roll", "flush", "rolled", "checkpoint", "move", "again"]
        match self.dice.choice(["append"] * 6 + others):
            case "append":
                count = self.dice.randint(1, 3)
                assert logs.append_client("t", 0, batch(count, size=self.dice.choice([1, 50]))).base_offset == self.end
                self.end += count
            case "delete":
                logs.delete_records([("t", self.topic_id, 0, self.dice.randint(self.start, self.end))])
            case "upkeep":
                logs.upkeep("t", 0, NOW_MS)
            case "half upkeep":
                logs.upkeep("t", 0, NOW_MS, remove=False)
                if self.dice.random() < 0.5:
                    logs.write_checkpoints()
                if self.dice.random() < 0.3:
                    logs.remove_expired(self.place, NOW_MS)
            case "roll":
                logs.upkeep("t", 0, 1 << 50)
            case "flush":
                logs.flush("t", 0)
                self.flushed = self.end
            case "rolled":
                logs.flush_rolled(int(time.time() * 1000) + 1001)
            case "checkpoint":
                logs.write_checkpoints()
            case "move":
                self.move()
            case "again":
                self.again()
        self.start = self.logs.offsets("t", 0).log_start
        # Sealed segments may be flushed by now; all is, where it is due so often.
        often = self.config["flush_messages"] < 1 << 62
        self.flushed = self.end if often else max(self.flushed, self.logs.segments("t", 0)[-1].base_offset)

    def move(self) -> None:
        """To the other log folder, and in some of the cases no further than its closing."""
        before, after = self.place, str(self.root / next(folder for folder in FOLDERS if folder != self.folder))
        self.logs.stop("t", 0, announced=True)
        self.flushed = self.end
        if self.dice.random() < 0.7:
            shutil.copytree(f"{before}/t-0", f"{after}/t-0")
            self.logs.carry_checkpoints("t", 0, before, after)
            shutil.rmtree(f"{before}/t-0")
            self.folder = Path(after).name
        self.logs.lead("t", self.topic_id, 0, 0, self.place, self.config, clean=True)
        self.logs.drop_checkpoints("t", 0, after if self.place == before else before)

    def again(self) -> None:
        """A topic is deleted, and another one has its name. Seldom it is the same one, of which an operator has said that it is
        lost."""
        if self.dice.random() < 0.7:
            self.logs.delete("t", 0)
            self.logs.write_overdue_checkpoints(self.place)
            self.topic_id = self.dice.randbytes(16)
            self.folder = self.dice.choice(FOLDERS)
            self.logs.lead("t", self.topic_id, 0, 0, self.place, self.config)
            self.logs.write_overdue_checkpoints(self.place)  # As where a topic is made.
        else:
            shutil.rmtree(f"{self.place}/t-0")
            self.logs = self.open("kill")
        self.start = self.end = self.flushed = 0

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
            if self.dice.random() < 0.5:  # Else `.lock` alone says it, as where a start after it was cut short.
                for path in self.root.glob(f"*/{NAME}"):
                    path.write_bytes(path.read_bytes().replace(boot_id().encode(), boot_id()[::-1].encode()))
        shutil.rmtree(before)
        if ended == "kill" and not self.opened:
            ended = "power cut"
        if ended == "kill" and self.dice.random() < 0.3:
            self.damage()
        self.logs = self.open(ended)
        found = self.logs.offsets("t", 0)
        assert found.log_end >= (self.flushed if ended == "power cut" else self.end), ended
        assert found.log_start <= self.start, ended
        self.start, self.end = found.log_start, found.log_end
        self.flushed = self.end if ended == "stop" else min(self.flushed, self.end)

    def damage(self) -> None:
        """Take something off the end of a log whose process was killed: that is missed, whatever the checkpoints know."""
        folder = Path(self.place) / "t-0"
        last = max(folder.glob("*.log"))
        if self.end <= max(self.start, int(last.stem)) or not (Path(self.place) / OURS).exists():
            return  # Nothing that was ever there, or it was never said that Kafka wasn't here since.
        data, ends, at = last.read_bytes(), [0], 0
        while (size := int.from_bytes(data[at + 8 : at + 12], "big")) and at + 12 + size <= len(data):
            at += 12 + size
            ends.append(at)
        if self.dice.random() < 0.7:
            os.truncate(last, self.dice.choice(ends[:-1]))
        else:
            last.unlink()
            if not any(folder.glob("*.log")):
                self.start = self.end  # The log goes on there.
        for _ in range(self.dice.randint(1, 2)):
            with pytest.raises(CorruptLogError):
                self.open("kill")
        assert accept(folder)

    def cut(self) -> None:
        """Take batches that weren't flushed off the end."""
        end = self.dice.randint(min(self.flushed, self.end), self.end)
        for path in sorted((Path(self.place) / "t-0").glob("*.log"), reverse=True):
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
