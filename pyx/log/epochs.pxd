"""Leader epochs of a log: at which offset each one began. KIP-101/279/320 decide by them.

`leader-epoch-checkpoint` is text, as Kafka writes it:

    0                    the version
    2                    how many entries
    0 0                  epoch, start offset
    3 1207

Both columns grow. Crash story: the file is replaced whole; recovery drops entries at or past the end of the log and
learns missing ones from the batches that it walks.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport ENOENT, snprintf, strtoll
from penstock.pyx.log.files cimport read_whole, replace_whole

cdef struct EpochEntry:
    int32_t epoch
    int64_t start_offset

cdef struct EpochCache:
    vector[EpochEntry] entries

# A batch of `epoch` (or the leader of it) begins at start_offset. True when the entries changed.
cdef inline bint epochs_assign(EpochCache* cache, int32_t epoch, int64_t start_offset) noexcept nogil:
    cdef EpochEntry entry
    if epoch < 0:
        return False
    if not cache.entries.empty() and cache.entries.back().epoch == epoch:
        if cache.entries.back().start_offset <= start_offset:
            return False
    # Entries that say something else about what lies at or past start_offset, or about this epoch or later, were wrong.
    while not cache.entries.empty() and (
        cache.entries.back().epoch >= epoch or cache.entries.back().start_offset >= start_offset
    ):
        cache.entries.pop_back()
    entry.epoch = epoch
    entry.start_offset = start_offset
    cache.entries.push_back(entry)
    return True

# The log ends at log_end: entries past it are dropped. True when the entries changed.
cdef inline bint epochs_cut_end(EpochCache* cache, int64_t log_end) noexcept nogil:
    cdef bint changed = False
    while not cache.entries.empty() and cache.entries.back().start_offset >= log_end:
        cache.entries.pop_back()
        changed = True
    return changed

# The log starts at log_start: entries wholly before it are dropped, the one that holds it begins there.
cdef inline bint epochs_cut_start(EpochCache* cache, int64_t log_start) noexcept nogil:
    cdef size_t keep = 0
    if cache.entries.empty() or cache.entries[0].start_offset >= log_start:
        return False
    while keep + 1 < cache.entries.size() and cache.entries[keep + 1].start_offset <= log_start:
        keep += 1
    cache.entries.erase(cache.entries.begin(), cache.entries.begin() + keep)
    cache.entries[0].start_offset = log_start
    return True

# The largest epoch <= `epoch` and the offset at which it ends; both -1 when nothing is known. An epoch from before the
# first entry ended (as far as this log can tell) where that begins.
cdef inline void epochs_end(
    const EpochCache* cache, int32_t epoch, int64_t log_end, int32_t* found, int64_t* end_offset
) noexcept nogil:
    cdef size_t i
    found[0] = -1
    end_offset[0] = -1
    # An epoch later than all known ones is answered with nothing: the asker knows more than this log.
    if epoch < 0 or cache.entries.empty() or epoch > cache.entries.back().epoch:
        return
    found[0] = epoch
    end_offset[0] = cache.entries[0].start_offset
    for i in range(cache.entries.size()):
        if cache.entries[i].epoch > epoch:
            break
        found[0] = cache.entries[i].epoch
        end_offset[0] = cache.entries[i + 1].start_offset if i + 1 < cache.entries.size() else log_end

# The offset behind the last batch of an epoch up to `epoch`.
cdef inline int64_t epochs_end_up_to(const EpochCache* cache, int32_t epoch, int64_t log_end) noexcept nogil:
    cdef size_t i
    for i in range(cache.entries.size()):
        if cache.entries[i].epoch > epoch:
            return min(cache.entries[i].start_offset, log_end)
    return log_end

cdef inline int epochs_write(const EpochCache* cache, const char* path, bint sync) noexcept nogil:
    cdef string text
    cdef char line[64]
    cdef size_t i
    snprintf(line, 64, b"0\n%zu\n", cache.entries.size())
    text.append(<const char*>line)
    for i in range(cache.entries.size()):
        snprintf(line, 64, b"%d %lld\n", cache.entries[i].epoch, <long long>cache.entries[i].start_offset)
        text.append(<const char*>line)
    return replace_whole(path, <const uint8_t*>text.data(), text.size(), sync)

# A file that is missing or wrong gives no entries: the walk learns them again. 0 or errno of the read.
cdef inline int epochs_read(EpochCache* cache, const char* path) noexcept nogil:
    cdef vector[uint8_t] content
    cdef const char* at
    cdef char* after = NULL
    cdef long long count, epoch, start_offset, _i
    cdef int result = read_whole(path, content)
    cache.entries.clear()
    if result != 0:
        return 0 if result == ENOENT else result
    content.push_back(0)
    at = <const char*>content.data()
    if strtoll(at, &after, 10) != 0 or after == at:
        return 0
    at = after
    count = strtoll(at, &after, 10)
    for _i in range(count):
        at = after
        epoch = strtoll(at, &after, 10)
        if after == at:
            break
        at = after
        start_offset = strtoll(at, &after, 10)
        if after == at or epoch < 0 or epoch > INT32_MAX or start_offset < 0:
            break
        epochs_assign(cache, <int32_t>epoch, start_offset)
    return 0
