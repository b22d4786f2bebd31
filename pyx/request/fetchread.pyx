"""Whether there is enough to answer a fetch; see fetchread.pxd."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from penstock.pyx.errorcodes cimport (
    FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH,
)
from penstock.pyx.linux.descriptors cimport is_last_file
from penstock.pyx.linux.posix cimport free, memset, realloc
from penstock.pyx.log.pagecache cimport read_cached_at
from penstock.pyx.log.partition cimport (
    ISOLATION_COMMITTED, ISOLATION_LOG_END, Partition, partition_epoch_end, partition_held, partition_leader_epoch,
    partition_watch,
)
from penstock.pyx.log.read cimport (
    READ_COLD, ReadResult, partition_read, partition_read_cached, partition_read_replica,
)
from penstock.pyx.log.role cimport NO_BROKER, ReplicaFetch
from penstock.pyx.log.segment cimport FORMATS_NEW
from penstock.pyx.log.topictally cimport tally_fetch
from penstock.pyx.record.batch cimport LENGTH_AT, LOG_OVERHEAD
from penstock.pyx.record.endian cimport get_i32
from penstock.pyx.request.fetch cimport FetchRange, fetch_drop_ranges, fetch_tally, range_release
from penstock.pyx.request.fetchconvert cimport CONVERT_DONE, CONVERT_STORED_MAX_BYTES, fetch_convert
from penstock.pyx.request.fetchset cimport NOWHERE, FetchPartition, FetchSet, set_resolve, set_unresolve
from penstock.pyx.request.versions cimport FETCH_MAGIC_2_FROM, FETCH_MAX_BYTES_FROM

cdef enum:
    ENDS_READ_MAX = 4                 # in one try, while the ends keep moving
    LOGS_READ_MAX = 3                 # in one try, while others take the place of a partition's log
    COLD_TIMES_MAX = 3                # and once a partition
    RANGES_KEPT = 64                  # room for so many is kept while a job waits


# --- one partition ------------------------------------------------------------------------------------------
cdef void _check_epochs(const FetchPartition* partition, FetchRange* r) noexcept nogil:
    """Sets an error, or that the client's log has parted from this one (KIP-320, KIP-595)."""
    cdef int32_t epoch
    cdef int32_t found = -1
    cdef int64_t end_offset = -1
    if partition.leader_epoch >= 0:
        epoch = partition_leader_epoch(partition.partition)
        if partition.leader_epoch != epoch:
            r.error = FENCED_LEADER_EPOCH if partition.leader_epoch < epoch else UNKNOWN_LEADER_EPOCH
            return
    if partition.last_fetched_epoch < 0:
        return
    partition_epoch_end(partition.partition, partition.last_fetched_epoch, &found, &end_offset)
    if end_offset < 0:
        r.error = OFFSET_OUT_OF_RANGE
    elif found < partition.last_fetched_epoch or end_offset < partition.offset:
        r.diverged = True
        r.diverging_epoch = found
        r.diverging_end = end_offset


cdef int16_t _read_for_replica(
    const FetchJob* job, const FetchPartition* partition, bint moves, bint may_block, int32_t allowed, bint first,
    FetchRange* r
) noexcept nogil:
    cdef ReplicaFetch fetch
    cdef int16_t error
    fetch.replica = job.replica
    fetch.broker_epoch = partition.broker_epoch
    fetch.leader_epoch = partition.leader_epoch
    fetch.offset = partition.offset
    fetch.last_epoch = partition.last_fetched_epoch
    fetch.log_start = partition.log_start
    fetch.now_ms = job.begun_ms
    fetch.moves = moves
    fetch.diverged = False
    fetch.begins = False
    fetch.removed_below = 0
    fetch.diverging_epoch = -1
    fetch.diverging_end = -1
    error = partition_read_replica(partition.partition, &fetch, allowed, first, not may_block, &r.read)
    r.diverged = fetch.diverged
    r.diverging_epoch = fetch.diverging_epoch
    r.diverging_end = fetch.diverging_end
    r.removed_below = fetch.removed_below if error == 0 or fetch.begins else <int64_t>0
    return error


cdef bint _begins_whole(const ReadResult* read) noexcept nogil:
    """Whether the first batch of a range is whole in it. Pages that aren't in memory say no."""
    cdef uint8_t header[LOG_OVERHEAD]
    return (
        read.length >= LOG_OVERHEAD
        and read_cached_at(read.fd, header, LOG_OVERHEAD, read.position) == LOG_OVERHEAD
        and LOG_OVERHEAD + <int64_t>get_i32(header + LENGTH_AT) <= read.length
    )


cdef struct Limits:
    int64_t left                      # bytes of records that the answer may still take
    int64_t total                     # that it has
    int64_t converted                 # that it has of ranges which may have to be converted
    bint urgent                       # something mustn't wait, however few the bytes are
    bint cold                         # the last range has to be read into memory before anything else
    bint held                         # a partition is held: nothing is answered before its move is over


cdef inline bint _may_block(const FetchJob* job) noexcept nogil:
    """Whether the thread may wait for the disk: a reader read so much for the job, and it was evicted meanwhile."""
    return job.cold_times >= COLD_TIMES_MAX + job.set.count


cdef inline bint _may_convert(const FetchJob* job) noexcept nogil:
    """A replica takes a log as it is stored."""
    return job.replica == NO_BROKER


cdef void _bound_conversion(Limits* limits, ReadResult* read, bint whole) noexcept nogil:
    """A range that may have to be converted is read into memory: all of them together stay small. `whole`: the first
    batch is given whatever its size."""
    cdef int64_t most = max(CONVERT_STORED_MAX_BYTES - limits.converted, read.first_size if whole else <int64_t>0)
    if read.length > most:
        read.length = limits.left = most
        limits.urgent = True                          # the rest is there, and comes with the next fetch
    limits.converted += read.length


cdef inline int64_t _end_of(const FetchJob* job, const ReadResult* read) noexcept nogil:
    if job.isolation == ISOLATION_LOG_END:
        return read.log_end_offset
    return read.last_stable_offset if job.isolation == ISOLATION_COMMITTED else read.high_watermark


cdef void _take_range(
    FetchJob* job, FetchPartition* partition, FetchRange* r, bint first_try, Limits* limits
) noexcept nogil:
    """Reads a partition without an error so far. `first_try`: since the request came."""
    cdef bint first = not r.diverged and (limits.total == 0 if job.version >= FETCH_MAX_BYTES_FROM else limits.left > 0)
    cdef int32_t allowed = 0 if r.diverged else <int32_t>min(<int64_t>max(partition.max_bytes, 0), limits.left)
    if job.replica != NO_BROKER:
        r.error = _read_for_replica(job, partition, first_try, _may_block(job), allowed, first, r)
    elif _may_block(job):
        r.error = partition_read(partition.partition, partition.offset, allowed, first, job.isolation, &r.read)
    else:
        r.error = partition_read_cached(partition.partition, partition.offset, allowed, first, job.isolation, &r.read)
    if r.error == READ_COLD:
        limits.cold = True
        return
    if r.error:
        range_release(r)
        return
    partition.known_end = _end_of(job, &r.read)
    if r.read.length and _may_convert(job) and job.version >= FETCH_MAGIC_2_FROM and r.read.formats != FORMATS_NEW:
        _bound_conversion(limits, &r.read, first)
        allowed = min(allowed, <int32_t>limits.left)
    if r.read.length and (r.diverged or (not first and r.read.length >= allowed and not _begins_whole(&r.read))):
        range_release(r)
    if r.read.length and r.read.length < allowed:
        # The rest of an older segment: waiting would not make this range longer.
        limits.urgent = limits.urgent or r.read.next_offset < partition.known_end
    limits.total += r.read.length
    limits.left = max(limits.left - r.read.length, <int64_t>0)
    if r.read.segment != NULL and is_last_file(r.read.fd):
        limits.left = 0                               # an answer holds a file for each range: the next has the others


cdef void _read_partition(
    FetchJob* job, FetchPartition* partition, FetchRange* r, bint first_try, Limits* limits
) noexcept nogil:
    """Reads a partition, or says in `r` or `limits` why not. A log that is held or was stopped may have another one in
    its place, which is read then."""
    cdef Partition* found
    cdef bint held
    cdef int32_t _again
    for _again in range(LOGS_READ_MAX):
        r.error = set_resolve(job.set, job.logs, partition)
        if r.error != 0:
            return
        found = partition.partition
        held = partition_held(found)
        r.diverged = False
        r.removed_below = 0
        if not held:
            if job.replica == NO_BROKER:
                _check_epochs(partition, r)           # a replica's are checked where its fetch is heard
            if r.error == 0:
                _take_range(job, partition, r, first_try, limits)
            if r.error != NOT_LEADER_OR_FOLLOWER:
                return
        set_unresolve(partition)
        r.error = NOT_LEADER_OR_FOLLOWER
        if set_resolve(job.set, job.logs, partition) != 0:
            return
        if partition.partition == found:
            limits.held = held
            return
        job.replaced = True


cdef bint _has_news(const FetchPartition* partition, const FetchRange* r) noexcept nogil:
    """Whether the client of a session has to hear of a partition."""
    return (
        r.error != 0
        or r.diverged
        or r.read.length > 0
        or r.read.high_watermark != partition.cached_high_watermark
        or r.read.log_start_offset != partition.cached_log_start
    )


# --- all of them --------------------------------------------------------------------------------------------
cdef FetchRange* _next_range(FetchJob* job) noexcept nogil:
    cdef int32_t capacity
    cdef FetchRange* grown
    if job.range_count == job.range_capacity:
        capacity = job.range_capacity * 2 + 1
        grown = <FetchRange*>realloc(job.ranges, <size_t>capacity * sizeof(FetchRange))
        if grown == NULL:
            return NULL
        job.ranges = grown
        job.range_capacity = capacity
    memset(&job.ranges[job.range_count], 0, sizeof(FetchRange))
    return &job.ranges[job.range_count]


cdef bint _gather(FetchJob* job, Limits* limits) noexcept nogil:
    """Takes the ranges to answer with. False: no memory."""
    cdef FetchSet* s = job.set
    cdef FetchPartition* partition
    cdef FetchRange* r
    cdef int32_t at = s.first, place = 0
    fetch_drop_ranges(job)
    limits.total = 0
    limits.converted = 0
    limits.urgent = False
    limits.cold = False
    limits.held = False
    limits.left = job.max_bytes
    if job.version < FETCH_MAGIC_2_FROM:
        limits.left = min(limits.left, <int64_t>CONVERT_STORED_MAX_BYTES)
    while at != NOWHERE:
        partition = &s.partitions[at]
        r = _next_range(job)
        if r == NULL:
            return False
        r.at = at
        r.read.fd = -1
        _read_partition(job, partition, r, place == job.tallied, limits)
        if limits.held:
            return True
        if limits.cold:
            job.cold = job.range_count
            job.range_count += 1                      # so that it is released
            return True
        if place == job.tallied:
            tally_fetch(fetch_tally(job, partition))
            job.tallied += 1
        place += 1
        limits.urgent = limits.urgent or r.error != 0 or r.diverged
        if not job.incremental or _has_news(partition, r):
            job.range_count += 1
        at = partition.next
    return True


cdef bint _moved(FetchJob* job, int reactor) noexcept nogil:
    """Whether a partition's end has moved since it was read; else all of them are watched."""
    cdef FetchSet* s = job.set
    cdef int32_t at = s.first
    while at != NOWHERE:
        if s.partitions[at].partition != NULL and partition_watch(
            s.partitions[at].partition, reactor, job.isolation, s.partitions[at].known_end
        ):
            return True
        at = s.partitions[at].next
    return False


cdef bint _has_converted(const FetchJob* job) noexcept nogil:
    """Whether old clients get anything; one that got only markers would fetch the same offset again and again."""
    cdef int32_t i
    for i in range(job.range_count):
        if job.ranges[i].error or (job.ranges[i].converted != NULL and job.ranges[i].converted.size() > 0):
            return True
    return False


cdef void fetch_convert_ranges(FetchJob* job) noexcept nogil:
    job.cold = fetch_convert(job, _may_block(job))
    job.converted = True


cdef FetchState _try_gathered(FetchJob* job, bint must_answer) noexcept nogil:
    """FETCH_READY, FETCH_WAIT, or the step that has to come first."""
    cdef Limits limits
    cdef bint enough
    if not _gather(job, &limits):
        return FETCH_FAILED
    if limits.held:
        fetch_drop_ranges(job)
        return FETCH_HELD
    if limits.cold:
        return FETCH_COLD
    job.urgent = limits.urgent or must_answer or job.max_wait_ms <= 0 or job.set.count == 0
    enough = job.urgent or limits.total >= job.min_bytes or (limits.total > 0 and limits.left == 0)
    if enough and limits.total > 0 and _may_convert(job) and (job.version < FETCH_MAGIC_2_FROM or limits.converted > 0):
        return FETCH_CONVERT
    return FETCH_READY if enough else FETCH_WAIT


cdef FetchState _try_converted(FetchJob* job, bint must_answer) noexcept nogil:
    job.converted = False
    if job.cold != CONVERT_DONE:
        return FETCH_COLD
    if job.urgent or must_answer or job.version >= FETCH_MAGIC_2_FROM or _has_converted(job):
        return FETCH_READY
    return FETCH_WAIT


cdef FetchState fetch_try(FetchJob* job, int reactor, bint must_answer) noexcept nogil:
    cdef FetchState state
    cdef int32_t _again
    if job.error:
        return FETCH_READY
    for _again in range(ENDS_READ_MAX):
        state = _try_converted(job, must_answer) if job.converted else _try_gathered(job, must_answer)
        job.cold_times += state == FETCH_COLD
        if state != FETCH_WAIT:
            return state
        if not _moved(job, reactor):
            fetch_drop_ranges(job)
            if job.range_capacity > RANGES_KEPT:
                free(job.ranges)
                job.ranges = NULL
                job.range_capacity = 0
            return FETCH_WAIT
    fetch_drop_ranges(job)
    return FETCH_AGAIN
