"""Small compacted topics of ours on a cluster, of which the newest record of each key counts: read whole."""

from __future__ import annotations

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pyx.record.rawbatch import BatchError, records


async def newest(admin: Admin, topic: str) -> dict[bytes, bytes | None]:
    """The newest committed value of each key; nothing where the topic isn't there. Raises KafkaError."""
    found = (await admin.metadata([topic], refresh=True)).topics.get(topic)
    tps = [] if found is None else [(topic, number) for number in sorted(found.partitions)]
    if not tps:
        return {}
    starts = {tp: at.offset for tp, at in (await admin.list_offsets(dict.fromkeys(tps, EARLIEST))).items()}
    ends = {tp: at.offset for tp, at in (await admin.list_offsets(dict.fromkeys(tps, LATEST), "read_committed")).items()}
    values: dict[bytes, bytes | None] = {}
    unread = {tp: start for tp, start in starts.items() if start < ends[tp]}
    try:
        async with Fetcher(admin, unread, isolation="read_committed") as fetcher:
            while left := {tp: at for tp, at in fetcher.assigned().items() if at < ends[tp]}:
                fetcher.assign(left)
                for fetched in await fetcher.fetch():
                    if fetched.error is not None:
                        raise fetched.error
                    values |= {record.key or b"": record.value for batch in fetched.batches for record in records(batch)}
    except BatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"`{topic}`: {error}") from None
    return values
