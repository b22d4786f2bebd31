"""DescribeLogDirs: log folders, their disks' space, and the size of each partition in them (KIP-113, KIP-827). Versions 1-5.

Null topics = all; partitions that are not here are left out, as in Kafka. A folder that is offline answers
KAFKA_STORAGE_ERROR without its partitions. `offset_lag` of a copy that is being made (`is_future_key`) counts bytes
that it lacks, where Kafka counts records: it is 0 at the same moment.
"""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from penstock.broker.context import Call, Context
from penstock.broker.logs.logdirs import Key, LogDir
from penstock.broker.logs.moving import Move
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

KEY, VERSIONS = 35, (1, 5)

Result = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Partition = DescribeLogDirsResponse.DescribeLogDirsPartition
T = TypeVar("T")


async def handle(context: Context, request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
    """Answer for every log folder."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    # The disks first, then all folders in one step of the loop: else a partition that moves meanwhile would be seen in two
    # of them, or in none.
    usages = [await _in_thread(_usage, log_dir) for log_dir in context.dirs]
    moving = context.topics.logs.moving
    copied = {move: await _in_thread(move.copied_bytes) for log_dir in context.dirs for move in moving.to(log_dir)}
    results: list[Result] = []
    found: list[tuple[Result, tuple[list[Key], dict[Key, int]]]] = []
    for log_dir, usage in zip(context.dirs, usages, strict=True):
        results.append(result := Result(log_dir=str(log_dir.path)))
        if usage is None or log_dir.offline:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            continue
        result.total_bytes, result.usable_bytes = usage
        found.append((result, _lie_in(context, log_dir, copied, wanted)))
    for result, (there, coming) in found:
        result.topics = await _describe(context, there, coming, call.turns)
    return DescribeLogDirsResponse(results=results)


async def _in_thread(ask: Callable[..., T], *given: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, ask, *given)


def _usage(log_dir: LogDir) -> tuple[int, int] | None:
    """All bytes and free bytes of a folder's disk; None if it doesn't say."""
    try:
        usage = shutil.disk_usage(log_dir.path)
    except OSError:
        return None
    return usage.total, usage.free


def _lie_in(
    context: Context, log_dir: LogDir, copied: Mapping[Move, int], wanted: set[Key] | None
) -> tuple[list[Key], dict[Key, int]]:
    """The partitions that lie in a folder, and how many bytes are copied of those on their way to it (`copied`: by move)."""
    there = sorted(log_dir.partitions if wanted is None else log_dir.partitions & wanted)
    moving = context.topics.logs.moving
    # A move that has only just begun has copied nothing.
    coming = {move.key: copied.get(move, 0) for move in moving.to(log_dir) if not move.has_arrived}
    coming |= {move.key: 0 for move in moving.followed_into(log_dir)}
    return there, {key: count for key, count in coming.items() if wanted is None or key in wanted}


async def _describe(context: Context, there: Sequence[Key], coming: Mapping[Key, int], turns: Turns) -> list[Topic]:
    """What `_lie_in` has found, with the sizes of the logs."""
    by_topic: dict[str, list[Partition]] = {}
    async for name, index in turns.each(there):
        size_bytes = _size_bytes(context, name, index)
        if size_bytes is not None:  # Else it is being deleted, or not open yet.
            by_topic.setdefault(name, []).append(Partition(partition_index=index, partition_size=size_bytes))
    for (name, index), copied_bytes in coming.items():
        lag_bytes = max(0, (_size_bytes(context, name, index) or 0) - copied_bytes)
        by_topic.setdefault(name, []).append(
            Partition(partition_index=index, partition_size=copied_bytes, offset_lag=lag_bytes, is_future_key=True)
        )
    return [Topic(name=name, partitions=partitions) for name, partitions in by_topic.items()]


def _size_bytes(context: Context, name: str, index: int) -> int | None:
    """Bytes of a log; also of one that is closed for a moment because its move is being finished. None = it isn't open."""
    try:
        return context.log_manager.size_bytes(name, index)
    except KafkaError:
        return context.topics.logs.moving.closed_bytes((name, index))
