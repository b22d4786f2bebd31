"""A connection's requests; see requests.pxd."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint8_t

from penstock.pyx.control cimport queue_put
from penstock.pyx.endian cimport get_i16
from penstock.pyx.fetch cimport (
    FETCH_FLEXIBLE_FROM,
    FETCH_KEY,
    FETCH_PARSED,
    FETCH_VERSION_MAX,
    FETCH_VERSION_MIN,
    FetchJob,
    fetch_held_bytes,
    fetch_parse,
)
from penstock.pyx.frame cimport (
    API_VERSION_AT,
    Reader,
    RequestHead,
    Writer,
    read_head,
    reader_start,
    writer_free,
)
from penstock.pyx.plane cimport (
    Connection,
    Reactor,
    SERVED,
    SERVE_CLOSE,
    SLOTS,
    SLOTS_BYTES_MAX,
    SLOT_CLOSE,
    SLOT_CONTROL,
    SLOT_DONE,
    SLOT_FETCH,
    Served,
    Slot,
    SlotState,
    connection_ready,
    slot_at,
)
from penstock.pyx.posix cimport atomic_load32, memset
from penstock.pyx.produce cimport (
    PRODUCE_ANSWERED,
    PRODUCE_FLEXIBLE_FROM,
    PRODUCE_HAND_OVER,
    PRODUCE_KEY,
    PRODUCE_SILENT,
    PRODUCE_VERSION_MAX,
    PRODUCE_VERSION_MIN,
    ProduceResult,
    produce_flushes,
    produce_serve,
)

cdef bint slots_full(Connection* c) noexcept nogil:
    """Whether no further request may be taken, by number (one slot is kept for a SLOT_CLOSE) or by what waits."""
    cdef uint32_t number = c.head
    cdef int64_t held = 0
    cdef const Slot* slot
    if c.tail - c.head >= SLOTS - 1:
        return True
    while number != c.tail and held <= SLOTS_BYTES_MAX:
        slot = slot_at(c, number)
        held += slot.request_bytes + <int64_t>slot.answer.capacity
        if slot.fetch != NULL:
            held += fetch_held_bytes(slot.fetch)
        number += 1
    return held > SLOTS_BYTES_MAX


cdef Slot* slot_push(Connection* c, SlotState state) noexcept nogil:
    """The caller has seen that the ring has room."""
    cdef Slot* slot = slot_at(c, c.tail)
    memset(slot, 0, sizeof(Slot))
    slot.state = state
    c.tail += 1
    return slot


cdef void requests_refuse(Reactor* r, Connection* c) noexcept nogil:
    """The last frame was wrong: what came before it is still answered, nothing after it is read."""
    slot_push(c, SLOT_CLOSE)
    c.refusing = True


cdef Served hand_over(Reactor* r, Connection* c, const uint8_t* frame, int32_t n, bint produce) noexcept nogil:
    """A request for the control plane. A produce is served there: those of its connection that come behind it follow
    it, so that they stay in order.
    """
    cdef Served result = queue_put(r, c, c.tail, frame, n, produce)
    cdef Slot* slot
    if result == SERVED:
        slot = slot_push(c, SLOT_CONTROL)
        slot.request_bytes = n
        slot.handed_over = produce
        c.handed_over += produce
        r.counters.requests_produce += produce
        r.counters.requests_control += not produce
    return result


cdef Served serve_produce(
    Reactor* r, Connection* c, const RequestHead* head, Reader body, const uint8_t* frame, int32_t n
) noexcept nogil:
    cdef bint straight = c.head == c.tail             # nothing before it waits
    cdef Writer waiting
    cdef Slot* slot
    cdef ProduceResult result
    if c.handed_over > 0 or produce_flushes(r.plane.logs, head, body):
        return hand_over(r, c, frame, n, True)
    memset(&waiting, 0, sizeof(Writer))
    result = produce_serve(r.plane.logs, head, body, &c.output if straight else &waiting, &r.produced, NULL)
    if result == PRODUCE_HAND_OVER:
        return hand_over(r, c, frame, n, True)
    r.counters.requests_produce += 1
    if result == PRODUCE_ANSWERED and not straight:
        slot = slot_push(c, SLOT_DONE)
        slot.answer = waiting
        return SERVED
    if not straight:
        writer_free(&waiting)
    if result == PRODUCE_ANSWERED or result == PRODUCE_SILENT:
        return SERVED
    return SERVE_CLOSE


cdef FetchJob* begin_fetch(Reactor* r, Connection* c, const RequestHead* head, Reader body) noexcept nogil:
    """The job of a fetch; NULL when it is malformed or there is no memory."""
    cdef FetchJob* job
    r.counters.requests_fetch += 1
    if fetch_parse(head, body, r.plane.answer_bytes_max, &job) != FETCH_PARSED:
        return NULL
    r.counters.fetch_partitions_asked += job.asked.count
    job.connection = c
    job.deadline_ms = r.now_ms + max(job.max_wait_ms, 0)
    job.look = True
    return job


cdef Served serve_fetch(Reactor* r, Connection* c, const RequestHead* head, Reader body) noexcept nogil:
    cdef FetchJob* job = begin_fetch(r, c, head, body)
    cdef Slot* slot
    if job == NULL:
        return SERVE_CLOSE
    slot = slot_push(c, SLOT_FETCH)
    slot.fetch = job
    return SERVED


cdef Served request_serve(Reactor* r, Connection* c, uint8_t* frame, int32_t n) noexcept nogil:
    """One whole frame, without its size. The ring has room for one more."""
    cdef int16_t api_key = get_i16(frame)
    cdef int16_t version = get_i16(frame + API_VERSION_AT)
    cdef bint produce = api_key == PRODUCE_KEY and PRODUCE_VERSION_MIN <= version <= PRODUCE_VERSION_MAX
    cdef bint fetch = api_key == FETCH_KEY and FETCH_VERSION_MIN <= version <= FETCH_VERSION_MAX
    cdef RequestHead head
    cdef Reader body
    if (produce or fetch) and not (atomic_load32(&r.plane.diverted) >> api_key) & 1:
        reader_start(&body, frame, <size_t>n)
        read_head(&body, version >= (PRODUCE_FLEXIBLE_FROM if produce else FETCH_FLEXIBLE_FROM), &head)
        if body.bad:
            return SERVE_CLOSE
        return serve_produce(r, c, &head, body, frame, n) if produce else serve_fetch(r, c, &head, body)
    return hand_over(r, c, frame, n, False)


cdef void requests_resume(
    Reactor* r, Connection* c, uint32_t number, uint8_t* frame, int32_t n, bint lose
) noexcept nogil:
    """Serves a diverted Produce or Fetch into the slot that it has held meanwhile."""
    cdef int16_t version = get_i16(frame + API_VERSION_AT)
    cdef bint produce = get_i16(frame) == PRODUCE_KEY
    cdef RequestHead head
    cdef Reader body
    cdef ProduceResult result
    cdef Slot* slot = slot_at(c, number)
    slot.request_bytes = 0
    slot.state = SLOT_CLOSE
    reader_start(&body, frame, <size_t>n)
    read_head(&body, version >= (PRODUCE_FLEXIBLE_FROM if produce else FETCH_FLEXIBLE_FROM), &head)
    if not body.bad and produce:
        result = produce_serve(r.plane.logs, &head, body, &slot.answer, &r.produced, NULL)
        if result == PRODUCE_ANSWERED or result == PRODUCE_SILENT:
            slot.state = SLOT_DONE
        elif result == PRODUCE_HAND_OVER and not lose and queue_put(r, c, number, frame, n, True) == SERVED:
            slot.state = SLOT_CONTROL
            slot.request_bytes = n
            slot.handed_over = True
            c.handed_over += 1
            return
    elif not body.bad:
        slot.fetch = begin_fetch(r, c, &head, body)
        if slot.fetch != NULL:
            slot.state = SLOT_FETCH
    if lose and slot.state == SLOT_DONE:
        writer_free(&slot.answer)
        slot.state = SLOT_CLOSE
    if slot.state == SLOT_CLOSE:
        c.refusing = True
    connection_ready(r, c)
