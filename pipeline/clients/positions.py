"""The partitions that a consumer reads: where it stands in each, what it has fetched of them, which are paused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock import log
from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.clients.background import BackgroundLoop, Question, UnderWay
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.clients.partitionbuffer import PartitionBuffer
from penstock.pipeline.clients.truncation import LogTruncatedError, Position, Truncation

StepTime = Callable[[], float]
"""How long a poll may wait now, seconds."""


@dataclass(slots=True)
class Gaps:
    """Where a consumer's positions weren't in their logs any more, and it went on elsewhere by `auto.offset.reset`."""

    resets: int = 0
    """How often."""
    truncations: int = 0
    """In so many of these a log was cut back."""
    skipped: int = 0
    """Offsets that were jumped over."""
    taken_back: int = 0
    """Offsets that were read, and whose place other records may take."""


class _Found(NamedTuple):
    """Where a partition goes on, and for which buffer of it that was looked up (None: it had none)."""

    asked: PartitionBuffer | None
    position: Position
    truncation: Truncation | None = None
    error: KafkaError | None = None
    """Nobody may choose where it goes on."""
    is_right: bool = False
    """The log has all that was read, so what was fetched follows on it."""


class Positions:
    """Finds positions, fetches, gives out. An error of a partition stands still with it until `seek` moves past it.

    A log that was cut back is noticed before anything of it is given out that doesn't follow on what was read: where batches of
    another leader epoch come, where the position isn't in the log, and where a group's position is taken up.
    """

    def __init__(self, client: Admin, config: Config, background: BackgroundLoop) -> None:
        self._client = client
        self._group: str | None = config["group.id"]
        self._reset: str = config["auto.offset.reset"]
        self._isolation = config["isolation.level"]
        self._background = background
        self._fetcher = Fetcher(
            client,
            isolation=self._isolation,
            max_bytes=config["fetch.max.bytes"],
            partition_max_bytes=config["max.partition.fetch.bytes"],
            max_wait_ms=config["fetch.max.wait.ms"],
            min_bytes=config["fetch.min.bytes"],
            check_crcs=config["check.crcs"],
            rack=config["client.rack"],
        )
        self._buffers: dict[TopicPartition, PartitionBuffer] = {}
        self._unplaced: set[TopicPartition] = set()  # assigned, position not known yet
        self._paused: set[TopicPartition] = set()
        self._search: Question[dict[TopicPartition, _Found]] = Question(background)
        self.gaps = Gaps()
        self.current: PartitionBuffer | None = None  # whose open batch is given out record by record, until anything changes
        self._log = log.get(__name__, client_id=config["client.id"])

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others; those that were read before go on where they stand."""
        wanted = set(tps)
        self._search.drop()
        self._buffers = {tp: buffer for tp, buffer in self._buffers.items() if tp in wanted}
        self._unplaced = wanted - set(self._buffers)
        self._paused &= wanted
        self._apply()

    def assigned(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return sorted({*self._buffers, *self._unplaced})

    def known(self) -> dict[TopicPartition, int]:
        """The positions of those that have one."""
        return {tp: buffer.position for tp, buffer in self._buffers.items()}

    def with_epochs(self) -> dict[TopicPartition, Position]:
        """The same with their leader epochs."""
        return {tp: Position(buffer.position, buffer.leader_epoch) for tp, buffer in self._buffers.items()}

    def position(self, tp: TopicPartition, wait_s: float) -> int:
        """Where a partition stands, found now if need be. Raises KeyError if it is not assigned, and UnderWay."""
        if tp in self._unplaced:
            self._place(wait_s)
        return self._buffers[tp].position

    def seek(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Go on from these. Raises KeyError if a partition is not assigned."""
        for tp, position in positions.items():
            if tp not in self._buffers and tp not in self._unplaced:
                raise KeyError(f"{tp} is not assigned")
            self._put(tp, position)
        self._apply()

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Give nothing of these partitions until `resume`."""
        self._paused.update(tp for tp in tps if tp in self._buffers or tp in self._unplaced)
        self._apply()

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """End the pause of these partitions."""
        self._paused.difference_update(tps)
        self._apply()

    def _put(self, tp: TopicPartition, position: Position) -> None:
        self._unplaced.discard(tp)
        self._buffers[tp] = PartitionBuffer(tp, *position)

    def _apply(self) -> None:
        """Give the fetcher the offsets it goes on from."""
        self.current = None
        offsets = {
            tp: buffer.fetch_offset
            for tp, buffer in self._buffers.items()
            if buffer.error is None and not buffer.is_held and tp not in self._paused
        }

        async def work() -> None:
            self._fetcher.assign(offsets)

        self._background.call(work())

    # Positions that are not known

    def place(self, step_s: StepTime) -> None:
        """Find what is missing without holding up the partitions that have a position. Raises UnderWay when there are none."""
        try:
            self._place(0.0 if self._buffers else step_s())
        except UnderWay:
            if not self._buffers:
                raise

    def _place(self, wait_s: float) -> None:
        """Find positions for partitions that have none, and look where the logs of those stand that are held, once all before
        that is given out. Raises UnderWay."""
        missing = self._unplaced - self._paused
        held = {tp: buffer for tp, buffer in self._buffers.items() if buffer.is_held and buffer.is_empty}
        if not missing and not held:
            return
        for tp, found in self._search.answer(wait_s, lambda: self._find(missing, held)).items():
            if self._buffers.get(tp) is found.asked and (found.asked is not None or tp in self._unplaced):
                self._go_on(tp, found)
        self._apply()

    def _go_on(self, tp: TopicPartition, found: _Found) -> None:
        """What was found out about a partition is so."""
        buffer = found.asked
        if found.is_right and buffer is not None and buffer.doubted is not None:
            fetched, buffer.doubted = buffer.doubted, None
            buffer.add(fetched)
        elif found.error is not None:
            if buffer is None:
                self._put(tp, found.position)
                buffer = self._buffers[tp]
            buffer.error, buffer.missing, buffer.doubted = found.error, None, None
        else:
            read = found.truncation.position.offset if found.truncation is not None else None
            read = buffer.position if buffer is not None else read
            if read is not None:
                self._note_gap(tp, read, found)
            self._put(tp, found.position)

    def _note_gap(self, tp: TopicPartition, read: int, found: _Found) -> None:
        """A partition that was read up to an offset goes on elsewhere."""
        offset = found.position.offset
        self.gaps.resets += 1
        self.gaps.truncations += found.truncation is not None
        self.gaps.skipped += max(offset - read, 0)
        self.gaps.taken_back += max(read - offset, 0)
        why = f"its log was cut back, {found.truncation}" if found.truncation else f"its log has no offset {read}"
        self._log.warning("`%s` partition %d: %s; reading goes on at offset %d by `auto.offset.reset`", *tp, why, offset)

    async def _find(
        self, missing: set[TopicPartition], held: Mapping[TopicPartition, PartitionBuffer]
    ) -> dict[TopicPartition, _Found]:
        """Where partitions go on: the missing ones at committed positions, else where `auto.offset.reset` says; those that are
        held where they stand, if the log has all that was read, else where it parts from that."""
        read = {tp: Position(buffer.position, buffer.leader_epoch) for tp, buffer in held.items()}
        if missing and self._group is not None:
            read |= await self._client.committed_positions(self._group, missing)
        nowhere = missing - read.keys()
        if nowhere and self._reset == "none":
            text = f"{sorted(nowhere)}: no offset is committed and `auto.offset.reset` is none"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        cuts = await self._client.find_truncations(read)
        lost = {tp for tp, buffer in held.items() if buffer.missing is not None and tp not in cuts}
        parted = {tp: Position(cut.end, cut.epoch) for tp, cut in cuts.items() if cut.end >= 0}
        wanted = nowhere | lost | (cuts.keys() - parted.keys())
        if self._reset != "none" and wanted:
            parted |= await self.at(dict.fromkeys(wanted, EARLIEST if self._reset == "earliest" else LATEST))
        found: dict[TopicPartition, _Found] = {}
        for tp in read.keys() | missing:
            buffer, cut = held.get(tp), cuts.get(tp)
            error: KafkaError | None = None if cut is None else LogTruncatedError(tp, cut)
            if buffer is not None and tp in lost:
                error = buffer.missing
            if error is not None and self._reset == "none":
                found[tp] = _Found(buffer, read[tp], cut, error)
            else:
                found[tp] = _Found(buffer, parted.get(tp) or read[tp], cut, is_right=tp not in cuts and tp not in lost)
        return found

    async def at(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, Position]:
        """What `Admin.list_offsets` has for timestamps, the end where no record is so late; with the epochs in which the log
        has these offsets or ends there."""
        found = await self._client.list_offsets(timestamps, self._isolation)
        late = {tp: LATEST for tp, at in found.items() if at.offset < 0}
        ends = await self._client.list_offsets(late, self._isolation) if late else {}
        placed = {tp: ends.get(tp) or at for tp, at in found.items()}
        return {tp: Position(at.offset, at.leader_epoch) for tp, at in placed.items()}

    # Polling

    def fetch(self, wait_s: float) -> None:
        """Put what has come into the partitions' buffers."""
        is_one_held = False
        for fetched in self._background.call(self._fetcher.fetch(wait_s * 1000)):
            buffer = self._buffers.get(fetched.tp)
            if buffer is None or buffer.is_held:
                continue
            error = fetched.error
            if isinstance(error, KafkaError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                buffer.missing = error
            elif buffer.follows(fetched):
                buffer.add(fetched)
            else:
                buffer.doubted = fetched
            is_one_held = is_one_held or buffer.is_held
        if is_one_held:
            self._apply()

    def give_out(self, take: Callable[[PartitionBuffer], bool]) -> bool:
        """Let `take` have each buffer in turn, which returns whether it has something. Raises a partition's error once, when
        nothing else is to be given. If a signal handler raises meanwhile, the caller gets no records: positions go back."""
        given, failed = False, None
        before: dict[TopicPartition, Position] = {}
        try:
            for tp, buffer in list(self._buffers.items()):
                if tp in self._paused:
                    continue
                if not buffer.is_empty:
                    before[tp] = Position(buffer.position, buffer.leader_epoch)
                    given = take(buffer) or given
                    if buffer.position != before[tp].offset:  # the next poll begins with another partition
                        self._buffers[tp] = self._buffers.pop(tp)
                if buffer.error is not None and not buffer.raised and not given:
                    failed = buffer
                    break
        except BaseException:
            for tp, position in before.items():
                self._put(tp, position)
            self._apply()
            raise
        if failed is not None and failed.error is not None:
            failed.raised = True
            self._apply()
            raise failed.error
        return given

    def is_stuck(self) -> bool:
        """Whether nothing can come: each partition that isn't paused stands still with an error."""
        asked = [buffer for tp, buffer in self._buffers.items() if tp not in self._paused]
        return bool(asked) and not self._unplaced - self._paused and all(buffer.error is not None for buffer in asked)

    def raise_error(self) -> None:
        """Raise the error of a partition that stands still, if there is one."""
        for buffer in self._buffers.values():
            if buffer.error is not None:
                raise buffer.error

    async def close(self) -> None:
        """End fetching."""
        await self._fetcher.close()
