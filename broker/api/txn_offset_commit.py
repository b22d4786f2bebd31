"""TxnOffsetCommit: commit a group's offsets as part of a transaction; they count when it commits.

Versions 0-6; from 3 on members are fenced by id and generation (KIP-447), from 6 on topics are named by id and a member of
KIP-848 hears STALE_MEMBER_EPOCH, a group that doesn't exist GROUP_ID_NOT_FOUND (KIP-1319). The group's partition has to be in
the producer's ongoing transaction (AddOffsetsToTxn), so that nothing can be written after its marker; if it
isn't the answer is TRANSACTION_ABORTABLE, before version 4 INVALID_TXN_STATE. From version 5 on it is added here
(KIP-890). A transaction that is just ending answers COORDINATOR_LOAD_IN_PROGRESS, which clients try again.
Decisions: the groups' `commits.py`, `broker/coordination/transactions`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.groupoffsets import Commit
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.offsetrequest import commits_of, errors_of, name_of
from penstock.broker.coordination.offsets import Committed
from penstock.broker.topic import GROUP_OFFSETS
from penstock.broker.transactionmessages import Verification
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

KEY, VERSIONS = 28, (0, 6)
ABORTABLE_SINCE = 4
ADDS_PARTITION_SINCE = 5
TOPIC_IDS_SINCE = 6

Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
Partition = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


async def handle(context: Context, request: TxnOffsetCommitRequest, call: Call) -> TxnOffsetCommitResponse:
    """Commit what exists; the answer has every partition that was asked, in order."""
    by_id = call.api_version >= TOPIC_IDS_SINCE
    # Without a turn up to the commit: a topic that is deleted meanwhile must not get an offset again.
    asked = [(name_of(context.topics, topic, by_id), topic) for topic in request.topics]
    commits = commits_of(context.topics, ((name, topic.partitions) for name, topic in asked))
    results: int | dict[TopicPartition, int] = {}
    if commits:
        results = await _commit(context, request, commits, call)
    response = TxnOffsetCommitResponse()
    for name, topic in asked:
        errors = await errors_of(name, topic.partitions, results, call.turns)
        partitions = [Partition(partition_index=index, error_code=error) for index, error in errors]
        response.topics.append(Topic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    return response


async def _commit(
    context: Context,
    request: TxnOffsetCommitRequest,
    commits: dict[TopicPartition, Committed],
    call: Call,
) -> int | dict[TopicPartition, int]:
    if not request.transactional_id or request.producer_id < 0:
        return ErrorCode.INVALID_REQUEST
    await context.groups.ensure_topic()
    context.groups.check_served(request.group_id)
    partition = (GROUP_OFFSETS, context.groups.partition_of(request.group_id))
    producer = request.producer_id, request.producer_epoch
    guard = context.log_manager.guard()
    error = await _in_transaction(context, request, partition, call)
    if error:
        return error
    event = Commit(
        token=None,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        commits=commits,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        knows_epochs=call.api_version >= TOPIC_IDS_SINCE,
    )
    # Nothing is awaited between this and the append, and markers come on this loop alone.
    if not context.log_manager.is_guarded(*partition, *producer, guard):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return await context.groups.commit(request.group_id, event)


async def _in_transaction(context: Context, request: TxnOffsetCommitRequest, partition: TopicPartition, call: Call) -> int:
    """Whether the group's partition is in the producer's ongoing transaction: an error code."""
    assert request.transactional_id is not None
    adds = call.api_version >= ADDS_PARTITION_SINCE
    (error,) = await context.coordinators.verifier.ask(
        Verification(request.transactional_id, request.producer_id, request.producer_epoch, (partition,), adds)
    )
    if error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # The transaction's, not the group's, which was asked.
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.CONCURRENT_TRANSACTIONS:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error == ErrorCode.TRANSACTION_ABORTABLE and call.api_version < ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return error
