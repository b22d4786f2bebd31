"""Producers, consumers and the nightly ETL: clients of any cluster that speaks Kafka's protocol.

The names below are the public ones, imported at their first use so that a part pays only for what it takes. Start with
`Producer` and `Consumer` (synchronous). The asyncio core under them is for stages that move batches unopened:
`Client` and `Admin`, `Fetcher` (raw batches out), `TransactionalSender` (raw batches in, exactly once). In reading order:

client       the asyncio core: connections, metadata, coordinators, when to try again
connection   one connection to a broker
backoff      pauses between tries
metadata     what a client knows of a cluster: brokers, topics, leaders
properties   the clients' properties: Kafka's names and defaults
admin        topics, configs, offsets, groups
fetcher      raw batches out of a cluster
sender       batches to partition leaders, in order, sent again as the same bytes
transaction  raw batches in, exactly once
partitioner  which partition a record goes to
outgoing     records to send, as columns
recordid     ids for records that have none
producer     `Producer`
consumer     `Consumer`
group        a consumer's membership of its group
assignors    how a group's leader shares partitions out
background   an asyncio loop in a thread, under the synchronous clients
service      the life of a service process
stage        mirror and dedupe as processes: set out, go on, close
job          the one file that describes a pipeline
topics       which topics are copied, and what they are called on the target
lanes        partitions on their way through a stage: mirror and dedupe share it
completion   what a stop lets come to its end: turns, commits
patience     how long a command waits for a cluster: `--timeout`
held         what the lanes of a process hold, and when nothing more is fetched
standing     partitions that stand still: why, or that nobody says so
sourcelog    the log that a lane reads, held against what its position notes of it
ranges       ranges of offsets as a position notes them
recordcount  how many records a batch holds, and how many of them in some ranges
identity     taking a transactional id: for good, or again only if nobody else has it since
failures     what a failure calls for: another try, a start over, an operator
ourtopics    topics that stages make
quarantine   the topic of what doesn't go on, and of what operators decided
batches      a source batch with a new header, or rebuilt, as the target takes it
etl/         the nightly load
audit/       counts of records at every hop
commands/    the daily commands
demo/        the main job on real data
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "penstock.pipeline":
    raise ImportError("`pipeline` is a part of penstock: `import penstock.pipeline`")

if TYPE_CHECKING:
    from penstock.pipeline.admin import Admin
    from penstock.pipeline.client import Client
    from penstock.pipeline.consumer import Consumer, ConsumerRecord, CorruptBatchError
    from penstock.pipeline.fetcher import Fetched, Fetcher
    from penstock.pipeline.producer import Producer, RecordMetadata
    from penstock.pipeline.recordid import new_record_id
    from penstock.pipeline.transaction import Fenced, TransactionalSender

__all__ = [
    "Admin",
    "Client",
    "Consumer",
    "ConsumerRecord",
    "CorruptBatchError",
    "Fenced",
    "Fetched",
    "Fetcher",
    "Producer",
    "RecordMetadata",
    "TransactionalSender",
    "new_record_id",
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
    "CorruptBatchError": "consumer",
    "TransactionalSender": "transaction",
    "new_record_id": "recordid",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module `{__name__}` has no `{name}`")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
