"""Random admin work on a real broker that is killed again and again, and a model that knows all it acknowledged.

    make faults KILLS=200 SEED=7

A round: the broker starts, transactions and repeats of the last round are ended, `admin_look` looks at everything and
`admin_world` judges it; then the workers of `admin_work` begin, and at a random moment the broker gets SIGKILL (or now
and then SIGTERM, or SIGKILL after a look at rest). The seed fixes what each worker decides and when the broker dies,
not what meets what in the broker: the same seed may find an anomaly one time and not another.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import KafkaError
from support.admin_look import Wire, consumed, look
from support.admin_work import STEADY, Lifecycle, workers
from support.admin_world import Anomaly, Seen, Topic, World
from support.harness import BrokerProcess

FOLDERS = 3
STORY_LINES = 60
WORK_S = 0.3, 3.5
"""How long the broker lives under load, from and to."""
KILLED_STARTS = 0.2
"""Part of the starts that are killed before they end, within START_S."""
START_S = 0.6
PROPERTIES: dict[str, object] = {
    "log.retention.ms": -1,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "log.retention.check.interval.ms": 300,
    "log.initial.task.delay.ms": 0,
    "log.cleaner.backoff.ms": 200,
    "log.segment.delete.delay.ms": 300,
}
# What differs from start to start: how old checkpoints are, and how much there is to recover.
DRAWN: dict[str, tuple[object, ...]] = {
    "log.flush.offset.checkpoint.interval.ms": (200, 1000, 60_000),
    "log.flush.interval.messages": (1, 1000, 9_223_372_036_854_775_807),
    "num.recovery.threads.per.data.dir": (1, 2),
}
ERROR_LINE = re.compile(r"(ERROR|CRITICAL)\s+(.*)")
VARYING = re.compile(r"[0-9a-f]{32}|/\S*/|\d+")


@dataclass
class Summary:
    """What a run has come to."""

    seed: int
    kills: int = 0
    stops: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # lines of the broker's log, without what varies
    seconds: float = 0.0
    longest_s: dict[str, float] = field(default_factory=lambda: {"start": 0.0, "stop": 0.0})
    stories: dict[bytes, list[str]] = field(default_factory=dict)  # what was done to topics with an anomaly

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Notes how long the longest start or stop took."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.longest_s[what] = max(self.longest_s[what], time.monotonic() - began)

    def report(self) -> str:
        """The anomalies, and what was done last to each topic that has one."""
        lines = [f"seed {self.seed}"]
        for anomaly in self.anomalies:
            lines.append(f"{anomaly.kind}: {anomaly.what}")
            lines += [f"    {line}" for line in self.stories.get(anomaly.topic_id, [])[-STORY_LINES:]]
        return "\n".join(lines)

    def table(self) -> str:
        """For people."""
        found = Counter(anomaly.kind for anomaly in self.anomalies)
        rows = [
            ("seed", self.seed),
            ("SIGKILL, SIGTERM", f"{self.kills}, {self.stops}"),
            ("seconds", round(self.seconds)),
            *((f"longest {what}, s", f"{longest_s:.2f}") for what, longest_s in self.longest_s.items()),
            *sorted(self.counts.items()),
            *((f"broker's log: {text}", count) for text, count in sorted(self.errors.items())),
            *((kind, found[kind]) for kind in ("missing", "hidden", "offline", "extra")),
            *sorted((kind, n) for kind, n in found.items() if kind not in ("missing", "hidden", "offline", "extra")),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


class AdminRun:
    """One run in a folder of its own; `run` plays it."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        work_s: tuple[float, float] = WORK_S,
        without: Collection[str] = (),
        stop_at_first: bool = False,
        verbose: bool = False,
    ) -> None:
        self.dirs = [folder / f"disk{number}" for number in range(FOLDERS)]
        others = ",".join(str(path) for path in self.dirs[1:])
        self.broker = BrokerProcess(self.dirs[0], {**PROPERTIES, "log.dirs": others})
        self.world = World()
        self.workers = [worker for worker in workers(self.world, self.dirs) if worker.name not in without]
        self.summary = Summary(seed)
        self.seed = seed
        self._stop_at_first = stop_at_first
        self._verbose = verbose
        self._work_s = work_s
        self._logged = 0
        self._seen = Seen(0)

    async def run(self, kills: int) -> Summary:
        """Rounds until so many kills; a last start and look after them."""
        began = time.monotonic()
        round_ = 0
        try:
            while await self.start(round_):
                if self.summary.kills >= kills or (self._stop_at_first and self.summary.anomalies):
                    await self._consume()
                    break
                await self.work(round_)
                self._say(round_)
                round_ += 1
        finally:
            self.broker.close()
            self.summary.counts = self.world.counts
            self.summary.seconds = time.monotonic() - began
        return self.summary

    async def start(self, round_: int) -> bool:
        """Start the broker and look at it; False when it can't be started."""
        dice = random.Random(f"{self.seed}/{round_}/properties")
        self.broker.properties |= {name: dice.choice(values) for name, values in DRAWN.items()}
        if dice.random() < KILLED_STARTS and round_:
            self.broker.launch()
            await asyncio.sleep(dice.uniform(0, START_S))
            self.broker.kill()
            self.world.counts["kills in a start"] += 1
        try:
            with self.summary.timed("start"):
                self.broker.start()
        except AssertionError as error:
            self._add([Anomaly("no_start", str(error)[-2000:])])
            return False
        try:
            await asyncio.gather(*(worker.begin(self.broker.port) for worker in self.workers))
        except (KafkaError, AssertionError) as error:
            self._add([Anomaly("no_answer", f"after a start: {error!r}")])
        await self._look()
        return True

    async def _consume(self) -> None:
        """Another client's reader of committed records is shown the same, of a topic that nothing is removed from now."""
        topic = self._seen.topics.get(STEADY[0])
        if topic is None or self.world.live(STEADY[0]) is None:
            return
        ours = {
            (index, offset, value)
            for index, one in enumerate(topic.partitions)
            for offset, _, value in one.records
            if offset in one.committed
        }
        ends = [one.end for one in topic.partitions]
        theirs = await asyncio.to_thread(consumed, self.broker.bootstrap, STEADY[0], ends)
        self.world.counts["records read by librdkafka"] += len(theirs)
        if ours != theirs:
            what = f"{STEADY[0]}: librdkafka reads {sorted(theirs - ours)[:3]} more, {sorted(ours - theirs)[:3]} not"
            self._add([Anomaly("readers_differ", what, topic.topic_id)])

    async def _look(self) -> None:
        wire = await Wire.open(self.broker.port)
        try:
            groups = [worker.group for worker in self.workers if hasattr(worker, "group")]
            self._seen = await look(wire, self.world, self.dirs, groups)
        except KafkaError as error:
            self._add([Anomaly("no_answer", f"while looking: {error!r}")])
        else:
            self._add(self.world.judge(self._seen))
            await self._repair()
        finally:
            wire.close()
        self._read_log()

    async def _repair(self) -> None:
        """Delete topics with an anomaly, so that the run can go on to find others."""
        lifecycle = Lifecycle("repair", self.world, self.dirs, ())
        await lifecycle.begin(self.broker.port)
        for topic in [topic for topic in self.world.topics.values() if topic.spoiled]:
            await lifecycle.delete(topic)
        for name in STEADY:
            if name not in self.world.topics:
                await lifecycle.create(name, (0.0, 0.9, 0.9, 0.9))
        lifecycle.wire.close()

    async def work(self, round_: int) -> None:
        """Let all work, and end the broker meanwhile."""
        dice = random.Random(f"{self.seed}/{round_}/end")
        work_s, how = dice.uniform(*self._work_s), dice.choices(("kill", "rest", "stop"), (70, 15, 15))[0]
        ended = asyncio.Event()
        tasks = [asyncio.create_task(worker.work(self.seed, round_, ended)) for worker in self.workers]
        await asyncio.wait(tasks, timeout=work_s, return_when=asyncio.FIRST_EXCEPTION)
        if not self.broker.running:
            self._add([Anomaly("crashed", f"the broker ended by itself:\n{self.broker.log_text()[-2000:]}")])
        if how == "rest":
            ended.set()
            await self._gather(tasks)
            await self._look()
        for worker in self.workers:
            worker.ending = True
        if how == "stop":
            self.summary.stops += 1
            with self.summary.timed("stop"):
                code = await asyncio.to_thread(self.broker.stop)
            if code:
                self._add([Anomaly("unclean_stop", f"exit code {code}")])
        else:
            self.summary.kills += 1
            self.broker.kill()
        await self._gather(tasks)
        for worker in self.workers:
            worker.wire.close()

    async def _gather(self, tasks: list[asyncio.Task[None]]) -> None:
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, (KafkaError, AssertionError)):
                self._add([Anomaly("no_answer", repr(result))])
            elif isinstance(result, BaseException):
                raise result

    def _read_log(self) -> None:
        """Count what the broker complains of; an exception that it didn't expect is an anomaly."""
        text = self.broker.log_text()
        new, self._logged = text[self._logged :], len(text)
        for found in ERROR_LINE.finditer(new):
            self.summary.errors[VARYING.sub("#", found[2])[:110]] += 1
        if "Traceback" in new:
            self._add([Anomaly("trace", new[new.index("Traceback") :][:2000])])

    def _add(self, anomalies: list[Anomaly]) -> None:
        for anomaly in anomalies:
            self.summary.anomalies.append(anomaly)
            topic = self._topic(anomaly.topic_id)
            if topic is not None:
                self.summary.stories[anomaly.topic_id] = list(topic.told)
            kills = f"seed {self.seed}, after {self.summary.kills} kills and {self.summary.stops} stops"
            print(f"ANOMALY {anomaly.kind}: {anomaly.what} ({kills})", flush=True)
            if topic is not None and self._verbose:
                print("\n".join(f"    {line}" for line in topic.told[-STORY_LINES:]), flush=True)

    def _topic(self, topic_id: bytes) -> Topic | None:
        known = (topic for topic in self.world.topics.values() if topic.topic_id == topic_id)
        return next(known, self.world.deleted.get(topic_id))

    def _say(self, round_: int) -> None:
        acknowledged = self.world.counts["acknowledged records"]
        print(
            f"round {round_}: {self.summary.kills} kills, {self.summary.stops} stops, {acknowledged} records acknowledged, "
            f"{len(self.summary.anomalies)} anomalies",
            flush=True,
        )


def play(folder: Path, seed: int, kills: int, **given: Any) -> Summary:
    """A whole run; `given` as `AdminRun` has it."""
    return asyncio.run(AdminRun(folder, seed, **given).run(kills))


def main() -> int:
    """The command behind `make faults`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="a random one unless given")
    parser.add_argument("--without", default="", help="workers to leave out, as `mover,trimmer`")
    parser.add_argument("--first", action="store_true", help="end at the first anomaly")
    parser.add_argument("--keep", action="store_true", help="leave the folder of the run")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 31)
    folder = Path(tempfile.mkdtemp(prefix="penstock-faults-"))
    print(f"seed {seed}, folder {folder}", flush=True)
    run = AdminRun(folder, seed, without=given.without.split(","), stop_at_first=given.first, verbose=True)
    with contextlib.suppress(KeyboardInterrupt):  # Who has seen enough gets the table, too.
        asyncio.run(run.run(given.kills))
    summary = run.summary
    print(summary.table())
    if given.keep or summary.anomalies:
        print(f"the broker's folders and its log are in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if summary.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
