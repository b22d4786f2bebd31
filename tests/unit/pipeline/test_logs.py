"""What a client makes of a cluster's answers about a log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import KafkaError
from penstock.pipeline.clients import logs
from penstock.pipeline.clients.admin import Admin
from penstock.pyx.record.rawbatch import RawBatch
from penstock.pyx.wire.messages import FetchResponse
from support.logs import batch


def answers(monkeypatch: pytest.MonkeyPatch, *records: bytes) -> None:
    """Let fetches give these records, the last ones from then on, of a log that ends at 10."""
    left = list(records)

    async def fetch_at(*_: Any, **__: Any) -> FetchResponse.PartitionData:
        return FetchResponse.PartitionData(high_watermark=10, records=left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(logs, "fetch_at", fetch_at)


async def look(offset: int) -> RawBatch | None:
    admin = Admin("127.0.0.1:1", **{"default.api.timeout.ms": 500})
    try:
        return await logs.batch_at(admin, ("t", 0), offset)
    finally:
        await admin.close()


def test_an_empty_answer_below_the_end_says_nothing_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka gives one while it reads the batch from remote storage."""
    answers(monkeypatch, b"", b"", batch(3))
    found = asyncio.run(look(0))
    assert found is not None and found.record_count == 3
    answers(monkeypatch, b"")
    with pytest.raises(KafkaError, match="came back empty"):
        asyncio.run(look(0))
    assert asyncio.run(look(10)) is None
