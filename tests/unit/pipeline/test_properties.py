"""Properties have Kafka's names; what nobody knows is refused."""

from __future__ import annotations

import pytest

from penstock.config import ConfigError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.client import Client


def test_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"did you mean `linger.ms`"):
        properties.load(properties.PRODUCER, {"linger.mss": 5})


@pytest.mark.parametrize("name", ["client.id", "client_id"])
def test_names_with_dots_or_underscores(name: str) -> None:
    assert properties.load(properties.CLIENT, {name: "me"})["client.id"] == "me"


def test_python_values_are_taken() -> None:
    config = properties.load(
        properties.CONSUMER, {"enable.auto.commit": False, "partition.assignment.strategy": ["range", "roundrobin"]}
    )
    assert config["enable.auto.commit"] is False
    assert config["partition.assignment.strategy"] == ["range", "roundrobin"]


def test_idempotence_needs_all_acks_when_asked_for() -> None:
    assert properties.load(properties.PRODUCER, {"acks": "1"})["acks"] == "1"
    with pytest.raises(ConfigError, match="acks=all"):
        properties.load(properties.PRODUCER, {"acks": "1", "enable.idempotence": True})
    with pytest.raises(ConfigError, match="acks=all"):
        properties.load(properties.PRODUCER, {"acks": "0", "transactional.id": "x"})


def test_compression_is_one_of_kafkas() -> None:
    with pytest.raises(ConfigError, match="snappy"):
        properties.load(properties.PRODUCER, {"compression.type": "brotli"})


@pytest.mark.parametrize("bootstrap", ["host", "host:", "host:0", "host:99999", ":x", "a:1,b"])
def test_bootstrap_is_host_and_port(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match="not host:port"):
        Client(bootstrap)


def test_no_bootstrap_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no broker"):
        Client("")
