"""Which logs a broker leads, and the folders that they lie in. Errors of the disk are OSError.

Configuration keys of `lead` and `reconfigure` (all int; times ms, sizes bytes; missing ones take Kafka's defaults):
segment_bytes segment_ms index_interval_bytes segment_index_bytes retention_ms retention_bytes flush_messages
flush_ms max_message_bytes timestamp_before_max_ms timestamp_after_max_ms producer_id_expiration_ms
log_append_time cleanup_delete cleanup_compact file_delete_delay_ms segment_jitter_ms preallocate
min_compaction_lag_ms delete_retention_ms (without either, 0).

All may be called from any thread and release the GIL while they work; those marked "slow" may touch the disk and belong
in an executor thread.
"""

from typing import NamedTuple

from penstock.pyx.log.partition import LogSetOwner

class CorruptLogError(ValueError):
    """Records of a log that were acknowledged can't be read, or are missing; the text says which, and what to do. Nothing
    was changed."""

class Recovered(NamedTuple):
    log_start: int
    log_end: int
    batches_checked: int  # batches whose bytes were read and checked; 0 after a clean stop
    cut_bytes: int  # removed at the end because they were no whole, right batch, nor room ahead (zeros to `room_end`)

class FolderState(NamedTuple):
    failed: int  # errno of its failure; 0 = none
    space: int  # on its disk: 0 = some, 1 = an append found none, 2 = kept for the broker itself
    rolled: bool  # a segment was sealed: `flush_rolled` has something to do
    ahead: bool  # files have more than their batches, for appends to come: `give_back_idle` will have something to do
    doubted: bool = False  # a network thread came upon an index file that may be wrong: `prove_doubted` has something to do

class LongWrite(NamedTuple):
    ms: int  # for how long it has been out
    log_dir: str

class LogTable(LogSetOwner):
    """What `LogManager` stands on: logs are announced, led, stopped and deleted here."""

    def lead(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        leader_epoch: int,
        folder: str,
        config: dict[str, int],
        clean: bool = False,
        new: bool = True,
        power_cut: bool = False,
    ) -> Recovered:
        """Open (or create, if it is `new`) the log `<folder>/<topic>-<partition>` and take the lead. Slow.

        `folder` is the log.dir. clean: the broker was stopped cleanly (its marker file was there), so the log isn't walked.
        power_cut: the machine may have lost what wasn't flushed: holes there are cut off, as torn ends are, and are no damage.
        If the partition is led already, only the leader epoch is raised. Raises CorruptLogError when records that
        were acknowledged are missing or can't be read, OSError when the folder can't be used (FileNotFoundError: it isn't
        there, and isn't new), ValueError for a name, id or config that is wrong.
        """

    def announce(self, topic: str, topic_id: bytes, partition: int, offline: bool = False) -> None:
        """Say that a partition exists though its log isn't open: it answers NOT_LEADER_OR_FOLLOWER, which clients try
        again, or KAFKA_STORAGE_ERROR if `offline`. `lead` takes its place. May be called again to change `offline`.
        Raises ValueError if it is led.
        """

    def withdraw(self, topic: str, partition: int) -> None:
        """Forget what was announced."""

    def hold(self, topic: str, partition: int) -> None:
        """Let network threads keep requests for a partition, with nothing done, until `release`: also while it is stopped
        and led again. Requests that have found it before go on: wait until `held_appends` is False. Raises KafkaError."""

    def held_appends(self, topic: str, partition: int) -> bool:
        """Whether a produce that has found the partition isn't done with it. Raises KafkaError."""

    def release(self, topic: str, partition: int) -> None:
        """Let the requests go on that `hold` has kept; they are answered by what the partition is then. May be called again,
        and for a partition that isn't there."""

    @property
    def produces_held(self) -> int:
        """Produce requests that `hold` has kept so far."""

    def folder_states(self) -> dict[str, FolderState]:
        """Of each folder that holds a log."""

    def longest_write(self) -> LongWrite:
        """The append, or flush that an append waits for, that has been at a disk for longest; (0, "") if none is. May be called
        from any thread, and waits for no disk."""

    def fail_folder(self, path: str, error: int) -> None:
        """Take all partitions of a log folder offline, for as long as this object lives; `error` is an errno."""

    def abandon(self) -> None:
        """Leave all files as they are, as a kill does: every append, flush and checkpoint fails from now on, without words."""

    def set_space(self, path: str, space: int) -> None:
        """0 = clients may append; 2 = only coordinators may (KAFKA_STORAGE_ERROR for the others); 1 = nobody is refused,
        but a full disk isn't reported again."""

    def topic_id(self, topic: str, partition: int) -> bytes:
        """Of which topic an open log is: a name may be used again. Raises KafkaError."""

    def folder_of(self, topic: str, partition: int) -> str:
        """The log folder that holds the partition."""

    @property
    def rebuilt_indexes(self) -> int:
        """Segments whose index files were missing or wrong and were rebuilt from the batches; each was a line in the log."""

    @property
    def walked_bytes(self) -> int:
        """Bytes that openings have walked so far: whole MiB of each log, while it is walked."""

    @property
    def damaged_segments(self) -> int:
        """Segments in which batches are missing or can't be read; each was a line in the log, or is why a log isn't open."""

    @property
    def entrants_fd(self) -> int:
        """An eventfd that is readable until `ReplicaTable.take_entrants` has taken what there is. It belongs to this object:
        never close it."""

    @property
    def moved_fd(self) -> int:
        """An eventfd that is readable until `ReplicaTable.take_moved` has taken what there is. It belongs to this object: never
        close it."""

    @property
    def news_fd(self) -> int:
        """An eventfd that is readable when `folder_states` says something new. It belongs to this object: read it
        (os.eventfd_read), never close it."""

    def reconfigure(self, topic: str, partition: int, config: dict[str, int]) -> bool:
        """Change the given keys of a partition's configuration; they hold from the next append or upkeep, and a compaction
        pass by settings that would remove more ends. True: a pass puts its files in the place of others just now; once
        `is_swapping` says False nothing is removed by the settings before.
        """

    def is_swapping(self, topic: str, partition: int) -> bool:
        """Whether a compaction pass puts its files in the place of others just now."""

    def stop(self, topic: str, partition: int, announced: bool = False) -> None:
        """Flush, write the producer snapshot, close. Waiters are woken. Slow. The checkpoints are written by
        `write_checkpoints`, once for all.

        announced: it stays announced (NOT_LEADER_OR_FOLLOWER), to be led again.
        Raises OSError; the partition is gone all the same, and the next start must not take the stop for a clean one.
        With many partitions call sync_all first: each stop has then next to nothing to sync.
        """

    def retire(self, topic: str, partition: int) -> None:
        """Let nobody find an open partition any more, until `delete` removes it: producers and consumers hear
        UNKNOWN_TOPIC_OR_PARTITION. Doesn't wait for its disk or its lock.
        """

    def delete(self, topic: str, partition: int) -> None:
        """Stop without flushing, rename the folder to `<topic>-<partition>.<32 hex>-delete`, remove it. Slow.

        Of a partition that is only announced nothing but the announcement goes.

        Raises OSError.
        """

    def remove_deleted(self, folder: str) -> int:
        """Remove what `delete` had renamed when the broker died; answers how many folders. One that can't be removed is said
        and stays. Once per log.dir. Slow. Raises OSError: the disk has failed (EIO), or can't be listed."""

    def carry_checkpoints(self, topic: str, partition: int, folder: str, to: str) -> None:
        """Copy what the checkpoints of a log folder say of a log to another folder's, and write them unless only a recovery
        point has grown. Slow. Raises OSError."""

    def drop_checkpoints(self, topic: str, partition: int, folder: str) -> None:
        """Forget what a folder's checkpoints say of a log that isn't there any more."""

    def write_overdue_checkpoints(self, folder: str) -> None:
        """Write the checkpoints of a log folder if they have to be right before anything else happens there: before names of
        deleted partitions are free for other topics, if a file has something under such a name that isn't bound to a
        topic's id; if there is no file yet; if it lacks a compacted log that was opened. Slow. Raises OSError."""

    def recovery_point(self, topic: str, topic_id: bytes, partition: int, folder: str) -> int:
        """What is known of a log in a log folder that needn't be open: all below it was flushed. 0 if nothing is."""

    def had_records(self, topic: str, topic_id: bytes, partition: int, folder: str) -> bool:
        """Whether the checkpoints of a log folder, or its slots of log ends, say that a log of that topic had records there.
        A line without a topic's id counts, too: it may be that topic's."""

    def first_dirty(self, topic: str, topic_id: bytes, partition: int) -> int:
        """The offset up to which a log of that topic was compacted; -1 if it never was, or is another topic's."""

    def note_holes(self, topic: str, topic_id: bytes, partition: int) -> None:
        """Before a compaction pass puts files in the place of others: say on the disk that the log may have holes between
        its batches, which are no damage. Slow, once a log. Raises OSError, or KafkaError until it is open."""

    def compacted(self, topic: str, topic_id: bytes, partition: int, first_dirty: int) -> None:
        """Take down up to which offset a log was compacted, unless it is another topic's by now. Slow. Raises OSError."""

    def is_offline(self, topic: str, partition: int) -> bool:
        """Whether the disk failed under it: it answers KAFKA_STORAGE_ERROR until the broker restarts."""

    def partitions(self) -> list[tuple[str, int]]:
        """Every partition that is led here."""
