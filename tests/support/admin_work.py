"""Random admin work and load on a broker that is killed meanwhile: workers that tell the model all that they do.

What a worker decides follows from seed, round and its name alone: each step's numbers are drawn before it looks at
anything, so that the same seed gives the same decisions. What meets what in the broker differs from run to run.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message as ClientMessage
from confluent_kafka import Producer

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire import messages as m
from penstock.pyx.wire.message import Message
from support.admin_look import Wire, error_name
from support.admin_world import FAIL, INFO, OK, Commit, Record, Topic, Transaction, World
from support.history import Outcome, encode

E = ErrorCode
STEADY = ("steady-0", "steady-1")
"""Topics that aren't deleted, for clients that name topics by their names alone."""
CHANGING = ("turn-0", "turn-1", "turn-2", "turn-3", "turn-4")
NAMES = (*STEADY, *CHANGING)
PARTITIONS_MAX = 4

_ANY: dict[str, tuple[str | None, ...]] = {
    "internal.segment.bytes": ("5000", "20000", "1048576", None),
    "flush.messages": ("1", "10", None),
    "compression.type": ("producer", "zstd", "lz4", None),
    "segment.ms": ("200", "60000", None),
}
_COMPACTION: dict[str, tuple[str | None, ...]] = {
    **_ANY,
    "cleanup.policy": ("delete", "compact", "compact,delete", None),
    "min.cleanable.dirty.ratio": ("0.01", None),
}
_RETENTION: dict[str, tuple[str | None, ...]] = {**_ANY, "retention.ms": ("-1", "500", "3000", None)}
CONFIGS: dict[str, dict[str, tuple[str | None, ...]]] = {
    "steady-0": _ANY,
    "steady-1": _COMPACTION,
    "turn-0": _ANY,
    "turn-1": _ANY,
    "turn-2": _COMPACTION,
    "turn-3": _RETENTION,
    "turn-4": {**_COMPACTION, **_RETENTION},
}
"""Which settings a topic may get, and their values (None = the broker's): where little is lawful, more is found."""

UNSURE = {E.UNKNOWN_SERVER_ERROR, E.REQUEST_TIMED_OUT, E.NETWORK_EXCEPTION, E.KAFKA_STORAGE_ERROR}
"""Codes after which something may have been done all the same."""
BUSY = {E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR}
PATIENCE_S = 30.0
OWN_NUMBERS = 6


@dataclass(frozen=True)
class Step:
    """What was drawn for one step: a topic's name, numbers from 0 to 1, a pause before the next."""

    name: str
    numbers: tuple[float, ...]
    pause_s: float


def steps(seed: int, round_: int, worker: str, names: Sequence[str], pause_s: float) -> Iterator[Step]:
    """The steps of a worker in a round; the same for the same seed."""
    dice = random.Random(f"{seed}/{round_}/{worker}")
    while True:
        numbers = tuple(dice.random() for _ in range(OWN_NUMBERS))
        yield Step(dice.choice(list(names)), numbers, dice.expovariate(1 / pause_s))


def outcome_of(code: int) -> Outcome:
    """What an answer's code says of what was asked."""
    return OK if code == E.NONE else INFO if code in UNSURE else FAIL


class Worker(ABC):
    """Does step after step on a connection of its own, until it is told to end or the broker is gone."""

    names: Sequence[str] = NAMES
    pause_s = 0.05

    def __init__(self, name: str, world: World, dirs: Sequence[Path]) -> None:
        self.name = name
        self.world = world
        self.dirs = dirs
        self.ending = False  # The broker is about to be killed or stopped.
        self.wire: Wire

    async def begin(self, port: int) -> None:
        """Connect to the broker that has just started, and end what the last one's death left half done."""
        self.ending = False
        self.wire = await Wire.open(port)
        await self.recover()

    async def recover(self) -> None:  # noqa: B027  (most have nothing)
        """For workers that have something to end."""

    async def work(self, seed: int, round_: int, ended: asyncio.Event) -> None:
        """Do steps. Returns when `ended` is set, after the step that is under way, or when the broker is gone."""
        for step in steps(seed, round_, self.name, self.names, self.pause_s):
            if ended.is_set() or self.wire.connection.closed:
                return
            try:
                await self.step(step)
            except KafkaError:
                if not self.ending:
                    raise
                return
            await asyncio.sleep(step.pause_s)

    @abstractmethod
    async def step(self, step: Step) -> None:
        """Do one thing."""

    async def ask(self, request: Message, version: int) -> Any:
        """The answer, or None: nobody knows what became of it, and the connection is closed."""
        what = type(request).__name__.removesuffix("Request")
        self.world.counts[f"asked {what}"] += 1
        try:
            return await self.wire.ask(request, version)
        except KafkaError as error:
            if not self.ending:
                self.world.report("no_answer", f"{what} of {self.name}: {error}")
            return None

    def judge(self, what: str, code: int, topic: Topic | None = None) -> Outcome:
        """Count an answer's code; a failed disk is none that a test has planted."""
        if code:
            self.world.counts[f"refused {what}: {error_name(code)}"] += 1
        told = topic is not None and topic.spoiled
        if code in (E.KAFKA_STORAGE_ERROR, E.UNKNOWN_SERVER_ERROR) and not told:
            kind = "offline" if code == E.KAFKA_STORAGE_ERROR else "server_error"
            self.world.report(kind, f"{what} of {topic.name if topic else '?'} says {error_name(code)}", topic)
        return outcome_of(code)


class Lifecycle(Worker):
    """Makes, deletes, grows and alters topics; of two of them each has its own names."""

    pause_s = 0.06

    def __init__(self, name: str, world: World, dirs: Sequence[Path], names: Sequence[str]) -> None:
        super().__init__(name, world, dirs)
        self.names = names

    async def step(self, step: Step) -> None:
        topic, (which, *numbers) = self.world.live(step.name), step.numbers
        if step.name not in self.world.topics:
            await self.create(step.name, numbers)
        elif topic is None:
            return
        elif which < 0.35 and step.name not in STEADY:
            await self.delete(topic)
            # Who deletes a topic to recreate it does so at once.
            if numbers[0] < 0.6 and not self.wire.connection.closed and step.name not in self.world.topics:
                await self.create(step.name, numbers[1:])
        elif which < 0.5:
            await self.grow(topic, len(topic.partitions) + 1 + int(numbers[0] * 2))
        else:
            await self.alter(topic, numbers)

    async def create(self, name: str, numbers: Sequence[float]) -> None:
        """Make a topic of one to three partitions, with up to one config."""
        kind, count = m.CreateTopicsRequest, 2 if name in STEADY else 1 + int(numbers[0] * 3)
        key, value = _config(name, numbers[1:])
        configs = {key: value} if value is not None and numbers[1] < 0.5 else {}
        listed = [kind.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        asked = kind.CreatableTopic(name=name, num_partitions=count, replication_factor=1, configs=listed)
        self.world.creating(name, count, configs)
        began_ms = _now_ms()
        answer = await self.ask(kind(topics=[asked]), 7)
        result = answer.topics[0] if answer else None
        outcome = self.judge("CreateTopics", result.error_code) if result else INFO
        self.world.created(name, outcome, bytes(result.topic_id) if result else b"", began_ms)

    async def delete(self, topic: Topic) -> None:
        """Delete a topic, by its id."""
        kind = m.DeleteTopicsRequest
        self.world.deleting(topic)
        asked = kind.DeleteTopicState(name=None, topic_id=topic.topic_id)
        answer = await self.ask(kind(topics=[asked], timeout_ms=30_000), 6)
        outcome = self.judge("DeleteTopics", answer.responses[0].error_code, topic) if answer else INFO
        self.world.has_deleted(topic, outcome)
        self.world.tell(topic, f"delete: {outcome.value}")

    async def grow(self, topic: Topic, count: int) -> None:
        """Ask for more partitions."""
        if count > PARTITIONS_MAX:
            return
        kind = m.CreatePartitionsRequest
        asked = kind.CreatePartitionsTopic(name=topic.name, count=count, assignments=None)
        answer = await self.ask(kind(topics=[asked], timeout_ms=30_000, validate_only=False), 3)
        outcome = self.judge("CreatePartitions", answer.results[0].error_code, topic) if answer else INFO
        self.world.grown(topic, count, outcome)
        self.world.tell(topic, f"grow to {count}: {outcome.value}")

    async def alter(self, topic: Topic, numbers: Sequence[float]) -> None:
        """Set a config, or take it away."""
        kind, (key, value) = m.IncrementalAlterConfigsRequest, _config(topic.name, numbers)
        one = kind.AlterableConfig(name=key, config_operation=0 if value is not None else 1, value=value)
        resource = kind.AlterConfigsResource(resource_type=2, resource_name=topic.name, configs=[one])
        topic.altering(key, value, _now_ms())
        answer = await self.ask(kind(resources=[resource], validate_only=False), 1)
        outcome = self.judge("AlterConfigs", answer.responses[0].error_code, topic) if answer else INFO
        topic.altered(key, value, outcome, _now_ms())
        self.world.tell(topic, f"{key}={value}: {outcome.value}")


class PatientMover(Worker):
    """Moves a partition and waits until that has ended, before it moves another."""

    async def step(self, step: Step) -> None:
        topic = self.world.live(step.name)
        if topic is None:
            return
        index = int(step.numbers[0] * len(topic.partitions))
        log_dir = self.dirs[int(step.numbers[1] * len(self.dirs))]
        code = await self.move(topic, [index], log_dir)
        kind = m.DescribeLogDirsRequest
        asked = kind(topics=[kind.DescribableLogDirTopic(topic=topic.name, partitions=[index])])
        deadline = time.monotonic() + PATIENCE_S
        while code == E.NONE:
            answer = await self.ask(asked, 4)
            if answer is None:
                return
            places = [one for there in answer.results for named in there.topics for one in named.partitions]
            if not any(one.is_future_key for one in places):
                return
            if time.monotonic() > deadline:
                self.world.report("hanging", f"the move of {topic.name}-{index} doesn't end", topic)
                return
            await asyncio.sleep(0.01)

    async def move(self, topic: Topic, indexes: list[int], log_dir: Path) -> int | None:
        """Begin to move partitions; the highest code, None when nobody knows."""
        kind = m.AlterReplicaLogDirsRequest
        listed = kind.AlterReplicaLogDirTopic(name=topic.name, partitions=indexes)
        answer = await self.ask(kind(dirs=[kind.AlterReplicaLogDir(path=str(log_dir), topics=[listed])]), 2)
        if answer is None:
            return None
        codes: list[int] = [one.error_code for one in answer.results[0].partitions]
        for code in codes:
            self.judge("AlterReplicaLogDirs", code, topic)
        self.world.tell(topic, f"move {indexes} to {log_dir.name}: {[error_name(code) for code in codes]}")
        return max(codes)


class Mover(PatientMover):
    """Moves one partition or all of a topic, and often again before a move has ended."""

    pause_s = 0.04

    async def step(self, step: Step) -> None:
        topic = self.world.live(step.name)
        if topic is None:
            return
        which, where, *targets = step.numbers
        indexes = list(range(len(topic.partitions)))
        for target in targets[: 1 + int(which * 3)]:
            moved = indexes if which < 0.3 else indexes[int(where * len(indexes)) :][:1]
            if await self.move(topic, moved, self.dirs[int(target * len(self.dirs))]) is None:
                return


class Trimmer(Worker):
    """Deletes records before an offset that was acknowledged, and now and then asks for one beyond the end."""

    pause_s = 0.12

    async def step(self, step: Step) -> None:
        topic = self.world.live(step.name)
        if topic is None:
            return
        where, much, *_ = step.numbers
        index = int(where * len(topic.partitions))
        partition = topic.partitions[index]
        offset = partition.log_start + round((partition.end - partition.log_start) * much * 1.05)
        changes = self.world.changes[topic.name]
        kind = m.DeleteRecordsRequest
        asked = kind.DeleteRecordsTopic(
            name=topic.name, partitions=[kind.DeleteRecordsPartition(partition_index=index, offset=offset)]
        )
        answer = await self.ask(kind(topics=[asked], timeout_ms=30_000), 2)
        result = answer.topics[0].partitions[0] if answer else None
        outcome = self.judge("DeleteRecords", result.error_code, topic) if result else INFO
        if result and outcome is OK and result.low_watermark < offset and self.world.changes[topic.name] == changes:
            self.world.report("log_start", f"{topic.name}-{index} begins at {result.low_watermark}, not {offset}", topic)
        self.world.trimmed(topic, index, offset, outcome, changes)
        self.world.tell(topic, f"delete records of {index} before {offset}: {outcome.value}")


@dataclass(eq=False)
class Batch:
    """Records on their way to a partition."""

    topic: Topic
    index: int
    records: list[Record]
    data: bytes
    sequence: int


class Plain(Worker):
    """Produces without idempotence; each record is sent once."""

    pause_s = 0.02
    acks = -1

    async def step(self, step: Step) -> None:
        await self.produce(self.batches(step, None))

    def batches(self, step: Step, whole: Transaction | None) -> list[Batch]:
        """A batch for each of one to three partitions."""
        batches: dict[tuple[bytes, int], Batch] = {}
        for number in step.numbers[: 1 + int(step.numbers[0] * 3)]:
            name = step.name if number == step.numbers[0] else self.names[int(number * len(self.names))]
            topic = self.world.live(name)
            if topic is not None:
                index = int(number * 997 % 1 * len(topic.partitions))
                if (topic.topic_id, index) not in batches:
                    batches[topic.topic_id, index] = self.batch(topic, index, step.numbers[-2:], whole)
        return list(batches.values())

    def batch(self, topic: Topic, index: int, numbers: Sequence[float], whole: Transaction | None) -> Batch:
        """One to twelve records with few different keys."""
        made = []
        for n in range(1 + int(numbers[0] * 12)):
            key = b"k%d" % ((int(numbers[1] * 1000) + n) % 13)
            made.append(self.world.record(topic, index, key, int(_now_ms()), whole))
        builder = BatchBuilder(int(numbers[1] * 5))
        for record in made:
            assert builder.append(record.key, encode(record.value), int(record.timestamp_ms))
        sequence = self.next_sequence(topic, index, len(made))
        data = bytes(builder.build(*self.owner, sequence, whole is not None))
        return Batch(topic, index, made, data, sequence)

    owner = (-1, -1)
    """Producer id and epoch."""

    def next_sequence(self, topic: Topic, index: int, count: int) -> int:
        """The sequence of a batch of so many records."""
        return -1

    async def produce(self, batches: Sequence[Batch], transactional_id: str | None = None) -> list[int | None]:
        """Send batches together and tell what became of each; their codes, None where nobody knows."""
        if not batches:
            return []
        kind = m.ProduceRequest
        topics: dict[bytes, Any] = {}
        for one in batches:
            data = kind.PartitionProduceData(index=one.index, records=one.data)
            topics.setdefault(one.topic.topic_id, kind.TopicProduceData(topic_id=one.topic.topic_id, partition_data=[]))
            topics[one.topic.topic_id].partition_data.append(data)
        request = kind(transactional_id=transactional_id, acks=self.acks, timeout_ms=30_000, topic_data=list(topics.values()))
        answer = await self.ask(request, 13)
        found = {}
        for topic in answer.responses if answer else ():
            for part in topic.partition_responses:
                found[bytes(topic.topic_id), part.index] = part
        return [self.settle(one, found.get((one.topic.topic_id, one.index))) for one in batches]

    def settle(self, one: Batch, part: Any) -> int | None:
        """Tell the model what became of a batch."""
        count = len(one.records)
        if part is None:
            self.world.produced(one.topic, one.index, one.records, INFO)
            self.world.tell(one.topic, f"{self.name}: {count} to {one.index}, {one.records[0].value}: no answer")
            return None
        code, offset = part.error_code, part.base_offset if part.base_offset >= 0 else None
        if code == E.DUPLICATE_SEQUENCE_NUMBER:
            code, offset = 0, None
        self.world.produced(one.topic, one.index, one.records, self.judge(f"Produce {self.name}", code, one.topic), offset)
        what = f"at {offset}" if not code else error_name(code)
        self.world.tell(one.topic, f"{self.name}: {count} to {one.index}, {one.records[0].value}: {what}")
        return int(code)


class AcksOne(Plain):
    """The same, acknowledged by the leader alone."""

    acks = 1


class Idempotent(Plain):
    """Produces with sequences; what got no answer is sent again to the next broker until it gets one."""

    def __init__(self, name: str, world: World, dirs: Sequence[Path]) -> None:
        super().__init__(name, world, dirs)
        self._sequences: dict[tuple[bytes, int], int] = defaultdict(int)
        self._unanswered: list[Batch] = []

    def next_sequence(self, topic: Topic, index: int, count: int) -> int:
        self._sequences[topic.topic_id, index] += count
        return self._sequences[topic.topic_id, index] - count

    def settle(self, one: Batch, part: Any) -> int | None:
        code = super().settle(one, part)
        if code:  # Refused: the next batch has its sequence.
            self._sequences[one.topic.topic_id, one.index] = one.sequence
        return code

    def once_more(self, one: Batch) -> Batch:
        """A batch that was refused for now is going to be sent again, with the sequence that it has."""
        self._sequences[one.topic.topic_id, one.index] = one.sequence + len(one.records)
        for record in one.records:
            if record.outcome is FAIL:
                record.outcome = INFO
        return one

    async def recover(self) -> None:
        """Send again what got no answer, before anybody looks: then it is there once."""
        if self.owner == (-1, -1):
            request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            answer = await _patiently(lambda: self.wire.ask(request, 4))
            self.owner = (answer.producer_id, answer.producer_epoch)
        unanswered, self._unanswered = self._unanswered, []
        for one in unanswered:
            await self.send([one])

    async def step(self, step: Step) -> None:
        await self.send(self.batches(step, None))

    async def send(self, batches: Sequence[Batch]) -> None:
        """Send, and again after an answer that says that nothing was taken for now."""
        left, deadline = list(batches), time.monotonic() + PATIENCE_S
        while left:
            codes = await self.produce(left)
            again = []
            for one, code in zip(left, codes, strict=True):
                if code is None:
                    self._unanswered.append(one)
                elif code == E.NOT_LEADER_OR_FOLLOWER:
                    again.append(self.once_more(one))
                elif code == E.OUT_OF_ORDER_SEQUENCE_NUMBER and self.world.topics.get(one.topic.name) is one.topic:
                    what = f"{one.topic.name}-{one.index}: {one.sequence} of producer {self.owner}"
                    self.world.report("sequence_refused", what, one.topic)
            if any(code is None for code in codes):
                self._unanswered += again
                return
            left = again
            if left and time.monotonic() > deadline:
                self.world.report("offline", f"{left[0].topic.name}-{left[0].index} takes nothing", left[0].topic)
                return
            await asyncio.sleep(0.01 if left else 0)


class Transactions(Idempotent):
    """Transactions of version 2 over several topics, with offsets of a group; some are aborted."""

    pause_s = 0.05
    offsets_version = 5  # of TxnOffsetCommit
    end_version = 5  # of EndTxn

    def __init__(self, name: str, world: World, dirs: Sequence[Path]) -> None:
        super().__init__(name, world, dirs)
        self.group = f"group-of-{name}"
        # Of the transaction that is open, each with its topic's name and how often that had changed before.
        self._commits: list[tuple[Commit, str, int]] = []

    async def recover(self) -> None:
        await self.init()

    async def init(self) -> None:
        """Take the transactional id again: what was open is aborted, what was decided is finished."""
        request = m.InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        answer = await _patiently(lambda: self.wire.ask(request, 4))
        self.owner = (answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    async def step(self, step: Step) -> None:
        whole = self.world.begin(f"{self.name}/{step.numbers[0]:.6f}")
        self.world.counts["transactions"] += 1
        good = True
        for turn in range(1 + int(step.numbers[1] * 3)):
            turned = Step(step.name, step.numbers[turn:] + step.numbers[:turn], 0)
            good = good and await self.add(self.batches(turned, whole))
        if good and step.numbers[2] < 0.5:
            good = await self.commit_offset(step, whole)
        if self.wire.connection.closed or not (whole.records or whole.commits):
            return  # A client ends no transaction in which it has sent nothing.
        await asyncio.sleep(step.numbers[3] * 0.05)
        await self.end(whole, commit=bool(good) and step.numbers[4] < 0.7)

    async def add(self, batches: Sequence[Batch]) -> bool:
        """Send a transaction's records; whether all were taken."""
        left, deadline = list(batches), time.monotonic() + PATIENCE_S
        good = True
        while left and good:
            codes = await self.produce(left, self.name)
            good = all(code in BUSY or code == 0 for code in codes)
            left = [one for one, code in zip(left, codes, strict=True) if code in BUSY]
            for one in left:
                self.once_more(one)
            assert time.monotonic() < deadline, f"{self.name} stays busy: {codes}"
            await asyncio.sleep(0.005 if left else 0)
        return good

    async def commit_offset(self, step: Step, whole: Transaction) -> bool:
        """Commit an offset with the transaction."""
        topic = self.world.live(step.name)
        if topic is None:
            return True
        index = int(step.numbers[5] * len(topic.partitions))
        changes = self.world.changes[topic.name]
        commit = self.world.commit((self.group, topic.name, index), topic, topic.partitions[index].end, whole)
        kind = m.TxnOffsetCommitRequest
        part = kind.TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=commit.offset, committed_metadata=commit.metadata
        )
        commit.doubtful = True  # Until the transaction has ended.
        self._commits.append((commit, topic.name, changes))
        request = kind(
            transactional_id=self.name,
            group_id=self.group,
            producer_id=self.owner[0],
            producer_epoch=self.owner[1],
            topics=[kind.TxnOffsetCommitRequestTopic(name=topic.name, partitions=[part])],
        )
        answer = await self._busily(request, self.offsets_version, lambda one: one.topics[0].partitions[0].error_code)
        code = answer.topics[0].partitions[0].error_code if answer else None
        commit.outcome = INFO if code is None else self.judge("TxnOffsetCommit", code, topic)
        return code == 0

    async def end(self, whole: Transaction, *, commit: bool) -> None:
        """End the transaction; when it isn't known how, take the id again."""
        request = m.EndTxnRequest(
            transactional_id=self.name, producer_id=self.owner[0], producer_epoch=self.owner[1], committed=commit
        )
        answer = await self._busily(request, self.end_version, lambda one: one.error_code)
        for one, name, changes in self._commits:
            one.doubtful = answer is None or self.world.changes[name] != changes
        self._commits.clear()
        if answer is None:
            return
        if self.judge("EndTxn", answer.error_code) is OK:
            whole.outcome = OK if commit else FAIL
            self.world.counts["committed" if commit else "aborted"] += 1
            self.ended(answer)
        else:
            await self.init()

    def ended(self, answer: Any) -> None:
        """Go on with the epoch that the answer gives."""
        self.owner = (answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    async def _busily(self, request: Message, version: int, code_of: Any) -> Any:
        """Ask until the coordinator isn't busy; None when the broker is gone."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = await self.ask(request, version)
            if answer is None or code_of(answer) not in BUSY:
                return answer
            assert time.monotonic() < deadline, f"{self.name}: {type(request).__name__} stays busy"
            await asyncio.sleep(0.005)


class TransactionsV1(Transactions):
    """Transactions of version 1, which name topics by name: of topics that stay."""

    names = STEADY
    offsets_version = 3
    end_version = 3

    async def produce(self, batches: Sequence[Batch], transactional_id: str | None = None) -> list[int | None]:
        kind = m.AddPartitionsToTxnRequest
        request = kind(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.owner[0],
            v3_and_below_producer_epoch=self.owner[1],
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=one.topic.name, partitions=[one.index]) for one in batches],
        )
        if not batches:
            return []
        answer = await self._busily(request, 3, _first_refusal)
        code = None if answer is None else _first_refusal(answer)
        if code != 0:
            for one in batches:
                self._sequences[one.topic.topic_id, one.index] = one.sequence
                self.world.produced(one.topic, one.index, one.records, INFO if code is None else FAIL)
            if code is not None:
                self.judge("AddPartitionsToTxn", code)
            return [code for _ in batches]
        return await self._produce_by_name(batches)

    async def _produce_by_name(self, batches: Sequence[Batch]) -> list[int | None]:
        kind = m.ProduceRequest
        topics: dict[str, Any] = {}
        for one in batches:
            data = kind.PartitionProduceData(index=one.index, records=one.data)
            topics.setdefault(one.topic.name, kind.TopicProduceData(name=one.topic.name, partition_data=[]))
            topics[one.topic.name].partition_data.append(data)
        request = kind(transactional_id=self.name, acks=-1, timeout_ms=30_000, topic_data=list(topics.values()))
        answer = await self.ask(request, 9)
        found = {}
        for topic in answer.responses if answer else ():
            for part in topic.partition_responses:
                found[topic.name, part.index] = part
        return [self.settle(one, found.get((one.topic.name, one.index))) for one in batches]

    async def commit_offset(self, step: Step, whole: Transaction) -> bool:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.owner[0],
            producer_epoch=self.owner[1],
            group_id=self.group,
        )
        answer = await self._busily(request, 3, lambda one: one.error_code)
        if answer is None or self.judge("AddOffsetsToTxn", answer.error_code) is not OK:
            return False
        return await super().commit_offset(step, whole)

    def ended(self, answer: Any) -> None:
        """The epoch stays, sequences go on."""


class Committer(Worker):
    """Commits offsets of a group without members, by a topic's id or name."""

    pause_s = 0.04

    @property
    def group(self) -> str:
        """Its group."""
        return f"group-of-{self.name}"

    async def step(self, step: Step) -> None:
        topic = self.world.live(step.name)
        if topic is None:
            return
        where, much, which, *_ = step.numbers
        index = int(where * len(topic.partitions))
        changes = self.world.changes[topic.name]
        offset = int(topic.partitions[index].end * much)
        commit = self.world.commit((self.group, topic.name, index), topic, offset)
        kind = m.OffsetCommitRequest
        part = kind.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=commit.metadata
        )
        version = 10 if which < 0.5 else 9
        named = kind.OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=[part])
        answer = await self.ask(kind(group_id=self.group, topics=[named]), version)
        code = answer.topics[0].partitions[0].error_code if answer else None
        commit.outcome = INFO if code is None else self.judge("OffsetCommit", code, topic)
        commit.doubtful = self.world.changes[topic.name] != changes


class Confluent(Worker):
    """librdkafka's idempotent producer, which lives through the broker's deaths and sends again by itself."""

    names = STEADY
    pause_s = 0.03

    def __init__(self, name: str, world: World, dirs: Sequence[Path]) -> None:
        super().__init__(name, world, dirs)
        self._producer: Producer | None = None

    async def recover(self) -> None:
        """Wait until everything got its answer."""
        port = self.wire.connection.name.rpartition(":")[2]
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": f"127.0.0.1:{port}",
                    "enable.idempotence": True,
                    "linger.ms": 2,
                    "batch.size": 4000,  # below the smallest internal.segment.bytes
                    "message.timeout.ms": 600_000,
                    "reconnect.backoff.ms": 20,
                    "reconnect.backoff.max.ms": 100,
                    "retry.backoff.ms": 20,
                    "log_level": 0,
                }
            )
        deadline = time.monotonic() + PATIENCE_S
        while len(self._producer):
            self._producer.poll(0)
            late = time.monotonic() > deadline
            if late:
                self.world.report("no_answer", f"{len(self._producer)} records of librdkafka get no answer")
            if late or any(topic.spoiled for topic in self.world.topics.values() if topic.name in STEADY):
                self._producer.purge()
                self._producer.poll(0.1)
                self._producer = None
                return
            await asyncio.sleep(0.01)

    async def step(self, step: Step) -> None:
        topic = self.world.live(step.name)
        if topic is None or self._producer is None:
            return
        for n in range(1 + int(step.numbers[0] * 20)):
            index = int(step.numbers[1] * 997 * (n + 1) % 1 * 2)
            record = self.world.record(topic, index, b"k%d" % (n % 13), int(_now_ms()), None)

            def delivered(error: ClientError | None, told: ClientMessage, record: Record = record) -> None:
                index = told.partition()
                if error is None:
                    self.world.produced(topic, index, [record], OK, told.offset())
                else:
                    self.world.counts[f"refused by librdkafka: {error.name()}"] += 1

            self._producer.produce(
                topic.name,
                encode(record.value),
                record.key,
                index,
                on_delivery=delivered,
                timestamp=int(record.timestamp_ms),
            )
        self._producer.poll(0)


def workers(world: World, dirs: Sequence[Path]) -> list[Worker]:
    """All that work on a broker at once."""
    return [
        Lifecycle("life-0", world, dirs, ("steady-0", "turn-0", "turn-2", "turn-4")),
        Lifecycle("life-1", world, dirs, ("steady-1", "turn-1", "turn-3")),
        PatientMover("patient-mover", world, dirs),
        Mover("mover", world, dirs),
        Trimmer("trimmer", world, dirs),
        Plain("plain", world, dirs),
        AcksOne("acks-one", world, dirs),
        Idempotent("idempotent", world, dirs),
        Transactions("txn-v2", world, dirs),
        TransactionsV1("txn-v1", world, dirs),
        Committer("committer", world, dirs),
        Confluent("confluent", world, dirs),
    ]


def _config(name: str, numbers: Sequence[float]) -> tuple[str, str | None]:
    choices = list(CONFIGS[name].items())
    key, values = choices[int(numbers[0] * len(choices))]
    return key, values[int(numbers[1] * len(values))]


def _first_refusal(answer: Any) -> int:
    codes = [part.partition_error_code for one in answer.results_by_topic_v3_and_below for part in one.results_by_partition]
    return max((code for code in codes if code != E.OPERATION_NOT_ATTEMPTED), default=0)


async def _patiently(attempt: Any) -> Any:
    """Ask again while a coordinator isn't ready."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := await attempt()).error_code:
        if time.monotonic() > deadline:
            raise KafkaError(answer.error_code, "a coordinator stays busy")
        await asyncio.sleep(0.01)
    return answer


def _now_ms() -> float:
    return time.time() * 1000
