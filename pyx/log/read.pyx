"""Reading ranges of a log, its aborted transactions, and records by time; see read.pxd."""

from cython.operator cimport dereference as at
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t
from libcpp.vector cimport vector

from penstock.pyx.errorcodes cimport CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE
from penstock.pyx.linux.posix cimport atomic_store32, pthread_mutex_lock, pthread_mutex_unlock
from penstock.pyx.log.files cimport is_passing
from penstock.pyx.log.index cimport INDEX_WRONG
from penstock.pyx.log.logstate cimport NOTE_CORRUPT_MESSAGE, NOTE_CORRUPT_READ, LogState, note
from penstock.pyx.log.partition cimport ISOLATION_COMMITTED, ISOLATION_LOG_END, wake_reactors
from penstock.pyx.log.partitionlog cimport (
    PartitionLog, doubt_segment, end_of, fail_log, is_offline, log_of, serves_clients, tell_doubt,
)
from penstock.pyx.log.replicas cimport replica_fetched
from penstock.pyx.log.role cimport ReplicaFetch
from penstock.pyx.log.segment cimport (
    FORMATS_UNKNOWN, WALK_BATCH, WALK_COLD, WALK_END, WALK_GARBAGE, BatchPlace, Segment, segment_aborts, segment_bound,
    segment_expected, segment_find, segment_find_time, segment_open, segment_release, segment_retain,
)
from penstock.pyx.log.txnindex cimport (
    TXNINDEX_ENTRY, TXN_FIRST_OFFSET_AT, TXN_LAST_OFFSET_AT, TXN_PRODUCER_ID_AT, TXN_STABLE_OFFSET_AT,
)
from penstock.pyx.record.batch cimport BatchHeader
from penstock.pyx.record.endian cimport get_i64

cdef size_t _segment_of(const LogState* log, int64_t offset) noexcept nogil:
    """Under the lock: the number of the segment that holds `offset` (the first one when none does)."""
    cdef size_t low = 0, high = log.segments.size(), middle
    while low + 1 < high:
        middle = (low + high) // 2
        if log.segments[middle].base_offset <= offset:
            low = middle
        else:
            high = middle
    return low


# What a read needs to know of a segment, taken under the lock.
cdef struct Reach:
    Segment* segment                   # a reference is held
    int64_t limit                      # bytes that may be read; -1: up to the batch that holds `end`
    int64_t size
    int64_t next_offset
    int64_t end                        # offsets that may be read
    int8_t formats
    BatchPlace tail


cdef void _reach(PartitionLog* p, int64_t offset, int8_t isolation, Reach* out) noexcept nogil:
    cdef Segment* s = p.log.segments[_segment_of(&p.log, offset)]
    segment_retain(s)
    out.segment = s
    out.size = s.size
    out.next_offset = s.next_offset
    out.end = end_of(p, isolation)
    out.tail = s.tail
    out.formats = s.formats
    out.limit = s.size if out.end >= s.next_offset else -1
    if out.limit < 0 and isolation == ISOLATION_COMMITTED and not p.log.producers.open_txns.empty():
        first = p.log.producers.open_txns.begin()
        if at(first).first == out.end and at(first).second.segment_base == s.base_offset:
            out.limit = at(first).second.position


cdef int _locate(Reach* reach, int64_t offset, bint cached, BatchHeader* header, int64_t* position) noexcept nogil:
    """Without the lock: the range in the segment. WALK_BATCH, WALK_END (go on in the next segment), WALK_COLD, or what
    failed."""
    cdef BatchPlace known = reach.tail
    cdef int result
    if reach.limit < 0:
        result = segment_find(reach.segment, reach.end, reach.size, cached, header, position)
        if result != WALK_BATCH and result != WALK_END:
            return result
        reach.limit = position[0]          # the end of the segment, if what lay at `end` is missing
    if (
        (offset == known.offset and known.position + known.size <= reach.limit)
        or segment_expected(reach.segment, offset, reach.limit, &known)
    ):
        header.base_offset = known.offset
        header.size = known.size
        position[0] = known.position
        return WALK_BATCH
    return segment_find(reach.segment, offset, reach.limit, cached, header, position)


cdef int16_t _doubt(PartitionLog* p, Segment* s) noexcept nogil:
    """Without the lock: what a reader is told of a segment whose index files turned out to be wrong. A proof mends
    them; where none is possible, since a batch can't be read, trying again would never end."""
    cdef int16_t error = CORRUPT_MESSAGE
    pthread_mutex_lock(&p.lock)
    if not s.corrupt:
        doubt_segment(p, s)
        tell_doubt(p)
        error = NOT_LEADER_OR_FOLLOWER
    pthread_mutex_unlock(&p.lock)
    return error


cdef inline bint _is_trusted(const Segment* s) noexcept nogil:
    """Under the lock: whether what is known of a segment can be believed, or is all that there will ever be."""
    return s.proved or s.corrupt


cdef int16_t _failed(PartitionLog* p, Segment* s, int64_t position, int result) noexcept nogil:
    """Without the lock: what a reader is told when a read of a segment has failed with a WalkResult or -errno. Bytes
    that are no batch are said once, and by CORRUPT_MESSAGE, of which clients tell their users; a disk that gives EIO
    takes its whole folder offline, as in Kafka. Files of a log that was stopped may have another name, or be gone."""
    cdef uint64_t wake = 0
    cdef int16_t error = KAFKA_STORAGE_ERROR
    pthread_mutex_lock(&p.lock)
    if p.stopped or (result == WALK_GARBAGE and position >= s.size):
        error = NOT_LEADER_OR_FOLLOWER     # stopped, or cut meanwhile
    elif result == WALK_GARBAGE:
        error = CORRUPT_MESSAGE
        if not s.corrupt_read:
            s.corrupt_read = True
            note(&p.log, NOTE_CORRUPT_READ, s.base_offset, position)
            atomic_store32(&p.doubted, 1)
            tell_doubt(p)
    elif result < 0 and not is_passing(-result):
        wake = fail_log(p, -result)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(<Partition*>p, wake)
    return error


cdef int16_t partition_read(
    Partition* partition, int64_t offset, int32_t max_bytes, bint whole_first_batch, int8_t isolation, ReadResult* out
) noexcept nogil:
    return _read(partition, offset, max_bytes, whole_first_batch, isolation, False, NULL, out)


cdef int16_t partition_read_cached(
    Partition* partition, int64_t offset, int32_t max_bytes, bint whole_first_batch, int8_t isolation, ReadResult* out
) noexcept nogil:
    return _read(partition, offset, max_bytes, whole_first_batch, isolation, True, NULL, out)


cdef int16_t partition_read_replica(
    Partition* partition, ReplicaFetch* fetch, int32_t max_bytes, bint whole_first_batch, bint cached, ReadResult* out
) noexcept nogil:
    return _read(partition, fetch.offset, max_bytes, whole_first_batch, ISOLATION_LOG_END, cached, fetch, out)


cdef int16_t _read(
    Partition* partition, int64_t offset, int32_t max_bytes, bint whole_first_batch, int8_t isolation, bint cached,
    ReplicaFetch* fetch, ReadResult* out
) noexcept nogil:
    """`fetch`: another replica's, or NULL. It is heard in the same moment in which the bounds of the read are taken."""
    cdef PartitionLog* p = log_of(partition)
    cdef Reach reach
    cdef BatchHeader header
    cdef int64_t position = 0
    cdef uint64_t wake = 0
    cdef int result
    cdef int16_t error
    cdef bint diverged = False
    out.fd = -1
    out.position = 0
    out.length = 0
    out.first_offset = -1
    out.first_size = 0
    out.formats = FORMATS_UNKNOWN
    out.next_offset = offset
    out.segment = NULL
    out.folder = <size_t>p.folder
    while True:
        error = 0
        pthread_mutex_lock(&p.lock)
        if p.stopped or (not serves_clients(p) and isolation != ISOLATION_LOG_END):
            error = NOT_LEADER_OR_FOLLOWER
        elif is_offline(p):
            error = KAFKA_STORAGE_ERROR
        elif fetch != NULL:
            error = replica_fetched(p, fetch, &wake)
            diverged = fetch.diverged
            fetch.moves = False        # should a hole lead on: what compaction has removed meanwhile counts, too
        if error == 0 and not diverged and not p.log.log_start <= offset <= p.log.log_end:
            error = OFFSET_OUT_OF_RANGE
        out.high_watermark = p.high_watermark
        out.last_stable_offset = p.last_stable
        out.log_start_offset = p.log.log_start
        out.log_end_offset = p.log.log_end
        if error != 0 or diverged or offset >= end_of(p, isolation) or (max_bytes <= 0 and not whole_first_batch):
            pthread_mutex_unlock(&p.lock)
            wake_reactors(partition, wake)
            return error
        _reach(p, offset, isolation, &reach)
        pthread_mutex_unlock(&p.lock)
        wake_reactors(partition, wake)
        wake = 0
        result = _locate(&reach, offset, cached, &header, &position)
        if result == WALK_BATCH:
            break
        if result == WALK_COLD:
            out.segment = reach.segment
            out.fd = segment_open(reach.segment, False)
            out.position = position
            out.length = min(reach.size - position, <int64_t>COLD_READ_BYTES)
            return READ_COLD
        if result == -INDEX_WRONG:
            error = _doubt(p, reach.segment)
            segment_release(reach.segment)
            return error
        if result != WALK_END:
            error = _failed(p, reach.segment, position, result)
            segment_release(reach.segment)
            return error
        segment_release(reach.segment)
        if reach.next_offset <= offset or reach.next_offset >= reach.end:
            return 0                   # holes up to the end of what may be read
        offset = reach.next_offset     # compaction has left a hole at the segment's end
    out.length = reach.limit - position
    if out.length > max_bytes:
        out.length = max_bytes
    if whole_first_batch and out.length < header.size:
        out.length = header.size
    if out.length <= 0:
        out.length = 0
        segment_release(reach.segment)
        return 0
    out.segment = reach.segment
    out.fd = segment_open(reach.segment, False)
    if out.fd < 0:
        error = _failed(p, reach.segment, position, out.fd)
        read_release(out)
        out.fd = -1
        out.length = 0
        return error
    out.position = position
    out.first_offset = header.base_offset
    out.first_size = header.size
    out.formats = reach.formats
    out.next_offset = reach.end if reach.end < reach.next_offset else reach.next_offset
    if isolation == ISOLATION_COMMITTED and position + out.length < reach.limit:
        out.next_offset = segment_bound(reach.segment, position + out.length, out.next_offset)
    return 0


cdef void partition_ask_formats(Partition* partition, const ReadResult* result) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef Segment* s = <Segment*>result.segment
    pthread_mutex_lock(&p.lock)
    if s.formats == FORMATS_UNKNOWN and not s.corrupt and not s.doubted:
        s.doubted = True               # its proof walks it; what is known of it stays believed
        atomic_store32(&p.doubted, 1)
        tell_doubt(p)
    pthread_mutex_unlock(&p.lock)


cdef void partition_tell_corrupt(Partition* partition, const ReadResult* result) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef Segment* s = <Segment*>result.segment
    if s == NULL:
        return
    pthread_mutex_lock(&p.lock)
    if not s.corrupt_read and not p.stopped:
        s.corrupt_read = True
        note(&p.log, NOTE_CORRUPT_MESSAGE, result.first_offset, result.position)
        atomic_store32(&p.doubted, 1)
        tell_doubt(p)
    pthread_mutex_unlock(&p.lock)


cdef void read_release(ReadResult* result) noexcept nogil:
    if result.segment != NULL:
        segment_release(<Segment*>result.segment)
    result.segment = NULL


cdef int16_t partition_aborted(
    Partition* partition, int64_t from_offset, int64_t to_offset, vector[AbortedTxn]& out
) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef vector[uint8_t] entries
    cdef const uint8_t* entry
    cdef size_t i
    cdef Segment* s
    cdef AbortedTxn aborted
    cdef int64_t at_offset = from_offset, next_offset
    cdef int result
    cdef int16_t error
    cdef bint last, done = False
    while not done:
        pthread_mutex_lock(&p.lock)
        if p.log.segments[0].base_offset > at_offset:
            pthread_mutex_unlock(&p.lock)
            return OFFSET_OUT_OF_RANGE         # retention has been here since the read
        i = _segment_of(&p.log, at_offset)
        while (
            i + 1 < p.log.segments.size()
            and _is_trusted(p.log.segments[i])
            and not p.log.segments[i].has_aborts
            and p.log.segments[i].ended_before < to_offset
        ):
            i += 1                             # most logs have none: no file is looked for
        s = p.log.segments[i]
        if not _is_trusted(s):
            doubt_segment(p, s)
            tell_doubt(p)
            pthread_mutex_unlock(&p.lock)
            return NOT_LEADER_OR_FOLLOWER
        last = i + 1 == p.log.segments.size() or s.ended_before >= to_offset
        next_offset = 0 if last else p.log.segments[i + 1].base_offset
        segment_retain(s)
        pthread_mutex_unlock(&p.lock)
        result = segment_aborts(s, entries)
        if result == INDEX_WRONG:
            error = _doubt(p, s)
            segment_release(s)
            return error
        if result != 0:
            error = _failed(p, s, 0, -result)
            segment_release(s)
            return error
        segment_release(s)
        for i in range(entries.size() // TXNINDEX_ENTRY):
            entry = entries.data() + i * TXNINDEX_ENTRY
            if get_i64(entry + TXN_LAST_OFFSET_AT) >= from_offset and get_i64(entry + TXN_FIRST_OFFSET_AT) < to_offset:
                aborted.producer_id = get_i64(entry + TXN_PRODUCER_ID_AT)
                aborted.first_offset = get_i64(entry + TXN_FIRST_OFFSET_AT)
                out.push_back(aborted)
            if get_i64(entry + TXN_STABLE_OFFSET_AT) >= to_offset:
                done = True
                break
        done = done or last
        at_offset = next_offset
    return 0


cdef int partition_find_time(
    Partition* partition, int64_t timestamp_ms, int64_t* offset, int64_t* timestamp, int16_t* error
) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef size_t i
    cdef Segment* s = NULL
    cdef int64_t log_start, size = 0, from_base = -1
    cdef size_t may_inflate = SEARCH_INFLATED_MAX_BYTES
    cdef int result
    while True:
        s = NULL
        pthread_mutex_lock(&p.lock)
        log_start = p.log.log_start
        for i in range(p.log.segments.size()):
            if p.log.segments[i].base_offset <= from_base:
                continue
            if not _is_trusted(p.log.segments[i]):
                doubt_segment(p, p.log.segments[i])
                pthread_mutex_unlock(&p.lock)
                error[0] = NOT_LEADER_OR_FOLLOWER
                return -INDEX_WRONG
            if p.log.segments[i].max_timestamp >= timestamp_ms:
                s = p.log.segments[i]
                size = s.size
                from_base = s.base_offset
                segment_retain(s)
                break
        pthread_mutex_unlock(&p.lock)
        if s == NULL:
            return WALK_END
        result = segment_find_time(s, timestamp_ms, log_start, size, &may_inflate, offset, timestamp)
        if result == -INDEX_WRONG:
            error[0] = _doubt(p, s)
        elif result != WALK_END and result != WALK_BATCH:
            error[0] = _failed(p, s, offset[0], result)
        segment_release(s)
        if result != WALK_END:
            return result
