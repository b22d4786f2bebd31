"""Every config of every scope at and beyond its bounds: it is refused in words before anything is stored, or it works through
rolls, restarts and moves, and goes back to its default."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import Broker
from penstock.broker.configs.brokerconfig import DYNAMIC, load
from penstock.broker.configs.groupresource import GROUP_CONFIGS
from penstock.broker.configs.properties import INT_MAX, LONG_MAX, MIB, SCHEMA
from penstock.broker.configs.topicconfig import TOPIC_CONFIGS, ConfigType
from penstock.broker.listeners import plan
from penstock.config import ConfigError, Property, Schema, WholeNumber
from penstock.errors import ErrorCode
from penstock.pipeline import job
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.consumer import Consumer
from penstock.pipeline.clients.producer import Producer
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire import messages as m
from support.config_asking import alter, alteration, create, texts
from support.harness import WireConnection
from support.logs import NOW_MS, Log, batch
from support.patience import until

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE = 0, 1
BATCHES, VALUE = 4, b"v" * 700
SMALL = {"internal.segment.bytes": "1500"}
# What a topic's own configs may make of a batch that is right otherwise.
LAWFUL = {ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_TIMESTAMP}


def fewer(prop: Any, works: list[str]) -> list[str]:
    """Of the texts that are taken, those to be tried: of numbers the least, the largest, and one with blanks around it."""
    if not isinstance(prop.parse, WholeNumber):
        return works
    return [min(works, key=int), max(works, key=int), *({" 12 "} & set(works))]


def own_configs(wire: WireConnection, name: str) -> dict[str, str | None]:
    own = m.DescribeConfigsRequest
    asked = own.DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
    (result,) = wire.ask(own(resources=[asked]), 4).results
    assert result.error_code == 0
    return {entry.name: entry.value for entry in result.configs if entry.config_source == 1}


def append(wire: WireConnection, name: str, value: bytes = VALUE) -> int:
    """Produce a batch; its error code."""
    own = m.ProduceRequest
    builder = BatchBuilder()
    assert builder.append(b"k", value, time.time_ns() // 1_000_000)
    data = own.PartitionProduceData(index=0, records=builder.build())
    asked = own(acks=-1, timeout_ms=10_000, topic_data=[own.TopicProduceData(name=name, partition_data=[data])])
    code: int = wire.ask(asked, 9).responses[0].partition_responses[0].error_code
    return code


def ends(wire: WireConnection, names: list[str]) -> dict[str, tuple[int, int]]:
    """Error code and end of each topic's log."""
    own = m.ListOffsetsRequest
    part = own.ListOffsetsPartition(partition_index=0, timestamp=-1)
    answer = wire.ask(own(replica_id=-1, topics=[own.ListOffsetsTopic(name=name, partitions=[part]) for name in names]), 7)
    return {topic.name: (topic.partitions[0].error_code, topic.partitions[0].offset) for topic in answer.topics}


def move_all(wire: WireConnection, names: list[str], to: Path) -> None:
    """Move every topic to a folder, and wait for the end of it."""
    own = m.AlterReplicaLogDirsRequest
    topics = [own.AlterReplicaLogDirTopic(name=name, partitions=[0]) for name in names]
    answer = wire.ask(own(dirs=[own.AlterReplicaLogDir(path=str(to), topics=topics)]), 2)
    assert {part.error_code for topic in answer.results for part in topic.partitions} == {0}

    def settled() -> bool:
        asked = m.DescribeLogDirsRequest(topics=None)
        found = {one.log_dir: one.topics for one in wire.ask(asked, 4).results}
        lie = {topic.name for topic in found[str(to)] for part in topic.partitions if not part.is_future_key}
        return lie >= set(names)

    until(settled, "the moves' end")


@contextmanager
def broker_with(folder: Path, **properties: object) -> Iterator[Broker]:
    broker = Broker(folder, properties={"log.initial.task.delay.ms": 0, "log.retention.check.interval.ms": 50, **properties})
    broker.start()
    try:
        yield broker
    finally:
        broker.close()


def test_topic_configs(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with broker_with(first, **{"log.dirs": second, "log.cleaner.backoff.ms": 50}) as broker:
        taken: dict[str, dict[str, str]] = {}
        with WireConnection(broker.bootstrap, 120) as wire:
            assert create(wire, {"known": SMALL}) == [(0, "")]
            for entry in TOPIC_CONFIGS.values():
                works = []
                for text in texts(entry):
                    configs = {entry.name: text}
                    ((code, why),) = create(wire, {"new": configs}, validate_only=True)
                    if code == 0:
                        works.append(text)
                        continue
                    assert code == ErrorCode.INVALID_CONFIG, configs
                    assert f"Invalid value {text} for configuration {entry.name}: " in why
                    assert alter(wire, alteration(TOPIC, "known", SET, **configs)) == [(code, why)], configs
                for text in fewer(entry, works):
                    configs = {entry.name: text}
                    assert alter(wire, alteration(TOPIC, "known", SET, **configs), validate_only=True) == [(0, "")], configs
                    taken[f"t{len(taken)}"] = configs if entry.name.endswith("segment.bytes") else {**SMALL, **configs}
            assert own_configs(wire, "known") == SMALL, "a value that was refused is stored"
            names = list(taken)
            assert set(create(wire, taken)) == {(0, "")}
            counts = dict.fromkeys(names, 0)

            def append_to_all(value: bytes = VALUE, only: object = None) -> None:
                for name in names:
                    if only is None or only in taken[name]:
                        code = append(wire, name, value)
                        assert code in LAWFUL, (taken[name], code)
                        counts[name] += code == 0

            for _ in range(BATCHES):
                append_to_all()
            for _ in range(3):  # segments of a MiB, where that is their least
                append_to_all(b"v" * 600_000, "segment.bytes")
            expected = {name: (0, count) for name, count in counts.items()}
            assert ends(wire, names) == expected
        broker.restart()
        with WireConnection(broker.bootstrap, 120) as wire:
            assert ends(wire, names) == expected
            move_all(wire, names, second)
            assert ends(wire, names) == expected
            for name, configs in taken.items():
                assert own_configs(wire, name).keys() == configs.keys()
            resets = [alteration(TOPIC, name, DELETE, **dict.fromkeys(configs, "")) for name, configs in taken.items()]
            assert set(alter(wire, *resets)) == {(0, "")}
            assert set(alter(wire, *resets)) == {(0, "")}, "one that was never set is reset all the same"
            for name in names:
                assert own_configs(wire, name) == {} and append(wire, name) == 0
        broker.restart()
        with WireConnection(broker.bootstrap, 120) as wire:
            assert ends(wire, names) == {name: (0, count + 1) for name, count in counts.items()}
            deleted = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
            answer = wire.ask(m.DeleteTopicsRequest(topics=deleted, timeout_ms=60_000), 6)
            assert {one.error_code for one in answer.responses} == {0}


@pytest.mark.parametrize(
    ("broker", "configs", "why"),
    [
        ({}, {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "(5) > max.compaction.lag.ms (4)"),
        ({"log.cleaner.max.compaction.lag.ms": 4}, {"min.compaction.lag.ms": "5"}, "(5) > max.compaction.lag.ms (4)"),
        ({}, {"retention.msec": "1"}, "Unknown topic config name: retention.msec"),
    ],
)
def test_topic_configs_that_contradict_each_other(
    tmp_path: Path, broker: dict[str, object], configs: dict[str, str], why: str
) -> None:
    with broker_with(tmp_path / "data", **broker) as running, WireConnection(running.bootstrap) as wire:
        assert create(wire, {"known": {}}) == [(0, "")]
        ((code, said),) = create(wire, {"t": configs})
        assert code == ErrorCode.INVALID_CONFIG and why in said
        assert alter(wire, alteration(TOPIC, "known", SET, **configs)) == [(code, said)]


def test_broker_configs_at_run_time(tmp_path: Path) -> None:
    lowest: dict[str, str] = {}
    highest: dict[str, str] = {}
    with broker_with(tmp_path / "data") as broker, WireConnection(broker.bootstrap, 120) as wire:
        for name in sorted(DYNAMIC):
            prop, works = SCHEMA.properties[name], []
            for text in texts(prop):
                resource = alteration(BROKER, "", SET, **{name: text})
                ((code, why),) = alter(wire, resource, validate_only=True)
                own = alteration(BROKER, "1", SET, **{name: text})
                assert alter(wire, own, validate_only=True) == [(code, why)], (name, text)
                if code == 0:
                    works.append(text)
                else:
                    assert code == ErrorCode.INVALID_REQUEST and name in why and text.strip().lstrip("+-") in why, (name, text)
            for text in fewer(prop, works):
                assert alter(wire, alteration(BROKER, "", SET, **{name: text})) == [(0, "")], (name, text)
            assert alter(wire, alteration(BROKER, "", DELETE, **{name: ""})) == [(0, "")]
            if isinstance(prop.parse, WholeNumber):
                lowest[name], highest[name], *_ = fewer(prop, works)
        assert len(lowest) > 20
        assert create(wire, {"before": SMALL}) == [(0, "")]
    for number, configs in enumerate((lowest, highest)):
        with broker_with(tmp_path / "data") as broker:
            with WireConnection(broker.bootstrap, 120) as wire:
                assert alter(wire, alteration(BROKER, "", SET, **configs)) == [(0, "")]
            broker.restart()
            with WireConnection(broker.bootstrap, 120) as wire:
                assert create(wire, {f"t{number}": {"max.message.bytes": str(MIB)}}) == [(0, "")]
                for _ in range(BATCHES):
                    assert append(wire, f"t{number}") in LAWFUL and append(wire, "before") in LAWFUL
                assert {code for code, _ in ends(wire, [f"t{number}", "before"]).values()} == {0}
                assert alter(wire, alteration(BROKER, "", DELETE, **dict.fromkeys(configs, ""))) == [(0, "")]


def test_group_configs(tmp_path: Path) -> None:
    with broker_with(tmp_path / "data") as broker, WireConnection(broker.bootstrap, 120) as wire:
        for name in GROUP_CONFIGS:
            for text in texts(SCHEMA.properties[f"group.{name}"]):
                ((code, why),) = alter(wire, alteration(GROUP, "g", SET, **{name: text}))
                assert code == 0 or (code == ErrorCode.INVALID_CONFIG and name in why), (name, text, why)
            assert alter(wire, alteration(GROUP, "g", DELETE, **{name: ""})) == [(0, "")]


def test_client_quotas(tmp_path: Path) -> None:
    own = m.AlterClientQuotasRequest
    values = (0.0, -1.0, 0.5, 1.0, float(INT_MAX), float(INT_MAX) + 1, float(1 << 63), 1e308, float("inf"), float("nan"))
    with broker_with(tmp_path / "data") as broker:
        with WireConnection(broker.bootstrap, 120) as wire:
            for kind, keys in (
                ("user", ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")),
                ("ip", ("connection_creation_rate",)),
            ):
                for key in (*keys, "unknown"):
                    for value in values:
                        entity = [own.EntityData(entity_type=kind, entity_name="127.0.0.1")]
                        op = own.OpData(key=key, value=value, remove=False)
                        (entry,) = wire.ask(own(entries=[own.EntryData(entity=entity, ops=[op])]), 1).entries
                        refused = entry.error_code == ErrorCode.INVALID_REQUEST and key in entry.error_message
                        assert entry.error_code == 0 or refused, (key, value)
        broker.restart()
        with WireConnection(broker.bootstrap, 120) as wire:
            assert wire.ask(m.DescribeClientQuotasRequest(components=[], strict=False), 1).error_code == 0


def _is_number(prop: Property) -> bool:
    return isinstance(prop.parse, WholeNumber) and "*" not in prop.name


# At lower ones the broker starts, but a client keeps no connection if it gets no processor for so long.
LOWEST_THAT_SERVES = {
    "connections.max.idle.ms": "10000",
    "penstock.request.arrival.timeout.ms": "10000",
    "penstock.answer.taking.timeout.ms": "10000",
    "socket.request.max.bytes": "100000",
    "group.consumer.session.timeout.ms": "2",
    "group.consumer.min.session.timeout.ms": "2",
    "group.consumer.max.session.timeout.ms": "2",
}
HIGHEST_THAT_SERVES = {
    "node.id": "1",
    "broker.id": "1",
    "group.consumer.heartbeat.interval.ms": str(INT_MAX - 1),
    "group.consumer.min.heartbeat.interval.ms": str(INT_MAX - 1),
    "group.consumer.max.heartbeat.interval.ms": str(INT_MAX - 1),
    # One node has one copy; more are refused (test_admin_apis.py).
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


def test_properties_of_the_start_are_read_or_refused_in_words() -> None:
    for prop in SCHEMA.properties.values():
        name = prop.name.replace("*", "plaintext")
        for text in texts(prop):
            try:
                config = load(overrides=[f"{name}={text}"])
            except ConfigError as error:
                assert name in str(error) or "group." in name, (name, text, error)
            else:
                assert name in config, (name, text)


@pytest.mark.parametrize("schema", [SCHEMA, job.SCHEMA, properties.PRODUCER, properties.CONSUMER], ids=lambda one: one.part)
def test_no_number_is_without_a_bound(schema: Schema) -> None:
    """What stages and clients hand to requests and to the operating system has a width."""
    for prop in schema.properties.values():
        if isinstance(prop.parse, WholeNumber):
            assert prop.parse.minimum is not None and prop.parse.maximum is not None, prop.name
            assert -LONG_MAX - 1 <= prop.parse.minimum <= prop.parse.maximum <= LONG_MAX, prop.name


# With these at their largest a client would wait for what never comes, or ask for 2 GiB at once.
TOO_MUCH = ("batch.size", "fetch.min.bytes", "fetch.max.wait.ms", "fetch.max.bytes", "max.partition.fetch.bytes")


def test_our_clients_work_with_every_number_at_its_largest(tmp_path: Path) -> None:
    def largest(schema: Schema) -> dict[str, Any]:
        numbers = {name: prop.parse for name, prop in schema.properties.items() if isinstance(prop.parse, WholeNumber)}
        return {name: parse.maximum for name, parse in numbers.items() if name not in TOO_MUCH}

    with broker_with(tmp_path / "data") as broker:
        with WireConnection(broker.bootstrap, 120) as wire:
            assert create(wire, {"t": {}}) == [(0, "")]
        with Producer(broker.bootstrap, **largest(properties.PRODUCER)) as producer:
            delivery = producer.send("t", value=b"v", partition=0)
            producer.flush(60)
            assert delivery.result(60).offset == 0
        read = {"auto.offset.reset": "earliest", "heartbeat.interval.ms": INT_MAX - 1}
        with Consumer(broker.bootstrap, **{**largest(properties.CONSUMER), **read}) as consumer:
            consumer.assign([("t", 0)])
            got: list[object] = []

            def read_one() -> bool:
                got.extend(record.value for record in consumer.poll(1.0))
                return bool(got)

            until(read_one, "the record")
    assert got == [b"v"]


@pytest.mark.parametrize("port", ["", "x", "70000", "-1", "\u00b2", "\uff11", "9" * 5000])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form host:port"):
        plan(load(overrides=[f"listeners=PLAINTEXT://127.0.0.1:{port}"]))


@pytest.mark.parametrize("end", ["lowest", "highest"])
def test_a_broker_works_with_every_property_at_its_bound(tmp_path: Path, end: str) -> None:
    numbers = {name: prop.parse for name, prop in SCHEMA.properties.items() if _is_number(prop)}
    bounds = {name: (parse.minimum if end == "lowest" else parse.maximum) for name, parse in numbers.items()}  # type: ignore[attr-defined]
    bounds["max.connections.per.ip"] = bounds["max.connections.per.ip"] or 1
    given = {name: str(bound) for name, bound in bounds.items() if bound is not None}
    given |= LOWEST_THAT_SERVES if end == "lowest" else HIGHEST_THAT_SERVES
    if end == "lowest":
        given |= {"node.id": "0", "broker.id": "0"}
    broker = Broker(tmp_path / "data", properties=given)
    for _ in range(2):
        broker.start()
        with WireConnection(broker.bootstrap, 120) as wire:
            if ends(wire, ["t"])["t"][0] != 0:
                assert create(wire, {"t": {"max.message.bytes": str(MIB), **SMALL}}) == [(0, "")]
            for _ in range(BATCHES):
                assert append(wire, "t") in LAWFUL
        broker.stop()
    broker.close()


def test_a_delay_without_end_keeps_the_files_of_deleted_segments(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=300, retention_bytes=300, file_delete_delay_ms=LONG_MAX)
    for number in range(20):
        log.append(batch(1, producer=(1, 0, number)))
    assert log.upkeep(NOW_MS).segments_deleted > 0
    log.upkeep(NOW_MS + 1)
    assert list(log.folder.glob("*.log.deleted"))


KINDS = {entry.kind for entry in TOPIC_CONFIGS.values()}


def test_the_texts_that_are_tried_reach_every_type() -> None:
    assert {ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST, ConfigType.STRING} <= KINDS
