"""The public names of the client library, on purpose."""

from __future__ import annotations

import pytest

import penstock.pipeline as pipeline
from penstock.pipeline.clients import admin

CONSTANTS = "EARLIEST LATEST"
PUBLIC = """
Admin BulkDelivery Client ConfigError Consumer ConsumerConnector ConsumerRecord CorruptBatchError Delivery ErrorCode Fenced
FetchFrom Fetched FetchedRecords Fetcher Gaps Interceptor KafkaError LogTruncatedError MessageStream PolledColumns Producer
ProducerRecord QueueHandler QueuedBatch RecordMetadata SimpleConsumer TopicFilter TransactionalSender
new_record_id
"""


def test_public_names() -> None:
    assert pipeline.__all__ == [*CONSTANTS.split(), *PUBLIC.split()]
    for name in PUBLIC.split():
        assert getattr(pipeline, name).__name__ == name
    for name in CONSTANTS.split():
        assert getattr(pipeline, name) == getattr(admin, name)


def test_public_names_are_listed() -> None:
    """By `dir`, and where an interactive Python completes a name."""
    assert set(pipeline.__all__) <= set(dir(pipeline))


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = pipeline.Nonsense
