"""What a broker writes has one order in each process, whatever Python makes of a set's order there (PYTHONHASHSEED)."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.topic import GROUP_OFFSETS
from penstock.pyx.record.rawbatch import records, split
from penstock.pyx.wire.messages import DeleteTopicsRequest, OffsetCommitRequest
from support.asking import create
from support.harness import BrokerProcess, WireConnection

PARTITIONS = 12
Make = Callable[..., BrokerProcess]


def keys(broker: BrokerProcess) -> list[bytes]:
    """Of all records in the log of groups, in its order. The broker is stopped for that."""
    assert broker.stop() == 0
    (segment,) = broker.data.glob(f"{GROUP_OFFSETS}-0/*.log")
    return [record.key or b"" for raw in split(segment.read_bytes()) for record in records(raw)]


def test_tombstones_of_a_deleted_topics_offsets_come_in_one_order(make_broker: Make) -> None:
    own = OffsetCommitRequest
    parts = [own.OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(PARTITIONS)]
    topic = own.OffsetCommitRequestTopic(name="t", partitions=parts)
    for seed in ("1", "2"):
        broker = make_broker(seed, {"PYTHONHASHSEED": seed}, **{"offsets.topic.num.partitions": 1})
        create(broker, "t", partitions=PARTITIONS)
        with WireConnection(broker.bootstrap) as wire:
            commit = own(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])
            assert {one.error_code for one in wire.ask(commit, 8).topics[0].partitions} == {0}
            assert wire.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=60_000), 5).responses[0].error_code == 0
        found = keys(broker)
        assert len(set(found)) == PARTITIONS and found == 2 * found[:PARTITIONS]
