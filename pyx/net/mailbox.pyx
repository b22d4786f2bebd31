"""How other threads reach a network thread; see mailbox.pxd."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from penstock.pyx.linux.posix cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, atomic_load32, atomic_store32, atomic_swap32, calloc, close, eventfd, eventfd_write,
    free, lowest_bit, malloc, memset, monotonic_ns, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
    pthread_self, realloc,
)
from penstock.pyx.log.partition cimport Partition, partition_release, partition_retain
from penstock.pyx.net.closures cimport Reason
from penstock.pyx.net.coldreader cimport ReaderJob
from penstock.pyx.net.workers cimport Work, work_free
from penstock.pyx.record.frame cimport Writer, writer_free
from penstock.pyx.request.acks cimport ProduceWait, acks_free

cdef extern from *:
    """
    static thread_local void* mine;
    """
    void* mine                                        # the Mailbox that this thread reads, if it reads one

# Every mailbox that was ever opened, by its reactor's id; read without a lock.
cdef Mailbox* _mailboxes[REACTORS_MAX]


cdef bint mailbox_open(Mailbox* box, int32_t reactor) noexcept nogil:
    memset(box, 0, sizeof(Mailbox))
    pthread_mutex_init(&box.lock, NULL)
    box.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    if box.wake_fd < 0:
        return False
    _mailboxes[reactor] = box
    return True


cdef void mailbox_clear(Mailbox* box) noexcept nogil:
    cdef Mail* mail = mail_take(box)
    cdef Mail* after
    cdef Moved moved = moved_take(box)
    cdef int32_t i
    while mail != NULL:
        after = mail.next
        if mail.kind == MAIL_SOCKET:
            close(mail.fd)
        if mail.kind == MAIL_WORKED:
            work_free(mail.work)
        writer_free(&mail.answer)
        acks_free(mail.acks)
        free(mail)
        mail = after
    for i in range(moved.n):
        partition_release(moved.partitions[i])
    moved_give_back(box, &moved)


cdef void mailbox_enter(Mailbox* box) noexcept nogil:
    global mine
    box.thread = pthread_self()
    mine = box
    atomic_store32(&box.running, 1)


cdef void mailbox_leave(Mailbox* box) noexcept nogil:
    global mine
    mine = NULL
    atomic_store32(&box.running, 0)


cdef void mailbox_wake(Mailbox* box) noexcept nogil:
    """Makes the thread look at its flags and mailbox. Its own calls need no event: it looks before it sleeps."""
    if atomic_swap32(&box.wake, 1) == 0 and not (atomic_load32(&box.running) and box.thread == pthread_self()):
        eventfd_write(box.wake_fd, 1)


cdef void wake_others(Mailbox* box) noexcept nogil:
    cdef int32_t i
    while box.to_wake:
        i = lowest_bit(box.to_wake)
        box.to_wake &= box.to_wake - 1
        mailbox_wake(_mailboxes[i])


cdef void _note_moved(Mailbox* box, Partition* p) noexcept nogil:
    cdef Partition** grown
    cdef int32_t capacity
    pthread_mutex_lock(&box.lock)
    if box.moved.n == box.moved.capacity:
        capacity = box.moved.capacity * 2 + 64
        grown = <Partition**>realloc(box.moved.partitions, <size_t>capacity * sizeof(Partition*))
        if grown != NULL:
            box.moved.partitions = grown
            box.moved.capacity = capacity
    if box.moved.n < box.moved.capacity:
        partition_retain(p)
        box.moved.partitions[box.moved.n] = p
        box.moved.n += 1
    else:
        box.moved.all = True
    pthread_mutex_unlock(&box.lock)


cdef void on_partition_moved(Partition* p, uint64_t mask) noexcept nogil:
    """The log's wake hook. A bit may be of a thread that has ended since it waited."""
    cdef int32_t i
    while mask:
        i = lowest_bit(mask)
        mask &= mask - 1
        if _mailboxes[i] != NULL and atomic_load32(&_mailboxes[i].running):
            _note_moved(_mailboxes[i], p)
            if mine != NULL:
                (<Mailbox*>mine).to_wake |= <uint64_t>1 << i
            else:
                mailbox_wake(_mailboxes[i])


cdef void mail_post(Mailbox* box, Mail* mail) noexcept nogil:
    mail.next = NULL
    pthread_mutex_lock(&box.lock)
    if box.last == NULL:
        box.first = mail
    else:
        box.last.next = mail
    box.last = mail
    pthread_mutex_unlock(&box.lock)
    mailbox_wake(box)


cdef void on_read(const ReaderJob* job) noexcept nogil:
    """The reader pool's hook. Without memory for the mail the connection stays lent: one with a piece until it is swept
    as idle, one whose fetch waits for a range until its peer closes it."""
    cdef Mail* mail = <Mail*>calloc(1, sizeof(Mail))
    if mail != NULL:
        mail.kind = MAIL_READ
        mail.place = job.place
        mail.generation = job.generation
        mail.sent = -1 if job.failed else job.sent
        mail.unreadable = job.unreadable
        mail.ready = job.ready - job.sent
        mail.follows = job.follows
        mail.full = job.full
        mail_post(<Mailbox*>job.owner, mail)


cdef bint work_address(Work* work, Mailbox* box, uint32_t place, uint32_t generation, uint32_t number) noexcept nogil:
    work.owner = box
    work.place = place
    work.generation = generation
    work.number = number
    work.mail = calloc(1, sizeof(Mail))
    return work.mail != NULL


cdef void on_worked(Work* work) noexcept nogil:
    cdef Mail* mail = <Mail*>work.mail
    work.mail = NULL
    mail.kind = MAIL_WORKED
    mail.place = work.place
    mail.generation = work.generation
    mail.work = work
    mail_post(<Mailbox*>work.owner, mail)


cdef bint _token_post(const void* plane, uint64_t token, const Mail* sketch, Writer* answer) noexcept nogil:
    """`sketch` has what the token doesn't say."""
    cdef Mailbox* box = _mailboxes[token >> 58]
    cdef Mail* mail
    if box == NULL or box.plane != plane:
        writer_free(answer)
        return False
    mail = <Mail*>malloc(sizeof(Mail))
    if mail == NULL:
        writer_free(answer)
        return False
    mail[0] = sketch[0]
    mail.place = <uint32_t>(token >> 36) & PLACE_MASK
    mail.generation = <uint32_t>(token >> 16) & GENERATION_MASK
    mail.request = <uint32_t>token & REQUEST_MASK
    mail.answer = answer[0]
    memset(answer, 0, sizeof(Writer))
    mail_post(box, mail)
    return True


cdef bint token_post(const void* plane, uint64_t token, MailKind kind, Writer* answer) noexcept nogil:
    cdef Mail sketch
    memset(&sketch, 0, sizeof(Mail))
    sketch.kind = kind
    return _token_post(plane, token, &sketch, answer)


cdef bint token_answer(
    const void* plane, uint64_t token, Writer* answer, ProduceWait* acks, const Service* service
) noexcept nogil:
    cdef Mail sketch
    memset(&sketch, 0, sizeof(Mail))
    sketch.kind = MAIL_ANSWER
    sketch.service = service[0]
    sketch.service.done_ns = monotonic_ns()
    sketch.acks = acks
    if not _token_post(plane, token, &sketch, answer):
        acks_free(acks)
        return False
    return True


cdef bint token_name(const void* plane, uint64_t token, Writer* names, size_t name_bytes) noexcept nogil:
    cdef Mail sketch
    memset(&sketch, 0, sizeof(Mail))
    sketch.kind = MAIL_NAMES
    sketch.name_bytes = name_bytes
    return _token_post(plane, token, &sketch, names)


cdef bint token_close(const void* plane, uint64_t token, Reason why, Writer* detail) noexcept nogil:
    cdef Mail sketch
    memset(&sketch, 0, sizeof(Mail))
    sketch.kind = MAIL_CLOSE
    sketch.reason = why
    return _token_post(plane, token, &sketch, detail)
