"""The line that says what retention deleted: how much, by which config, and how new its newest record was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire.messages import DeleteRecordsRequest, ProduceRequest
from support.asking import create
from support.harness import BrokerProcess, WireConnection
from support.patience import until

OFTEN = {"log.retention.check.interval.ms": 100, "log.initial.task.delay.ms": 0}
LONG_AGO_MS, LONG_AGO = 1_577_836_800_250, "2020-01-01T00:00:00.250+00:00"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path_factory.mktemp("retention") / "data", OFTEN).start()
    yield made
    made.close()


def send(broker: BrokerProcess, topic: str) -> None:
    """Batches of records from long ago, each in a segment of its own."""
    for _ in range(3):
        builder = BatchBuilder()
        assert builder.append(b"k", b"v" * 900, LONG_AGO_MS)
        part = ProduceRequest.PartitionProduceData(index=0, records=builder.build())
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        with WireConnection(broker.bootstrap) as wire:
            answer = wire.ask(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def trim(broker: BrokerProcess, topic: str, before: int) -> None:
    """DeleteRecords of what comes before an offset."""
    part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=before)
    asked = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[part])
    with WireConnection(broker.bootstrap) as wire:
        answer = wire.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=30_000), 2)
    assert answer.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize(
    ("configs", "trims", "segments", "reason"),
    [
        ({"retention.ms": 3_600_000}, False, 3, "retention.ms"),
        ({"retention.ms": -1, "retention.bytes": 900}, False, 2, "retention.bytes"),
        ({"retention.ms": -1}, True, 2, "deleted records"),
        ({"retention.ms": -1, "cleanup.policy": "compact,delete", "retention.bytes": 900}, False, 2, "retention.bytes"),
        ({"cleanup.policy": "compact,delete", "retention.ms": 3_600_000}, False, 3, "retention.ms"),
    ],
    ids=["time", "size", "DeleteRecords", "compacted, size", "compacted, time"],
)
def test_each_reason_is_said(
    broker: BrokerProcess,
    new_topic: Callable[[str], str],
    configs: dict[str, Any],
    trims: bool,
    segments: int,
    reason: str,
) -> None:
    topic = new_topic("short")
    # Nothing is compacted meanwhile: a segment would be another one then.
    create(broker, topic, **{"internal.segment.bytes": 1000, "min.compaction.lag.ms": 10**15, **configs})
    send(broker, topic)
    if trims:
        trim(broker, topic, 2)
    line = re.compile(
        rf"INFO .*deleted (\d+) segments, (\d+) bytes topic={topic} partition=0: (.+); their newest record is of (.+)"
    )

    def said() -> list[tuple[str, ...]]:
        return line.findall(broker.log_text())

    # A round may come between two batches.
    until(lambda: sum(int(count) for count, *_ in said()) == segments, "the segments to go", broker.log_text)
    for count, size, why, newest in said():
        assert (why, newest) == (f"{count} by {reason}", LONG_AGO)
        assert int(size) >= 900 * int(count)


def test_several_reasons_are_counted_apart(tmp_path: Path) -> None:
    """What DeleteRecords left of a log goes by its size, in one round."""
    settings = {"log.retention.check.interval.ms": 3_600_000, "log.initial.task.delay.ms": 3_600_000}
    broker = BrokerProcess(tmp_path / "data", settings).start()
    try:
        create(broker, "both", **{"internal.segment.bytes": 1000, "retention.ms": -1, "retention.bytes": 0})
        send(broker, "both")
        trim(broker, "both", 1)
        assert broker.stop() == 0
        assert "deleted " not in broker.log_text()
        often = BrokerProcess(tmp_path / "data", OFTEN).start()
        try:
            words = "topic=both partition=0: 1 by deleted records, 2 by retention.bytes; "
            until(lambda: words in often.log_text(), "both reasons in one line", often.log_text)
        finally:
            often.close()
    finally:
        broker.close()
