"""Worker threads: they do what would keep a network thread from its other connections for too long. There is one more
of them than of network threads. A job is one of

  - a whole produce request that takes more than produce.pxd's IN_LINE_WORK (payloads that inflate to much, records to
    be compressed again), or that is large, or has many partitions
  - the conversion of stored records for one fetch (fetchconvert.pxd)

A connection has at most one job of each kind here. While a worker has its produce, the connection isn't read: so its
requests stay in order, connections take turns, and what a client has sent ahead waits in its socket. The frames that
wait here have a bound (`bytes_max`). A job whose connection is closed is dropped before it begins, a produce also
between two of its partitions.

A job is heavy if the last one of its kind and connection took HEAVY_US of a processor. One thread serves none that
are heavy, and the others serve both in turn: who sends a batch of some MiB doesn't wait behind those who send hundreds.

The threads have nice 5: network threads go first, but a worker that holds a partition's lock isn't starved.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from penstock.pyx.linux.posix cimport pthread_cond_t, pthread_mutex_t
from penstock.pyx.log.partition cimport LogSet
from penstock.pyx.net.busytime cimport BusyTime
from penstock.pyx.record.frame cimport Writer
from penstock.pyx.request.acks cimport ProduceWait
from penstock.pyx.request.fetch cimport FetchJob
from penstock.pyx.request.produce cimport ProduceResult, ProduceTally
from penstock.pyx.request.refusals cimport Sender

cdef enum:
    HEAVY_US = 10_000

# Jobs in the order in which they came.
cdef struct WorkList:
    Work* first
    Work* last

# A job. Its network thread makes it, and frees it when it comes back.
cdef struct Work:
    uint8_t* frame                    # of a produce, without its size; NULL: `fetch` is to be converted
    int32_t n
    FetchJob* fetch                   # nobody else touches it meanwhile
    Sender sender                     # of a produce
    bint heavy
    int32_t dropped                   # atomic: the connection is gone
    void* mail                        # what it comes back with
    void* owner
    uint32_t place
    uint32_t generation
    uint32_t number                   # of its slot
    # What the worker gives:
    int64_t cpu_us                    # that it took
    int64_t begun_ns                  # when, by the clock
    int64_t done_ns
    # and for a produce:
    ProduceResult result
    Writer answer
    ProduceWait* acks                 # before it is sent
    ProduceTally tally
    uint32_t topic                    # the number of the first one
    int64_t spent                     # work that it took (validator.pxd)
    Work* next

# Called by a worker thread when a job is done, or was dropped.
ctypedef void (*WorkHook)(Work* work) noexcept nogil
# Called when jobs were refused because of `bytes_max`, and there is room again.
ctypedef void (*RoomHook)(void* plane) noexcept nogil

cdef struct WorkerPool:
    pthread_mutex_t lock
    pthread_cond_t ready
    WorkList light
    WorkList heavy
    int64_t bytes                     # of frames that wait, or are served
    int64_t bytes_max
    bint full                         # a job was refused
    bint stopping
    LogSet* logs
    void* plane
    WorkHook hook
    RoomHook has_room

cdef WorkerPool* workers_new(
    LogSet* logs, int64_t bytes_max, void* plane, WorkHook hook, RoomHook has_room
) noexcept nogil                                                  # NULL: no memory
# Copies the frame, or takes the fetch; NULL: no memory.
cdef Work* work_new(const uint8_t* frame, int32_t n, FetchJob* fetch) noexcept nogil
cdef void work_free(Work* work) noexcept nogil                    # with its fetch
# True: the hook will be called once. False: too many bytes wait (a frame that is alone always fits), or the pool stops.
cdef bint workers_submit(WorkerPool* pool, Work* work) noexcept nogil
# The body of a thread; returns after workers_stop. `light`: it serves no heavy jobs. One thread does so.
cdef void workers_loop(WorkerPool* pool, bint light, BusyTime* busy) noexcept nogil
cdef void workers_stop(WorkerPool* pool) noexcept nogil
# After its threads were joined: frees what waits, then all.
cdef void workers_clear(WorkerPool* pool) noexcept nogil
cdef void workers_free(WorkerPool* pool) noexcept nogil
