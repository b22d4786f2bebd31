"""What a `Partition` of partition.pxd is inside: for append.pyx, read.pyx, upkeep.pyx and logs.pyx.

Locks, in the order in which they may be taken: `upkeep` (one flush, retention, stop or delete of a partition at a time;
held while the disk works), the LogSet's, the partition's `lock` (held for checks, one write and the indexes), a
segment's.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t
from libcpp.string cimport string
from penstock.pyx.epochs cimport epochs_write
from penstock.pyx.logconfig cimport LogConfig
from penstock.pyx.partition cimport ISOLATION_COMMITTED, ISOLATION_UNCOMMITTED, Partition
from penstock.pyx.posix cimport pthread_mutex_t
from penstock.pyx.producerstate cimport producers_first_open
from penstock.pyx.recovery cimport LogState

cdef enum:
    TOPIC_ID_BYTES = 16

# Kafka's codes that the log gives.
cdef enum:
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    NOT_LEADER_OR_FOLLOWER = 6
    RECORD_LIST_TOO_LARGE = 18
    INVALID_TIMESTAMP = 32
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    KAFKA_STORAGE_ERROR = 56
    INVALID_RECORD = 87

cdef struct PartitionLog:
    int32_t refs
    pthread_mutex_t lock
    pthread_mutex_t upkeep
    string topic
    int32_t index
    uint8_t topic_id[TOPIC_ID_BYTES]
    LogConfig config
    LogState log
    int32_t leader_epoch
    int64_t high_watermark
    int64_t last_stable
    uint64_t waiting_end               # reactors that wait for the high watermark or log end
    uint64_t waiting_stable            # reactors that wait for the last stable offset
    bint stopped
    bint offline                       # the disk failed: what is in the page cache can't be believed any more
    int64_t flushed_ms                 # when the active segment was last flushed
    int64_t log_end_flushed
    bint epochs_unsynced               # leader-epoch-checkpoint was replaced since it was last synced

cdef inline PartitionLog* log_of(Partition* partition) noexcept nogil:
    return <PartitionLog*>partition

# Under the lock: everybody who waits for anything.
cdef inline uint64_t take_all_waiting(PartitionLog* p) noexcept nogil:
    cdef uint64_t reactors = p.waiting_end | p.waiting_stable
    p.waiting_end = 0
    p.waiting_stable = 0
    return reactors

cdef inline int64_t end_of(const PartitionLog* p, int8_t isolation) noexcept nogil:
    if isolation == ISOLATION_COMMITTED:
        return p.last_stable
    return p.high_watermark if isolation == ISOLATION_UNCOMMITTED else p.log.log_end

# Under the lock, when the epochs changed. Should the write fail, recovery learns the epochs from the batches again.
cdef inline int write_epochs(PartitionLog* p, bint sync) noexcept nogil:
    cdef string path = p.log.folder
    path.append(b"/leader-epoch-checkpoint")
    p.epochs_unsynced = not sync
    return epochs_write(&p.log.epochs, path.c_str(), sync)

# Under the lock: the last stable offset follows from the high watermark, the open transactions and the log start.
cdef inline void settle_stable(PartitionLog* p) noexcept nogil:
    p.last_stable = producers_first_open(&p.log.producers, p.high_watermark)
    if p.last_stable < p.log.log_start:
        p.last_stable = p.log.log_start

# The disk can't be believed any more. Under the lock; answers who has to be woken.
cdef inline uint64_t fail_log(PartitionLog* p) noexcept nogil:
    p.offline = True
    return take_all_waiting(p)
