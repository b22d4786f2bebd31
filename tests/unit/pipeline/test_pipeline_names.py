"""The public names of the client library, on purpose."""

from __future__ import annotations

import pytest

import penstock.pipeline as pipeline

PUBLIC = """
Admin Client Consumer ConsumerConnector ConsumerRecord CorruptBatchError Fenced Fetched Fetcher Interceptor Producer
ProducerRecord QueueHandler QueuedBatch RecordMetadata SimpleConsumer TransactionalSender
new_record_id
"""


def test_public_names() -> None:
    assert pipeline.__all__ == PUBLIC.split()
    for name in pipeline.__all__:
        assert getattr(pipeline, name).__name__ == name


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = pipeline.Nonsense
