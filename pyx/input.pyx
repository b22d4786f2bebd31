"""What a connection receives: its memory, and the bytes in it; see input.pxd."""
from libc.stdint cimport int64_t, uint8_t

from penstock.pyx.endian cimport get_u32
from penstock.pyx.frame cimport SIZE_BYTES
from penstock.pyx.plane cimport (
    Connection,
    INPUT_BYTES_MIN,
    INPUT_FREE_BYTES,
    INPUT_TOGETHER,
    INPUT_TOGETHER_BYTES,
    Reactor,
    SCRATCH_BYTES,
    SERVED,
    SERVE_CLOSE,
    SERVE_STALLED,
    Served,
)
from penstock.pyx.posix cimport (
    EAGAIN,
    EINTR,
    atomic_add64,
    atomic_store32,
    errno,
    free,
    memcpy,
    memmove,
    realloc,
    recv,
)

cdef void input_unstall(Reactor* r, Connection* c) noexcept nogil:
    if c.stalled:
        c.stalled = False
        r.stalled_count -= 1


cdef void input_stall(Reactor* r, Connection* c) noexcept nogil:
    if not c.stalled:
        c.stalled = True
        r.stalled_count += 1
        r.counters.stalls += 1


cdef void input_free(Reactor* r, Connection* c) noexcept nogil:
    if not c.borrowed:
        free(c.input)
        if c.capacity > INPUT_FREE_BYTES:
            atomic_add64(&r.plane.input_bytes, -<int64_t>(c.capacity - INPUT_FREE_BYTES))
            if r.over_budget == c:
                r.over_budget = NULL
            if r.stalled_count:
                atomic_store32(&r.unstall, 1)
                atomic_store32(&r.wake, 1)            # its own thread looks before it sleeps
    c.input = NULL
    c.borrowed = False
    c.capacity = 0
    c.start = 0
    c.end = 0
    c.largest = 0


cdef Served input_grow(Reactor* r, Connection* c, size_t capacity, bint spare) noexcept nogil:
    """A larger buffer of the connection's own. Beyond the broker's limit one connection per reactor may still
    grow, so that frames which came in part only can't keep each other from ever being whole; not for what is `spare`.
    """
    cdef int64_t before = max(<int64_t>c.capacity - INPUT_FREE_BYTES, 0)
    cdef int64_t more = max(<int64_t>capacity - INPUT_FREE_BYTES, 0) - before
    cdef uint8_t* grown
    if more > 0 and atomic_add64(&r.plane.input_bytes, more) > r.plane.input_bytes_max:
        if spare or (r.over_budget != NULL and r.over_budget != c):
            atomic_add64(&r.plane.input_bytes, -more)
            return SERVE_STALLED
        r.over_budget = c
    grown = <uint8_t*>realloc(c.input, capacity)
    if grown == NULL:
        atomic_add64(&r.plane.input_bytes, -more)
        return SERVE_CLOSE
    c.input = grown
    c.capacity = capacity
    return SERVED


cdef Served input_settle(Reactor* r, Connection* c) noexcept nogil:
    """After a turn: what is left of borrowed scratch moves to a buffer of the connection's own; an empty buffer goes,
    unless large frames keep coming.
    """
    cdef size_t left = c.end - c.start
    cdef const uint8_t* source = c.input + c.start
    cdef Served got
    if c.borrowed:
        c.input = NULL
        c.borrowed = False
        c.capacity = 0
        c.start = 0
        c.end = 0
        if left == 0:
            return SERVED
        got = input_grow(r, c, max(<size_t>INPUT_BYTES_MIN, left), False)
        if got != SERVED:
            return got
        memcpy(c.input, source, left)
        c.end = left
    elif left == 0 and c.input != NULL:
        c.start = 0
        c.end = 0
        if c.largest < INPUT_FREE_BYTES // 2 or r.stalled_count or r.over_budget == c:
            input_free(r, c)
    return SERVED


cdef Taken input_room(Reactor* r, Connection* c, size_t* wanted) noexcept nogil:
    """Where the next bytes go, and how many are asked for: several frames at once, so that they can be served together,
    or the rest of a very large one exactly, so that nothing of the next has to be moved. A buffer is at most twice what
    has arrived, whatever the frame's size says.
    """
    cdef size_t held = c.end - c.start
    cdef size_t need = SCRATCH_BYTES
    cdef size_t capacity
    cdef Served grown
    if c.input == NULL:
        c.input = r.scratch
        c.capacity = SCRATCH_BYTES
        c.borrowed = True
        c.start = 0
        c.end = 0
    elif c.start > 0:
        memmove(c.input, c.input + c.start, held)
        c.start = 0
        c.end = held
    if held >= SIZE_BYTES:
        # The frame was cut, so its size is right and its end isn't here yet.
        need = <size_t>get_u32(c.input) + SIZE_BYTES - held
        need = max(need, <size_t>INPUT_BYTES_MIN)
    if not c.borrowed and 0 < c.largest <= INPUT_TOGETHER_BYTES // 2:
        # Such frames did come whole. If there is no memory for several of them, one at a time will do.
        capacity = min(<size_t>c.largest * INPUT_TOGETHER, <size_t>INPUT_TOGETHER_BYTES)
        if c.capacity < capacity:
            input_grow(r, c, capacity, True)
        need = max(need, c.capacity - c.end)
    if c.end == c.capacity:
        capacity = min(c.capacity * 2, held + need)
        grown = input_grow(r, c, capacity, False)
        if grown != SERVED:
            return TAKEN_STALLED if grown == SERVE_STALLED else TAKEN_ERROR
    wanted[0] = min(c.capacity - c.end, need)
    return TAKEN_BYTES


cdef Taken input_take(Reactor* r, Connection* c, size_t* got) noexcept nogil:
    cdef size_t wanted = 0
    cdef ssize_t n
    cdef Taken room
    got[0] = 0
    if c.borrowed:
        # The scratch was filled in this turn already; its rest becomes the connection's own.
        if input_settle(r, c) == SERVE_CLOSE:
            return TAKEN_ERROR
    room = input_room(r, c, &wanted)
    if room != TAKEN_BYTES:
        return room
    n = recv(c.fd, c.input + c.end, wanted, 0)
    if n > 0:
        c.end += <size_t>n
        got[0] = <size_t>n
        r.counters.bytes_in += n
        # A short read has emptied the socket, unless its end is to be seen yet.
        c.readable = <size_t>n == wanted or c.hung_up
        return TAKEN_BYTES
    if n == 0:
        c.ended = True
        c.readable = False
        return TAKEN_NOTHING
    if errno == EINTR:
        return TAKEN_BYTES
    c.readable = False
    return TAKEN_NOTHING if errno == EAGAIN else TAKEN_ERROR
