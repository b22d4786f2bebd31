"""The model of random admin work: what a broker has acknowledged, held against what it shows when it is looked at.

A driver tells a `World` of each request before it is sent and of its answer after (`admin_run.py` does, tests plant
anomalies). Whoever looks at the broker while nobody works fills a `Seen`; `World.judge` lists every `Anomaly` and then
takes what was seen for known: of what nobody knew (in flight at a kill) it has become certain whether it happened, and
that must not change any more.

Outcomes: OK = it happened; FAIL = it certainly did not; INFO = nobody knows. Anomalies:

- missing: an acknowledged record isn't at its offset, though the log begins before it;
- hidden: an acknowledged record lies before the log's start, and nobody deleted it;
- log_start: the log begins before what was deleted, or at an offset that nobody asked for;
- changed: another key at a record's offset, or the record at another offset; duplicate: it is there twice;
- corrupt: a value whose checksum doesn't hold; extra: one that nobody sent there, or that was certainly refused;
- committed_unread, aborted_read, torn, hanging: what readers of committed records see of a transaction isn't what
  its end said; it is half there; it never ends;
- offline: a partition isn't served; misplaced: it isn't in exactly one log folder;
- lost_topic, strange_topic, resurrected: a topic isn't there, was never made, or is there again;
- partitions, config: not as acknowledged;
- group_lost, group_back, group_changed, group_extra: a committed offset isn't there, is an earlier one, isn't what was
  committed, or was refused; group_stale: it was committed for a deleted topic of the same name;
- leftover: a folder of a partition that there isn't, or of a move that has ended.

The driver adds: offline for KAFKA_STORAGE_ERROR, since no disk fails here; server_error, sequence_refused, no_answer,
crashed, no_start, unclean_stop, trace (an exception in the broker's log), readers_differ (librdkafka is shown something
else).

Lawful: a record before an acknowledged (or unknown) DeleteRecords; one that retention can have removed, which is as old
as `retention.ms` was at any time since; one with a newer record of its key in a topic that ever was compacted; offsets
of a topic whose deletion overlapped the commit.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from support.history import CORRUPT, Outcome

OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO
FOREVER = float("inf")
Config = Mapping[str, str]
GroupKey = tuple[str, str, int]  # group, topic's name, partition
TOLD_MAX = 400
"""How many lines about one topic are kept."""


@dataclass(frozen=True)
class Anomaly:
    """A broken promise, with what broke it in words; `topic_id` is empty where it is none of a topic."""

    kind: str
    what: str
    topic_id: bytes = b""


@dataclass(eq=False)
class Transaction:
    """Records and offsets that show together or never."""

    name: str
    outcome: Outcome = INFO
    records: list[Record] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)


@dataclass(eq=False)
class Record:
    """One record; `offset` is where it was acknowledged or seen. Its outcome is that of its append."""

    key: bytes
    value: str
    timestamp_ms: float
    transaction: Transaction | None = None
    outcome: Outcome = INFO
    offset: int | None = None


@dataclass(eq=False)
class Commit:
    """An offset that a group committed; numbers grow in the order of a committer's requests."""

    number: int
    topic_id: bytes
    offset: int
    outcome: Outcome = INFO
    transaction: Transaction | None = None
    doubtful: bool = False  # A topic of that name was made or deleted meanwhile: which one it is of nobody knows.

    def settled(self) -> Outcome:
        """What is known of it, after its transaction."""
        if self.outcome is FAIL or self.transaction is None:
            return self.outcome
        return self.outcome if self.transaction.outcome is OK else self.transaction.outcome

    @property
    def metadata(self) -> str:
        """What is committed beside the offset, to know the commit by."""
        return f"{self.topic_id.hex()}/{self.number}"


@dataclass
class Partition:
    """`end` is above every acknowledged offset; `maybe_start` are deletions of records that nobody knows the outcome of."""

    records: dict[str, Record] = field(default_factory=dict)
    log_start: int = 0
    maybe_start: set[int] = field(default_factory=set)
    end: int = 0


@dataclass
class Retention:
    """Records older than `keep_ms` at any moment from `begun_ms` to `ended_ms` can have been removed."""

    begun_ms: float
    keep_ms: float
    ended_ms: float = FOREVER


@dataclass(eq=False)
class Topic:
    """A topic as acknowledged, and what may be besides."""

    name: str
    topic_id: bytes
    partitions: list[Partition]
    configs: dict[str, str]
    maybe_count: int = 0
    maybe_configs: dict[str, set[str | None]] = field(default_factory=lambda: defaultdict(set))
    maybe_deleted: bool = False
    compacted: bool = False  # Compaction was on at some time, or may have been.
    retention: list[Retention] = field(default_factory=list)
    spoiled: bool = False  # An anomaly was found in it: nothing of it can be told any more.
    told: list[str] = field(default_factory=list)

    def altering(self, name: str, value: str | None, now_ms: float) -> None:
        """A config is about to be set, or (None) taken away; from now on it may hold."""
        self.maybe_configs[name] |= {value, self.configs.get(name)}
        self._may_remove(name, value, now_ms)

    def altered(self, name: str, value: str | None, outcome: Outcome, now_ms: float) -> None:
        """What became of it."""
        if outcome is INFO:
            return
        if outcome is OK:
            self._set(name, value)
        self.maybe_configs.pop(name, None)
        self._settle_retention(name, now_ms)

    def settle_configs(self, configs: Config, now_ms: float) -> None:
        """Take what was seen for what holds."""
        names = list(self.maybe_configs)
        self.configs = dict(configs)
        self.maybe_configs.clear()
        for name in names:
            self._settle_retention(name, now_ms)

    def expired(self, record: Record, now_ms: float) -> bool:
        """Whether retention can have removed it."""
        return any(record.timestamp_ms + one.keep_ms <= min(one.ended_ms, now_ms) for one in self.retention)

    def _set(self, name: str, value: str | None) -> None:
        if value is None:
            self.configs.pop(name, None)
        else:
            self.configs[name] = value

    def _may_remove(self, name: str, value: str | None, now_ms: float) -> None:
        if name == "cleanup.policy" and value is not None and "compact" in value:
            self.compacted = True
        if name == "retention.ms" and value is not None and int(value) >= 0:
            self.retention.append(Retention(now_ms, int(value)))

    def _settle_retention(self, name: str, now_ms: float) -> None:
        """What isn't set any more ends now; what still is goes on."""
        if name == "retention.ms":
            for one in self.retention:
                if one.ended_ms == FOREVER and str(int(one.keep_ms)) != self.configs.get(name):
                    one.ended_ms = now_ms


@dataclass
class SeenPartition:
    """What a partition shows: `error` in words when it isn't served; records as (offset, key, value), from the log's start on;
    `committed` are offsets that readers of committed records are shown; `dirs` the log folders that hold it."""

    error: str = ""
    log_start: int = 0
    end: int = 0
    stable_end: int = 0
    records: list[tuple[int, bytes | None, str]] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    dirs: list[str] = field(default_factory=list)


@dataclass
class SeenTopic:
    """A topic as the broker describes it; configs are those of its own only."""

    topic_id: bytes
    partitions: list[SeenPartition]
    configs: dict[str, str]


@dataclass
class Seen:
    """A look at the broker while nobody works. Groups: what a group has committed, as (offset, metadata)."""

    now_ms: float
    topics: dict[str, SeenTopic] = field(default_factory=dict)
    groups: dict[GroupKey, tuple[int, str]] = field(default_factory=dict)
    alive: set[bytes] = field(default_factory=set)  # ids of deleted topics that are known all the same
    leftovers: list[str] = field(default_factory=list)


class World:
    """All topics and groups. `counts` says what a run has done and seen."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.maybe_made: dict[str, tuple[int, dict[str, str]]] = {}
        self.deleted: dict[bytes, Topic] = {}
        self.changes: Counter[str] = Counter()  # by name: grows when a creation or deletion begins, and when it ends
        self.commits: dict[GroupKey, list[Commit]] = defaultdict(list)
        self.transactions: list[Transaction] = []  # whose outcome nobody knows
        self.counts: Counter[str] = Counter()
        self.at_once: list[Anomaly] = []
        self._doubtful_starts: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._stale: set[tuple[GroupKey, str]] = set()  # reported; they show until something else is committed
        self._left: set[str] = set()
        self._numbers = itertools.count(1)
        self._began_s = time.monotonic()

    # --- What the driver tells ------------------------------------------------------------------------------

    def tell(self, topic: Topic, text: str) -> None:
        """Write down what was done to a topic, for whoever has to find out what went wrong."""
        topic.told.append(f"{time.monotonic() - self._began_s:9.3f} {text}")
        if len(topic.told) > TOLD_MAX:
            del topic.told[20 : 20 + TOLD_MAX // 2]

    def live(self, name: str) -> Topic | None:
        """A topic that is there and has no anomaly."""
        topic = self.topics.get(name)
        return None if topic is None or topic.spoiled else topic

    def report(self, kind: str, what: str, topic: Topic | None = None) -> None:
        """An anomaly that shows at once."""
        self.at_once.append(Anomaly(kind, what, topic.topic_id if topic is not None else b""))
        if topic is not None:
            topic.spoiled = True

    def creating(self, name: str, partitions: int, configs: Config) -> None:
        """A topic is about to be made."""
        self.changes[name] += 1
        self.maybe_made[name] = (partitions, dict(configs))

    def created(self, name: str, outcome: Outcome, topic_id: bytes, now_ms: float) -> Topic | None:
        """What became of it; the topic if it was made."""
        self.changes[name] += 1
        if outcome is INFO:
            return None
        partitions, configs = self.maybe_made.pop(name)
        return self._add(name, topic_id, partitions, configs, now_ms) if outcome is OK else None

    def deleting(self, topic: Topic) -> None:
        """A topic is about to be deleted."""
        self.changes[topic.name] += 1
        topic.maybe_deleted = True

    def has_deleted(self, topic: Topic, outcome: Outcome) -> None:
        """What became of it."""
        self.changes[topic.name] += 1
        if outcome is OK:
            self._forget(topic)
        topic.maybe_deleted = outcome is INFO

    def grown(self, topic: Topic, count: int, outcome: Outcome) -> None:
        """What became of a request for `count` partitions."""
        if outcome is OK:
            self._grow(topic, count)
        elif outcome is INFO:
            topic.maybe_count = count

    def trimmed(self, topic: Topic, index: int, offset: int, outcome: Outcome, changes: int) -> None:
        """What became of a deletion of records; `changes` is the name's count from before the request."""
        if outcome is FAIL:
            return
        if self.changes[topic.name] != changes:
            self._doubtful_starts[topic.name, index].add(offset)
        partition = topic.partitions[index]
        if outcome is OK and self.changes[topic.name] == changes:
            partition.log_start = max(partition.log_start, offset)
        else:
            partition.maybe_start.add(offset)

    def record(self, topic: Topic, index: int, key: bytes, timestamp_ms: float, whole: Transaction | None) -> Record:
        """A record is about to be sent; its value is like no other and names the place."""
        value = f"{topic.topic_id.hex()[:8]}-{index}-{next(self._numbers)}"
        record = Record(key, value, timestamp_ms, whole)
        topic.partitions[index].records[value] = record
        if whole is not None:
            whole.records.append(record)
        return record

    def produced(
        self, topic: Topic, index: int, records: Sequence[Record], outcome: Outcome, base_offset: int | None = None
    ) -> None:
        """What became of records that were sent together."""
        for number, record in enumerate(records):
            offset = None if base_offset is None else base_offset + number
            if outcome is OK:
                if record.offset not in (None, offset) and offset is not None:
                    self.report("changed", f"{record.value} at {record.offset} was acknowledged at {offset}", topic)
                record.offset = record.offset if offset is None else offset
                topic.partitions[index].end = max(topic.partitions[index].end, (record.offset or 0) + 1)
                self.counts["acknowledged records"] += record.outcome is not OK
            if record.outcome is not OK:
                record.outcome = outcome

    def begin(self, name: str) -> Transaction:
        """A transaction that nobody knows the outcome of yet."""
        self.transactions.append(Transaction(name))
        return self.transactions[-1]

    def commit(self, key: GroupKey, topic: Topic, offset: int, whole: Transaction | None = None) -> Commit:
        """An offset is about to be committed."""
        commit = Commit(next(self._numbers), topic.topic_id, offset, transaction=whole)
        self.commits[key].append(commit)
        self.tell(topic, f"{key[0]} commits {offset} of {key[2]} as {commit.number}")
        if whole is not None:
            whole.commits.append(commit)
        return commit

    # --- What is seen -----------------------------------------------------------------------------------------

    def judge(self, seen: Seen) -> list[Anomaly]:
        """Everything that isn't as it must be. Then what was seen is what is known; topics with an anomaly are spoiled."""
        found, self.at_once = self.at_once, []
        views: dict[Transaction, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for name in sorted({*self.topics, *self.maybe_made, *seen.topics}):
            found += self._judge_name(name, seen, views)
        for topic_id in seen.alive:
            found.append(Anomaly("resurrected", f"the deleted topic {self.deleted[topic_id].name} is known", topic_id))
        for key in sorted({*self.commits, *seen.groups}):
            found += self._judge_group(key, seen.groups.get(key), views)
        for whole in self.transactions:
            found += _settle(whole, *views[whole])
        self.transactions = [whole for whole in self.transactions if whole.outcome is INFO and whole in views]
        found += [Anomaly("leftover", what) for what in seen.leftovers if what not in self._left]
        self._left.update(seen.leftovers)
        self._doubtful_starts.clear()
        broken = {anomaly.topic_id for anomaly in found}
        for topic in self.topics.values():
            topic.spoiled = topic.spoiled or topic.topic_id in broken
        return found

    def _judge_name(self, name: str, seen: Seen, views: dict[Transaction, tuple[list[str], list[str]]]) -> Iterator[Anomaly]:
        topic, there, made = self.topics.get(name), seen.topics.get(name), self.maybe_made.pop(name, None)
        if topic is not None and (there is None or there.topic_id != topic.topic_id):
            if not topic.maybe_deleted and not topic.spoiled:
                yield Anomaly("lost_topic", f"{name} is not there", topic.topic_id)
            self._forget(topic)
            topic = None
        if there is None:
            return
        if topic is None and there.topic_id in self.deleted:
            yield Anomaly("resurrected", f"{name} was deleted and is there again", there.topic_id)
            return
        if topic is None:
            topic = self._add(name, there.topic_id, *(made or (0, {})), seen.now_ms)
            if made is None:
                yield Anomaly("strange_topic", f"nobody made {name}", there.topic_id)
                topic.spoiled = True
        topic.maybe_deleted = False
        if topic.spoiled:
            return
        yield from self._judge_topic(topic, there, seen.now_ms, views)

    def _judge_topic(
        self, topic: Topic, there: SeenTopic, now_ms: float, views: dict[Transaction, tuple[list[str], list[str]]]
    ) -> Iterator[Anomaly]:
        count = len(there.partitions)
        if count not in (len(topic.partitions), topic.maybe_count):
            what = f"{topic.name} has {count} partitions, not {len(topic.partitions)}"
            yield Anomaly("partitions", what, topic.topic_id)
        self._grow(topic, count)
        topic.maybe_count = 0
        for name in sorted({*topic.configs, *topic.maybe_configs, *there.configs}):
            value = there.configs.get(name)
            if value != topic.configs.get(name) and value not in topic.maybe_configs.get(name, ()):
                what = f"{topic.name} has {name}={value}, not {topic.configs.get(name)}"
                yield Anomaly("config", what, topic.topic_id)
        topic.settle_configs(there.configs, now_ms)
        for index, one in enumerate(there.partitions):
            for kind, what in self._judge_partition(topic, index, one, now_ms, views):
                yield Anomaly(kind, f"{topic.name}-{index}: {what}", topic.topic_id)

    def _judge_partition(
        self,
        topic: Topic,
        index: int,
        seen: SeenPartition,
        now_ms: float,
        views: dict[Transaction, tuple[list[str], list[str]]],
    ) -> Iterator[tuple[str, str]]:
        partition = topic.partitions[index]
        if seen.error:
            yield "offline", seen.error
            return
        if len(seen.dirs) != 1:
            yield "misplaced", f"it lies in {seen.dirs}"
        if seen.stable_end != seen.end:
            yield "hanging", f"readers of committed records wait at {seen.stable_end} of {seen.end}"
        self.counts["records read"] += len(seen.records)
        yield from _judge_start(topic, partition, seen, now_ms, self._doubtful_starts[topic.name, index])
        found: dict[str, int] = {}
        for offset, key, value in seen.records:
            record = partition.records.get(value)
            if value in found:
                yield "duplicate", f"{value} at {found[value]} and {offset}"
            found[value] = offset
            if value.startswith(CORRUPT):
                yield "corrupt", f"{value} at {offset}"
            elif record is None:
                yield "extra", f"{value} at {offset} wasn't sent there"
            elif record.outcome is FAIL:
                yield "extra", f"{value} at {offset} was refused, or wasn't there before"
            elif record.key != key or record.offset not in (None, offset):
                yield "changed", f"{value} at {offset} with key {key!r}; it was {record.key!r} at {record.offset}"
            elif seen.stable_end == seen.end:
                yield from _judge_view(record, offset, seen, views)
        yield from _judge_missing(topic, partition, seen, found)
        _settle_partition(partition, seen, found)

    def _judge_group(
        self,
        key: GroupKey,
        fetched: tuple[int, str] | None,
        views: dict[Transaction, tuple[list[str], list[str]]],
    ) -> Iterator[Anomaly]:
        commits, topic = self.commits.pop(key, []), self.topics.get(key[1])
        topic_id = topic.topic_id if topic is not None else b""
        if topic is not None and (topic.spoiled or key[2] >= len(topic.partitions)):
            return
        where = f"group {key[0]}, {key[1]}-{key[2]}"
        mine = [commit for commit in commits if commit.topic_id == topic_id]
        certain = max((one.number for one in mine if one.settled() is OK and not one.doubtful), default=0)
        if fetched is None:
            if certain:
                yield Anomaly("group_lost", f"{where}: commit {certain} is not there", topic_id)
            for one in mine:
                if one.transaction is not None and one.outcome is OK and not one.doubtful:
                    views[one.transaction][1].append(f"the offset of {where}")
            return
        offset, metadata = fetched
        shown = next((commit for commit in commits if commit.metadata == metadata), None)
        if shown is None or shown.topic_id != topic_id:
            if shown is not None and shown.doubtful:
                self.commits[key] = [shown]
                return
            of = bytes.fromhex(metadata.partition("/")[0])
            what = f"{where}: {offset} ({metadata}) is not of {topic_id.hex() or 'any topic'}"
            if (key, metadata) not in self._stale:
                yield Anomaly("group_extra" if of == topic_id else "group_stale", what, of)
            self._stale.add((key, metadata))
            return
        if shown.number < certain:
            yield Anomaly("group_back", f"{where}: commit {shown.number} shows after {certain}", topic_id)
        if shown.settled() is FAIL:
            yield Anomaly("group_extra", f"{where}: {offset} was refused or aborted", topic_id)
        if shown.offset != offset:
            yield Anomaly("group_changed", f"{where}: {offset} was committed as {shown.offset}", topic_id)
        for one in mine:
            later = one.number > shown.number and one.outcome is OK and not one.doubtful
            if one.transaction is not None and (one is shown or later):
                views[one.transaction][later].append(f"the offset of {where}")
        shown.outcome = OK
        if shown.transaction is None or shown.transaction.outcome is OK:
            shown.transaction = None
        self.commits[key] = [shown]

    # --- Changes of the model ----------------------------------------------------------------------------------

    def _add(self, name: str, topic_id: bytes, partitions: int, configs: Config, now_ms: float) -> Topic:
        topic = Topic(name, topic_id, [Partition() for _ in range(partitions)], dict(configs))
        for key, value in configs.items():
            topic._may_remove(key, value, now_ms)
        self.topics[name] = topic
        self.tell(topic, f"{name} is there with {partitions} partitions, {dict(configs)}")
        return topic

    def _grow(self, topic: Topic, count: int) -> None:
        while len(topic.partitions) < count:
            topic.partitions.append(Partition())

    def _forget(self, topic: Topic) -> None:
        self.deleted[topic.topic_id] = topic
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
        topic.partitions = [Partition() for _ in topic.partitions]  # What it held matters no more.


def _judge_start(
    topic: Topic, partition: Partition, seen: SeenPartition, now_ms: float, doubtful: set[int]
) -> Iterator[tuple[str, str]]:
    asked = {partition.log_start} | {one for one in partition.maybe_start | doubtful if one > partition.log_start}
    if seen.log_start < partition.log_start:
        yield "log_start", f"the log begins at {seen.log_start}, but {partition.log_start} was acknowledged"
    elif seen.log_start not in asked:
        lawful = max(offset for offset in asked if offset <= seen.log_start)
        hidden = [
            record
            for record in partition.records.values()
            if record.outcome is OK
            and record.offset is not None
            and lawful <= record.offset < seen.log_start
            and not topic.expired(record, now_ms)
        ]
        if hidden:
            what = f"{len(hidden)} acknowledged records lie before the log's start {seen.log_start} (lawful: {lawful})"
            yield "hidden", f"{what}, as {hidden[0].value} at {hidden[0].offset}"
        elif not topic.retention:
            yield "log_start", f"the log begins at {seen.log_start}, asked for was {sorted(asked)}"


def _judge_view(
    record: Record, offset: int, seen: SeenPartition, views: dict[Transaction, tuple[list[str], list[str]]]
) -> Iterator[tuple[str, str]]:
    shown, whole = offset in seen.committed, record.transaction
    if whole is not None and whole.outcome is INFO:
        views[whole][not shown].append(record.value)
    elif whole is not None and whole.outcome is FAIL:
        if shown:
            yield "aborted_read", f"{record.value} at {offset} of {whole.name}"
    elif not shown:
        yield "committed_unread", f"{record.value} at {offset} of {whole.name if whole else 'no transaction'}"


def _judge_missing(
    topic: Topic, partition: Partition, seen: SeenPartition, found: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    newest = {key: offset for offset, key, _ in seen.records if offset in seen.committed} if topic.compacted else {}
    missing = []
    for record in partition.records.values():
        if record.outcome is not OK or record.value in found:
            continue
        # One whose offset nobody knows (its repeat was refused as one) may lie before the start.
        offset = seen.log_start - 1 if record.offset is None and seen.log_start else record.offset or 0
        aborted = record.transaction is not None and record.transaction.outcome is not OK
        if offset < seen.log_start or (topic.compacted and (aborted or newest.get(record.key, -1) > offset)):
            continue
        missing.append(record)
    if missing:
        first = missing[0]
        yield "missing", f"{len(missing)} acknowledged records, as {first.value} at {first.offset}, of {seen.end}"


def _settle_partition(partition: Partition, seen: SeenPartition, found: Mapping[str, int]) -> None:
    for record in partition.records.values():
        if record.value in found:
            record.outcome, record.offset = OK, found[record.value]
        elif record.outcome is INFO:
            record.outcome = FAIL  # Who could have written it is gone.
    partition.log_start = seen.log_start
    partition.maybe_start.clear()
    partition.end = seen.end
    # Refused ones stay: they must not come back.
    partition.records = {
        value: record for value, record in partition.records.items() if record.offset is None or record.offset >= seen.log_start
    }


def _settle(whole: Transaction, shown: list[str], unseen: list[str]) -> Iterator[Anomaly]:
    if whole.outcome is not INFO or not (shown or unseen):
        return
    if shown and unseen:
        yield Anomaly("torn", f"of {whole.name} {shown[0]} shows and {unseen[0]} doesn't")
    whole.outcome = OK if shown else FAIL
