"""The first state of a topic's partition, when something came between it and the first log."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from penstock.broker.cluster.leaderandisr import LeaderAndIsr, state_json
from penstock.broker.uuids import new_uuid, uuid_text
from support.cluster_clients import check_answered, write
from support.cluster_world import WAIT_S, cluster
from support.zookeeper import ZooKeeper, connected

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("replicas", "elects"),
    [([2], False), ([2, 3], False), ([2], True)],
    ids=["one replica", "two replicas", "another controller"],
)
def test_a_topic_made_while_its_brokers_are_dead_serves_once_they_are_back(
    zookeeper: ZooKeeper, tmp_path: Path, replicas: list[int], elects: bool
) -> None:
    # Their sessions must last longer than a busy machine needs to make the topic: only brokers that count as live get replicas.
    with cluster(zookeeper, tmp_path, 3, zookeeper_session_timeout_ms=6_000) as world:
        if elects:  # The controller is to be another one, and is to end before the first leader has answered.
            world.brokers[2].kill()
            world.until_known({1, 3})
            world.brokers[2].start()
            world.until_known({1, 2, 3})
        for number in replicas:
            world.brokers[number].kill()
        admin = world.admin({1})
        made = admin.create_topics([NewTopic("t", 1, replica_assignment=[replicas])], request_timeout=10)
        with contextlib.suppress(KafkaException):  # It is made, though nobody leads it.
            made["t"].result(WAIT_S)
        world.until_known({1, 2, 3} - set(replicas))
        if elects:
            head = json.loads(world.node("/controller"))["brokerid"]
            world.brokers[head].kill()
            world.until_known({1, 3} - {head})
            world.brokers[head].start()
        for number in replicas:
            world.brokers[number].start()
        world.until_led("t", by=set(replicas), isr=set(replicas))
        check_answered(world, "t", write(world, "t"))
        assert (world.state("t")["unclean"], world.state("t")["unclean_epoch"]) == ([], -1)


def test_a_late_write_for_a_deleted_topic_is_no_state_of_the_next_one(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """The state of a topic that is gone was written into the next one's node: that one begins above its epoch."""
    with cluster(zookeeper, tmp_path, 2) as world:
        state = LeaderAndIsr(1, 5, (1, 2), topic_id=new_uuid())
        topic = {
            "version": 3, "topic_id": uuid_text(new_uuid()), "partitions": {"0": [1, 2]},
            "adding_replicas": {}, "removing_replicas": {},
        }  # fmt: skip
        with connected(world.servers) as client:
            made = client.transaction()
            made.create("/brokers/topics/t", json.dumps(topic).encode())
            for path, data in (("", b""), ("/0", b""), ("/0/state", state_json(state))):
                made.create(f"/brokers/topics/t/partitions{path}", data)
            assert not [one for one in made.commit() if isinstance(one, Exception)]
        world.until_led("t", by={1, 2}, isr={1, 2})
        check_answered(world, "t", write(world, "t"))
        assert world.state("t")["topic_id"] == topic["topic_id"] and world.state("t")["leader_epoch"] > state.leader_epoch
