"""Raw batches out of a cluster: several partitions, several leaders at once, long polls, and who was aborted.

Batches stay as they came: views into the answer that they arrived in. What the caller does not keep is freed
with the answer; at most one answer per leader waits while another is under way (`max_bytes` each).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from penstock import log, tasks
from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.clients.backoff import Backoff
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.fetchrequest import FetchFrom, Isolation, fetch_request, parts_of
from penstock.pipeline.clients.metadata import NO_EPOCH
from penstock.pyx.record.rawbatch import BatchError, RawBatch, marker_type, split
from penstock.pyx.wire.messages import FetchResponse

NO_REPLICA = -1
_fetcher_numbers = itertools.count()


def committed_only(batches: Iterable[RawBatch], aborted: Sequence[FetchResponse.AbortedTransaction]) -> Iterator[RawBatch]:
    """The batches of one answer without control batches and without those of aborted transactions.

    `aborted` names, by producer id, where each aborted transaction began. From the batch that holds that
    offset on, the producer's transactional batches are left out until its abort marker (KIP-98).
    """
    waiting = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    aborting: set[int] = set()
    for batch in batches:
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            aborting.add(waiting.pop().producer_id)
        if batch.is_control:
            if batch.producer_id in aborting and is_abort(batch):
                aborting.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            yield batch


def split_sound(data: memoryview) -> tuple[list[RawBatch], BatchError | None]:
    """The batches of an answer, and what is wrong with the bytes behind them."""
    try:
        return split(data), None
    except BatchError as error:
        wrong = error
    batches: list[RawBatch] = []
    at = 0
    while True:
        try:
            batches.append(RawBatch(data[at:]))
        except BatchError:
            return batches, wrong
        at += batches[-1].size_in_bytes


def is_abort(batch: RawBatch) -> bool:
    """Whether a control batch is the marker of an aborted transaction."""
    try:
        return marker_type(batch) == "abort"
    except BatchError:  # some other kind of control batch
        return False


class BatchMark(NamedTuple):
    """What a batch of format 2 is known by: a log that was cut back, or put back from a copy, and has grown since has another
    batch at that offset. `offset` is the batch's first, `timestamp_ms` its largest timestamp.
    """

    offset: int
    crc: int
    timestamp_ms: int

    @classmethod
    def of(cls, batch: RawBatch) -> BatchMark | None:
        """The mark of a batch; None for an older format, whose bytes a broker may convert when they are fetched."""
        return cls(batch.base_offset, batch.crc, batch.max_timestamp) if batch.magic >= 2 else None


@dataclass(slots=True)
class Fetched:
    """What came for one partition.

    `next_offset` is the position after it, past left-out batches too. With an `error` the partition is not
    fetched again until `seek`, `assign` or `resume` names it; `batches` then are the good ones before the
    error. `corrupt` is the batch that a BatchError speaks of, if its header could be read: `seek(tp,
    corrupt.last_offset + 1)` goes past it. `leader_epoch` is that of the last batch passed, left out or not
    (-1: none), `last_batch` its mark (None: none, or of an older format), `topic_id` that of the log it came from (None or
    zeros from brokers without). `connection` is the number of the connection that it came over.
    """

    topic: str
    partition: int
    batches: list[RawBatch] = field(default_factory=list)
    next_offset: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    error: KafkaError | BatchError | None = None
    corrupt: RawBatch | None = None
    leader_epoch: int = NO_EPOCH
    last_batch: BatchMark | None = None
    topic_id: bytes | None = None
    connection: int = 0

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition as a pair."""
        return self.topic, self.partition


def unpack(
    tp: TopicPartition, offset: int, part: FetchResponse.PartitionData, isolation: Isolation, check_crcs: bool
) -> Fetched:
    """The good batches of an answer to a fetch at an offset; the first corrupt one ends them."""
    fetched = Fetched(*tp, [], offset, part.high_watermark, part.last_stable_offset, part.log_start_offset)
    if not part.records:
        return fetched
    batches, garbage = split_sound(memoryview(part.records))
    if garbage is not None and not batches:
        fetched.error = garbage
        return fetched
    if not batches:
        text = f"`{fetched.topic}` partition {fetched.partition}: a batch at {offset} longer than the answer"
        fetched.error = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
        return fetched
    sound: list[RawBatch] = []
    for batch in batches:
        if batch.last_offset < offset:
            continue
        if check_crcs:
            try:
                batch.check()
            except BatchError as error:
                fetched.error, fetched.corrupt = error, batch
                fetched.next_offset = max(fetched.next_offset, batch.base_offset)
                break
        sound.append(batch)
        fetched.next_offset = batch.last_offset + 1
        fetched.leader_epoch = batch.leader_epoch
    fetched.last_batch = BatchMark.of(sound[-1]) if sound else None
    fetched.error = fetched.error or garbage
    if isolation == "read_committed":
        fetched.batches = list(committed_only(sound, part.aborted_transactions or ()))
    else:
        fetched.batches = [batch for batch in sound if not batch.is_control]
    return fetched


@dataclass(eq=False, slots=True)
class _State:
    topic: str
    partition: int
    offset: int
    backoff: Backoff
    generation: int = 0  # goes up when the position is moved from outside: answers to older requests are dropped
    paused: bool = False
    failed: bool = False
    topic_id: bytes | None = None  # the topic that the position belongs to
    replica: int = NO_REPLICA  # that the leader named for clients of this rack (KIP-392), until a moment of the loop's clock
    replica_until: float = 0.0
    leader_until: float = 0.0  # the replica that the leader named has failed: until then the leader is to serve this client
    not_before: float = 0.0
    trouble_since: float | None = None
    ends: tuple[int, int, int] | None = None  # log start, last stable, high watermark


@dataclass(slots=True)
class _Result:
    state: _State
    generation: int
    fetched: Fetched


class Fetcher:
    """Fetches the assigned partitions from their leaders.

    `fetch` gives what has come, or an empty list after about `max_wait_ms`. An error concerns its partition
    only. What can be cured by waiting (a leader that moved or died) is retried inside and becomes an `error`
    only after `default.api.timeout.ms` without success. OFFSET_OUT_OF_RANGE is always given to the caller,
    and so is INCONSISTENT_TOPIC_ID: the topic was deleted and created again, so the position means nothing any
    more. It fetches what `offsets` names, as `assign` has them. As a context it is closed at its end.
    """

    def __init__(
        self,
        client: Client,
        offsets: Mapping[TopicPartition, int] | None = None,
        *,
        isolation: Isolation = "read_committed",
        max_bytes: int = 16 << 20,
        partition_max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        check_crcs: bool = True,
        rack: str | None = None,
    ) -> None:
        self.client = client
        self._rack = rack
        self._isolation: Isolation = isolation
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._check_crcs = check_crcs
        self._states: dict[TopicPartition, _State] = {}  # in the order in which they are asked for: fairness
        self._tasks: dict[int, asyncio.Task[None]] = {}  # the request under way, by leader
        self._searches: dict[str, asyncio.Task[None]] = {}  # metadata under way, by topic
        self._results: list[_Result] = []
        self._wake = asyncio.Event()
        self._purpose = f"fetch-{next(_fetcher_numbers)}"
        self._log = log.get(__name__, client_id=client.config["client.id"])
        self.assign(offsets or {})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # Positions

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Fetch these partitions from these offsets and no others. One that is assigned already at that very
        position goes on undisturbed."""
        before, self._states = self._states, {}
        for tp, offset in offsets.items():
            known = before.get(tp)
            if known is not None and known.offset == offset and not known.failed:
                self._states[tp] = known
            else:
                self._states[tp] = _State(*tp, offset, self.client.backoff())
        self._wake.set()

    def add(self, tp: TopicPartition, offset: int) -> None:
        """Fetch one more partition, from this offset."""
        self._states[tp] = _State(*tp, offset, self.client.backoff())
        self._wake.set()

    def assigned(self) -> dict[TopicPartition, int]:
        """The positions of all assigned partitions."""
        return {tp: state.offset for tp, state in self._states.items()}

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on from this offset. Raises KeyError if the partition is not assigned."""
        state = self._states[tp]
        state.offset = offset
        state.generation += 1
        state.failed = False
        state.topic_id = None
        state.trouble_since = None
        self._wake.set()

    def pause(self, tp: TopicPartition) -> None:
        """Give nothing of this partition until `resume`; what was fetched ahead is fetched again then."""
        self._states[tp].paused = True

    def resume(self, tp: TopicPartition) -> None:
        """End a pause, or try a partition with an error again."""
        state = self._states[tp]
        state.paused = state.failed = False
        state.generation += 1
        self._wake.set()

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next batch that `fetch` will give. Raises KeyError if it is not assigned."""
        return self._states[tp].offset

    def ends(self, tp: TopicPartition) -> tuple[int, int, int] | None:
        """(log start, last stable, high watermark) offsets of the last answer; None before the first, or if not assigned."""
        state = self._states.get(tp)
        return None if state is None else state.ends

    # Fetching

    async def fetch(self, wait_ms: float | None = None, *, ahead: bool = True) -> list[Fetched]:
        """What has come since the last call, in order of arrival; waits for about `wait_ms` (`max_wait_ms`), then
        gives [].

        With `ahead` the next requests are under way already while the caller works on what it got; without it they
        are made by the next call, so that pauses and seeks in between cost no second fetch.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._max_wait_ms if wait_ms is None else wait_ms) / 1000
        while True:
            taken = self._take()
            if ahead or not taken:
                self._launch(loop.time())
            if taken:
                return taken
            now = loop.time()
            if now >= deadline:
                return []
            later = [state.not_before for state in self._states.values() if state.not_before > now]
            self._wake.clear()
            try:
                async with asyncio.timeout_at(min([deadline, *later])):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Forget all partitions and end what is under way."""
        self._states.clear()
        self._results.clear()
        await tasks.end(*self._tasks.values(), *self._searches.values())

    def _take(self) -> list[Fetched]:
        results, self._results = self._results, []
        taken: list[Fetched] = []
        for result in results:
            state, fetched = result.state, result.fetched
            tp = fetched.tp
            current = self._states.get(tp) is state and state.generation == result.generation
            if not current or state.paused:
                continue
            if fetched.batches:  # those that gave something are asked for last, so that no partition starves
                self._states[tp] = self._states.pop(tp)
            state.offset = fetched.next_offset
            state.failed = fetched.error is not None
            taken.append(fetched)
        return taken

    def _launch(self, now: float) -> None:
        """Start a request to each leader, or replica that a leader named, that has none under way."""
        wants: dict[int, list[_State]] = {}
        for state in self._states.values():
            if state.paused or state.failed or state.not_before > now:
                continue
            info = self.client.partition_info(state.topic, state.partition)
            topic_id = self.client.topic_id(state.topic)
            if info is None or info.leader < 0:
                if state.topic not in self._searches:
                    task = asyncio.create_task(self._search(state.topic))
                    self._searches[state.topic] = task
                continue
            if state.topic_id is None:
                state.topic_id = topic_id
            elif topic_id != state.topic_id:
                self._fail(state, KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"`{state.topic}` was created again"))
                continue
            if state.replica != NO_REPLICA and (now > state.replica_until or state.replica not in info.replicas):
                state.replica = NO_REPLICA
            source = info.leader if state.replica == NO_REPLICA else state.replica
            if source not in self._tasks:
                wants.setdefault(source, []).append(state)
        for node_id, states in wants.items():
            self._tasks[node_id] = asyncio.create_task(self._fetch_from(node_id, states))

    async def _search(self, topic: str) -> None:
        """Ask for a topic's leaders; partitions without one are put off."""
        failure: KafkaError | None = None
        try:
            (await self.client.metadata([topic])).topic(topic)
        except KafkaError as error:
            failure = error
        finally:
            self._searches.pop(topic, None)
        for state in list(self._states.values()):
            if state.topic != topic or state.failed:
                continue
            info = self.client.partition_info(topic, state.partition)
            if info is None or info.leader < 0:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else ErrorCode.LEADER_NOT_AVAILABLE
                self.client.forget(topic)
                self._put_off(state, failure or KafkaError(code, f"`{topic}` partition {state.partition}"))
        self._wake.set()

    def _put_off(self, state: _State, error: KafkaError) -> None:
        """Try a partition again after a pause, or give the error out once its time is over."""
        now = asyncio.get_running_loop().time()
        if state.trouble_since is None:
            state.trouble_since = now
        limit_s = self.client.config["default.api.timeout.ms"] / 1000
        if not error.retriable or now - state.trouble_since > limit_s:
            self._fail(state, error)
            return
        state.not_before = now + state.backoff.next_s()
        self._log.debug("`%s` partition %d is tried again: %s", state.topic, state.partition, error)

    def _fail(self, state: _State, error: KafkaError | BatchError) -> None:
        state.failed = True
        state.trouble_since = None
        start, stable, high = state.ends or (-1, -1, -1)
        fetched = Fetched(state.topic, state.partition, [], state.offset, high, stable, start, error)
        self._results.append(_Result(state, state.generation, fetched))
        self._wake.set()

    async def _fetch_from(self, node_id: int, states: list[_State]) -> None:
        asked = {(state.topic, state.partition): (state, state.generation, state.offset) for state in states}
        topic_ids = {state.topic: state.topic_id for state in states}
        now = asyncio.get_running_loop().time()
        to_leader = any(state.leader_until > now for state in states)  # which names no replica to clients without a rack
        request = fetch_request(
            self.client,
            [FetchFrom(state.topic, state.partition, state.offset, self._partition_max_bytes) for state in states],
            topic_ids,
            isolation=self._isolation,
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            rack=None if to_leader else self._rack,
        )
        throttle_ms = 0
        try:
            timeout_ms = self.client.config["request.timeout.ms"] + self._max_wait_ms
            connection = await self.client.connection(node_id, self._purpose)
            answer: FetchResponse = await self.client.send_on(connection, node_id, request, timeout_ms=timeout_ms)
            raise_for(answer.error_code, f"fetch from broker {node_id}")
            for tp, part in parts_of(answer, topic_ids):
                known = asked.pop(tp, None)
                if known is not None:
                    self._answered(*known, part, connection.number)
            throttle_ms = answer.throttle_time_ms
        except KafkaError as error:
            for state, generation, _ in asked.values():
                if state.generation != generation:
                    continue
                self.client.forget(state.topic)
                if state.replica != NO_REPLICA:
                    self._return_to_leader(state, error)
                else:
                    self._put_off(state, error)
        finally:
            if throttle_ms:
                self._mute(states, throttle_ms)
            del self._tasks[node_id]
            self._wake.set()

    def _return_to_leader(self, state: _State, error: KafkaError) -> None:
        """Read on from the leader at once, and for as long as the leader's word for a replica would have counted: it may go on
        naming that one."""
        failed = state.topic, state.partition, state.replica, error
        self._log.info("`%s` partition %d is read from its leader, as replica %d failed: %s", *failed)
        state.replica, state.leader_until = NO_REPLICA, self._metadata_expiry()

    def _metadata_expiry(self) -> float:
        """When something that brokers say now has to be asked for again, by the loop's clock."""
        return asyncio.get_running_loop().time() + float(self.client.config["metadata.max.age.ms"]) / 1000

    def _mute(self, states: list[_State], throttle_ms: int) -> None:
        """The broker asked for a pause (quotas)."""
        until = asyncio.get_running_loop().time() + throttle_ms / 1000
        for state in states:
            state.not_before = max(state.not_before, until)

    def _answered(
        self,
        state: _State,
        generation: int,
        offset: int,
        part: FetchResponse.PartitionData,
        connection: int,
    ) -> None:
        if state.generation != generation:
            return
        named = part.preferred_read_replica
        if named != NO_REPLICA and not part.error_code:
            state.replica, state.replica_until = named, self._metadata_expiry()
            if not part.records:
                return
        elif part.error_code and state.replica != NO_REPLICA:  # a follower may lag or be none any more: its leader knows
            self.client.forget(state.topic)
            self._return_to_leader(state, KafkaError(part.error_code, f"fetch from replica {state.replica}"))
            return
        if part.error_code:
            error = KafkaError(part.error_code, f"fetch of `{state.topic}` partition {state.partition} at {offset}")
            if error.retriable and part.error_code != ErrorCode.CORRUPT_MESSAGE:
                self.client.forget(state.topic)
                self._put_off(state, error)
            else:
                if part.high_watermark >= 0:
                    state.ends = part.log_start_offset, part.last_stable_offset, part.high_watermark
                self._fail(state, error)
            return
        state.backoff.reset()
        state.trouble_since = None
        state.ends = part.log_start_offset, part.last_stable_offset, part.high_watermark
        fetched = unpack((state.topic, state.partition), offset, part, self._isolation, self._check_crcs)
        fetched.topic_id, fetched.connection = state.topic_id, connection
        if fetched.batches or fetched.next_offset != offset or fetched.error is not None:
            self._results.append(_Result(state, generation, fetched))
