"""OffsetFetch: how far a group has read.

Versions 0-10 (version 0 asked ZooKeeper in Kafka 0.8; here all are kept in one place): null topics ask for all
(2), leader epochs from 5, `require_stable` from 7 (KIP-447: a partition with an offset in an open transaction
answers UNSTABLE_OFFSET_COMMIT), several groups from 8 (KIP-709), topic ids at 10. A partition without a commit has
offset -1 and no error (in version 0 UNKNOWN_TOPIC_OR_PARTITION, as then), and so has an unknown group. Since
version 9 a member of a KIP-848 group may name itself, and is refused when its epoch isn't the group's
(STALE_MEMBER_EPOCH).
"""

from collections.abc import Iterable
from functools import partial

from penstock.broker.context import Call, Context
from penstock.broker.coordination.consumergroups.commits import fetch_refused
from penstock.broker.coordination.consumergroups.state import ConsumerGroup
from penstock.broker.coordination.consumergroups.writing import AnyGroup
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.topic import by_topic
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import OffsetFetchRequest, OffsetFetchResponse

KEY, VERSIONS = 9, (0, 10)
GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10

# Offset, leader epoch, metadata, error.
Found = tuple[int, int, str, int]
_NONE: Found = (-1, -1, "", ErrorCode.NONE)
_UNSTABLE: Found = (-1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
_UNKNOWN_ID: Found = (-1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID)

Topic = OffsetFetchResponse.OffsetFetchResponseTopic
Partition = OffsetFetchResponse.OffsetFetchResponsePartition
GroupAnswer = OffsetFetchResponse.OffsetFetchResponseGroup
GroupTopic = OffsetFetchResponse.OffsetFetchResponseTopics
GroupPartition = OffsetFetchResponse.OffsetFetchResponsePartitions


async def handle(context: Context, request: OffsetFetchRequest, call: Call) -> OffsetFetchResponse:
    """Answer the one group, or each of them."""
    if call.api_version < GROUPS_SINCE:
        try:
            group = context.groups.look_up(request.group_id)
        except KafkaError as error:
            return await _refused(request, error.code, call.turns)
        wanted: Iterable[tuple[str, Iterable[int]]] = _all(group)
        if request.topics is not None:
            wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
        topics = []
        for name, indexes in wanted:
            found = [_partition(group, (name, index), request.require_stable) async for index in call.turns.each(indexes)]
            topics.append(Topic(name=name, partitions=found))
        if call.api_version == 0:
            _say_unknown(topics)
        return OffsetFetchResponse(topics=topics)
    answers = [
        await _group(context, asked, request.require_stable, call)
        async for asked in call.turns.each({one.group_id: one for one in request.groups}.values())
    ]
    return OffsetFetchResponse(groups=answers)


async def _refused(request: OffsetFetchRequest, code: int, turns: Turns) -> OffsetFetchResponse:
    """One error for all: of the answer, where its version has a place for it, and of each partition."""
    refused, topics = partial(Partition, committed_offset=-1, metadata="", error_code=code), []
    for asked in request.topics or ():
        answers = [refused(partition_index=index) async for index in turns.each(asked.partition_indexes)]
        topics.append(Topic(name=asked.name, partitions=answers))
    return OffsetFetchResponse(topics=topics, error_code=code)


def _say_unknown(topics: Iterable[Topic]) -> None:
    """ZooKeeper had no node for what was never committed, and version 0 says so."""
    for topic in topics:
        for partition in topic.partitions:
            if partition.committed_offset < 0:
                partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _all(group: AnyGroup | None) -> list[tuple[str, list[int]]]:
    """Every partition that has a commit, by topic."""
    return [] if group is None else list(by_topic(sorted(group.offsets.committed)).items())


def _find(group: AnyGroup | None, key: TopicPartition, require_stable: bool) -> Found:
    if group is None:
        return _NONE
    if require_stable and group.offsets.is_unstable(key):
        return _UNSTABLE
    value = group.offsets.committed.get(key)
    return _NONE if value is None else (value.offset, value.leader_epoch, value.metadata, ErrorCode.NONE)


def _partition(group: AnyGroup | None, key: TopicPartition, require_stable: bool) -> Partition:
    offset, epoch, metadata, error = _find(group, key, require_stable)
    return Partition(
        partition_index=key[1],
        committed_offset=offset,
        committed_leader_epoch=epoch,
        metadata=metadata,
        error_code=error,
    )


async def _group(
    context: Context,
    asked: OffsetFetchRequest.OffsetFetchRequestGroup,
    require_stable: bool,
    call: Call,
) -> GroupAnswer:
    answer = GroupAnswer(group_id=asked.group_id)
    try:
        group = context.groups.look_up(asked.group_id)
    except KafkaError as error:
        answer.error_code = error.code
        return answer
    if isinstance(group, ConsumerGroup):
        answer.error_code = fetch_refused(group, asked.member_id, asked.member_epoch)
        if answer.error_code:
            return answer
    by_id = call.api_version >= TOPIC_IDS_SINCE
    for name, topic_id, indexes in _wanted(context, group, asked, by_id):
        entry = GroupTopic(name=name or "", topic_id=topic_id)
        async for index in call.turns.each(indexes):
            found = _UNKNOWN_ID if name is None else _find(group, (name, index), require_stable)
            entry.partitions.append(
                GroupPartition(
                    partition_index=index,
                    committed_offset=found[0],
                    committed_leader_epoch=found[1],
                    metadata=found[2],
                    error_code=found[3],
                )
            )
        answer.topics.append(entry)
    return answer


def _wanted(
    context: Context, group: AnyGroup | None, asked: OffsetFetchRequest.OffsetFetchRequestGroup, by_id: bool
) -> list[tuple[str | None, bytes, Iterable[int]]]:
    """(name, id, partitions) of the topics to answer; no name for an id that is not known."""
    if asked.topics is not None and not by_id:
        return [(topic.name, bytes(16), topic.partition_indexes) for topic in asked.topics]
    wanted: list[tuple[str | None, bytes, Iterable[int]]] = []
    if asked.topics is None:
        for stored, indexes in _all(group):
            known = context.topics.get(stored)
            if known is not None or not by_id:
                wanted.append((stored, known.topic_id if known is not None else bytes(16), indexes))
    else:
        for topic in asked.topics:
            known = context.topics.get_by_id(topic.topic_id)
            wanted.append((known.name if known is not None else None, topic.topic_id, topic.partition_indexes))
    return wanted
