"""Records out: a synchronous consumer with Kafka's properties, in a group or with partitions of its own choice.

    with Consumer("host:9092", **{"group.id": "night", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["events"])
        while True:
            for record in consumer.poll(1.0):
                ...
            consumer.commit()

At least once: commit after the work. At most once: commit before it. Exactly once: keep the offset in the same
transaction as the work's result (`Producer.send_offsets`, or a database's own) and `seek` to it at the start.
"""

from __future__ import annotations

import concurrent.futures
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

from penstock import log
from penstock.config import ConfigError
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.clients.background import BackgroundLoop
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetched, Fetcher
from penstock.pipeline.clients.membership import Membership
from penstock.pyx.record import columns
from penstock.pyx.record.rawbatch import BatchError, RawBatch, records

T = TypeVar("T")
Revoked = Callable[[list[TopicPartition]], None]
Headers = tuple[tuple[str, bytes | None], ...]
MISSING_TOPIC_S = 1.0
BUSY_STEP_S = 0.2  # how often a poll that waits checks whether the group rebalances


class ConsumerRecord(NamedTuple):
    """A record and where it stood. `timestamp_ms` is -1 where the format has none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class PolledColumns(NamedTuple):
    """Records of one partition as columns; rows before `first` lie before the position and are to be skipped."""

    topic: str
    partition: int
    columns: columns.Columns
    first: int


class CorruptBatchError(Exception):
    """A batch that cannot be read. The position stays in front of it: `seek(tp, error.next_offset)` goes past it.

    `raw` are its bytes, to be kept aside, if its header could be read; otherwise `next_offset` is only the next number.
    """

    def __init__(self, tp: TopicPartition, offset: int, raw: RawBatch | None, cause: BatchError) -> None:
        super().__init__(f"`{tp[0]}` partition {tp[1]}: the batch at offset {offset} cannot be read: {cause}")
        self.tp = tp
        self.offset = offset
        self.next_offset = offset + 1 if raw is None else max(raw.next_offset, offset + 1)
        self.raw = None if raw is None else bytes(raw)


class _UnderWay(Exception):
    """An answer that a poll needs has not come within its time; the next poll goes on waiting for it."""


@dataclass(slots=True)
class _Stock:
    """What was fetched of a partition and not yet given out, and the position of what was given out."""

    position: int
    batches: deque[RawBatch] = field(default_factory=deque)
    records: deque[ConsumerRecord] = field(default_factory=deque)
    opened: RawBatch | None = None  # the batch that the records are of
    next_offset: int = 0  # the position once the batches are used up (past left-out ones)
    error: Exception | None = None
    raised: bool = False
    out_of_range: bool = False  # the log has no such position: `auto.offset.reset` finds another

    def close_opened(self) -> None:
        """Put the opened batch back: the position says how much of it was given out."""
        if self.records and self.opened is not None:
            self.batches.appendleft(self.opened)
        self.records.clear()
        self.opened = None


class Consumer:
    """Polls records; see the module. One thread at a time may use it.

    Rebalances happen inside `poll`, and so do their callbacks, which may commit and seek. An error of a partition is
    raised by `poll` (CorruptBatchError, or KafkaError such as OFFSET_OUT_OF_RANGE with `auto.offset.reset=none`); that
    partition then stands still while the others go on, and `poll` raises again whenever it has nothing else to give,
    until `seek` moves past it.
    """

    def __init__(self, bootstrap: str = "", **given: object) -> None:
        self.config = config = properties.load(properties.CONSUMER, given)
        self._group: str | None = config["group.id"]
        self._log = log.get(__name__, client_id=config["client.id"])
        self._client = Admin.from_config(bootstrap, config)
        self._fetcher = Fetcher(
            self._client,
            isolation=config["isolation.level"],
            max_bytes=config["fetch.max.bytes"],
            partition_max_bytes=config["max.partition.fetch.bytes"],
            max_wait_ms=config["fetch.max.wait.ms"],
            min_bytes=config["fetch.min.bytes"],
            check_crcs=config["check.crcs"],
        )
        self._member = None if self._group is None else Membership(self._client, self._group, config)
        self._stocks: dict[TopicPartition, _Stock] = {}
        self._unplaced: set[TopicPartition] = set()  # assigned, position not known yet
        self._paused: set[TopicPartition] = set()
        self._topics: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._shape: dict[str, int] = {}  # partition counts when the group last joined
        self._look_at = 0.0
        self._on_assigned: Revoked | None = None
        self._on_revoked: Revoked | None = None
        self._joining: concurrent.futures.Future[list[TopicPartition]] | None = None
        self._under_way: dict[str, concurrent.futures.Future[Any]] = {}  # questions that outlast a poll
        self._committed_at = time.monotonic()
        self._closed = False
        self._background = BackgroundLoop("penstock-consumer")
        try:
            self._background.call(self._client.start())
        except BaseException:
            self._background.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # What to read

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        *,
        on_assigned: Revoked | None = None,
        on_revoked: Revoked | None = None,
    ) -> None:
        """Take part in the group for these topics, or for all whose whole name matches a compiled pattern (new ones
        too). The callbacks get the partitions that came and that go; `on_revoked` is called before they go."""
        if self._member is None:
            raise ConfigError("`subscribe` needs `group.id`")
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        self._topics = frozenset() if isinstance(topics, re.Pattern) else frozenset(topics)
        self._member.joined = False
        self._look_at = 0.0
        self._drop("topics")

    def unsubscribe(self) -> None:
        """Leave the group and forget all partitions."""
        self._revoke()
        if self._member is not None:
            self._background.call(self._member.leave())
        self._topics, self._pattern = frozenset(), None

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group's help. Positions: committed ones, else `auto.offset.reset`."""
        if self._subscribed:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "`assign` excludes `subscribe`")
        self._take_over(tps)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return sorted({*self._stocks, *self._unplaced})

    @property
    def _subscribed(self) -> bool:
        return bool(self._topics) or self._pattern is not None

    def _take_over(self, tps: Iterable[TopicPartition]) -> None:
        wanted = set(tps)
        self._drop("positions")
        self._drop("last commit")
        self._stocks = {tp: stock for tp, stock in self._stocks.items() if tp in wanted}
        self._unplaced = wanted - set(self._stocks)
        self._paused &= wanted
        self._apply()

    def _apply(self) -> None:
        """Give the fetcher the positions it goes on from: behind what is in stock."""
        offsets = {
            tp: max(stock.position, stock.next_offset)
            for tp, stock in self._stocks.items()
            if stock.error is None and not stock.out_of_range and tp not in self._paused
        }

        async def work() -> None:
            self._fetcher.assign(offsets)

        self._background.call(work())

    # Positions

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on from this offset. Raises KeyError if the partition is not assigned."""
        if tp not in self._stocks and tp not in self._unplaced:
            raise KeyError(f"{tp} is not assigned")
        self._unplaced.discard(tp)
        self._stocks[tp] = _Stock(offset, next_offset=offset)
        self._apply()

    def seek_to(self, timestamps: Mapping[TopicPartition, int]) -> None:
        """Go on from the first offset at or after a timestamp (ms), or from EARLIEST or LATEST (also the end where no
        record is so late)."""
        for tp, offset in self._background.call(self._offsets_at(timestamps)).items():
            self.seek(tp, offset)

    async def _offsets_at(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        isolation = self.config["isolation.level"]
        found = await self._client.list_offsets(timestamps, isolation)
        late = {tp: LATEST for tp, at in found.items() if at.offset < 0}
        ends = await self._client.list_offsets(late, isolation) if late else {}
        return {tp: (ends.get(tp) or at).offset for tp, at in found.items()}

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next record that `poll` will give. Raises KeyError if the partition is not assigned."""
        if tp in self._unplaced:
            self._place(None)
        return self._stocks[tp].position

    def pause(self, *tps: TopicPartition) -> None:
        """Give nothing of these partitions until `resume`."""
        self._paused.update(tp for tp in tps if tp in self._stocks or tp in self._unplaced)
        self._apply()

    def resume(self, *tps: TopicPartition) -> None:
        """End the pause of these partitions."""
        self._paused.difference_update(tps)
        self._apply()

    def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, str] | None]:
        """The group's committed offsets with their metadata."""
        return self._background.call(self._client.committed(self._group_id(), tps))

    def _group_id(self) -> str:
        if self._group is None:
            raise ConfigError("committed offsets need `group.id`")
        return self._group

    def _place(self, wait_s: float | None) -> None:
        """Find positions for partitions that have none (committed ones, else by `auto.offset.reset`), and for those whose
        position the log doesn't have, once all before it is given out. Raises _UnderWay."""
        missing = self._unplaced - self._paused
        lost = {tp for tp, stock in self._stocks.items() if stock.out_of_range and not stock.records and not stock.batches}
        if not missing and not lost:
            return
        for tp, offset in self._within(wait_s, "positions", lambda: self._find_positions(missing, lost)).items():
            if tp in self._unplaced or (tp in self._stocks and self._stocks[tp].out_of_range):
                self._unplaced.discard(tp)
                self._stocks[tp] = _Stock(offset, next_offset=offset)
        self._apply()

    def _place_beside(self, step_s: Callable[[], float]) -> None:
        """The same without holding up the partitions that have a position. Raises _UnderWay when there are none."""
        try:
            self._place(0.0 if self._stocks else step_s())
        except _UnderWay:
            if not self._stocks:
                raise

    async def _find_positions(self, missing: set[TopicPartition], lost: set[TopicPartition]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        if missing and self._group is not None:
            committed = await self._client.committed(self._group, missing)
            found = {tp: at[0] for tp, at in committed.items() if at is not None}
        wanted = sorted((missing - set(found)) | lost)
        reset = self.config["auto.offset.reset"]
        if wanted and reset == "none":
            text = f"{wanted}: no offset is committed and `auto.offset.reset` is none"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        if wanted:
            found |= await self._offsets_at(dict.fromkeys(wanted, EARLIEST if reset == "earliest" else LATEST))
        return found

    def _within(self, wait_s: float | None, what: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to a question, which an earlier poll may have begun. Raises _UnderWay when it doesn't come in time:
        a poll is not held up by a broker that doesn't answer."""
        future = self._under_way.get(what)
        if future is None:
            future = self._under_way[what] = self._background.start(begin())
        concurrent.futures.wait([future], wait_s)
        if not future.done():
            raise _UnderWay
        del self._under_way[what]
        answer: T = future.result()
        return answer

    def _drop(self, what: str) -> None:
        """Forget a question, whose answer would be out of date."""
        future = self._under_way.pop(what, None)
        if future is not None:
            future.cancel()

    # Polling

    def poll(self, timeout_s: float = 1.0) -> list[ConsumerRecord]:
        """Records in order of their offsets for each partition, at most `max.poll.records`; [] after the timeout."""
        most = self.config["max.poll.records"]
        polled: list[ConsumerRecord] = []

        def give(tp: TopicPartition, stock: _Stock) -> bool:
            while len(polled) < most and self._open(tp, stock):
                while stock.records and len(polled) < most:
                    polled.append(stock.records.popleft())
                    stock.position = polled[-1].offset + 1
                if not stock.records and not stock.batches:
                    stock.position = max(stock.position, stock.next_offset)
            return bool(polled)

        self._poll(timeout_s, give)
        return polled

    def poll_columns(self, timeout_s: float = 1.0) -> list[PolledColumns]:
        """All that has come, as columns for each partition; [] after the timeout."""
        polled: list[PolledColumns] = []

        def give(tp: TopicPartition, stock: _Stock) -> bool:
            stock.close_opened()
            if stock.batches:
                decoded = self._decoded(tp, stock)
                first = int((decoded.offsets < stock.position).sum())
                if stock.error is None and not stock.batches:
                    stock.position = max(stock.position, stock.next_offset)
                elif len(decoded):
                    stock.position = max(stock.position, int(decoded.offsets[-1]) + 1)
                if first < len(decoded):
                    polled.append(PolledColumns(*tp, decoded, first))
            return bool(polled)

        self._poll(timeout_s, give)
        return polled

    def _decoded(self, tp: TopicPartition, stock: _Stock) -> columns.Columns:
        """The first batches, as many as can be opened together: one behind them may be corrupt, or all may be too much at
        once. If that is none, the first becomes the partition's error.
        """
        batches = list(stock.batches)
        while True:
            try:
                decoded = columns.decode(batches)
                break
            except BatchError as error:
                if len(batches) == 1:
                    stock.error = CorruptBatchError(tp, max(batches[0].base_offset, stock.position), batches[0], error)
                    stock.batches.clear()
                    return columns.decode([])
                del batches[len(batches) // 2 :]
        for _ in batches:
            stock.batches.popleft()
        return decoded

    def _open(self, tp: TopicPartition, stock: _Stock) -> bool:
        """Make sure that there are records to give out, if batches are left; a corrupt one becomes the error."""
        while not stock.records and stock.batches:
            batch = stock.batches.popleft()
            try:
                opened = records(batch)
            except BatchError as error:
                stock.error = CorruptBatchError(tp, max(batch.base_offset, stock.position), batch, error)
                stock.batches.clear()
                return False
            stock.opened = batch
            stock.records.extend(
                ConsumerRecord(*tp, r.offset, r.timestamp_ms, r.key, r.value, r.headers)
                for r in opened
                if r.offset >= stock.position
            )
        return bool(stock.records)

    def _poll(self, timeout_s: float, give: Callable[[TopicPartition, _Stock], bool]) -> None:
        """Keep the group going, fetch, and give out, until something was given or the time is over."""
        if self._closed:
            raise RuntimeError("the consumer is closed")
        deadline = time.monotonic() + timeout_s

        def step_s() -> float:
            return min(max(0.0, deadline - time.monotonic()), BUSY_STEP_S)

        while True:
            if self._member is not None:
                self._member.poll_time = time.monotonic()
            try:
                if self._subscribed:
                    self._keep_group(step_s)
                self._auto_commit()
                if self._give_out(give):
                    return
                self._place_beside(step_s)
                self._fetch(step_s())
                if self._give_out(give):
                    return
            except _UnderWay:
                pass
            if time.monotonic() >= deadline:
                for stock in self._stocks.values():
                    if stock.error is not None:
                        raise stock.error
                return

    def _give_out(self, give: Callable[[TopicPartition, _Stock], bool]) -> bool:
        given = False
        for tp, stock in list(self._stocks.items()):
            if tp in self._paused:
                continue
            if stock.records or stock.batches:
                before = stock.position
                given = give(tp, stock) or given
                if stock.position != before:  # the next poll begins with another partition
                    self._stocks[tp] = self._stocks.pop(tp)
            if stock.error is not None and not stock.raised and not given:
                stock.raised = True
                self._apply()
                raise stock.error
        return given

    def _fetch(self, wait_s: float) -> None:
        for fetched in self._background.call(self._fetcher.fetch(wait_s * 1000)):
            stock = self._stocks.get(fetched.tp)
            if stock is None:
                continue
            stock.batches.extend(fetched.batches)
            stock.next_offset = fetched.next_offset
            if not stock.batches and not stock.records:
                stock.position = max(stock.position, fetched.next_offset)
            if fetched.error is not None:
                self._failed(stock, fetched)

    def _failed(self, stock: _Stock, fetched: Fetched) -> None:
        error = fetched.error
        if isinstance(error, BatchError):
            stock.error = CorruptBatchError(fetched.tp, fetched.next_offset, fetched.corrupt, error)
        elif error is not None and error.code == ErrorCode.OFFSET_OUT_OF_RANGE and self.config["auto.offset.reset"] != "none":
            self._log.warning("%s: reset by `auto.offset.reset`", error)
            stock.out_of_range = True
        else:
            stock.error = error

    # Group

    def _keep_group(self, step_s: Callable[[], float]) -> None:
        """Join (again) if that is needed. Raises _UnderWay while others are waited for. Callbacks run here."""
        member = self._member
        assert member is not None
        if member.failure is not None:
            raise member.failure
        if self._joining is None:
            try:
                self._look_at_topics(0.0 if member.joined else step_s())
            except _UnderWay:
                if not member.joined:
                    raise
            if member.joined:
                return
            self._revoke(step_s)
            self._joining = self._background.start(member.join(self._topics))
        concurrent.futures.wait([self._joining], step_s())
        if not self._joining.done():
            raise _UnderWay
        joining, self._joining = self._joining, None
        share = joining.result()
        self._take_over(share)
        if self._on_assigned is not None:
            self._on_assigned(sorted(share))

    def _look_at_topics(self, wait_s: float) -> None:
        """Once in `metadata.max.age.ms` (and before the first join): new topics of a pattern, grown topics. While a
        topic is missing, each second. Raises _UnderWay."""
        now = time.monotonic()
        if now < self._look_at:
            return
        pattern = self._pattern
        wanted = None if pattern is not None else sorted(self._topics)
        cluster = self._within(wait_s, "topics", lambda: self._client.metadata(wanted, refresh=True))
        if pattern is not None:
            names = {name for name, info in cluster.topics.items() if not info.internal and pattern.fullmatch(name)}
            self._topics = frozenset(names)
        shape = {name: len(info.partitions) for name, info in cluster.topics.items() if name in self._topics}
        missing = bool(self._topics - set(shape))
        self._look_at = now + (MISSING_TOPIC_S if missing else self.config["metadata.max.age.ms"] / 1000)
        assert self._member is not None
        if shape != self._shape:
            self._shape = shape
            self._member.joined = False

    def _revoke(self, step_s: Callable[[], float | None] = lambda: None) -> None:
        """The partitions go: commit while they are still ours, tell the user, forget them. Raises _UnderWay."""
        going = self.assignment()
        if not going:
            return
        ours = self._member is not None and not self._member.lost
        if self.config["enable.auto.commit"] and ours:
            try:
                self._within(step_s(), "last commit", lambda: self._commit(None))
            except KafkaError as error:
                self._log.warning("the commit before a rebalance failed: %s", error)
        try:
            if self._on_revoked is not None:
                self._on_revoked(going)
        finally:
            self._take_over(())

    def membership(self) -> dict[str, Any]:
        """Generation, member and instance id, for `Producer.send_offsets`."""
        return {} if self._member is None else self._member.identity()

    # Commits

    def positions(self) -> dict[TopicPartition, int]:
        """The positions of all assigned partitions that have one."""
        return {tp: stock.position for tp, stock in self._stocks.items()}

    def commit(self, offsets: Mapping[TopicPartition, int | tuple[int, str]] | None = None) -> None:
        """Commit offsets (by default the positions) and wait. Raises KafkaError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID
        or REBALANCE_IN_PROGRESS when the partitions may have gone to another member."""
        self._background.call(self._commit(offsets))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | tuple[int, str]] | None = None,
        callback: Callable[[KafkaError | None], None] | None = None,
    ) -> None:
        """Commit without waiting; the callback runs in the consumer's own thread and must not wait."""

        def done(future: concurrent.futures.Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if callback is not None:
                callback(error if isinstance(error, KafkaError) else None)
            elif error is not None:
                self._log.warning("a commit failed: %s", error)

        self._background.start(self._commit(offsets)).add_done_callback(done)

    async def _commit(self, offsets: Mapping[TopicPartition, int | tuple[int, str]] | None) -> None:
        chosen = self.positions() if offsets is None else offsets
        pairs = {tp: (at, "") if isinstance(at, int) else at for tp, at in chosen.items()}
        identity = self.membership() if self._subscribed else {}
        if self._subscribed and not identity["member_id"]:
            # Without an id the coordinator of an empty group would take it for a commit from outside.
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"the consumer left group `{self._group}`")
        await self._client.commit(self._group_id(), pairs, **identity)

    def _auto_commit(self) -> None:
        """At the start of a poll everything given out before counts as worked on."""
        if self._group is None or not self.config["enable.auto.commit"]:
            return
        now = time.monotonic()
        if now - self._committed_at >= self.config["auto.commit.interval.ms"] / 1000:
            self._committed_at = now
            self.commit_async(self.positions())

    # End

    def close(self) -> None:
        """Commit (with `enable.auto.commit`), leave the group, close the connections. Closing twice is nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._joining is not None:
                self._joining.cancel()
            if self._subscribed:
                self._revoke()
            elif self.config["enable.auto.commit"] and self._group is not None and self._stocks:
                self.commit()
        except KafkaError as error:
            self._log.warning("the last commit failed: %s", error)
        finally:
            self._background.call(self._shut())
            self._background.stop()

    async def _shut(self) -> None:
        if self._member is not None:
            await self._member.leave()
        await self._fetcher.close()
        await self._client.close()
