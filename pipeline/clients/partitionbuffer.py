"""What was fetched of one partition and not yet given out: a position, batches, records of the batch that is open."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from penstock.errors import KafkaError
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetched
from penstock.pipeline.clients.metadata import NO_EPOCH
from penstock.pyx.record import columns
from penstock.pyx.record.rawbatch import BatchError, RawBatch, records_as


class ConsumerRecord(NamedTuple):
    """A record and where it stood. `timestamp_ms` is -1 where the format has none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


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


class PartitionBuffer:
    """Gives out records from a position on. `error` is what stops it behind them. `missing` says that the log has no such
    position; `doubted` is what was fetched under another leader, of which nobody knows yet whether it follows on what was read.
    """

    def __init__(self, tp: TopicPartition, position: int, leader_epoch: int = NO_EPOCH) -> None:
        self.tp = tp
        self.position = position  # of what was given out
        self.leader_epoch = leader_epoch  # of the last batch below it
        self.error: Exception | None = None
        self.raised = False  # the error was, once
        self.missing: KafkaError | None = None
        self.doubted: Fetched | None = None
        self._next_offset = position  # once the batches are used up (past left-out ones)
        self._next_epoch = leader_epoch  # of the last batch below that
        self._batches: deque[RawBatch] = deque()
        self._records: deque[ConsumerRecord] = deque()
        self._opened: RawBatch | None = None  # the batch that the records are of

    @property
    def is_empty(self) -> bool:
        """Whether all that was fetched is given out."""
        return not self._records and not self._batches

    @property
    def fetch_offset(self) -> int:
        """Where fetching goes on."""
        return max(self.position, self._next_offset)

    @property
    def is_held(self) -> bool:
        """Whether nothing is fetched until somebody has looked where the log stands."""
        return self.missing is not None or self.doubted is not None

    def follows(self, fetched: Fetched) -> bool:
        """Whether one leader has appended what was fetched and what was read before, so that they are of one log."""
        return self._next_epoch == NO_EPOCH or fetched.leader_epoch in (self._next_epoch, NO_EPOCH)

    def add(self, fetched: Fetched) -> None:
        """Take what was fetched, and the error behind it."""
        self._batches.extend(fetched.batches)
        self._next_offset = fetched.next_offset
        if fetched.leader_epoch != NO_EPOCH:
            self._next_epoch = fetched.leader_epoch
        self._skip_left_out()
        if isinstance(fetched.error, BatchError):
            self.error = CorruptBatchError(self.tp, fetched.next_offset, fetched.corrupt, fetched.error)
        elif fetched.error is not None:
            self.error = fetched.error

    def take_records(self, most: int) -> list[ConsumerRecord]:
        """The next records. A batch that can't be read becomes the error."""
        taken: list[ConsumerRecord] = []
        while len(taken) < most and self._open_next():
            if len(self._records) <= most - len(taken):
                taken += self._records
                self._records.clear()
            else:
                taken += [self._records.popleft() for _ in range(most - len(taken))]
            self.position = taken[-1].offset + 1
            self._note_epoch(self._opened)
            self._skip_left_out()
        return taken

    def next_record(self) -> ConsumerRecord | None:
        """The next record of the batch that is open; None once that is used up."""
        if not self._records:
            return None
        record = self._records.popleft()
        self.position = record.offset + 1
        self._note_epoch(self._opened)
        if not self._records:
            self._skip_left_out()
        return record

    def _open_next(self) -> bool:
        """Make sure that there are records to give out, if batches are left."""
        while not self._records and self._batches:
            batch = self._batches[0]
            try:
                records = records_as(batch, ConsumerRecord, self.tp, self.position)
            except BatchError as error:
                self._corrupt(batch, error)
                return False
            # A signal handler may raise after each of these: a batch that stays is opened again, without what was given out.
            self._opened = batch
            self._records.extend(records)
            self._batches.popleft()
        return bool(self._records)

    def take_columns(self) -> PolledColumns | None:
        """All that can be opened together: a batch behind it may be corrupt, or all may be too much at once."""
        if self._records and self._opened is not None:  # the position says how much of it was given out
            self._batches.appendleft(self._opened)
        self._records.clear()
        self._opened = None
        decoded = self._decode_first()
        first = int((decoded.offsets < self.position).sum())
        if len(decoded):
            self.position = max(self.position, int(decoded.offsets[-1]) + 1)
        if self.error is None:
            self._skip_left_out()
        return PolledColumns(*self.tp, decoded, first) if first < len(decoded) else None

    def _decode_first(self) -> columns.Columns:
        batches = list(self._batches)
        while batches:
            try:
                decoded = columns.decode(batches)
            except BatchError as error:
                if len(batches) == 1:
                    self._corrupt(batches[0], error)
                    break
                del batches[len(batches) // 2 :]
            else:
                for batch in batches:
                    self._batches.popleft()
                    self._note_epoch(batch)
                return decoded
        return columns.decode([])

    def _corrupt(self, batch: RawBatch, error: BatchError) -> None:
        self.error = CorruptBatchError(self.tp, max(batch.base_offset, self.position), batch, error)
        self._batches.clear()

    def _note_epoch(self, batch: RawBatch | None) -> None:
        if batch is not None and batch.leader_epoch != NO_EPOCH:
            self.leader_epoch = batch.leader_epoch

    def _skip_left_out(self) -> None:
        if self.is_empty:
            self.position = max(self.position, self._next_offset)
            self.leader_epoch = self._next_epoch
