"""The coordinators' records as bytes: Kafka's formats of `__consumer_offsets` and `__transaction_state`.

A key and a value each start with two bytes of version; a key's version says what kind of record it is (0 and
1 an offset commit, 2 a classic group, 3 to 8 and 16 a consumer group's, see `consumergroups/records.py`; in the
other topic 0 a transactional id). No value is a tombstone. What Kafka wrote beside these (records of share and
streams groups) is passed over, so that its folder can be opened. Written are OffsetCommitValue v3 (v1 where a
client gave an expiry of its own), GroupMetadataValue v3, and TransactionLogValue v0, or v1 where a producer id was
replaced, KIP-890 is in use, or ids of topics are known, as in a cluster.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from penstock import log
from penstock.broker.coordination.classicgroups.state import GroupRecord, GroupSnapshot, MemberSnapshot
from penstock.broker.coordination.consumergroups import records as consumer_records
from penstock.broker.coordination.consumergroups.state import ConsumerRecord
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.offsets import Committed, OffsetRecord
from penstock.broker.coordination.transactions.state import Facts, TransactionRecord, TransactionState
from penstock.broker.topic import by_topic
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import BatchError, RawBatch, split
from penstock.pyx.record.rawbatch import records as open_batch
from penstock.pyx.wire.header import decode_version, encode_versioned
from penstock.pyx.wire.message import NIL_UUID, Message, WireError
from penstock.pyx.wire.messages import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)

OFFSET_KEYS, GROUP_KEY, TRANSACTION_KEY = (0, 1), 2, 0
# One batch of records; a longer list (the tombstones of a large group) becomes several.
BATCH_MAX_BYTES = 900_000
READ_BYTES = 4 << 20

V = TypeVar("V", bound=Message)
KeyValue = tuple[bytes, bytes | None]

# Looked up now: the first use reads a file, and there may be no file descriptor then.
_UTF_16 = codecs.getencoder("utf-16-be")

_log = log.get(__name__)


def java_hash_partition(name: str, partitions: int) -> int:
    """The partition of a group or transactional id: |String.hashCode| % partitions, as Kafka has it."""
    number = 0
    units, _ = _UTF_16(name, "surrogatepass")
    for at in range(0, len(units), 2):
        number = (31 * number + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    if number >= 1 << 31:
        number = (1 << 32) - number
    return 0 if number == 1 << 31 else number % partitions


# --- to bytes -----------------------------------------------------------------------------------------------
def encode_group_record(group: str, record: object) -> KeyValue:
    """Key and value of a record of a group, of either protocol."""
    if isinstance(record, OffsetRecord):
        key = OffsetCommitKey(group=group, topic=record.topic, partition=record.partition)
        return encode_versioned(key, 1), _offset_value(record.value)
    if isinstance(record, GroupRecord):
        return encode_versioned(GroupMetadataKey(group=group), GROUP_KEY), _group_value(record.value)
    assert isinstance(record, ConsumerRecord)
    return consumer_records.encode(group, record)


def _offset_value(value: Committed | None) -> bytes | None:
    if value is None:
        return None
    message = OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        expire_timestamp=value.expire_timestamp_ms,
    )
    return encode_versioned(message, 1 if value.expire_timestamp_ms >= 0 else 3)


def _group_value(value: GroupSnapshot | None) -> bytes | None:
    if value is None:
        return None
    members = [
        GroupMetadataValue.MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in value.members
    ]
    message = GroupMetadataValue(
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        current_state_timestamp=value.state_timestamp_ms,
        members=members,
    )
    return encode_versioned(message, 3)


def encode_transaction_record(transactional_id: str, record: object) -> KeyValue:
    """Key and value of a TransactionRecord."""
    assert isinstance(record, TransactionRecord)
    key = encode_versioned(TransactionLogKey(transactional_id=transactional_id), TRANSACTION_KEY)
    facts = record.value
    if facts is None:
        return key, None
    # An id that was never in a transaction has no list of partitions, not an empty one.
    partitions = None if facts.state is TransactionState.EMPTY else _by_topic(facts)
    message = TransactionLogValue(
        producer_id=facts.producer_id,
        previous_producer_id=facts.previous_producer_id,
        next_producer_id=facts.next_producer_id,
        producer_epoch=facts.producer_epoch,
        transaction_timeout_ms=facts.timeout_ms,
        transaction_status=int(facts.state),
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=facts.updated_ms,
        transaction_start_timestamp_ms=facts.started_ms,
        client_transaction_version=facts.client_version,
    )
    if facts.last_end is not None:
        message.ended_epoch, message.ended_commit = facts.last_end
    ids_or_epochs = facts.topic_ids or facts.unclean_epochs or facts.last_end
    tagged = facts.client_version > 0 or facts.previous_producer_id >= 0 or bool(ids_or_epochs)
    return key, encode_versioned(message, 1 if tagged else 0)


def _by_topic(facts: Facts) -> list[TransactionLogValue.PartitionsSchema]:
    form, ids = TransactionLogValue.PartitionsSchema, dict[str, list[bytes]]()
    for name, topic_id in sorted(facts.topic_ids):
        ids.setdefault(name, []).append(topic_id)
    found = []
    unclean = dict(facts.unclean_epochs)
    for name, partitions in by_topic(sorted(facts.partitions)).items():
        first, *others = ids.get(name, [NIL_UUID])
        epochs = [unclean.get((name, index), -1) for index in partitions]
        known = epochs if max(epochs) >= 0 else []
        found.append(form(topic=name, partition_ids=partitions, topic_id=first, unclean_epochs=known))
        found += [form(topic=name, topic_id=one) for one in others]
    return found


def build_batches(pairs: Sequence[KeyValue], timestamp_ms: int, producer_id: int = -1, producer_epoch: int = -1) -> list[bytes]:
    """Batches of the records, in order. A producer's (transactional) records are always one batch.

    Raises KafkaError MESSAGE_TOO_LARGE where that is impossible.
    """
    builder = BatchBuilder(max_bytes=BATCH_MAX_BYTES)
    batches: list[bytes] = []
    transactional = producer_id >= 0
    for key, value in pairs:
        if builder.append(key, value, timestamp_ms):
            continue
        if transactional:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "the records of one transactional commit")
        batches.append(builder.build())
        builder.clear()
        builder.append(key, value, timestamp_ms)
    batches.append(builder.build(producer_id, producer_epoch, -1, transactional))
    return batches


# --- from bytes ---------------------------------------------------------------------------------------------
class Loaded(NamedTuple):
    """A record as it was read: whose it is, what it says, where it lies, when it was written."""

    id: str
    record: OffsetRecord | GroupRecord | ConsumerRecord | TransactionRecord
    offset: int
    timestamp_ms: int = -1


# Of a record's key, value and offset; None: it is of a kind that isn't ours. Raises WireError.
Decode = Callable[[bytes, bytes | None, int], Loaded | None]


def decode_group_record(key: bytes, value: bytes | None, offset: int) -> Loaded | None:
    """A record of `__consumer_offsets`; None for a kind that isn't ours. Raises WireError."""
    version, rest = decode_version(key)
    if version in OFFSET_KEYS:
        offset_key = OffsetCommitKey.decode(rest, version)
        committed = _read_offset_value(value)
        return Loaded(offset_key.group, OffsetRecord(offset_key.topic, offset_key.partition, committed), offset)
    if version == GROUP_KEY:
        group = GroupMetadataKey.decode(rest, version).group
        return Loaded(group, GroupRecord(_read_group_value(value)), offset)
    if version in consumer_records.KEYS:
        group, record = consumer_records.decode(key, value)
        return Loaded(group, record, offset)
    return None


def is_commit(key: bytes) -> bool:
    """Whether a record's key is that of an offset commit."""
    return key[:2] in (b"\0\0", b"\0\1")


def decode_commits(
    commits: Mapping[bytes, tuple[bytes, int]], topic: str, partition: int, skip_corrupt: bool
) -> Iterator[Loaded]:
    """Commits by key, each with its value and its offset in the log. Raises KafkaError CORRUPT_MESSAGE for what can't be
    read; with `skip_corrupt` it is logged and left out.
    """
    for key, (value, offset) in commits.items():
        try:
            loaded = decode_group_record(key, value, offset)
        except WireError as error:
            _corrupt(skip_corrupt, topic, partition, offset, error)
            continue
        if loaded is not None:
            yield loaded


def _read_offset_value(value: bytes | None) -> Committed | None:
    message = _message(value, OffsetCommitValue)
    if message is None:
        return None
    return Committed(
        message.offset,
        message.leader_epoch,
        message.metadata,
        message.commit_timestamp,
        message.expire_timestamp,
    )


def _read_group_value(value: bytes | None) -> GroupSnapshot | None:
    message = _message(value, GroupMetadataValue)
    if message is None:
        return None
    members = tuple(
        MemberSnapshot(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout,
            member.session_timeout,
            bytes(member.subscription),
            bytes(member.assignment),
        )
        for member in message.members
    )
    return GroupSnapshot(
        message.protocol_type,
        message.generation,
        message.protocol,
        message.leader,
        message.current_state_timestamp,
        members,
    )


def decode_transaction_record(key: bytes, value: bytes | None, offset: int) -> Loaded | None:
    """A record of `__transaction_state`; None for a kind that isn't ours. Raises WireError."""
    version, rest = decode_version(key)
    if version != TRANSACTION_KEY:
        return None
    transactional_id = TransactionLogKey.decode(rest, version).transactional_id
    return Loaded(transactional_id, TransactionRecord(_read_transaction_value(value)), offset)


def _read_transaction_value(value: bytes | None) -> Facts | None:
    message = _message(value, TransactionLogValue)
    if message is None:
        return None
    try:
        state = TransactionState(message.transaction_status)
    except ValueError:
        raise WireError(f"transaction status {message.transaction_status}") from None
    partitions: frozenset[TopicPartition] = frozenset(
        (topic.topic, partition) for topic in message.transaction_partitions or () for partition in topic.partition_ids
    )
    return Facts(
        producer_id=message.producer_id,
        previous_producer_id=message.previous_producer_id,
        next_producer_id=message.next_producer_id,
        producer_epoch=message.producer_epoch,
        last_producer_epoch=-1,
        timeout_ms=message.transaction_timeout_ms,
        state=state,
        partitions=partitions,
        updated_ms=message.transaction_last_update_timestamp_ms,
        started_ms=message.transaction_start_timestamp_ms,
        client_version=message.client_transaction_version,
        last_end=(message.ended_epoch, message.ended_commit) if message.ended_epoch >= 0 else None,
        topic_ids=frozenset(
            (topic.topic, bytes(topic.topic_id)) for topic in message.transaction_partitions or () if topic.topic_id != NIL_UUID
        ),
        unclean_epochs=frozenset(
            ((topic.topic, index), epoch)
            for topic in message.transaction_partitions or ()
            for index, epoch in zip(topic.partition_ids, topic.unclean_epochs, strict=False)
            if epoch >= 0
        ),
    )


def _message(value: bytes | None, kind: type[V]) -> V | None:
    """A record's value; None: a tombstone. Raises WireError for a version that isn't known, too."""
    if value is None:
        return None
    version, rest = decode_version(value)
    if not kind.MIN_VERSION <= version <= kind.MAX_VERSION:
        raise WireError(f"{kind.__name__} version {version}")
    return kind.decode(rest, version)


# --- reading a partition ------------------------------------------------------------------------------------
def read_batches(
    log_manager: LogManager, topic: str, partition: int, offset: int, skip_corrupt: bool = False
) -> Sequence[RawBatch]:
    """Some of a partition's batches, from the one that holds an offset on; none at its end. Slow. Raises KafkaError
    CORRUPT_MESSAGE at a batch whose end can't be found; with `skip_corrupt` it is logged, and left out with all behind it.
    """
    try:
        return split(log_manager.read(topic, partition, offset, READ_BYTES))
    except BatchError as error:
        _corrupt(skip_corrupt, topic, partition, offset, error)
        return ()


def _corrupt(skip: bool, topic: str, partition: int, offset: int, error: Exception) -> None:
    """What is left out would be undone: a position goes back, a decided transaction is open again. So it is for the
    operator to say that it may be.
    """
    if not skip:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{topic}-{partition} at offset {offset}: {error}")
    _log.error("left out: topic=%s partition=%d offset=%d: %s", topic, partition, offset, error)


def read_records(raw: RawBatch, decode: Decode, topic: str, partition: int, skip_corrupt: bool = False) -> Iterator[Loaded]:
    """The records of a batch. Raises KafkaError CORRUPT_MESSAGE for what can't be read; with `skip_corrupt` it is logged
    and left out.
    """
    try:
        opened = open_batch(raw)
    except BatchError as error:
        _corrupt(skip_corrupt, topic, partition, raw.base_offset, error)
        return
    for record in opened:
        if record.key is None:
            continue
        try:
            loaded = decode(record.key, record.value, record.offset)
        except WireError as error:
            _corrupt(skip_corrupt, topic, partition, record.offset, error)
            continue
        if loaded is not None:
            yield loaded._replace(timestamp_ms=record.timestamp_ms)
