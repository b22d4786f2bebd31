"""The broker's properties: Kafka's names and defaults, ours prefixed `penstock.`.

A property that this broker does not know is refused and not ignored; those that only take one value say so when
another is given. Kafka's properties that make no sense here are refused with what to do instead (`REFUSED`).
What stands behind a topic's config is in `topicconfig.py`, the layers and what can be altered at run time in
`brokerconfig.py`.

Kept only: the rates of replication, which isn't throttled. Those of clusters have no effect on one node.
"""

from __future__ import annotations

import re
import sys

from penstock.config import (
    Property,
    Schema,
    WholeNumber,
    parse_bool,
    parse_choice,
    parse_float,
    parse_int,
    parse_list,
    parse_str,
)
from penstock.log import FORMATS
from penstock.pyx.log.logconfig import INDEX_BYTES_MIN, SEGMENT_BYTES_MAX

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
CLEANER_THREADS_MAX = 256
MIB = 1 << 20
DOUBLE_MAX = sys.float_info.max
SEGMENT_BYTES_LEAST = MIB  # as Kafka has it since 4.0 (KIP-1030)


def parse_cleanup_policy(text: str) -> list[str]:
    """`delete`, `compact`, both, or nothing: then old segments stay."""
    words = parse_list(text)
    if text and not all(word.strip() for word in text.split(",")):
        raise ValueError("has an empty word between its commas")
    if any(word not in ("delete", "compact") for word in words):
        raise ValueError("is not one of compact, delete")
    return words


# Versions of the protocol between brokers, as Kafka 3.9 names them, and how many internal ones (`3.0-IV1`) each had.
_MESSAGE_FORMAT_VERSIONS = {
    "0.8.0": 0, "0.8.1": 0, "0.8.2": 0, "0.9.0": 0, "0.10.0": 2, "0.10.1": 3, "0.10.2": 1, "0.11.0": 3, "1.0": 1, "1.1": 1,
    "2.0": 2, "2.1": 3, "2.2": 2, "2.3": 2, "2.4": 2, "2.5": 1, "2.6": 1, "2.7": 3, "2.8": 2, "3.0": 2, "3.1": 1, "3.2": 1,
    "3.3": 4, "3.4": 1, "3.5": 3, "3.6": 3, "3.7": 5, "3.8": 1, "3.9": 1,
}  # fmt: skip
_MAGIC_2_FROM = list(_MESSAGE_FORMAT_VERSIONS).index("0.11.0")
_MAGIC_1_FROM = list(_MESSAGE_FORMAT_VERSIONS).index("0.10.0")


def _release(text: str) -> str | None:
    """The release of a message format version: Kafka takes `3.9`, `3.9-IV0` and `3.9.1`, and three numbers before 1.0."""
    parts = text.split(".")
    numbers = 3 if text.startswith("0.") else 2
    release, _, internal = ".".join(parts[:numbers]).partition("-IV")
    count = _MESSAGE_FORMAT_VERSIONS.get(release)
    if count is None or ("-" in text and internal not in map(str, range(count))):
        return None
    return release


def parse_message_format_version(text: str) -> str:
    """A version that Kafka 3.9 knows."""
    if _release(text) is None:
        raise ValueError(f"Version `{text}` is not a valid version")
    return text


def message_magic(version: str) -> int:
    """The format of the records that brokers of this version write: 0, 1 or 2."""
    place = list(_MESSAGE_FORMAT_VERSIONS).index(_release(version) or "")
    return int(place >= _MAGIC_1_FROM) + int(place >= _MAGIC_2_FROM)


class Age(WholeNumber):
    """Reads an age: -1 (for ever) or from 1 on. 0 would delete all records of all topics; only a topic's own may be 0."""

    def __call__(self, text: str) -> int:
        """Read an age. Raises ValueError."""
        age = super().__call__(text)
        if age == 0:
            raise ValueError("is not -1 or at least 1")
        return age

    def nearest(self, text: str) -> int | None:
        """As of any number; 1 for 0."""
        age = super().nearest(text)
        return 1 if age == 0 else age


def parse_rate(text: str) -> float:
    """Bytes a second, at least one: with none compaction would stand still."""
    number = parse_float(text)
    if number < 1:
        raise ValueError("is less than 1")
    return number


def parse_ratio(text: str) -> float:
    """A number from 0 to 1."""
    number = parse_float(text)
    if number < 0:
        raise ValueError("is less than 0")
    if number > 1:
        raise ValueError("is more than 1")
    return number


def parse_load_factor(text: str) -> float:
    """A part of a table that may be filled: above 0, at most 1."""
    number = parse_ratio(text)
    if number == 0:
        raise ValueError("is not more than 0")
    return number


def parse_assignors(text: str) -> list[str]:
    """Names out of `uniform` and `range`, at least one, each once."""
    words = parse_list(text)
    if not words or len(set(words)) != len(words) or any(word not in ("uniform", "range") for word in words):
        raise ValueError("is not a list of `uniform` and `range`")
    return words


def parse_migration_policy(text: str) -> str:
    """A policy's name; upper and lower case are the same."""
    return str(parse_choice("disabled", "downgrade", "upgrade", "bidirectional")(text.lower()))


def parse_address_limits(text: str) -> str:
    """`host:count` with commas between them; the hosts are looked up when the limits are set."""
    for pair in parse_list(text):
        host, _, count = pair.rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,10}", count) or int(count) > INT_MAX:
            raise ValueError(f"has `{pair}`, which is not of the form host:count")
    return text


def parse_gzip_level(text: str) -> int:
    """-1 (the codec's default) or 1 to 9."""
    level = parse_int(-1, 9)(text)
    if level == 0:
        raise ValueError("is not -1 or between 1 and 9")
    return int(level)


_INT = parse_int(1, INT_MAX)
_INT_0 = parse_int(0, INT_MAX)
_LONG = parse_int(0, LONG_MAX)
_SEGMENT_BYTES = parse_int(SEGMENT_BYTES_LEAST, SEGMENT_BYTES_MAX)
_POSITIVE = parse_int(1, LONG_MAX)
_FACTOR = parse_int(1, 32_767)
_TIMESTAMP_TYPE = parse_choice("CreateTime", "LogAppendTime")
LZ4_LEVEL = 9  # Kafka's default: it means the fast compressor, other levels the slow one (KIP-390)
_COMPRESSION_TYPE = parse_choice("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer")
VALIDATE_RECORDS = ("none", "headers", "full")

NOTHING = "nothing here depends on it: remove it"
# Kafka's properties that have no place here -> what to do instead. `*` stands for anything.
REFUSED = {
    "process.roles": "one node is its own controller, and a cluster elects one of its brokers: remove it",
    "controller.*": "one node is its own controller, and a cluster elects one of its brokers: remove it",
    "early.start.listeners": "no listener is a controller's alone: remove it",
    "metadata.*": "the metadata store lies in the data folder, or in a cluster's ZooKeeper, and needs no settings: remove it",
    "zookeeper.*": "of ZooKeeper's properties `zookeeper.connect` and two timeouts are known: remove it",
    "broker.id.generation.enable": "ids are not generated: give `broker.id`",
    "reserved.broker.max.id": "ids are not generated: give `broker.id`",
    "broker.heartbeat.interval.ms": "brokers live as long as their sessions: set `zookeeper.session.timeout.ms`",
    "broker.session.timeout.ms": "brokers live as long as their sessions: set `zookeeper.session.timeout.ms`",
    "inter.broker.protocol.version": "every version is spoken at once: remove it",
    "control.plane.listener.name": "brokers reach each other by one listener: name it by `inter.broker.listener.name`",
    "inter.broker.*": "only `inter.broker.listener.name` says something of connections between brokers: remove it",
    "log.message.downconversion.enable": "records are always converted for clients that can't read what is stored: remove it",
    "replica.*": "of replicas' properties `replica.lag.time.max.ms` and four `replica.fetch.*` are known: remove it",
    "num.replica.*": "of these only `num.replica.fetchers` is known: remove it",
    "num.io.threads": "requests are served where they are read: set `num.network.threads`",
    "background.threads": "requests are served where they are read: set `num.network.threads`",
    "queued.max.requests": "the bound is in bytes: set `queued.max.request.bytes`",
    "authorizer.class.name": "there is no authorizer yet: any client may do all that the listeners let it reach: remove it",
    "super.users": "there is no authorizer yet: remove it",
    "allow.everyone.if.no.acl.found": "there is no authorizer yet: remove it",
    "ssl.*": "TLS is not served yet: listen on a loopback address, or put a tunnel in front",
    "sasl.*": "SASL is not served yet: remove it",
    "security.*": "only PLAINTEXT is served yet: remove it",
    "delegation.token.*": "SASL is not served yet: remove it",
    "quota.*": "quotas are kept but not enforced yet: remove it",
    "client.quota.*": "quotas are kept but not enforced yet: remove it",
    "*.policy.class.name": "no classes are loaded: remove it",
    "metric.reporters": "no classes are loaded: remove it",
    "kafka.metrics.*": "no classes are loaded: remove it",
    "remote.*": "there is no tiered storage: remove it",
    "log.local.retention.*": "there is no tiered storage: set `log.retention.*`",
    "share.*": "share groups are not served: remove it",
    "group.share.*": "share groups are not served: remove it",
    "*.purgatory.*": NOTHING,
    "*.load.buffer.size": NOTHING,
    "add.partitions.to.txn.*": NOTHING,
    "alter.log.dirs.*": NOTHING,
    "config.providers*": NOTHING,
    "connection.failed.authentication.delay.ms": NOTHING,
    "connections.max.reauth.ms": NOTHING,
    "controlled.shutdown.*": NOTHING,
    "group.coordinator.*": NOTHING,
    "initial.broker.registration.timeout.ms": NOTHING,
    "log.dir.failure.timeout.ms": NOTHING,
    "log.flush.start.offset.checkpoint.interval.ms": NOTHING,
    "metrics.*": NOTHING,
    "offsets.commit.*": NOTHING,
    "offsets.topic.compression.codec": NOTHING,
    "principal.builder.class": NOTHING,
    "replication.quota.*": NOTHING,
    "request.timeout.ms": NOTHING,
    "socket.connection.setup.*": NOTHING,
    "socket.listen.backlog.size": NOTHING,
    "telemetry.*": NOTHING,
    "transaction.two.phase.commit.enable": NOTHING,
    "group.streams.*": "streams groups are not served: remove it",
}

SCHEMA = Schema(
    "broker",
    [
        Property("broker.id", parse_int(0, INT_MAX), 1, "The number of this broker."),
        Property("node.id", parse_int(0, INT_MAX), None, "The same as `broker.id`, Kafka's newer name."),
        Property("listeners", parse_str, None, "`NAME://host:port`, commas between them; `--listen` wins over it."),
        Property("advertised.listeners", parse_str, None, "What clients get; `--advertised` wins."),
        Property(
            "listener.security.protocol.map", parse_str, None, "`NAME:PLAINTEXT` of each listener that isn't `PLAINTEXT`."
        ),
        Property(
            "inter.broker.listener.name",
            parse_str,
            None,
            "The listener that other brokers use; `max.connections` does not stop it.",
        ),
        Property(
            "security.inter.broker.protocol", parse_str, None, "The same listener, by its protocol when that is its name."
        ),
        Property("log.dirs", parse_str, None, "Log folders, commas between them; `--data` comes before them."),
        Property("log.dir", parse_str, None, "The same as `log.dirs`."),
        Property(
            "penstock.ballast.bytes",
            parse_int(0, LONG_MAX),
            64 * MIB,
            "Room that each log folder holds back to go on with when its disk is full; 0 = none.",
        ),
        # Clusters.
        Property(
            "zookeeper.connect", parse_str, None, "`host:port,host:port/chroot` of the cluster's ZooKeeper; none: one node."
        ),
        Property(
            "zookeeper.session.timeout.ms", parse_int(1_000, INT_MAX), 6_000, "Silence after which a broker counts as dead."
        ),
        Property(
            "penstock.lease.enable",
            parse_bool,
            True,
            "Answer for `acks=0` and `1`, and coordinate, only while the session with ZooKeeper surely lives; Kafka's brokers "
            "do so until they hear that it is over.",
        ),
        Property(
            "penstock.disk.hang.ms",
            parse_int(1_000, INT_MAX),
            6_000,
            "A broker that waits for a write for so long leaves its cluster, until the disk answers: others lead meanwhile.",
        ),
        Property(
            "penstock.disk.settle.ms",
            parse_int(0, INT_MAX),
            10_000,
            "How long a disk that was full, or hung, has to have room, or to answer, before this broker leads there again.",
        ),
        Property("zookeeper.connection.timeout.ms", parse_int(1, INT_MAX), 30_000, "How long a start waits for ZooKeeper."),
        Property("replica.lag.time.max.ms", _POSITIVE, 10_000, "A replica that lags for longer leaves the ISR."),
        Property("broker.rack", parse_str, None, "Where this broker stands: a partition's replicas are spread over the racks."),
        Property("auto.leader.rebalance.enable", parse_bool, True, "Let preferred leaders lead again by themselves."),
        Property(
            "leader.imbalance.check.interval.seconds", parse_int(1, LONG_MAX // 1000), 300, "How often that is looked at."
        ),
        Property(
            "leader.imbalance.per.broker.percentage",
            parse_int(0, 100),
            10,
            "What others may lead of a broker's share, in percent.",
        ),
        Property(
            "unclean.recovery.timeout.ms",
            parse_int(-1, LONG_MAX),
            -1,
            "How long a partition without a leader waits for all its replicas before the best live one leads; -1 = for ever.",
        ),
        Property("num.replica.fetchers", parse_int(1, 64), None, "Threads that fetch from leaders. [log folders, at most 4]"),
        Property("replica.fetch.wait.max.ms", parse_int(1, INT_MAX), 500, "How long a leader waits for records."),
        Property("replica.fetch.min.bytes", parse_int(1, INT_MAX), 1, "For how many bytes."),
        Property("replica.fetch.max.bytes", parse_int(1, INT_MAX), MIB, "What a replica fetches of a partition at once."),
        Property("replica.fetch.response.max.bytes", parse_int(1, INT_MAX), 10 * MIB, "And of all partitions."),
        # Topics.
        Property("num.partitions", parse_int(1, 100_000), 1, "Partitions of a topic that says none."),
        Property("default.replication.factor", _FACTOR, 1, "Copies of a topic that says none; one node has one."),
        Property("auto.create.topics.enable", parse_bool, True, "Create a topic when it is first asked for."),
        Property("delete.topic.enable", parse_bool, True, "Allow topics to be deleted."),
        Property("max.request.partition.size.limit", _INT, 2000, "Most partitions of a DescribeTopicPartitions page."),
        Property("max.partitions.per.topic", parse_int(1, INT_MAX), 100_000, "Most partitions that a topic may have."),
        # The log: defaults of the topics' configs.
        Property("log.segment.bytes", _SEGMENT_BYTES, 1 << 30, "Size at which a segment is rolled."),
        Property("log.roll.ms", _POSITIVE, None, "Age at which a segment is rolled; before `.hours`."),
        Property("log.roll.hours", _INT, 168, "Age at which a segment is rolled, hours."),
        Property("log.roll.jitter.ms", _LONG, None, "Random part that is taken off a segment's age."),
        Property("log.roll.jitter.hours", _INT_0, 0, "The same in hours."),
        Property("log.index.interval.bytes", parse_int(0, INT_MAX), 4096, "Bytes between index entries."),
        Property("log.index.size.max.bytes", parse_int(INDEX_BYTES_MIN, INT_MAX), 10 * MIB, "Most bytes of an index."),
        Property("log.retention.ms", Age(-1, LONG_MAX), None, "Age at which segments go; -1 = never."),
        Property("log.retention.minutes", Age(-1, INT_MAX), None, "The same in minutes."),
        Property("log.retention.hours", Age(-1, INT_MAX), 168, "The same in hours."),
        Property("log.retention.bytes", parse_int(-LONG_MAX - 1, LONG_MAX), -1, "Partition size above which segments go."),
        Property("log.cleanup.policy", parse_cleanup_policy, ["delete"], "What happens to old segments."),
        Property("log.cleaner.delete.retention.ms", _LONG, DAY_MS, "How long compaction keeps tombstones."),
        Property("log.cleaner.min.compaction.lag.ms", _LONG, 0, "Least age of what is compacted."),
        Property("log.cleaner.max.compaction.lag.ms", _POSITIVE, LONG_MAX, "Most age of what is not."),
        Property("log.cleaner.min.cleanable.ratio", parse_ratio, 0.5, "Dirty part that starts a compaction."),
        Property("log.cleaner.enable", parse_bool, True, "Compact logs whose policy asks for it."),
        Property("log.cleaner.threads", parse_int(1, CLEANER_THREADS_MAX), 1, "Threads that compact."),
        Property("log.cleaner.backoff.ms", _LONG, 15_000, "Wait when nothing is to be compacted."),
        Property("log.cleaner.dedupe.buffer.size", parse_int(MIB, LONG_MAX), 128 * MIB, "Memory for keys, all threads."),
        Property("log.cleaner.io.buffer.load.factor", parse_load_factor, 0.9, "Part of that memory that is filled."),
        Property("log.cleaner.io.buffer.size", _INT, 512 * 1024, "Kept only: a thread reads and writes by the MiB."),
        Property("log.cleaner.io.max.bytes.per.second", parse_rate, DOUBLE_MAX, "Most that compaction reads and writes."),
        Property(
            "penstock.log.cleaner.inflated.max.bytes",
            parse_int(MIB, INT_MAX),
            128 * MIB,
            "Most that a compressed batch may inflate to when it is compacted; a log with a larger one is not compacted.",
        ),
        Property("log.segment.delete.delay.ms", _LONG, 60_000, "Time between a segment's removal from its log and its files'."),
        Property("log.preallocate", parse_bool, False, "Take the room of a whole segment when it is begun."),
        Property("log.flush.interval.messages", _POSITIVE, LONG_MAX, "Records after which a log is flushed."),
        Property("log.flush.interval.ms", _LONG, None, "Time after which a log is flushed."),
        Property(
            "log.message.format.version",
            parse_message_format_version,
            "3.0-IV1",
            "0.11.0 and later: message sets of old producers are stored in today's format, as clients of today read no other;"
            " before: they are stored as they were sent, and converted for each client that reads them.",
        ),
        Property("log.message.timestamp.type", _TIMESTAMP_TYPE, "CreateTime", "Whose clock stamps records."),
        Property("log.message.timestamp.before.max.ms", _LONG, LONG_MAX, "Most age of a new record."),
        Property("log.message.timestamp.after.max.ms", _LONG, HOUR_MS, "Most that it may be in the future."),
        Property("message.max.bytes", parse_int(0, INT_MAX), MIB + 12, "Largest batch, bytes."),
        Property("compression.type", _COMPRESSION_TYPE, "producer", "Codec of what is stored; `producer` = as sent."),
        Property("compression.gzip.level", parse_gzip_level, -1, "Level where `compression.type` is gzip."),
        Property("compression.lz4.level", parse_int(1, 17), LZ4_LEVEL, "Level where it is lz4."),
        Property("compression.zstd.level", parse_int(-131_072, 22), 3, "Level where it is zstd."),
        Property(
            "penstock.validate.records",
            parse_choice(*VALIDATE_RECORDS),
            "full",
            "`full`: every record, as Kafka does; `headers`: headers and checksums of batches only, for producers that one "
            "trusts: a batch that can't be read is taken, and stops its partition's consumers; `none`: and no checksums.",
        ),
        Property("min.insync.replicas", parse_int(1, INT_MAX), 1, "Fewest replicas in sync with which acks=all is taken."),
        Property("unclean.leader.election.enable", parse_bool, False, "Let a stale copy lead (clusters)."),
        # Upkeep.
        Property("log.retention.check.interval.ms", _POSITIVE, 300_000, "How often old segments are sought."),
        Property("log.initial.task.delay.ms", _LONG, 30_000, "First time after the start, if the interval isn't less."),
        Property("log.flush.scheduler.interval.ms", _POSITIVE, LONG_MAX, "How often due flushes are checked for."),
        Property("log.flush.offset.checkpoint.interval.ms", _LONG, 60_000, "How often recovery points are written."),
        Property("num.recovery.threads.per.data.dir", parse_int(1, 256), 2, "Logs opened at once at start."),
        # The network.
        Property("num.network.threads", parse_int(1, 63), 3, "Threads that serve connections."),
        Property("max.connections", parse_int(1, INT_MAX), INT_MAX, "Most connections; further ones wait."),
        Property("max.connections.per.ip", parse_int(0, INT_MAX), INT_MAX, "Most from an address; more are closed."),
        Property("max.connections.per.ip.overrides", parse_address_limits, "", "`host:count` where that differs."),
        Property("max.connection.creation.rate", parse_int(1, INT_MAX), INT_MAX, "Most new connections a second; more wait."),
        Property("listener.name.*.max.connections", parse_int(1, INT_MAX), None, "The same of one listener."),
        Property("listener.name.*.max.connection.creation.rate", parse_int(1, INT_MAX), None, "The same of one."),
        Property(
            "socket.send.buffer.bytes",
            parse_int(-1, INT_MAX),
            102_400,
            "-1 = the system's, which grows by itself: for links that are long.",
        ),
        # Kafka's default is 102400, which costs a third more CPU at batches of 1 MB.
        Property("socket.receive.buffer.bytes", parse_int(-1, INT_MAX), -1, "-1 = the system's."),
        Property("penstock.tcp.congestion", parse_str, "", "Congestion control, as `cubic`; empty = the system's."),
        Property(
            "penstock.request.arrival.timeout.ms",
            _POSITIVE,
            60_000,
            "Time for a request that has begun to come whole, and a second more for each 64 KiB.",
        ),
        Property(
            "penstock.answer.taking.timeout.ms",
            _POSITIVE,
            300_000,
            "Time in which a client has to take something of an answer.",
        ),
        Property(
            "penstock.request.memory.patience.ms",
            _POSITIVE,
            5_000,
            "While memory for requests is short, a client that holds some and for so long brings less than would fill it"
            " in a minute is closed. One that keeps up holds its memory for up to a minute, so a newcomer may wait for a"
            " minute and this time.",
        ),
        Property(
            "penstock.http.listen",
            parse_str,
            "",
            "`HOST:PORT` where `/metrics`, `/health/live`, `/health/ready` and `/clients` are served; port 0 = any; empty ="
            " nowhere. Nobody is asked who he is there, so it is loopback unless `penstock.http.public=true`.",
        ),
        Property("penstock.http.public", parse_bool, False, "Let `penstock.http.listen` be reached from other machines."),
        Property(
            "penstock.metrics.partitions",
            parse_choice("auto", "true", "false"),
            "auto",
            "Whether `/metrics` has a series for each partition, and for each partition of a group; `auto`: as long as there"
            " are few enough (2,000 of each kind, and 2.5 MB of them).",
        ),
        Property(
            "penstock.slow.request.ms",
            _INT_0,
            500,
            "A request that takes longer, not counted what it waited for records, is logged with its phases; 0 = none.",
        ),
        Property(
            "penstock.log.format",
            parse_choice(*FORMATS),
            "text",
            "Of the lines on standard error: `text`, or `json`, one object a line.",
        ),
        Property("connections.max.idle.ms", _POSITIVE, 600_000, "Idle time after which a client is closed."),
        Property("socket.request.max.bytes", parse_int(1, INT_MAX), 100 * MIB, "Largest request, bytes."),
        Property(
            "queued.max.request.bytes",
            parse_int(MIB, LONG_MAX),
            256 * MIB,
            "Most bytes of requests, each: those that arrive, wait for the control plane, are at workers. Kafka: no bound.",
        ),
        Property(
            "max.incremental.fetch.session.cache.slots",
            parse_int(0, INT_MAX),
            1000,
            "Fetch sessions that are kept; clients without one say all that they fetch each time.",
        ),
        Property("penstock.fetch.session.cache.bytes", parse_int(0, LONG_MAX), 64 * MIB, "Most memory that they may take."),
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
        Property("group.consumer.assignors", parse_assignors, ["uniform", "range"], "Assignors; the first is the default."),
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
        Property("offsets.topic.segment.bytes", _SEGMENT_BYTES, 100 * MIB, "Their segments' size."),
        Property("offsets.topic.replication.factor", _FACTOR, 1, "Their copies; 3 in a cluster, one node has one."),
        Property("offset.metadata.max.bytes", parse_int(0, INT_MAX), 4096, "Most metadata with an offset."),
        Property("offsets.retention.minutes", parse_int(1, INT_MAX), 10_080, "Life of an empty group."),
        Property("offsets.retention.check.interval.ms", _POSITIVE, 600_000, "How often that is checked."),
        # Transactions.
        Property("transaction.state.log.num.partitions", parse_int(1, 10_000), 50, "Their log's partitions."),
        Property("transaction.state.log.segment.bytes", _SEGMENT_BYTES, 100 * MIB, "Its segments."),
        Property("transaction.state.log.replication.factor", _FACTOR, 1, "Its copies; 3 in a cluster, one node has one."),
        Property("transaction.state.log.min.isr", _FACTOR, 1, "Its least copies; 2 in a cluster, one node has one."),
        Property("transaction.max.timeout.ms", parse_int(1, INT_MAX), 900_000, "Longest timeout allowed."),
        Property("transactional.id.expiration.ms", _POSITIVE, 7 * DAY_MS, "Life of an unused id."),
        Property(
            "penstock.coordinator.skip.corrupt",
            parse_bool,
            False,
            "Leave corrupt records of `__consumer_offsets` and `__transaction_state` out at the start; otherwise the "
            "groups and transactions of their partition are not served.",
        ),
        Property(
            "transaction.partition.verification.enable",
            parse_bool,
            True,
            "Ask the coordinator before a client of Produce up to 11 begins a transaction in a partition (KIP-890).",
        ),
        Property(
            "penstock.transaction.flush",
            lambda text: parse_choice("stages", "true", "false")(text.lower()),  # of earlier versions: a boolean
            "stages",
            "Flush what a transaction of mirror or dedupe (`stages`), or any transaction (`true`), has written before its "
            "commit is decided, the decision before its markers, and the markers before it is complete: then a power cut takes "
            "transactions whole, newest first. Else it may take records whose commit, and whose consumer's position, survives.",
        ),
        Property(
            "penstock.clock.settle.ms",
            _LONG,
            3_600_000,
            "How long a wall clock that has jumped more than an hour ahead must run evenly until it is believed: until then "
            "nothing is deleted because of its age.",
        ),
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
        # Replication, which there is none of: kept for the tools that set them.
        Property("leader.replication.throttled.rate", _LONG, LONG_MAX, "Kept only."),
        Property("follower.replication.throttled.rate", _LONG, LONG_MAX, "Kept only."),
        Property("replica.alter.log.dirs.io.max.bytes.per.second", _LONG, LONG_MAX, "Kept only."),
    ],
    refused=REFUSED,
)
