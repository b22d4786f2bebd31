"""The group coordinator: consumer groups of both protocols and their offsets, in `__consumer_offsets`.

Subscriptions by pattern are evaluated here and handed to the machine as lists of topics: that of a new pattern
before its first heartbeat is fed, all of a group's after topics came or went, at most once a second.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock import log
from penstock.broker.configs.entities import Entity
from penstock.broker.configs.groupconfig import GroupSettings, group_config
from penstock.broker.coordination import statelog
from penstock.broker.coordination.classicgroups import machine as classic_machine
from penstock.broker.coordination.classicgroups import state as classic_state
from penstock.broker.coordination.classicgroups.state import Group, GroupRecord
from penstock.broker.coordination.consumergroups import machine
from penstock.broker.coordination.consumergroups.events import ConsumerHeartbeat, HeartbeatResult, PatternsResolved
from penstock.broker.coordination.consumergroups.settings import settings_of
from penstock.broker.coordination.consumergroups.state import ConsumerGroup, ConsumerRecord, Environment, TopicFacts
from penstock.broker.coordination.consumergroups.writing import AnyGroup
from penstock.broker.coordination.groupoffsets import Commit, Expire, Marker, TopicDeleted
from penstock.broker.coordination.leads import LeadState, Loading
from penstock.broker.coordination.machines import Now, TopicPartition
from penstock.broker.coordination.offsets import OffsetRecord
from penstock.broker.coordination.parts import Parts
from penstock.broker.coordination.shell import Coordinator
from penstock.broker.coordination.timers import Entry
from penstock.broker.topic import GROUP_OFFSETS
from penstock.broker.topics.changes import Topics
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode
from penstock.groupnames import is_stage
from penstock.hints import quoted
from penstock.pyx.record.rawbatch import BatchError, RawBatch, marker_type
from penstock.regex import Regex, RegexError, compile_regex

# Between two evaluations of a group's patterns, however often topics come and go.
PATTERNS_EVERY_MS = 1_000
# How long topics are tried against a pattern before the loop may do something else.
MATCH_AT_ONCE_MS = 5
# Characters of a client's id that its member id begins with; a string on the wire has at most 32,767 bytes.
PREFIX_MAX = 1_000

_log = log.get(__name__)


class TopicCatalog:
    """The broker's topics as groups see them."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def version(self) -> int:
        """Grows whenever a topic comes, grows or goes."""
        return self._topics.version

    def get(self, name: str) -> TopicFacts | None:
        """A topic by name."""
        topic = self._topics.get(name)
        return None if topic is None else TopicFacts(topic.topic_id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """A topic's name by its id."""
        topic = self._topics.get_by_id(topic_id)
        return None if topic is None else topic.name


@dataclass(slots=True, eq=False)
class GroupLoading(Loading[AnyGroup]):
    """Groups as they are read."""

    newest: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Of the partition that is being read, the newest plain commits by their records' keys, not decoded yet."""
    open: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    """Which groups have offsets in the open transaction of a producer, by partition and producer id."""

    def decode(self, key: bytes, value: bytes | None, offset: int) -> statelog.Loaded | None:
        """Most of the log are commits, most of them superseded: of a plain one only the newest is decoded, at the end.

        That is the same, since the commit with the highest offset in the log wins whenever it is applied; a tombstone
        takes back what is before it and is applied at once.
        """
        if statelog.is_commit(key):
            if value is not None:
                self.newest[key] = (value, offset)
                return None
            self.newest.pop(key, None)
        return statelog.decode_group_record(key, value, offset)


class GroupCoordinator(Coordinator[AnyGroup]):
    """Consumer groups and their offsets: `context.groups`."""

    topic = GROUP_OFFSETS

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.config = group_config(parts.config)
        self._environment = Environment(self.config, TopicCatalog(parts.topics), self._settings)
        # Which groups have offsets in the open transaction of a producer, by partition and producer id.
        self._open: dict[tuple[int, int], set[str]] = {}
        self._kept: set[str] = set()  # stage groups whose positions were said to stay though they are old
        self._matched_ms: dict[str, int] = {}  # when a group's patterns were last evaluated again, monotonic

    def _settings(self, name: str) -> GroupSettings:
        return settings_of(self._parts.entities.get(Entity(group=name)), self.config.consumer)

    def _new(self, name: str) -> AnyGroup:
        return Group(name, self.config)

    def _step(self, group: AnyGroup, event: object, now: Now) -> tuple[AnyGroup, Sequence[object]]:
        if isinstance(event, Expire) and is_stage(group.id):
            self._tell_kept(group, now)
        return machine.step(group, event, now, self._environment)

    def _tell_kept(self, group: AnyGroup, now: Now) -> None:
        """Say, once a run of the broker, that positions stay which would expire if a consumer had committed them."""
        oldest_ms = now.wall_ms - self.config.offsets_retention_ms
        old = sum(one.commit_timestamp_ms <= oldest_ms for one in group.offsets.committed.values())
        if old and group.id not in self._kept:
            self._kept.add(group.id)
            _log.warning(
                "group=%s: %d positions are older than offsets.retention.minutes and stay, as positions of mirror and dedupe "
                "never expire. If nobody needs them any more: `penstock groups delete %s`",
                group.id, old, quoted(group.id),
            )  # fmt: skip

    def _disposable(self, group: AnyGroup) -> bool:
        if isinstance(group, ConsumerGroup):
            return machine.is_disposable(group)
        return classic_state.is_disposable(group)

    def _resign(self, group: AnyGroup) -> Sequence[object]:
        return machine.resign(group) if isinstance(group, ConsumerGroup) else classic_machine.resign(group)

    def _encode(self, name: str, record: object) -> statelog.KeyValue:
        return statelog.encode_group_record(name, record)

    def _act(self, entry: Entry[AnyGroup], action: object) -> object | None:
        raise AssertionError(f"a group has no action {action!r}")

    def fresh_member_id(self, prefix: str) -> str:
        """A member id that no member has: the client's id (or instance id) and a random uuid, as Kafka makes it. Of a very
        long one only the beginning: the whole would fit into no record and no answer, and so stop its group.
        """
        return f"{prefix[:PREFIX_MAX]}-{uuid.uuid4()}"

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """The consumer group of that name, to be asked and not changed."""
        found = self.find(name)
        return found if isinstance(found, ConsumerGroup) else None

    async def heartbeat(self, name: str, event: ConsumerHeartbeat) -> HeartbeatResult:
        """ConsumerGroupHeartbeat. Raises KafkaError."""
        group = self.consumer_group(name)
        if event.pattern and (group is None or event.pattern not in group.patterns):
            try:
                regex = compile_regex(event.pattern)
            except RegexError as error:
                text = f"SubscribedTopicRegex `{event.pattern}` is not a valid regular expression: {error}."
                return HeartbeatResult(ErrorCode.INVALID_REGULAR_EXPRESSION, text)
            event.resolved = await self._matching(regex)
        result: HeartbeatResult = await self.ask(name, event)
        self._watch_patterns(name)
        return result

    async def _matching(self, regex: Regex) -> frozenset[str]:
        """The topics that a pattern matches, internal ones too as in Kafka; in turns with the loop's other work."""
        found: list[str] = []
        names = [topic.name for topic in self._parts.topics.all()]
        begun_ms = self._parts.monotonic_ms()
        for name in names:
            if regex.matches(name):
                found.append(name)
            if self._parts.monotonic_ms() - begun_ms >= MATCH_AT_ONCE_MS:
                await asyncio.sleep(0)
                begun_ms = self._parts.monotonic_ms()
        return frozenset(found)

    def _watch_patterns(self, name: str) -> None:
        """Evaluate the group's patterns again if topics have changed since, or it was long ago."""
        group = self.consumer_group(name)
        if group is None or not group.patterns:
            self._matched_ms.pop(name, None)
            return
        now_ms = self._parts.monotonic_ms()
        last_ms = self._matched_ms.setdefault(name, now_ms)
        due_ms = self.config.regex_refresh_interval_ms
        if group.patterns_version != self._environment.catalog.version:
            due_ms = PATTERNS_EVERY_MS if group.patterns_version >= 0 else 0
        if now_ms >= last_ms + due_ms:
            self._matched_ms[name] = now_ms + (1 << 40)  # Until this one has ended.
            self.spawn(self._match_again(name, list(group.patterns)))

    async def _match_again(self, name: str, patterns: Iterable[str]) -> None:
        version = self._environment.catalog.version
        found: dict[str, frozenset[str]] = {}
        try:
            for pattern in patterns:
                try:
                    found[pattern] = await self._matching(compile_regex(pattern))
                except RegexError as error:  # Another broker has stored it; what it matched then stays.
                    _log.error("group=%s: the pattern `%s` can't be evaluated: %s", name, pattern, error)
        finally:
            self._matched_ms[name] = self._parts.monotonic_ms()
        entry = self.entries.get(name)
        if entry is None:
            del self._matched_ms[name]
        if entry is not None and isinstance(entry.machine, ConsumerGroup):
            self._feed(entry, PatternsResolved(found, version))

    async def commit(self, name: str, event: Commit) -> int | dict[TopicPartition, int]:
        """OffsetCommit and TxnOffsetCommit: an error code for all, or one for each partition. Raises
        KafkaError.
        """
        if self.look_up(name) is None and event.generation >= 0:
            # Only a group that exists has generations.
            return ErrorCode.GROUP_ID_NOT_FOUND if event.knows_epochs else ErrorCode.ILLEGAL_GENERATION
        if event.producer_id >= 0:
            await self.ensure_topic()
            self._open.setdefault((self.partition_of(name), event.producer_id), set()).add(name)
        answer: int | dict[TopicPartition, int] = await self.ask(name, event)
        return answer

    def _topics_of(self, group: AnyGroup) -> Iterable[str]:
        """Those of its offsets; that a topic is gone which it only reads, a group sees by the catalog's version."""
        return group.offsets.topics()

    def _deletion(self, topic: str) -> TopicDeleted:
        return TopicDeleted(topic)

    def marker_written(self, partition: int, producer_id: int, commit: bool) -> None:
        """A producer's marker is in that partition of `__consumer_offsets`, and committed."""
        lead = self._leads.get(partition)
        if lead is None:
            return  # Whoever coordinates it next reads the marker.
        if lead.state is LeadState.LOADING:
            lead.missed.append(partial(self.marker_written, partition, producer_id, commit))
            return
        self._answer_committed(partition, lead, len(lead.pending))  # The offsets that stand before it.
        for name in sorted(self._open.pop((partition, producer_id), ())):
            entry = self.entries.get(name)
            if entry is not None and entry.partition == partition:
                self._feed(entry, Marker(producer_id, commit))

    def _new_loading(self) -> GroupLoading:
        return GroupLoading()

    def _load_batch(self, loading: Loading[AnyGroup], raw: RawBatch) -> None:
        assert isinstance(loading, GroupLoading)
        if raw.is_control:
            self._load_marker(loading, raw)
            return
        producer_id = raw.producer_id if raw.is_transactional else -1
        decode = statelog.decode_group_record if raw.is_transactional else loading.decode
        for loaded in statelog.read_records(raw, decode, self.topic, loading.partition, self._skip_corrupt):
            self._load_record(loading, loaded, producer_id)

    def _load_record(self, loading: GroupLoading, loaded: statelog.Loaded, producer_id: int) -> None:
        name, record, offset, written_ms = loaded
        assert isinstance(record, OffsetRecord | GroupRecord | ConsumerRecord)
        entry = self._entry_of_record(loading, name)
        if entry is None:
            return
        entry.machine = machine.load(entry.machine, record, offset, producer_id, self._environment, written_ms)
        if producer_id >= 0:
            loading.open.setdefault((loading.partition, producer_id), set()).add(name)

    async def _partition_read(self, loading: Loading[AnyGroup], turns: Turns) -> None:
        assert isinstance(loading, GroupLoading)
        newest, loading.newest = loading.newest, {}
        async for loaded in turns.each(statelog.decode_commits(newest, self.topic, loading.partition, self._skip_corrupt)):
            self._load_record(loading, loaded, -1)

    def _partition_unread(self, loading: Loading[AnyGroup]) -> None:
        assert isinstance(loading, GroupLoading)
        super()._partition_unread(loading)
        loading.newest = {}
        loading.open = {where: names for where, names in loading.open.items() if where[0] != loading.partition}

    def _publish(self, loading: Loading[AnyGroup]) -> None:
        assert isinstance(loading, GroupLoading)
        self._open |= loading.open

    def _forget(self, partition: int) -> None:
        self._open = {where: names for where, names in self._open.items() if where[0] != partition}

    def _load_marker(self, loading: GroupLoading, raw: RawBatch) -> None:
        if raw.record_count == 0:
            return  # Compaction emptied it, as nothing is left of its transaction; its header says the producer's epoch.
        try:
            commit = marker_type(raw) == "commit"
        except BatchError as error:
            _log.error("topic=%s partition=%d: %s", self.topic, loading.partition, error)
            return
        for name in sorted(loading.open.pop((loading.partition, raw.producer_id), ())):
            entry = loading.entries[name]
            if entry.partition == loading.partition:
                entry.machine.offsets.end_transaction(raw.producer_id, commit)

    def _loaded(self, entry: Entry[AnyGroup]) -> None:
        if isinstance(entry.machine, ConsumerGroup):
            machine.loaded(entry.machine, self.now())
        else:
            classic_machine.loaded(entry.machine, self.now())
        self._timers.arm(entry)
