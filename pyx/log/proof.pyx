"""Proving segments by their batches; see proof.pxd."""

from libc.stdint cimport int64_t, uint8_t
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport (
    EAGAIN, ENOENT, atomic_store32, dup, errno, memcmp, pthread_mutex_lock, pthread_mutex_unlock,
)
from penstock.pyx.log.files cimport read_whole
from penstock.pyx.log.index cimport INDEX_ENTRY, INDEX_WRONG, IndexFile, index_is_right, index_sum
from penstock.pyx.log.logstate cimport NOTE_CORRUPT_BATCH, NOTE_REBUILT, LogState, note
from penstock.pyx.log.partitionlog cimport PartitionLog, doubt_segment
from penstock.pyx.log.producerstate cimport producers_clear, producers_first_open
from penstock.pyx.log.recovery cimport recover_indexes, recover_more
from penstock.pyx.log.segment cimport (
    FORMATS_UNKNOWN, HEADERS_CHUNK, WALK_BATCH, LogWalk, Segment, segment_last_time, segment_new,
    segment_newest_is_there, segment_open, segment_release, segment_retain, segment_take_indexes, segment_view_indexes,
    segment_write_checks, segment_write_indexes, walk_begin, walk_next,
)
from penstock.pyx.log.timeindex cimport TIMEINDEX_ENTRY
from penstock.pyx.log.txnindex cimport (
    TXNINDEX_ENTRY, TXN_FIRST_OFFSET_AT, TXN_LAST_OFFSET_AT, TXN_PRODUCER_ID_AT, TXN_STABLE_OFFSET_AT,
)
from penstock.pyx.record.batch cimport MARKER_ABORT, BatchHeader, batch_is_control, batch_last_offset, batch_marker_type
from penstock.pyx.record.endian cimport get_i32, get_i64


# What an index file has; of one that is still written, what is in memory.
cdef struct Content:
    vector[uint8_t] bytes
    bint as_written                    # it is what this broker has written


# A segment that is being proved, as it was when that began.
cdef struct Case:
    Segment* segment
    size_t place
    int64_t size
    int64_t next_offset
    bint sealed
    Content index
    Content timeindex
    Content txnindex
    LogState walked                    # the segments before it, and one in its place that gets what the walk finds


cdef int _read_content(Segment* s, IndexFile* f, const char* suffix, Content* out) noexcept nogil:
    cdef int result = 0
    pthread_mutex_lock(&s.lock)
    if f.held:
        out.bytes = f.bytes
        out.as_written = False         # those of a segment that wasn't proved went on from what its file had
    pthread_mutex_unlock(&s.lock)
    if not f.held:
        path = s.stem
        path.append(suffix)
        result = read_whole(path.c_str(), out.bytes)
        if result == ENOENT:
            out.bytes.clear()
            result = 0
        out.as_written = f.known and index_is_right(f, out.bytes.data(), out.bytes.size())
    return result


cdef bint _open_case(PartitionLog* p, Segment* s, Case* case, int64_t now_ms) noexcept nogil:
    """False: it isn't in the log any more."""
    cdef size_t i
    cdef bint found = False
    pthread_mutex_lock(&p.lock)
    for i in range(p.log.segments.size()):
        segment_retain(p.log.segments[i])
        case.walked.segments.push_back(p.log.segments[i])
        found = p.log.segments[i] == s
        if found:
            break
    case.segment = s
    case.place = case.walked.segments.size() - 1
    case.size = s.size
    case.next_offset = s.next_offset
    case.sealed = s.sealed
    case.walked.folder = p.log.folder
    case.walked.index_interval_bytes = p.log.index_interval_bytes
    case.walked.dense = False
    case.walked.walked_bytes = NULL
    pthread_mutex_unlock(&p.lock)
    if found:
        segment_release(s)
        case.walked.segments[case.place] = segment_new(p.log.folder, s.base_offset, now_ms)
    return found


cdef void _close_case(Case* case) noexcept nogil:
    cdef size_t i
    for i in range(case.walked.segments.size()):
        segment_release(case.walked.segments[i])
    producers_clear(&case.walked.producers)


cdef inline bint _same(const Content* has, const IndexFile* f) noexcept nogil:
    return has.bytes.size() == f.bytes.size() and memcmp(has.bytes.data(), f.bytes.data(), f.bytes.size()) == 0


cdef bint _entries_are_true(Case* case) noexcept nogil:
    """Whether each entry of the offset index and of the time index is true, and the last one of a sealed time index
    says the largest timestamp. One walk for both."""
    cdef Segment* s = case.segment
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef const uint8_t* index = case.index.bytes.data()
    cdef const uint8_t* times = case.timeindex.bytes.data()
    cdef size_t i = 0, k = 0
    cdef size_t count = case.index.bytes.size(), timed = case.timeindex.bytes.size()
    cdef int64_t position = 0, newest = -1, last
    if count % INDEX_ENTRY != 0 or timed % TIMEINDEX_ENTRY != 0:
        return False
    walk_begin(&walk, segment_open(s, False), 0, case.size, HEADERS_CHUNK)
    while walk_next(&walk, &header, &bytes, False) == WALK_BATCH:
        last = batch_last_offset(&header)
        if i < count and get_i32(index + i + 4) == position:
            if position == 0 or s.base_offset + get_i32(index + i) != last:
                return False
            i += INDEX_ENTRY
        while k < timed and s.base_offset + get_i32(times + k + 8) <= last:
            if get_i64(times + k) != header.max_timestamp or header.max_timestamp <= newest:
                return False
            k += TIMEINDEX_ENTRY
        if header.record_count > 0 and header.max_timestamp > newest:
            newest = header.max_timestamp
        position = walk.position
    if i < count or k < timed:
        return False
    if not case.sealed or newest < 0:
        return True
    return timed > 0 and get_i64(times + timed - TIMEINDEX_ENTRY) == newest


cdef bint _aborts_have_markers(Case* case) noexcept nogil:
    """Whether each listed transaction ended with a marker that aborts it, and stands where its offset does."""
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef const uint8_t* a = case.txnindex.bytes.data()
    cdef const uint8_t* end = a + case.txnindex.bytes.size()
    cdef int64_t position = 0
    walk_begin(&walk, segment_open(case.segment, False), 0, case.size, HEADERS_CHUNK)
    while a < end and walk_next(&walk, &header, &bytes, False) == WALK_BATCH:
        if batch_last_offset(&header) == get_i64(a + TXN_LAST_OFFSET_AT):
            walk.position = position
            if (
                not batch_is_control(&header)
                or header.producer_id != get_i64(a + TXN_PRODUCER_ID_AT)
                or walk_next(&walk, &header, &bytes, True) != WALK_BATCH
                or batch_marker_type(bytes, &header, NULL) != MARKER_ABORT
            ):
                return False
            a += TXNINDEX_ENTRY
        position = walk.position
    return a == end


cdef bint _aborts_are_true(Case* case, const IndexFile* seen) noexcept nogil:
    """Whether the listed transactions are those that the walk saw end, marker by marker. Where batches of them are
    gone, as in a compacted log, the list knows better where they began; where all are, it alone knows them."""
    cdef const uint8_t* a = case.txnindex.bytes.data()
    cdef const uint8_t* b = seen.bytes.data()
    cdef const uint8_t* a_end = a + case.txnindex.bytes.size()
    cdef const uint8_t* b_end = b + seen.bytes.size()
    if case.txnindex.bytes.size() % TXNINDEX_ENTRY != 0:
        return False
    while a < a_end and b < b_end:
        if get_i64(a + TXN_LAST_OFFSET_AT) == get_i64(b + TXN_LAST_OFFSET_AT):
            if (
                get_i64(a + TXN_PRODUCER_ID_AT) != get_i64(b + TXN_PRODUCER_ID_AT)
                or get_i64(a + TXN_FIRST_OFFSET_AT) > get_i64(b + TXN_FIRST_OFFSET_AT)
                or get_i64(a + TXN_STABLE_OFFSET_AT) > get_i64(b + TXN_STABLE_OFFSET_AT)
            ):
                return False
            b += TXNINDEX_ENTRY
        a += TXNINDEX_ENTRY
    return b == b_end and _aborts_have_markers(case)


cdef bint _files_are_right(PartitionLog* p, Case* case, Segment* seen) noexcept nogil:
    cdef bint aborts = case.txnindex.as_written or _same(&case.txnindex, &seen.txnindex)
    if not aborts and (p.log.dense or not _aborts_are_true(case, &seen.txnindex)):
        return False
    if (case.index.as_written or _same(&case.index, &seen.index)) and (
        case.timeindex.as_written or _same(&case.timeindex, &seen.timeindex)
    ):
        return True
    return _entries_are_true(case)


cdef void _should_be(IndexFile* f, const Content* has) noexcept nogil:
    if not f.held:
        f.sum = index_sum(has.bytes.data(), has.bytes.size())
        f.known = True


cdef int _take(PartitionLog* p, Case* case, Segment* seen, bint right, int64_t now_ms) noexcept nogil:
    """Under the partition's lock: the segment gets what the walk has found. 0 or errno."""
    cdef Segment* s = case.segment
    cdef int64_t good = case.size
    cdef int result
    if not right and s.size > case.size:
        result = recover_more(&case.walked, case.place, s.size, now_ms, &good)
        if result != 0 or good != s.size:
            return result if result != 0 else <int>EAGAIN      # still doubted: it is tried again
    if not right:
        segment_take_indexes(s, seen)
    else:
        pthread_mutex_lock(&s.lock)
        _should_be(&s.index, &case.index)
        _should_be(&s.timeindex, &case.timeindex)
        _should_be(&s.txnindex, &case.txnindex)
        s.has_aborts = s.has_aborts or not case.txnindex.bytes.empty()
        pthread_mutex_unlock(&s.lock)
    if not right or case.sealed or seen.max_timestamp > s.max_timestamp:
        s.max_timestamp = seen.max_timestamp
        s.max_timestamp_offset = seen.max_timestamp_offset
    s.ended_before = producers_first_open(&case.walked.producers, case.next_offset)
    if s.formats == FORMATS_UNKNOWN:
        s.formats = seen.formats
        s.checked = False
    s.proved = True
    s.walked = True
    s.doubted = False
    if not right:
        note(&p.log, NOTE_REBUILT, s.base_offset, 0)
    return 0


cdef void _give_up(PartitionLog* p, Segment* s, int64_t position) noexcept nogil:
    pthread_mutex_lock(&p.lock)
    if not s.corrupt:
        note(&p.log, NOTE_CORRUPT_BATCH, s.base_offset, position)
    s.corrupt = True
    s.doubted = False
    pthread_mutex_lock(&s.lock)
    s.index.known = False
    s.timeindex.known = False
    s.txnindex.known = False
    pthread_mutex_unlock(&s.lock)
    pthread_mutex_unlock(&p.lock)


cdef int _validate(PartitionLog* p, Case* case, int64_t now_ms) noexcept nogil:
    cdef Segment* s = case.segment
    cdef Segment* seen = case.walked.segments[case.place]
    cdef int64_t good = 0
    cdef size_t i
    cdef bint right
    cdef int result, fd = segment_open(s, False)
    if fd < 0:
        return -fd
    seen.fd = dup(fd)                  # the same file, whatever compaction puts in its place
    if seen.fd < 0:
        return errno
    result = _read_content(s, &s.index, b".index", &case.index)
    if result == 0:
        result = _read_content(s, &s.timeindex, b".timeindex", &case.timeindex)
    if result == 0:
        result = _read_content(s, &s.txnindex, b".txnindex", &case.txnindex)
    if result == 0:
        result = recover_indexes(&case.walked, case.place, case.size, now_ms, &good)
    if result != 0:
        return result
    if good != case.size:
        _give_up(p, s, good)
        return 0
    if case.sealed:
        segment_last_time(seen)
    right = _files_are_right(p, case, seen)
    pthread_mutex_lock(&p.lock)
    for i in range(case.walked.notes.size()):
        p.log.notes.push_back(case.walked.notes[i])
    result = _take(p, case, seen, right, now_ms)
    pthread_mutex_unlock(&p.lock)
    if result == 0 and case.sealed:
        result = 0 if right else segment_write_indexes(s)
        if result == 0:
            segment_write_checks(s)
    return result


cdef int _prove(PartitionLog* p, Segment* s, int64_t now_ms) noexcept nogil:
    cdef Case case
    cdef int result = 0
    if _open_case(p, s, &case, now_ms):
        result = _validate(p, &case, now_ms)
    _close_case(&case)
    return result


cdef Segment* _first_doubted(PartitionLog* p) noexcept nogil:
    """The first segment that is doubted, with a reference; NULL if there is none."""
    cdef Segment* found = NULL
    cdef size_t i
    pthread_mutex_lock(&p.lock)
    for i in range(p.log.segments.size()):
        if p.log.segments[i].doubted:
            found = p.log.segments[i]
            segment_retain(found)
            break
    if found == NULL:
        atomic_store32(&p.doubted, 0)
    pthread_mutex_unlock(&p.lock)
    return found


cdef int prove_doubted(PartitionLog* p, int64_t now_ms) noexcept nogil:
    cdef int result = 0
    cdef Segment* s
    while result == 0:
        s = _first_doubted(p)
        if s == NULL:
            return 0
        result = _prove(p, s, now_ms)
        segment_release(s)
    return result


cdef int prove_all(PartitionLog* p, int64_t now_ms) noexcept nogil:
    cdef vector[Segment*] every
    cdef size_t i
    pthread_mutex_lock(&p.lock)
    for i in range(p.log.segments.size()):
        segment_retain(p.log.segments[i])
        every.push_back(p.log.segments[i])
    pthread_mutex_unlock(&p.lock)
    for i in range(every.size()):
        if not every[i].corrupt and (not every[i].proved or segment_view_indexes(every[i]) == INDEX_WRONG):
            pthread_mutex_lock(&p.lock)
            doubt_segment(p, every[i])
            pthread_mutex_unlock(&p.lock)
        segment_release(every[i])
    return prove_doubted(p, now_ms)


cdef int prove_expired(PartitionLog* p, size_t count, int64_t now_ms, bint* proved) noexcept nogil:
    cdef Segment* keeper = NULL
    cdef size_t i
    proved[0] = False
    pthread_mutex_lock(&p.lock)
    for i in range(min(count, p.log.segments.size())):
        if not p.log.segments[i].proved and not p.log.segments[i].corrupt:
            doubt_segment(p, p.log.segments[i])
            proved[0] = True
    if count < p.log.segments.size() and not p.log.segments[count].proved and not p.log.segments[count].corrupt:
        keeper = p.log.segments[count]
        segment_retain(keeper)
    pthread_mutex_unlock(&p.lock)
    if keeper != NULL:
        # A time that no batch has would keep the segment for as long as it says.
        if keeper.sealed and not segment_newest_is_there(keeper):
            pthread_mutex_lock(&p.lock)
            doubt_segment(p, keeper)
            pthread_mutex_unlock(&p.lock)
            proved[0] = True
        segment_release(keeper)
    return prove_doubted(p, now_ms)
