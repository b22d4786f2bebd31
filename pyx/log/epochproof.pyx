"""Leader epochs and the batches that they came from; see epochproof.pxd."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from penstock.pyx.log.epochs cimport epochs_assign
from penstock.pyx.log.index cimport INDEX_WRONG
from penstock.pyx.log.logstate cimport LogState, count_walked
from penstock.pyx.log.segment cimport (
    HEADERS_CHUNK, WALK_BATCH, LogWalk, Segment, segment_find, segment_open, walk_begin, walk_next,
)
from penstock.pyx.record.batch cimport BatchHeader, batch_last_offset

cdef enum:
    ONE_BATCH = 4096                   # one read that finds a header
    NOTHING = -2                       # no batch, or none that can be found


cdef int _batch_in(Segment* s, int64_t offset, BatchHeader* header) noexcept nogil:
    """The batch that holds an offset, or the first one after it, in a segment: a WalkResult, or -errno."""
    cdef LogWalk walk
    cdef const uint8_t* bytes
    cdef int64_t position
    cdef int result = segment_find(s, offset, s.size, False, header, &position)
    if result != -INDEX_WRONG:
        return result
    walk_begin(&walk, segment_open(s, False), 0, s.size, HEADERS_CHUNK)
    while True:
        result = walk_next(&walk, header, &bytes, False)
        if result != WALK_BATCH or batch_last_offset(header) >= offset:
            return result


cdef bint _batch_at(const LogState* log, int64_t offset, BatchHeader* header) noexcept nogil:
    """The same in a log. False: there is none."""
    cdef size_t i = log.segments.size()
    while i > 1 and log.segments[i - 1].base_offset > offset:
        i -= 1
    while i <= log.segments.size():
        if _batch_in(log.segments[i - 1], offset, header) == WALK_BATCH:
            return True
        i += 1
    return False


cdef int32_t _newest_epoch(const LogState* log) noexcept nogil:
    """Of the last batch; NOTHING if there is none that carries one."""
    cdef BatchHeader header
    if log.log_end == log.log_start or not _batch_at(log, log.log_end - 1, &header) or header.magic < 2:
        return NOTHING
    return header.leader_epoch


cdef bint _entry_agrees(const LogState* log, size_t k) noexcept nogil:
    cdef int32_t epoch = log.epochs.entries[k].epoch
    cdef int64_t start = log.epochs.entries[k].start_offset
    cdef BatchHeader header
    if k == 0 and start <= log.log_start:
        start = log.log_start          # where it began is no more there to be seen
    if not _batch_at(log, start, &header):
        return False
    if log.dense and header.base_offset != start and start > log.log_start:
        return False
    # A batch of magic 0 or 1 carries no epoch.
    if header.magic >= 2 and (header.leader_epoch != epoch if log.dense else header.leader_epoch < epoch):
        return False
    if start <= log.log_start or not _batch_at(log, start - 1, &header) or header.magic < 2:
        return True
    if k == 0:
        return header.base_offset >= start
    return header.leader_epoch <= log.epochs.entries[k - 1].epoch or header.base_offset >= start


cdef bint epochs_agree(LogState* log) noexcept nogil:
    cdef size_t k
    cdef int32_t newest = _newest_epoch(log)
    if newest < 0:
        return True
    if log.epochs.entries.empty() or log.epochs.entries.back().epoch != newest:
        return False
    for k in range(log.epochs.entries.size()):
        if not _entry_agrees(log, k):
            return False
    return True


cdef int32_t _first_epoch(Segment* s) noexcept nogil:
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int fd = segment_open(s, False)
    if fd < 0:
        return NOTHING
    walk_begin(&walk, fd, 0, s.size, ONE_BATCH)
    return header.leader_epoch if walk_next(&walk, &header, &bytes, False) == WALK_BATCH else <int32_t>NOTHING


cdef void _learn_segment(LogState* log, Segment* s, bint first_only) noexcept nogil:
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int fd = segment_open(s, False)
    if fd < 0:
        return
    walk_begin(&walk, fd, 0, s.size, ONE_BATCH if first_only else HEADERS_CHUNK)
    while walk_next(&walk, &header, &bytes, False) == WALK_BATCH:
        if header.magic >= 2 and (
            log.epochs.entries.empty() or log.epochs.entries.back().epoch < header.leader_epoch
        ):
            epochs_assign(&log.epochs, header.leader_epoch, header.base_offset)
        if first_only:
            return
    count_walked(log, s.size)


cdef void epochs_learn(LogState* log) noexcept nogil:
    cdef size_t i, last = log.segments.size() - 1
    cdef int32_t epoch, following
    log.epochs.entries.clear()
    following = _first_epoch(log.segments[0])
    for i in range(last + 1):
        epoch = following
        following = _newest_epoch(log) if i == last else _first_epoch(log.segments[i + 1])
        _learn_segment(log, log.segments[i], epoch == following and epoch != NOTHING)
