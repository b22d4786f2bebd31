"""Where ids belong: Kafka's murmur2 of each, for a whole fetch without the GIL. Its twin is
`pipeline/clients/partitioner.py`.

An id must always meet the same worker. That holds as long as all producers put an id into the partition that murmur2 of
it gives; one that doesn't (librdkafka's default partitioner, old metadata) puts it where nobody knows it.
"""

import numpy as np
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

cdef enum:
    SEED = 0x9747b28c
    MULTIPLIER = 0x5bd1e995
    POSITIVE = 0x7fffffff


cdef inline uint32_t _murmur2(const uint8_t* p, size_t n) noexcept nogil:
    cdef uint32_t h = <uint32_t>SEED ^ <uint32_t>n
    cdef uint32_t k
    cdef size_t i
    for i in range(n // 4):
        memcpy(&k, p + 4 * i, 4)
        k *= <uint32_t>MULTIPLIER
        k ^= k >> 24
        k *= <uint32_t>MULTIPLIER
        h *= <uint32_t>MULTIPLIER
        h ^= k
    p += n - n % 4
    if n % 4 == 3:
        h ^= <uint32_t>p[2] << 16
    if n % 4 >= 2:
        h ^= <uint32_t>p[1] << 8
    if n % 4 >= 1:
        h ^= p[0]
        h *= <uint32_t>MULTIPLIER
    h ^= h >> 13
    h *= <uint32_t>MULTIPLIER
    return h ^ (h >> 15)


cdef bint _place(
    const uint8_t* data, int64_t size, const int64_t* starts, const uint8_t* null, Py_ssize_t count,
    uint32_t partitions, int32_t* homes
) noexcept nogil:
    """False: the arrays don't fit together."""
    cdef Py_ssize_t i
    for i in range(count):
        if starts[i] < 0 or starts[i + 1] < starts[i] or starts[i + 1] > size:
            return False
        if not null[i]:
            homes[i] = <int32_t>(
                (_murmur2(data + starts[i], <size_t>(starts[i + 1] - starts[i])) & <uint32_t>POSITIVE) % partitions
            )
    return True


def homes(data, starts, null, int32_t partitions):
    """The partition that each id belongs into; see place.pyi."""
    cdef Py_buffer data_view, starts_view, null_view, home_view
    cdef Py_ssize_t count = len(null)
    cdef bint fits
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    data = np.ascontiguousarray(data, dtype=np.uint8)
    starts = np.ascontiguousarray(starts, dtype=np.int64)
    null = np.ascontiguousarray(null, dtype=np.bool_)
    found = np.full(count, -1, dtype=np.int32)
    PyObject_GetBuffer(data, &data_view, PyBUF_SIMPLE)
    PyObject_GetBuffer(starts, &starts_view, PyBUF_SIMPLE)
    PyObject_GetBuffer(null, &null_view, PyBUF_SIMPLE)
    PyObject_GetBuffer(found, &home_view, PyBUF_SIMPLE)
    try:
        fits = starts_view.len == 8 * (count + 1) and null_view.len == count
        if fits:
            with nogil:
                fits = _place(
                    <const uint8_t*>data_view.buf, data_view.len, <const int64_t*>starts_view.buf,
                    <const uint8_t*>null_view.buf, count, <uint32_t>partitions, <int32_t*>home_view.buf,
                )
    finally:
        PyBuffer_Release(&home_view)
        PyBuffer_Release(&null_view)
        PyBuffer_Release(&starts_view)
        PyBuffer_Release(&data_view)
    if not fits:
        raise ValueError("ids don't fit together: starts must rise and end within data, null be as many as ids")
    return found
