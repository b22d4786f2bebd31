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
    from penstock.pipeline.clients.admin import Admin
    from penstock.pipeline.clients.client import Client
    from penstock.pipeline.clients.consumer import Consumer, ConsumerRecord, CorruptBatchError
    from penstock.pipeline.clients.fetcher import Fetched, Fetcher
    from penstock.pipeline.clients.interceptors import Interceptor
    from penstock.pipeline.clients.producer import Producer
    from penstock.pipeline.clients.producerrecord import ProducerRecord, QueuedBatch, RecordMetadata
    from penstock.pipeline.clients.queuehandler import QueueHandler
    from penstock.pipeline.clients.recordid import new_record_id
    from penstock.pipeline.clients.simpleconsumer import SimpleConsumer
    from penstock.pipeline.clients.streams import ConsumerConnector
    from penstock.pipeline.clients.transaction import Fenced, TransactionalSender

__all__ = [
    "Admin",
    "Client",
    "Consumer",
    "ConsumerConnector",
    "ConsumerRecord",
    "CorruptBatchError",
    "Fenced",
    "Fetched",
    "Fetcher",
    "Interceptor",
    "Producer",
    "ProducerRecord",
    "QueueHandler",
    "QueuedBatch",
    "RecordMetadata",
    "SimpleConsumer",
    "TransactionalSender",
    "new_record_id",
]

_MODULES = {
    "Admin": "clients.admin",
    "Client": "clients.client",
    "Consumer": "clients.consumer",
    "ConsumerConnector": "clients.streams",
    "ConsumerRecord": "clients.consumer",
    "Fenced": "clients.transaction",
    "Fetched": "clients.fetcher",
    "Fetcher": "clients.fetcher",
    "Interceptor": "clients.interceptors",
    "Producer": "clients.producer",
    "ProducerRecord": "clients.producerrecord",
    "QueueHandler": "clients.queuehandler",
    "QueuedBatch": "clients.producerrecord",
    "RecordMetadata": "clients.producerrecord",
    "CorruptBatchError": "clients.consumer",
    "SimpleConsumer": "clients.simpleconsumer",
    "TransactionalSender": "clients.transaction",
    "new_record_id": "clients.recordid",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module `{__name__}` has no `{name}`")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
