"""Topics that go while a broker is away: it removes what is noted as deleted, and sets aside what it can't know."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from kazoo.exceptions import NoNodeError

from penstock.broker.replication.topicdeletions import EMPTIED
from penstock.failpoints import ENVIRONMENT
from support.cluster_clients import check_answered, write
from support.cluster_world import WAIT_S, ClusterProcesses, cluster
from support.patience import until
from support.zookeeper import ZooKeeper, connected

pytestmark = pytest.mark.kafka


def test_a_broker_that_was_away_removes_what_was_deleted(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, auto_create_topics_enable=False) as world:
        for name in ("t", "kept"):
            world.create(name, 2, 3)
            world.until_led(name, by={1, 2, 3}, isr={1, 2, 3})
        writer = write(world, "kept")
        for number in (2, 3):
            world.brokers[number].kill()
        world.until_known({1})
        admin = world.admin({1})
        admin.delete_topics(["t"])["t"].result(WAIT_S)
        for number in (2, 3):
            assert len(list(world.brokers[number].data.glob("t-*"))) == 2
            world.brokers[number].start()
        for number in (2, 3):
            until(partial(lies, world, number, "t-*", 0), f"broker {number} without the topic", world.log_text)
        until(lambda: not children(world, "/penstock/deleted"), "the note removed", world.log_text)
        world.until_led("kept", by={1, 2, 3}, isr={1, 2, 3})
        check_answered(world, "kept", writer)


def test_a_deletion_whose_controllers_are_killed_one_after_the_other_goes_on(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """250 partitions: their nodes need more than one multi, and each controller dies when only the topic's own is left."""
    with cluster(zookeeper, tmp_path, 2, auto_create_topics_enable=False) as world:
        for broker in world.brokers.values():
            assert broker.stop() == 0
            broker.environment[ENVIRONMENT] = f"{EMPTIED}=kill"
            broker.start()
            world.until_known({1, 2})
        world.create("t", 250, 1)
        world.create("kept", 1, 2)
        admin = world.admin()
        with pytest.raises(KafkaException):
            admin.delete_topics(["t"], request_timeout=10)["t"].result(WAIT_S)
        until(lambda: not any(broker.running for broker in world.brokers.values()), "both killed", world.log_text)
        for broker in world.brokers.values():
            broker.close()
            broker.environment.clear()
            broker.start()
        until(lambda: not children(world, "/admin/delete_topics"), "the deletion done", world.log_text)
        assert children(world, "/brokers/topics") == ["kept"]
        for number in world.brokers:
            until(partial(lies, world, number, "t-*", 0), f"broker {number} without the topic", world.log_text)
            until(partial(names, world, number, {"kept"}), f"broker {number} to show what is there", world.log_text)
        world.until_led("kept", by={1, 2}, isr={1, 2})
        world.create("t", 1, 2)
        world.until_led("t", by={1, 2}, isr={1, 2})


def names(world: ClusterProcesses, number: int, expected: set[str]) -> bool:
    """Whether a broker shows these topics."""
    return set(world.admin({number}).list_topics(timeout=5).topics) == expected


def lies(world: ClusterProcesses, number: int, pattern: str, count: int) -> bool:
    """Whether a broker has so many of such folders."""
    return len(list(world.brokers[number].data.glob(pattern))) == count


def children(world: ClusterProcesses, path: str) -> list[str]:
    """The names of a node's children."""
    with connected(world.servers) as client:
        names: list[str] = client.get_children(path)
        return names


def test_what_the_store_does_not_know_is_set_aside_and_taken_back(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, 2, auto_create_topics_enable=False) as world:
        world.create("t", 1, 2)
        world.until_led("t", by={1, 2}, isr={1, 2})
        writer = write(world, "t")
        paths = [f"/brokers/topics/t{below}" for below in ("", "/partitions", "/partitions/0", "/partitions/0/state")]
        nodes = {path: world.node(path) for path in paths}
        for broker in world.brokers.values():
            assert broker.stop() == 0
        with connected(world.servers) as client:
            client.delete(paths[0], recursive=True)
            for broker in world.brokers.values():
                broker.start()
            for number, broker in world.brokers.items():
                until(partial(lies, world, number, "t-0.*-stray", 1), "it set aside", world.log_text)
                assert not (broker.data / "t-0").exists()
            with pytest.raises(NoNodeError):
                world.node(paths[0])
            made = client.transaction()  # In one step: a controller gives a topic without states new ones.
            for path, data in nodes.items():
                made.create(path, data)
            assert not [one for one in made.commit() if isinstance(one, Exception)]
        world.until_led("t", by={1, 2}, isr={1, 2})
        check_answered(world, "t", writer)
        for broker in world.brokers.values():
            assert (broker.data / "t-0").is_dir() and not list(broker.data.glob("*-stray"))
