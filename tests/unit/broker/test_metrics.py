"""What a broker shows by HTTP is what happened to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import metrics
from penstock.broker import Broker
from penstock.broker.metrics.families import FAMILIES
from penstock.pyx.wire.messages import OffsetCommitRequest
from support.asking import delete_records, produce
from support.harness import BrokerProcess, WireConnection
from support.one_partition import create
from support.pagecache import drop_cache_or_skip
from support.patience import until
from support.scraping import Scrape, page_at, parsed, scrape_at

HTTP = {"penstock.http.listen": "127.0.0.1:0"}
TOPICS = "kafka_server_brokertopicmetrics"
GROUP = "kafka_consumergroup"
HOUR_MS = 3_600_000

MakeBroker = Callable[..., BrokerProcess]


def commit(broker: BrokerProcess | Broker, group: str, topic: str, offset: int) -> None:
    """As a client outside of any generation does."""
    own = OffsetCommitRequest
    partition = own.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = own(group_id=group, topics=[own.OffsetCommitRequestTopic(name=topic, partitions=[partition])])
    with WireConnection(broker.bootstrap) as wire:
        until(lambda: wire.ask(request, 8).topics[0].partitions[0].error_code == 0, "a commit")


def test_each_metric_that_is_declared_is_on_the_page_and_no_other(make_broker: MakeBroker) -> None:
    broker = make_broker(**HTTP)
    create(broker.bootstrap, "seen")
    produce(broker, "seen", 3)
    commit(broker, "readers", "seen", 1)
    declared = {family.name: family for family in (*FAMILIES, *metrics.FAMILIES)}
    for open_metrics in (True, False):
        found = parsed(page_at(f"http://{broker.http}", open_metrics=open_metrics), open_metrics=open_metrics)
        names = [family.name.removesuffix("_total") for family in found]
        assert sorted(names) == sorted(set(names))
        assert set(names) == set(declared)
        for family in found:
            ours = declared[family.name.removesuffix("_total")]
            assert family.type == ours.kind, family.name
            for sample in family.samples:
                labels = sample.labels.keys() - {"le", "quantile"}
                # What all topics have together has no topic.
                assert labels == set(ours.labels) or (family.name.startswith(TOPICS) and not labels), sample


def test_figures_are_those_of_the_load_and_gauges_are_so_after_a_kill(make_broker: MakeBroker) -> None:
    broker = make_broker(**HTTP)
    create(broker.bootstrap, "loaded", **{"max.message.bytes": "500"})
    create(broker.bootstrap, "idle")
    before = scrape_at(f"http://{broker.http}")
    assert before(f"{TOPICS}_messagesin_total", topic="idle") == 0
    assert produce(broker, "loaded", 20) == 0
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.send.max.retries": 0})
    failed: list[Any] = []
    producer.produce("loaded", b"x" * 1000, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(30) == 0 and failed[0] is not None
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "own", "enable.auto.commit": False})
    consumer.assign([TopicPartition("loaded", 0, 0)])
    assert len(consumer.consume(20, 30)) == 20
    consumer.commit(offsets=[TopicPartition("loaded", 0, 15)], asynchronous=False)
    consumer.close()
    found = scrape_at(f"http://{broker.http}")
    log_bytes = (broker.data / "loaded-0" / "00000000000000000000.log").stat().st_size
    assert found(f"{TOPICS}_messagesin_total", topic="loaded") == 20
    assert found(f"{TOPICS}_failedproducerequests_total", topic="loaded") == 1
    assert found(f"{TOPICS}_totalproducerequests_total", topic="loaded") == 21
    size = found("kafka_log_log_size", topic="loaded", partition=0)
    assert found(f"{TOPICS}_bytesin_total", topic="loaded") == size <= log_bytes
    assert found(f"{TOPICS}_bytesout_total", topic="loaded") >= size
    assert found(f"{TOPICS}_bytesin_total") >= size
    assert found("kafka_network_requestmetrics_totaltimems_count", request="Produce") == 21
    assert found("kafka_network_requestmetrics_totaltimems", request="Produce", quantile=0.99) > 0
    assert found("penstock_request_seconds_count", request="Produce", phase="total") == 21
    assert found("kafka_network_requestmetrics_requests_total", request="Produce", version=9) == 20
    named = {row["request"] for row, _ in found.rows("kafka_network_requestmetrics_requests_total")}
    assert named == {row["request"] for row, _ in found.rows("kafka_network_requestmetrics_totaltimems_count")}
    assert {"Produce", "FetchConsumer", "Metadata"} <= named
    assert found("penstock_connections_accepted_total") >= found("penstock_connections") >= 0
    log = {"topic": "loaded", "partition": 0}
    gauges: list[tuple[str, dict[str, object], float]] = [
        ("kafka_log_log_logendoffset", log, 20),
        ("kafka_log_log_size", log, size),
        ("kafka_topic_partitions", {"topic": "loaded"}, 1),
        (f"{GROUP}_current_offset", {"consumergroup": "own", **log}, 15),
        (f"{GROUP}_lag", {"consumergroup": "own", **log}, 5),
        (f"{GROUP}_lag_sum", {"consumergroup": "own", "topic": "loaded"}, 5),
        (f"{GROUP}_members", {"consumergroup": "own"}, 0),
        ("kafka_controller_kafkacontroller_activecontrollercount", {}, 1),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", {}, 0),
        ("kafka_server_replicamanager_underreplicatedpartitions", {}, 0),
        ("penstock_broker_ready", {}, 1),
        ("penstock_clock_settled", {}, 1),
    ]
    for name, labels, number in gauges:
        assert found(name, **labels) == number, name
    started_s = found("process_start_time_seconds")
    broker.kill()
    broker.start()
    again = scrape_at(f"http://{broker.http}")
    for name, labels, number in gauges:
        assert again(name, **labels) == number, name
    assert again(f"{TOPICS}_messagesin_total", topic="loaded") == 0  # and that it began again is said:
    assert again("process_start_time_seconds") > started_s


def test_a_group_is_behind_by_what_it_could_read(make_broker: MakeBroker) -> None:
    broker = make_broker(**HTTP)
    create(broker.bootstrap, "read")
    now_ms = time.time_ns() // 1_000_000
    for hours in (5, 4, 3, 2, 1):
        produce(broker, "read", 1, now_ms - hours * HOUR_MS)
    commit(broker, "behind", "read", 1)
    commit(broker, "at-the-end", "read", 5)
    commit(broker, "penstock-mirror.m.source", "read", 1)  # whose offsets are those of another cluster
    seen: list[Scrape] = []

    def is_known() -> bool:
        seen.append(scrape_at(f"http://{broker.http}"))
        return seen[-1].get("penstock_consumergroup_lag_seconds", consumergroup="behind", topic="read", partition=0) is not None

    until(is_known, "the lag in seconds")
    found = seen[-1]
    where: dict[str, object] = {"topic": "read", "partition": 0}
    assert found(f"{GROUP}_lag", consumergroup="behind", **where) == 4
    seconds = found("penstock_consumergroup_lag_seconds", consumergroup="behind", **where)
    assert 4 * 3600 <= seconds < 4.9 * 3600
    assert found("penstock_consumergroup_lag_estimated", consumergroup="behind", **where) == 0
    assert found(f"{GROUP}_lag", consumergroup="at-the-end", **where) == 0
    assert found("penstock_consumergroup_lag_seconds", consumergroup="at-the-end", **where) == 0
    assert {row["consumergroup"] for row, _ in found.rows(f"{GROUP}_lag")} == {"behind", "at-the-end"}
    # What retention took can't be read: no lag comes of it.
    with WireConnection(broker.bootstrap) as wire:
        wire.ask(*delete_records("read", 3))
    assert scrape_at(f"http://{broker.http}")(f"{GROUP}_lag", consumergroup="behind", **where) == 2


def test_members_are_counted_in_groups_of_both_protocols(make_broker: MakeBroker) -> None:
    broker = make_broker(**HTTP)
    create(broker.bootstrap, "shared")
    produce(broker, "shared", 4)
    consumers = [
        Consumer({"bootstrap.servers": broker.bootstrap, "group.id": protocol, "group.protocol": protocol,
                  "auto.offset.reset": "earliest", "enable.auto.commit": False})
        for protocol in ("classic", "consumer")
    ]  # fmt: skip
    for consumer in consumers:
        consumer.subscribe(["shared"])
        assert len(consumer.consume(4, 60)) == 4
        consumer.commit(offsets=[TopicPartition("shared", 0, 3)], asynchronous=False)
    found = scrape_at(f"http://{broker.http}")
    for group in ("classic", "consumer"):
        assert found(f"{GROUP}_members", consumergroup=group) == 1
        assert found(f"{GROUP}_lag", consumergroup=group, topic="shared", partition=0) == 1
    for consumer in consumers:
        consumer.close()
    assert scrape_at(f"http://{broker.http}")(f"{GROUP}_members", consumergroup="consumer") == 0


def test_the_age_of_what_is_not_in_memory_is_an_estimate(make_broker: MakeBroker) -> None:
    broker = make_broker(**HTTP)
    create(broker.bootstrap, "cold")
    now_ms = time.time_ns() // 1_000_000
    produce(broker, "cold", 300, now_ms - 2 * HOUR_MS)
    produce(broker, "cold", 1, now_ms - HOUR_MS)
    drop_cache_or_skip(broker.data / "cold-0" / "00000000000000000000.log")
    commit(broker, "behind", "cold", 100)
    where: dict[str, object] = {"consumergroup": "behind", "topic": "cold", "partition": 0}
    seen: list[Scrape] = []

    def is_known() -> bool:
        seen.append(scrape_at(f"http://{broker.http}"))
        return seen[-1].get("penstock_consumergroup_lag_seconds", **where) is not None

    until(is_known, "the lag in seconds")
    assert seen[-1]("penstock_consumergroup_lag_estimated", **where) == 1
    assert 3600 <= seen[-1]("penstock_consumergroup_lag_seconds", **where) < 2 * 3600


def test_a_batch_from_the_future_has_waited_for_as_long_as_it_is_known(make_broker: MakeBroker) -> None:
    broker = make_broker(**HTTP)
    create(broker.bootstrap, "ahead")
    produce(broker, "ahead", 1, time.time_ns() // 1_000_000 + HOUR_MS // 2)  # what a topic takes, by default
    commit(broker, "behind", "ahead", 0)
    where: dict[str, object] = {"consumergroup": "behind", "topic": "ahead", "partition": 0}
    seen: list[Scrape] = []

    def waits() -> bool:
        seen.append(scrape_at(f"http://{broker.http}"))
        return (seen[-1].get("penstock_consumergroup_lag_seconds", **where) or 0) > 0

    until(waits, "a lag in seconds")
    assert seen[-1]("penstock_consumergroup_lag_estimated", **where) == 1
    assert seen[-1]("penstock_consumergroup_lag_seconds", **where) < HOUR_MS / 1000


HOSTILE = ('qu"ote', "line\nend", "back\\slash", "ünï-код-組", '{a="b"} 1', "", "x" * 1000)


def test_names_of_groups_are_read_back_as_they_are(make_broker: MakeBroker) -> None:
    broker = make_broker(**HTTP)
    create(broker.bootstrap, "named")
    produce(broker, "named", 1)
    groups = [name for name in HOSTILE if name]
    for name in groups:
        commit(broker, name, "named", 0)
    for open_metrics in (True, False):
        found = {
            family.name: family
            for family in parsed(page_at(f"http://{broker.http}", open_metrics=open_metrics), open_metrics=open_metrics)
        }
        assert {sample.labels["consumergroup"] for sample in found[f"{GROUP}_lag"].samples} == set(groups)


def test_a_topic_that_is_deleted_takes_its_figures_along(make_broker: MakeBroker) -> None:
    broker = make_broker(**HTTP)
    create(broker.bootstrap, "short")
    produce(broker, "short", 5)
    before = scrape_at(f"http://{broker.http}")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["short"])["short"].result(30)
    after = scrape_at(f"http://{broker.http}")
    assert after.get(f"{TOPICS}_messagesin_total", topic="short") is None
    assert after.get("kafka_log_log_size", topic="short", partition=0) is None
    assert after(f"{TOPICS}_messagesin_total") >= before(f"{TOPICS}_messagesin_total") >= 5


@pytest.mark.parametrize("wanted", ["auto", "true", "false"])
def test_series_of_partitions_can_be_chosen(make_broker: MakeBroker, wanted: str) -> None:
    broker = make_broker(**HTTP, **{"penstock.metrics.partitions": wanted})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("few", 3)])["few"].result(30)
    found = scrape_at(f"http://{broker.http}")
    assert len(found.rows("kafka_log_log_size")) == (0 if wanted == "false" else 3)
    dropped = found.get("penstock_metrics_dropped_series", family="kafka_log_log_size")
    assert dropped is None  # what was chosen is not missing
    assert found("kafka_server_replicamanager_partitioncount") == 3


def test_a_broker_in_the_process_shows_its_figures(tmp_path: Path) -> None:
    with Broker(tmp_path, properties=HTTP) as broker:
        create(broker.bootstrap, "here")
        produce(broker, "here", 2)
        found = scrape_at(f"http://{broker.http}")
        assert found("kafka_log_log_logendoffset", topic="here", partition=0) == 2
        assert found(f"{TOPICS}_messagesin_total", topic="here") == 2
    with Broker(tmp_path) as broker, pytest.raises(RuntimeError, match=r"penstock\.http\.listen"):
        _ = broker.http


def test_without_an_address_nothing_listens(make_broker: MakeBroker) -> None:
    broker = make_broker()
    assert broker.http == ""
    with pytest.raises(KafkaException):  # The listener of Kafka's protocol is none of HTTP, and the other way round.
        AdminClient({"bootstrap.servers": make_broker("other", **HTTP).http}).list_topics(timeout=1)
