"""Records out: a synchronous consumer with Kafka's properties, in a group or with partitions of its own choice."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from penstock import log
from penstock.config import ConfigError
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.background import SyncClient, UnderWay
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.commits import Commits
from penstock.pipeline.clients.partitionbuffer import ConsumerRecord, CorruptBatchError, PartitionBuffer, PolledColumns
from penstock.pipeline.clients.positions import Gaps, Positions, StepTime
from penstock.pipeline.clients.subscription import Revoked, Subscription, TopicFilter, Topics
from penstock.pipeline.clients.truncation import LogTruncatedError, Position

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Consumer", "ConsumerRecord", "CorruptBatchError", "Gaps", "LogTruncatedError", "PolledColumns", "TopicFilter"]

CLOSE_TIMEOUT_S = 30.0
BUSY_STEP_S = 0.2  # how often a poll that waits checks whether the group rebalances


class Consumer(SyncClient[Admin]):
    """Polls records. One thread at a time may use it.

        with Consumer("host:9092", **{"group.id": "night", "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe(["events"])
            while True:
                for record in consumer.poll(1.0):
                    ...
                consumer.commit()

    or record by record, without end unless `consumer.timeout.ms` says so; the time that the group takes to begin counts:

            for record in consumer:
                ...

    At least once: commit after the work. At most once: commit before it. Exactly once: keep the offset in the same
    transaction as the work's result (`Producer.send_offsets`, or a database's own) and `seek` to it at the start.

    Rebalances happen inside `poll`, and so do their callbacks, which may commit and seek. An error of a partition is
    raised by `poll` (CorruptBatchError, or KafkaError such as OFFSET_OUT_OF_RANGE with `auto.offset.reset=none`); that
    partition then stands still while the others go on, and `poll` raises again whenever it has nothing else to give,
    until `seek` moves past it.

    A log that was cut back below the position (an unclean election) is never read over: with `auto.offset.reset=none` `poll`
    raises LogTruncatedError, else it goes on where the log parts from what was read, and says so. `gaps` counts that.

    The constructor raises ConfigError for a property that is unknown or wrong, KafkaError if no broker answers.
    """

    def __init__(self, bootstrap: str = "", **given: object) -> None:
        super().__init__(Admin, bootstrap, properties.CONSUMER, given)
        parts = self._client, self.config, self._background
        self._closed = False
        self._share: list[TopicPartition] | None = None  # was assigned, and is not taken yet
        self._turn_at = 0.0  # when records one by one have to wait for a turn of the group, of commits and fetches
        self._log = log.get(__name__, client_id=self.config["client.id"])
        with self._beginning():
            self._subscription = None if self.config["group.id"] is None else Subscription(*parts)
            self._positions = Positions(*parts)
            self._commits = Commits(*parts, self._positions, self._subscription)
            self._call(self._client.start())

    # What to read

    def subscribe(
        self,
        topics: Topics,
        *,
        on_assigned: Revoked | None = None,
        on_revoked: Revoked | None = None,
        on_lost: Revoked | None = None,
    ) -> None:
        """Take part in the group for these topics, or for all whose whole name matches a compiled pattern or TopicFilter (new
        ones too). The callbacks get the partitions that came and that go; `on_revoked` is called before they go, while they can
        be committed, `on_lost` (by default `on_revoked`) where they may be another member's by now. Raises ConfigError without
        `group.id`, TypeError for one name that is in no list."""
        if self._subscription is None:
            raise ConfigError("`subscribe` needs `group.id`")
        self._subscription.begin(topics)
        self._subscription.on_assigned, self._subscription.on_revoked = on_assigned, on_revoked
        self._subscription.on_lost = on_lost or on_revoked
        self._share = None

    def unsubscribe(self) -> None:
        """Leave the group and forget all partitions."""
        if self._subscription is not None:
            self._subscription.drop_join()
        self._revoke_for_good()
        self._share = None
        if self._subscription is not None:
            self._background.call(self._leave(self._subscription))

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group's help. Positions: committed ones, else `auto.offset.reset`. Raises KafkaError
        INVALID_REQUEST while the consumer is subscribed, TypeError for what is no pair of a topic and a number."""
        if self._subscription is not None and self._subscription.is_active:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "`assign` excludes `subscribe`")
        wanted = list(tps)
        for tp in wanted:
            if not isinstance(tp, tuple) or len(tp) != 2:
                raise TypeError(f'partitions are pairs of a topic and a number, such as ("events", 0), not {tp!r}')
        self._take_over(wanted)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return self._positions.assigned()

    def _take_over(self, tps: Iterable[TopicPartition]) -> None:
        self._commits.drop_last()
        self._positions.assign(tps)

    # Positions

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on from this offset. Raises KeyError if the partition is not assigned."""
        self._positions.seek({tp: Position(offset)})

    def seek_to(self, timestamps: Mapping[TopicPartition, int], timeout_s: float | None = None) -> None:
        """Go on from the first offset at or after a timestamp (ms), or from EARLIEST or LATEST (also the end where no
        record is so late)."""
        self._positions.seek(self._call(self._positions.at(timestamps), timeout_s))

    def position(self, tp: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record that `poll` will give. Raises KeyError if the partition is not assigned."""
        limit_s = self._limit_s(timeout_s)
        try:
            return self._positions.position(tp, limit_s)
        except UnderWay:
            raise self._client.no_answer(limit_s * 1000) from None

    def positions(self) -> dict[TopicPartition, int]:
        """The positions of all assigned partitions that have one."""
        return self._positions.known()

    @property
    def gaps(self) -> Gaps:
        """How often, and over how many offsets, `auto.offset.reset` has moved positions that the logs didn't have any more."""
        return replace(self._positions.gaps)

    def pause(self, *tps: TopicPartition) -> None:
        """Give nothing of these partitions until `resume`."""
        self._positions.pause(tps)

    def resume(self, *tps: TopicPartition) -> None:
        """End the pause of these partitions."""
        self._positions.resume(tps)

    # Polling

    def poll(self, timeout_s: float = 1.0) -> list[ConsumerRecord]:
        """Records in order of their offsets for each partition, at most `max.poll.records`; [] after the timeout."""
        most = self.config["max.poll.records"]
        polled: list[ConsumerRecord] = []

        def take(buffer: PartitionBuffer) -> bool:
            polled.extend(buffer.take_records(most - len(polled)))
            return bool(polled)

        self._poll(timeout_s, take)
        return polled

    def poll_columns(self, timeout_s: float = 1.0) -> list[PolledColumns]:
        """All that has come, as columns for each partition; [] after the timeout."""
        polled: list[PolledColumns] = []

        def take(buffer: PartitionBuffer) -> bool:
            taken = buffer.take_columns()
            if taken is not None:
                polled.append(taken)
            return bool(polled)

        self._poll(timeout_s, take)
        return polled

    def poll_arrow(self, timeout_s: float = 1.0) -> list[pyarrow.RecordBatch]:
        """All that has come, as Arrow's record batches, one for each partition; [] after the timeout. Needs pyarrow.

        Their columns: topic, partition, offset, timestamp, key, value and headers, a list of names and values as bytes.
        """
        from penstock.pipeline.clients.arrow import record_batch  # first: without pyarrow no record may be taken

        return [record_batch(polled) for polled in self.poll_columns(timeout_s)]

    def poll_one(self, timeout_s: float = 1.0) -> ConsumerRecord | None:
        """The next record; None after the timeout. The position is after it, so a commit counts it and no later one."""
        buffer = self._positions.current
        if buffer is not None and time.monotonic() < self._turn_at and not self._closed:
            record = buffer.next_record()
            if record is not None:
                return record
        polled: list[ConsumerRecord] = []

        def take(buffer: PartitionBuffer) -> bool:
            if not polled:
                polled.extend(buffer.take_records(1))
                self._positions.current = buffer if polled else None
            return bool(polled)

        self._positions.current = None
        self._poll(timeout_s, take)
        self._turn_at = time.monotonic() + BUSY_STEP_S
        return polled[0] if polled else None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; the loop ends once none has come for `consumer.timeout.ms`."""
        limit_ms = self.config["consumer.timeout.ms"]
        deadline = math.inf if limit_ms < 0 else time.monotonic() + limit_ms / 1000
        while True:
            record = self.poll_one(min(1.0, max(0.0, deadline - time.monotonic())))
            if record is not None:
                return record
            if time.monotonic() >= deadline:
                raise StopIteration

    def _poll(self, timeout_s: float, take: Callable[[PartitionBuffer], bool]) -> None:
        """Keep the group going, fetch, and give out, until something was given or the time is over."""
        if self._closed:
            raise RuntimeError("the consumer is closed")
        deadline = time.monotonic() + timeout_s

        def step_s() -> float:
            return min(max(0.0, deadline - time.monotonic()), BUSY_STEP_S)

        while True:
            try:
                self._keep_group(step_s)
                self._commits.commit_in_time()
                if self._positions.give_out(take):
                    return
                self._positions.place(step_s)
                self._positions.fetch(step_s())
                if self._positions.give_out(take):
                    return
            except UnderWay:
                pass
            if time.monotonic() >= deadline or self._positions.is_stuck():
                self._positions.raise_error()
                return

    # Group

    def _keep_group(self, step_s: StepTime) -> None:
        """Join (again) if that is needed. Raises UnderWay while others are waited for, unless there is something to read
        meanwhile. Callbacks run here."""
        subscription = self._subscription
        if subscription is None:
            return
        if not subscription.is_active:
            return
        subscription.note_poll()
        reads_on = subscription.keeps_partitions and bool(self.assignment())
        try:
            if self._share is None:
                self._share = subscription.join((lambda: 0.0) if reads_on else step_s, self._revoke, self.assignment)
            if subscription.is_lost:  # so is what was assigned, if this thread stood still between the answer and now
                self._share = None
            if self._share is not None:
                self._take_share(subscription, self._share, step_s)
                self._share = None
        except UnderWay:
            if not reads_on:
                raise

    def _take_share(self, subscription: Subscription, share: list[TopicPartition], step_s: StepTime) -> None:
        """Read what the group's leader assigned. A cooperative member gives back first what it had and others get."""
        held = set(self.assignment())
        going = sorted(held - set(share))
        if going:
            self._commits.commit_last(step_s())
            self._hand_over(going)
            if subscription.is_lost:  # meanwhile
                return
        self._take_over(share)
        if going:
            subscription.join_again()
        if subscription.on_assigned is not None:
            subscription.on_assigned(sorted(set(share) - held))

    def _revoke(self, step_s: StepTime) -> None:
        """All partitions go: commit while they are still ours, tell the user, forget them. Raises UnderWay."""
        going = self.assignment()
        if going:
            self._commits.commit_last(step_s())
            self._hand_over(going)

    def _hand_over(self, going: list[TopicPartition]) -> None:
        """Tell the user of partitions that go, and forget them."""
        subscription = self._subscription
        try:
            if subscription is not None:
                told = subscription.on_lost if subscription.is_lost else subscription.on_revoked
                if told is not None:
                    told(going)
        finally:
            self._take_over(set(self.assignment()) - set(going))

    def _revoke_for_good(self) -> None:
        """The same before the consumer leaves, which a commit without an answer doesn't keep it from."""
        limit_s = self._limit_s(None)
        try:
            self._revoke(lambda: limit_s)
        except UnderWay:
            self._log.warning("the last commit failed: %s", self._client.no_answer(limit_s * 1000))
            self._hand_over(self.assignment())

    def membership(self) -> dict[str, Any]:
        """Generation, member and instance id, for `Producer.send_offsets`; {} of a consumer that reads without a group's help.
        Raises KafkaError UNKNOWN_MEMBER_ID where the group has let it go: its partitions may be another member's."""
        subscription = self._subscription
        if subscription is None:
            return {}
        has_left = subscription.is_lost and not self.assignment()
        return subscription.identity() if subscription.is_active or has_left else {}

    # Commits

    def committed(
        self, tps: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, tuple[int, str] | None]:
        """The group's committed offsets with their metadata."""
        return self._call(self._commits.committed(tps), timeout_s)

    def commit(
        self, offsets: Mapping[TopicPartition, int | tuple[int, str]] | None = None, timeout_s: float | None = None
    ) -> None:
        """Commit offsets (by default the positions) and wait; without positions, as before the first records, there is nothing
        to commit. Raises KafkaError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or REBALANCE_IN_PROGRESS when the partitions may
        have gone to another member; after REQUEST_TIMED_OUT the offsets may be committed or not. Raises ConfigError without
        `group.id`."""
        self._call(self._commits.begin(offsets), timeout_s)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | tuple[int, str]] | None = None,
        callback: Callable[[KafkaError | None], None] | None = None,
    ) -> None:
        """Commit without waiting; the callback runs in the consumer's own thread and must not wait."""
        self._commits.begin_async(offsets, callback)

    # End

    def __exit__(self, *exception: object) -> None:
        """Close. A block that an exception ends commits nothing: the work on what was given out last may not be done."""
        if exception[0] is not None:
            self._commits.are_automatic = False
        self.close()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit (with `enable.auto.commit`), leave the group, close the connections. A broker that gives no answer is waited
        for at most so long; a commit that fails for it is logged. Closing twice is nothing."""
        if self._closed:
            return
        self._closed = True
        self._close_by = time.monotonic() + min(timeout_s, threading.TIMEOUT_MAX)
        try:
            if self._subscription is not None:
                self._subscription.drop_join()
            if self._subscription is not None and self._subscription.is_active:
                self._revoke_for_good()
            elif self._commits.are_automatic and self.positions():
                self.commit()
        except KafkaError as error:
            self._log.warning("the last commit failed: %s", error)
        finally:
            self._end(self._limit_s(timeout_s))

    async def _shut(self) -> None:
        await self._positions.close()
        if self._subscription is not None:
            await self._leave(self._subscription)

    async def _leave(self, subscription: Subscription) -> None:
        """Leave the group once what was committed without waiting is with it."""
        await self._commits.let_out()
        await subscription.end()
