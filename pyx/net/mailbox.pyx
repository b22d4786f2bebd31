"""How other threads reach a reactor; see mailbox.pxd."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from penstock.pyx.log.partition cimport Partition, partition_retain
from penstock.pyx.net.coldreader cimport ReaderJob
from penstock.pyx.net.plane cimport (
    GENERATION_MASK, MAIL_READ, PLACE_MASK, REACTORS_MAX, REQUEST_MASK, Mail, MailKind, Plane, Reactor,
)
from penstock.pyx.posix cimport (
    atomic_load32, atomic_swap32, calloc, eventfd_write, lowest_bit, memset, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_t, pthread_mutex_unlock, pthread_self, realloc,
)
from penstock.pyx.record.frame cimport Writer, writer_free

cdef extern from *:
    """
    static thread_local void* mine;
    """
    void* mine                                        # the Reactor whose thread this is, if it is one's

# Every reactor that was ever made, by id; the hook reads it without a lock.
cdef Reactor* _reactors[REACTORS_MAX]
cdef pthread_mutex_t _table_lock
pthread_mutex_init(&_table_lock, NULL)


cdef Reactor* reactor_take(Plane* plane) noexcept nogil:
    """A reactor that no plane has, with the lowest free id; NULL when there is none."""
    cdef Reactor* r = NULL
    cdef int32_t i
    pthread_mutex_lock(&_table_lock)
    for i in range(REACTORS_MAX):
        if _reactors[i] == NULL:
            r = <Reactor*>calloc(1, sizeof(Reactor))
            if r == NULL:
                break
            r.id = i
            r.wake_fd = -1
            r.epoll = -1
            pthread_mutex_init(&r.lock, NULL)
            _reactors[i] = r
        elif not _reactors[i].taken:
            r = _reactors[i]
        if r != NULL:
            r.taken = True
            break
    pthread_mutex_unlock(&_table_lock)
    return r


cdef void reactor_give_back(Reactor* r) noexcept nogil:
    pthread_mutex_lock(&_table_lock)
    r.plane = NULL
    r.epoll = -1
    r.taken = False
    pthread_mutex_unlock(&_table_lock)


cdef void reactor_wake(Reactor* r) noexcept nogil:
    """Makes the thread look at its flags and mailbox. Its own calls need no event: it looks before it sleeps."""
    if atomic_swap32(&r.wake, 1) == 0 and not (atomic_load32(&r.running) and r.thread == pthread_self()):
        eventfd_write(r.wake_fd, 1)


cdef void reactor_enter(Reactor* r) noexcept nogil:
    global mine
    mine = r


cdef void wake_others(Reactor* r) noexcept nogil:
    cdef int32_t i
    while r.to_wake:
        i = lowest_bit(r.to_wake)
        r.to_wake &= r.to_wake - 1
        reactor_wake(_reactors[i])


cdef void note_moved(Reactor* r, Partition* p) noexcept nogil:
    cdef Partition** grown
    cdef int32_t capacity
    pthread_mutex_lock(&r.lock)
    if r.moved_n == r.moved_capacity:
        capacity = r.moved_capacity * 2 + 64
        grown = <Partition**>realloc(r.moved, <size_t>capacity * sizeof(Partition*))
        if grown != NULL:
            r.moved = grown
            r.moved_capacity = capacity
    if r.moved_n < r.moved_capacity:
        partition_retain(p)
        r.moved[r.moved_n] = p
        r.moved_n += 1
    else:
        r.moved_all = True
    pthread_mutex_unlock(&r.lock)


cdef void on_partition_moved(Partition* p, uint64_t mask) noexcept nogil:
    """The log's wake hook. A bit may be of a thread that has ended since it waited."""
    cdef int32_t i
    while mask:
        i = lowest_bit(mask)
        mask &= mask - 1
        if _reactors[i] != NULL and atomic_load32(&_reactors[i].running):
            note_moved(_reactors[i], p)
            if mine != NULL:
                (<Reactor*>mine).to_wake |= <uint64_t>1 << i
            else:
                reactor_wake(_reactors[i])


cdef void mail_post(Reactor* r, Mail* mail) noexcept nogil:
    mail.next = NULL
    pthread_mutex_lock(&r.lock)
    if r.mail_last == NULL:
        r.mail_first = mail
    else:
        r.mail_last.next = mail
    r.mail_last = mail
    pthread_mutex_unlock(&r.lock)
    reactor_wake(r)


cdef void on_read(const ReaderJob* job) noexcept nogil:
    """The reader pool's hook. Without memory for the mail the connection stays parked until it is swept as idle."""
    cdef Mail* mail = <Mail*>calloc(1, sizeof(Mail))
    if mail != NULL:
        mail.kind = MAIL_READ
        mail.place = job.place
        mail.generation = job.generation
        mail.sent = -1 if job.failed else job.sent
        mail.ready = job.ready - job.sent
        mail.follows = job.follows
        mail.full = job.full
        mail_post(<Reactor*>job.owner, mail)


cdef bint token_post(Plane* plane, uint64_t token, MailKind kind, Writer* answer) noexcept nogil:
    cdef Reactor* r = _reactors[token >> 58]
    cdef Mail* mail
    if r == NULL or r.plane != plane:
        writer_free(answer)
        return False
    mail = <Mail*>calloc(1, sizeof(Mail))
    if mail == NULL:
        writer_free(answer)
        return False
    mail.kind = kind
    mail.place = <uint32_t>(token >> 36) & PLACE_MASK
    mail.generation = <uint32_t>(token >> 16) & GENERATION_MASK
    mail.request = <uint32_t>token & REQUEST_MASK
    mail.answer = answer[0]
    memset(answer, 0, sizeof(Writer))
    mail_post(r, mail)
    return True
