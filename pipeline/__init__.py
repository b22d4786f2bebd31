"""Producers, consumers and the nightly ETL: clients of any cluster that speaks Kafka's protocol.

The names below are the public ones, imported at their first use so that a part pays only for what it takes. Start with
`Producer` and `Consumer` (synchronous). The asyncio core under them is for stages that move batches unopened:
`Client` and `Admin`, `Fetcher` (raw batches out), `TransactionalSender` (raw batches in, exactly once).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "penstock.pipeline":
    raise ImportError("`pipeline` is a part of penstock: `import penstock.pipeline`")

if TYPE_CHECKING:
    from penstock.pipeline.admin import Admin
    from penstock.pipeline.client import Client
    from penstock.pipeline.consumer import Consumer, ConsumerRecord, RottenBatch
    from penstock.pipeline.fetcher import Fetched, Fetcher
    from penstock.pipeline.producer import Producer, RecordMetadata
    from penstock.pipeline.transaction import Fenced, TransactionalSender

__all__ = [
    "Admin",
    "Client",
    "Consumer",
    "ConsumerRecord",
    "Fenced",
    "Fetched",
    "Fetcher",
    "Producer",
    "RecordMetadata",
    "RottenBatch",
    "TransactionalSender",
]

_MODULES = {
    "Admin": "admin",
    "Client": "client",
    "Consumer": "consumer",
    "ConsumerRecord": "consumer",
    "Fenced": "transaction",
    "Fetched": "fetcher",
    "Fetcher": "fetcher",
    "Producer": "producer",
    "RecordMetadata": "producer",
    "RottenBatch": "consumer",
    "TransactionalSender": "transaction",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module `{__name__}` has no `{name}`")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
