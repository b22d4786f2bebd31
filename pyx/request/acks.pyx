"""Produces that wait for other replicas; see acks.pxd."""

from libc.stdint cimport uint8_t

from penstock.pyx.linux.posix cimport calloc, free, realloc, relaxed_add64
from penstock.pyx.log.files cimport dropped, made
from penstock.pyx.log.partition cimport (
    COMMITTED_NOT_YET, partition_committed, partition_release, partition_retain, partition_tally,
)
from penstock.pyx.record.endian cimport put_i16, put_i64
from penstock.pyx.request.leaders cimport Leader, find_leader, name_leaders
from penstock.pyx.request.waiting cimport WAITING_ACKS

cdef enum:
    ERROR_BYTES = 2
    FIELD_BYTES = 8
    TAG_CURRENT_LEADER = 0


cdef ProduceWait* acks_new(int32_t fields, int64_t deadline_ms) noexcept nogil:
    cdef ProduceWait* wait = <ProduceWait*>calloc(1, sizeof(ProduceWait))
    if wait == NULL:
        return NULL
    wait.waiting.kind = WAITING_ACKS
    wait.waiting.deadline_ms = deadline_ms
    wait.waiting.heap_index = -1
    wait.waiting.due = True
    wait.fields = fields
    return wait


cdef bint acks_add(
    ProduceWait* wait, Partition* partition, int64_t needed, int32_t leader_epoch, size_t error_at, size_t tags_at
) noexcept nogil:
    cdef int32_t capacity
    cdef AckedPart* grown
    cdef AckedPart* part
    if wait.n == wait.capacity:
        capacity = wait.capacity * 2 + 1
        grown = <AckedPart*>realloc(wait.parts, <size_t>capacity * sizeof(AckedPart))
        if grown == NULL:
            return False
        wait.parts = grown
        wait.capacity = capacity
    part = &wait.parts[wait.n]
    wait.n += 1
    partition_retain(partition)
    part.partition = partition
    part.settled = False
    part.needed = needed
    part.leader_epoch = leader_epoch
    part.error_at = error_at
    part.tags_at = tags_at
    return True


cdef void acks_name_leaders(
    ProduceWait* wait, LeaderPlaces& places, Addresses* addresses, int32_t listener
) noexcept nogil:
    wait.leaders = made[LeaderPlaces]()
    wait.leaders.swap(places)
    wait.addresses = addresses
    wait.listener = listener


cdef void acks_cut(ProduceWait* wait, int32_t n) noexcept nogil:
    while wait.n > n:
        wait.n -= 1
        partition_release(wait.parts[wait.n].partition)


cdef void _write_error(const ProduceWait* wait, const AckedPart* part, uint8_t* answer, int16_t error) noexcept nogil:
    cdef uint8_t* at = answer + part.error_at
    cdef int32_t i
    put_i16(at, error)
    for i in range(wait.fields):
        put_i64(at + ERROR_BYTES + i * FIELD_BYTES, -1)


cdef void _refuse(ProduceWait* wait, const AckedPart* part, Writer* answer, int16_t error) noexcept nogil:
    cdef Leader leader
    _write_error(wait, part, answer.p, error)
    if wait.leaders != NULL and find_leader(wait.addresses, part.partition, error, &leader):
        wait.leaders[0][part.tags_at] = leader


cdef bint acks_settle(
    ProduceWait* wait, Writer* answer, int reactor, bint must_answer, int64_t* errors
) noexcept nogil:
    cdef AckedPart* part
    cdef int32_t i
    cdef int16_t error
    cdef bint all = True
    for i in range(wait.n):
        part = &wait.parts[i]
        if part.settled:
            continue
        error = partition_committed(part.partition, reactor, part.needed, part.leader_epoch, must_answer)
        if error == COMMITTED_NOT_YET:
            all = False
            continue
        part.settled = True
        if error != 0:
            _refuse(wait, part, answer, error)
            errors[0] += 1
            relaxed_add64(&partition_tally(part.partition).appends_failed, 1)
    if all and wait.leaders != NULL and not wait.leaders.empty():
        name_leaders(answer, 0, wait.leaders[0], TAG_CURRENT_LEADER, wait.addresses, wait.listener)
    return all


cdef int64_t acks_held_bytes(const ProduceWait* wait) noexcept nogil:
    return <int64_t>sizeof(ProduceWait) + wait.capacity * <int64_t>sizeof(AckedPart)


cdef void acks_free(ProduceWait* wait) noexcept nogil:
    if wait == NULL:
        return
    acks_cut(wait, 0)
    if wait.leaders != NULL:
        dropped[LeaderPlaces](wait.leaders)
    free(wait.parts)
    free(wait)
