"""Compaction of a broker's logs (KIP-58, KIP-98, KIP-354, KIP-534), for the control plane.

All may be called from any thread and release the GIL while they work; all are slow and belong in an executor thread.
Unknown partitions raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION), stopped or offline ones
KafkaError(NOT_LEADER_OR_FOLLOWER). Times are ms, sizes bytes.
"""

from typing import NamedTuple

from penstock.pyx.compaction.pace import Pace
from penstock.pyx.log.logmanager import LogManager

NOTED: str
SWAPPING: str

class UncleanableError(Exception):
    """A batch can't be read (its bytes are wrong, or it inflates to more than the limit); the log is as it was."""

class Cleanable(NamedTuple):
    first_dirty: int  # offset from which nothing was compacted: the checkpoint's, or the log start if that is wrong
    upper_bound: int  # the first offset that may not be compacted
    clean_bytes: int
    cleanable_bytes: int
    oldest_dirty_ms: int  # the oldest first timestamp of sealed dirty segments; -1 if there is none

class Compacted(NamedTuple):
    first_dirty: int  # for the checkpoint
    bytes_indexed: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    records_without_key: int  # gone too, as in Kafka
    keys: int
    segments_before: int
    segments_after: int

def cleanable(logs: LogManager, topic: str, partition: int, checkpoint: int, now_ms: int, min_lag_ms: int) -> Cleanable:
    """What a pass would do. `checkpoint`: the first dirty offset after the last pass, -1 if there was none."""

class Cleaner:
    """One thread's table of keys. `buffer_bytes` bounds it, `inflated_max_bytes` what a batch may inflate to."""

    def __init__(
        self,
        pace: Pace,
        buffer_bytes: int = ...,
        load_factor: float = 0.9,
        inflated_max_bytes: int = ...,
    ) -> None: ...
    def compact(
        self,
        logs: LogManager,
        topic: str,
        partition: int,
        checkpoint: int,
        now_ms: int,
        min_lag_ms: int,
        delete_retention_ms: int,
    ) -> Compacted:
        """One pass over a partition: everything below the answer's first_dirty is compacted then.

        Readers and appenders go on meanwhile; stop and delete end it, and so do settings of the log by which it would remove
        too much: no compaction, a longer lag or retention than it was given. Raises UncleanableError, and OSError: with ENOSPC
        the log is as it was, after a failure between file names the partition is offline until the broker restarts.
        """
