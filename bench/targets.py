"""The figures to reach, as bounds on what cases measure, and why one is missed where that is known."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from penstock.bench.case import Measured, label, show
from penstock.bench.sides import CONFLUENT, FLOOR, KAFKA, MIRROR_MAKER, NAMES, PENSTOCK, SPARK, WITHOUT

Cases = Mapping[str, Measured]

FULL_SCALE = 1.0  # below it loads are shorter or fewer, which an absolute bound doesn't know
LONG_RUN = "sustained"
LONG_RUN_MINUTES = 30.0


class Verdict(Enum):
    """What became of a target."""

    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Bound:
    """Our median of one metric against a limit: an absolute one, or times another side's (or another case's) median."""

    case: str
    metric: str
    limit: float
    times: str = ""  # side whose median it multiplies
    of_case: str = ""  # case whose median it multiplies, of our own side unless `times` says another
    at_least: bool = False

    @property
    def is_absolute(self) -> bool:
        """Whether the limit is a number, and not what another side or case takes."""
        return not (self.times or self.of_case)

    def value(self, cases: Cases) -> float | None:
        """Ours, as a multiple where the limit is one."""
        ours = self._median(cases, self.case, PENSTOCK)
        if ours is None or self.is_absolute:
            return ours
        other = self._median(cases, self.of_case or self.case, self.times or PENSTOCK)
        return None if not other else ours / other

    def _median(self, cases: Cases, case: str, side: str) -> float | None:
        value = cases[case].median(side, self.metric) if case in cases else None
        # CPU time is counted in steps of 10 ms: none at all only says that the load was too small.
        return None if value == 0 and self.metric.startswith("cpu") else value

    def verdict(self, cases: Cases) -> Verdict:
        """Whether the limit holds."""
        value = self.value(cases)
        if value is None:
            return Verdict.NOT_MEASURED
        holds = operator.ge if self.at_least else operator.le
        return Verdict.MET if holds(value, self.limit) else Verdict.MISSED

    def used(self, cases: Cases) -> float | None:
        """How much of the limit ours takes; above 1 it is missed."""
        value = self.value(cases)
        if value is None or (self.at_least and value <= 0):
            return None
        return self.limit / value if self.at_least else value / self.limit

    def text(self, cases: Cases) -> str:
        """Our figure beside its limit."""
        value, sign = self.value(cases), ">=" if self.at_least else "<="
        of = f" x {NAMES[self.times]}" if self.times else f" x {self.of_case}" if self.of_case else ""
        shown = "-" if value is None else (_multiple(value) if of else show(self.metric, value))
        limit = f"{self.limit:.3g}{of}" if of else f"{self.limit:g}"
        return f"{self.case} {label(self.metric)}: {shown} ({sign} {limit})"


def _multiple(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


@dataclass(frozen=True)
class Target:
    """A row of the table: the figure, the target in words, the bounds that say the same, and why it is missed.

    Without bounds there is nothing to measure yet, and `why` says what isn't there.
    """

    figure: str
    target: str
    bounds: tuple[Bound, ...]
    why: str = ""

    def verdict(self, cases: Cases) -> Verdict:
        """Missed if any bound is, or if there is none; met only if all were measured."""
        if not self.bounds:
            return Verdict.MISSED
        verdicts = {bound.verdict(cases) for bound in self.bounds}
        for one in (Verdict.MISSED, Verdict.NOT_MEASURED):
            if one in verdicts:
                return one
        return Verdict.MET


def _of_kafka(case: str, limit: float, metric: str = "cpu_s_per_gb", *, at_least: bool = False) -> Bound:
    return Bound(case, metric, limit, times=KAFKA, at_least=at_least)


def _consume(case: str) -> tuple[Bound, ...]:
    return (
        Bound(case, "cpu_s_per_gb", 1.1, times=FLOOR),
        _of_kafka(case, 1.2, "mb_per_s", at_least=True),
    )


CODECS = ("snappy", "lz4", "zstd")

BROKER_TARGETS = [
    Target(
        "produce CPU s/GB, 1 MB batches, recycled pages",
        "<= 0.30 x Kafka and <= 0.55 s/GB",
        (_of_kafka("produce-1m", 0.30), Bound("produce-1m", "cpu_s_per_gb", 0.55)),
        why="Old segments' pages are freed while the load runs, which the absolute limit (from a log that was overwritten in "
        "place) doesn't know; steps-produce-1m says how much that is.",
    ),
    Target(
        "produce CPU s/GB, 16 KB batches, and 128 KB through librdkafka",
        "<= 0.30 x Kafka",
        (_of_kafka("produce-16k", 0.30), _of_kafka("rdkafka-produce-128k", 0.30)),
        why="librdkafka fills its batches, so that what Kafka takes for a request counts little. Of ours the kernel has more "
        "than four fifths: pwrite, freeing old segments, recv, waits and answers. Kafka makes the same calls. On ext4 each "
        "4 KiB block of a page has a head of its own in memory.",
    ),
    Target(
        "produce CPU s/GB, 128 KB batches of records of 100 B, every record checked",
        "<= 0.25 x Kafka",
        (_of_kafka("produce-100b", 0.25),),
    ),
    Target(
        "produce CPU s/GB, compressed batches (snappy, lz4, zstd; every record checked)",
        "<= 0.45 x Kafka; with penstock.validate.records=headers <= 0.20 x",
        (
            *(_of_kafka(f"produce-{codec}", 0.45) for codec in CODECS),
            *(_of_kafka(f"produce-{codec}-headers", 0.20) for codec in CODECS),
        ),
        why="lz4 inflates so fast that Kafka pays least for it.",
    ),
    Target(
        "one record a request, 5 in flight: rate / CPU per request",
        ">= 2.5 x / <= 0.25 x Kafka, CPU <= 2 x bare ping-pong",
        (
            _of_kafka("request-5", 2.5, "requests_per_s", at_least=True),
            _of_kafka("request-5", 0.25, "cpu_us_per_request"),
            Bound("request-5", "cpu_us_per_request", 2.0, times=FLOOR),
        ),
    ),
    Target(
        "consume CPU s/GB, warm, 1 and 4 consumers",
        "<= 1.1 x bare sendfile; MB/s >= 1.2 x Kafka",
        (*_consume("consume-1"), *_consume("consume-4")),
        why="By 1 ours takes what a bare sendfile takes; by 4 both brokers take less. Ours took 0.13-0.17 s/GB in every run; "
        "Kafka 0.17-0.42, less from round to round, as its compiler warms up.",
    ),
    Target(
        "a cold consumer (pages dropped) beside a tail consumer and a producer",
        "p99 of the others <= 1.5 x theirs without it",
        (Bound("cold-reader", "ack_p99_growth", 1.5), Bound("cold-reader", "end_to_end_p99_growth", 1.5)),
        why="The floor says how much of it comes from the bytes' way through the machine: a bare sendfile in a process of its "
        "own, which goes through the page cache. From Linux 6.5 on ours goes past it.",
    ),
    Target(
        "ack p50 / p99 / p99.9 at 2,000 a second",
        "<= 0.5 x Kafka; p99.9 no worse; beside a busy control plane no more than beside another process of its load",
        (
            _of_kafka("ack-latency", 0.5, "p50_ms"),
            _of_kafka("ack-latency", 0.5, "p99_ms"),
            _of_kafka("ack-latency", 1.0, "p999_ms"),
            # No more than beside the floor; a tenth lies between two runs of the same side.
            Bound("ack-latency-busy", "p50_ms", 1.1, times=FLOOR),
            Bound("ack-latency-busy", "p99_ms", 1.1, times=FLOOR),
        ),
        why="The floor of ack-latency-busy is ours as well, but another broker, in a process of its own, answers the control "
        "requests: on two cores acks grow by that as much as by the broker's own control plane.",
    ),
    Target(
        "p99 of a new producer's requests of 400 KB beside 500 connections that announce 100 MiB, send 4 MiB and stall",
        "<= 2 x without them",
        (Bound("ack-latency-hoarded", "p99_growth", 2.0),),
    ),
    Target(
        "ack p99 of an honest client next to expensive clients",
        "<= 2 x alone, <= 20 ms",
        (Bound("expensive-neighbours", "p99_growth", 2.0), Bound("expensive-neighbours", "p99_worst_ms", 20.0)),
    ),
    Target(
        "many producers (50), keys, past retention, 30 minutes",
        "throughput and p99 stay within 10 % of the first minutes",
        (
            Bound(LONG_RUN, "throughput_last_to_first", 0.9, at_least=True),
            Bound(LONG_RUN, "throughput_worst_to_first", 0.9, at_least=True),
            Bound(LONG_RUN, "p99_last_to_first", 1.1),
        ),
    ),
    Target(
        "exec to first acknowledged produce / in-process broker",
        "<= 0.7 s / <= 0.3 s",
        (Bound("start", "start_s", 0.7), Bound("start-in-process", "start_s", 0.3)),
    ),
    Target(
        "RSS idle / after load / each idle connection",
        "<= 60 / <= 120 MiB / <= 8 KiB",
        (
            Bound("memory", "rss_idle_mib", 60),
            Bound("memory", "rss_after_load_mib", 120),
            Bound("memory", "rss_each_connection_kib", 8),
        ),
    ),
    Target(
        "kill -9 after 2 GB, to first fetch; 1,000 partitions: create, clean restart, restart after kill -9",
        "<= 1 s; <= 1, <= 1, <= 2 s",
        (
            Bound("recovery", "to_first_fetch_s", 1),
            Bound("partitions-1000", "create_and_produce_s", 1),
            Bound("partitions-1000", "clean_restart_s", 1),
            Bound("partitions-1000", "restart_after_kill_s", 2),
        ),
    ),
    Target(
        "10,000 partitions, 10,000 groups on one node",
        "serves; metadata p99 <= 50 ms; RSS <= 500 MiB",
        (
            Bound("crowd", "metadata_one_p99_ms", 50),
            Bound("crowd", "metadata_all_p99_ms", 50),
            Bound("crowd", "rss_mib", 500),
        ),
    ),
]

PIPELINE_TARGETS = [
    Target(
        "mirror, 128 KB lz4 batches, exactly once, between the same two Kafka brokers: CPU s/GB of values",
        "<= 1/20 x MirrorMaker 2, tuned and warm",
        (Bound("mirror-128k", "cpu_s_per_gb_copied", 1 / 20, times=MIRROR_MAKER),),
    ),
    Target(
        "mirror, 20 KB batches, otherwise the same",
        "<= 1/15 x MirrorMaker 2",
        (Bound("mirror-20k", "cpu_s_per_gb_copied", 1 / 15, times=MIRROR_MAKER),),
        why="A batch is a request of its own, made and answered in Python: that costs more than its bytes do.",
    ),
    Target(
        "mirror between our own brokers: MB/s; RSS with 100 partitions; exec to first record",
        ">= 5 x MirrorMaker 2; <= 80 MiB; <= 0.5 s",
        (
            Bound("mirror-own", "mb_per_s", 5, times=MIRROR_MAKER, at_least=True),
            Bound("mirror-start", "rss_mib", 80),
            Bound("mirror-start", "first_record_s", 0.5),
        ),
    ),
    Target(
        "trickle: 100 partitions x 20 records/s: transactions a second; p99 source ack to target read",
        "<= 1/5 x ours without lingering; <= 150 ms",
        (
            Bound("mirror-trickle", "transactions_per_s", 0.2, times=WITHOUT),
            Bound("mirror-trickle", "p99_ms", 150),
        ),
        why="A transaction is of one partition: 100 partitions that linger for 50 ms are up to 2,000 a second, and "
        "penstock.mirror.transactions.max holds them at 500. So few as a fifth would need several partitions in one.",
    ),
    Target(
        "dedupe, whole stage (fetch to acknowledged publish and commit), 100 M ids, 0.6 % repeats",
        ">= 300,000 messages/s a core and >= 0.8 x the stage at 1 M ids; restart after kill -9 <= 5 s + replay",
        (
            Bound("dedupe-100m", "messages_per_s_a_core", 300_000, at_least=True),
            Bound("dedupe-100m", "messages_per_s_a_core", 0.8, times=WITHOUT, at_least=True),
            Bound("dedupe-100m", "restart_s", 5),
        ),
    ),
    Target(
        "id store alone: an unseen id at 1 M / 100 M; bytes an id held / of memory an id in files",
        "<= 0.3 / <= 0.6 us; <= 40 / <= 1.6",
        (
            Bound("id-store-1m", "unseen_us", 0.3),
            Bound("id-store-100m", "unseen_us", 0.6),
            Bound("id-store-100m", "bytes_an_id_held", 40),
            Bound("id-store-100m", "bytes_of_memory_an_id_in_files", 1.6),
        ),
        why="A place in the hash table has 24 bytes and is used at most by half; an id has a length and a prefix beside it.",
    ),
    Target(
        "penstock.transaction.flush: mirror's MB/s and dedupe's messages/s, ext4 / XFS",
        ">= 0.8 x without it",
        (
            *(Bound(f"mirror-flush-{kind}", "mb_per_s", 0.8, times=WITHOUT, at_least=True) for kind in ("ext4", "xfs")),
            *(Bound(f"dedupe-flush-{kind}", "messages_per_s", 0.8, times=WITHOUT, at_least=True) for kind in ("ext4", "xfs")),
        ),
    ),
    Target(
        "audit of one more night after 30",
        "<= 1/15 x the audit of all 31",
        (),
        why="not there: each audit reads the logs whole",
    ),
    Target(
        "consumer, columns / records, CPU a record, 100 B",
        "<= 1/5 x / <= 1 x confluent-kafka's consume()",
        (
            Bound("client-consume-columns", "cpu_us_per_record", 1 / 5, times=CONFLUENT),
            Bound("client-consume-records", "cpu_us_per_record", 1, times=CONFLUENT),
        ),
        why="A record is an object that Python code makes; confluent-kafka makes its own in C.",
    ),
    Target(
        "producer, columns in / records, CPU a record, 100 B",
        "<= 1/3 x / <= 1 x confluent-kafka's produce()",
        (
            Bound("client-produce-columns", "cpu_us_per_record", 1 / 3, times=CONFLUENT),
            Bound("client-produce-records", "cpu_us_per_record", 1, times=CONFLUENT),
        ),
        why="A call of `send` is Python from end to end; many records go by `send_many`.",
    ),
    Target(
        "a night of 2,000,000 events, start-up aside: rows/s; all memory",
        ">= 0.95 x a bare Spark job that reads, parses and writes the same (3 x later); <= 1 x",
        (
            Bound("night-2m", "rows_per_s", 0.95, times=SPARK, at_least=True),
            Bound("night-2m", "all_memory_mib", 1.0, times=SPARK),
        ),
    ),
    Target(
        "a night with 1 % rejects",
        "<= 1.1 x the same night without",
        (Bound("night-rejects", "night_s", 1.1, of_case="night-2m"),),
    ),
    Target(
        "a night of 2,000 events, from the command to the table",
        "<= 1 x a bare Spark job that reads, parses and writes the same",
        (Bound("night-small", "whole_s", 1.0, times=SPARK),),
    ),
]

TARGETS = {"broker": BROKER_TARGETS, "pipeline": PIPELINE_TARGETS}
ALL_TARGETS = [target for targets in TARGETS.values() for target in targets]
