"""Opening a log folder: what is there, what of it can be believed, and what has to be walked again.

After a clean stop everything is believed that agrees with its checks (checks.pxd); only what follows the last index
entry of each segment is walked (headers), to see that it ends where it should. Index files that disagree, or that can't
be right, are built again from the batches, and that is said. A segment without checks (Apache Kafka leaves none) isn't
proved as yet: proof.pxd.
After anything else, segments from the one that holds the recovery point on are walked whole: each batch's length,
header, checksum and offset are checked, and their indexes are rebuilt. What a write that was cut short has left at the
end (zeros, garbage, half a batch) is cut off; if it isn't zeros, a file beside the segment keeps it (damage.pxd). Bad
bytes with right batches or segments behind them, or below the recovery point, are no such end: nothing is cut then, and
the log isn't opened. Nor is one that was never compacted and lacks offsets between two batches or segments. Producer
states come from the newest valid snapshot at or below the first offset that is walked; the batches between it and there
are replayed by their headers.

The checkpoints know where the log began and ended (checkpoint.py). One that begins later or ends earlier has lost files
or bytes, and isn't opened either: its end would be given twice. Nothing of it is changed. Where a full disk kept
retention from writing the new beginning down, the `.deleted` files show that it was retention.

In a log that was compacted offsets are missing anyway. There the checks of each sealed segment say how long it is and
which one is next (checks.pxd). A log that lacks a segment or bytes of one in its middle isn't opened either. Nothing is
compared where the checkpoints don't know the log's beginning: Apache Kafka, or an operator, may have worked here.

After a start of the machine (`.lock` has another boot id) holes in what wasn't flushed, with right batches behind them,
are what a power cut leaves: recovery cuts there, as after a write that was cut short.

A log that other brokers have too ends at a batch whose leader epoch is below its predecessor's: that batch was cut off
once, and a power cut has brought it back. It is set aside with all that follows; what it had is fetched again.

A batch's checksum doesn't cover its base offset and leader epoch. An offset that is wrong is found by the order of
batches (batchorder.pxd) wherever a walk comes by: each batch after a kill, the tail of each segment after a clean stop.
A whole batch whose checksum is right is never what a cut-short write leaves. In a log that was compacted an offset that
is still between those of its neighbours can't be told from a right one (nor, after a kill, one of the log's last batch
that is too high); nor can a flipped leader epoch, as in Kafka.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.string cimport string

from penstock.pyx.log.batchorder cimport BatchOrder
from penstock.pyx.log.damage cimport Damage
from penstock.pyx.log.logstate cimport LogState
from penstock.pyx.log.segment cimport Segment
from penstock.pyx.record.batch cimport BatchHeader

cdef struct RecoveryReport:
    int64_t batches_checked
    int64_t cut_bytes
    Damage damage
    int64_t end_found                  # where right batches end, should that be before the log start
    int64_t checked_end                # where the last segment's .checks say that it ends; 0: they don't
    BatchOrder order                   # of the last walk
    bint misplaced                     # it ended at a whole batch that is right but for its offset
    bint outdated                      # it ended at a batch whose epoch is below its predecessor's
    int32_t last_epoch                 # of the last batch that was walked

# Before: folder (which exists), log_start and recovery_point (from the checkpoints, 0 if unknown), first_dirty (-1 if
# unknown), known_begin, known_end, dense, power_cut, index_interval_bytes. 0, LOG_CORRUPT or errno. After an error the
# segments that were made are in the list, for the caller to release.
cdef int recover(LogState* log, bint clean, int64_t now_ms, RecoveryReport* report) noexcept nogil

# Walks the headers of the segment in `place` to `end` and fills its indexes again; what it aborts follows from the
# producer states at its start: of the newest snapshot, and of the batches of the segments in between. `good`: where
# right batches end. 0 or errno.
cdef int recover_indexes(LogState* log, size_t place, int64_t end, int64_t now_ms, int64_t* good) noexcept nogil
# Goes on with that for what was appended since.
cdef int recover_more(LogState* log, size_t place, int64_t end, int64_t now_ms, int64_t* good) noexcept nogil

# A batch that is in the log (all its bytes, if it is a control batch) at `position` of the segment, into the
# producer states; `index`: an aborted transaction also into the segment's index. Append and recovery use the same
# function, so that what recovery finds is what there was.
cdef void replay_batch(
    LogState* log, Segment* s, const BatchHeader* header, const uint8_t* bytes, int64_t position, bint index,
    int64_t now_ms
) noexcept nogil

# Path of a snapshot without its suffix.
cdef string snapshot_stem(const string& folder, int64_t offset) noexcept nogil
# Removes snapshots that belong to no segment, but for the newest one.
cdef void remove_stray_snapshots(LogState* log) noexcept nogil
