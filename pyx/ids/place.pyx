"""Where ids belong: Kafka's murmur2 of each, for a whole fetch without the GIL.

An id must always meet the same worker. That holds as long as all producers put an id into the partition that murmur2 of
it gives; one that doesn't (librdkafka's default partitioner, old metadata) puts it where nobody knows it.
"""

import numpy as np
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t

from penstock.pyx.record.murmur2 cimport murmur2_partition


cdef bint _place(
    const uint8_t* data, int64_t size, const int64_t* starts, const uint8_t* null, Py_ssize_t count,
    int32_t partitions, int32_t* homes
) noexcept nogil:
    """False: the arrays don't fit together."""
    cdef Py_ssize_t i
    for i in range(count):
        if starts[i] < 0 or starts[i + 1] < starts[i] or starts[i + 1] > size:
            return False
        if not null[i]:
            homes[i] = murmur2_partition(data + starts[i], <size_t>(starts[i + 1] - starts[i]), partitions)
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
                    <const uint8_t*>null_view.buf, count, partitions, <int32_t*>home_view.buf,
                )
    finally:
        PyBuffer_Release(&home_view)
        PyBuffer_Release(&null_view)
        PyBuffer_Release(&starts_view)
        PyBuffer_Release(&data_view)
    if not fits:
        raise ValueError("ids don't fit together: starts must rise and end within data, null be as many as ids")
    return found
