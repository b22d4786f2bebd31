"""A segment: a file of record batches named after its first offset, its three indexes, and what these should be.

    00000000000000001207.log         batches, wire bytes
    00000000000000001207.index       index.pxd
    00000000000000001207.timeindex   timeindex.pxd
    00000000000000001207.txnindex    txnindex.pxd; only if a transaction was aborted
    00000000000000001207.checks      checks.pxd; once it is sealed and flushed, or the log was closed

The last segment of a log is written, by one appender at a time (the partition's lock); the others are sealed.
Readers hold a reference and never block an appender: bytes below the size that they saw under the partition's lock
don't change. Files are opened at their first use and closed again when idle, so an idle partition holds no file
descriptor.

A segment is `proved` when its indexes, largest timestamp and `has_aborts` are known to follow from its batches: this
process has seen them written or has walked them, or a `.checks` that is right says so. What isn't proved and matters is
proved first (proof.pxd).

Locks: the partition's lock, then the segment's. The segment's lock covers the indexes and the opening of files.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport iovec, pthread_mutex_t
from penstock.pyx.log.index cimport IndexFile
from penstock.pyx.log.room cimport Room
from penstock.pyx.record.batch cimport BatchHeader

# Which formats the batches of a segment have. A fetch of today's clients looks into ranges that may have older ones.
cdef enum SegmentFormats:
    FORMATS_UNKNOWN = 0                # it is of Kafka's, or of a Penstock that didn't note it, and wasn't walked
    FORMATS_NEW = 1                    # all are of magic 2
    FORMATS_OLD = 2                    # some are of magic 0 or 1

# A batch in a segment; `position` -1: none.
cdef struct BatchPlace:
    int64_t offset
    int64_t position
    int64_t size

cdef struct Segment:
    int32_t refs                       # the partition's list holds one
    pthread_mutex_t lock
    string stem                        # the files' path without a suffix
    int fd                             # -1: not open
    int64_t opened                     # a number that grows from file to file, of the last time
    bint touched                       # since the last pass of upkeep
    bint sealed
    bint unflushed                     # bytes or index entries that no flush has covered
    int64_t base_offset
    int64_t next_offset                # one past the last record
    int64_t size                       # atomic; bytes of whole batches in the .log file
    Room room                          # what the .log file has behind its batches
    int64_t first_timestamp            # of the first batch; -1 unknown: created_ms counts
    int64_t max_timestamp              # -1: none
    int64_t max_timestamp_offset       # last offset of the first batch that has it
    int64_t created_ms
    int64_t bytes_since_index
    BatchPlace tail                    # the newest append, where most reads begin: its first batch
    IndexFile index
    IndexFile timeindex
    IndexFile txnindex
    bint has_aborts                    # the txnindex has entries
    bint proved                        # see above; set under the partition's lock
    bint corrupt                       # a batch can't be read: what the files say is all there is
    bint doubted                       # a fetch waits for the proof; of the partition's lock, as the two above
    bint walked                        # this process has proved it by its batches
    int8_t formats                     # SegmentFormats; set under the partition's lock
    bint corrupt_read                  # a reader came upon bytes that are no batch; of the partition's lock
    int lost                           # errno of opening its files for those that read it when it was deleted; 0: none
    bint checked                       # the .checks file says what the segment is now
    int64_t ended_before               # transactions that began below it ended within the segment; -1: not known
    # Of consumers that came upon pages of it that weren't in memory; see output.pyx.
    BatchPlace expected                # where the fetch after the last one begins, if it was read past the page cache
    int64_t cold_reader                # atomic, as the next: the last one
    int64_t company_ms                 # when there last were several at once

# A file that was renamed to `.deleted` and is removed when its time has come (file.delete.delay.ms).
cdef struct DeletedFile:
    string path
    int64_t due_ms

cdef enum:
    HEADERS_CHUNK = 1 << 16            # of a walk that looks at headers

# Walks batches from `position` to `end` of a file by reads of `chunk` bytes.
cdef struct LogWalk:
    int fd
    int64_t position
    int64_t end
    size_t chunk
    vector[uint8_t] buffer
    int64_t buffer_at
    size_t buffered
    bint cached                        # only what is in the page cache

cdef enum WalkResult:
    WALK_END = 0
    WALK_BATCH = 1
    WALK_GARBAGE = 2                   # no whole batch with a sensible header at `position`; below 0: -errno
    WALK_COLD = 3                      # what is at `position` isn't in the page cache, and only that was wanted

# Gives a batch's header (and its first bytes, all of them if `whole`) and moves on. The pointer holds until the
# next call.
cdef int walk_next(LogWalk* walk, BatchHeader* header, const uint8_t** bytes, bint whole) noexcept nogil
cdef void walk_begin(LogWalk* walk, int fd, int64_t position, int64_t end, size_t chunk) noexcept nogil

cdef string segment_stem(const string& folder, int64_t base_offset) noexcept nogil
# The other way: the offset that a file is named after, if its name is 20 digits and the suffix; -1 otherwise.
cdef int64_t segment_named_offset(const char* name, const char* suffix) noexcept nogil
cdef Segment* segment_new(const string& folder, int64_t base_offset, int64_t now_ms) noexcept nogil
cdef void segment_retain(Segment* s) noexcept nogil
cdef void segment_release(Segment* s) noexcept nogil

# The .log file, opened if need be (created with `create`). An fd, or -errno. It is the segment's own.
cdef int segment_open(Segment* s, bint create) noexcept nogil

# Writes whole batches at the end, n bytes in all; `pieces` are changed. 0 or errno; after an error the file is as
# before, or `broken` is set. The size grows only with segment_index_batch.
cdef int segment_write(Segment* s, vector[iovec]& pieces, int64_t n, bint* broken) noexcept nogil

# Gives back the room behind the batches. No thread may append meanwhile. 0 or errno.
cdef int segment_give_back(Segment* s) noexcept nogil

# Accounts for one batch at `position`: index entries by Kafka's rule, largest timestamp, next offset.
cdef void segment_index_batch(
    Segment* s, const BatchHeader* header, int64_t position, int64_t interval_bytes
) noexcept nogil
cdef void segment_index_abort(
    Segment* s, int64_t producer_id, int64_t first_offset, int64_t last_offset, int64_t last_stable_offset
) noexcept nogil
cdef void segment_reset_indexes(Segment* s) noexcept nogil
# Reads the indexes into memory, so that they can grow. 0, INDEX_WRONG or errno.
cdef int segment_hold_indexes(Segment* s) noexcept nogil
cdef enum ChecksResult:
    CHECKS_NONE = 0
    CHECKS_AGREE = 1
    CHECKS_DISAGREE = 2

# Whether it has no room for an entry, once `more` were added.
cdef bint segment_index_full(Segment* s, int64_t index_bytes, size_t more) noexcept nogil

# What retention and compaction lag go by: the largest timestamp, or when the file was last written if it has none.
cdef int64_t segment_newest_ms(const Segment* s) noexcept nogil

# Nothing is appended any more: the time index gets its last entry.
cdef void segment_seal(Segment* s) noexcept nogil
cdef void segment_last_time(Segment* s) noexcept nogil
# What there is in place of indexes that were wrong: those of `right`. Under the partition's lock.
cdef void segment_take_indexes(Segment* s, Segment* right) noexcept nogil
# Writes indexes that were taken so, not synced: the .checks show what a crash makes of that. 0 or errno.
cdef int segment_write_indexes(Segment* s) noexcept nogil
# Writes the .checks of a proved segment whose files have all that it knows, not synced: it carries its own checksum.
# What can't be written is missing, and the batches are walked again. Those of a sealed segment say that the next one
# begins at its next offset.
cdef int segment_write_checks(Segment* s) noexcept nogil
# The same for one that compaction has written, as `.checks.cleaned`. `following`: base offset of the segment that will
# be the next one; its own next offset is one past its last record.
cdef int segment_write_cleaned_checks(Segment* s, int64_t following) noexcept nogil
# Whether its .checks are those of a sealed segment, of whatever size.
cdef bint segment_checks_are_sealed(Segment* s) noexcept nogil
# Removes the .checks, as they aren't those of what the segment is now.
cdef void segment_drop_checks(Segment* s) noexcept nogil
# CHECKS_NONE: there are none, or they are of another size of the .log. CHECKS_AGREE: the segment is proved by them, if
# its index files turn out to be what they say. CHECKS_DISAGREE: these have other sizes. In both cases the next offset
# is that of the checks, too.
cdef int segment_read_checks(Segment* s) noexcept nogil
# The next offset that they say and nothing else; -1: there are none.
cdef int64_t segment_checked_end(Segment* s) noexcept nogil
# Whether all index files are what they should be, as far as that is known: 0, INDEX_WRONG or errno.
cdef int segment_view_indexes(Segment* s) noexcept nogil
# Whether the batch that the time index's last entry names has the largest timestamp that it says.
cdef bint segment_newest_is_there(Segment* s) noexcept nogil
# Writes the indexes; log and indexes are then synced by the caller. 0 or errno.
cdef int segment_prepare_sync(Segment* s) noexcept nogil
# Writes the log's bytes out piece by piece and waits for each, so that the sync that follows has little to do: a sync
# of much at once holds up each thread that extends a file of the same file system. As a sync, it may be tried only
# once. 0 or errno.
cdef int segment_write_out(Segment* s, bint* fatal) noexcept nogil
# Log and indexes to the disk. 0 or errno; `fatal`: an fsync failed, which must not be tried again.
cdef int segment_flush(Segment* s, bint* fatal) noexcept nogil
# The same for the .log file alone: enough for the segment that is written, which recovery walks whole in any case.
cdef int segment_flush_log(Segment* s, bint* fatal) noexcept nogil
# Gives back memory and files of an idle segment. Under the partition's lock, if no other thread has a reference.
cdef void segment_close_idle(Segment* s) noexcept nogil
# Closes the .log file alone, as its descriptor is needed; under the same conditions. Waits for no lock. False: stays.
cdef bint segment_close_file(Segment* s) noexcept nogil
# Renames the files to `.deleted`, to be removed at due_ms. They are opened for readers that have a reference: these
# read on until it is released. No thread may take another one. 0 or errno.
cdef int segment_retire(Segment* s, int64_t due_ms, vector[DeletedFile]& trash) noexcept nogil
# Removes what is due. A file that can't be removed is passed over: the next start removes it.
cdef void empty_trash(vector[DeletedFile]& trash, int64_t now_ms) noexcept nogil
# The same at once.
cdef int segment_delete(Segment* s) noexcept nogil

# The first batch whose last offset is at or above `offset`, below `limit` bytes: WALK_BATCH, WALK_END (none),
# WALK_GARBAGE, -INDEX_WRONG (prove the segment first), or -errno. With `cached` it doesn't wait for a disk to read the
# log: WALK_COLD, and `position` says where.
cdef int segment_find(
    Segment* s, int64_t offset, int64_t limit, bint cached, BatchHeader* header, int64_t* position
) noexcept nogil
# Where a fetch is going to begin, so that it needn't be searched on the disk.
cdef void segment_expect(Segment* s, const BatchPlace* next) noexcept nogil
# Whether it is here, below `limit` bytes.
cdef bint segment_expected(Segment* s, int64_t offset, int64_t limit, BatchPlace* out) noexcept nogil
# An offset that no record of the segment before `position` reaches, from the index; next_offset if it doesn't say.
cdef int64_t segment_bound(Segment* s, int64_t position, int64_t next_offset) noexcept nogil
# The first record whose timestamp is at or above the wanted one, at or after `from_offset`: WALK_* (of WALK_GARBAGE,
# `offset` is the position); -INDEX_WRONG; or -errno.
# `may_inflate`: bytes that batches may be inflated to for it, counted down. A batch that would take more isn't opened:
# its header says that it may have the record, so the answer is where it begins, and its largest timestamp.
cdef int segment_find_time(
    Segment* s, int64_t timestamp_ms, int64_t from_offset, int64_t limit, size_t* may_inflate, int64_t* offset,
    int64_t* timestamp
) noexcept nogil
# Copies the aborted transactions' entries. 0, INDEX_WRONG or errno.
cdef int segment_aborts(Segment* s, vector[uint8_t]& out) noexcept nogil
