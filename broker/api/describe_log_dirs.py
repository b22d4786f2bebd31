"""DescribeLogDirs: the data folder and the size of each partition in it (KIP-113, KIP-827). Versions 1-5.

There is one folder. Null topics = all; partitions that are not here are left out, as in Kafka.
"""

import asyncio
import shutil

from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

KEY, VERSIONS = 35, (1, 5)

Result = DescribeLogDirsResponse.DescribeLogDirsResult


async def handle(context: Context, request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
    """Answer for the data folder."""
    result = Result(log_dir=str(context.data_folder.absolute()))
    try:
        usage = await asyncio.get_running_loop().run_in_executor(None, shutil.disk_usage, context.data_folder)
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return DescribeLogDirsResponse(results=[result])
    result.total_bytes, result.usable_bytes = usage.total, usage.free
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    for topic in context.topics.all():
        partitions = []
        for state in topic.partitions:
            if wanted is None or (topic.name, state.index) in wanted:
                try:
                    size = context.partitions.size_bytes(topic.name, state.index)
                except KafkaError:
                    continue  # It is being deleted.
                partitions.append(
                    DescribeLogDirsResponse.DescribeLogDirsPartition(
                        partition_index=state.index, partition_size=size
                    )
                )
        if partitions:
            result.topics.append(
                DescribeLogDirsResponse.DescribeLogDirsTopic(name=topic.name, partitions=partitions)
            )
    return DescribeLogDirsResponse(results=[result])
