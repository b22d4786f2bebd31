"""After a crash: put what the output topic has and the store lacks into the store, before any input is looked at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from penstock import log
from penstock.dedupe.ids import IdSource
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pipeline.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.client import TopicPartition
from penstock.pipeline.fetcher import Fetcher
from penstock.pipeline.lanes import OperatorNeeded
from penstock.pyx.columns import decode
from penstock.pyx.rocks import IdStore

STABLE_PAUSE_S = 0.05
REPAIRING = declare("dedupe.repairing", "some of the output's ids are in the store, not all")
REPAIRED = declare("dedupe.repaired", "the store has all of the output's ids, no input was read")


async def stable_end(admin: Admin, output: TopicPartition) -> int:
    """Wait until the output partition's last stable offset is its end; that end.

    The worker has fenced its forerunner by now, so an open transaction is being ended by the coordinator.
    """
    while True:
        end = (await admin.list_offsets({output: LATEST}))[output].offset
        stable = (await admin.list_offsets({output: LATEST}, isolation="read_committed"))[output].offset
        if stable == end:
            return end
        await asyncio.sleep(STABLE_PAUSE_S)


async def repair(
    admin: Admin, output: TopicPartition, store: IdStore, source: IdSource, spill: Callable[[], Awaitable[None]]
) -> int:
    """Read committed output from where the store is complete to the end, and add its ids; how many records were read.

    Raises OperatorNeeded when the output no longer has what the store lacks and never had, KafkaError, RocksError.
    """
    logger = log.get("dedupe", topic=output[0], partition=output[1])
    end = await stable_end(admin, output)
    start = (await admin.list_offsets({output: EARLIEST}))[output].offset
    if store.complete_to > end:
        raise OperatorNeeded(
            f"the store is complete to output offset {store.complete_to}, but `{output[0]}` partition {output[1]} ends "
            f"at {end}: the topic was created anew or cut back; remove the store's folder to rebuild it from the topic"
        )
    if store.complete_to < start and store.complete_to > 0:
        logger.warning(f"output offsets {store.complete_to} to {start} have expired: their ids are unknown")
    position, read = max(store.complete_to, start), 0
    if position >= end:
        return 0
    logger.info(f"repairs the store from output offsets {position} to {end}")
    fetcher = Fetcher(admin, isolation="read_committed")
    fetcher.assign({output: position})
    try:
        while position < end:
            for fetched in await fetcher.fetch():
                if fetched.error is not None:
                    raise fetched.error
                if fetched.batches:
                    columns = await asyncio.to_thread(decode, fetched.batches)
                    ids = source.column(columns)
                    position = fetched.next_offset
                    store.add(ids.data, ids.starts, ids.null, position, time.time_ns() // 1_000_000)
                    read += len(columns)
                    failpoint(REPAIRING)
                    await spill()
                position = fetched.next_offset
    finally:
        await fetcher.close()
    logger.info(f"repaired: {read} records read")
    return read


def missing_topic(topic: str) -> KafkaError:
    """The error of a topic that is not there."""
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic `{topic}`")
