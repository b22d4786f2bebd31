"""Properties and topic configs: Kafka's names, layers and refusals."""

import pytest

from penstock.broker.configs.brokerconfig import BrokerConfig, ConfigSource
from penstock.broker.configs.brokerconfig import load as load_config
from penstock.broker.configs.properties import LONG_MAX, SCHEMA
from penstock.broker.configs.topicconfig import (
    INTERNAL_SEGMENT_BYTES,
    TOPIC_CONFIGS,
    check_topic_configs,
    log_config,
    topic_value,
)
from penstock.config import ConfigError
from penstock.errors import ErrorCode, KafkaError


def config(*overrides: str) -> BrokerConfig:
    values = SCHEMA.load(overrides=overrides)
    return BrokerConfig(dict(values), values.given)


def test_kafkas_defaults() -> None:
    settings = log_config(config(), {})
    assert settings["retention_ms"] == 604_800_000
    assert settings["segment_bytes"] == 1_073_741_824
    assert settings["segment_ms"] == 604_800_000
    assert settings["max_message_bytes"] == 1_048_588
    assert settings["timestamp_after_max_ms"] == 3_600_000
    assert settings["flush_messages"] == settings["flush_ms"] == LONG_MAX
    assert (settings["cleanup_delete"], settings["cleanup_compact"]) == (1, 0)


@pytest.mark.parametrize(
    ("overrides", "retention_ms"),
    [
        (["log.retention.hours=2"], 7_200_000),
        (["log.retention.hours=2", "log.retention.minutes=3"], 180_000),
        (["log.retention.minutes=3", "log.retention.ms=5"], 5),
        (["log.retention.hours=-1"], -1),
    ],
)
def test_the_finer_unit_wins(overrides: list[str], retention_ms: int) -> None:
    assert topic_value(config(*overrides), {}, "retention.ms") == retention_ms


def test_a_topics_own_config_wins_over_the_brokers() -> None:
    broker = config("log.segment.bytes=2000000")
    assert log_config(broker, {})["segment_bytes"] == 2_000_000
    own = {"segment.bytes": "3000000"}
    assert log_config(broker, own)["segment_bytes"] == 3_000_000
    assert log_config(broker, {**own, INTERNAL_SEGMENT_BYTES: "2000"})["segment_bytes"] == 2000
    assert log_config(broker, {"cleanup.policy": "compact,delete"})["cleanup_compact"] == 1
    assert log_config(broker, {"message.timestamp.type": "LogAppendTime"})["log_append_time"] == 1


def test_described_values_name_their_source() -> None:
    broker = config("log.retention.hours=2")
    broker.alter({"log.segment.bytes": "4194304"})
    described = {one.name: one for one in broker.describe_topic({"retention.bytes": "7"})}
    assert set(described) == {name for name, entry in TOPIC_CONFIGS.items() if not entry.internal}
    assert INTERNAL_SEGMENT_BYTES in {one.name for one in broker.describe_topic({INTERNAL_SEGMENT_BYTES: "14"})}
    assert (described["retention.bytes"].text, described["retention.bytes"].source) == (
        "7",
        ConfigSource.TOPIC,
    )
    assert described["segment.bytes"].text == "4194304"
    assert described["segment.bytes"].source is ConfigSource.DYNAMIC_BROKER
    # A coarser unit stands behind the property itself only, as in Kafka.
    assert (described["retention.ms"].text, described["retention.ms"].source) == ("7200000", ConfigSource.DEFAULT)
    assert described["retention.ms"].synonyms == () == described["remote.storage.enable"].synonyms
    assert described["local.retention.ms"].synonyms == (("log.local.retention.ms", "-2", ConfigSource.DEFAULT),)
    assert described["cleanup.policy"].source is ConfigSource.DEFAULT
    assert described["cleanup.policy"].text == "delete"
    assert all(one.synonyms[0][2] is one.source for one in described.values() if one.synonyms)


def test_coarser_units_stand_behind_the_property() -> None:
    broker = config("log.retention.hours=2", "log.retention.ms=5000")
    behind = (
        ("log.retention.ms", "5000", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "2", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    )
    (told,) = (one for one in broker.describe_broker() if one.name == "log.retention.ms")
    assert (told.text, told.synonyms) == ("5000", behind)
    broker.alter({"log.flush.interval.ms": "7"}, default=True)
    (topic,) = (one for one in broker.describe_topic({"flush.ms": "9"}) if one.name == "flush.ms")
    assert topic.synonyms == (
        ("flush.ms", "9", ConfigSource.TOPIC),
        ("log.flush.interval.ms", "7", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.flush.scheduler.interval.ms", str(LONG_MAX), ConfigSource.DEFAULT),
    )


def test_every_property_is_described() -> None:
    described = {one.name: one for one in config().describe_broker()}
    assert set(described) == {name for name in SCHEMA.properties if "*" not in name}
    assert described["broker.id"].read_only and not described["log.segment.bytes"].read_only
    assert described["auto.create.topics.enable"].text == "true"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.msec", "1"),
        ("retention.ms", "soon"),
        ("segment.bytes", "1048575"),
        ("cleanup.policy", "keep"),
        ("compression.type", "lzma"),
        ("retention.ms", None),
        ("min.cleanable.dirty.ratio", "2"),
    ],
)
def test_wrong_topic_configs_are_refused(name: str, value: str | None) -> None:
    with pytest.raises(KafkaError) as caught:
        check_topic_configs(config(), {name: value})
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_an_unknown_property_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"did you mean `log.retention.hours`"):
        config("log.retention.hour=1")


def test_only_topic_defaults_can_be_altered_at_run_time() -> None:
    broker = config()
    for texts, code in (
        ({"broker.id": "2"}, ErrorCode.INVALID_REQUEST),
        ({"log.segment.bytes": "x"}, ErrorCode.INVALID_REQUEST),
    ):
        with pytest.raises(KafkaError) as caught:
            broker.alter(texts)
        assert caught.value.code == code
    assert broker.dynamic == {}


@pytest.mark.parametrize(
    "wrong",
    [
        ["group.min.session.timeout.ms=9", "group.max.session.timeout.ms=8"],
        ["group.consumer.session.timeout.ms=1000"],
        ["group.consumer.heartbeat.interval.ms=16000"],
        ["group.consumer.max.heartbeat.interval.ms=99999", "group.consumer.heartbeat.interval.ms=45000"],
    ],
)
def test_properties_of_groups_have_to_fit_each_other(wrong: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"group\."):
        load_config(overrides=wrong)


def test_a_clusters_transactions_are_not_flushed_and_its_topics_may_have_copies() -> None:
    clustered = ["zookeeper.connect=zk:2181/penstock"]
    assert load_config(overrides=[*clustered, "transaction.state.log.min.isr=2"])["transaction.state.log.min.isr"] == 2
    with pytest.raises(ConfigError, match=r"penstock\.transaction\.flush=true: in a cluster"):
        load_config(overrides=[*clustered, "penstock.transaction.flush=true"])
    with pytest.raises(ConfigError, match=r"brokers live as long as their sessions: set `zookeeper\.session"):
        load_config(overrides=[*clustered, "broker.session.timeout.ms=9000"])
