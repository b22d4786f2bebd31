"""What a connection receives: its memory, and the bytes in it; see input.pxd."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from penstock.pyx.linux.posix cimport (
    EAGAIN, EINTR, atomic_add32, atomic_add64, atomic_load32, atomic_load64, atomic_store32, atomic_swap32, errno, free,
    memcpy, memmove, realloc,
)
from penstock.pyx.net.control cimport SERVED, SERVE_CLOSE, SERVE_STALLED, Served
from penstock.pyx.net.mailbox cimport mailbox_wake
from penstock.pyx.net.plane cimport (
    INCOMING_ENDED, INCOMING_LAST, INCOMING_MORE, INCOMING_NOTHING, INPUT_BYTES_MIN, INPUT_FREE_BYTES, INPUT_TOGETHER,
    INPUT_TOGETHER_BYTES, INPUT_TURNOVER_MS, SCRATCH_BYTES, STALL_INPUT, STALL_NONE, Connection, Plane, Reactor, Stall,
    connection_fault, connection_is_ready,
)
from penstock.pyx.net.transport cimport transport_receive
from penstock.pyx.record.endian cimport get_u32
from penstock.pyx.record.frame cimport SIZE_BYTES

cdef enum Growth:
    GROW_FRAME = 0                    # for the frame that is coming
    GROW_SPARE = 1                    # to read more at once: only while memory isn't short
    GROW_ANYWAY = 2                   # for bytes that were received


cdef void input_unstall(Reactor* r, Connection* c) noexcept nogil:
    if c.stalled != STALL_NONE:
        c.stalled = STALL_NONE
        r.stalled_count -= 1


cdef void input_stall(Reactor* r, Connection* c, Stall why) noexcept nogil:
    if c.stalled == STALL_NONE:
        r.stalled_count += 1
        r.counters.stalls += 1
    c.stalled = why
    if why == STALL_INPUT and atomic_swap32(&r.starved, 1) == 0 and atomic_add32(&r.plane.starved, 1) == 1:
        _tell_all(r.plane, False)


cdef void _tell_all(Plane* plane, bint given_back) noexcept nogil:
    """Memory is short: each reactor looks which of its connections hold it. Or some was `given_back`: reactors look
    which of their connections wait for it."""
    cdef Reactor* one
    cdef int32_t i
    for i in range(plane.reactor_count):
        one = plane.reactors[i]
        if not given_back:
            atomic_store32(&one.relieve, 1)
        elif atomic_load32(&one.starved):
            atomic_store32(&one.unstall, 1)
        else:
            continue
        mailbox_wake(&one.mailbox)


cdef inline bint _is_borrowed(Reactor* r, const Connection* c) noexcept nogil:
    """Whether what it received is in the reactor's scratch."""
    return c.input == r.scratch


cdef void input_free(Reactor* r, Connection* c) noexcept nogil:
    if not _is_borrowed(r, c):
        free(c.input)
        if c.capacity > INPUT_FREE_BYTES:
            atomic_add64(&r.plane.input_bytes, -<int64_t>(c.capacity - INPUT_FREE_BYTES))
            if r.over_budget == c:
                r.over_budget = NULL
            if atomic_load32(&r.plane.starved):
                _tell_all(r.plane, True)
    c.input = NULL
    c.capacity = 0
    c.start = 0
    c.end = 0
    c.largest = 0


cdef inline int64_t _beyond_free(size_t capacity) noexcept nogil:
    return max(<int64_t>capacity - INPUT_FREE_BYTES, <int64_t>0)


cdef inline int64_t _limit_for(Reactor* r, const Connection* c, size_t whole) noexcept nogil:
    """Up to where a frame of `whole` bytes may use the broker's memory."""
    return r.plane.input_bytes_max if c.served_bytes >= <int64_t>whole else r.plane.input_bytes_max // 2


cdef inline bint _may_exceed(Reactor* r, const Connection* c) noexcept nogil:
    """Beyond the broker's limit one connection per reactor may still grow, so that frames which came in part only can't
    keep each other from ever being whole.
    """
    return r.over_budget == NULL or r.over_budget == c


cdef Served _input_grow(Reactor* r, Connection* c, size_t capacity, Growth how, size_t whole) noexcept nogil:
    """A larger buffer of the connection's own, for a frame that takes `whole` bytes in the end."""
    cdef int64_t more = _beyond_free(capacity) - _beyond_free(c.capacity)
    cdef int64_t rest = max(_beyond_free(whole) - _beyond_free(capacity), <int64_t>0)
    cdef uint8_t* grown
    if more > 0 and atomic_add64(&r.plane.input_bytes, more) + rest > _limit_for(r, c, whole) and how != GROW_ANYWAY:
        if how == GROW_SPARE or not _may_exceed(r, c):
            atomic_add64(&r.plane.input_bytes, -more)
            return SERVE_STALLED
        r.over_budget = c
    grown = <uint8_t*>realloc(c.input, capacity)
    if grown == NULL:
        atomic_add64(&r.plane.input_bytes, -more)
        connection_fault(r, c, b"no memory for a request")
        return SERVE_CLOSE
    c.input = grown
    c.capacity = capacity
    return SERVED


cdef Served input_end_turn(Reactor* r, Connection* c) noexcept nogil:
    """After a turn: what is left of borrowed scratch moves to a buffer of the connection's own; an empty buffer goes,
    unless large frames keep coming.
    """
    cdef size_t left = c.end - c.start
    cdef const uint8_t* source = c.input + c.start
    cdef Served got
    if _is_borrowed(r, c):
        c.input = NULL
        c.capacity = 0
        c.start = 0
        c.end = 0
        if left == 0:
            return SERVED
        # They are here: what memory they take isn't asked for. While it is short, few are taken at once.
        got = _input_grow(r, c, max(<size_t>INPUT_BYTES_MIN, left), GROW_ANYWAY, left)
        if got != SERVED:
            return got
        memcpy(c.input, source, left)
        c.end = left
    elif left == 0 and c.input != NULL:
        c.start = 0
        c.end = 0
        if c.largest < INPUT_FREE_BYTES // 2 or r.over_budget == c or atomic_load32(&r.plane.starved):
            input_free(r, c)
    return SERVED


cdef Taken _input_room(Reactor* r, Connection* c, size_t* wanted) noexcept nogil:
    """Where the next bytes go, and how many are asked for: several frames at once, so that they can be served together,
    or the rest of a very large one exactly, so that nothing of the next has to be moved. A buffer is at most twice what
    has arrived, whatever the frame's size says.
    """
    cdef size_t held = c.end - c.start
    cdef size_t need = SCRATCH_BYTES
    cdef size_t whole = 0
    cdef size_t capacity
    cdef Served grown
    if c.input == NULL:
        c.input = r.scratch
        c.capacity = SCRATCH_BYTES
        c.start = 0
        c.end = 0
        if atomic_load64(&r.plane.input_bytes) >= r.plane.input_bytes_max:
            need = INPUT_FREE_BYTES
    elif c.start > 0:
        memmove(c.input, c.input + c.start, held)
        c.start = 0
        c.end = held
    if held >= SIZE_BYTES:
        # The frame was cut, so its size is right and its end isn't here yet.
        whole = <size_t>get_u32(c.input) + SIZE_BYTES
        need = max(whole - held, <size_t>INPUT_BYTES_MIN)
    if not _is_borrowed(r, c) and 0 < c.largest <= INPUT_TOGETHER_BYTES // 2:
        # Such frames did come whole. If there is no memory for several of them, one at a time will do.
        capacity = min(<size_t>c.largest * INPUT_TOGETHER, <size_t>INPUT_TOGETHER_BYTES)
        if c.capacity < capacity:
            _input_grow(r, c, capacity, GROW_SPARE, capacity)
        need = max(need, c.capacity - c.end)
    if c.end == c.capacity:
        capacity = min(c.capacity * 2, held + need)
        grown = _input_grow(r, c, capacity, GROW_FRAME, whole)
        if grown != SERVED:
            return TAKEN_STALLED if grown == SERVE_STALLED else TAKEN_ERROR
    wanted[0] = min(c.capacity - c.end, need)
    return TAKEN_BYTES


cdef Taken input_take(Reactor* r, Connection* c, size_t* got) noexcept nogil:
    cdef size_t wanted = 0
    cdef ssize_t n
    cdef Taken room
    got[0] = 0
    if _is_borrowed(r, c):
        # The scratch was filled in this turn already; its rest becomes the connection's own.
        if input_end_turn(r, c) == SERVE_CLOSE:
            return TAKEN_ERROR
    room = _input_room(r, c, &wanted)
    if room != TAKEN_BYTES:
        return room
    n = transport_receive(&c.transport, c.input + c.end, wanted)
    if n > 0:
        c.end += <size_t>n
        c.brought += n
        got[0] = <size_t>n
        r.counters.bytes_in += n
        # A short read has emptied the socket, unless its end is to be seen yet.
        input_seen(c, INCOMING_MORE if <size_t>n == wanted or c.incoming >= INCOMING_LAST else INCOMING_NOTHING)
        return TAKEN_BYTES
    if n == 0:
        input_seen(c, INCOMING_ENDED)
        return TAKEN_NOTHING
    if errno == EINTR:
        return TAKEN_BYTES
    input_seen(c, INCOMING_NOTHING)
    return TAKEN_NOTHING if errno == EAGAIN else TAKEN_ERROR


# --- while memory is short ----------------------------------------------------------------------------------
cdef bint input_may_go_on(Reactor* r, const Connection* c) noexcept nogil:
    cdef size_t whole
    if c.stalled != STALL_INPUT or _may_exceed(r, c) or c.end - c.start < SIZE_BYTES:
        return True
    whole = <size_t>get_u32(c.input + c.start) + SIZE_BYTES
    return (
        atomic_load64(&r.plane.input_bytes) + _beyond_free(whole) - _beyond_free(c.capacity) <= _limit_for(r, c, whole)
    )


cdef inline bint _keeps_up(Reactor* r, const Connection* c) noexcept nogil:
    """Whether it has brought as much since it last did as it holds in INPUT_TURNOVER_MS."""
    return (c.brought - c.kept_up_bytes) * INPUT_TURNOVER_MS >= <int64_t>c.capacity * (r.now_ms - c.kept_up_ms)


cdef void input_watch(Reactor* r, Connection* c) noexcept nogil:
    # A frame that isn't read, or has begun since, isn't late.
    if c.capacity <= INPUT_FREE_BYTES or c.frame_ms == 0 or c.kept_up_ms < c.frame_ms or _keeps_up(r, c):
        c.kept_up_ms = r.now_ms
        c.kept_up_bytes = c.brought


cdef bint input_lags(Reactor* r, const Connection* c) noexcept nogil:
    if c.capacity <= INPUT_FREE_BYTES or c.frame_ms == 0 or c.kept_up_ms < c.frame_ms or connection_is_ready(c):
        return False
    return r.now_ms - c.kept_up_ms >= r.plane.input_patience_ms and not _keeps_up(r, c)
