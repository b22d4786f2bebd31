"""Answers to fetches; see fetchanswer.pxd."""

from libcpp.set cimport set as ordered_set
from libcpp.vector cimport vector

from penstock.pyx.errorcodes cimport OFFSET_OUT_OF_RANGE
from penstock.pyx.linux.posix cimport realloc
from penstock.pyx.log.pagecache cimport read_cached_at
from penstock.pyx.log.partition cimport ISOLATION_COMMITTED, Partition
from penstock.pyx.log.read cimport AbortedTxn, partition_aborted, read_release
from penstock.pyx.log.role cimport NO_BROKER
from penstock.pyx.log.topictally cimport tally_fetched
from penstock.pyx.record.frame cimport (
    TOPIC_ID_BYTES, Slice, answer_begin, answer_end, write_count, write_i8, write_i16, write_i32, write_i64,
    write_no_tags, write_raw, write_string, write_uvarint, writer_room,
)
from penstock.pyx.request.fetch cimport FetchRange, fetch_tally, range_release
from penstock.pyx.request.fetchset cimport FetchPartition, FetchSet, FetchTopic, set_move_last
from penstock.pyx.request.leaders cimport Leader, find_leader, write_addresses, write_leader
from penstock.pyx.request.sessions cimport session_make
from penstock.pyx.request.versions cimport (
    FETCH_FLEXIBLE_FROM, FETCH_ISOLATION_FROM, FETCH_LEADERS_FROM, FETCH_LOG_START_OFFSET_FROM, FETCH_RACK_FROM,
    FETCH_SESSIONS_FROM, FETCH_THROTTLE_FROM, FETCH_TOPIC_IDS_FROM,
)

cdef enum:
    TAG_CURRENT_LEADER = 1


# --- records ------------------------------------------------------------------------------------------------
cdef void piece_release(FilePiece* piece) noexcept nogil:
    read_release(&piece.read)


cdef bint _add_piece(Pieces* pieces, size_t at, ReadResult* read) noexcept nogil:
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
    piece.asked_until = 0
    piece.read = read[0]
    read.segment = NULL
    read.fd = -1
    return True


cdef bint _copy_range(Writer* w, const ReadResult* read) noexcept nogil:
    """Reads a small range into the answer, if it is in memory."""
    if not writer_room(w, <size_t>read.length):
        return False
    if read_cached_at(read.fd, w.p + w.n, <size_t>read.length, read.position) != read.length:
        return False
    w.n += <size_t>read.length
    return True


cdef int64_t _write_records(Writer* w, Pieces* pieces, FetchRange* r, bint flexible) noexcept nogil:
    """Gives the bytes that go out by sendfile; -1 when there was no memory."""
    cdef ReadResult* read = &r.read
    if r.converted != NULL:
        write_count(w, <int32_t>r.converted.size(), flexible)
        write_raw(w, r.converted.data(), r.converted.size())
        return 0
    write_count(w, <int32_t>read.length, flexible)
    if read.length == 0 or (read.length < SENDFILE_BYTES_MIN and _copy_range(w, read)):
        return 0
    return read.length if _add_piece(pieces, w.n, read) else -1


# --- partitions ---------------------------------------------------------------------------------------------
cdef void _write_aborted(Writer* w, const vector[AbortedTxn]* aborted, bint flexible) noexcept nogil:
    cdef size_t i
    write_count(w, <int32_t>aborted.size(), flexible)
    for i in range(aborted.size()):
        write_i64(w, aborted[0][i].producer_id)
        write_i64(w, aborted[0][i].first_offset)
        write_no_tags(w, flexible)


cdef void _write_diverging(Writer* w, const FetchRange* r) noexcept nogil:
    """Tag 0 of a partition: epoch int32, end_offset int64, no tags inside."""
    write_uvarint(w, 1)
    write_uvarint(w, 0)
    write_uvarint(w, 4 + 8 + 1)
    write_i32(w, r.diverging_epoch)
    write_i64(w, r.diverging_end)
    write_i8(w, 0)


cdef void _write_removed_below(Writer* w, const FetchRange* r) noexcept nogil:
    """Tag 10000 of a partition, between brokers of ours: int64."""
    write_uvarint(w, 1)
    write_uvarint(w, 10000)
    write_uvarint(w, 8)
    write_i64(w, r.removed_below)


cdef bint _find_leader(
    const FetchJob* job, const FetchPartition* partition, const FetchRange* r, Leader* out
) noexcept nogil:
    """Whether a consumer is to be told who leads a partition. A replica hears it from the controller."""
    return (
        job.version >= FETCH_LEADERS_FROM
        and job.replica == NO_BROKER
        and find_leader(job.addresses, <Partition*>partition.partition, r.error, out)
    )


cdef int64_t _write_partition(
    Writer* w, Pieces* pieces, FetchJob* job, const FetchPartition* partition, FetchRange* r,
    ordered_set[int32_t]& leaders
) noexcept nogil:
    """`leaders` gets whom it names."""
    cdef bint flexible = job.version >= FETCH_FLEXIBLE_FROM
    cdef Leader leader
    cdef bint good, has_start
    cdef int64_t file_bytes
    cdef vector[AbortedTxn] aborted
    if r.error == 0 and r.read.length and job.isolation == ISOLATION_COMMITTED:
        r.error = partition_aborted(partition.partition, partition.offset, r.read.next_offset, aborted)
    good = r.error == 0
    has_start = good or (r.error == OFFSET_OUT_OF_RANGE and job.replica != NO_BROKER)    # a replica may begin there
    if not good:
        aborted.clear()
        range_release(r)
    write_i32(w, partition.index)
    write_i16(w, r.error)
    write_i64(w, r.read.high_watermark if good else -1)
    if job.version >= FETCH_ISOLATION_FROM:
        write_i64(w, r.read.last_stable_offset if good else -1)
    if job.version >= FETCH_LOG_START_OFFSET_FROM:
        write_i64(w, r.read.log_start_offset if has_start else -1)
    if job.version >= FETCH_ISOLATION_FROM:
        if good and job.isolation == ISOLATION_COMMITTED:
            _write_aborted(w, &aborted, flexible)
        else:
            write_count(w, -1, flexible)
    if job.version >= FETCH_RACK_FROM:
        write_i32(w, -1)                              # preferred_read_replica
    file_bytes = _write_records(w, pieces, r, flexible)
    if good and r.diverged:
        _write_diverging(w, r)
    elif has_start and flexible and r.removed_below > 0:
        _write_removed_below(w, r)
    elif _find_leader(job, partition, r, &leader):
        write_leader(w, TAG_CURRENT_LEADER, &leader, leaders)
    else:
        write_no_tags(w, flexible)
    return file_bytes


cdef void _write_topic(Writer* w, const FetchJob* job, const FetchTopic* topic, int32_t partitions) noexcept nogil:
    cdef bint flexible = job.version >= FETCH_FLEXIBLE_FROM
    cdef Slice name
    if job.version >= FETCH_TOPIC_IDS_FROM:
        write_raw(w, topic.topic_id, TOPIC_ID_BYTES)
    else:
        name.p = topic.name
        name.n = topic.name_n
        write_string(w, name, flexible)
    write_count(w, partitions, flexible)


# --- the whole ----------------------------------------------------------------------------------------------
cdef int32_t _same_topic(const FetchJob* job, int32_t i) noexcept nogil:
    """How many ranges from i on are of one topic: the order of partitions is kept, so a topic may come again."""
    cdef int32_t topic = job.set.partitions[job.ranges[i].at].topic
    cdef int32_t n = 1
    while i + n < job.range_count and job.set.partitions[job.ranges[i + n].at].topic == topic:
        n += 1
    return n


cdef int32_t _count_topics(const FetchJob* job) noexcept nogil:
    cdef int32_t i = 0, topics = 0
    while i < job.range_count:
        i += _same_topic(job, i)
        topics += 1
    return topics


cdef void _write_down(FetchSet* set, const FetchRange* r, bint rotate) noexcept nogil:
    """What the client knows of a partition from now on; one that gave records is read last the next time."""
    cdef FetchPartition* partition = &set.partitions[r.at]
    cdef bint good = r.error == 0
    partition.cached_high_watermark = r.read.high_watermark if good and not r.diverged else -1
    partition.cached_log_start = r.read.log_start_offset if good else -1
    if rotate and r.read.length > 0:
        set_move_last(set, r.at)


cdef void _open_session(FetchJob* job, int64_t now_ms) noexcept nogil:
    job.session = session_make(
        job.sessions, &job.asked, job.version >= FETCH_TOPIC_IDS_FROM, job.privileged, now_ms
    )
    if job.session != NULL:
        job.set = &job.session.set


cdef int64_t fetch_answer(FetchJob* job, int64_t now_ms, Writer* out, Pieces* pieces, int64_t* errors) noexcept nogil:
    cdef bint flexible = job.version >= FETCH_FLEXIBLE_FROM
    cdef size_t at = answer_begin(out, job.correlation_id, flexible)
    cdef int32_t i, n = 0, topic_left = 0
    cdef int64_t file_bytes = 0, total = 0, sent
    cdef ordered_set[int32_t] leaders
    cdef FetchRange* r
    cdef FetchSet* set
    if job.wants_session and job.error == 0:
        _open_session(job, now_ms)
    set = job.set
    if job.version >= FETCH_THROTTLE_FROM:
        write_i32(out, 0)
    if job.version >= FETCH_SESSIONS_FROM:
        write_i16(out, job.error)
        write_i32(out, job.session.id if job.session != NULL and job.error == 0 else 0)
    write_count(out, _count_topics(job), flexible)
    for i in range(job.range_count):
        r = &job.ranges[i]
        if topic_left == 0:
            topic_left = _same_topic(job, i)
            _write_topic(out, job, &set.topics[set.partitions[r.at].topic], topic_left)
        n = <int32_t>r.read.length if r.converted == NULL else <int32_t>r.converted.size()
        sent = _write_partition(out, pieces, job, &set.partitions[r.at], r, leaders)
        if sent < 0:
            return -1
        file_bytes += sent
        total += n if r.error == 0 else 0
        tally_fetched(fetch_tally(job, &set.partitions[r.at]), n, r.error != 0)
        errors[0] += r.error != 0
        topic_left -= 1
        if topic_left == 0:
            write_no_tags(out, flexible)
        if job.session != NULL:
            _write_down(set, r, job.incremental)
    if leaders.empty():
        write_no_tags(out, flexible)
    else:
        write_addresses(out, job.addresses, job.listener, leaders)
    if out.failed:
        return -1
    answer_end(out, at, file_bytes)
    return total
