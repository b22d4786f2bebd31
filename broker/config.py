"""The broker's properties and the topics' configs: Kafka's names, defaults and layering.

Three layers, the later wins: the default, the broker's property (file, `--set`, or altered at run time), the
topic's own config. `TOPIC_CONFIGS` says for each topic config which broker property stands behind it, so that
`describe` and the log's settings come from one table. A property that this broker does not know is refused and
not ignored; those that only take one value say so when another is given.

Accepted and kept, but without effect yet: `cleanup.policy=compact` and the settings of compaction (nothing is
compacted, nothing is lost), `file.delete.delay.ms` (files go at once, open readers keep theirs),
`min.insync.replicas` and `unclean.leader.election.enable` (one node has one copy).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from penstock.config import (
    Parser,
    Property,
    Schema,
    parse_bool,
    parse_choice,
    parse_float,
    parse_int,
    parse_list,
    parse_str,
)
from penstock.errors import ErrorCode, KafkaError

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIB = 1 << 20


def parse_cleanup_policy(text: str) -> list[str]:
    """`delete`, `compact` or both."""
    words = parse_list(text)
    if not words or any(word not in ("delete", "compact") for word in words):
        raise ValueError("is not made of `delete` and `compact`")
    return words


def parse_ratio(text: str) -> float:
    """A number from 0 to 1."""
    number = parse_float(text)
    if not 0 <= number <= 1:
        raise ValueError("is not between 0 and 1")
    return number


def parse_assignors(text: str) -> list[str]:
    """Names out of `uniform` and `range`, at least one, each once."""
    words = parse_list(text)
    if not words or len(set(words)) != len(words) or any(word not in ("uniform", "range") for word in words):
        raise ValueError("is not a list of `uniform` and `range`")
    return words


def parse_migration_policy(text: str) -> str:
    """A policy's name; upper and lower case are the same."""
    return parse_choice("disabled", "downgrade", "upgrade", "bidirectional")(text.lower())


_INT = parse_int(1, INT_MAX)
_INT_0 = parse_int(0, INT_MAX)
_LONG = parse_int(0, LONG_MAX)
_MINUS_ONE_OR_MORE = parse_int(-1, LONG_MAX)
_POSITIVE = parse_int(1, LONG_MAX)
_ONE_NODE = parse_int(1, 1)
_TIMESTAMP_TYPE = parse_choice("CreateTime", "LogAppendTime")
_PRODUCER_ONLY = parse_choice("producer")

SCHEMA = Schema(
    "broker",
    [
        Property("broker.id", parse_int(0, INT_MAX), 1, "The number of this broker."),
        Property("node.id", parse_int(0, INT_MAX), None, "The same as `broker.id`, Kafka's newer name."),
        Property("listeners", parse_str, None, "`PLAINTEXT://host:port`; `--listen` wins over it."),
        Property("advertised.listeners", parse_str, None, "What clients are told; `--advertised` wins."),
        Property("log.dirs", parse_str, None, "The data folder (one); `--data` wins over it."),
        Property("log.dir", parse_str, None, "The same as `log.dirs`."),
        # Topics.
        Property("num.partitions", parse_int(1, 100_000), 1, "Partitions of a topic that says none."),
        Property("default.replication.factor", _ONE_NODE, 1, "Copies of a topic; one node has one."),
        Property("auto.create.topics.enable", parse_bool, True, "Create a topic when it is first asked for."),
        Property("delete.topic.enable", parse_bool, True, "Allow topics to be deleted."),
        Property("max.partitions.per.topic", parse_int(1), 100_000, "Most partitions that a topic may have."),
        # The log: defaults of the topics' configs.
        Property("log.segment.bytes", parse_int(14, INT_MAX), 1 << 30, "Size at which a segment is rolled."),
        Property("log.roll.ms", _POSITIVE, None, "Age at which a segment is rolled; before `.hours`."),
        Property("log.roll.hours", _POSITIVE, 168, "Age at which a segment is rolled, hours."),
        Property("log.roll.jitter.ms", _LONG, None, "Random part that is taken off a segment's age."),
        Property("log.roll.jitter.hours", _LONG, 0, "The same in hours."),
        Property("log.index.interval.bytes", parse_int(0, INT_MAX), 4096, "Bytes between index entries."),
        Property("log.index.size.max.bytes", parse_int(4, INT_MAX), 10 * MIB, "Most bytes of an index."),
        Property("log.retention.ms", _MINUS_ONE_OR_MORE, None, "Age at which segments go; -1 = never."),
        Property("log.retention.minutes", _MINUS_ONE_OR_MORE, None, "The same in minutes."),
        Property("log.retention.hours", _MINUS_ONE_OR_MORE, 168, "The same in hours."),
        Property("log.retention.bytes", _MINUS_ONE_OR_MORE, -1, "Partition size above which segments go."),
        Property("log.cleanup.policy", parse_cleanup_policy, ["delete"], "What happens to old segments."),
        Property("log.cleaner.delete.retention.ms", _LONG, DAY_MS, "How long compaction keeps tombstones."),
        Property("log.cleaner.min.compaction.lag.ms", _LONG, 0, "Least age of what is compacted."),
        Property("log.cleaner.max.compaction.lag.ms", _POSITIVE, LONG_MAX, "Most age of what is not."),
        Property("log.cleaner.min.cleanable.ratio", parse_ratio, 0.5, "Dirty part that starts a compaction."),
        Property("log.segment.delete.delay.ms", _LONG, 60_000, "Kept only: deleted files go at once."),
        Property("log.preallocate", parse_choice("false"), "false", "Only `false`."),
        Property("log.flush.interval.messages", _POSITIVE, LONG_MAX, "Records after which a log is flushed."),
        Property("log.flush.interval.ms", _LONG, None, "Time after which a log is flushed."),
        Property("log.message.timestamp.type", _TIMESTAMP_TYPE, "CreateTime", "Whose clock stamps records."),
        Property("log.message.timestamp.before.max.ms", _LONG, LONG_MAX, "Most age of a new record."),
        Property("log.message.timestamp.after.max.ms", _LONG, HOUR_MS, "Most that it may be in the future."),
        Property("message.max.bytes", parse_int(0, INT_MAX), MIB + 12, "Largest batch, bytes."),
        Property("compression.type", _PRODUCER_ONLY, "producer", "Batches stay as their producer made them."),
        Property("min.insync.replicas", parse_int(1, INT_MAX), 1, "Copies that `acks=all` waits for."),
        Property("unclean.leader.election.enable", parse_bool, False, "Let a stale copy lead (clusters)."),
        # Housekeeping.
        Property("log.retention.check.interval.ms", _POSITIVE, 300_000, "How often old segments are sought."),
        Property("log.flush.scheduler.interval.ms", _POSITIVE, LONG_MAX, "How often flushes are looked for."),
        Property("log.flush.offset.checkpoint.interval.ms", _LONG, 60_000, "How often recovery points are written."),
        Property("num.recovery.threads.per.data.dir", parse_int(1, 256), 2, "Logs opened at once at start."),
        # The network.
        Property("num.network.threads", parse_int(1, 63), 3, "Threads that serve connections."),
        Property("connections.max.idle.ms", _POSITIVE, 600_000, "Idle time after which a client is closed."),
        Property("socket.request.max.bytes", parse_int(1, INT_MAX), 100 * MIB, "Largest request, bytes."),
        Property(
            "queued.max.request.bytes",
            parse_int(MIB, LONG_MAX),
            256 * MIB,
            "Most bytes of requests that wait for an answer; Kafka's default is no bound.",
        ),
        Property("fetch.max.bytes", parse_int(1024, INT_MAX), 55 * MIB, "Most record bytes of one answer."),
        # Consumer groups.
        Property("group.initial.rebalance.delay.ms", _LONG, 3000, "Wait before a first rebalance."),
        Property("group.min.session.timeout.ms", parse_int(1, INT_MAX), 6000, "Least session timeout."),
        Property("group.max.session.timeout.ms", parse_int(1, INT_MAX), 1_800_000, "Most session timeout."),
        Property("group.max.size", parse_int(1, INT_MAX), INT_MAX, "Most members of a classic group."),
        Property("group.consumer.session.timeout.ms", _INT, 45_000, "Session timeout of consumer groups (KIP-848)."),
        Property("group.consumer.min.session.timeout.ms", _INT, 45_000, "Least that a group's own may be."),
        Property("group.consumer.max.session.timeout.ms", _INT, 60_000, "Most that it may be."),
        Property("group.consumer.heartbeat.interval.ms", _INT, 5_000, "Their members' heartbeat interval."),
        Property("group.consumer.min.heartbeat.interval.ms", _INT, 5_000, "Least that a group's own may be."),
        Property("group.consumer.max.heartbeat.interval.ms", _INT, 15_000, "Most that it may be."),
        Property("group.consumer.max.size", _INT, INT_MAX, "Most members of a consumer group."),
        Property(
            "group.consumer.assignors", parse_assignors, ["uniform", "range"], "Assignors; the first is the default."
        ),
        Property(
            "group.consumer.migration.policy",
            parse_migration_policy,
            "bidirectional",
            "Which protocol's groups with members may become the other's.",
        ),
        Property("group.consumer.assignment.interval.ms", _INT_0, 1_000, "Least time between two assignments."),
        Property("group.consumer.min.assignment.interval.ms", _INT_0, 0, "Least that a group's own may be."),
        Property("group.consumer.max.assignment.interval.ms", _INT_0, 15_000, "Most that it may be."),
        Property(
            "group.consumer.regex.refresh.interval.ms",
            parse_int(10_000, INT_MAX),
            600_000,
            "Longest time between two evaluations of subscriptions by regular expression.",
        ),
        Property("offsets.topic.num.partitions", parse_int(1, 10_000), 50, "Partitions of the offsets."),
        Property("offsets.topic.segment.bytes", parse_int(14, INT_MAX), 100 * MIB, "Their segments' size."),
        Property("offsets.topic.replication.factor", _ONE_NODE, 1, "Their copies; one node has one."),
        Property("offset.metadata.max.bytes", parse_int(0, INT_MAX), 4096, "Most metadata with an offset."),
        Property("offsets.retention.minutes", parse_int(1, INT_MAX), 10_080, "Life of an empty group."),
        Property("offsets.retention.check.interval.ms", _POSITIVE, 600_000, "How often that is looked at."),
        # Transactions.
        Property("transaction.state.log.num.partitions", parse_int(1, 10_000), 50, "Their log's partitions."),
        Property("transaction.state.log.segment.bytes", parse_int(14, INT_MAX), 100 * MIB, "Its segments."),
        Property("transaction.state.log.replication.factor", _ONE_NODE, 1, "Its copies; one node has one."),
        Property("transaction.state.log.min.isr", _ONE_NODE, 1, "Its least copies; one node has one."),
        Property("transaction.max.timeout.ms", parse_int(1, INT_MAX), 900_000, "Longest timeout allowed."),
        Property("transactional.id.expiration.ms", _POSITIVE, 7 * DAY_MS, "Life of an unused id."),
        Property("producer.id.expiration.ms", _POSITIVE, DAY_MS, "Life of an idle producer's state."),
        Property(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            _POSITIVE,
            10_000,
            "How often transactions that ran out of time are sought.",
        ),
        Property(
            "transaction.remove.expired.transaction.cleanup.interval.ms",
            _POSITIVE,
            HOUR_MS,
            "How often expired transactional ids are sought.",
        ),
    ],
)


class ConfigType(IntEnum):
    """The types of DescribeConfigs answers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Where a described value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True)
class TopicConfig:
    """One config of a topic: its type on the wire, how it is read, the broker's property behind it."""

    name: str
    kind: ConfigType
    parse: Parser
    broker_name: str
    doc: str


# Topic config, type, the broker property behind it, help.
_TOPIC_CONFIGS: tuple[tuple[str, ConfigType, str, str], ...] = (
    ("cleanup.policy", ConfigType.LIST, "log.cleanup.policy", "`delete`, `compact` or both."),
    ("compression.type", ConfigType.STRING, "compression.type", "Only `producer`."),
    (
        "delete.retention.ms",
        ConfigType.LONG,
        "log.cleaner.delete.retention.ms",
        "How long compaction keeps tombstones.",
    ),
    (
        "file.delete.delay.ms",
        ConfigType.LONG,
        "log.segment.delete.delay.ms",
        "Kept only: deleted files go at once.",
    ),
    (
        "flush.messages",
        ConfigType.LONG,
        "log.flush.interval.messages",
        "Records after which the log is flushed.",
    ),
    ("flush.ms", ConfigType.LONG, "log.flush.interval.ms", "Time after which it is flushed."),
    (
        "index.interval.bytes",
        ConfigType.INT,
        "log.index.interval.bytes",
        "Bytes between entries of the index.",
    ),
    (
        "max.compaction.lag.ms",
        ConfigType.LONG,
        "log.cleaner.max.compaction.lag.ms",
        "Most age of what is not compacted.",
    ),
    ("max.message.bytes", ConfigType.INT, "message.max.bytes", "Largest batch."),
    (
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        "log.message.timestamp.after.max.ms",
        "Most that a record may be in the future.",
    ),
    (
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        "log.message.timestamp.before.max.ms",
        "Most age of a new record.",
    ),
    (
        "message.timestamp.type",
        ConfigType.STRING,
        "log.message.timestamp.type",
        "`CreateTime` or `LogAppendTime`.",
    ),
    (
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "log.cleaner.min.cleanable.ratio",
        "Dirty part that starts a compaction.",
    ),
    (
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "log.cleaner.min.compaction.lag.ms",
        "Least age of what is compacted.",
    ),
    ("min.insync.replicas", ConfigType.INT, "min.insync.replicas", "Copies that `acks=all` waits for."),
    ("preallocate", ConfigType.BOOLEAN, "log.preallocate", "Only `false`."),
    (
        "retention.bytes",
        ConfigType.LONG,
        "log.retention.bytes",
        "Size above which old segments go; -1 = none.",
    ),
    ("retention.ms", ConfigType.LONG, "log.retention.ms", "Age at which segments go; -1 = never."),
    ("segment.bytes", ConfigType.INT, "log.segment.bytes", "Size of a segment."),
    ("segment.index.bytes", ConfigType.INT, "log.index.size.max.bytes", "Most bytes of an index."),
    ("segment.jitter.ms", ConfigType.LONG, "log.roll.jitter.ms", "Random part taken off a segment's age."),
    ("segment.ms", ConfigType.LONG, "log.roll.ms", "Age of a segment."),
    (
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "unclean.leader.election.enable",
        "Let a stale copy lead (clusters).",
    ),
)
TOPIC_CONFIGS: dict[str, TopicConfig] = {
    name: TopicConfig(name, kind, SCHEMA.properties[behind].parse, behind, doc)
    for name, kind, behind, doc in _TOPIC_CONFIGS
}

# Broker properties that may be altered while it runs: those behind topic configs.
DYNAMIC = frozenset(entry.broker_name for entry in TOPIC_CONFIGS.values())
# Kafka has these in coarser units too: property -> (coarser property, its milliseconds), finest first.
_COARSER: dict[str, tuple[tuple[str, int], ...]] = {
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", HOUR_MS)),
    "log.roll.ms": (("log.roll.hours", HOUR_MS),),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", HOUR_MS),),
}
_WHEN_NULL = {"log.flush.interval.ms": LONG_MAX}  # Kafka's default is null, and flushes never.


@dataclass(frozen=True)
class Described:
    """A value with its origin; `synonyms` are (name, text, source) from the winning layer downwards."""

    name: str
    text: str
    source: ConfigSource
    kind: ConfigType
    doc: str
    read_only: bool
    synonyms: tuple[tuple[str, str, ConfigSource], ...]


def text_of(value: Any) -> str:
    """A config value as Kafka writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def broker_value(config: Mapping[str, Any], name: str) -> Any:
    """The value of a broker property behind a topic config; coarser units fill in for a missing one."""
    value = config[name]
    if value is not None:
        return value
    for coarser, factor_ms in _COARSER.get(name, ()):
        if config[coarser] is not None:
            return -1 if config[coarser] == -1 else config[coarser] * factor_ms
    return _WHEN_NULL.get(name)


def check_topic_configs(configs: Mapping[str, str | None]) -> None:
    """Raise KafkaError INVALID_CONFIG for a name or a value that no topic can have."""
    for name, text in configs.items():
        entry = TOPIC_CONFIGS.get(name)
        if entry is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if text is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
        try:
            entry.parse(text)
        except ValueError as error:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}: it {error}"
            ) from None


def topic_value(config: Mapping[str, Any], configs: Mapping[str, str], name: str) -> Any:
    """The value of a topic config in force: the topic's own, or the broker's."""
    entry = TOPIC_CONFIGS[name]
    if name in configs:
        return entry.parse(configs[name])
    return broker_value(config, entry.broker_name)


def log_config(config: Mapping[str, Any], configs: Mapping[str, str]) -> dict[str, int]:
    """What the partition log is told of a topic, as whole numbers by the names of its LogConfig."""

    def value(name: str) -> Any:
        return topic_value(config, configs, name)

    segment_ms = value("segment.ms")
    jitter_ms = min(value("segment.jitter.ms"), segment_ms - 1)
    return {
        "segment_bytes": value("segment.bytes"),
        "segment_ms": segment_ms - (random.randint(0, jitter_ms) if jitter_ms > 0 else 0),
        "index_interval_bytes": value("index.interval.bytes"),
        "segment_index_bytes": value("segment.index.bytes"),
        "retention_ms": value("retention.ms"),
        "retention_bytes": value("retention.bytes"),
        "flush_messages": value("flush.messages"),
        "flush_ms": value("flush.ms"),
        "max_message_bytes": value("max.message.bytes"),
        "timestamp_before_max_ms": value("message.timestamp.before.max.ms"),
        "timestamp_after_max_ms": value("message.timestamp.after.max.ms"),
        "log_append_time": int(value("message.timestamp.type") == "LogAppendTime"),
        "producer_id_expiration_ms": config["producer.id.expiration.ms"],
        "cleanup_delete": int("delete" in value("cleanup.policy")),
        "cleanup_compact": int("compact" in value("cleanup.policy")),
    }


class BrokerConfig(Mapping[str, Any]):
    """The broker's properties in force: what it was started with, and what was altered since.

    Values by Kafka's property name. `static` are the properties of the start, `dynamic` the texts of those
    altered at run time (kept in the store, so that they hold after a restart).
    """

    def __init__(self, static: Mapping[str, Any], given: Iterable[str]) -> None:
        self.static = dict(static)
        self.given = set(given)
        self.dynamic: dict[str, str] = {}
        self._altered: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._altered[name] if name in self._altered else self.static[name]

    def __iter__(self) -> Any:
        return iter(self.static)

    def __len__(self) -> int:
        return len(self.static)

    def settle(self, name: str, value: Any) -> None:
        """Write down what the command line or the start decided, so that it is described as in force."""
        self.static[name] = value
        self.given.add(name)

    @staticmethod
    def check(texts: Mapping[str, str | None]) -> None:
        """Raise KafkaError for a name that can't be altered at run time or a value that does not parse."""
        for name, text in texts.items():
            if name not in DYNAMIC:
                fixed = name in SCHEMA.properties
                why = "Cannot update these configs dynamically" if fixed else "Unknown config"
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{why}: {name}")
            try:
                SCHEMA.properties[name].parse(text or "")
            except ValueError as error:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}: it {error}"
                ) from None

    def alter(self, texts: Mapping[str, str]) -> None:
        """Replace what was altered at run time. Raises KafkaError and changes nothing for a wrong one."""
        self.check(texts)
        self.dynamic = dict(texts)
        self._altered = {name: SCHEMA.properties[name].parse(text) for name, text in texts.items()}

    def _layers(self, name: str) -> list[tuple[str, str, ConfigSource]]:
        """(name, text, source) of a broker property, the layer in force first."""
        layers = []
        if name in self.dynamic:
            layers.append((name, self.dynamic[name], ConfigSource.DYNAMIC_BROKER))
        if name in self.given and self.static[name] is not None:
            layers.append((name, text_of(self.static[name]), ConfigSource.STATIC_BROKER))
        for coarser, _ in _COARSER.get(name, ()):
            if coarser in self.given:
                layers.append((coarser, text_of(self.static[coarser]), ConfigSource.STATIC_BROKER))
        default = SCHEMA.properties[name].default
        if default is not None:
            layers.append((name, text_of(default), ConfigSource.DEFAULT))
        elif name in _COARSER:
            coarsest = _COARSER[name][-1][0]
            layers.append((coarsest, text_of(SCHEMA.properties[coarsest].default), ConfigSource.DEFAULT))
        elif name in _WHEN_NULL:
            layers.append((name, text_of(_WHEN_NULL[name]), ConfigSource.DEFAULT))
        return layers

    def describe_topic(self, configs: Mapping[str, str]) -> list[Described]:
        """Every config of a topic that has these of its own."""
        described = []
        for entry in TOPIC_CONFIGS.values():
            layers = self._layers(entry.broker_name)
            if entry.name in configs:
                layers.insert(0, (entry.name, configs[entry.name], ConfigSource.TOPIC))
            text = text_of(topic_value(self, configs, entry.name))
            source = layers[0][2] if layers else ConfigSource.DEFAULT
            described.append(Described(entry.name, text, source, entry.kind, entry.doc, False, tuple(layers)))
        return described

    def describe_broker(self) -> list[Described]:
        """Every property of the broker."""
        kinds = {entry.broker_name: entry.kind for entry in TOPIC_CONFIGS.values()}
        described = []
        for prop in SCHEMA.properties.values():
            layers = self._layers(prop.name)
            value = broker_value(self, prop.name)
            kind = kinds.get(prop.name, _kind_of(value))
            source = layers[0][2] if layers else ConfigSource.DEFAULT
            described.append(
                Described(prop.name, text_of(value), source, kind, prop.doc, prop.name not in DYNAMIC, tuple(layers))
            )
        return described


def load(path: Path | None = None, overrides: Iterable[str] = ()) -> BrokerConfig:
    """A broker's properties from a file and `key=value` overrides. Raises ConfigError."""
    values = SCHEMA.load(path, overrides)
    static = dict(values)
    if static["node.id"] is not None:
        static["broker.id"] = static["node.id"]
    return BrokerConfig(static, values.given)


def _kind_of(value: Any) -> ConfigType:
    if isinstance(value, bool):
        return ConfigType.BOOLEAN
    if isinstance(value, int):
        return ConfigType.INT if abs(value) <= INT_MAX else ConfigType.LONG
    if isinstance(value, float):
        return ConfigType.DOUBLE
    return ConfigType.LIST if isinstance(value, list) else ConfigType.STRING
