"""The partitions that a consumer reads: where it stands in each, what it has fetched of them, which are paused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock import log
from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.clients.background import BackgroundLoop, Question, UnderWay
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.clients.partitionbuffer import PartitionBuffer

StepTime = Callable[[], float]
"""How long a poll may wait now, seconds."""


class Positions:
    """Finds positions, fetches, gives out. An error of a partition stands still with it until `seek` moves past it."""

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
        )
        self._buffers: dict[TopicPartition, PartitionBuffer] = {}
        self._unplaced: set[TopicPartition] = set()  # assigned, position not known yet
        self._paused: set[TopicPartition] = set()
        self._search: Question[dict[TopicPartition, int]] = Question(background)
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

    def position(self, tp: TopicPartition) -> int:
        """Where a partition stands, found now if need be. Raises KeyError if it is not assigned."""
        if tp in self._unplaced:
            self._place(None)
        return self._buffers[tp].position

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on from this offset. Raises KeyError if the partition is not assigned."""
        if tp not in self._buffers and tp not in self._unplaced:
            raise KeyError(f"{tp} is not assigned")
        self._put(tp, offset)
        self._apply()

    def seek_to(self, timestamps: Mapping[TopicPartition, int]) -> None:
        """Go on from what `Admin.list_offsets` has for a timestamp; from the end where no record is so late."""
        for tp, offset in self._background.call(self._offsets_at(timestamps)).items():
            self.seek(tp, offset)

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Give nothing of these partitions until `resume`."""
        self._paused.update(tp for tp in tps if tp in self._buffers or tp in self._unplaced)
        self._apply()

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """End the pause of these partitions."""
        self._paused.difference_update(tps)
        self._apply()

    def _put(self, tp: TopicPartition, offset: int) -> None:
        self._unplaced.discard(tp)
        self._buffers[tp] = PartitionBuffer(tp, offset)

    def _apply(self) -> None:
        """Give the fetcher the offsets it goes on from."""
        offsets = {
            tp: buffer.fetch_offset
            for tp, buffer in self._buffers.items()
            if buffer.error is None and not buffer.out_of_range and tp not in self._paused
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

    def _place(self, wait_s: float | None) -> None:
        """Find positions for partitions that have none, and for those whose position the log doesn't have, once all before it
        is given out. Raises UnderWay."""
        missing = self._unplaced - self._paused
        lost = {tp for tp, buffer in self._buffers.items() if buffer.out_of_range and buffer.is_empty}
        if not missing and not lost:
            return
        for tp, offset in self._search.answer(wait_s, lambda: self._find(missing, lost)).items():
            if tp in self._unplaced or (tp in self._buffers and self._buffers[tp].out_of_range):
                self._put(tp, offset)
        self._apply()

    async def _find(self, missing: set[TopicPartition], lost: set[TopicPartition]) -> dict[TopicPartition, int]:
        """Committed positions of the missing ones, else those of `auto.offset.reset`."""
        found: dict[TopicPartition, int] = {}
        if missing and self._group is not None:
            committed = await self._client.committed(self._group, missing)
            found = {tp: at[0] for tp, at in committed.items() if at is not None}
        wanted = sorted((missing - set(found)) | lost)
        if wanted and self._reset == "none":
            text = f"{wanted}: no offset is committed and `auto.offset.reset` is none"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        if wanted:
            found |= await self._offsets_at(dict.fromkeys(wanted, EARLIEST if self._reset == "earliest" else LATEST))
        return found

    async def _offsets_at(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = await self._client.list_offsets(timestamps, self._isolation)
        late = {tp: LATEST for tp, at in found.items() if at.offset < 0}
        ends = await self._client.list_offsets(late, self._isolation) if late else {}
        return {tp: (ends.get(tp) or at).offset for tp, at in found.items()}

    # Polling

    def fetch(self, wait_s: float) -> None:
        """Put what has come into the partitions' buffers."""
        for fetched in self._background.call(self._fetcher.fetch(wait_s * 1000)):
            buffer = self._buffers.get(fetched.tp)
            if buffer is None:
                continue
            error = fetched.error
            if isinstance(error, KafkaError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE and self._reset != "none":
                self._log.warning("%s: reset by `auto.offset.reset`", error)
                buffer.out_of_range, fetched.error = True, None
            buffer.add(fetched)

    def give_out(self, take: Callable[[PartitionBuffer], bool]) -> bool:
        """Let `take` have each buffer in turn, which returns whether it has something. Raises a partition's error once, when
        nothing else is to be given."""
        given = False
        for tp, buffer in list(self._buffers.items()):
            if tp in self._paused:
                continue
            if not buffer.is_empty:
                before = buffer.position
                given = take(buffer) or given
                if buffer.position != before:  # the next poll begins with another partition
                    self._buffers[tp] = self._buffers.pop(tp)
            if buffer.error is not None and not buffer.raised and not given:
                buffer.raised = True
                self._apply()
                raise buffer.error
        return given

    def raise_error(self) -> None:
        """Raise the error of a partition that stands still, if there is one."""
        for buffer in self._buffers.values():
            if buffer.error is not None:
                raise buffer.error

    async def close(self) -> None:
        """End fetching."""
        await self._fetcher.close()
