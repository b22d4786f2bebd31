"""AlterReplicaLogDirs: move partitions between this broker's log folders (KIP-113). Versions 0-2.

The answer comes when the moves have begun; DescribeLogDirs says how far they are (`is_future_key`, `offset_lag`).

Replicas of a cluster stay in their folders, as the swap at a move's end would have to be a change of role: INVALID_REQUEST.
"""

from penstock import log
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse

KEY, VERSIONS = 34, (0, 2)

_log = log.get(__name__)

Result = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
Partition = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult


async def handle(context: Context, request: AlterReplicaLogDirsRequest, call: Call) -> AlterReplicaLogDirsResponse:
    """Begin each move; one that can't be doesn't touch the others."""
    if context.cluster is not None:
        _log.warning("moves between log folders are refused: a cluster's replicas stay in theirs")
    results: dict[str, Result] = {}
    for log_dir in request.dirs:
        for topic in log_dir.topics:
            result = results.setdefault(topic.name, Result(topic_name=topic.name))
            result.partitions += [
                Partition(partition_index=index, error_code=_move(context, topic.name, index, log_dir.path))
                async for index in call.turns.each(topic.partitions)
            ]
    return AlterReplicaLogDirsResponse(results=list(results.values()))


def _move(context: Context, name: str, index: int, path: str) -> int:
    if context.cluster is not None:
        return ErrorCode.INVALID_REQUEST
    target = context.dirs.by_path(path)
    if target is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if target.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    try:
        topic = context.topics.get(name)
        if topic is None:
            return ErrorCode.REPLICA_NOT_AVAILABLE
        context.topics.logs.move(topic, index, target)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
