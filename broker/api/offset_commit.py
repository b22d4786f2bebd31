"""OffsetCommit: store how far a group has read.

Versions 0-10: version 0, whose offsets Kafka 0.8 kept in ZooKeeper, is kept like all others here;
retention_time_ms is honoured where it exists (2-4), leader epochs from 6 on (KIP-320), static members from 7,
member epochs of KIP-848 from 9, topic ids at 10 (UNKNOWN_TOPIC_ID). Answered when the commit is in `__consumer_offsets`. A
consumer that assigns itself (generation -1, no member id) may commit while the group has no members. A group
that does not exist has no generations: ILLEGAL_GENERATION, from version 9 on GROUP_ID_NOT_FOUND (KIP-848).
Decisions: `broker/coordination/classicgroups`, `broker/coordination/consumergroups`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.groupoffsets import Commit
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.offsetrequest import commits_of, errors_of, name_of
from penstock.pyx.wire.messages import OffsetCommitRequest, OffsetCommitResponse

KEY, VERSIONS = 8, (0, 10)
EPOCHS_SINCE = 9
TOPIC_IDS_SINCE = 10

Topic = OffsetCommitResponse.OffsetCommitResponseTopic
Partition = OffsetCommitResponse.OffsetCommitResponsePartition


async def handle(context: Context, request: OffsetCommitRequest, call: Call) -> OffsetCommitResponse:
    """Commit what exists; the answer has every partition that was asked, in order."""
    # Without a turn up to the commit: a topic that is deleted meanwhile must not get an offset again.
    names = [name_of(context.topics, topic, call.api_version >= TOPIC_IDS_SINCE) for topic in request.topics]
    asked = list(zip(names, request.topics, strict=True))
    commits = commits_of(context.topics, ((name, topic.partitions) for name, topic in asked))
    results: int | dict[TopicPartition, int] = {}
    if commits:
        event = Commit(
            token=None,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            commits=commits,
            retention_ms=request.retention_time_ms,
            knows_epochs=call.api_version >= EPOCHS_SINCE,
        )
        results = await context.groups.commit(request.group_id, event)
    response = OffsetCommitResponse()
    for name, topic in asked:
        errors = await errors_of(name, topic.partitions, results, call.turns)
        partitions = [Partition(partition_index=index, error_code=error) for index, error in errors]
        response.topics.append(Topic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    return response
