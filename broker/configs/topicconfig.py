"""The configs of topics: Kafka's names, types and checks, and the broker property behind each.

A topic's own config wins over the broker's property, which wins over the default; `TOPIC_CONFIGS` says which
property it is, so that what is described and what the log gets come from one table.

Kept only: the replicas whose replication is throttled (there is none), what belongs to tiered storage, which can't be
turned on, and to share groups, and the bound of a single record's size where a batch inflates (batches have one).

`internal.segment.bytes` is Kafka's, for tests: it wins over `segment.bytes` and may be below the 1 MiB that this has to have
at least. It is described only where it is set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from penstock.broker.configs.properties import (
    HOUR_MS,
    INT_MAX,
    LONG_MAX,
    LZ4_LEVEL,
    SCHEMA,
    VALIDATE_RECORDS,
    message_magic,
)
from penstock.config import Parser, WholeNumber, parse_bool, parse_int, parse_list
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.logconfig import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, check_config
from penstock.pyx.record.codec import CODEC_IDS
from penstock.suggestions import nearest


class ConfigType(IntEnum):
    """The types of DescribeConfigs answers."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True)
class TopicConfig:
    """One config of a topic. `broker_name`: the property behind it; without one it has a default of its own. `internal`: it
    is described only where it is set."""

    name: str
    kind: ConfigType
    parse: Parser
    broker_name: str | None
    doc: str
    default: Any = None
    internal: bool = False


_REPLICAS = re.compile(r"[0-9]+:[0-9]+\Z")


def parse_throttled_replicas(text: str) -> list[str]:
    """`*`, or `partition:broker` pairs."""
    words = parse_list(text)
    if words != ["*"] and not all(_REPLICAS.match(word) for word in words):
        raise ValueError(
            "must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )
    return words


def parse_no_tiered_storage(text: str) -> bool:
    """Only `false`."""
    if parse_bool(text):
        raise ValueError("can't be true: there is no tiered storage")
    return False


BOOL, STR, INT, LONG, FLOAT, LIST = (
    ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST,
)  # fmt: skip

# Topic config, type, the broker property behind it, help.
_BEHIND: tuple[tuple[str, ConfigType, str, str], ...] = (
    ("cleanup.policy", LIST, "log.cleanup.policy", "`delete`, `compact` or both."),
    ("compression.type", STR, "compression.type", "Codec of what is stored; `producer` = as sent."),
    ("compression.gzip.level", INT, "compression.gzip.level", "Level where it is gzip."),
    ("compression.lz4.level", INT, "compression.lz4.level", "Level where it is lz4."),
    ("compression.zstd.level", INT, "compression.zstd.level", "Level where it is zstd."),
    (
        "penstock.validate.records",
        STR,
        "penstock.validate.records",
        "`full`: every record is checked; `headers`: not the records, so that one that can't be read is taken, and stops "
        "its partition's consumers; `none`: no checksums either.",
    ),
    ("delete.retention.ms", LONG, "log.cleaner.delete.retention.ms", "How long compaction keeps tombstones."),
    ("file.delete.delay.ms", LONG, "log.segment.delete.delay.ms", "Time from a segment's end to that of its files."),
    ("flush.messages", LONG, "log.flush.interval.messages", "Records after which the log is flushed."),
    ("flush.ms", LONG, "log.flush.interval.ms", "Time after which it is flushed."),
    ("index.interval.bytes", INT, "log.index.interval.bytes", "Bytes between entries of the index."),
    ("max.compaction.lag.ms", LONG, "log.cleaner.max.compaction.lag.ms", "Most age of what is not compacted."),
    ("max.message.bytes", INT, "message.max.bytes", "Largest batch."),
    (
        "message.format.version",
        STR,
        "log.message.format.version",
        "0.11.0 and later: message sets of old producers are stored in today's format; before: as they were sent.",
    ),
    ("message.timestamp.after.max.ms", LONG, "log.message.timestamp.after.max.ms", "Most that it may be in the future."),
    ("message.timestamp.before.max.ms", LONG, "log.message.timestamp.before.max.ms", "Most age of a new record."),
    ("message.timestamp.type", STR, "log.message.timestamp.type", "`CreateTime` or `LogAppendTime`."),
    ("min.cleanable.dirty.ratio", FLOAT, "log.cleaner.min.cleanable.ratio", "Dirty part that starts a compaction."),
    ("min.compaction.lag.ms", LONG, "log.cleaner.min.compaction.lag.ms", "Least age of what is compacted."),
    ("min.insync.replicas", INT, "min.insync.replicas", "Copies that `acks=all` waits for."),
    ("preallocate", BOOL, "log.preallocate", "Take a segment's room when it is begun."),
    ("retention.bytes", LONG, "log.retention.bytes", "Size above which old segments go; below 0 = none."),
    ("retention.ms", LONG, "log.retention.ms", "Age at which segments go; -1 = never."),
    ("segment.bytes", INT, "log.segment.bytes", "Size of a segment."),
    ("segment.index.bytes", INT, "log.index.size.max.bytes", "Most bytes of an index."),
    ("segment.jitter.ms", LONG, "log.roll.jitter.ms", "Random part taken off a segment's age."),
    ("segment.ms", LONG, "log.roll.ms", "Age of a segment."),
    ("unclean.leader.election.enable", BOOL, "unclean.leader.election.enable", "Let a stale copy lead (clusters)."),
)
# Where a topic's own value has other bounds than the broker's.
_OWN_BOUNDS: dict[str, Parser] = {"retention.ms": parse_int(-1, LONG_MAX)}
CONFIRMED = "penstock.configs.confirmed"
INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
# Topic config, type, parser, default, help.
_OWN: tuple[tuple[str, ConfigType, Parser, Any, str], ...] = (
    ("errors.deadletterqueue.group.enable", BOOL, parse_bool, False, "Kept only: there are no share groups."),
    ("follower.replication.throttled.replicas", LIST, parse_throttled_replicas, [], "Kept only."),
    ("leader.replication.throttled.replicas", LIST, parse_throttled_replicas, [], "Kept only."),
    ("local.retention.bytes", LONG, parse_int(-2, LONG_MAX), -2, "Kept only: there is no tiered storage."),
    ("local.retention.ms", LONG, parse_int(-2, LONG_MAX), -2, "Kept only: there is no tiered storage."),
    (
        "max.decompressed.message.bytes",
        INT,
        parse_int(1, INT_MAX - 8),
        INT_MAX - 8,
        "Kept only: how far a batch may inflate is bounded, not a record.",
    ),
    ("remote.copy.lag.bytes", LONG, parse_int(-1, LONG_MAX), -1, "Kept only: there is no tiered storage."),
    ("remote.copy.lag.ms", LONG, parse_int(-1, LONG_MAX), 0, "Kept only: there is no tiered storage."),
    ("remote.log.copy.disable", BOOL, parse_bool, False, "Kept only: there is no tiered storage."),
    ("remote.log.delete.on.disable", BOOL, parse_bool, False, "Kept only: there is no tiered storage."),
    (
        CONFIRMED,
        BOOL,
        parse_bool,
        True,
        "`false`: no operator has confirmed yet that these are the topic's configs; retention and compaction are paused.",
    ),
    ("remote.storage.enable", BOOL, parse_no_tiered_storage, False, "Only `false`: there is no tiered storage."),
)


def _table() -> dict[str, TopicConfig]:
    table = [
        TopicConfig(name, kind, _OWN_BOUNDS.get(name, SCHEMA.properties[behind].parse), behind, doc)
        for name, kind, behind, doc in _BEHIND
    ]
    table += [TopicConfig(name, kind, parse, None, doc, default) for name, kind, parse, default, doc in _OWN]
    segment_bytes = parse_int(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
    table.append(TopicConfig(INTERNAL_SEGMENT_BYTES, INT, segment_bytes, None, "A segment's size, in tests.", internal=True))
    return {entry.name: entry for entry in sorted(table, key=lambda entry: entry.name)}


TOPIC_CONFIGS = _table()

# Kafka has these in coarser units too: property -> (coarser property, its milliseconds), finest first.
COARSER: dict[str, tuple[tuple[str, int], ...]] = {
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", HOUR_MS)),
    "log.roll.ms": (("log.roll.hours", HOUR_MS),),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", HOUR_MS),),
}
SYNONYMS: dict[str, tuple[str, ...]] = {
    **{name: tuple(coarser for coarser, _ in units) for name, units in COARSER.items()},
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
}
"""What Kafka names behind a property when it is described."""
WHEN_NULL = {"log.flush.interval.ms": LONG_MAX}  # Kafka's default is null, and flushes never.

# How Kafka says what our parsers say.
_KAFKAS_WORDS = (
    (r"is not a whole number", "Not a number of type {kind}"),
    (r"is not an? (finite )?number", "Not a number of type {kind}"),
    (r"is less than (\S+)", r"Value must be at least \1"),
    (r"is more than (\S+)", r"Value must be no more than \1"),
    (r"is not `true` or `false`", "Expected value to be either true or false"),
    (r"is not one of (.+)", r"String must be one of: \1"),
)


def text_of(value: Any) -> str:
    """A config value as Kafka writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return repr(value).replace("e+", "E").replace("e", "E")  # As Java writes it.
    return "" if value is None else str(value)


def invalid_value(name: str, text: str, kind: ConfigType, error: ValueError) -> str:
    """Kafka's sentence for a value that does not parse."""
    why = str(error)
    for ours, kafkas in _KAFKAS_WORDS:
        if re.fullmatch(ours, why):
            why = re.sub(ours, kafkas, why).format(kind=kind.name)
            break
    return f"Invalid value {text} for configuration {name}: {why}"


def checked(name: str, text: str, kind: ConfigType, parse: Parser, code: ErrorCode = ErrorCode.INVALID_CONFIG) -> Any:
    """The value of a config's text. Raises KafkaError, in Kafka's words, for one that does not parse."""
    try:
        return parse(text.strip())
    except ValueError as error:
        raise KafkaError(code, invalid_value(name, text, kind, error)) from None


def broker_value(config: Mapping[str, Any], name: str) -> Any:
    """The value of a broker property behind a topic config; coarser units fill in for a missing one."""
    value = config[name]
    if value is not None:
        return value
    for coarser, factor_ms in COARSER.get(name, ()):
        if config[coarser] is not None:
            return -1 if config[coarser] == -1 else config[coarser] * factor_ms
    return WHEN_NULL.get(name)


def check_topic_configs(config: Mapping[str, Any], configs: Mapping[str, str | None]) -> None:
    """Raise KafkaError INVALID_CONFIG for a name, a value or a pair of values that no topic of this broker can have, the
    broker's own values beside the given ones."""
    nulls = [name for name, text in configs.items() if text is None]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    texts = {name: text or "" for name, text in configs.items()}
    for name, text in texts.items():
        entry = TOPIC_CONFIGS.get(name)
        if entry is None:
            near = nearest(name, TOPIC_CONFIGS)
            meant = f" (did you mean `{near}`?)" if near else ""
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}{meant}")
        checked(name, text, entry.kind, entry.parse)
    try:
        check_fit(config, texts)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def check_fit(config: Mapping[str, Any], configs: Mapping[str, str]) -> None:
    """Raise ValueError if the values in force of a topic with these configs contradict each other, or if its logs would refuse
    them."""
    least, most = (topic_value(config, configs, f"{bound}.compaction.lag.ms") for bound in ("min", "max"))
    if least > most:
        raise ValueError(f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})")
    check_config(log_config(config, configs))


def nearest_text(parse: Parser, text: str) -> str | None:
    """A text that `parse` takes, and that is nearest to one that it refuses; None if there is none."""
    if isinstance(parse, WholeNumber):
        number = parse.nearest(text.strip())
        return None if number is None else str(number)
    words = ",".join(parse_list(text))
    try:
        parse(words)
    except ValueError:
        return None
    return words


def stored_configs(configs: Mapping[str, str]) -> tuple[dict[str, str], list[str], bool]:
    """The configs of a topic in the store as this version can use them, a sentence about each that another version has taken
    and this one doesn't, and whether one of them has no value near it.
    """
    usable, said, lost = dict(configs), [], False
    for name, text in configs.items():
        entry = TOPIC_CONFIGS.get(name)
        if entry is None:
            del usable[name]
            said.append(f"the config `{name}={text}` isn't known to this version, which leaves it out")
            continue
        try:
            entry.parse(text.strip())
        except ValueError as error:
            near = nearest_text(entry.parse, text)
            if near is None:
                del usable[name]
                lost = True
            else:
                usable[name] = near
            instead = "the broker's value" if near is None else f"`{near}`"
            said.append(f"the config `{name}={text}` {error}: {instead} is used instead")
    return usable, said, lost


def topic_value(config: Mapping[str, Any], configs: Mapping[str, str], name: str) -> Any:
    """The value of a topic config in force: the topic's own, or the broker's."""
    entry = TOPIC_CONFIGS[name]
    if name in configs:
        return entry.parse(configs[name].strip())
    return entry.default if entry.broker_name is None else broker_value(config, entry.broker_name)


def awaits_confirmation(configs: Mapping[str, str]) -> bool:
    """Whether retention and compaction are paused, since the topic was found in a folder without its configs, or they may be
    older than its records: what is deleted by wrong configs doesn't come back.
    """
    return CONFIRMED in configs and not parse_bool(configs[CONFIRMED].strip())


def dynamic_properties() -> Iterable[str]:
    """The broker properties behind topic configs, which may all be altered while the broker runs."""
    return [entry.broker_name for entry in TOPIC_CONFIGS.values() if entry.broker_name is not None]


def _compression(value: Callable[[str], Any]) -> dict[str, int]:
    """The codec in which a log keeps what clients append, and its level; -1: as sent, and the codec's default."""
    name = value("compression.type")
    if name == "producer":
        return {"compression_codec": -1, "compression_level": -1}
    if name == "uncompressed":
        return {"compression_codec": CODEC_IDS["none"], "compression_level": -1}
    level = -1 if name == "snappy" else value(f"compression.{name}.level")
    if name == "lz4" and level == LZ4_LEVEL:
        level = -1
    return {"compression_codec": CODEC_IDS[name], "compression_level": level}


def log_config(config: Mapping[str, Any], configs: Mapping[str, str]) -> dict[str, int]:
    """What the partition log gets of a topic, as whole numbers by the names of its LogConfig."""

    def value(name: str) -> Any:
        return topic_value(config, configs, name)

    paused = awaits_confirmation(configs)
    deletes = "delete" in value("cleanup.policy") and not paused
    segment_ms = value("segment.ms")
    if "compact" in value("cleanup.policy"):
        # What is written can't be compacted: it must be sealed in time (KIP-354).
        segment_ms = min(segment_ms, value("max.compaction.lag.ms"))
    return {
        "segment_bytes": value(INTERNAL_SEGMENT_BYTES) or value("segment.bytes"),
        "segment_ms": segment_ms,
        "segment_jitter_ms": value("segment.jitter.ms"),
        "file_delete_delay_ms": value("file.delete.delay.ms"),
        "preallocate": int(value("preallocate")),
        "index_interval_bytes": value("index.interval.bytes"),
        "segment_index_bytes": value("segment.index.bytes"),
        "retention_ms": value("retention.ms"),
        "retention_bytes": max(value("retention.bytes"), -1),
        "min_compaction_lag_ms": LONG_MAX if paused else value("min.compaction.lag.ms"),
        "delete_retention_ms": value("delete.retention.ms"),
        "flush_messages": value("flush.messages"),
        "flush_ms": value("flush.ms"),
        "max_message_bytes": max(value("max.message.bytes"), 1),  # 0, which no batch fits either, is no limit to a log
        "timestamp_before_max_ms": value("message.timestamp.before.max.ms"),
        "timestamp_after_max_ms": value("message.timestamp.after.max.ms"),
        "log_append_time": int(value("message.timestamp.type") == "LogAppendTime"),
        "producer_id_expiration_ms": config["producer.id.expiration.ms"],
        "verify_transactions": int(config["transaction.partition.verification.enable"]),
        "cleanup_delete": int(deletes),
        "cleanup_compact": int("compact" in value("cleanup.policy")),
        "message_magic": message_magic(value("message.format.version")),
        "validate_records": VALIDATE_RECORDS.index(value("penstock.validate.records")),
        **_compression(value),
    }
