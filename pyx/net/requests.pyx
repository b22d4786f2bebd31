"""A connection's requests; see requests.pxd."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from penstock.pyx.linux.posix cimport atomic_load32, memset, snprintf
from penstock.pyx.log.partition cimport logset_count_held
from penstock.pyx.log.role cimport NO_BROKER
from penstock.pyx.net.closures cimport (
    CLOSED_FAILED, CLOSED_FAULT, CLOSED_MALFORMED, CLOSED_UNACKNOWLEDGED, DETAIL_BYTES, Reason,
)
from penstock.pyx.net.control cimport SERVED, SERVE_CLOSE, SERVE_HELD, SERVE_STALLED, Served, queue_put
from penstock.pyx.net.mailbox cimport token_connection, token_pack, work_address
from penstock.pyx.net.plane cimport (
    COST_LITTLE, COST_MUCH, SLOTS, SLOTS_BYTES_MAX, SLOT_CLOSE, SLOT_CONTROL, SLOT_DONE, SLOT_FETCH, SLOT_WORKING,
    Connection, Reactor, Slot, SlotState, connection_ready, connection_refuse, reactor_clock, slot_at,
    slot_finish,
)
from penstock.pyx.net.requesttimes cimport (
    FETCH_FOLLOWER, PHASE_LOCAL, PHASE_QUEUE, Timing, timing_at, timing_pass, timing_settle, timings_answered,
    timings_push, timings_unpush,
)
from penstock.pyx.net.workers cimport HEAVY_US, Work, work_free, work_new, workers_submit
from penstock.pyx.record.endian cimport get_i16, get_i32
from penstock.pyx.record.frame cimport (
    API_VERSION_AT, CUT_WHOLE, SIZE_BYTES, Reader, RequestHead, Writer, frame_cut, read_head, reader_start, writer_free,
)
from penstock.pyx.request.acks cimport ProduceWait, acks_free, acks_held_bytes
from penstock.pyx.request.fetch cimport (
    FETCH_MALFORMED, FETCH_PARSED, FetchJob, FetchParse, fetch_free, fetch_held_bytes, fetch_parse,
)
from penstock.pyx.request.produce cimport (
    IN_LINE_BYTES, IN_LINE_WORK, PRODUCE_ANSWERED, PRODUCE_CLOSE, PRODUCE_COSTLY, PRODUCE_HAND_OVER, PRODUCE_HELD,
    PRODUCE_MALFORMED, PRODUCE_SILENT, PRODUCE_TAKEN, ProduceResult, produce_answer, produce_append,
    produce_clear, produce_group_open, produce_held, produce_serve, produce_take, produce_topic_number, produce_waits,
)
from penstock.pyx.request.produceflush cimport produce_flushes
from penstock.pyx.request.refusals cimport Sender
from penstock.pyx.request.versions cimport (
    FETCH_FLEXIBLE_FROM, FETCH_KEY, FETCH_VERSION_MAX, FETCH_VERSION_MIN, PRODUCE_FLEXIBLE_FROM, PRODUCE_KEY,
    PRODUCE_VERSION_MAX, PRODUCE_VERSION_MIN,
)

cdef enum:
    GROUP_SLOTS = SLOTS - 2           # of a group each may need one, and one is kept for a SLOT_CLOSE


cdef bint slots_full(Connection* c) noexcept nogil:
    """Whether no further request may be taken, by number (one slot is kept for a SLOT_CLOSE) or by what waits, or as a
    worker has a produce that the next requests would overtake.
    """
    cdef uint32_t number = c.head
    cdef int64_t held = 0
    cdef const Slot* slot
    if c.tail - c.head >= SLOTS - 1 or c.producing != NULL:
        return True
    while number != c.tail and held <= SLOTS_BYTES_MAX:
        slot = slot_at(c, number)
        held += slot.request_bytes + <int64_t>slot.answer.capacity
        if slot.fetch != NULL:
            held += fetch_held_bytes(slot.fetch)
        if slot.acks != NULL:
            held += acks_held_bytes(slot.acks)
        number += 1
    return held > SLOTS_BYTES_MAX


cdef inline Timing* _time_request(Connection* c, const uint8_t* frame, int32_t n) noexcept nogil:
    """For each request that has a slot or an answer, before it gets them. NULL: no memory."""
    return timings_push(&c.timings, frame, n, c.arrived_ns)


cdef Slot* _slot_push(Connection* c, SlotState state) noexcept nogil:
    """The caller has seen that the ring has room, and has called _time_request unless it is a SLOT_CLOSE."""
    cdef Slot* slot = slot_at(c, c.tail)
    memset(slot, 0, sizeof(Slot))
    slot.state = state
    c.tail += 1
    return slot


cdef void requests_refuse(Reactor* r, Connection* c, Reason why, const char* detail) noexcept nogil:
    """The last frame was wrong: what came before it is still answered, nothing after it is read."""
    connection_refuse(r, c, _slot_push(c, SLOT_CLOSE), why, detail)


cdef void requests_describe(const uint8_t* frame, int32_t n, char* detail) noexcept nogil:
    snprintf(
        detail, DETAIL_BYTES, b"api_key=%d version=%d in a request of %d bytes", <int>get_i16(frame),
        <int>get_i16(frame + API_VERSION_AT), n,
    )


cdef Reason produce_reason(ProduceResult result) noexcept nogil:
    if result == PRODUCE_CLOSE:
        return CLOSED_UNACKNOWLEDGED
    return CLOSED_MALFORMED if result == PRODUCE_MALFORMED else CLOSED_FAULT


cdef Served _queue_request(
    Reactor* r, Connection* c, uint32_t number, const uint8_t* frame, int32_t n, bint produce
) noexcept nogil:
    """Copies a frame onto the control queue, with the token of the connection's slot of that number."""
    cdef uint64_t token = token_pack(r.id, c.place, c.generation, number)
    return queue_put(&r.plane.queue, token, c.listener, c.peer, frame, n, produce)


cdef Sender connection_sender(Reactor* r, Connection* c) noexcept nogil:
    cdef Sender sender
    sender.refusals = r.plane.refusals
    sender.connection = token_connection(token_pack(r.id, c.place, c.generation, 0))
    sender.addresses = r.plane.addresses
    sender.listener = c.listener
    return sender


cdef Served _hand_over(Reactor* r, Connection* c, const uint8_t* frame, int32_t n, bint produce) noexcept nogil:
    """A request for the control plane. A produce is served there: those of its connection that come behind it follow
    it, so that they stay in order.
    """
    cdef Served result
    cdef Slot* slot
    if _time_request(c, frame, n) == NULL:
        return SERVE_CLOSE
    result = _queue_request(r, c, c.tail, frame, n, produce)
    if result != SERVED:
        timings_unpush(&c.timings)
    else:
        slot = _slot_push(c, SLOT_CONTROL)
        slot.request_bytes = n
        slot.handed_over = produce
        c.handed_over += produce
        r.counters.requests_produce += produce
        r.counters.requests_control += not produce
    return result


cdef Served give_to_worker(
    Reactor* r, Connection* c, uint32_t number, const uint8_t* frame, int32_t n, FetchJob* fetch
) noexcept nogil:
    cdef Work* work = work_new(frame, n, fetch)
    cdef Slot* slot
    if work == NULL:
        return SERVE_CLOSE
    if fetch == NULL and _time_request(c, frame, n) == NULL:
        work_free(work)
        return SERVE_CLOSE
    work.sender = connection_sender(r, c)
    work.heavy = (c.produce_cpu_us if fetch == NULL else c.fetch_cpu_us) > HEAVY_US
    if not work_address(work, &r.mailbox, c.place, c.generation, number) or not workers_submit(r.plane.workers, work):
        if fetch == NULL:
            timings_unpush(&c.timings)
        work.fetch = NULL
        work_free(work)
        return SERVE_STALLED
    slot = slot_at(c, number) if fetch != NULL else _slot_push(c, SLOT_WORKING)
    slot.state = SLOT_WORKING
    slot.work = work
    slot.request_bytes = n
    if fetch == NULL:
        c.producing = work
        r.counters.requests_produce += 1
    r.counters.worked += 1
    return SERVED


cdef bint _is_served_here(Reactor* r, const uint8_t* frame, int16_t api_key) noexcept nogil:
    """Whether it is a Produce, or Fetch, that needs no control plane."""
    cdef int16_t version = get_i16(frame + API_VERSION_AT)
    if get_i16(frame) != api_key or (atomic_load32(&r.plane.diverted) >> api_key) & 1:
        return False
    if api_key == PRODUCE_KEY:
        return PRODUCE_VERSION_MIN <= version <= PRODUCE_VERSION_MAX
    return FETCH_VERSION_MIN <= version <= FETCH_VERSION_MAX


cdef bint _read_start(const uint8_t* frame, int32_t n, RequestHead* head, Reader* body) noexcept nogil:
    """The head of a Produce or Fetch; False when it is malformed."""
    cdef int16_t flexible_from = PRODUCE_FLEXIBLE_FROM if get_i16(frame) == PRODUCE_KEY else FETCH_FLEXIBLE_FROM
    reader_start(body, frame, <size_t>n)
    read_head(body, get_i16(frame + API_VERSION_AT) >= flexible_from, head)
    return not body.bad


cdef void _take_more(Reactor* r, Connection* c, int32_t most, Span* served) noexcept nogil:
    """Produces of the same version that are here already join the group. One that can't, for whatever reason, is left
    for its own turn.
    """
    cdef int16_t version = get_i16(c.input + c.start + SIZE_BYTES + API_VERSION_AT)
    cdef const uint8_t* frame
    cdef size_t at
    cdef int32_t n
    cdef RequestHead head
    cdef Reader body
    cdef Sender sender = connection_sender(r, c)
    while served.frames < most and produce_group_open(r.produces):
        at = c.start + served.bytes
        if frame_cut(c.input + at, c.end - at, c.frame_bytes_max, &n) != CUT_WHOLE:
            return
        frame = c.input + at + SIZE_BYTES
        if not _is_served_here(r, frame, PRODUCE_KEY) or not _read_start(frame, n, &head, &body):
            return
        if head.api_version != version:
            return
        if produce_flushes(r.plane.logs, &head, body, NULL):
            return
        if produce_take(r.produces, r.plane.logs, &sender, &head, body, NULL, 0) != PRODUCE_TAKEN:
            return
        served.frames += 1
        served.bytes += SIZE_BYTES + <size_t>n
        served.largest = max(served.largest, n)


cdef Served _answer_straight(Reactor* r, Connection* c, const uint8_t* frame, Span* served) noexcept nogil:
    """All of a group into the output. `frame`: the first of them."""
    cdef int64_t begun_ns = r.clock_ns
    cdef ProduceWait* acks = NULL                     # none waits
    cdef ProduceResult result
    cdef Served outcome = SERVED
    cdef Timing* one = _time_request(c, frame, <int32_t>served.bytes - SIZE_BYTES)
    cdef int32_t answered = 0
    if one == NULL:
        served.why = CLOSED_FAULT
        return SERVE_CLOSE
    while answered < served.frames and outcome == SERVED:
        result = produce_answer(r.produces, <size_t>answered, &c.output, &acks, &r.produced)
        if result == PRODUCE_ANSWERED or result == PRODUCE_SILENT:
            answered += 1
        else:
            served.why = produce_reason(result)
            outcome = SERVE_CLOSE
    one.topic = produce_topic_number(r.produces, 0)
    one.count = answered
    timing_pass(one, PHASE_QUEUE, begun_ns)
    timing_pass(one, PHASE_LOCAL, reactor_clock(r))
    timings_answered(&c.timings, c.output_at + <int64_t>c.output.n, c.pieces_at + c.pieces.n)
    return outcome


cdef Served _answer_in_slot(
    Reactor* r, Connection* c, size_t i, const uint8_t* frame, int32_t n, int64_t begun_ns, Reason* why
) noexcept nogil:
    """Request `i` of a group."""
    cdef Writer waiting
    cdef ProduceWait* acks = NULL
    cdef ProduceResult result
    cdef Slot* slot
    cdef Timing timing
    cdef Timing* one = _time_request(c, frame, n)
    if one == NULL:
        why[0] = CLOSED_FAULT
        return SERVE_CLOSE
    memset(&waiting, 0, sizeof(Writer))
    result = produce_answer(r.produces, i, &waiting, &acks, &r.produced)
    one.topic = produce_topic_number(r.produces, i)
    timing_pass(one, PHASE_QUEUE, begun_ns)
    timing_pass(one, PHASE_LOCAL, reactor_clock(r))
    if result == PRODUCE_ANSWERED:
        slot = _slot_push(c, SLOT_DONE)
        slot.answer = waiting
        slot_finish(c, slot, acks)
        return SERVED
    writer_free(&waiting)
    acks_free(acks)
    timing = one[0]
    timings_unpush(&c.timings)
    if result == PRODUCE_SILENT:
        timing_settle(&r.times, &timing, r.clock_ns, &c.client, c.peer)
        return SERVED
    why[0] = produce_reason(result)
    return SERVE_CLOSE


cdef Served _answer_in_slots(Reactor* r, Connection* c, const uint8_t* frame, Span* served) noexcept nogil:
    """Each of a group into a slot of its own, as something before it waits, or it waits for other replicas itself: it
    leaves when its own records are committed, or its own time is up."""
    cdef int64_t begun_ns = r.clock_ns
    cdef int32_t n, i
    cdef Served outcome
    for i in range(served.frames):
        n = get_i32(frame - SIZE_BYTES)
        outcome = _answer_in_slot(r, c, <size_t>i, frame, n, begun_ns, &served.why)
        if outcome != SERVED:
            return outcome
        frame += n + SIZE_BYTES
    return SERVED


cdef void _note_held(Reactor* r, Connection* c) noexcept nogil:
    """The next produce stays where it is; it is looked at at each turn of the connection, and counted once."""
    if c.held_ms == 0:
        c.held_ms = r.now_ms
        r.counters.produces_held += 1
        logset_count_held(r.plane.logs)


cdef void _note_not_held(Reactor* r, Connection* c) noexcept nogil:
    if c.held_ms != 0:
        r.counters.produces_held_ms += r.now_ms - c.held_ms
        c.held_ms = 0


cdef Served _serve_produce(
    Reactor* r, Connection* c, const RequestHead* head, Reader body, const uint8_t* frame, int32_t n, int32_t most,
    Span* served
) noexcept nogil:
    cdef bint straight = c.head == c.tail             # nothing before it waits
    cdef Sender sender = connection_sender(r, c)
    cdef ProduceResult taken
    cdef Served result
    served.why = CLOSED_FAULT
    if c.handed_over > 0 or produce_flushes(r.plane.logs, head, body, NULL):
        return _hand_over(r, c, frame, n, True)
    taken = PRODUCE_COSTLY
    if c.cost == COST_LITTLE:
        taken = produce_take(r.produces, r.plane.logs, &sender, head, body, NULL, 0)
    elif produce_held(r.plane.logs, head, body):
        taken = PRODUCE_HELD
    if taken == PRODUCE_HAND_OVER:
        return _hand_over(r, c, frame, n, True)
    if taken == PRODUCE_HELD:
        _note_held(r, c)
        return SERVE_HELD
    _note_not_held(r, c)
    if taken == PRODUCE_COSTLY:
        c.cost = COST_MUCH
        return give_to_worker(r, c, c.tail, frame, n, NULL)
    if taken == PRODUCE_TAKEN and straight:
        _take_more(r, c, min(most, <int32_t>GROUP_SLOTS), served)
    r.counters.requests_produce += served.frames
    if taken != PRODUCE_TAKEN:
        served.why = produce_reason(taken)
        return SERVE_CLOSE
    produce_append(r.produces, NULL)
    if straight and not produce_waits(r.produces):
        result = _answer_straight(r, c, frame, served)
    else:
        result = _answer_in_slots(r, c, frame, served)
    produce_clear(r.produces)
    return result


cdef FetchJob* _begin_fetch(
    Reactor* r, Connection* c, const RequestHead* head, Reader body, Reason* why
) noexcept nogil:
    """The job of a fetch; NULL, and why, when it is malformed or there is no memory."""
    cdef FetchJob* job
    cdef bint between_brokers = r.plane.admission.listeners[c.listener].between_brokers
    cdef FetchParse parsed = fetch_parse(head, body, between_brokers, r.plane.answer_bytes_max, &job)
    r.counters.requests_fetch += 1
    if parsed != FETCH_PARSED:
        why[0] = CLOSED_MALFORMED if parsed == FETCH_MALFORMED else CLOSED_FAULT
        return NULL
    r.counters.fetch_partitions_asked += job.asked.count
    job.waiting.connection = c
    job.waiting.deadline_ms = r.now_ms + max(job.max_wait_ms, 0)
    job.waiting.due = True
    job.addresses = r.plane.addresses
    job.listener = c.listener
    return job


cdef inline void _name_fetch(Timing* one, const FetchJob* job) noexcept nogil:
    if job.replica != NO_BROKER:
        one.api_key = FETCH_FOLLOWER


cdef Served _serve_fetch(
    Reactor* r, Connection* c, const RequestHead* head, Reader body, const uint8_t* frame, int32_t n, Span* served
) noexcept nogil:
    cdef FetchJob* job = _begin_fetch(r, c, head, body, &served.why)
    cdef Timing* one
    cdef Slot* slot
    if job == NULL:
        return SERVE_CLOSE
    one = _time_request(c, frame, n)
    if one == NULL:
        fetch_free(job)
        served.why = CLOSED_FAULT
        return SERVE_CLOSE
    _name_fetch(one, job)
    slot = _slot_push(c, SLOT_FETCH)
    slot.fetch = job
    return SERVED


cdef Served request_serve(Reactor* r, Connection* c, int32_t n, int32_t most, Span* served) noexcept nogil:
    cdef const uint8_t* frame = c.input + c.start + SIZE_BYTES
    cdef bint produce = _is_served_here(r, frame, PRODUCE_KEY)
    cdef RequestHead head
    cdef Reader body
    served.frames = 1
    served.bytes = SIZE_BYTES + <size_t>n
    served.largest = n
    served.why = CLOSED_MALFORMED
    if not produce and not _is_served_here(r, frame, FETCH_KEY):
        served.why = CLOSED_FAULT
        return _hand_over(r, c, frame, n, False)
    if not _read_start(frame, n, &head, &body):
        return SERVE_CLOSE
    if produce:
        return _serve_produce(r, c, &head, body, frame, n, most, served)
    return _serve_fetch(r, c, &head, body, frame, n, served)


cdef void _worked_produce(Reactor* r, Connection* c, Slot* slot, Work* work) noexcept nogil:
    cdef char detail[DETAIL_BYTES]
    slot.request_bytes = 0
    c.producing = NULL
    if work.spent < IN_LINE_WORK // 2 and work.n <= IN_LINE_BYTES:
        c.cost = COST_LITTLE
    slot.state = SLOT_CLOSE
    if work.result == PRODUCE_ANSWERED or work.result == PRODUCE_SILENT:
        slot.answer = work.answer
        memset(&work.answer, 0, sizeof(Writer))
        slot_finish(c, slot, work.acks)
        work.acks = NULL
    elif work.result != PRODUCE_HAND_OVER and work.result != PRODUCE_HELD:
        pass
    elif _queue_request(r, c, work.number, work.frame, work.n, True) == SERVED:
        slot.state = SLOT_CONTROL
        slot.request_bytes = work.n
        slot.handed_over = True
        c.handed_over += 1
    if slot.state == SLOT_CLOSE:
        requests_describe(work.frame, work.n, detail)
        connection_refuse(r, c, slot, produce_reason(work.result), detail)


cdef void requests_worked(Reactor* r, Connection* c, Work* work) noexcept nogil:
    cdef Slot* slot
    cdef Timing* one
    r.produced.batches += work.tally.batches
    r.produced.bytes += work.tally.bytes
    r.produced.errors += work.tally.errors
    if c == NULL:
        r.counters.answers_late += 1
        work_free(work)
        return
    slot = slot_at(c, work.number)
    slot.work = NULL
    one = timing_at(&c.timings, work.number - c.head)
    timing_pass(one, PHASE_QUEUE, work.begun_ns)
    timing_pass(one, PHASE_LOCAL, work.done_ns)
    one.topic = work.topic if work.fetch == NULL else one.topic
    if work.fetch == NULL:
        c.produce_cpu_us = work.cpu_us
        _worked_produce(r, c, slot, work)
    else:
        c.fetch_cpu_us = work.cpu_us
        slot.state = SLOT_FETCH
        slot.fetch.waiting.due = True
        work.fetch = NULL
    work_free(work)
    connection_ready(r, c)


cdef void requests_resume(
    Reactor* r, Connection* c, uint32_t number, uint8_t* frame, int32_t n, bint lose
) noexcept nogil:
    """Serves a diverted Produce or Fetch into the slot that it has held meanwhile, whatever it costs: an operator's
    fault injection diverts them.
    """
    cdef bint produce = get_i16(frame) == PRODUCE_KEY
    cdef RequestHead head
    cdef Reader body
    cdef bint right = _read_start(frame, n, &head, &body)
    cdef Sender sender = connection_sender(r, c)
    cdef ProduceResult result
    cdef Slot* slot = slot_at(c, number)
    cdef Timing* one = timing_at(&c.timings, number - c.head)
    cdef SlotState state = SLOT_CLOSE
    cdef Reason why = CLOSED_MALFORMED
    cdef ProduceWait* acks = NULL
    cdef char detail[DETAIL_BYTES]
    slot.request_bytes = 0
    timing_pass(one, PHASE_QUEUE, reactor_clock(r))
    if right and produce:
        result = produce_serve(
            r.plane.logs, &sender, &head, body, &slot.answer, &acks, &r.produced, NULL, 0, &one.topic
        )
        timing_pass(one, PHASE_LOCAL, reactor_clock(r))
        if result == PRODUCE_ANSWERED or result == PRODUCE_SILENT:
            state = SLOT_DONE
        elif not lose and (result == PRODUCE_HAND_OVER or result == PRODUCE_HELD):
            if _queue_request(r, c, number, frame, n, True) == SERVED:
                slot.request_bytes = n
                slot.handed_over = True
                c.handed_over += 1
                return
            why = CLOSED_FAULT
        else:
            why = produce_reason(result)
    elif right:
        slot.fetch = _begin_fetch(r, c, &head, body, &why)
        if slot.fetch != NULL:
            _name_fetch(one, slot.fetch)
            state = SLOT_FETCH
    if lose and state == SLOT_DONE:
        writer_free(&slot.answer)
        acks_free(acks)
        acks = NULL
        state = SLOT_CLOSE
        why = CLOSED_FAILED
    slot.state = state
    if state == SLOT_DONE:
        slot_finish(c, slot, acks)
    if state == SLOT_CLOSE:
        requests_describe(frame, n, detail)
        connection_refuse(r, c, slot, why, detail)
    connection_ready(r, c)
