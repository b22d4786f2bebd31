# Cold pages: a few threads that read a range of a file, so that it is in the page cache when a network thread
# sends it and no network thread waits for a disk. A file is kept open for the job by a descriptor of its own.
from libc.stdint cimport int32_t, int64_t, uint32_t

from penstock.pyx.posix cimport pthread_cond_t, pthread_mutex_t

cdef enum:
    READER_JOBS_MAX = 1024            # waiting at once; beyond it the network thread reads the range itself
    READER_CHUNK_BYTES = 262144       # of one system call: the kernel may not give the processor to others within one

# Called by a reader thread when the range has been read (or could not be: who sends it will see).
ctypedef void (*WarmHook)(void* owner, uint32_t place, uint32_t generation) noexcept nogil

cdef struct ReaderJob:
    int fd
    int64_t position
    int64_t length
    void* owner
    uint32_t place
    uint32_t generation
    ReaderJob* next

cdef struct ReaderPool:
    pthread_mutex_t lock
    pthread_cond_t ready
    ReaderJob* first
    ReaderJob* last
    int32_t waiting
    bint stopping
    WarmHook hook

cdef ReaderPool* reader_new(WarmHook hook) noexcept nogil         # NULL: no memory
# True: the hook will be called once. False: the queue is full or there is no descriptor; nothing was taken.
cdef bint reader_submit(
    ReaderPool* pool, int fd, int64_t position, int64_t length, void* owner, uint32_t place, uint32_t generation
) noexcept nogil
cdef void reader_loop(ReaderPool* pool) noexcept nogil            # the body of a thread; returns after reader_stop
cdef void reader_stop(ReaderPool* pool) noexcept nogil
cdef void reader_free(ReaderPool* pool) noexcept nogil            # after its threads were joined
# Whether the range is in the page cache, as far as its first and last page tell.
cdef bint range_is_cached(int fd, int64_t position, int64_t length) noexcept nogil
