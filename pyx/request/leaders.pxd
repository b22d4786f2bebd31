"""Who leads a partition that this broker refuses, and where that broker is reached (KIP-951): the client goes there at
once, and asks nobody for metadata first.

A partition knows its leader by the role that the controller has told. The control plane says where brokers are reached,
which it hears apart from roles: a leader whose address isn't known yet is named without one, as Kafka does. Nobody is
named where this broker knows no other leader: its own lead may be over (lease.pxd), or nobody leads.

  an answer that is written in one go: find_leader -> write_leader at the partition's tags -> write_addresses at the end
  one that waits for other replicas:   find_leader -> a place in a LeaderPlaces -> name_leaders, once it is sent
"""

from libc.stdint cimport int16_t, int32_t, uint32_t
from libcpp.map cimport map as ordered_map
from libcpp.set cimport set as ordered_set
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport pthread_mutex_t
from penstock.pyx.log.partition cimport Partition
from penstock.pyx.record.frame cimport Writer

# Where clients of one listener reach a broker.
cdef struct Address:
    int32_t broker
    string host
    int32_t port
    bint has_rack
    string rack

cdef struct Addresses:
    pthread_mutex_t lock
    int32_t node_id                   # of this broker
    vector[vector[Address]] listeners  # by their index

cdef struct Leader:
    int32_t broker
    int32_t epoch

# Where in an answer the tagged fields of a partition begin, of which there are none; and who leads it.
ctypedef ordered_map[size_t, Leader] LeaderPlaces

cdef Addresses* addresses_new(int32_t node_id) noexcept nogil     # none is known
cdef void addresses_free(Addresses* addresses) noexcept nogil
cdef void addresses_set(Addresses* addresses, vector[vector[Address]]& listeners) noexcept nogil  # which it takes

# Whether a client that is refused with `error` is to be told who leads the partition (NULL: it isn't here).
cdef bint find_leader(
    const Addresses* addresses, Partition* partition, int16_t error, Leader* out
) noexcept nogil
# The tagged fields of a partition: its leader, as this tag. `brokers` gets it, here, since a set that finds no memory
# asks for the GIL.
cdef void write_leader(Writer* w, uint32_t tag, const Leader* leader, ordered_set[int32_t]& brokers) noexcept nogil
# The tagged fields of a whole answer: the addresses of these brokers on a listener, as far as they are known.
cdef void write_addresses(
    Writer* w, Addresses* addresses, int32_t listener, ordered_set[int32_t]& brokers
) noexcept nogil
# Puts leaders and addresses into a whole answer, from `begin` on, which has no tagged field where they go. Without
# memory the answer stays as it was.
cdef void name_leaders(
    Writer* w, size_t begin, LeaderPlaces& places, uint32_t tag, Addresses* addresses, int32_t listener
) noexcept nogil
