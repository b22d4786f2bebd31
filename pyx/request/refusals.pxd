"""Batches of producers that were refused and will come again: a later one is not taken before them.

A client has several produces on their way at once. Say the first is refused with an error that the client tries again:
the partition moves, its log isn't open yet, its disk is full, its topic isn't known yet. The second comes a moment
later and would be appended. A log that doesn't know the producer takes any sequence as its first one, since the
producer's state may have expired. The first batch would then be out of order for ever (KAFKA-15591), or missing in its
transaction.

So the lowest refused sequence of each producer in each partition is remembered for its connection. A later sequence is
refused with the same error, until the refused one was taken, or was refused with an error that the client doesn't try
again. In a cluster another leader may take it: then it is in the log once this broker leads again (`partition_took`),
and the client sends what comes behind it (*a producer that is refused for ever*). A new epoch begins at sequence 0 and
ends this. Nothing is asked of a producer that had no batch refused.

All of a plane's threads share one Refusals. It is almost always empty. An empty one costs an atomic load a batch, any
other a mutex. What it remembers has a bound: of a connection that passes it all is forgotten, and for that connection
the logs alone check sequences. A name that no topic may have isn't remembered.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from penstock.pyx.request.leaders cimport Addresses

cdef enum:
    REFUSALS_MAX = 65536               # of a plane
    CONNECTION_REFUSALS_MAX = 8192
    TOPIC_BYTES_MAX = 249              # of a topic's name, as in Kafka

cdef struct Refusals

# Where a produce request came from.
cdef struct Sender:
    Refusals* refusals                 # NULL: nothing is remembered
    uint64_t connection                # a number that no other connection has
    Addresses* addresses               # of leaders, for partitions that this broker doesn't lead
    int32_t listener                   # that the connection came by

# One batch of one partition of a request. The name, or the id, of its topic is the request's.
cdef struct SentBatch:
    const uint8_t* topic
    size_t topic_n
    int32_t index
    int64_t producer_id                # -1: it has no sequence
    int16_t epoch
    int32_t sequence

cdef Refusals* refusals_new() noexcept nogil
cdef void refusals_free(Refusals* refusals) noexcept nogil
# The first batch of records as they came; without a sequence if they are no whole batch of magic 2.
cdef void refusals_parse(const uint8_t* records, int32_t n, SentBatch* out) noexcept nogil
# The error of an earlier batch that has to come before this one, whose sequence goes to `first`; 0: there is none.
cdef int16_t refusals_find(const Sender* sender, const SentBatch* sent, int32_t* first) noexcept nogil
# What became of a batch: `error` is its answer's, 0 = it was taken.
cdef void refusals_note(const Sender* sender, const SentBatch* sent, int16_t error) noexcept nogil
# The connection is closed.
cdef void refusals_forget(Refusals* refusals, uint64_t connection) noexcept nogil
