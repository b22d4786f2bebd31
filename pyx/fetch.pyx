"""Fetch in place; see fetch.pxd.

Of one request's partitions, in their order: the first that has anything gives its first batch whole even when that is
larger than every limit; the others share what is left of max_bytes and never begin with a batch that was cut.
"""
from libcpp.vector cimport vector

from penstock.pyx.batch cimport LENGTH_AT, LOG_OVERHEAD
from penstock.pyx.endian cimport get_i32
from penstock.pyx.frame cimport (
    TOPIC_ID_BYTES,
    answer_begin,
    answer_end,
    read_count,
    read_i8,
    read_i32,
    read_i64,
    read_raw,
    read_string,
    reader_left,
    reader_start,
    skip_tags,
    write_count,
    write_i8,
    write_i16,
    write_i32,
    write_i64,
    write_no_tags,
    write_raw,
    write_string,
    write_uvarint,
    writer_room,
)
from penstock.pyx.partition cimport (
    ISOLATION_COMMITTED,
    ISOLATION_UNCOMMITTED,
    LogSet,
    partition_epoch_end,
    partition_find,
    partition_find_id,
    partition_known_id,
    partition_leader_epoch,
    partition_release,
    partition_watch,
)
from penstock.pyx.posix cimport (
    EOPNOTSUPP,
    RWF_NOWAIT,
    calloc,
    errno,
    free,
    iovec,
    malloc,
    memcpy,
    memset,
    preadv2,
    realloc,
)
from penstock.pyx.read cimport AbortedTxn, partition_aborted, partition_read, read_release

cdef enum:
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNKNOWN_TOPIC_ID = 100

    LOG_START_OFFSET_FROM = 5         # versions from which a field is there
    SESSIONS_FROM = 7
    LEADER_EPOCH_FROM = 9
    RACK_FROM = 11
    LAST_FETCHED_EPOCH_FROM = 12
    TOPIC_IDS_FROM = 13
    REPLICA_STATE_FROM = 15           # replica_id moved into a tagged field

    SESSION_EPOCH_INITIAL = 0         # a full request that would like a session
    SESSION_EPOCH_FINAL = -1          # a full request without one
    PARTITION_BYTES_MIN = 16
    TOPIC_BYTES_MIN = 2
    LOOKS_MAX = 4                     # of one try, while the ends keep moving


# --- parsing ------------------------------------------------------------------------------------------------
cdef FetchTopic* add_topic(FetchJob* job) noexcept nogil:
    cdef int32_t capacity
    cdef FetchTopic* grown
    if job.topic_count == job.topic_capacity:
        capacity = job.topic_capacity * 2 + 4
        grown = <FetchTopic*>realloc(job.topics, <size_t>capacity * sizeof(FetchTopic))
        if grown == NULL:
            return NULL
        job.topics = grown
        job.topic_capacity = capacity
    job.topic_count += 1
    memset(&job.topics[job.topic_count - 1], 0, sizeof(FetchTopic))
    return &job.topics[job.topic_count - 1]


cdef FetchPartition* add_partition(FetchJob* job) noexcept nogil:
    cdef int32_t capacity
    cdef FetchPartition* grown
    cdef FetchPartition* added
    if job.partition_count == job.partition_capacity:
        capacity = job.partition_capacity * 2 + 4
        grown = <FetchPartition*>realloc(job.partitions, <size_t>capacity * sizeof(FetchPartition))
        if grown == NULL:
            return NULL
        job.partitions = grown
        job.partition_capacity = capacity
    added = &job.partitions[job.partition_count]
    job.partition_count += 1
    memset(added, 0, sizeof(FetchPartition))
    added.leader_epoch = -1
    added.last_fetched_epoch = -1
    added.read.fd = -1
    return added


cdef void find(LogSet* logs, const FetchTopic* topic, FetchPartition* partition) noexcept nogil:
    """Takes a reference to the partition, or sets the error that says why there is none."""
    if topic.topic_id == NULL:
        partition.partition = partition_find(logs, <const char*>topic.name.p, <size_t>topic.name.n, partition.index)
        if partition.partition == NULL:
            partition.error = UNKNOWN_TOPIC_OR_PARTITION
        return
    partition.partition = partition_find_id(logs, topic.topic_id, partition.index)
    if partition.partition == NULL:
        partition.error = (
            UNKNOWN_TOPIC_OR_PARTITION if partition_known_id(logs, topic.topic_id) else UNKNOWN_TOPIC_ID
        )


cdef FetchParse parse_partition(FetchJob* job, const FetchTopic* topic, Reader* r) noexcept nogil:
    cdef bint flexible = job.version >= FETCH_FLEXIBLE_FROM
    cdef FetchPartition* partition = add_partition(job)
    if partition == NULL:
        return FETCH_NO_MEMORY
    partition.index = read_i32(r)
    if job.version >= LEADER_EPOCH_FROM:
        partition.leader_epoch = read_i32(r)
    partition.offset = read_i64(r)
    if job.version >= LAST_FETCHED_EPOCH_FROM:
        partition.last_fetched_epoch = read_i32(r)
    if job.version >= LOG_START_OFFSET_FROM:
        read_i64(r)                                   # a follower's log start
    partition.max_bytes = read_i32(r)
    skip_tags(r, flexible)
    if r.bad or job.partition_count > FETCH_PARTITIONS_MAX:
        return FETCH_MALFORMED
    if job.error == 0:
        find(job.logs, topic, partition)
    return FETCH_PARSED


cdef FetchParse parse_topics(FetchJob* job, Reader* r) noexcept nogil:
    cdef bint flexible = job.version >= FETCH_FLEXIBLE_FROM
    cdef int32_t topics = read_count(r, flexible, TOPIC_BYTES_MIN)
    cdef int32_t _i, _j
    cdef FetchTopic* topic
    cdef FetchParse result
    for _i in range(topics):
        topic = add_topic(job)
        if topic == NULL:
            return FETCH_NO_MEMORY
        if job.version >= TOPIC_IDS_FROM:
            topic.topic_id = read_raw(r, TOPIC_ID_BYTES)
        else:
            topic.name = read_string(r, flexible, False)
        topic.partitions = read_count(r, flexible, PARTITION_BYTES_MIN)
        if r.bad or job.topic_count > FETCH_PARTITIONS_MAX:
            return FETCH_MALFORMED
        for _j in range(topic.partitions):
            result = parse_partition(job, topic, r)
            if result != FETCH_PARSED:
                return result
        skip_tags(r, flexible)
    return FETCH_MALFORMED if r.bad else FETCH_PARSED


cdef FetchParse parse_rest(FetchJob* job, Reader* r) noexcept nogil:
    """What only sessions and racks need, read to see that the request is whole."""
    cdef bint flexible = job.version >= FETCH_FLEXIBLE_FROM
    cdef int32_t topics, partitions, _i
    if job.version >= SESSIONS_FROM:
        topics = read_count(r, flexible, TOPIC_BYTES_MIN)
        for _i in range(topics):
            if job.version >= TOPIC_IDS_FROM:
                read_raw(r, TOPIC_ID_BYTES)
            else:
                read_string(r, flexible, False)
            partitions = read_count(r, flexible, sizeof(int32_t))
            read_raw(r, <size_t>partitions * sizeof(int32_t))
            skip_tags(r, flexible)
            if r.bad:
                return FETCH_MALFORMED
    if job.version >= RACK_FROM:
        read_string(r, flexible, False)
    skip_tags(r, flexible)
    return FETCH_MALFORMED if r.bad else FETCH_PARSED


cdef FetchParse parse(FetchJob* job, Reader* r, int32_t answer_bytes_max) noexcept nogil:
    cdef int32_t session_epoch
    cdef FetchParse result
    if job.version < REPLICA_STATE_FROM:
        read_i32(r)                                   # replica_id: nobody sees more than the high watermark
    job.max_wait_ms = read_i32(r)
    job.min_bytes = read_i32(r)
    job.max_bytes = min(max(read_i32(r), 0), answer_bytes_max)
    job.isolation = ISOLATION_COMMITTED if read_i8(r) == ISOLATION_COMMITTED else ISOLATION_UNCOMMITTED
    if job.version >= SESSIONS_FROM:
        read_i32(r)                                   # session_id: none exists
        session_epoch = read_i32(r)
        if session_epoch != SESSION_EPOCH_INITIAL and session_epoch != SESSION_EPOCH_FINAL:
            job.error = FETCH_SESSION_ID_NOT_FOUND
    result = parse_topics(job, r)
    return result if result != FETCH_PARSED else parse_rest(job, r)


cdef FetchParse fetch_parse(
    LogSet* logs, const RequestHead* head, Reader body, int32_t answer_bytes_max, FetchJob** out
) noexcept nogil:
    cdef FetchJob* job = <FetchJob*>calloc(1, sizeof(FetchJob))
    cdef size_t n = reader_left(&body)
    cdef FetchParse result
    cdef Reader r
    out[0] = NULL
    if job == NULL:
        return FETCH_NO_MEMORY
    job.logs = logs
    job.version = head.api_version
    job.correlation_id = head.correlation_id
    job.heap_index = -1
    job.names = <uint8_t*>malloc(n + 1)
    if job.names == NULL:
        free(job)
        return FETCH_NO_MEMORY
    memcpy(job.names, body.p, n)
    reader_start(&r, job.names, n)
    result = parse(job, &r, answer_bytes_max)
    if result != FETCH_PARSED:
        fetch_free(job)
        return result
    job.held_bytes = (
        <int64_t>n
        + job.topic_capacity * <int64_t>sizeof(FetchTopic)
        + job.partition_capacity * <int64_t>sizeof(FetchPartition)
    )
    out[0] = job
    return FETCH_PARSED


cdef void fetch_free(FetchJob* job) noexcept nogil:
    cdef int32_t i
    if job == NULL:
        return
    for i in range(job.partition_count):
        read_release(&job.partitions[i].read)
        if job.partitions[i].partition != NULL:
            partition_release(job.partitions[i].partition)
    free(job.partitions)
    free(job.topics)
    free(job.names)
    free(job)


# --- looking ------------------------------------------------------------------------------------------------
cdef void check_epochs(FetchPartition* partition) noexcept nogil:
    """Sets an error, or that the client's log has parted from this one (KIP-320, KIP-595)."""
    cdef int32_t epoch = partition_leader_epoch(partition.partition)
    cdef int32_t found = -1
    cdef int64_t end_offset = -1
    if partition.leader_epoch >= 0 and partition.leader_epoch != epoch:
        partition.error = FENCED_LEADER_EPOCH if partition.leader_epoch < epoch else UNKNOWN_LEADER_EPOCH
        return
    if partition.last_fetched_epoch < 0:
        return
    partition_epoch_end(partition.partition, partition.last_fetched_epoch, &found, &end_offset)
    if end_offset < 0:
        partition.error = OFFSET_OUT_OF_RANGE
    elif found < partition.last_fetched_epoch or end_offset < partition.offset:
        partition.diverged = True
        partition.diverging_epoch = found
        partition.diverging_end = end_offset


cdef bint read_cached(int fd, uint8_t* to, size_t n, int64_t position) noexcept nogil:
    """Reads n bytes if that takes no disk. A file system that can't tell is read anyway."""
    cdef iovec part
    cdef ssize_t got
    part.iov_base = to
    part.iov_len = n
    got = preadv2(fd, &part, 1, position, RWF_NOWAIT)
    if got < 0 and errno == EOPNOTSUPP:
        got = preadv2(fd, &part, 1, position, 0)
    return got == <ssize_t>n


cdef bint begins_whole(const ReadResult* read) noexcept nogil:
    """Whether the first batch of a range is whole in it. Pages that aren't in memory say no."""
    cdef uint8_t header[LOG_OVERHEAD]
    if read.length < LOG_OVERHEAD or not read_cached(read.fd, header, LOG_OVERHEAD, read.position):
        return False
    return LOG_OVERHEAD + <int64_t>get_i32(header + LENGTH_AT) <= read.length


cdef void release_ranges(FetchJob* job) noexcept nogil:
    cdef int32_t i
    for i in range(job.partition_count):
        read_release(&job.partitions[i].read)
        job.partitions[i].read.length = 0


cdef bint gather(FetchJob* job, int64_t* bytes_found) noexcept nogil:
    """Takes the ranges to answer with. True: something in them mustn't wait, however few the bytes are."""
    cdef FetchPartition* partition
    cdef int64_t left = job.max_bytes
    cdef int64_t total = 0
    cdef int32_t allowed, i
    cdef bint first, urgent = False
    for i in range(job.partition_count):
        partition = &job.partitions[i]
        read_release(&partition.read)
        partition.read.length = 0
        partition.diverged = False
        if partition.partition != NULL and partition.error == 0:
            check_epochs(partition)
        if partition.error or partition.diverged:
            urgent = True
        if partition.partition == NULL or partition.error:
            continue
        first = total == 0 and not partition.diverged
        allowed = 0 if partition.diverged else <int32_t>min(max(partition.max_bytes, 0), left)
        partition.error = partition_read(
            partition.partition, partition.offset, allowed, first, job.isolation, &partition.read
        )
        if partition.error:
            urgent = True
            read_release(&partition.read)
            partition.read.length = 0
            continue
        partition.known_end = (
            partition.read.last_stable_offset
            if job.isolation == ISOLATION_COMMITTED
            else partition.read.high_watermark
        )
        if partition.read.length and (
            partition.diverged
            or (not first and partition.read.length >= allowed and not begins_whole(&partition.read))
        ):
            read_release(&partition.read)
            partition.read.length = 0
        if partition.read.length and partition.read.length < allowed:
            # The rest of an older segment: waiting would not make this range longer.
            urgent = urgent or partition.read.next_offset < partition.known_end
        total += partition.read.length
        left = max(left - partition.read.length, 0)
    bytes_found[0] = total
    return urgent or (total > 0 and left == 0)


cdef FetchState fetch_try(FetchJob* job, int reactor, bint must_answer) noexcept nogil:
    cdef int64_t total = 0
    cdef int32_t _look
    if job.error:
        return FETCH_READY
    for _look in range(LOOKS_MAX):
        if (
            gather(job, &total)
            or must_answer
            or total >= job.min_bytes
            or job.max_wait_ms <= 0
            or job.partition_count == 0
        ):
            return FETCH_READY
        if not fetch_moved(job, reactor):
            release_ranges(job)
            return FETCH_WAIT
    release_ranges(job)
    return FETCH_AGAIN


cdef bint fetch_moved(FetchJob* job, int reactor) noexcept nogil:
    cdef FetchPartition* partition
    cdef int32_t i
    for i in range(job.partition_count):
        partition = &job.partitions[i]
        if partition.partition != NULL and partition_watch(
            partition.partition, reactor, job.isolation, partition.known_end
        ):
            return True
    return False


# --- answering ----------------------------------------------------------------------------------------------
cdef void piece_release(FilePiece* piece) noexcept nogil:
    read_release(&piece.read)


cdef bint add_piece(Pieces* pieces, size_t at, ReadResult* read) noexcept nogil:
    """Moves the range of `read` into the pieces."""
    cdef int32_t capacity
    cdef FilePiece* grown
    cdef FilePiece* piece
    if pieces.n == pieces.capacity:
        capacity = pieces.capacity * 2 + 4
        grown = <FilePiece*>realloc(pieces.p, <size_t>capacity * sizeof(FilePiece))
        if grown == NULL:
            return False
        pieces.p = grown
        pieces.capacity = capacity
    piece = &pieces.p[pieces.n]
    pieces.n += 1
    piece.at = at
    piece.position = read.position
    piece.left = read.length
    piece.warm_until = 0
    piece.read = read[0]
    read.segment = NULL
    read.fd = -1
    return True


cdef bint copy_range(Writer* w, const ReadResult* read) noexcept nogil:
    """Reads a small range into the answer, if it is in memory."""
    if not writer_room(w, <size_t>read.length):
        return False
    if not read_cached(read.fd, w.p + w.n, <size_t>read.length, read.position):
        return False
    w.n += <size_t>read.length
    return True


cdef int64_t write_records(Writer* w, Pieces* pieces, ReadResult* read, bint flexible) noexcept nogil:
    """Gives the bytes that go out by sendfile; -1 when there was no memory."""
    write_count(w, <int32_t>read.length, flexible)
    if read.length == 0 or (read.length < SENDFILE_BYTES_MIN and copy_range(w, read)):
        return 0
    return read.length if add_piece(pieces, w.n, read) else -1


cdef void write_aborted(Writer* w, const vector[AbortedTxn]* aborted, bint flexible) noexcept nogil:
    cdef size_t i
    write_count(w, <int32_t>aborted.size(), flexible)
    for i in range(aborted.size()):
        write_i64(w, aborted[0][i].producer_id)
        write_i64(w, aborted[0][i].first_offset)
        write_no_tags(w, flexible)


cdef int64_t write_partition(Writer* w, Pieces* pieces, FetchJob* job, FetchPartition* partition) noexcept nogil:
    cdef bint flexible = job.version >= FETCH_FLEXIBLE_FROM
    cdef bint good
    cdef int64_t file_bytes
    cdef vector[AbortedTxn] aborted
    if partition.error == 0 and partition.read.length and job.isolation == ISOLATION_COMMITTED:
        partition.error = partition_aborted(
            partition.partition, partition.offset, partition.read.next_offset, aborted
        )
    good = partition.error == 0
    if not good:
        aborted.clear()
        read_release(&partition.read)
        partition.read.length = 0
    write_i32(w, partition.index)
    write_i16(w, partition.error)
    write_i64(w, partition.read.high_watermark if good else -1)
    write_i64(w, partition.read.last_stable_offset if good else -1)
    if job.version >= LOG_START_OFFSET_FROM:
        write_i64(w, partition.read.log_start_offset if good else -1)
    if good and job.isolation == ISOLATION_COMMITTED:
        write_aborted(w, &aborted, flexible)
    else:
        write_count(w, -1, flexible)
    if job.version >= RACK_FROM:
        write_i32(w, -1)                              # preferred_read_replica
    file_bytes = write_records(w, pieces, &partition.read, flexible)
    if good and partition.diverged:
        write_diverging(w, partition)
    else:
        write_no_tags(w, flexible)
    return file_bytes


cdef void write_diverging(Writer* w, const FetchPartition* partition) noexcept nogil:
    """Tag 0 of a partition: epoch int32, end_offset int64, no tags inside."""
    write_uvarint(w, 1)
    write_uvarint(w, 0)
    write_uvarint(w, 4 + 8 + 1)
    write_i32(w, partition.diverging_epoch)
    write_i64(w, partition.diverging_end)
    write_i8(w, 0)


cdef int64_t fetch_answer(FetchJob* job, Writer* out, Pieces* pieces, int64_t* errors) noexcept nogil:
    cdef bint flexible = job.version >= FETCH_FLEXIBLE_FROM
    cdef size_t at = answer_begin(out, job.correlation_id, flexible)
    cdef int32_t topics = 0 if job.error else job.topic_count
    cdef int32_t i, _j, next_partition = 0
    cdef int64_t file_bytes = 0, total = 0, sent
    cdef FetchPartition* partition
    write_i32(out, 0)                                 # throttle_time_ms
    if job.version >= SESSIONS_FROM:
        write_i16(out, job.error)
        write_i32(out, 0)                             # session_id
    write_count(out, topics, flexible)
    for i in range(topics):
        if job.version >= TOPIC_IDS_FROM:
            write_raw(out, job.topics[i].topic_id, TOPIC_ID_BYTES)
        else:
            write_string(out, job.topics[i].name, flexible)
        write_count(out, job.topics[i].partitions, flexible)
        for _j in range(job.topics[i].partitions):
            partition = &job.partitions[next_partition]
            next_partition += 1
            sent = write_partition(out, pieces, job, partition)
            if sent < 0:
                return -1
            file_bytes += sent
            total += partition.read.length
            errors[0] += partition.error != 0
        write_no_tags(out, flexible)
    write_no_tags(out, flexible)
    if out.failed:
        return -1
    answer_end(out, at, file_bytes)
    return total
