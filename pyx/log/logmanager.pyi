"""The logs of one broker, for its control plane. Errors of the disk are OSError, those of Kafka's rules KafkaError.

Unknown partitions raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION), announced ones NOT_LEADER_OR_FOLLOWER or
KAFKA_STORAGE_ERROR. All functions may be called from any thread and release
the GIL while they work; those marked "slow" may touch the disk and belong in an executor thread.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from penstock.errors import KafkaError
from penstock.pyx.log.replicatable import ReplicaTable

SEARCH_INFLATED_BYTES: int
"""What one search by time may inflate, should the headers of many batches lie."""
CUTTING: str
"""The failpoint of `truncate`."""

def room_end(batches_end: int) -> int:
    """Where the zeros end that an append has left for the next ones, behind batches that end at this position."""

class Appended(NamedTuple):
    base_offset: int
    log_append_time_ms: int  # -1 unless LogAppendTime
    log_start: int
    needed: int  # once the high watermark is there, all replicas that count have the records
    waits: bool  # of a coordinator's: it isn't there yet

class Offsets(NamedTuple):
    log_start: int
    last_stable: int
    high_watermark: int
    log_end: int
    leader_epoch: int

class Producer(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int  # -1 if its last batch was a marker
    last_timestamp_ms: int
    coordinator_epoch: int  # -1 if no marker was seen
    txn_first_offset: int  # of its open transaction; -1 if none

class LogSegment(NamedTuple):
    base_offset: int
    size_bytes: int
    path: str  # of its .log file

class FollowerAsk(NamedTuple):
    """What a follower's fetch names."""

    leader: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int  # of the last batch; -1: there is none
    log_start: int

class FollowResult(IntEnum):
    """What became of a leader's answer."""

    DONE = 0
    STALE = 1  # the partition isn't any more what the fetch named
    ROTTEN = 2  # CRC, torn, offsets or epochs that don't follow: nothing of it was appended
    REFUSED = 3  # a cut below the high watermark: the replica is offline from now on, with all its bytes
    DISK = 4  # the disk failed or is full

class TopicFigures(NamedTuple):
    """What was counted since the start: of a topic, from its creation on, or of all. topictally.pxd has the meanings, and
    where they are others than Kafka's."""

    messages_in: int
    bytes_in: int  # of records, as their producers sent them
    bytes_out: int  # of records, as their consumers got them
    produce_requests: int  # a request for each partition that it names
    fetch_requests: int
    failed_produces: int  # partitions that were answered with an error
    failed_fetches: int

class UpkeepResult(NamedTuple):
    segments_deleted: int
    bytes_deleted: int
    newest_ms: int
    """The largest timestamp among those; -1: none."""
    reasons: dict[str, int]
    """How many of them for each reason, in words."""
    rolled: bool
    flushed: bool

class LogManager(ReplicaTable):
    """All that one broker leads; several in one process share nothing (but a folder must be given to one only)."""

    def append(self, topic: str, partition: int, records: bytes, led_since: int = -1) -> Appended:
        """Append whole batches as a coordinator (control batches allowed, no sequence check). Raises KafkaError: also
        NOT_ENOUGH_REPLICAS while fewer are in sync than min.insync.replicas says, and, with `led_since` >= 0,
        NOT_LEADER_OR_FOLLOWER unless this broker has led since that leader epoch without a pause."""

    def append_marker(self, topic: str, partition: int, records: bytes, led_since: int = -1) -> Appended:
        """Append a marker of transactions v2 (KIP-890): refused when a transaction of its own epoch is open.

        Raises KafkaError INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED and as `append`.
        """

    def append_client(self, topic: str, partition: int, records: bytes) -> Appended:
        """Append whole batches as a client's produce request does (sequences checked). Raises KafkaError."""

    def append_replica(self, topic: str, partition: int, records: bytes) -> Appended:
        """Append a leader's whole batches as they are: their offsets (never backwards; with holes only where `note_holes`
        was called before) and epochs stay.

        Raises KafkaError(CORRUPT_MESSAGE) for offsets that don't follow the log.
        """

    def read(self, topic: str, partition: int, offset: int, max_bytes: int, isolation: int = 2) -> bytes:
        """Whole raw batches from the one that holds `offset`, at most max_bytes (but at least one), of one segment.

        isolation: 0 up to the high watermark, 1 up to the last stable offset, 2 up to the log end. Empty at the end.
        Raises KafkaError(OFFSET_OUT_OF_RANGE).
        """

    def aborted(self, topic: str, partition: int, from_offset: int, to_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that touch the range."""

    def offsets(self, topic: str, partition: int) -> Offsets:
        """Where the log begins and ends now."""

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record whose timestamp is at least timestamp_ms; None if there is none. Slow."""

    def max_timestamp(self, topic: str, partition: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that has the largest timestamp; None if the log is empty. Slow."""

    def batch_times(self, wanted: list[tuple[str, int, int]]) -> list[tuple[int, bool] | None]:
        """Of each (topic, partition, offset): the timestamp of the batch that holds the offset (its first record's, where
        the batch says it), and True. Where the page cache lacks the batch, or it is of an old format: the largest timestamp
        of its segment, and False. None: nothing is there, no record of it has a time, or the log isn't open. Slow where a
        disk hangs."""

    def offset_for_epoch(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        """The largest epoch <= `epoch` in the log and its end offset; (-1, -1) if unknown."""

    def delete_records(self, before: Iterable[tuple[str, bytes, int, int]]) -> list[int | KafkaError | OSError]:
        """Move the starts of logs (topic, its id, partition, offset) up to the offset; -1 = the high watermark. Slow. A
        later topic of that name is UNKNOWN_TOPIC_OR_PARTITION.

        Answers of each the new log start, which is on the disk by then, or what went wrong: KafkaError(OFFSET_OUT_OF_RANGE)
        for an offset past the high watermark, OSError of the log folder's checkpoint.
        """

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Cut a log at an offset, or where the batch begins that holds it, whatever its role and its high watermark are: the
        caller knows that nobody misses what goes. It goes on in a new segment. Slow. Raises KafkaError, or OSError: before
        anything was changed, or with the partition offline; then the next start finishes the cut."""

    def follower_ask(self, topic: str, partition: int) -> FollowerAsk | None:
        """What the next fetch of a follower names; None: it is no follower, or takes nothing just now."""

    def follower_append(
        self,
        topic: str,
        partition: int,
        ask: FollowerAsk,
        records: bytes,
        high_watermark: int,
        log_start: int = 0,
        removed_below: int = 0,
    ) -> FollowResult:
        """Take a leader's answer: records, then its high watermark and log start. removed_below: the leader's, if it is past
        what was asked for. Slow."""

    def follower_cut(self, topic: str, partition: int, ask: FollowerAsk, epoch: int, end_offset: int) -> FollowResult:
        """The leader's largest epoch up to the follower's last one is `epoch` and ends at that offset: cut. Slow."""

    def follower_begin(
        self, topic: str, partition: int, ask: FollowerAsk, log_start: int, removed_below: int = 0, again: bool = False
    ) -> FollowResult:
        """The log ends below its leader's log start, or keeps what deletions below removed_below deleted: all of it goes, and
        it begins at that start. again: it began so before and hasn't caught up since. Slow."""

    def producers(self, topic: str, partition: int) -> list[Producer]:
        """State of every producer id that the log remembers."""

    def open_transactions(self, topic: str, partition: int) -> list[Producer]:
        """State of those that have a transaction open, in the order in which these begin."""

    def producer(self, topic: str, partition: int, producer_id: int) -> Producer | None:
        """State of one; None: the log doesn't remember it."""

    def guard(self) -> int:
        """A number for `is_guarded`, taken before a transaction's coordinator is asked; above 0."""

    def is_guarded(self, topic: str, partition: int, producer_id: int, producer_epoch: int, guard: int) -> bool:
        """Whether a batch of a transaction may be appended, as its coordinator has answered: the transaction goes on in this
        partition, or neither the producer's marker nor another role of this broker came since the guard was taken."""

    def highest_producer_id(self, below: int) -> int:
        """The largest producer id below that one which a log remembers; -1 if there is none. Slow with many producers.

        Raises KafkaError(COORDINATOR_LOAD_IN_PROGRESS) while a log that was announced isn't open, unless it is offline.
        """

    def sequences(self, topic: str, partition: int, producer_id: int) -> list[tuple[int, int, int]]:
        """(first sequence, last sequence, first offset) of the up to five last batches of a producer, oldest first."""

    def upkeep(self, topic: str, partition: int, now_ms: int, retain: bool = True, remove: bool = True) -> UpkeepResult:
        """Roll by age, apply retention (if `retain`), flush by policy, expire producer ids, close idle files. Without
        `remove`, files of segments that retention lets go stay until `remove_expired`. Slow. Raises OSError, unless it let
        segments go: their files are to be removed then, and the next round says what is still wrong."""

    def remove_expired(self, path: str, now_ms: int) -> None:
        """Write down where the logs of a log folder begin by now, and remove the files of what retention let go. Slow. Raises
        OSError; the next call tries again."""

    def flush_rolled(self, now_ms: int, most: int = ..., path: str | None = None) -> int:
        """Flush the segments that were sealed a second ago or earlier, so that recovery believes them, of at most so many
        logs, all of one log folder if its path is given; answers of how many. `folder_states` says whether there are
        others. Slow."""

    def give_back_idle(self) -> int:
        """Cut the files of logs that had no append since the last call to their batches: a log that grows fast has blocks
        and zeros behind them. Answers of how many logs."""

    def prove_doubted(self) -> None:
        """Walk the batches of segments whose index files may be wrong, if a fetch or an append waits for it: network
        threads answer NOT_LEADER_OR_FOLLOWER until then. What was wrong is rebuilt, and logged. A partition whose folder
        somebody has removed is offline from then on. Slow. Raises OSError."""

    def sync_all(self, synced: Callable[[str], None]) -> None:
        """Before all logs are stopped: write what is in memory, then sync their file systems once, which costs less than
        a sync of each file; `synced` is told each one's path behind its sync. Slow. A sync that fails takes its folder offline,
        and the stops say so.
        """

    def flush(self, topic: str, partition: int) -> None:
        """Flush what the log has now. Slow; threads that ask for one log's flush at the same time share it.

        Raises KafkaError if the log isn't open, OSError if its folder is or goes offline.
        """

    def write_checkpoints(self, only: str | None = None) -> None:
        """Write the checkpoints of every log folder, or of that one, if something changed. Slow. Raises OSError."""

    def size_bytes(self, topic: str, partition: int) -> int:
        """Bytes of all segments' .log files."""

    def topic_figures(self) -> tuple[dict[str, TopicFigures], TopicFigures]:
        """What was counted of each topic that is here: one that was deleted isn't, and begins at 0 if it is made again. And the
        sum of these, of topics that are gone, and of requests for what isn't here: no figure of it ever goes back."""

    def partition_figures(self) -> list[tuple[str, int, int, int, int]]:
        """Topic, partition, bytes of all segments' .log files, log start and log end of each log that is open, in no order."""

    def segments(self, topic: str, partition: int) -> list[LogSegment]:
        """The segments, oldest first; the last one is written to."""
