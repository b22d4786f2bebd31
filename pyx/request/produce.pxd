"""Produce, served in place: the records are checked, given offsets and appended out of the
connection's own buffer, and the answer is written. The network thread waits for nothing: where a partition has other
replicas, the answer to acks=all is kept until they have the records (acks.pxd), and what needs a coordinator or an
fsync goes to the control plane. A request that takes more than IN_LINE_WORK is left to a worker thread (workers.pxd): a
network thread validates each request whole before it appends anything of it.

Requests that a connection brought together are appended together: what they have for one partition goes into its log
with one pwritev, which costs little more for several requests than for one. A group is filled by produce_take,
appended, answered request by request, and used again.

Versions 0 to 2 bring message sets (magic 0 and 1; Kafka takes one batch of magic 2 there, too), later ones exactly
one batch of magic 2 for each partition.

A request that begins a transaction in a partition has to wait for its coordinator (KIP-890, verification.pxd): it is
handed over to the control plane whole, which asks and then serves it by the same function.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

from penstock.pyx.log.partition cimport LogSet
from penstock.pyx.record.frame cimport Reader, RequestHead, Writer
from penstock.pyx.request.acks cimport ProduceWait
from penstock.pyx.request.refusals cimport Sender

cdef enum ProduceResult:
    PRODUCE_ANSWERED = 0              # a whole answer, size first, was written
    PRODUCE_SILENT = 1                # acks=0: there is none
    PRODUCE_HAND_OVER = 2             # nothing was appended: the control plane has to ask the transaction coordinator
    PRODUCE_TAKEN = 3                 # it is in the group
    PRODUCE_COSTLY = 4                # nothing was appended: a network thread would serve it for too long
    # Nothing was appended: a partition is held (partition.pxd), try again then. Or it has to come after the group.
    PRODUCE_HELD = 5
    PRODUCE_CLOSE = -1                # acks=0 and something failed: only a closed connection can say so (as in Kafka)
    PRODUCE_MALFORMED = -2            # nothing was appended; the connection is closed
    PRODUCE_NO_MEMORY = -3            # the answer couldn't be written; the connection is closed

cdef enum:
    # What a network thread does at once for one request, 1 or 2 ms, by the units of validator.pxd. A group takes at
    # most twice that.
    IN_LINE_WORK = 1 << 20
    IN_LINE_BYTES = 4 << 20           # of a request: each record is looked at, and copied into the page cache
    IN_LINE_PARTITIONS = 500          # each takes a write
    WORKER_WAITS_MS = 2000            # as long as a move may hold a partition

# What one thread appended; read by Python without a lock.
cdef struct ProduceTally:
    int64_t batches
    int64_t bytes
    int64_t errors                    # partitions answered with an error

cdef struct ProduceGroup
# For a network thread (`in_line`) or a worker, which keeps it. A worker waits for partitions that are held, for
# WORKER_WAITS_MS at most, and validates before a move would wait for it. NULL: no memory.
cdef ProduceGroup* produce_group_new(bint in_line) noexcept nogil
cdef void produce_group_free(ProduceGroup* g) noexcept nogil

# One more request, whose reader stands at the body: its partitions are found, and what the request alone says
# is validated.
# PRODUCE_TAKEN, or PRODUCE_HAND_OVER, PRODUCE_HELD, PRODUCE_COSTLY (in line), PRODUCE_MALFORMED, PRODUCE_NO_MEMORY: the
# group is as before then.
# `verdicts`: what the transaction coordinator says to each partition, in the order of the request: 0, or the error that
# it is answered with. NULL on the network threads: no coordinator was asked. A caller that has verdicts has waited for
# partitions that are held, and is answered in any case. `guard`: taken before the coordinator was asked
# (producerstate.pxd); 0 without verdicts.
cdef ProduceResult produce_take(
    ProduceGroup* g, LogSet* logs, const Sender* sender, const RequestHead* head, Reader body, const int16_t* verdicts,
    int64_t guard
) noexcept nogil
# The number of the topic that a request's first partition is of; 0: it isn't here.
cdef uint32_t produce_topic_number(const ProduceGroup* g, size_t i) noexcept nogil
# Whether it may take another request that it is appended with.
cdef bint produce_group_open(const ProduceGroup* g) noexcept nogil
# Appends all. The records behind the readers are written to (offsets, epochs). Once a worker's job is `dropped`
# (atomic; NULL elsewhere), nothing more is: nobody wants the answer.
cdef void produce_append(ProduceGroup* g, const int32_t* dropped) noexcept nogil
# Whether an answer has to wait for other replicas. Until produce_clear.
cdef bint produce_waits(const ProduceGroup* g) noexcept nogil
# The answer to request `i`, in the order in which they were taken. When the result isn't PRODUCE_ANSWERED, `out` is as
# it was before. `acks`, made with the first partition that has to wait, gets each that does. The caller frees it; NULL:
# nothing waits.
cdef ProduceResult produce_answer(
    ProduceGroup* g, size_t i, Writer* out, ProduceWait** acks, ProduceTally* tally
) noexcept nogil
# The work that the group's requests took so far.
cdef int64_t produce_work(const ProduceGroup* g) noexcept nogil
cdef void produce_clear(ProduceGroup* g) noexcept nogil

# Whether the request names a partition that is held.
cdef bint produce_held(LogSet* logs, const RequestHead* head, Reader body) noexcept nogil

# All of that for one request; `topic` is its produce_topic_number. A caller that passes `verdicts` calls
# `produce_flush` (produceflush.pxd) before it sends the answer.
cdef ProduceResult produce_serve(
    LogSet* logs, const Sender* sender, const RequestHead* head, Reader body, Writer* out, ProduceWait** acks,
    ProduceTally* tally, const int16_t* verdicts, int64_t guard, uint32_t* topic
) noexcept nogil
