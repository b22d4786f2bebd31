"""Configs in the metadata store that an earlier version has taken and this one refuses: every topic opens all the same."""

from __future__ import annotations

import json
from collections.abc import Callable

from penstock.pyx.wire.messages import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from support.asking import create, end_offset, produce
from support.harness import BrokerProcess, WireConnection
from support.metadata_store import put_node

TOPIC, BROKER = 2, 4


def put(broker: BrokerProcess, path: str, **configs: str) -> None:
    put_node(broker.data, path, json.dumps({"version": 1, "config": configs}).encode())


def own(wire: WireConnection, kind: int, name: str) -> dict[str, str | None]:
    asked = DescribeConfigsRequest.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    (result,) = wire.ask(DescribeConfigsRequest(resources=[asked]), 4).results
    return {entry.name: entry.value for entry in result.configs if entry.config_source == (1 if kind == TOPIC else 2)}


def alter(wire: WireConnection, name: str, config: str, value: str) -> int:
    request = IncrementalAlterConfigsRequest
    config_ = request.AlterableConfig(name=config, config_operation=0, value=value)
    resource = request.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config_])
    code: int = wire.ask(request(resources=[resource]), 1).responses[0].error_code
    return code


def test_configs_of_an_earlier_version(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker()
    create(broker, "small", "listed", "lost", "unknown", "plain")
    assert all(produce(broker, name, 3) == 0 for name in ("small", "listed", "lost", "unknown", "plain"))
    broker.stop()
    put(broker, "/config/topics/small", **{"segment.bytes": "1000", "segment.index.bytes": "4", "retention.ms": "5000000"})
    put(broker, "/config/topics/listed", **{"cleanup.policy": "delete,"})
    put(broker, "/config/topics/lost", **{"retention.ms": "soon", "segment.ms": "5000"})
    put(broker, "/config/topics/unknown", **{"of.another.version": "1", "segment.ms": "5000"})
    put(broker, "/config/brokers/1", **{"log.segment.bytes": "9000", "log.retention.ms": "0", "its.own": "x"})
    broker.start()
    said = broker.log_text()
    for sentence in (
        "topic=small: the config `segment.bytes=1000` is less than 1048576: `1048576` is used instead",
        "topic=small: the config `segment.index.bytes=4` is less than 12: `12` is used instead",
        "topic=listed: the config `cleanup.policy=delete,` has an empty word between its commas: `delete` is used instead",
        "topic=lost: the config `retention.ms=soon` is not a whole number: the broker's value is used instead",
        "topic=unknown: the config `of.another.version=1` isn't known to this version, which leaves it out",
        "altered for this broker: `log.segment.bytes=9000` is less than 1048576: `1048576` is used instead",
        "altered for this broker: `log.retention.ms=0` is not -1 or at least 1: `1` is used instead",
    ):
        assert said.count(sentence) == 1, sentence
    assert "Traceback" not in said
    assert "retention and compaction are paused in 1 topics whose configs wait" in said
    with WireConnection(broker.bootstrap) as wire:
        assert own(wire, TOPIC, "small") == {"segment.bytes": "1048576", "segment.index.bytes": "12", "retention.ms": "5000000"}
        assert own(wire, TOPIC, "listed") == {"cleanup.policy": "delete"}
        assert own(wire, TOPIC, "lost") == {"penstock.configs.confirmed": "false", "segment.ms": "5000"}
        assert own(wire, TOPIC, "unknown") == {"segment.ms": "5000"}
        altered = own(wire, BROKER, "1")
        assert (altered["log.segment.bytes"], altered["log.retention.ms"]) == ("1048576", "1")
        # No topic is stuck with what is refused: each can be altered, and then has what is in force in the store.
        for name in ("small", "listed", "lost", "unknown"):
            assert alter(wire, name, "flush.messages", "5") == 0
    assert all(produce(broker, name, 2) == 0 for name in ("small", "listed", "lost", "unknown", "plain"))
    broker.kill()
    broker.start()
    assert all(end_offset(broker, name) == 5 for name in ("small", "listed", "lost", "unknown", "plain"))
    with WireConnection(broker.bootstrap) as wire:
        assert own(wire, TOPIC, "small")["segment.bytes"] == "1048576"
    assert "topic=small: the config" not in broker.log_text()[len(said) :]
