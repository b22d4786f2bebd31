"""How other threads reach a reactor: mail, the list of partitions that moved, and one eventfd for both."""

from libc.stdint cimport uint64_t

from penstock.pyx.log.partition cimport Partition
from penstock.pyx.net.coldreader cimport ReaderJob
from penstock.pyx.net.plane cimport Mail, MailKind, Plane, Reactor
from penstock.pyx.record.frame cimport Writer

# A reactor that no plane has, with the lowest free id; NULL when there is none. Given back it may be taken again.
cdef Reactor* reactor_take(Plane* plane) noexcept nogil
cdef void reactor_give_back(Reactor* r) noexcept nogil

cdef void reactor_wake(Reactor* r) noexcept nogil
# The calling thread is the reactor's from now on; NULL: nobody's.
cdef void reactor_enter(Reactor* r) noexcept nogil
# At the end of a turn: wakes whom the turn's appends concern. Who appended hears of it first: else, with a processor
# too few, the consumers that they wake are served before the answer is sent.
cdef void wake_others(Reactor* r) noexcept nogil
cdef void mail_post(Reactor* r, Mail* mail) noexcept nogil       # takes the mail
# Sends mail to the reactor of a token; takes `answer` (freed when the token means nothing). False: no such reactor.
cdef bint token_post(Plane* plane, uint64_t token, MailKind kind, Writer* answer) noexcept nogil

# The reader pool's hook, and the logs'.
cdef void on_read(const ReaderJob* job) noexcept nogil
cdef void on_partition_moved(Partition* p, uint64_t mask) noexcept nogil
