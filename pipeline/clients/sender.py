"""Batches to partition leaders: in order for each partition, several in flight, sent again as the same bytes.

A request to a leader takes the next batch of each partition that has one, up to `max.request.size`. While
`max.in.flight` requests to that leader have no answer, batches wait for company: only a full request goes then.

How order survives a failure: batches of a partition stand in a line. Up to `max.in.flight` of them are under
way. When one fails in a way that another try may cure, nothing more is sent for that partition until all that
is under way has been answered; then the line begins again at its first unanswered batch. An idempotent broker
refuses what came before its turn (OUT_OF_ORDER_SEQUENCE_NUMBER) and knows what it has already (sequence
numbers), so nothing is doubled or reordered.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from penstock import log, tasks
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.backoff import Backoff
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.connection import Connection, Piece
from penstock.pipeline.clients.metadata import NO_TOPIC_ID
from penstock.pipeline.clients.produceframe import (
    LOWEST_VERSION,
    PRODUCE_KEY,
    TOPIC_IDS_FROM,
    TRANSACTIONS_V2_FROM,
    Answers,
    answers_of,
    produce_frame,
)
from penstock.pipeline.clients.producerrecord import QueuedBatch
from penstock.pyx.wire.messages import ProduceRequest

CONCURRENT_PAUSE_S = 0.02  # markers of the transaction before are written within milliseconds
PRODUCER_AT, PRODUCER_BYTES = 43, 10  # producer id and epoch in a batch's header
COUNT_AT = 57  # its records there
_COUNT = struct.Struct(">i")
ANSWER_SLACK_MS = 1_000  # the broker may use the whole request timeout; its answer travels after that
REQUEST_BYTES = 1 << 20  # batches of one request where no `max.request.size` says it


BeforeRequest = Callable[[Sequence[QueuedBatch]], None]
"""Hears of each request, with its batches, before it is sent. Raises nothing."""


class Produced(NamedTuple):
    """Where a batch went: -1 for an offset that is not known (acks=0, or a duplicate of an old batch)."""

    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1


@dataclass(eq=False, slots=True)
class _Entry:
    pieces: list[memoryview]
    size_bytes: int
    deadline: float
    future: asyncio.Future[Produced]
    producer: bytes = b""  # producer id and epoch as the header has them
    done: bool = False
    tried: bool = False  # it went out at least once, so without an answer nobody knows whether it is stored
    failures: int = 0  # tries of its own that failed in a way that another one may cure
    looked_again: bool = False  # for the topic of its name, as its sequence was out of order

    def queued(self, tp: TopicPartition) -> QueuedBatch:
        """What a handler hears of it."""
        (records,) = _COUNT.unpack_from(self.pieces[0], COUNT_AT)
        return QueuedBatch(*tp, records, self.size_bytes)


@dataclass(eq=False, slots=True)
class _Leader:
    """A connection to a broker, and the lines that its next requests take batches of."""

    connection: Connection
    lines: dict[_Line, None] = field(default_factory=dict)
    requests: int = 0  # that have no answer yet
    flushing: bool = False  # the loop is about to look at the lines


@dataclass(eq=False, slots=True)
class _Request:
    """One batch of each of several partitions."""

    version: int = 0
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    entries: list[tuple[_Line, _Entry]] = field(default_factory=list)
    size_bytes: int = 0
    full: bool = False  # another batch would not fit

    def batches(self) -> dict[str, list[tuple[int, list[memoryview]]]]:
        """What `produce_frame` takes."""
        found: dict[str, list[tuple[int, list[memoryview]]]] = {}
        for line, entry in self.entries:
            topic, partition = line.tp
            found.setdefault(topic, []).append((partition, entry.pieces))
        return found


@dataclass(eq=False, slots=True)
class _Line:
    tp: TopicPartition
    backoff: Backoff
    leader: _Leader | None = None  # where its batches go, or last went
    entries: deque[_Entry] = field(default_factory=deque)
    sent: int = 0  # how many of the entries, from the first, are under way or answered
    outstanding: int = 0
    open: bool = False  # the gate was passed
    proven: bytes = b""  # the producer of the last batch known to be stored
    trouble: KafkaError | None = None
    broken: KafkaError | None = None  # a sequence number that will never be stored: all of its producer behind it must fail
    broken_producer: bytes = b""
    expiry: asyncio.TimerHandle | None = None  # when the next batch's time is over
    recovery: asyncio.Task[None] | None = None


class Sender:
    """Lines of batches, one for each partition. Batches carry their producer id and sequence already.

    `gate` is awaited before the first batch of a partition is sent, and again after `close_gates`. With
    idempotent=False a batch may be stored twice when an answer is lost. While `adds_partitions` is set (transactions
    v2, KIP-890) there is no gate: the broker adds the partition to the transaction. It may change while nothing is
    pending. `before_request` hears of each request.
    """

    def __init__(
        self,
        client: Client,
        *,
        acks: int = -1,
        transactional_id: str | None = None,
        idempotent: bool = True,
        gate: Callable[[TopicPartition], Awaitable[None]] | None = None,
        before_request: BeforeRequest | None = None,
    ) -> None:
        self._client = client
        self._acks = acks
        self._transactional_id = transactional_id
        self._idempotent = idempotent
        self._gate = gate
        self._before_request = before_request
        self.adds_partitions = False
        self.sent_by_name: set[str] = set()  # pinned topics that brokers without topic ids in Produce were sent batches of
        self._pins: dict[str, bytes] = {}
        config = client.config
        self._max_in_flight: int = config["max.in.flight.requests.per.connection"]
        self._request_timeout_ms: int = config["request.timeout.ms"]
        self._delivery_timeout_ms: int = config["delivery.timeout.ms"]
        self._retries: float = config.get("retries", math.inf)
        self._request_bytes: int = config.get("max.request.size", REQUEST_BYTES)
        self._lines: dict[TopicPartition, _Line] = {}
        self._under_way: set[asyncio.Future[memoryview]] = set()  # the answers of requests
        self._leaders: dict[Connection, _Leader] = {}
        self._log = log.get(__name__, client_id=config["client.id"])

    def submit(self, tp: TopicPartition, pieces: Sequence[Piece], deadline: float | None = None) -> asyncio.Future[Produced]:
        """Put one batch (in pieces) into its partition's line; the future gives where it went or raises
        KafkaError.

        Order is the order of calls. The first piece holds the whole header.
        The pieces must not change before the future is done and `drain` has returned. `deadline` (loop time), by default
        `delivery.timeout.ms` from now, is when the batch fails that isn't stored, be it under way: nobody knows then
        whether it is stored later.
        """
        loop = asyncio.get_running_loop()
        line = self._lines.get(tp)
        if line is None:
            line = self._lines[tp] = _Line(tp, self._client.backoff())
        if deadline is None:
            deadline = loop.time() + self._delivery_timeout_ms / 1000
        views = [memoryview(piece) for piece in pieces]
        producer = bytes(views[0][PRODUCER_AT : PRODUCER_AT + PRODUCER_BYTES])
        entry = _Entry(views, sum(view.nbytes for view in views), deadline, loop.create_future(), producer)
        line.entries.append(entry)
        if line.expiry is None or deadline < line.expiry.when():
            self._expire_at(line, deadline)
        self._fill(line)
        return entry.future

    def pin(self, topic: str, topic_id: bytes) -> None:
        """Send batches of a topic to the one of this id alone: if another has its name they fail with
        INCONSISTENT_TOPIC_ID. Brokers that know topics by name only (Produce below 13) can't tell: `sent_by_name`.
        """
        if topic_id != NO_TOPIC_ID:
            self._pins[topic] = topic_id

    @property
    def pins(self) -> Mapping[str, bytes]:
        """The pinned topics and their ids."""
        return self._pins

    @property
    def pending(self) -> int:
        """Batches that have no answer yet."""
        return sum(len(line.entries) for line in self._lines.values())

    async def drain(self) -> None:
        """Wait until each batch that was submitted so far is stored or has failed, and each request has its answer: none of
        them is stored later."""
        futures = [entry.future for line in self._lines.values() for entry in line.entries]
        if futures:
            await asyncio.wait(futures)
        if self._under_way:
            await asyncio.wait(self._under_way)

    def close_gates(self) -> None:
        """Each partition has to pass its gate again before its next batch (a new transaction)."""
        for line in self._lines.values():
            line.open = False

    def drop_unsent(self, error: KafkaError) -> None:
        """Fail every batch that is not under way, also those that wait to be sent again."""
        for line in self._lines.values():
            if not line.outstanding:
                self._fail_all(line, error)
            while len(line.entries) > line.sent:
                self._fail(line.entries.pop(), error)

    async def close(self, error: KafkaError) -> None:
        """Fail all that has no answer and end the recoveries."""
        await tasks.end(*(line.recovery for line in self._lines.values()))
        for line in self._lines.values():
            self._fail_all(line, error)
            if line.expiry is not None:
                line.expiry.cancel()
        self._lines.clear()
        self._under_way.clear()
        for leader in self._leaders.values():
            leader.lines.clear()
        self._leaders.clear()

    # A line at work

    def _next(self, line: _Line) -> _Entry | None:
        """The batch that a line may send now."""
        if line.recovery is not None or line.trouble is not None or line.broken is not None:
            return None
        # Counted from the first unanswered batch: a broker tells repeats of the last five batches only.
        while line.sent < min(len(line.entries), self._max_in_flight):
            entry = line.entries[line.sent]
            # A partition takes any first sequence from a producer that it does not know. Until it has stored a batch,
            # none may follow: if the first were refused (a leader that moves), the second would take its place.
            if self._idempotent and line.outstanding and entry.producer != line.proven:
                return None
            if not entry.done:
                return entry
            line.sent += 1
        return None

    def _fill(self, line: _Line) -> None:
        """Let the next request to its leader take what may be sent now; when that takes waiting first, a recovery does."""
        if self._next(line) is None:
            return
        topic, partition = line.tp
        info = self._client.partition_info(topic, partition)
        ready = line.open or self._gate is None or self.adds_partitions
        connection = None
        if ready and info is not None and info.leader >= 0:
            connection = self._client.ready_connection(info.leader, "produce")
        if connection is None:
            if not line.outstanding:  # else the answers of what is under way call this again
                line.recovery = asyncio.create_task(self._recover(line))
            return
        leader = self._leader(connection)
        if line.leader is not None and line.leader is not leader:
            if line.outstanding:  # on another connection, where their answers come first; they call this again
                return
            line.leader.lines.pop(line, None)
        line.leader = leader
        leader.lines[line] = None
        self._flush_soon(leader)

    def _leader(self, connection: Connection) -> _Leader:
        leader = self._leaders.get(connection)
        if leader is None:
            for former in [one for one in self._leaders if one.closed]:
                del self._leaders[former]
            leader = self._leaders[connection] = _Leader(connection)
        return leader

    def _flush_soon(self, leader: _Leader) -> None:
        """Batches that come in the same pass of the loop go along."""
        if not leader.flushing:
            leader.flushing = True
            asyncio.get_running_loop().call_soon(self._flush, leader)

    def _flush(self, leader: _Leader) -> None:
        """Send requests, as many as may be under way."""
        leader.flushing = False
        while leader.lines and not leader.connection.closed:
            request = self._gather(leader)
            if not request.entries or (not request.full and leader.requests >= self._max_in_flight):
                return
            self._send(leader, request)
        if leader.connection.closed:
            lines, leader.lines = leader.lines, {}
            for line in lines:
                self._fill(line)

    def _gather(self, leader: _Leader) -> _Request:
        """What the next request would take: one batch a line, in the order in which the lines came."""
        request = _Request()
        for line in list(leader.lines):
            entry = self._next(line)
            if entry is None:
                del leader.lines[line]
                continue
            topic = line.tp[0]
            try:
                version, topic_id = self._way(topic, leader.connection)
            except KafkaError as error:
                self._begin(line, entry)
                self._finish_attempt(line, entry, error, None)
                continue
            if request.entries and version != request.version:
                continue  # the next request is of its version
            if request.entries and request.size_bytes + entry.size_bytes > self._request_bytes:
                request.full = True
                break
            request.version = version
            request.topic_ids[topic] = topic_id
            request.entries.append((line, entry))
            request.size_bytes += entry.size_bytes
            request.full = request.size_bytes >= self._request_bytes
        return request

    def _way(self, topic: str, connection: Connection) -> tuple[int, bytes]:
        """The version of Produce in which a topic's batches go to a broker, and the topic's id. Raises KafkaError."""
        known = self._client.topic_id(topic) or NO_TOPIC_ID
        topic_id = self._pins.get(topic, known)
        if known not in (topic_id, NO_TOPIC_ID):
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"`{topic}` was recreated")
        highest = ProduceRequest.MAX_VERSION if topic_id != NO_TOPIC_ID else TOPIC_IDS_FROM - 1
        lowest = LOWEST_VERSION
        if self.adds_partitions:
            lowest = TRANSACTIONS_V2_FROM
        elif self._transactional_id is not None:
            highest = min(highest, TRANSACTIONS_V2_FROM - 1)
        return connection.version(PRODUCE_KEY, lowest, highest), topic_id

    def _begin(self, line: _Line, entry: _Entry) -> None:
        line.sent += 1
        line.outstanding += 1
        entry.tried = True

    def _send(self, leader: _Leader, request: _Request) -> None:
        for line, entry in request.entries:
            self._begin(line, entry)
            del leader.lines[line]
            if self._next(line) is not None:
                leader.lines[line] = None  # behind those that this request had no room for
        if request.version < TOPIC_IDS_FROM:
            self.sent_by_name.update(self._pins.keys() & request.topic_ids.keys())
        if self._before_request is not None:
            self._before_request([entry.queued(line.tp) for line, entry in request.entries])
        leader.requests += 1
        connection = leader.connection

        def encode(correlation_id: int) -> list[Piece]:
            return produce_frame(
                request.version,
                correlation_id,
                connection.client_id,
                transactional_id=self._transactional_id,
                acks=self._acks,
                timeout_ms=self._request_timeout_ms,
                batches=request.batches(),
                topic_ids=request.topic_ids,
            )

        future = connection.request(encode, self._request_timeout_ms + ANSWER_SLACK_MS, self._acks != 0)
        self._under_way.add(future)
        future.add_done_callback(partial(self._answered, leader, request))

    def _answered(self, leader: _Leader, request: _Request, answer: asyncio.Future[memoryview]) -> None:
        leader.requests -= 1
        self._under_way.discard(answer)
        if answer.cancelled():
            return
        connection, version = leader.connection, request.version
        lost: KafkaError | None = None
        answers: Answers = {}
        try:
            frame = answer.result()
            if self._acks != 0:
                answers = answers_of(self._client.decode(connection, PRODUCE_KEY, version, frame), version)
        except KafkaError as error:
            lost = error
        for line, entry in request.entries:
            if lost is None and self._acks != 0:
                self._take_answer(line, entry, request, answers, connection)
            else:
                self._finish_attempt(line, entry, lost, None if lost is not None else Produced(-1))
        if leader.lines:
            self._flush_soon(leader)

    def _take_answer(self, line: _Line, entry: _Entry, request: _Request, answers: Answers, connection: Connection) -> None:
        """What the broker says of one batch of a request."""
        topic, partition = line.tp
        part = answers.get((request.topic_ids[topic] if request.version >= TOPIC_IDS_FROM else topic, partition))
        error: KafkaError | None = None
        produced: Produced | None = None
        if part is None:
            connection.close("a produce answer without one of its partitions")
            text = f"`{connection.name}` answered without `{topic}` partition {partition}"
            error = KafkaError(ErrorCode.NETWORK_EXCEPTION, text)
        elif part.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            produced = Produced(-1)  # stored before, so long ago that the broker forgot where
        elif part.error_code:
            more = f": {part.error_message}" if part.error_message else ""
            error = KafkaError(part.error_code, f"produce to `{topic}` partition {partition}{more}")
        else:
            produced = Produced(part.base_offset, part.log_append_time_ms, part.log_start_offset)
        self._finish_attempt(line, entry, error, produced)

    def _finish_attempt(self, line: _Line, entry: _Entry, error: KafkaError | None, produced: Produced | None) -> None:
        """An entry that was under way has its answer: done, to be tried again with the line, or failed."""
        line.outstanding -= 1
        if error is None and produced is not None:
            entry.done = True
            line.proven = entry.producer
            if not entry.future.done():
                entry.future.set_result(produced)
        elif error is not None and self._may_retry(line, entry, error):
            # The first trouble is the cause; refusals of what came behind it are its consequence.
            line.trouble = line.trouble or error
        elif error is not None and not entry.done:
            self._fail_for_good(line, entry, error)
        if self._settle(line):
            line.backoff.reset()
        if line.trouble is not None:
            if line.outstanding == 0 and line.recovery is None:
                line.recovery = asyncio.create_task(self._recover(line))
        else:
            self._fill(line)

    def _settle(self, line: _Line) -> bool:
        """Fail what stands behind a batch that will never be stored, once nothing is under way; forget the first batches that
        are done. Gives whether there were any."""
        if line.broken is not None and not line.outstanding:
            self._fail_behind(line, line.broken)
        before = len(line.entries)
        while line.entries and line.entries[0].done:
            line.entries.popleft()
            line.sent = max(0, line.sent - 1)
        return len(line.entries) < before

    def _expire_at(self, line: _Line, when: float) -> None:
        if line.expiry is not None:
            line.expiry.cancel()
        line.expiry = asyncio.get_running_loop().call_at(when, self._expire, line)

    def _expire(self, line: _Line) -> None:
        """Fail the batches whose time is over, those under way too: what becomes of these is not known."""
        now = asyncio.get_running_loop().time()
        line.expiry = None
        for entry in line.entries:
            if entry.deadline <= now and not entry.done:
                why = "" if line.trouble is None else f", after {line.trouble}"
                text = f"`{line.tp[0]}` partition {line.tp[1]}: not stored within `delivery.timeout.ms`{why}"
                self._fail_for_good(line, entry, KafkaError(ErrorCode.REQUEST_TIMED_OUT, text))
        self._settle(line)
        waiting = [entry.deadline for entry in line.entries if not entry.done]
        if waiting:
            self._expire_at(line, min(waiting))
        self._fill(line)

    def _may_retry(self, line: _Line, entry: _Entry, error: KafkaError) -> bool:
        if entry.done or line.broken is not None or error.code == ErrorCode.INCONSISTENT_TOPIC_ID:
            return False
        if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # A log that never had a record says so, too: another topic may have the name by now, which the next try tells.
            if line.tp[0] in self.sent_by_name and not entry.looked_again:
                entry.looked_again = True
                return True
            return self._idempotent and line.trouble is not None and entry is not line.entries[0]
        entry.failures += error.retriable
        return error.retriable and entry.failures <= self._retries

    def _fail_for_good(self, line: _Line, entry: _Entry, error: KafkaError) -> None:
        """A batch fails out of its turn: what stands behind it counts on its sequence number."""
        self._fail(entry, error)
        if self._idempotent and line.broken is None:
            line.broken, line.broken_producer = error, entry.producer

    def _fail(self, entry: _Entry, error: KafkaError) -> None:
        entry.done = True
        if not entry.future.done():
            entry.future.set_exception(error)
            entry.future.exception()  # a caller that went away must not cause a warning

    def _fail_behind(self, line: _Line, cause: KafkaError) -> None:
        """A sequence number will never be stored, so none behind it can be; each that was under way has had its
        own answer. One that was never sent is certainly not stored (OUT_OF_ORDER_SEQUENCE_NUMBER)."""
        lost = line.trouble or KafkaError(ErrorCode.NETWORK_EXCEPTION, "its answer was lost")
        text = f"a batch before it failed ({cause})"
        for entry in line.entries:
            if not entry.done and entry.producer == line.broken_producer:
                never_sent = KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)
                self._fail(entry, lost if entry.tried else never_sent)
        line.broken = line.trouble = None

    def _fail_all(self, line: _Line, error: KafkaError) -> None:
        for entry in line.entries:
            if not entry.done:
                self._fail(entry, error)
        line.entries.clear()
        line.sent = 0
        line.trouble = None

    async def _pause(self, line: _Line, trouble: KafkaError) -> None:
        """Wait before a line is sent again; the leader may be another one then."""
        pause_s = line.backoff.next_s()
        if trouble.code == ErrorCode.CONCURRENT_TRANSACTIONS:
            pause_s = min(pause_s, CONCURRENT_PAUSE_S)
        else:
            self._log.info("`%s` partition %d: sending again after %s", *line.tp, trouble)
            self._client.forget(line.tp[0])
        await asyncio.sleep(pause_s)

    async def _recover(self, line: _Line) -> None:
        """Pass the gate, find the leader and connect to it, as often as it takes; then the line begins again."""
        loop = asyncio.get_running_loop()
        topic, partition = line.tp
        try:
            while line.entries:
                if line.trouble is not None:
                    await self._pause(line, line.trouble)
                    if not line.entries:
                        return
                try:
                    if self._gate is not None and not line.open and not self.adds_partitions:
                        await self._gate(line.tp)
                        line.open = True
                    left_ms = max(1.0, (line.entries[0].deadline - loop.time()) * 1000) if line.entries else 1.0
                    leader = await self._client.leader(topic, partition, timeout_ms=left_ms)
                    await self._client.connection(leader, "produce")
                except KafkaError as error:
                    if not error.retriable:
                        self._fail_all(line, error)
                        return
                    line.trouble = error
                    continue
                line.trouble = None
                line.sent = 0
                return
        finally:
            line.recovery = None
            line.trouble = None
            task = asyncio.current_task()
            if line.entries and task is not None and not task.cancelling():
                line.sent = 0
                self._fill(line)
