"""What three brokers show of replication is what happened to them; what one deletes, all have deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from support.cluster_clients import write
from support.cluster_world import WAIT_S, ClusterProcesses, cluster
from support.patience import until
from support.scraping import Scrape, scrape_at
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka

REPLICAS = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"
OF_T: dict[str, object] = {"topic": "t", "partition": 0}


@pytest.fixture
def world(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three brokers that show themselves."""
    with cluster(zookeeper, tmp_path, penstock_http_listen="127.0.0.1:0") as made:
        yield made


def page(world: ClusterProcesses, number: int) -> Scrape:
    return scrape_at(f"http://{world.brokers[number].http}")


def total(world: ClusterProcesses, name: str) -> float:
    return sum(page(world, number)(name) for number, broker in world.brokers.items() if broker.running)


def reaches(world: ClusterProcesses, name: str, number: float) -> None:
    until(lambda: total(world, name) == number, f"{name} to be {number}", lambda: f"{total(world, name)}\n{world.log_text()}")


def test_each_figure_is_shown_by_the_broker_that_knows_it(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="3")
    leader = world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    write(world, "t")
    reaches(world, f"{CONTROLLER}activecontrollercount", 1)
    reaches(world, f"{CONTROLLER}globalpartitioncount", 1)
    reaches(world, f"{REPLICAS}leadercount", 1)
    reaches(world, f"{REPLICAS}partitioncount", 3)
    for number in world.brokers:
        until(lambda: 0 < page(world, number)("penstock_lease_left_seconds") <= 2 * 2 / 3, "a lease", world.log_text)  # noqa: B023
        found = page(world, number)
        assert found("kafka_brokers") == 3
        assert found("penstock_refused_truncations_total") == found("penstock_isolated_partitions") == 0
        assert (found.get("kafka_topic_partition_in_sync_replica", **OF_T) == 3) is (number == leader)
        assert (found("kafka_server_brokertopicmetrics_replicationbytesin_total") > 0) is (number != leader)
        requests = "kafka_network_requestmetrics_requests_total"
        assert any(row["request"] == "FetchFollower" for row, _ in found.rows(requests)) is (number == leader)
    for name in ("underreplicatedpartitions", "underminisrpartitioncount"):
        reaches(world, f"{REPLICAS}{name}", 0)
    follower = next(number for number in world.brokers if number != leader)
    world.brokers[follower].kill()
    for name in ("underreplicatedpartitions", "underminisrpartitioncount"):
        reaches(world, f"{REPLICAS}{name}", 1)
    assert page(world, leader)(f"{REPLICAS}underreplicatedpartitions") == 1
    assert page(world, leader)(f"{REPLICAS}isrshrinks_total") == 1
    world.brokers[follower].start()
    reaches(world, f"{REPLICAS}underreplicatedpartitions", 0)
    assert page(world, leader)(f"{REPLICAS}isrexpands_total") >= 1


def test_elections_are_counted_by_the_controller(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="1")
    world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    (controller,) = (number for number in world.brokers if page(world, number)(f"{CONTROLLER}activecontrollercount"))
    elections = "kafka_controller_controllerstats_leaderelectionrateandtimems_total"
    assert page(world, controller)(elections) == 0
    leader = world.until_led("t", by={1, 2, 3})
    while leader == controller:  # Whoever of the others leads then, and is the controller, is up to them.
        world.brokers[leader].stop()
        world.brokers[leader].start()
        world.until_known({1, 2, 3})
        leader = world.until_led("t", by={1, 2, 3} - {leader}, isr={1, 2, 3})
        (controller,) = (number for number in world.brokers if page(world, number)(f"{CONTROLLER}activecontrollercount"))
    before = page(world, controller)(elections)
    world.brokers[leader].kill()
    world.until_led("t", by={1, 2, 3} - {leader})
    assert page(world, controller)(elections) == before + 1
    assert page(world, controller)("kafka_controller_controllerstats_uncleanleaderelections_total") == 0


def test_lost_sessions_and_unclean_elections_are_counted(world: ClusterProcesses) -> None:
    sessions = "kafka_server_sessionexpirelistener_zookeeperexpires_total"
    unclean = "kafka_controller_controllerstats_uncleanleaderelections_total"
    reaches(world, unclean, 0)
    world.create("t", min_insync_replicas="1", unclean_leader_election_enable="true")
    leader = world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    before = page(world, leader)(sessions)
    world.pause(leader)
    other = world.until_led("t", by={1, 2, 3} - {leader})
    world.resume(leader)
    until(lambda: page(world, leader)(sessions) > before, "the lost session to be counted", world.log_text)
    world.until_led("t", by={other}, isr={1, 2, 3})
    last = next(number for number in world.brokers if number not in (leader, other))
    for number in (leader, last):
        world.brokers[number].kill()
    world.until_led("t", by={other}, isr={other})
    world.brokers[other].kill()
    world.brokers[last].start()
    world.until_led("t", by={last})
    reaches(world, unclean, 1)
    reaches(world, f"{CONTROLLER}offlinepartitionscount", 0)


def log_starts(world: ClusterProcesses) -> set[float | None]:
    return {page(world, number).get("kafka_log_log_logstartoffset", **OF_T) for number in world.brokers}


def test_deleted_records_are_deleted_in_all_live_replicas_once_that_is_answered(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="1")
    leader = world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    writer = write(world, "t")
    until(lambda: end_is_replicated(world, len(writer.answered)), "all replicas to have all", world.log_text)
    admin = world.admin()
    for before in (10, 20):
        partition = TopicPartition("t", 0, before)
        answer = admin.delete_records([partition], request_timeout=WAIT_S, operation_timeout=WAIT_S)[partition].result(WAIT_S)
        assert answer.low_watermark == before
        assert log_starts(world) == {before}
    follower = next(number for number in world.brokers if number != leader)
    world.pause(follower)
    try:
        partition = TopicPartition("t", 0, 30)
        with pytest.raises(KafkaException) as failed:
            admin.delete_records([partition], request_timeout=WAIT_S, operation_timeout=0.2)[partition].result(WAIT_S)
        assert failed.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
        # Once it is known to be gone, nobody waits for it.
        until(lambda: deletes(world, leader, 30), "the deletion without it", world.log_text)
    finally:
        world.resume(follower)
    starts = [log_starts(world)]

    def begin_there() -> bool:
        starts.append(log_starts(world))
        return starts[-1] == {30}

    until(begin_there, "the follower's log to begin there", lambda: f"{starts[0]} ... {starts[-1]}\n{world.log_text()}")


def deletes(world: ClusterProcesses, leader: int, before: int) -> bool:
    admin, partition = world.admin({leader}), TopicPartition("t", 0, before)
    try:
        admin.delete_records([partition], request_timeout=WAIT_S, operation_timeout=1)[partition].result(WAIT_S)
    except KafkaException:
        return False
    return True


def end_is_replicated(world: ClusterProcesses, end: int) -> bool:
    ends = {page(world, number).get("kafka_log_log_logendoffset", **OF_T) for number in world.brokers}
    return ends == {end}
