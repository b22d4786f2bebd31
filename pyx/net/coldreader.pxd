"""Cold pages: a few threads that wait for the disk, so that no network thread does. Each log folder has its own queue,
and at most READER_THREADS_A_FOLDER threads work for it, so that a disk that hangs stops reads of no other folder. A
thread that has read past the page cache keeps its buffer of some 520 KiB.

A job is a range of a file. One that has a transport is sent there by the reader thread itself, for as long as the peer
takes it and nobody else wants the thread; what is left then, and a job without one, is read into the page cache, from
where its network thread takes it. File and socket are kept open for the job by descriptors of its own.

A `direct` job is sent past the page cache (O_DIRECT): what one consumer reads once takes no page from consumers at the
end of their logs, nor the processor to find, fill and free pages. What its peer doesn't take stays on the disk until
there is room in the socket. The thread sees where the next fetch begins and says so, which saves a read of the disk for
an index. Where several connections come upon cold pages of one segment at the same time, they read them through the
page cache, so that the disk gives them once; so does each on a kernel without cachestat, on a file system that refuses
the flag, and for bytes that aren't written out yet.

The threads have nice 19: of a full processor they get next to nothing, which still is a disk's speed.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t

from penstock.pyx.linux.posix cimport pthread_cond_t, pthread_mutex_t
from penstock.pyx.log.segment cimport BatchPlace
from penstock.pyx.net.busytime cimport BusyTime
from penstock.pyx.net.transport cimport Transport

cdef enum:
    READER_THREADS_A_FOLDER = 2
    READER_FOLDERS_MAX = 64           # with queues of their own; more share the last one
    READER_JOBS_MAX = 1024            # waiting at once in a queue; beyond it the network thread reads the range itself
    READER_CHUNK_BYTES = 131072       # sent by one call: the kernel may not give the processor to others within one
    READER_DIRECT_BYTES = 524288      # read by one past the page cache, for a peer that keeps up
    READER_DIRECT_MIN_BYTES = 65536  # for one that doesn't: what there is room for, but no less
    READER_PATIENCE_MS = 5            # with a peer that takes nothing

cdef struct ReaderJob:
    int fd
    size_t folder                     # a number of the log folder that the file lies in
    Transport transport               # none: the range is only read
    int64_t position
    int64_t length
    bint direct
    bint begins_batch                 # the range does, so that the batches in it can be told apart
    void* owner
    uint32_t place
    uint32_t generation
    # What the reader thread gives:
    int64_t sent                      # from the range's beginning
    int64_t ready                     # what is in memory now, from there, too
    BatchPlace follows                # of a direct job: the first batch that isn't whole in the range, or follows it
    bint full                         # the peer takes no more for now
    bint failed                       # the socket is broken, or the segment
    bint unreadable                   # the segment: an error, or a file that is shorter than its log says
    ReaderJob* next

# Called by a reader thread when a job is done. Whether the range could be read its next user will see.
ctypedef void (*ReaderHook)(const ReaderJob* job) noexcept nogil

# The jobs of a log folder.
cdef struct ReaderQueue:
    size_t folder
    ReaderJob* first
    ReaderJob* last
    int32_t waiting
    int32_t working                   # threads

cdef struct ReaderPool:
    pthread_mutex_t lock
    pthread_cond_t ready
    ReaderQueue queues[READER_FOLDERS_MAX]
    int32_t queued                    # how many of them there are
    int32_t turn                      # the queue that is looked at first
    bint stopping
    ReaderHook hook

cdef ReaderPool* reader_new(ReaderHook hook) noexcept nogil       # NULL: no memory
# Takes a copy of what is asked. True: the hook will be called once; until then nobody else may send to the socket.
# False: the queue is full or there is no descriptor; nothing was taken.
cdef bint reader_submit(ReaderPool* pool, const ReaderJob* asked) noexcept nogil
cdef void reader_loop(ReaderPool* pool, BusyTime* busy) noexcept nogil   # the body of a thread, until reader_stop
cdef void reader_stop(ReaderPool* pool) noexcept nogil
cdef void reader_free(ReaderPool* pool) noexcept nogil            # after its threads were joined
