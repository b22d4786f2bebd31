"""The project's own judge of a log: what clients were told, held against what the log shows.

A test records what each client did and was answered (`Send`, `Poll`, `Commit`, `Assigned`, `End`) into a
`History`, reads the whole log at the end (polls of the consumer FINAL), and `check` lists every
`Anomaly`. The rules are those of Jepsen's Kafka workload, and some more:

- inconsistent_offset: one offset of a partition was shown with two values;
- duplicate: one value was read at two offsets;
- ack_offset_mismatch: a value was read, but not at the offset that was acknowledged;
- corrupt_payload: a value whose checksum does not hold was read;
- wrong_partition: a value was read in another partition than it was sent to;
- phantom: a value that nobody sent was read;
- aborted_read: a value that was certainly not written (or whose transaction aborted) was read;
- lost_write: an acknowledged value was never read, though later ones of its partition were;
- unseen: an acknowledged value was never read, at the end of its partition;
- torn_txn: of a transaction of unknown outcome some values were read and some not;
- reread_differs: what a poll showed is not in the final read;
- nonmonotonic_send: a producer's later value stands before an earlier one;
- poll_nonmonotonic, poll_skip: a consumer went back, or passed over a value, between two polls or within one;
- group_rewound, group_skip: a group member began below what was committed, or above anything that was;
- stale_end, end_regression: an end offset below an acknowledged offset, or below an earlier end offset;
- vacuous: nothing was acknowledged, or there was no final read: the run shows nothing.

Outcomes: OK = it happened; FAIL = it certainly did not; INFO = nobody knows. Gaps in offsets are lawful:
control records and aborted ones have offsets too.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

FINAL = "final"  # The consumer of the complete read at the end.
CORRUPT = "!corrupt"


class Outcome(Enum):
    """What a client knows of an operation."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass
class Send:
    """A value sent; `number` counts a producer's sends in the order in which it made them."""

    producer: str
    number: int
    partition: int
    value: str
    outcome: Outcome
    offset: int | None
    started: float
    ended: float
    transaction: str | None = None


@dataclass
class Poll:
    """Records that a consumer was handed at once: (partition, offset, value)."""

    consumer: str
    assignment: int
    records: list[tuple[int, int, str]]
    started: float
    ended: float


@dataclass
class Assigned:
    """A group member begins to read partitions at these offsets."""

    group: str
    positions: dict[int, int]
    started: float


@dataclass
class Commit:
    """Offsets that a group's member committed."""

    group: str
    offsets: dict[int, int]
    outcome: Outcome
    started: float
    ended: float


@dataclass
class End:
    """An answer to the question where a partition ends."""

    partition: int
    offset: int
    started: float
    ended: float


@dataclass
class History:
    """All that clients did and saw. Lists grow from several threads: `append` is atomic in Python."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    assigned: list[Assigned] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)


@dataclass(frozen=True)
class Anomaly:
    """A broken rule, with what broke it in words."""

    kind: str
    what: str


def encode(value: str, size: int = 100) -> bytes:
    """A payload that carries a value and its checksum."""
    body = value.encode() + b"|"
    body = body.ljust(max(size - 8, len(body)), b".")
    return body + b"%08x" % zlib.crc32(body)


def decode(payload: bytes | None) -> str:
    """The value of a payload; CORRUPT and some bytes if it isn't one of ours."""
    if payload is None or len(payload) < 9 or b"%08x" % zlib.crc32(payload[:-8]) != payload[-8:]:
        return f"{CORRUPT}:{payload[:24].hex() if payload is not None else None}"
    return payload.split(b"|", 1)[0].decode()


class _Log:
    """What is known of the partitions: values by offset, from reads and from acknowledgements."""

    def __init__(self, history: History) -> None:
        self.writer = {send.value: send for send in history.sends}
        self.reads: dict[tuple[int, str], set[int]] = defaultdict(set)  # (partition, value) -> offsets
        self.values: dict[tuple[int, int], set[str]] = defaultdict(set)  # (partition, offset) -> values
        self.last_read: dict[int, int] = {}
        self.final: dict[tuple[int, int], str] = {}
        for poll in history.polls:
            for partition, offset, value in poll.records:
                self.reads[partition, value].add(offset)
                self.values[partition, offset].add(value)
                self.last_read[partition] = max(offset, self.last_read.get(partition, -1))
                if poll.consumer == FINAL:
                    self.final[partition, offset] = value
        for send in history.sends:
            if send.outcome is Outcome.OK and send.offset is not None:
                self.values[send.partition, send.offset].add(send.value)
        self.order: dict[int, list[int]] = defaultdict(list)  # partition -> offsets with a known value
        for partition, offset in sorted(self.values):
            self.order[partition].append(offset)
        self.place = {
            (partition, offset): place for partition, offsets in self.order.items() for place, offset in enumerate(offsets)
        }


def check(history: History) -> list[Anomaly]:
    """Every broken rule of a history; an empty list means that the log kept its word."""
    log = _Log(history)
    rules = (
        _vacuous(history),
        _values(log),
        _lost(history, log),
        _torn(history, log),
        _reread(history, log),
        _send_order(history),
        _poll_order(history, log),
        _groups(history),
        _ends(history),
    )
    return [anomaly for rule in rules for anomaly in rule]


def kinds(anomalies: Iterable[Anomaly]) -> set[str]:
    """The kinds among anomalies."""
    return {anomaly.kind for anomaly in anomalies}


def _vacuous(history: History) -> Iterator[Anomaly]:
    if not any(send.outcome is Outcome.OK for send in history.sends):
        yield Anomaly("vacuous", "nothing was acknowledged")
    if not any(poll.consumer == FINAL and poll.records for poll in history.polls):
        yield Anomaly("vacuous", "there was no final read")


def _values(log: _Log) -> Iterator[Anomaly]:
    for (partition, offset), values in log.values.items():
        if len(values) > 1:
            yield Anomaly("inconsistent_offset", f"{partition}@{offset}: {sorted(values)}")
    for (partition, value), offsets in log.reads.items():
        where = f"{value} in {partition} at {sorted(offsets)}"
        if len(offsets) > 1:
            yield Anomaly("duplicate", where)
        send = log.writer.get(value)
        if value.startswith(CORRUPT):
            yield Anomaly("corrupt_payload", where)
        elif send is None:
            yield Anomaly("phantom", where)
        elif send.partition != partition:
            yield Anomaly("wrong_partition", f"{where}, sent to {send.partition}")
        elif send.outcome is Outcome.FAIL:
            yield Anomaly("aborted_read", where)
        elif send.outcome is Outcome.OK and send.offset is not None and send.offset not in offsets:
            yield Anomaly("ack_offset_mismatch", f"{where}, acknowledged at {send.offset}")


def _lost(history: History, log: _Log) -> Iterator[Anomaly]:
    for send in history.sends:
        if send.outcome is Outcome.OK and (send.partition, send.value) not in log.reads:
            later = send.offset is not None and send.offset < log.last_read.get(send.partition, -1)
            where = f"{send.value} acknowledged at {send.partition}@{send.offset}"
            yield Anomaly("lost_write" if later else "unseen", where)


def _torn(history: History, log: _Log) -> Iterator[Anomaly]:
    unknown: dict[str, list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.transaction is not None and send.outcome is Outcome.INFO:
            unknown[send.transaction].append(send)
    for transaction, sends in unknown.items():
        missing = [send.value for send in sends if (send.partition, send.value) not in log.reads]
        if missing and len(missing) < len(sends):
            yield Anomaly("torn_txn", f"{transaction} was read without {missing}")


def _reread(history: History, log: _Log) -> Iterator[Anomaly]:
    for poll in history.polls:
        for partition, offset, value in poll.records:
            if log.final and log.final.get((partition, offset)) != value:
                found = log.final.get((partition, offset))
                yield Anomaly("reread_differs", f"{partition}@{offset} was {value}, then {found}")


def _send_order(history: History) -> Iterator[Anomaly]:
    lanes: dict[tuple[str, int], list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.outcome is Outcome.OK and send.offset is not None:
            lanes[send.producer, send.partition].append(send)
    for sends in lanes.values():
        for before, after in pairwise(sorted(sends, key=lambda send: send.number)):
            assert before.offset is not None and after.offset is not None
            if after.offset <= before.offset:
                yield Anomaly("nonmonotonic_send", f"{before.value}@{before.offset}, {after.value}@{after.offset}")


def _poll_order(history: History, log: _Log) -> Iterator[Anomaly]:
    last: dict[tuple[str, int, int], int] = {}
    for poll in history.polls:
        for partition, offset, value in poll.records:
            lane = (poll.consumer, poll.assignment, partition)
            before = last.get(lane)
            last[lane] = offset
            if before is None:
                continue
            step = log.place[partition, offset] - log.place[partition, before]
            where = f"{poll.consumer} read {value} at {partition}@{offset} after {before}"
            if step < 1:
                yield Anomaly("poll_nonmonotonic", where)
            elif step > 1:
                yield Anomaly("poll_skip", where)


def _groups(history: History) -> Iterator[Anomaly]:
    for assigned in history.assigned:
        for partition, position in assigned.positions.items():
            mine = [c for c in history.commits if c.group == assigned.group and partition in c.offsets]
            certain = [c.offsets[partition] for c in mine if c.outcome is Outcome.OK and c.ended < assigned.started]
            tried = [c.offsets[partition] for c in mine if c.started < assigned.started]
            where = f"{assigned.group} began {partition} at {position}"
            if certain and position < max(certain):
                yield Anomaly("group_rewound", f"{where}, {max(certain)} was committed")
            if position > max(tried, default=0):
                yield Anomaly("group_skip", f"{where}, the highest commit was {max(tried, default=0)}")


def _ends(history: History) -> Iterator[Anomaly]:
    """Walk each partition in time: what was known before a question began bounds its answer from below."""
    # (time, kind, offset, question): acknowledgements and answers count from their end, questions from their start.
    happenings: dict[int, list[tuple[float, int, int, End | None]]] = defaultdict(list)
    for send in history.sends:
        if send.outcome is Outcome.OK and send.offset is not None:
            happenings[send.partition].append((send.ended, 1, send.offset, None))
    for end in history.ends:
        happenings[end.partition].append((end.started, 0, 0, end))
        happenings[end.partition].append((end.ended, 2, end.offset, None))
    for partition, events in happenings.items():
        acknowledged, ended = -1, -1
        for _, kind, offset, question in sorted(events, key=lambda event: event[:2]):
            if question is not None:
                where = f"{partition} ends at {question.offset}"
                if question.offset <= acknowledged:
                    yield Anomaly("stale_end", f"{where}, {acknowledged} was acknowledged")
                if question.offset < ended:
                    yield Anomaly("end_regression", f"{where}, it was {ended}")
            elif kind == 1:
                acknowledged = max(acknowledged, offset)
            else:
                ended = max(ended, offset)
