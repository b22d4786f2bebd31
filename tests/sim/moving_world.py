"""A seeded world of three brokers around one partition of `__consumer_offsets`: the coordinators' shell and the logs are the
real ones; the controller and the network are the test's, and hold back what they like.

Any broker may be elected at any moment, as all are in the ISR and the high watermark goes by all of them. A broker hears late
of its role, and its coordinator later still: until then it takes commits for a leader that was.

Checked at the end, by the log that all replicas have then:

- a commit that was answered, and a position that any broker has shown, is in the log: neither was taken back by an election;
- after a commit was answered the newest coordinator never shows an older one;
- what the last coordinator shows is the last record.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from penstock.broker.configs.features import Features
from penstock.broker.configs.properties import SCHEMA
from penstock.broker.coordination import statelog
from penstock.broker.coordination.coordinators import Coordinators
from penstock.broker.coordination.groupoffsets import Commit
from penstock.broker.coordination.offsets import Committed, OffsetRecord
from penstock.broker.replication.commits import Commits
from penstock.broker.topic import GROUP_OFFSETS
from penstock.errors import KafkaError
from penstock.pyx.log.logmanager import FollowResult, LogManager
from penstock.pyx.log.replicatable import Replica

KEY = (GROUP_OFFSETS, 0)
GROUPS = ("g", "h")
BROKERS = (1, 2, 3)
T = TypeVar("T")


class Violation(AssertionError):
    """An invariant does not hold."""


class Inline:
    """Does at once what a thread would do, so that a seed plays the same run again."""

    async def run(self, folder: Hashable, work: Callable[..., T], *given: object) -> T:
        """What it gives."""
        await asyncio.sleep(0)
        return work(*given)

    def leave(self) -> None:
        """There is no thread."""


class Broker:
    """One of them: its log, its coordinators, and the roles that it has not heard of yet."""

    def __init__(self, world: World, number: int, folder: Path) -> None:
        self.number = number
        self.epoch = 100 + number  # of its registration
        self.logs = LogManager()
        folder.mkdir()
        self.logs.open_replica(GROUP_OFFSETS, b"#" * 16, 0, str(folder), {})
        self.commits = Commits(self.logs)
        state = SimpleNamespace(index=0, leader=-1, leader_epoch=0)
        topic = SimpleNamespace(name=GROUP_OFFSETS, topic_id=b"#" * 16, partitions=[state], internal=True)
        context: Any = SimpleNamespace(
            features=Features(),
            entities=SimpleNamespace(get=lambda entity: {}),
            config=SCHEMA.parse({}),
            topics=SimpleNamespace(get=lambda name: topic, all=lambda: [topic], version=0),
            log_manager=self.logs,
            commits=self.commits,
            cluster=None,
            store=None,
            node_id=number,
            now_ms=lambda: world.now_ms,
            age_now_ms=lambda: world.now_ms,
            monotonic_ms=lambda: world.now_ms,
        )
        self.coordinators = Coordinators(context)
        self.groups = self.coordinators.groups
        self.groups._readers = Inline()  # type: ignore[assignment]
        self.unheard: tuple[int, int, int] | None = None  # leader, leader epoch, partition epoch
        self.untold: tuple[bool, int] | None = None  # leads, leader epoch: what its coordinators don't know yet


class World:
    """One run: `await run()` plays it and raises Violation."""

    def __init__(self, seed: int, folder: Path, steps: int = 250) -> None:
        self.random = random.Random(seed)
        self.steps = steps
        self.now_ms = 1_000_000
        self.brokers = {number: Broker(self, number, folder / str(number)) for number in BROKERS}
        self.epoch, self.partition_epoch, self.leader = 0, 0, -1
        self.offsets = itertools.count(1)
        self.asked: dict[asyncio.Task[Any], tuple[str, int, int]] = {}
        self.answered: list[tuple[str, int]] = []
        self.shown: set[tuple[str, int]] = set()
        self.newest: dict[str, int] = {}  # the largest position that was answered
        self.counts: Counter[str] = Counter()

    async def run(self) -> World:
        """With faults, then without."""
        for broker in self.brokers.values():
            broker.commits.start()
            broker.coordinators.start_in_cluster()
        try:
            for _ in range(self.steps):
                self.step()
                await self.rest(self.random.randrange(4))
            await self.settle()
            self.check()
        finally:
            for broker in self.brokers.values():
                await broker.coordinators.stop()
                await broker.commits.stop()
                broker.logs.delete(*KEY)
        return self

    async def rest(self, passes: int) -> None:
        """Let the loop go on, and take the answers that came."""
        for _ in range(passes):
            await asyncio.sleep(0)
        for task in [task for task in self.asked if task.done()]:
            group, offset, number = self.asked.pop(task)
            self.answer(task, group, offset, number)

    def answer(self, task: asyncio.Task[Any], group: str, offset: int, number: int) -> None:
        try:
            result = task.result()
        except KafkaError as error:
            self.counts[f"refused {error.name}"] += 1
            return
        code = result if isinstance(result, int) else result["t", 0]
        if code:
            self.counts[f"refused {KafkaError(code).name}"] += 1
            return
        self.counts["answered"] += 1
        self.answered.append((group, offset))
        self.newest[group] = max(offset, self.newest.get(group, -1))

    def step(self) -> None:
        draw = self.random
        move = draw.choices(("commit", "fetch", "look", "hear", "tell", "elect"), (10, 24, 8, 6, 6, 1))[0]
        number = draw.choice(BROKERS)
        asked = self.leader if self.leader > 0 and draw.random() < 0.7 else number
        if move == "commit":
            self.commit(draw.choice(GROUPS), asked)
        elif move == "fetch":
            self.fetch(self.brokers[number])
        elif move == "look":
            self.look(asked, draw.choice(GROUPS))
        elif move == "hear":
            self.hear(self.brokers[number])
        elif move == "tell":
            self.tell(self.brokers[number])
        else:
            self.elect(draw.choice(BROKERS))

    # --- clients
    def commit(self, group: str, number: int) -> None:
        if any(who == (group, number) for who in ((one, at) for one, _, at in self.asked.values())):
            return  # A client waits for its answer.
        offset = next(self.offsets)
        event = Commit(None, "", None, -1, {("t", 0): Committed(offset, -1, "", -1)})
        task = asyncio.get_running_loop().create_task(self.brokers[number].groups.commit(group, event))
        self.asked[task] = (group, offset, number)

    def look(self, number: int, group: str) -> None:
        groups = self.brokers[number].groups
        try:
            machine = groups.look_up(group)
        except KafkaError as error:
            self.counts[f"look {error.name}"] += 1
            return
        value = machine.offsets.committed.get(("t", 0)) if machine is not None else None
        position = -1 if value is None else value.offset
        if position >= 0:
            self.counts["shown"] += 1
            self.shown.add((group, position))
        if groups.epoch_of(0) == self.epoch and position < self.newest.get(group, -1):
            raise Violation(f"{group}: {self.newest[group]} was answered, the newest coordinator shows {position}")

    # --- the controller
    def elect(self, number: int) -> None:
        self.epoch += 1
        self.partition_epoch += 1
        self.leader = number
        self.counts["election"] += 1
        for broker in self.brokers.values():
            broker.unheard = (number, self.epoch, self.partition_epoch)

    def hear(self, broker: Broker) -> None:
        """The broker's log takes its role."""
        if broker.unheard is None:
            return
        leader, epoch, partition_epoch = broker.unheard
        broker.unheard = None
        if leader == broker.number:
            others = [Replica(one.number, True, True, one.epoch) for one in self.brokers.values() if one is not broker]
            assert broker.logs.set_leader(
                *KEY, broker_epoch=broker.epoch, leader_epoch=epoch, partition_epoch=partition_epoch, replicas=others, enough=2
            )
        else:
            assert broker.logs.set_follower(
                *KEY, broker_epoch=broker.epoch, leader=leader, leader_epoch=epoch, partition_epoch=partition_epoch,
                unclean_epoch=-1,
            )  # fmt: skip
        broker.untold = (leader == broker.number, epoch)

    def tell(self, broker: Broker) -> None:
        """Its coordinators hear of it."""
        if broker.untold is None:
            return
        leads, epoch = broker.untold
        broker.untold = None
        if leads:
            broker.coordinators.elected(*KEY, epoch)
        else:
            broker.coordinators.resigned(*KEY)

    # --- the network
    def fetch(self, broker: Broker) -> None:
        ask = broker.logs.follower_ask(*KEY)
        if ask is None or ask.leader < 0:
            return
        leader = self.brokers[ask.leader].logs
        told = leader.replica_fetched(
            *KEY, replica=broker.number, broker_epoch=ask.broker_epoch, leader_epoch=ask.leader_epoch, offset=ask.offset,
            last_epoch=ask.last_epoch, now_ms=self.now_ms,
        )  # fmt: skip
        if told.error:
            self.counts[f"fetch {KafkaError(told.error).name}"] += 1
            return
        if told.diverging is not None:
            self.counts["cut"] += 1
            result = broker.logs.follower_cut(*KEY, ask, *told.diverging)
        else:
            records = leader.read(*KEY, ask.offset, 1 << 20) if ask.offset < told.log_end else b""
            result = broker.logs.follower_append(*KEY, ask, records, told.high_watermark)
        if result not in (FollowResult.DONE, FollowResult.STALE):
            raise Violation(f"broker {broker.number}: {result!r}")

    # --- the end
    async def settle(self) -> None:
        """All hear of one leader, follow it, and it coordinates."""
        self.elect(self.random.choice(BROKERS))
        for broker in self.brokers.values():
            self.hear(broker)
            self.tell(broker)
        last = self.brokers[self.leader]
        for _ in range(10_000):
            for broker in self.brokers.values():
                self.fetch(broker)
            await self.rest(2)
            where = last.logs.offsets(*KEY)
            if not self.asked and where.high_watermark == where.log_end and not last.groups.is_loading:
                return
        raise Violation(f"no rest: {len(self.asked)} asks wait, {last.logs.offsets(*KEY)}")

    def check(self) -> None:
        """By the log that all have now."""
        last = self.brokers[self.leader]
        stored: list[tuple[str, int]] = []
        where = last.logs.offsets(*KEY)
        offset = where.log_start
        while offset < where.log_end:
            batches = statelog.read_batches(last.logs, *KEY, offset)
            for raw in batches:
                for name, record, _, _ in statelog.read_records(raw, statelog.decode_group_record, *KEY):
                    assert isinstance(record, OffsetRecord) and record.value is not None
                    stored.append((name, record.value.offset))
            offset = batches[-1].next_offset
        lost = set(self.answered) - set(stored)
        if lost:
            raise Violation(f"answered and lost: {sorted(lost)}")
        if unsaid := self.shown - set(stored):
            raise Violation(f"shown and taken back: {sorted(unsaid)}")
        for group in GROUPS:
            of_group = [position for name, position in stored if name == group]
            machine = last.groups.look_up(group)
            value = machine.offsets.committed.get(("t", 0)) if machine is not None else None
            if (value.offset if value is not None else None) != (of_group[-1] if of_group else None):
                raise Violation(f"{group} shows {value}, its log ends with {of_group[-3:]}")
