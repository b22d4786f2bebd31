"""Below which offset a log may lack deletions: tombstones, and markers of transactions, that compaction has removed.

A replica that was away keeps what such a deletion deleted, and can't hear of it any more. So a leader takes no fetch
from there (replicas.pxd), by offsets alone: clocks and delete.retention.ms say nothing of what is gone.

`removed_below` lies above every deletion that was removed from this log, or from the log that it was copied from. It
is never too low. Above its end a log lacks nothing, so one that is cut keeps it. `penstock-removed-checkpoint` in the
partition's folder has it, text:

    penstock-removed 1
    below 1207
    crc32c 1f2e3d4c

It is written and synced before a pass puts cleaned files in the place of others, and before a follower appends what its
leader sends from below the leader's `removed_below`. A crash therefore leaves it too high at worst, which costs a copy.
A log that may have holes and has no such file, or a damaged one, was compacted by Kafka or an earlier version: then all
that compaction can have reached counts.
"""

from libc.stdint cimport int64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport (
    ENOENT, memcmp, pthread_mutex_lock, pthread_mutex_unlock, snprintf, strtoll,
)
from penstock.pyx.log.files cimport read_whole, replace_whole, sync_folder
from penstock.pyx.log.logstate cimport NOTE_REMOVED, note
from penstock.pyx.log.partitionlog cimport PartitionLog
from penstock.pyx.record.crc cimport crc32c_update

cdef enum:
    REMOVED_TEXT_MAX = 128
    REMOVED_HEAD_BYTES = 25            # before the number

cdef inline string removed_path(const PartitionLog* p) noexcept nogil:
    cdef string path = p.log.folder
    path.append(b"/penstock-removed-checkpoint")
    return path

# How many bytes.
cdef inline size_t removed_text(int64_t below, char* text) noexcept nogil:
    cdef int n = snprintf(text, REMOVED_TEXT_MAX, b"penstock-removed 1\nbelow %lld\n", <long long>below)
    n += snprintf(
        text + n, <size_t>(REMOVED_TEXT_MAX - n), b"crc32c %08x\n",
        crc32c_update(0, <const uint8_t*>text, <size_t>n),
    )
    return <size_t>n

# With `upkeep` held: the log lacks deletions below that offset, or is about to. 0 or errno; a value that is on the disk
# already is not written again.
cdef inline int note_removed(PartitionLog* p, int64_t below) noexcept nogil:
    cdef char text[REMOVED_TEXT_MAX]
    cdef string path
    cdef int result
    if p.removed_noted and below <= p.removed_below:
        return 0
    below = max(below, p.removed_below)
    path = removed_path(p)
    result = replace_whole(path.c_str(), <const uint8_t*>text, removed_text(below, text), True)
    if result == 0:
        result = sync_folder(p.log.folder.c_str())
    if result == 0:
        pthread_mutex_lock(&p.lock)
        p.removed_below = below
        p.removed_noted = True
        pthread_mutex_unlock(&p.lock)
    return result

# Of a log that opens, once its high watermark is known. 0 or errno.
cdef inline int read_removed(PartitionLog* p) noexcept nogil:
    cdef char text[REMOVED_TEXT_MAX]
    cdef vector[uint8_t] content
    cdef string path = removed_path(p)
    cdef int result = read_whole(path.c_str(), content)
    cdef size_t n = content.size()
    cdef int64_t below
    if result == 0 and n > REMOVED_HEAD_BYTES:
        content.push_back(0)
        below = strtoll(<const char*>content.data() + REMOVED_HEAD_BYTES, NULL, 10)
        if below >= 0 and removed_text(below, text) == n and memcmp(text, content.data(), n) == 0:
            p.removed_below = below
            p.removed_noted = True
            return 0
    if result != 0 and result != ENOENT:
        return result
    # No compaction reached further: members of an ISR have all below the high watermark, so none begins again for this.
    below = max(p.high_watermark, min(p.log.first_dirty, p.log.log_end))
    if result == 0:
        note(&p.log, NOTE_REMOVED, below, 0)
    elif p.log.dense:
        return 0
    p.removed_below = below
    note_removed(p, below)             # else the next start would find more; without it, it does
    return 0
