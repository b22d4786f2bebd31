"""Which partition a record goes to: the C side of `partitioning.pyi`."""

from libc.stdint cimport int64_t

# One partition of each topic, until it has got the bytes of a batch.
cdef class Sticky:
    cdef int64_t batch_bytes
    cdef dict topics

    cdef Py_ssize_t choose(self, object topic, object available) except -1

    # The present partition got so many bytes, which filled its batch or not.
    cdef int note(self, object topic, int64_t size_bytes, bint filled, object available) except -1

cdef class Choice:
    cdef public Sticky sticky
    cdef object own
    cdef object kind
    cdef object hash
    cdef bint hashes_all
    cdef bint empty_is_none
    cdef bint is_sticky
    cdef dict turns

    # A record's partition; `sticky[0]` says whether it is the sticky one.
    cdef Py_ssize_t choose_one(
        self, object topic, bytes key, Py_ssize_t count, object available, bint* sticky
    ) except? -1
