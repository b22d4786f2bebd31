"""DescribeLogDirs: the log folders, their room, and the size of each partition in them (KIP-113, KIP-827). Versions 1-5.

Null topics = all; partitions that are not here are left out, as in Kafka. A folder that is offline answers
KAFKA_STORAGE_ERROR without its partitions. `offset_lag` of a copy that is being made (`is_future_key`) counts bytes
that it lacks, where Kafka counts records: it is 0 at the same moment.
"""

import asyncio
import shutil

from penstock.broker.context import Call, Context
from penstock.broker.logdirs import LogDir
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

KEY, VERSIONS = 35, (1, 5)

Result = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Partition = DescribeLogDirsResponse.DescribeLogDirsPartition


async def handle(context: Context, request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
    """Answer for every log folder."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return DescribeLogDirsResponse(results=[await _describe(context, log_dir, wanted) for log_dir in context.dirs])


async def _describe(context: Context, log_dir: LogDir, wanted: set[tuple[str, int]] | None) -> Result:
    result = Result(log_dir=str(log_dir.path))
    if log_dir.offline:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    try:
        usage = await asyncio.get_running_loop().run_in_executor(None, shutil.disk_usage, log_dir.path)
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    result.total_bytes, result.usable_bytes = usage.total, usage.free
    by_topic: dict[str, list[Partition]] = {}
    for name, index in sorted(log_dir.partitions if wanted is None else log_dir.partitions & wanted):
        try:
            size_bytes = context.partitions.size_bytes(name, index)
        except KafkaError:
            continue  # It is being deleted, or not open yet.
        by_topic.setdefault(name, []).append(Partition(partition_index=index, partition_size=size_bytes))
    for move in context.topics.logs.moving.to(log_dir):
        if wanted is None or move.key in wanted:
            copied_bytes = await asyncio.get_running_loop().run_in_executor(None, move.copied_bytes)
            try:
                lag_bytes = max(0, context.partitions.size_bytes(*move.key) - copied_bytes)
            except KafkaError:
                continue  # It changes places in this moment.
            by_topic.setdefault(move.key[0], []).append(
                Partition(
                    partition_index=move.key[1], partition_size=copied_bytes, offset_lag=lag_bytes, is_future_key=True
                )
            )
    result.topics = [Topic(name=name, partitions=partitions) for name, partitions in by_topic.items()]
    return result
