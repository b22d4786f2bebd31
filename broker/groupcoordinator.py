"""The group coordinator: consumer groups of both protocols and their offsets, in `__consumer_offsets`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from penstock import log
from penstock.broker import groupoffsets, groups, statelog
from penstock.broker.context import Context
from penstock.broker.groupconfig import group_config
from penstock.broker.groups import Group, GroupRecord
from penstock.broker.machines import Now, TopicPartition
from penstock.broker.offsets import OffsetRecord
from penstock.broker.shell import Coordinator, Entry
from penstock.broker.topics import GROUP_OFFSETS
from penstock.errors import ErrorCode
from penstock.pyx.batch import BatchError, RawBatch, marker_type

_log = log.get("broker.coordinator")


class GroupCoordinator(Coordinator[Group]):
    """Consumer groups and their offsets: `context.groups`."""

    topic = GROUP_OFFSETS

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._config = group_config(context.config)
        # Which groups have offsets in the open transaction of a producer, by partition and producer id.
        self._open: dict[tuple[int, int], set[str]] = {}

    def _new(self, name: str) -> Group:
        return Group(name, self._config)

    def _step(self, machine: Group, event: object, now: Now) -> tuple[Group, Sequence[object]]:
        return groups.step(machine, event, now)

    def _disposable(self, machine: Group) -> bool:
        return groups.is_disposable(machine)

    def _resign(self, machine: Group) -> Sequence[object]:
        self._open.clear()
        return groups.resign(machine)

    def _encode(self, name: str, record: object) -> statelog.KeyValue:
        return statelog.encode_group_record(name, record)

    def _act(self, entry: Entry[Group], action: object) -> object | None:
        raise AssertionError(f"a group has no action {action!r}")

    def fresh_member_id(self, prefix: str) -> str:
        """A member id that nobody has: the client's id (or instance id) and a random uuid, as Kafka makes
        it.
        """
        return f"{prefix}-{uuid.uuid4()}"

    async def commit(self, name: str, event: groupoffsets.Commit) -> int | dict[TopicPartition, int]:
        """OffsetCommit and TxnOffsetCommit: an error code for all, or one for each partition. Raises
        KafkaError.
        """
        if name not in self.entries and event.generation >= 0:
            return ErrorCode.ILLEGAL_GENERATION  # Only a group that exists has generations.
        if event.producer_id >= 0:
            await self.ensure_topic()
            self._open.setdefault((self.partition_of(name), event.producer_id), set()).add(name)
        answer: int | dict[TopicPartition, int] = await self.ask(name, event)
        return answer

    def marker_written(self, partition: int, producer_id: int, commit: bool) -> None:
        """A producer's marker is in that partition of `__consumer_offsets`."""
        for name in self._open.pop((partition, producer_id), ()):
            entry = self.entries.get(name)
            if entry is not None:
                self._feed(entry, groupoffsets.Marker(producer_id, commit))

    def _load_batch(self, partition: int, raw: RawBatch) -> None:
        if raw.is_control:
            self._load_marker(partition, raw)
            return
        producer_id = raw.producer_id if raw.is_transactional else -1
        for name, record, offset in statelog.read_records(raw, statelog.decode_group_record, self.topic, partition):
            assert isinstance(record, OffsetRecord | GroupRecord)
            entry = self.entries.get(name)
            if entry is None:
                entry = self.entries[name] = Entry(name, self._new(name), partition)
            groups.load(entry.machine, record, offset, producer_id)
            if producer_id >= 0:
                self._open.setdefault((partition, producer_id), set()).add(name)

    def _load_marker(self, partition: int, raw: RawBatch) -> None:
        try:
            commit = marker_type(raw) == "commit"
        except BatchError as error:
            _log.error("topic=%s partition=%d: %s", self.topic, partition, error)
            return
        for name in self._open.pop((partition, raw.producer_id), ()):
            groups.load_marker(self.entries[name].machine, raw.producer_id, commit)

    def _loaded(self, entry: Entry[Group]) -> None:
        groups.loaded(entry.machine, self.now())
        self._timers.arm(entry)
