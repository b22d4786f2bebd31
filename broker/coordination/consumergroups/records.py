"""The records of consumer groups as Kafka's bytes in `__consumer_offsets`: keys 3 to 8 and 16, values version 0.

Kinds that this broker doesn't keep (share and streams groups) are not known here and are passed over at load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.broker.coordination.consumergroups.state import (
    Assigned,
    ClassicFacts,
    ConsumerRecord,
    Current,
    CurrentRecord,
    EpochRecord,
    MemberFacts,
    MemberRecord,
    MemberState,
    Partitions,
    PatternRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicsTombstone,
)
from penstock.pyx.wire.header import decode_version, encode_versioned
from penstock.pyx.wire.message import Message, WireError
from penstock.pyx.wire.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

KEYS = {3, 4, 5, 6, 7, 8, 16}
_CurrentPartitions = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
_ClassicMetadata = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata


# --- to bytes -----------------------------------------------------------------------------------------------
def encode(group: str, record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """Key and value of a record."""
    key, value = _messages(group, record)
    # A key's version says of what kind it is; each kind has one.
    return encode_versioned(key, key.MIN_VERSION), None if value is None else encode_versioned(value, 0)


def _messages(group: str, record: ConsumerRecord) -> tuple[Message, Message | None]:
    if isinstance(record, EpochRecord):
        epoch = record.value and ConsumerGroupMetadataValue(epoch=record.value[0], metadata_hash=record.value[1])
        return ConsumerGroupMetadataKey(group_id=group), epoch
    if isinstance(record, MemberRecord):
        member_key = ConsumerGroupMemberMetadataKey(group_id=group, member_id=record.member_id)
        return member_key, None if record.value is None else _facts_message(record.value)
    if isinstance(record, TargetEpochRecord):
        target_epoch = record.value and ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=record.value[0], assignment_timestamp=record.value[1]
        )
        return ConsumerGroupTargetAssignmentMetadataKey(group_id=group), target_epoch
    if isinstance(record, TargetRecord):
        target_key = ConsumerGroupTargetAssignmentMemberKey(group_id=group, member_id=record.member_id)
        return target_key, None if record.value is None else _target_message(record.value)
    if isinstance(record, CurrentRecord):
        current_key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group, member_id=record.member_id)
        return current_key, None if record.value is None else _current_message(record.value)
    if isinstance(record, PatternRecord):
        pattern_key = ConsumerGroupRegularExpressionKey(group_id=group, regular_expression=record.pattern)
        resolved = record.value and ConsumerGroupRegularExpressionValue(
            topics=sorted(record.value[0]), version=record.value[1], timestamp=record.value[2]
        )
        return pattern_key, resolved
    return ConsumerGroupPartitionMetadataKey(group_id=group), None


def _facts_message(facts: MemberFacts) -> ConsumerGroupMemberMetadataValue:
    message = ConsumerGroupMemberMetadataValue(
        instance_id=facts.instance_id,
        rack_id=facts.rack_id,
        client_id=facts.client_id,
        client_host=facts.client_host,
        subscribed_topic_names=list(facts.topics),
        subscribed_topic_regex=facts.pattern,
        rebalance_timeout_ms=facts.rebalance_timeout_ms,
        server_assignor=facts.assignor,
    )
    message.classic_member_metadata = None if facts.classic is None else _classic_message(facts.classic)
    return message


def _classic_message(classic: ClassicFacts) -> _ClassicMetadata:
    protocols = [
        ConsumerGroupMemberMetadataValue.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
    ]
    return _ClassicMetadata(session_timeout_ms=classic.session_timeout_ms, supported_protocols=protocols)


def _target_message(target: Partitions) -> ConsumerGroupTargetAssignmentMemberValue:
    one = ConsumerGroupTargetAssignmentMemberValue.TopicPartition
    parts = [one(topic_id=topic_id, partitions=sorted(partitions)) for topic_id, partitions in sorted(target.items())]
    return ConsumerGroupTargetAssignmentMemberValue(topic_partitions=parts)


def _current_message(current: Current) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=int(current.state),
        assigned_partitions=_assigned_message(current.assigned),
        partitions_pending_revocation=_assigned_message(current.revoking),
    )


def _assigned_message(assigned: Assigned) -> list[_CurrentPartitions]:
    return [
        _CurrentPartitions(
            topic_id=topic_id,
            partitions=sorted(held),
            assignment_epochs=[held[partition] for partition in sorted(held)],
        )
        for topic_id, held in sorted(assigned.items())
    ]


# --- from bytes ---------------------------------------------------------------------------------------------
def decode(key: bytes, value: bytes | None) -> tuple[str, ConsumerRecord]:
    """Group and record of a key of `KEYS` and its value. Raises WireError."""
    kind, rest = decode_version(key)
    if kind == ConsumerGroupMetadataKey.MIN_VERSION:
        group = ConsumerGroupMetadataKey.decode(rest, kind).group_id
        epoch = _read(ConsumerGroupMetadataValue, value)
        return group, EpochRecord(epoch and (epoch.epoch, epoch.metadata_hash))
    if kind == ConsumerGroupPartitionMetadataKey.MIN_VERSION:
        # What a topic looked like is looked up, not kept: the hash in the group's record is compared instead.
        return ConsumerGroupPartitionMetadataKey.decode(rest, kind).group_id, TopicsTombstone(value is not None)
    if kind == ConsumerGroupMemberMetadataKey.MIN_VERSION:
        member = ConsumerGroupMemberMetadataKey.decode(rest, kind)
        facts = _read(ConsumerGroupMemberMetadataValue, value)
        return member.group_id, MemberRecord(member.member_id, facts and _facts(facts))
    if kind == ConsumerGroupTargetAssignmentMetadataKey.MIN_VERSION:
        group = ConsumerGroupTargetAssignmentMetadataKey.decode(rest, kind).group_id
        target = _read(ConsumerGroupTargetAssignmentMetadataValue, value)
        return group, TargetEpochRecord(target and (target.assignment_epoch, target.assignment_timestamp))
    if kind == ConsumerGroupTargetAssignmentMemberKey.MIN_VERSION:
        owner = ConsumerGroupTargetAssignmentMemberKey.decode(rest, kind)
        shall = _read(ConsumerGroupTargetAssignmentMemberValue, value)
        parts = shall and {bytes(part.topic_id): frozenset(part.partitions) for part in shall.topic_partitions}
        return owner.group_id, TargetRecord(owner.member_id, parts)
    if kind == ConsumerGroupCurrentMemberAssignmentKey.MIN_VERSION:
        holder = ConsumerGroupCurrentMemberAssignmentKey.decode(rest, kind)
        has = _read(ConsumerGroupCurrentMemberAssignmentValue, value)
        return holder.group_id, CurrentRecord(holder.member_id, has and _current(has))
    pattern = ConsumerGroupRegularExpressionKey.decode(rest, kind)
    found = _read(ConsumerGroupRegularExpressionValue, value)
    matching = found and (frozenset(found.topics), found.version, found.timestamp)
    return pattern.group_id, PatternRecord(pattern.regular_expression, matching)


def _read(message: Any, value: bytes | None) -> Any:
    if value is None:
        return None
    version, rest = decode_version(value)
    if version != 0:
        raise WireError(f"{message.__name__} version {version}")
    return message.decode(rest, version)


def _facts(message: ConsumerGroupMemberMetadataValue) -> MemberFacts:
    metadata = message.classic_member_metadata
    # Kafka leaves the tag out for the default, which is a struct of defaults: nothing that a member can say.
    classic = None
    if metadata is not None and metadata.supported_protocols:
        protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in metadata.supported_protocols)
        classic = ClassicFacts(metadata.session_timeout_ms, protocols)
    return MemberFacts(
        message.instance_id,
        message.rack_id,
        message.client_id,
        message.client_host,
        tuple(sorted(message.subscribed_topic_names)),
        message.subscribed_topic_regex or "",
        message.rebalance_timeout_ms,
        message.server_assignor,
        classic,
    )


def _current(message: ConsumerGroupCurrentMemberAssignmentValue) -> Current:
    try:
        state = MemberState(message.state)
    except ValueError:
        state = MemberState.UNKNOWN
    return Current(
        message.member_epoch,
        message.previous_member_epoch,
        state,
        _assigned(message.assigned_partitions, message.member_epoch),
        _assigned(message.partitions_pending_revocation, message.member_epoch),
    )


def _assigned(parts: Iterable[_CurrentPartitions], member_epoch: int) -> Mapping[bytes, Mapping[int, int]]:
    """Before Kafka 4.3 no epochs were kept beside the partitions: the member's own stands for them."""
    assigned: dict[bytes, dict[int, int]] = {}
    for part in parts:
        epochs = part.assignment_epochs or []
        if len(epochs) != len(part.partitions):
            epochs = [member_epoch] * len(part.partitions)
        assigned[bytes(part.topic_id)] = dict(zip(part.partitions, epochs, strict=True))
    return assigned
