"""After a crash: put what the output topic has and the store lacks into the store, before any input is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock import log
from penstock.dedupe.ids import IdSource
from penstock.dedupe.opening import join, open_batches
from penstock.dedupe.position import DedupePosition
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import BatchMark, Fetcher
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.sourcelog import differs
from penstock.pyx.ids.store import IdStore
from penstock.pyx.record.columns import Column
from penstock.pyx.record.rawbatch import RawBatch

STABLE_PAUSE_S = 0.05
STABLE_PATIENCE_S = 5.0  # of an open transaction in the output, before the lane has to begin again
REPAIRING = declare("dedupe.repairing", "some of the output's ids are in the store, not all")
REPAIRED = declare("dedupe.repaired", "the store has all of the output's ids, no input was read")


Note = Callable[[Column, int], Awaitable[None]]


class UnknownIds(OperatorNeeded):
    """The store lacks the ids of output offsets, `FIRST..LAST`, that the output no longer has or that can't be read there."""

    def __init__(self, offsets: str, tp: TopicPartition, why: str = "") -> None:
        super().__init__(
            f"ids of output offsets {offsets} are unknown{why}: restore a snapshot that has them, or {hints.to_accept(tp)} if "
            "repeats of them may pass"
        )
        self.offsets = offsets


async def stable_end(admin: Admin, output: TopicPartition) -> int:
    """Wait until the output partition's last stable offset is its end; that end.

    The worker has fenced its forerunner by now, so an open transaction of the stage is being ended by the coordinator. One
    of somebody else may last: then KafkaError is raised, for the lane to try again and not to hold up others.
    """
    began = time.monotonic()
    while True:
        end = await admin.end_offset(output)
        stable = await admin.end_offset(output, "read_committed")
        if stable >= end:  # it is asked for later, and others may write meanwhile
            return end
        if time.monotonic() - began > STABLE_PATIENCE_S:
            raise KafkaError(
                ErrorCode.UNSTABLE_OFFSET_COMMIT,
                f"a transaction is open in `{output[0]}` partition {output[1]} from offset {stable} on; waits for its end "
                "(`kafka-transactions.sh find-hanging` says whose it is)",
            )
        await asyncio.sleep(STABLE_PAUSE_S)


async def repair(
    admin: Admin,
    tp: TopicPartition,
    output: TopicPartition,
    store: IdStore,
    source: IdSource,
    note: Note,
    max_bytes: int,
    committed: DedupePosition,
    last_output: BatchMark | None,
) -> int:
    """Read committed output from where the store is complete to the end; how many records were read.

    `tp` is the input partition. `note` puts ids into the store, with the output offset that it is then complete to.
    `max_bytes` are read at once. `last_output` is the mark of an output batch whose ids the store has.
    Raises UnknownIds when the output no longer has what the store lacks, or has it in a batch that can't be opened and that
    nobody has accepted; OperatorNeeded when it never had what the store has, KafkaError, RocksError.
    """
    logger = log.get(__name__, topic=output[0], partition=output[1])
    end = await stable_end(admin, output)
    start = await admin.start_offset(output)
    if store.reaches_to > end:
        raise OperatorNeeded(
            f"the store has ids up to output offset {store.reaches_to}, but `{output[0]}` partition {output[1]} ends "
            f"at {end}: the topic was cut back; {hints.to_rebuild(tp)}"
        )
    why = "" if last_output is None else await differs(admin, output, last_output, last_output.offset + 1)
    if why:
        raise OperatorNeeded(
            f"the store has the ids of another log than `{output[0]}` partition {output[1]} is now: {why}; was a copy put "
            f"back? Records that the log has lost would be dropped as repeats: {hints.to_rebuild(tp)}"
        )
    unknown = committed.unknown_ids(store.complete_to, start)
    if unknown:
        raise UnknownIds(unknown, tp)
    if committed.accepted and store.complete_to < start:
        logger.warning("ids of output offsets %s are unknown, as an operator has accepted", committed.accepted)
    position, read = max(store.complete_to, start), 0
    if position >= end:
        return 0
    logger.info("repairs the store from output offsets %d to %d", position, end)
    async with Fetcher(admin, {output: position}, isolation="read_committed", partition_max_bytes=max_bytes) as fetcher:
        while position < end:
            for fetched in await fetcher.fetch():
                corrupt: list[RawBatch] = []
                ids = await asyncio.to_thread(ids_of, fetched.batches, source, corrupt)
                behind = fetched.next_offset
                if fetched.corrupt is not None:
                    corrupt.append(fetched.corrupt)
                    behind = fetched.corrupt.last_offset + 1
                for batch in corrupt:
                    offsets = max(batch.base_offset, position), batch.last_offset
                    if not committed.has_accepted(*offsets):
                        raise UnknownIds(f"{offsets[0]}..{offsets[1]}", tp, ", since the batch there can't be opened")
                    logger.warning("the batch at output offset %d can't be opened, as an operator has accepted", offsets[0])
                await note(ids, behind)
                read += len(ids.null)
                position = behind
                failpoint(REPAIRING)
                if fetched.corrupt is not None:
                    fetcher.seek(output, position)
                elif fetched.error is not None:
                    raise fetched.error
    logger.info("repaired: %d records read", read)
    return read


def expires_soon(store: IdStore, output_start: int) -> bool:
    """Whether the output that only memory has ids of is about to go: its log starts as close to it as it is long."""
    only_in_memory = store.complete_to - store.kept_to
    return only_in_memory > 0 and output_start > max(0, store.kept_to - only_in_memory)


def ids_of(batches: Sequence[RawBatch], source: IdSource, corrupt: list[RawBatch]) -> Column:
    """The ids of all records of output batches; those that can't be opened are appended to `corrupt`."""
    return join([join([source.column(columns)]) for _, columns in open_batches(batches, corrupt)])
