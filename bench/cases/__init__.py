"""All cases, in the order in which they run: short ones first, the long one last.

produce    ready-made batches from a client that costs next to nothing
consume    reads from the page cache, and a cold reader beside others
latency    how long an acknowledgement takes
clients    librdkafka, and the performance tools of Apache Kafka
lifecycle  start, memory, coming back after kill -9, many partitions
steps      where the CPU time of a request goes, by sampling
functions  the log's own functions in tight loops
linkedin   the rows that LinkedIn published in 2014
many       many partitions, groups and producers; a log past its retention

Those of the pipeline:

mirror     a topic copied exactly once, beside MirrorMaker 2
dedupe     the stage with many ids in its store, and the store alone
flush      what a flush of each transaction costs mirror and dedupe
pipelineclients  our Python clients, beside confluent-kafka
nights     a night beside a bare Spark job that does the same

Those of clusters:

cluster    three brokers: replicated produce, catching up, and how long nothing is acknowledged when one is lost
"""

from __future__ import annotations

from penstock.bench.case import Case
from penstock.bench.cases import (
    clients,
    cluster,
    consume,
    dedupe,
    flush,
    functions,
    latency,
    lifecycle,
    linkedin,
    many,
    mirror,
    nights,
    pipelineclients,
    produce,
    steps,
)

_BY_NAME = {case.name: case for case in (*produce.CASES, *consume.CASES)}

BROKER_CASES: list[Case] = [
    *produce.CASES,
    *consume.CASES,
    *latency.CASES,
    *clients.CASES,
    *lifecycle.CASES,
    *(steps.Steps(_BY_NAME[name]) for name in ("produce-1m", "produce-16k", "request-5", "consume-1")),
    *functions.CASES,
    *linkedin.CASES,
    *many.CASES,
]

PIPELINE_CASES: list[Case] = [
    *mirror.CASES,
    *dedupe.CASES,
    *flush.CASES,
    *nights.CASES,
    *pipelineclients.CASES,
]

CLUSTER_CASES: list[Case] = [*cluster.CASES, *linkedin.CLUSTER_CASES]

CASES = {"broker": BROKER_CASES, "pipeline": PIPELINE_CASES, "cluster": CLUSTER_CASES}
