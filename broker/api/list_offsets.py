"""ListOffsets: the offset of a time, of the log's start or of its end.

Versions 0-11. Timestamps: -1 latest (the last stable offset for read_committed, KIP-98), -2 earliest, -3
the record with the largest timestamp (version 7, KIP-734), -4 earliest local (version 8) which is the
earliest here, -5 last tiered (version 9) and -6 earliest pending upload (version 11): nothing is tiered, so
-1. A time that no record reaches is answered by offset -1. Latest carries the leader's current epoch,
others that of their offset.

A replica that doesn't lead says where its own log ends if `replica_id` is ANY_REPLICA: so tools compare copies.

Version 0 lists segments' first offsets, newest first, of those that were last written to before the time, and
the log's end: what Kafka 0.8 to 3.9 answered.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import ListOffsetsRequest, ListOffsetsResponse

KEY, VERSIONS = 2, (0, 11)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
# The first version that may ask for it.
SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
EPOCHS_SINCE = 4
ANY_REPLICA = -2
NOT_AVAILABLE_SINCE = 5
READ_COMMITTED = 1

Asked = ListOffsetsRequest.ListOffsetsPartition
Answer = ListOffsetsResponse.ListOffsetsPartitionResponse


async def handle(context: Context, request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    """Answer per partition; one that fails does not touch the others."""
    times = Counter[tuple[str, int]]()
    for topic in request.topics:
        times.update([(topic.name, one.partition_index) async for one in call.turns.each(topic.partitions)])
    response = ListOffsetsResponse()
    for topic in request.topics:
        answered = ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answered)
        async for partition in call.turns.each({one.partition_index: one for one in topic.partitions}.values()):
            try:
                if times[topic.name, partition.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "asked for twice")
                if call.api_version == 0:
                    ask = partial(_old_style, context, topic.name, partition)
                elif request.replica_id == ANY_REPLICA and partition.timestamp == LATEST:
                    ask = partial(_end_of_copy, context, topic.name, partition, call.api_version)
                else:
                    ask = partial(_one, context, topic.name, partition, request.isolation_level, call.api_version)
                answer = await context.topics.logs.moving.retried(ask)
            except KafkaError as error:
                answer = Answer(partition_index=partition.partition_index, error_code=error.code)
            answered.partitions.append(answer)
    return response


async def _one(context: Context, topic: str, asked: Asked, isolation: int, version: int) -> Answer:
    index = asked.partition_index
    context.topics.check_leader_epoch(topic, index, asked.current_leader_epoch)
    logs = context.log_manager
    _check_leads(context, topic, asked, version)
    offsets = logs.offsets(topic, index)
    end = _end(context, topic, index, isolation)
    wanted = asked.timestamp
    if wanted < 0 and (wanted < EARLIEST_PENDING or version < SINCE.get(wanted, 0)):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {wanted}")
    answer = Answer(partition_index=index)
    if wanted == LATEST:
        answer.offset, answer.leader_epoch = end, offsets.leader_epoch
    elif wanted in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = offsets.log_start
        answer.leader_epoch = offsets.leader_epoch
        if offsets.log_start < offsets.log_end:
            answer.leader_epoch = _epoch_at(context, topic, index, offsets.log_start, offsets.leader_epoch)
    elif wanted not in (LATEST_TIERED, EARLIEST_PENDING):
        ask = context.topics.ask
        if wanted == MAX_TIMESTAMP:
            found = await ask(topic, index, logs.max_timestamp, topic, index)
            # The records that were appended since, among which the thread may have found it.
            end = _end(context, topic, index, isolation)
        else:
            found = await ask(topic, index, logs.offset_for_timestamp, topic, index, wanted)
        if found is not None and found[0] < end:
            answer.offset, answer.timestamp = found
            answer.leader_epoch = _epoch_at(context, topic, index, found[0], offsets.leader_epoch)
    if version < EPOCHS_SINCE:
        answer.leader_epoch = -1
    return answer


async def _end_of_copy(context: Context, topic: str, asked: Asked, version: int) -> Answer:
    index = asked.partition_index
    context.topics.check_leader_epoch(topic, index, asked.current_leader_epoch)
    offsets = context.log_manager.offsets(topic, index)
    epoch = offsets.leader_epoch if version >= EPOCHS_SINCE else -1
    return Answer(partition_index=index, offset=offsets.log_end, leader_epoch=epoch)


def _check_leads(context: Context, topic: str, asked: Asked, version: int) -> None:
    """A new leader doesn't know how far the one before has shown records: clients would go back (KIP-207)."""
    try:
        context.log_manager.check_leads(topic, asked.partition_index, latest=asked.timestamp not in (EARLIEST, EARLIEST_LOCAL))
    except KafkaError as error:
        if error.code != ErrorCode.OFFSET_NOT_AVAILABLE or version >= NOT_AVAILABLE_SINCE:
            raise
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.what) from None


def _end(context: Context, topic: str, index: int, isolation: int) -> int:
    """What read_committed can't see yet has no offset for it either."""
    offsets = context.log_manager.offsets(topic, index)
    return offsets.last_stable if isolation == READ_COMMITTED else offsets.high_watermark


def _epoch_at(context: Context, topic: str, index: int, offset: int, current_epoch: int) -> int:
    """The leader epoch in which the record at an offset was written; -1 if the log doesn't know."""
    # Epochs are few (one an election), so walking down from the current one is cheap.
    epoch, found = current_epoch, -1
    while epoch >= 0:
        known, end_offset = context.log_manager.offset_for_epoch(topic, index, epoch)
        if known < 0:
            break
        if end_offset > offset:
            found = known
        else:
            break
        epoch = known - 1
    return found


async def _old_style(context: Context, topic: str, asked: Asked) -> Answer:
    index = asked.partition_index
    context.topics.partition(topic, index)
    _check_leads(context, topic, asked, 0)
    offsets = context.log_manager.offsets(topic, index)
    segments = context.log_manager.segments(topic, index)
    modified_ms = await context.topics.ask(topic, index, _modified_ms, [segment.path for segment in segments])
    starts = [max(segment.base_offset, offsets.log_start) for segment in segments]
    if segments[-1].size_bytes > 0:
        starts.append(offsets.high_watermark)
        modified_ms.append(context.now_ms())
    answer = Answer(partition_index=index)
    answer.old_style_offsets = offsets_before(starts, modified_ms, asked.timestamp, asked.max_num_offsets)
    return answer


def offsets_before(starts: Sequence[int], modified_ms: Sequence[int], timestamp: int, max_num_offsets: int) -> list[int]:
    """The newest of the offsets whose time is at most `timestamp` (-1 all, -2 the oldest), newest first."""
    if timestamp == LATEST:
        count = len(starts)
    elif timestamp == EARLIEST:
        count = 1
    else:
        # The newest that is old enough counts, and all before it, whatever their own times are.
        count = max((place + 1 for place, time_ms in enumerate(modified_ms) if time_ms <= timestamp), default=0)
    newest_first = list(starts[:count])[::-1]
    return newest_first[: max(0, max_num_offsets)]


def _modified_ms(paths: Sequence[str]) -> list[int]:
    """When files were last written to; one that retention has just removed is as old as can be."""
    found = []
    for path in paths:
        try:
            found.append(Path(path).stat().st_mtime_ns // 1_000_000)
        except FileNotFoundError:
            found.append(0)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    return found
