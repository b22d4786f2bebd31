"""The properties of clients: Kafka's names and defaults, older names for some. Unknown names are refused with a suggestion."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.config import (
    INT_MAX,
    LONG_MAX,
    Config,
    ConfigError,
    Property,
    Schema,
    parse_bool,
    parse_choice,
    parse_int,
    parse_list,
    parse_str,
)

ISOLATION = ("read_uncommitted", "read_committed")
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}  # Kafka's codec ids

COMMON = [
    Property("bootstrap.servers", parse_list, [], "host:port pairs to start from, comma separated."),
    Property("client.id", parse_str, "penstock", "Name of this client in the broker's logs and quotas."),
    Property("request.timeout.ms", parse_int(1, INT_MAX), 30_000, "How long one request waits for its answer."),
    Property("default.api.timeout.ms", parse_int(1, INT_MAX), 60_000, "How long a call goes on retrying."),
    Property("reconnect.backoff.ms", parse_int(0, LONG_MAX), 50, "First pause before a broker is connected again."),
    Property("reconnect.backoff.max.ms", parse_int(0, LONG_MAX), 1_000, "Longest such pause; it doubles up to this."),
    Property("retry.backoff.ms", parse_int(1, LONG_MAX), 100, "First pause before a failed request is sent again."),
    Property("retry.backoff.max.ms", parse_int(1, LONG_MAX), 1_000, "Longest such pause; it doubles up to this."),
    Property("metadata.max.age.ms", parse_int(1, LONG_MAX), 300_000, "Age at which metadata is asked for again."),
    Property("socket.connection.setup.timeout.ms", parse_int(1, INT_MAX), 10_000, "Time for TCP and ApiVersions."),
    Property("send.buffer.bytes", parse_int(-1, INT_MAX), -1, "SO_SNDBUF; -1 leaves it to the system."),
    Property("receive.buffer.bytes", parse_int(-1, INT_MAX), -1, "SO_RCVBUF; -1 leaves it to the system."),
    Property("connections.max.idle.ms", parse_int(-1, LONG_MAX), 540_000, "Idle connections are closed; -1 never."),
    Property(
        "delivery.timeout.ms",
        parse_int(1, INT_MAX),
        120_000,
        "How long a record may take from send to its answer, and a transaction's step.",
    ),
    Property(
        "max.in.flight.requests.per.connection",
        parse_int(1, 5),
        5,
        "Batches in flight per partition, requests that are not full per leader.",
    ),
    Property("penstock.max.response.bytes", parse_int(1024, INT_MAX), 256 << 20, "A longer answer closes its connection."),
]

PARTITIONERS = (
    "murmur2_random", "murmur2", "consistent_random", "consistent", "sticky", "round_robin", "random", "explicit"
)  # fmt: skip
"""librdkafka's names for those that hash keys; the first is what Java does by default."""
JAVAS = {
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "murmur2_random",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round_robin",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": "sticky",
}


def parse_partitioner(text: str) -> str:
    """The name of a partitioner, in librdkafka's words or as Java's class. Raises ValueError."""
    name = JAVAS.get(text, text)
    if name not in PARTITIONERS:
        raise ValueError(f"is not one of {', '.join(PARTITIONERS)} (a function of your own: `partitioner` of the constructor)")
    return name


def _but(name: str, default: object) -> Property:
    """The common property with a default of its own (as Kafka has for some clients)."""
    common = next(prop for prop in COMMON if prop.name == name)
    return Property(name, common.parse, default, common.doc)


def parse_record_id(text: str) -> str:
    """Where a producer puts ids."""
    if re.fullmatch(r"key|header:.+", text, re.DOTALL) is None:
        raise ValueError("is neither `key` nor `header:NAME`")
    return text


def _table(part: str, *extra: Property, refused: Mapping[str, str] | None = None) -> Schema:
    names = {prop.name for prop in extra}
    return Schema(part, [*(prop for prop in COMMON if prop.name not in names), *extra], refused)


CLIENT = _table(
    "client",
    Property("allow.auto.create.topics", parse_bool, False, "Whether asking for a topic may create it."),
)

PRODUCER = _table(
    "producer",
    _but("client.id", "penstock-producer"),
    Property("allow.auto.create.topics", parse_bool, True, "Whether sending to a topic may create it."),
    Property("acks", parse_choice("all", "-1", "0", "1"), "all", "How many replicas answer for a batch."),
    Property("batch.size", parse_int(0, INT_MAX), 16_384, "Bytes at which a partition's batch is sent."),
    Property("linger.ms", parse_int(0, LONG_MAX), 5, "How long a batch waits for more records."),
    Property("compression.type", parse_choice(*CODECS), "none", "Codec of batches."),
    Property("compression.gzip.level", parse_int(-1, 9), -1, "Level of gzip; -1 is its own default."),
    Property("compression.lz4.level", parse_int(-1, 17), -1, "Level of lz4; -1 is its own default."),
    Property("compression.zstd.level", parse_int(-131_072, 22), -1, "Level of zstd; -1 is ours (3)."),
    Property("buffer.memory", parse_int(1024, LONG_MAX), 32 << 20, "Bytes of records that wait; send blocks above it."),
    Property("max.block.ms", parse_int(0, LONG_MAX), 60_000, "How long send, flush of buffers and begin may block."),
    Property(
        "max.request.size",
        parse_int(1024, INT_MAX),
        1 << 20,
        "Largest record, larger ones raise; most bytes of a request's batches.",
    ),
    Property("enable.idempotence", parse_bool, True, "Whether brokers tell retries from new batches."),
    Property(
        "retries", parse_int(0, INT_MAX), 2_147_483_647, "How often a batch is sent again; `delivery.timeout.ms` ends it, too."
    ),
    Property("transactional.id", parse_str, None, "Identity of a transactional producer."),
    Property("transaction.timeout.ms", parse_int(1, INT_MAX), 60_000, "Age at which the broker aborts a transaction."),
    Property("producer.type", parse_choice("async", "sync"), "async", "With `sync`, send waits until its records are stored."),
    Property("batch.num.messages", parse_int(1, INT_MAX), INT_MAX, "Records at which a partition's batch is sent."),
    Property(
        "queue.buffering.max.messages", parse_int(1, INT_MAX), INT_MAX, "Records that wait at most; send blocks beyond them."
    ),
    Property("partitioner.class", parse_partitioner, PARTITIONERS[0], f"How partitions are chosen: {', '.join(PARTITIONERS)}."),
    Property("partitioner.ignore.keys", parse_bool, False, "Spread keyed records as if they had no key."),
    Property("record.id", parse_record_id, None, "Where a record without an id is given one: `key` or `header:NAME`."),
    refused={
        "zk.connect": "brokers are found from `bootstrap.servers`",
        "zookeeper.connect": "brokers are found from `bootstrap.servers`",
        "serializer.class": "give the constructor a function, `value_serializer`",
        "key.serializer*": "give the constructor a function, `key_serializer`",
        "value.serializer*": "give the constructor a function, `value_serializer`",
        "interceptor.classes": "give the constructor objects, `interceptors`",
        "callback.handler": "give the constructor an object, `handler`",
        "event.handler": "give the constructor an object, `handler`",
    },
)

CONSUMER = _table(
    "consumer",
    _but("client.id", "penstock-consumer"),
    Property("allow.auto.create.topics", parse_bool, True, "Whether subscribing to a topic may create it."),
    Property("group.id", parse_str, None, "The consumer's group; needed to subscribe or commit."),
    Property("group.instance.id", parse_str, None, "A static member's name: it may restart without rebalance."),
    Property("session.timeout.ms", parse_int(1, INT_MAX), 45_000, "Silence after which a member is dropped."),
    Property("heartbeat.interval.ms", parse_int(1, INT_MAX), 3_000, "Pause between heartbeats."),
    Property("max.poll.interval.ms", parse_int(1, INT_MAX), 300_000, "Without poll for so long the member leaves."),
    Property(
        "consumer.timeout.ms", parse_int(-1, LONG_MAX), -1, "A loop over records ends without one for so long; -1: never."
    ),
    Property("max.poll.records", parse_int(1, INT_MAX), 500, "Most records that one poll returns."),
    Property(
        "auto.offset.reset",
        parse_choice("earliest", "latest", "none"),
        "latest",
        "Where to go on without an offset that the log has.",
    ),
    Property("enable.auto.commit", parse_bool, True, "Whether positions are committed in the background."),
    Property("auto.commit.interval.ms", parse_int(1, LONG_MAX), 5_000, "How often they are."),
    Property("isolation.level", parse_choice(*ISOLATION), "read_uncommitted", "Whether aborted records are seen."),
    Property("check.crcs", parse_bool, True, "Whether each batch's CRC32C is checked."),
    Property("fetch.min.bytes", parse_int(0, INT_MAX), 1, "A fetch waits for so many bytes."),
    Property("fetch.max.bytes", parse_int(1, INT_MAX), 50 << 20, "Most bytes of one fetch answer."),
    Property("max.partition.fetch.bytes", parse_int(1, INT_MAX), 1 << 20, "Most bytes of one partition in it."),
    Property("fetch.max.wait.ms", parse_int(0, INT_MAX), 500, "How long a fetch waits for `fetch.min.bytes`."),
    Property(
        "group.protocol", parse_choice("classic", "consumer"), "classic", "consumer: the coordinator shares out (KIP-848)."
    ),
    Property("group.remote.assignor", parse_str, None, "The coordinator's assignor, with `group.protocol=consumer`."),
    Property(
        "partition.assignment.strategy",
        parse_list,
        ["range"],
        "Assignors by name, the preferred one first: range, roundrobin, sticky, cooperative-sticky.",
    ),
    Property(
        "client.rack",
        parse_str,
        None,
        "Where this client is: it gets partitions with a replica there first, and brokers may name that replica.",
    ),
)


ALIASES: dict[str, dict[str, str]] = {
    "producer": {
        "queue.time": "linger.ms",
        "queue.buffering.max.ms": "linger.ms",
        "queue.size": "queue.buffering.max.messages",
        "queue.enqueue.timeout.ms": "max.block.ms",
        "queue.enqueueTimeout.ms": "max.block.ms",
        "broker.list": "bootstrap.servers",
        "metadata.broker.list": "bootstrap.servers",
        "request.required.acks": "acks",
        "message.send.max.retries": "retries",
        "compression.codec": "compression.type",
        "message.timeout.ms": "delivery.timeout.ms",
    },
}
"""By kind of client: what its properties were called before Kafka 0.9, and by librdkafka, with our names. The `batch.size` of
those times counted messages: that is `batch.num.messages`."""
NOT_KAFKAS = {
    "penstock.max.response.bytes": "Penstock",
    "record.id": "Penstock",
    "producer.type": "Kafka before 0.9",
    "batch.num.messages": "Kafka before 0.9",
    "queue.buffering.max.messages": "Kafka before 0.9",
    "consumer.timeout.ms": "Kafka before 0.9",
}
"""Properties that today's Kafka doesn't have, and who has them. All others are Kafka's, by their names and with its meaning."""
FOR_EVER = "-1"  # as Kafka 0.8 had it in `queue.enqueue.timeout.ms`


def _own_name(schema: Schema, name: str, text: str, given: Mapping[str, str]) -> tuple[str, str]:
    """A property's own name and its text. Raises ConfigError if it was given by two names."""
    own = ALIASES.get(schema.part, {}).get(name, name)
    if own in given:
        raise ConfigError(f"`{name}` and another name of `{own}` are given: leave one of them out")
    return own, str(LONG_MAX) if own != name and (own, text) == ("max.block.ms", FOR_EVER) else text


def load(schema: Schema, given: Mapping[str, object]) -> Config:
    """Typed properties from what a caller gave: names with dots, or with underscores as Python likes them.

    Values may be text or Python values. Raises ConfigError.
    """
    texts: dict[str, str] = {}
    for name, value in given.items():
        if value is None:
            continue
        text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        own, text = _own_name(schema, name.replace("_", "."), text, texts)
        texts[own] = text.lower() if isinstance(value, bool) else text
    config = schema.parse(texts)
    if schema is PRODUCER:
        _check_producer(config)
    if schema is CONSUMER:
        _check_consumer(config)
    return config


CLASSIC_ALONE = ("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms")


def _check_consumer(config: Config) -> None:
    # As in Kafka: the coordinator decides these.
    for name in CLASSIC_ALONE:
        if config["group.protocol"] == "consumer" and name in config.given:
            raise ConfigError(f"`{name}` is the coordinator's with `group.protocol=consumer`")


def _check_producer(config: Config) -> None:
    # As in Kafka: acks below `all`, or no retries, switch idempotence off, unless somebody asked for both.
    asked = config["transactional.id"] or ("enable.idempotence" in config.given and config["enable.idempotence"])
    if asked and config["acks"] not in ("all", "-1"):
        raise ConfigError("`enable.idempotence` needs `acks=all`")
    if asked and config["retries"] == 0:
        raise ConfigError("`enable.idempotence` needs `retries` above 0")
    if config["transactional.id"] and not config["enable.idempotence"]:
        raise ConfigError("`transactional.id` needs `enable.idempotence=true`")
