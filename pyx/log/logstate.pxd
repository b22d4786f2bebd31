"""The content of a partition's folder, as recovery finds it and appends go on with it."""

from libc.stdint cimport int64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport atomic_add64
from penstock.pyx.log.epochs cimport EpochCache
from penstock.pyx.log.producerstate cimport ProducerStates
from penstock.pyx.log.segment cimport Segment

# What an operator should hear.
cdef enum NoteKind:
    NOTE_REBUILT = 0                   # index files of the segment at `offset` were wrong
    NOTE_CORRUPT_BATCH = 1             # a batch of it, at `position`, can't be read
    NOTE_SNAPSHOT = 2                  # the producer snapshot at `offset` can't be read
    NOTE_EPOCHS = 3                    # leader-epoch-checkpoint was wrong
    NOTE_CORRUPT_READ = 4              # a reader has come upon bytes at `position` that are no batch
    NOTE_CUT = 5                       # what was cut off at `position` is kept beside the segment
    NOTE_CORRUPT_MESSAGE = 7           # a message of an old format, of the batch at `position`, can't be converted
    NOTE_GONE = 6                      # a file of it was removed: the partition is offline
    NOTE_REFUSED_CUT = 8               # broker `position`, which leads, has the log up to `offset` alone: no cut
    NOTE_HOLES = 9                     # what the leader sent has no records from `offset` up to `position`
    NOTE_REMOVED = 10                  # penstock-removed-checkpoint is damaged: deletions below `offset` may be gone
    # Its leader's log lacks deletions up to `position`: the copy, which ended at `offset`, was begun again.
    NOTE_BEGUN_AGAIN = 11
    NOTE_COPY_OVERTAKEN = 12           # the same, and the copy that ended there had been begun again before

cdef struct Note:
    int kind
    int64_t offset
    int64_t position

# The content of a partition's folder.
cdef struct LogState:
    string folder
    vector[Segment*] segments          # by base offset; the last one is written; never empty once recovered
    ProducerStates producers
    EpochCache epochs
    int64_t log_start                  # atomic, as are the next two; set under the partition's lock
    int64_t log_end
    int64_t recovery_point             # all below it was flushed
    int64_t index_interval_bytes
    bint dense                         # it was never compacted: there are no holes between its batches
    int64_t first_dirty                # when the log was opened: what lies below it was compacted
    int64_t known_begin                # what lies below it was deleted, and nothing else; -1: unknown
    int64_t known_first                # the base offset of the segment where it lies
    int64_t known_end                  # it had records up to there that nothing can have taken
    bint replicated                    # other brokers have it too: an epoch below the one before ends it (recovery.pxd)
    bint power_cut                     # the machine may have lost what wasn't flushed since the log was written last
    vector[Note] notes
    int64_t* walked_bytes              # atomic; counts what an opening walks, for those that wait. NULL: nobody

cdef inline void count_walked(LogState* log, int64_t n) noexcept nogil:
    if log.walked_bytes != NULL:
        atomic_add64(log.walked_bytes, n)

cdef inline void note(LogState* log, int kind, int64_t offset, int64_t position) noexcept nogil:
    log.notes.push_back(Note(kind, offset, position))
