"""kafka-go's own tests: an older client with versions of its own for each API, which it writes out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from suite import FetchError, Outcome, Run, call, go_module

from suites import go_tests

NEEDS = "go; the broker must be localhost:9092 (it is written into the tests)"
MODULE, VERSION = "github.com/segmentio/kafka-go", "v0.4.51"
ADDRESS = "localhost:9092"
TESTS = (
    "^Test(Client|Alter|Conn|Delete|Describe|Elect|Incremental|List|Metadata|Offset|ConsumerGroup|Writer|Produce|Fetch"
    "|Join|Txn|Transport|Dialer|Message|Init|EndTxn|AddOff|AddPart|Leave|Sync|Heart|Raw|Validate|Batch|Commit)"
)


def run(run: Run) -> Iterator[Outcome]:
    """Outcomes of its tests, when all are done. Raises FetchError when the broker is elsewhere."""
    if run.bootstrap != ADDRESS:
        raise FetchError(f"kafka-go's tests know only {ADDRESS}; the broker is {run.bootstrap}")
    package: Path = go_module(run.cache, MODULE, VERSION)
    call(["go", "mod", "tidy"], package)
    yield from go_tests.outcomes(run, package, TESTS, KAFKA_VERSION="3.7.0")
