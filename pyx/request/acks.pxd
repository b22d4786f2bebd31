"""Produces with acks=all whose records aren't in all in-sync replicas yet. The answer is there at once, as if all were
well; it is sent once the high watermark has reached what each of its partitions needs, or an error has taken that one's
place.

`broker/cluster/acks.py` is the specification: a wait names the leader epoch in which its records were appended. It is
over when the lead was lost, though this broker lead again by then, as another record may stand at that offset. A batch
that a producer has sent again waits like its first copy.
"""

from libc.stdint cimport int16_t, int32_t, int64_t

from penstock.pyx.log.partition cimport Partition
from penstock.pyx.record.frame cimport Writer
from penstock.pyx.request.leaders cimport Addresses, LeaderPlaces
from penstock.pyx.request.waiting cimport Waiting

cdef struct AckedPart:
    Partition* partition              # a reference
    bint settled
    int64_t needed
    int32_t leader_epoch
    size_t error_at                   # in the answer: its error code, with `fields` numbers of 64 bits behind it
    size_t tags_at                    # its tagged fields: there are none

cdef struct ProduceWait:
    Waiting waiting
    AckedPart* parts
    int32_t n
    int32_t capacity
    int32_t fields
    LeaderPlaces* leaders             # NULL: the version names none
    Addresses* addresses
    int32_t listener

cdef ProduceWait* acks_new(int32_t fields, int64_t deadline_ms) noexcept nogil    # NULL: no memory
# One more partition; the wait has a reference of its own. False: no memory.
cdef bint acks_add(
    ProduceWait* wait, Partition* partition, int64_t needed, int32_t leader_epoch, size_t error_at, size_t tags_at
) noexcept nogil
# From now on the answer names the leaders of partitions that are refused: of these already.
cdef void acks_name_leaders(
    ProduceWait* wait, LeaderPlaces& places, Addresses* addresses, int32_t listener
) noexcept nogil
cdef void acks_cut(ProduceWait* wait, int32_t n) noexcept nogil   # all but the first n partitions
# Whether all are settled, so that the answer can be sent; what isn't is watched for the network thread `reactor`.
# `must_answer`: its time is up, so that all are. `errors` counts the partitions whose answer is an error by now.
cdef bint acks_settle(ProduceWait* wait, Writer* answer, int reactor, bint must_answer, int64_t* errors) noexcept nogil
cdef int64_t acks_held_bytes(const ProduceWait* wait) noexcept nogil
cdef void acks_free(ProduceWait* wait) noexcept nogil             # safe on NULL
