"""Producers, consumers and the nightly ETL: clients of any cluster that speaks Kafka's protocol.

The names below are the public ones, imported at their first use so that a part pays only for what it takes. Start with
`Producer` and `Consumer` (synchronous). The asyncio core under them is for stages that move batches unopened:
`Client` and `Admin`, `Fetcher` (raw batches out), `TransactionalSender` (raw batches in, exactly once). In reading order:

job        the one file that describes a pipeline
idfields   where dedupe finds a record's id, as the file says it
options    the options that commands share: the file, `--set`, `--timeout`, `--json`
service    the life of a service process, its figures and health meanwhile
clients/   producers, consumers, and the asyncio core under them
stages/    what mirror and dedupe share: lanes, positions, topics
etl/       the nightly load
audit/     counts of records at every hop
commands/  the daily commands
demo/      the main job on real data
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "penstock.pipeline":
    raise ImportError("`pipeline` is a part of penstock: `import penstock.pipeline`")

if TYPE_CHECKING:
    from penstock.config import ConfigError
    from penstock.errors import ErrorCode, KafkaError
    from penstock.pipeline.clients.admin import Admin
    from penstock.pipeline.clients.client import Client
    from penstock.pipeline.clients.consumer import Consumer
    from penstock.pipeline.clients.delivery import BulkDelivery, Delivery
    from penstock.pipeline.clients.fetcher import Fetched, Fetcher
    from penstock.pipeline.clients.interceptors import Interceptor
    from penstock.pipeline.clients.partitionbuffer import ConsumerRecord, CorruptBatchError, PolledColumns
    from penstock.pipeline.clients.positions import Gaps
    from penstock.pipeline.clients.producer import Producer
    from penstock.pipeline.clients.producerrecord import ProducerRecord, QueuedBatch, RecordMetadata
    from penstock.pipeline.clients.queuehandler import QueueHandler
    from penstock.pipeline.clients.recordid import new_record_id
    from penstock.pipeline.clients.simpleconsumer import FetchedRecords, FetchFrom, SimpleConsumer
    from penstock.pipeline.clients.streams import ConsumerConnector, MessageStream
    from penstock.pipeline.clients.subscription import TopicFilter
    from penstock.pipeline.clients.transaction import Fenced, TransactionalSender
    from penstock.pipeline.clients.truncation import LogTruncatedError

__all__ = [
    "EARLIEST",
    "LATEST",
    "Admin",
    "BulkDelivery",
    "Client",
    "ConfigError",
    "Consumer",
    "ConsumerConnector",
    "ConsumerRecord",
    "CorruptBatchError",
    "Delivery",
    "ErrorCode",
    "Fenced",
    "FetchFrom",
    "Fetched",
    "FetchedRecords",
    "Fetcher",
    "Gaps",
    "Interceptor",
    "KafkaError",
    "LogTruncatedError",
    "MessageStream",
    "PolledColumns",
    "Producer",
    "ProducerRecord",
    "QueueHandler",
    "QueuedBatch",
    "RecordMetadata",
    "SimpleConsumer",
    "TopicFilter",
    "TransactionalSender",
    "new_record_id",
]

_MODULES = {
    "EARLIEST": ".clients.admin",
    "LATEST": ".clients.admin",
    "Admin": ".clients.admin",
    "BulkDelivery": ".clients.delivery",
    "Client": ".clients.client",
    "ConfigError": "penstock.config",
    "Consumer": ".clients.consumer",
    "ConsumerConnector": ".clients.streams",
    "ConsumerRecord": ".clients.partitionbuffer",
    "CorruptBatchError": ".clients.partitionbuffer",
    "Delivery": ".clients.delivery",
    "ErrorCode": "penstock.errors",
    "Fenced": ".clients.transaction",
    "FetchFrom": ".clients.simpleconsumer",
    "Fetched": ".clients.fetcher",
    "FetchedRecords": ".clients.simpleconsumer",
    "Fetcher": ".clients.fetcher",
    "Gaps": ".clients.positions",
    "Interceptor": ".clients.interceptors",
    "KafkaError": "penstock.errors",
    "LogTruncatedError": ".clients.truncation",
    "MessageStream": ".clients.streams",
    "PolledColumns": ".clients.partitionbuffer",
    "Producer": ".clients.producer",
    "ProducerRecord": ".clients.producerrecord",
    "QueueHandler": ".clients.queuehandler",
    "QueuedBatch": ".clients.producerrecord",
    "RecordMetadata": ".clients.producerrecord",
    "SimpleConsumer": ".clients.simpleconsumer",
    "TopicFilter": ".clients.subscription",
    "TransactionalSender": ".clients.transaction",
    "new_record_id": ".clients.recordid",
}


EARLIEST: int
"""In place of a timestamp, the first offset of a log: `Consumer.seek_to`, `SimpleConsumer.get_offsets_before`."""
LATEST: int
"""In place of a timestamp, the offset that a log's next record will have."""


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module `{__name__}` has no `{name}`")
    return getattr(importlib.import_module(module, __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
