"""The broker's properties in force, in layers, and how each is described.

The layers, the later wins: the default, the properties of the start (file, `--set`, `--listen`, ...), what was
altered at run time for all brokers, what was altered at run time for this one. The last two are kept in the
store, so that they hold after a restart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from penstock import http
from penstock.broker.configs.groupconfig import check_bounds
from penstock.broker.configs.properties import INT_MAX, MIB, SCHEMA
from penstock.broker.configs.topicconfig import (
    SYNONYMS,
    TOPIC_CONFIGS,
    ConfigType,
    check_fit,
    checked,
    dynamic_properties,
    invalid_value,
    nearest_text,
    text_of,
    topic_value,
)
from penstock.config import ConfigError
from penstock.errors import ErrorCode, KafkaError

# Broker properties that may be altered while it runs: those behind topic configs, and what is read at each use.
DYNAMIC = frozenset(dynamic_properties()) | {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.threads",
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "producer.id.expiration.ms",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "transaction.partition.verification.enable",
}
CLUSTER_DEFAULTS = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
"""Kafka's defaults, which one node can't have."""

# The types of properties that their default doesn't show.
_KINDS = {
    "advertised.listeners": ConfigType.LIST,
    "connections.max.idle.ms": ConfigType.LONG,
    "listeners": ConfigType.LIST,
    "log.cleaner.backoff.ms": ConfigType.LONG,
    "log.cleaner.dedupe.buffer.size": ConfigType.LONG,
    "log.dir": ConfigType.LIST,
    "log.dirs": ConfigType.LIST,
    "log.retention.check.interval.ms": ConfigType.LONG,
    "log.retention.minutes": ConfigType.INT,
    "node.id": ConfigType.INT,
    "offsets.retention.check.interval.ms": ConfigType.LONG,
    "offsets.topic.replication.factor": ConfigType.SHORT,
    "queued.max.request.bytes": ConfigType.LONG,
    "transaction.state.log.replication.factor": ConfigType.SHORT,
}


class ConfigSource(IntEnum):
    """Where a described value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    GROUP = 8


Layer = tuple[str, str, ConfigSource]


@dataclass(frozen=True)
class Described:
    """A value with its origin; `synonyms` are (name, text, source) from the winning layer downwards."""

    name: str
    text: str | None
    source: ConfigSource
    kind: ConfigType
    doc: str
    read_only: bool
    synonyms: tuple[Layer, ...]
    sensitive: bool = False


class BrokerConfig(Mapping[str, Any]):
    """Values by Kafka's property name.

    `static` are the properties of the start; `dynamic` and `dynamic_default` the texts of those altered at run
    time for this broker and for all brokers.
    """

    def __init__(self, static: Mapping[str, Any], given: Iterable[str]) -> None:
        self.static = dict(static)
        self.given = set(given)
        self.dynamic: dict[str, str] = {}
        self.dynamic_default: dict[str, str] = {}
        self._altered: dict[str, Any] = {}
        self._watchers: list[Callable[[], None]] = []

    def __getitem__(self, name: str) -> Any:
        return self._altered[name] if name in self._altered else self.static[name]

    def __iter__(self) -> Any:
        return iter(self.static)

    def __len__(self) -> int:
        return len(self.static)

    def record(self, name: str, value: Any) -> None:
        """Write down what the command line or the start decided, so that it is described as in force."""
        self.static[name] = value
        self.given.add(name)

    def check(self, texts: Mapping[str, str], *, default: bool = False) -> None:
        """Raise KafkaError for names that can't be altered at run time, a value that does not parse, or one that doesn't fit
        the others. The texts would be all that is altered for this broker, or (default) for all brokers.

        Names that are no property of this broker are right, as in Kafka: they are kept and have no effect.
        """
        fixed = [name for name in texts if name in SCHEMA.properties and name not in DYNAMIC]
        if fixed:
            why = f"Cannot update these configs dynamically: [{','.join(fixed)}]"
            raise KafkaError(ErrorCode.INVALID_REQUEST, why)
        for name, text in texts.items():
            prop = SCHEMA.properties.get(name)
            if prop is not None:
                checked(name, text, _kind_of(name, prop.default), prop.parse, ErrorCode.INVALID_REQUEST)
        try:
            check_properties({**self.static, **self._parsed(texts, default)})
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    def _parsed(self, texts: Mapping[str, str], default: bool) -> dict[str, Any]:
        """The values of what is altered at run time, once these are all that is for this broker, or for all brokers."""
        layers = {**texts, **self.dynamic} if default else {**self.dynamic_default, **texts}
        return {name: SCHEMA.properties[name].parse(text.strip()) for name, text in layers.items() if name in SCHEMA.properties}

    def alter(self, texts: Mapping[str, str], *, default: bool = False) -> None:
        """Replace what was altered at run time for this broker, or (default) for all brokers.

        Raises KafkaError and changes nothing for a wrong one.
        """
        self.check(texts, default=default)
        self._take(texts, default)

    def restore(self, texts: Mapping[str, str], *, default: bool = False) -> list[str]:
        """Take what was altered, as the store has it. Answers a sentence about each value that an earlier version, or a tool,
        has stored and this one doesn't take, with what is used instead. Raises KafkaError for a value that none is near to.
        """
        usable, said = self.usable(texts)
        try:
            self.check(usable, default=default)
        except KafkaError as error:
            said.append(f"what was altered at run time contradicts other properties: {error.what}")
        self._take(usable, default)
        return said

    @staticmethod
    def usable(texts: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """What this version can use of what the store says was altered, and a sentence about each value that it can't use.
        Raises KafkaError for a value that none is near to."""
        usable, said = dict(texts), []
        for name, text in texts.items():
            prop = SCHEMA.properties.get(name)
            if prop is None:
                continue
            if name not in DYNAMIC:
                del usable[name]
                said.append(f"`{name}={text}` can't be altered at run time in this version, which leaves it out")
                continue
            try:
                prop.parse(text.strip())
            except ValueError as error:
                near = nearest_text(prop.parse, text)
                if near is None:
                    why = invalid_value(name, text, _kind_of(name, prop.default), error)
                    raise KafkaError(ErrorCode.INVALID_REQUEST, why) from None
                usable[name] = near
                said.append(f"`{name}={text}` {error}: `{near}` is used instead")
        return usable, said

    def _take(self, texts: Mapping[str, str], default: bool) -> None:
        self._altered = self._parsed(texts, default)
        if default:
            self.dynamic_default = dict(texts)
        else:
            self.dynamic = dict(texts)
        for watcher in self._watchers:
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call this after each alteration: for what doesn't read its properties at each use."""
        self._watchers.append(watcher)

    def _layers(self, name: str) -> list[Layer]:
        """The layers of a broker property, the one in force first.

        As Kafka lists them: those of its synonyms (coarser units) stand behind its own and never alone.
        """
        names = (name, *SYNONYMS.get(name, ()))
        static = {one: text_of(self.static[one]) for one in names if one in self.given and self.static[one] is not None}
        defaults = {one: SCHEMA.properties[one].default for one in names}
        by_source = (
            (ConfigSource.DYNAMIC_BROKER, self.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self.dynamic_default),
            (ConfigSource.STATIC_BROKER, static),
            (ConfigSource.DEFAULT, {one: text_of(value) for one, value in defaults.items() if value is not None}),
        )
        layers = [(one, texts[one], source) for source, texts in by_source for one in names if one in texts]
        return list(itertools.dropwhile(lambda layer: layer[0] != name, layers))

    def describe_topic(self, configs: Mapping[str, str]) -> list[Described]:
        """Every config of a topic that has these of its own."""
        described = []
        for entry in TOPIC_CONFIGS.values():
            layers: list[Layer] = []
            if entry.internal and entry.name not in configs:
                continue
            if entry.broker_name is not None:
                layers = self._layers(entry.broker_name)
            elif entry.name.startswith("local.retention."):
                layers = [(f"log.{entry.name}", text_of(entry.default), ConfigSource.DEFAULT)]
            if entry.name in configs:
                layers.insert(0, (entry.name, configs[entry.name], ConfigSource.TOPIC))
            text = text_of(topic_value(self, configs, entry.name))
            source = layers[0][2] if layers else ConfigSource.DEFAULT
            described.append(Described(entry.name, text, source, entry.kind, entry.doc, False, tuple(layers)))
        return described

    def describe_broker(self) -> list[Described]:
        """Every property of this broker, and what was altered at run time without being one."""
        layers = [
            (self.dynamic, ConfigSource.DYNAMIC_BROKER),
            (self.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ]
        known = [self._describe(name, self._layers(name)) for name in SCHEMA.properties if "*" not in name]
        return known + [_unknown(name, source) for texts, source in layers for name in texts if name not in SCHEMA.properties]

    def describe_default_broker(self) -> list[Described]:
        """The properties that were altered for all brokers."""
        found = []
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER
        for name, text in self.dynamic_default.items():
            known = name in SCHEMA.properties
            found.append(self._describe(name, [(name, text, source)]) if known else _unknown(name, source))
        return found

    def _describe(self, name: str, layers: list[Layer]) -> Described:
        prop = SCHEMA.properties[name]
        text = layers[0][1] if layers else None
        source = layers[0][2] if layers else ConfigSource.DEFAULT
        kind = _kind_of(name, self.static[name] if prop.default is None else prop.default)
        return Described(name, text, source, kind, prop.doc, name not in DYNAMIC, tuple(layers))


_KINDS |= {entry.broker_name: entry.kind for entry in TOPIC_CONFIGS.values() if entry.broker_name is not None}


def _unknown(name: str, source: ConfigSource) -> Described:
    """An unknown config could be a password, so its value isn't shown."""
    doc = "Kept without effect: no property of this broker."
    return Described(name, None, source, ConfigType.UNKNOWN, doc, read_only=True, synonyms=(), sensitive=True)


def _kind_of(name: str, value: Any) -> ConfigType:
    """The type of a property, of which `value` is one."""
    if name in _KINDS:
        return _KINDS[name]
    if isinstance(value, bool):
        return ConfigType.BOOLEAN
    if isinstance(value, int):
        return ConfigType.INT if abs(value) <= INT_MAX else ConfigType.LONG
    if isinstance(value, float):
        return ConfigType.DOUBLE
    return ConfigType.LIST if isinstance(value, list) else ConfigType.STRING


def check_properties(config: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the properties fit each other, as Kafka asks, and the logs take what comes of them."""
    check_bounds(config)
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    if config[least] > config[most]:
        raise ConfigError(f"{least}={config[least]} is above {most}={config[most]}")
    threads, buffers = "log.cleaner.threads", "log.cleaner.dedupe.buffer.size"
    if config[buffers] // config[threads] < MIB:
        raise ConfigError(f"{buffers}={config[buffers]} is less than 1 MiB for each of {threads}={config[threads]}")
    if config["max.connections.per.ip"] == 0 and not config["max.connections.per.ip.overrides"]:
        raise ConfigError("max.connections.per.ip=0 lets nobody in: it may be 0 only beside max.connections.per.ip.overrides")
    http_address(config)
    _check_cluster(config)
    try:
        check_fit(config, {})
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_cluster(config: Mapping[str, Any]) -> None:
    """One node has one copy of everything, and in a cluster others have what a power cut takes. Raises ConfigError."""
    if config["zookeeper.connect"] is not None and config["penstock.transaction.flush"] == "true":
        raise ConfigError("penstock.transaction.flush=true: in a cluster other brokers have what a power cut takes: remove it")
    for factor in ("default.replication.factor", *CLUSTER_DEFAULTS):
        if config["zookeeper.connect"] is None and config[factor] > 1:
            raise ConfigError(f"{factor}={config[factor]}: one node has one copy; a cluster's brokers have `zookeeper.connect`")


def http_address(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """Where figures and health are to be served; None: nowhere. Raises ConfigError."""
    listen, public = config["penstock.http.listen"], config["penstock.http.public"]
    return http.address(listen, public=public, key="penstock.http.listen") if listen else None


def load(path: Path | None = None, overrides: Iterable[str] = ()) -> BrokerConfig:
    """A broker's properties from a file and `key=value` overrides. Raises ConfigError."""
    values = SCHEMA.load(path, overrides)
    static = dict(values)
    check_properties(static)
    # Two names of one number: whichever is given is in force, and both are described.
    given = set(values.given)
    if static["zookeeper.connect"] is not None:
        static |= {name: value for name, value in CLUSTER_DEFAULTS.items() if name not in given}
    if static["node.id"] is not None:
        static["broker.id"] = static["node.id"]
        given.add("broker.id")
    static["node.id"] = static["broker.id"]
    return BrokerConfig(static, given | {"node.id"})
