"""What a connection sends; see output.pxd."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from penstock.pyx.linux.posix cimport (
    EAGAIN, EINTR, EIO, EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLL_CTL_MOD, atomic_load64, atomic_store64,
    epoll_event, errno, memmove, memset,
)
from penstock.pyx.log.pagecache cimport CACHE_NOT_ALL, CacheState, cache_state, range_is_cached
from penstock.pyx.log.read cimport ReadResult
from penstock.pyx.log.segment cimport Segment, segment_expect
from penstock.pyx.net.coldreader cimport ReaderJob, reader_submit
from penstock.pyx.net.control cimport SERVED
from penstock.pyx.net.input cimport input_stall
from penstock.pyx.net.mailbox cimport Mail
from penstock.pyx.net.plane cimport (
    CONNECTION_CLOSING, OUTGOING_FULL, OUTGOING_LENT, OUTGOING_ROOM, OUTPUT_BYTES_MAX, OUTPUT_KEPT_BYTES,
    SENDFILE_CHUNK_BYTES, SLOT_ACKS, SLOT_CLOSE, SLOT_CONTROL, SLOT_DONE, SLOT_FETCH, SLOT_WARMING,
    SLOT_WORKING, STALL_HELD, TURN_BYTES, Connection, Reactor, Slot, connection_fault, connection_finish,
    connection_is_ready, connection_ready, output_full, reactor_clock, slot_at, turn_is_over,
)
from penstock.pyx.net.requests cimport give_to_worker
from penstock.pyx.net.requesttimes cimport (
    PHASE_LOCAL, PHASE_QUEUE, PHASE_WAITING, Timing, timing_at, timing_pass, timings_answered,
)
from penstock.pyx.net.transport cimport (
    transport_hang_up, transport_none, transport_send, transport_send_file, transport_unwatch, transport_watch,
)
from penstock.pyx.net.waiting cimport park, unpark
from penstock.pyx.record.frame cimport Writer, write_raw, writer_free
from penstock.pyx.request.acks cimport ProduceWait, acks_free, acks_settle
from penstock.pyx.request.fetch cimport FetchJob, FetchRange, fetch_begin, fetch_first_topic, fetch_free
from penstock.pyx.request.fetchanswer cimport FilePiece, fetch_answer, piece_release
from penstock.pyx.request.fetchread cimport (
    FETCH_AGAIN, FETCH_COLD, FETCH_CONVERT, FETCH_FAILED, FETCH_HELD, FETCH_WAIT, FetchState, fetch_try,
)

cdef enum:
    OUTPUT_COMPACT_BYTES = OUTPUT_BYTES_MAX // 4
    COLD_COMPANY_MS = 10_000          # for so long consumers of one segment's cold pages count as together

cdef const char* UNREADABLE = b"a segment could not be read, or its file is shorter than its log says"


cdef bint output_watch(Reactor* r, Connection* c, int operation, bint room) noexcept nogil:
    cdef epoll_event event
    event.events = <uint32_t>EPOLLIN | <uint32_t>EPOLLRDHUP | <uint32_t>EPOLLET | (<uint32_t>EPOLLOUT if room else 0)
    event.data.u64 = <uint64_t>c.place | (<uint64_t>c.generation << 32)
    return transport_watch(&c.transport, r.epoll, operation, &event)


cdef ReaderJob _reader_job(
    Reactor* r, Connection* c, const ReadResult* read, int64_t position, int64_t length
) noexcept nogil:
    """For a connection: a range that is only to be read."""
    cdef ReaderJob job
    memset(&job, 0, sizeof(ReaderJob))
    job.fd = read.fd
    job.folder = read.folder
    transport_none(&job.transport)
    job.position = position
    job.length = length
    job.owner = &r.mailbox
    job.place = c.place
    job.generation = c.generation
    return job


cdef bint _reads_alone(Reactor* r, Connection* c, Segment* s) noexcept nogil:
    """Whether no other connection comes upon cold pages of a segment at the same time: between two cold reads of
    this connection.

    Those who read the same do it by way of the page cache, so that the disk has to give it once.
    """
    if atomic_load64(&s.cold_reader) != <int64_t>c:
        if c.cold_in == s:
            atomic_store64(&s.company_ms, r.now_ms)
        atomic_store64(&s.cold_reader, <int64_t>c)
    c.cold_in = s
    return r.now_ms - atomic_load64(&s.company_ms) >= COLD_COMPANY_MS


cdef bint _lend(Reactor* r, Connection* c, FilePiece* piece, int64_t n) noexcept nogil:
    """Whether a reader thread has the next n bytes of a piece now, since they aren't in the page cache."""
    cdef CacheState state
    cdef ReaderJob job = _reader_job(r, c, &piece.read, piece.position, n)
    state = cache_state(piece.read.fd, piece.position, n)
    if range_is_cached(piece.read.fd, piece.position, n, state):
        return False
    piece.asked_until = piece.position + n            # unless a reader thread says how far it came
    job.transport = c.transport
    job.direct = state == CACHE_NOT_ALL and _reads_alone(r, c, <Segment*>piece.read.segment)
    job.begins_batch = piece.position == piece.read.position and n == piece.left
    if not output_watch(r, c, EPOLL_CTL_MOD, False):
        return False
    if not reader_submit(r.plane.readers, &job):
        output_watch(r, c, EPOLL_CTL_MOD, True)
        return False
    c.outgoing = OUTGOING_LENT
    return True


cdef void _piece_went(Connection* c, FilePiece* piece, int64_t n) noexcept nogil:
    piece.position += n
    piece.left -= n
    if piece.left == 0:
        piece_release(piece)
        c.pieces.first += 1


cdef void _went_out(Reactor* r, Connection* c, int64_t n) noexcept nogil:
    if n > 0:
        r.counters.bytes_out += n
        c.took += n
        c.active_ms = r.now_ms
        c.took_ms = r.now_ms


cdef bint output_was_read(Reactor* r, Connection* c, const Mail* mail) noexcept nogil:
    cdef FilePiece* piece
    cdef Slot* oldest = slot_at(c, c.head)
    connection_ready(r, c)
    r.counters.cold_ranges += 1
    if c.outgoing != OUTGOING_LENT:
        if c.head != c.tail and oldest.state == SLOT_WARMING:
            oldest.state = SLOT_FETCH
        return True
    if mail.sent >= 0:
        piece = &c.pieces.p[c.pieces.first]
        piece.asked_until = piece.position + mail.sent + mail.ready
        if mail.follows.position >= 0:
            segment_expect(<Segment*>piece.read.segment, &mail.follows)
        _piece_went(c, piece, mail.sent)
        _went_out(r, c, mail.sent)
    # Room that comes, or has come meanwhile, is an event.
    c.outgoing = OUTGOING_FULL if mail.full else OUTGOING_ROOM
    if mail.unreadable:
        connection_fault(r, c, UNREADABLE)
    return mail.sent >= 0 and output_watch(r, c, EPOLL_CTL_MOD, True)


cdef void output_abandon(Reactor* r, Connection* c) noexcept nogil:
    if c.outgoing == OUTGOING_LENT:
        transport_unwatch(&c.transport, r.epoll)
        transport_hang_up(&c.transport)


cdef ssize_t _send_file(Connection* c, FilePiece* piece, int64_t n) noexcept nogil:
    cdef ssize_t went = transport_send_file(&c.transport, piece.read.fd, piece.position, <size_t>n)
    if went > 0:
        _piece_went(c, piece, went)
    return went


cdef void _output_reset(Connection* c) noexcept nogil:
    c.output_at += <int64_t>c.output.n
    c.pieces_at += c.pieces.n
    c.sent = 0
    c.output.n = 0
    c.pieces.n = 0
    c.pieces.first = 0
    if c.output.capacity > OUTPUT_KEPT_BYTES:
        writer_free(&c.output)


cdef void _output_compact(Connection* c) noexcept nogil:
    """Drops bytes that went, so that a peer that is always a little behind doesn't make the buffer grow for ever."""
    cdef int32_t i
    if c.sent < OUTPUT_COMPACT_BYTES:
        return
    memmove(c.output.p, c.output.p + c.sent, c.output.n - c.sent)
    for i in range(c.pieces.first, c.pieces.n):
        c.pieces.p[i].at -= c.sent
    c.output.n -= c.sent
    c.output_at += <int64_t>c.sent
    c.sent = 0


cdef bint _output_send(Reactor* r, Connection* c) noexcept nogil:
    """Sends until all is out, the peer takes no more, a range is cold, or the turn is over. False: close."""
    cdef FilePiece* piece
    cdef size_t until
    cdef ssize_t went
    cdef int64_t n, total = 0
    while c.outgoing == OUTGOING_ROOM:
        piece = &c.pieces.p[c.pieces.first] if c.pieces.first < c.pieces.n else NULL
        until = piece.at if piece != NULL else c.output.n
        if c.sent == until and piece == NULL:
            break
        if total >= TURN_BYTES:
            connection_ready(r, c)
            break
        if c.sent < until:
            went = transport_send(&c.transport, c.output.p + c.sent, until - c.sent, piece != NULL)
            c.sent += <size_t>went if went > 0 else 0
        else:
            n = min(piece.left, <int64_t>SENDFILE_CHUNK_BYTES)
            if piece.position < piece.asked_until:    # a reader thread has read or sent up to there
                n = min(n, piece.asked_until - piece.position)
            elif _lend(r, c, piece, n):
                break
            went = _send_file(c, piece, n)
            if went == 0 or (went < 0 and errno == EIO):
                connection_fault(r, c, UNREADABLE)
                return False
        if went > 0:
            total += went
        elif errno == EAGAIN:
            c.outgoing = OUTGOING_FULL
        elif errno != EINTR:
            return False
    _went_out(r, c, total)
    if c.sent == c.output.n and c.pieces.first == c.pieces.n:
        _output_reset(c)
    else:
        _output_compact(c)
    return True


cdef enum Step:
    STEP_DONE = 1                     # the slot's answer is in the output
    STEP_WAIT = 0
    STEP_CLOSE = -1


cdef Step _warm_range(Reactor* r, Connection* c, Slot* slot) noexcept nogil:
    """Has a reader thread read what is to be converted and isn't in memory; the fetch is tried again then."""
    cdef FetchJob* job = slot.fetch
    cdef const FetchRange* cold = &job.ranges[job.cold]
    cdef ReaderJob wanted = _reader_job(r, c, &cold.read, cold.read.position, cold.read.length)
    job.waiting.due = True
    if reader_submit(r.plane.readers, &wanted):
        slot.state = SLOT_WARMING
    else:
        connection_ready(r, c)                        # too much is waiting to be read: in a later turn
    return STEP_WAIT


cdef Step _wait_longer(Reactor* r, FetchJob* job) noexcept nogil:
    if job.replaced:
        unpark(r.waits, &job.waiting)
        job.replaced = False
    if job.waiting.heap_index >= 0:                           # it waits already
        return STEP_WAIT
    r.counters.fetch_waits += 1
    return STEP_WAIT if park(r.waits, &job.waiting) else STEP_CLOSE


cdef Step _answer_fetch(Reactor* r, Connection* c, Slot* slot) noexcept nogil:
    """Tries it. The time since it was last looked at was of the phase that its timing says."""
    cdef Timing* one = timing_at(&c.timings, 0)
    cdef FetchJob* job = slot.fetch
    cdef Step step
    if not job.waiting.due:
        return STEP_WAIT
    timing_pass(one, one.phase, r.clock_ns)
    one.phase = PHASE_LOCAL
    step = _try_fetch(r, c, slot, one)
    timing_pass(one, PHASE_LOCAL, reactor_clock(r))
    return step


cdef Step _try_fetch(Reactor* r, Connection* c, Slot* slot, Timing* one) noexcept nogil:
    cdef FetchJob* job = slot.fetch
    cdef bint must_answer = r.now_ms >= job.waiting.deadline_ms or r.draining
    cdef FetchState state
    cdef int64_t n
    cdef bint made
    if not job.begun:
        fetch_begin(job, r.plane.logs, r.plane.sessions, r.now_ms)
    job.waiting.due = False
    state = fetch_try(job, r.id, must_answer)
    if state == FETCH_COLD:
        return _warm_range(r, c, slot)
    if state == FETCH_CONVERT:
        unpark(r.waits, &job.waiting)                          # it parks again if nothing comes of it
        return STEP_WAIT if give_to_worker(r, c, c.head, NULL, 0, job) == SERVED else STEP_CLOSE
    if state == FETCH_AGAIN:
        job.waiting.due = True
        connection_ready(r, c)
        return STEP_WAIT
    if state == FETCH_HELD:
        job.waiting.due = True
        one.phase = PHASE_QUEUE
        input_stall(r, c, STALL_HELD)
        return STEP_WAIT
    one.topic = fetch_first_topic(job)
    if state == FETCH_WAIT:
        one.phase = PHASE_WAITING
        return _wait_longer(r, job)
    if state == FETCH_FAILED:
        return STEP_CLOSE
    unpark(r.waits, &job.waiting)
    made = job.wants_session and job.session == NULL
    n = fetch_answer(job, r.now_ms, &c.output, &c.pieces, &r.counters.fetch_errors)
    r.counters.fetch_sessions_made += made and job.session != NULL
    slot.fetch = NULL
    fetch_free(job)
    if n < 0:
        return STEP_CLOSE
    r.counters.fetch_bytes += n
    return STEP_DONE


cdef Step _settle_acks(Reactor* r, Connection* c, Slot* slot) noexcept nogil:
    """STEP_DONE: the slot's answer says what became of each partition."""
    cdef ProduceWait* acks = slot.acks
    cdef bint must_answer = r.now_ms >= acks.waiting.deadline_ms or r.draining
    if not acks.waiting.due:
        return STEP_WAIT
    acks.waiting.due = False
    if not acks_settle(acks, &slot.answer, r.id, must_answer, &r.produced.errors):
        if acks.waiting.heap_index >= 0 or park(r.waits, &acks.waiting):
            return STEP_WAIT
        return STEP_CLOSE
    timing_pass(timing_at(&c.timings, 0), PHASE_WAITING, reactor_clock(r))
    unpark(r.waits, &acks.waiting)
    acks_free(acks)
    slot.acks = NULL
    slot.state = SLOT_DONE
    return STEP_DONE


cdef Step _answer_head(Reactor* r, Connection* c) noexcept nogil:
    """Moves the oldest slot's answer to the output, if it is there."""
    cdef Slot* slot = slot_at(c, c.head)
    cdef Step step
    if slot.state == SLOT_CONTROL or slot.state == SLOT_WARMING or slot.state == SLOT_WORKING:
        return STEP_WAIT
    if slot.state == SLOT_FETCH:
        return _answer_fetch(r, c, slot)
    if slot.state == SLOT_ACKS:
        step = _settle_acks(r, c, slot)
        if step != STEP_DONE:
            return step
    if slot.state == SLOT_CLOSE:
        connection_finish(c)
        return STEP_DONE
    if c.output.n == 0:
        writer_free(&c.output)
        c.output = slot.answer
        memset(&slot.answer, 0, sizeof(Writer))
    else:
        write_raw(&c.output, slot.answer.p, slot.answer.n)
        writer_free(&slot.answer)
    return STEP_CLOSE if c.output.failed else STEP_DONE


cdef bint output_pump(Reactor* r, Connection* c) noexcept nogil:
    """Answers in order, as far as they are there and the peer takes them. False: close."""
    cdef Step step
    cdef bint progress = True
    while progress:
        progress = False
        while c.head != c.tail and not output_full(c) and c.state != CONNECTION_CLOSING:
            step = _answer_head(r, c)
            if step == STEP_CLOSE:
                connection_fault(r, c, b"no memory for an answer")
                return False
            if step == STEP_WAIT:
                break
            if c.state != CONNECTION_CLOSING:
                timings_answered(&c.timings, c.output_at + <int64_t>c.output.n, c.pieces_at + c.pieces.n)
            c.head += 1
            progress = True
            if c.head != c.tail and turn_is_over(r):
                connection_ready(r, c)
                break
        if not _output_send(r, c):
            return False
        if connection_is_ready(c):                    # its turn is over
            break
    return True
