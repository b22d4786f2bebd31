"""How other threads reach a network thread: its mail, the list of partitions that moved, and one eventfd for both."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from penstock.pyx.linux.posix cimport free, memset, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, pthread_t
from penstock.pyx.log.partition cimport Partition
from penstock.pyx.log.segment cimport BatchPlace
from penstock.pyx.net.admission cimport PEER_BYTES
from penstock.pyx.net.closures cimport Reason
from penstock.pyx.net.coldreader cimport ReaderJob
from penstock.pyx.net.workers cimport Work
from penstock.pyx.record.frame cimport Writer
from penstock.pyx.request.acks cimport ProduceWait

cdef enum:
    REACTORS_MAX = 64                 # bits of a partition's wake mask
    PLACES_MAX = 1 << 22              # connections of a reactor
    MOVED_KEPT = 4096                 # room for so many moved partitions is kept

# A token names a request for the control plane: reactor (6 bits), place (22), generation (20), request (16).
cdef enum:
    PLACE_MASK = PLACES_MAX - 1
    GENERATION_MASK = 0xfffff
    REQUEST_MASK = 0xffff

cdef enum MailKind:
    MAIL_SOCKET = 0
    MAIL_ANSWER = 1
    MAIL_CLOSE = 2
    MAIL_READ = 3                     # a reader thread is done: `sent` bytes of the next piece went; -1: it failed
    MAIL_RESUME = 4                   # `answer` holds a diverted request: serve it into its slot after all
    MAIL_RESUME_LOSE = 5              # the same, but its answer is lost and the connection ends
    MAIL_WORKED = 6                   # a worker is done with `work`, which the mail's reader has to free
    MAIL_NAMES = 7                    # `answer` holds the names of the client's software

# How the control plane has served a request.
cdef struct Service:
    int64_t begun_ns                  # 0: it doesn't say; all since the request came was work
    int64_t local_ns                  # of its work since then
    int64_t done_ns
    uint32_t topic                    # of requesttimes.pxd's Timing

cdef struct Mail:
    MailKind kind
    uint32_t place
    uint32_t generation
    uint32_t request                  # low 16 bits of the slot's running number
    int32_t listener
    Reason reason                     # of MAIL_CLOSE, whose detail in words is in `answer`
    int fd
    int64_t sent
    int64_t ready                     # bytes behind those that are in memory
    BatchPlace follows                # where the next fetch begins; `position` -1: nobody knows
    bint full                         # the peer takes no more for now
    bint unreadable                   # of coldreader.pxd
    Work* work
    Writer answer                     # with its size in front
    Service service                   # of MAIL_ANSWER
    ProduceWait* acks                 # the same: what has to happen before it is sent; NULL: nothing
    size_t name_bytes                 # of MAIL_NAMES: the version is behind them
    char peer[PEER_BYTES]
    Mail* next

# Partitions that grew or were stopped while a fetch of the reactor waited for them; each is retained.
cdef struct Moved:
    Partition** partitions
    int32_t n
    int32_t capacity
    bint all                          # there was no memory to say which

cdef struct Mailbox:
    const void* plane                 # whose reactor's it is; tokens of another one mean nothing. NULL: nobody's
    pthread_t thread
    int32_t running                   # atomic: `thread` reads it
    int32_t wake                      # atomic: there is mail, or something moved, or a flag of the reactor changed
    int wake_fd
    pthread_mutex_t lock              # what follows
    Mail* first
    Mail* last
    Moved moved
    # The thread's own.
    uint64_t to_wake                  # reactors that have to hear of what moved once this turn's answers are sent

# The mailbox of the reactor with that id, once and for good. False: there is no descriptor.
cdef bint mailbox_open(Mailbox* box, int32_t reactor) noexcept nogil
# Frees what came after its thread had ended.
cdef void mailbox_clear(Mailbox* box) noexcept nogil

# The calling thread reads it from now on, and no longer.
cdef void mailbox_enter(Mailbox* box) noexcept nogil
cdef void mailbox_leave(Mailbox* box) noexcept nogil

cdef void mailbox_wake(Mailbox* box) noexcept nogil
# At the end of a turn: wakes the reactors whose fetches the turn's appends complete. The producers are answered first:
# else, with a processor too few, those fetches are served before the produce answer is sent.
cdef void wake_others(Mailbox* box) noexcept nogil
cdef void mail_post(Mailbox* box, Mail* mail) noexcept nogil      # takes the mail
# Sends mail to the reactor of a token; takes `answer` (freed when the token means nothing). False: no such reactor.
cdef bint token_post(const void* plane, uint64_t token, MailKind kind, Writer* answer) noexcept nogil
# The same for MAIL_ANSWER; the service is done now. Takes `acks` (or NULL), too.
cdef bint token_answer(
    const void* plane, uint64_t token, Writer* answer, ProduceWait* acks, const Service* service
) noexcept nogil
# And for MAIL_NAMES.
cdef bint token_name(const void* plane, uint64_t token, Writer* names, size_t name_bytes) noexcept nogil

# The same for MAIL_CLOSE; takes `detail`, too.
cdef bint token_close(const void* plane, uint64_t token, Reason why, Writer* detail) noexcept nogil

# A job that a worker sends back to this mailbox. False: no memory.
cdef bint work_address(Work* work, Mailbox* box, uint32_t place, uint32_t generation, uint32_t number) noexcept nogil

# The hooks of the reader pool and of the workers (a job's owner is a mailbox), and the logs'.
cdef void on_read(const ReaderJob* job) noexcept nogil
cdef void on_worked(Work* work) noexcept nogil
cdef void on_partition_moved(Partition* p, uint64_t mask) noexcept nogil


cdef inline uint64_t token_pack(
    int32_t reactor, uint32_t place, uint32_t generation, uint32_t request
) noexcept nogil:
    return (
        (<uint64_t>reactor << 58)
        | (<uint64_t>place << 36)
        | (<uint64_t>(generation & GENERATION_MASK) << 16)
        | (request & REQUEST_MASK)
    )


# A connection's number, which all tokens of its requests have.
cdef inline uint64_t token_connection(uint64_t token) noexcept nogil:
    return token >> 16


# All mail, oldest first, as a list that the caller frees one by one.
cdef inline Mail* mail_take(Mailbox* box) noexcept nogil:
    cdef Mail* first
    pthread_mutex_lock(&box.lock)
    first = box.first
    box.first = NULL
    box.last = NULL
    pthread_mutex_unlock(&box.lock)
    return first


# All that moved; the list goes back to be filled again.
cdef inline Moved moved_take(Mailbox* box) noexcept nogil:
    cdef Moved taken
    pthread_mutex_lock(&box.lock)
    taken = box.moved
    memset(&box.moved, 0, sizeof(Moved))
    pthread_mutex_unlock(&box.lock)
    return taken


cdef inline void moved_give_back(Mailbox* box, const Moved* taken) noexcept nogil:
    cdef Partition** partitions = taken.partitions
    pthread_mutex_lock(&box.lock)
    if box.moved.partitions == NULL and taken.capacity <= MOVED_KEPT:
        box.moved.partitions = partitions
        box.moved.capacity = taken.capacity
        partitions = NULL
    pthread_mutex_unlock(&box.lock)
    free(partitions)
