"""Files of logs that are closed for want of descriptors; see openfiles.pxd."""

from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from penstock.pyx.linux.descriptors cimport FILES_BUSY
from penstock.pyx.linux.posix cimport (
    atomic_load32, pthread_mutex_init, pthread_mutex_t, pthread_mutex_trylock, pthread_mutex_unlock,
)
from penstock.pyx.log.partition cimport Partition, partitions_visit
from penstock.pyx.log.partitionlog cimport PartitionLog, log_of
from penstock.pyx.log.segment cimport Segment, segment_close_file

cdef enum:
    CLOSED_PART = 8                    # of the open files, an eighth is closed at once
    CLOSED_MIN = 4

cdef int64_t USED_RECENTLY = <int64_t>1 << 62        # added to the number of a file that was

cdef extern from *:
    """
    #include <algorithm>
    #include <vector>
    static inline void ascend(std::vector<int64_t>& numbers) { std::sort(numbers.begin(), numbers.end()); }
    """
    void ascend(vector[int64_t]& numbers) noexcept nogil

# Two visits to all partitions: the first notes how old the files are that may be closed, the second closes the oldest.
cdef struct Closing:
    vector[int64_t] ages
    int64_t until                      # those of this age and older are closed
    int32_t closed
    bint busy                          # partitions that somebody works with were passed over

cdef pthread_mutex_t closing_lock      # one thread closes files at a time
pthread_mutex_init(&closing_lock, NULL)


cdef inline int64_t _age_of(const Segment* s) noexcept nogil:
    return s.opened + (USED_RECENTLY if s.touched else 0)


cdef inline bint _may_close(const Segment* s) noexcept nogil:
    return s.fd >= 0 and atomic_load32(&s.refs) == 1


cdef void _note_ages(Partition* partition, void* given) noexcept nogil:
    cdef Closing* closing = <Closing*>given
    cdef PartitionLog* p = log_of(partition)
    cdef size_t i
    if pthread_mutex_trylock(&p.lock) != 0:
        closing.busy = True
        return
    for i in range(p.log.segments.size()):
        if _may_close(p.log.segments[i]):
            closing.ages.push_back(_age_of(p.log.segments[i]))
    pthread_mutex_unlock(&p.lock)


cdef void _close_old(Partition* partition, void* given) noexcept nogil:
    """A file that is left open counts as used no more."""
    cdef Closing* closing = <Closing*>given
    cdef PartitionLog* p = log_of(partition)
    cdef Segment* s
    cdef size_t i
    if pthread_mutex_trylock(&p.lock) != 0:
        closing.busy = True
        return
    for i in range(p.log.segments.size()):
        s = p.log.segments[i]
        if not _may_close(s):
            continue
        if _age_of(s) > closing.until:
            s.touched = False
        else:
            closing.closed += segment_close_file(s)
    pthread_mutex_unlock(&p.lock)


cdef int32_t close_files() noexcept nogil:
    cdef Closing closing
    cdef size_t n
    closing.closed = 0
    closing.busy = False
    if pthread_mutex_trylock(&closing_lock) != 0:
        return FILES_BUSY
    if not partitions_visit(_note_ages, &closing):
        closing.busy = True
    if not closing.ages.empty():
        ascend(closing.ages)
        n = min(max(closing.ages.size() // CLOSED_PART, <size_t>CLOSED_MIN), closing.ages.size())
        closing.until = closing.ages[n - 1]
        if not partitions_visit(_close_old, &closing):
            closing.busy = True
    pthread_mutex_unlock(&closing_lock)
    return FILES_BUSY if closing.closed == 0 and closing.busy else closing.closed
