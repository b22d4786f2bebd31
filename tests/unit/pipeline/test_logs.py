"""What a client makes of a cluster's answers about a log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import KafkaError
from penstock.pipeline.clients.admin import Admin
from penstock.pyx.record.rawbatch import RawBatch
from penstock.pyx.wire import messages
from penstock.pyx.wire.message import Message
from support.logs import batch

END = 10


class OneLeader(Admin):
    """A client of a leader whose fetches give these records, the last ones from then on. Its log ends at 10."""

    def __init__(self, high_watermark: int, *records: bytes) -> None:
        super().__init__("127.0.0.1:1", **{"default.api.timeout.ms": 500})
        self._high_watermark = high_watermark
        self._records = list(records)

    async def leader(self, topic: str, partition: int, *, timeout_ms: float | None = None) -> int:
        return 1

    async def send(self, node_id: int, request: Message, **options: Any) -> Any:
        if isinstance(request, messages.FetchRequest):
            records = self._records.pop(0) if len(self._records) > 1 else self._records[0]
            part = messages.FetchResponse.PartitionData(high_watermark=self._high_watermark, records=records)
            topic = messages.FetchResponse.FetchableTopicResponse(topic="t", partitions=[part])
            return messages.FetchResponse(responses=[topic])
        own = messages.ListOffsetsResponse
        answer = own.ListOffsetsPartitionResponse(partition_index=0, offset=END)
        return own(topics=[own.ListOffsetsTopicResponse(name="t", partitions=[answer])])


def look(offset: int, high_watermark: int, *records: bytes) -> RawBatch | None:
    """The batch at an offset, if the log has one."""

    async def ask() -> RawBatch | None:
        admin = OneLeader(high_watermark, *records)
        try:
            return await admin.batch_at(("t", 0), offset)
        finally:
            await admin.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("high_watermark", [END, 0])
def test_an_empty_answer_below_the_end_says_nothing_of_the_log(high_watermark: int) -> None:
    """Kafka gives one while it reads the batch from remote storage. A new leader, whose high watermark is older than what the
    one before has shown, gives one too."""
    found = look(0, high_watermark, b"", b"", batch(3))
    assert found is not None and found.record_count == 3
    with pytest.raises(KafkaError, match="came back empty"):
        look(0, high_watermark, b"")
    assert look(END, high_watermark, b"") is None
