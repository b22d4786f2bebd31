"""DescribeTopicPartitions shows the replicas that may lead though they are out of sync (KIP-966)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.broker import Cluster
from penstock.errors import ErrorCode
from penstock.pyx.wire import messages
from support.harness import WireConnection
from support.patience import until


def create(cluster: Cluster) -> None:
    """A topic `t` of one partition on all three brokers."""
    own = messages.CreateTopicsRequest
    there = own.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2, 3])
    topic = own.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=[there])
    with WireConnection(cluster.brokers[1].bootstrap) as connection:
        answer = connection.ask(own(topics=[topic], timeout_ms=60_000), 5)
    assert answer.topics[0].error_code == ErrorCode.NONE


def describe(cluster: Cluster, broker: int) -> Any:
    """The partition as a broker's DescribeTopicPartitions has it."""
    own = messages.DescribeTopicPartitionsRequest
    with WireConnection(cluster.brokers[broker].bootstrap) as connection:
        answer = connection.ask(own(topics=[own.TopicRequest(name="t")]), 0)
    return answer.topics[0].partitions[0]


def has_isr(cluster: Cluster, broker: int, *isr: int) -> bool:
    """Whether a broker shows that ISR."""
    return set(describe(cluster, broker).isr_nodes) == set(isr)


def test_replicas_that_may_lead_out_of_sync_are_shown(tmp_path: Path) -> None:
    """While too few are in sync, a replica that leaves the ISR may lead all the same."""
    with Cluster(properties={"min.insync.replicas": 2}, data=tmp_path) as cluster:
        create(cluster)
        until(lambda: has_isr(cluster, 1, 1, 2, 3), "all to be in sync")
        whole = describe(cluster, 1)
        assert (whole.eligible_leader_replicas, whole.last_known_elr) == ([], [])
        cluster.kill(3, expire=True)
        until(lambda: has_isr(cluster, 1, 1, 2), "one to be out")
        assert describe(cluster, 1).eligible_leader_replicas == [], "enough are in sync"
        cluster.kill(2, expire=True)
        until(lambda: describe(cluster, 1).eligible_leader_replicas == [2], "the last one that left to be eligible")
        assert has_isr(cluster, 1, 1)
        cluster.start(2, 3)
        for broker in (1, 2, 3):
            until(lambda broker=broker: has_isr(cluster, broker, 1, 2, 3), "all to be in sync")  # type: ignore[misc]
            shown = describe(cluster, broker)
            assert (shown.eligible_leader_replicas, shown.last_known_elr) == ([], [])
