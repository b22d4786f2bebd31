"""New connections: accepted by the first reactor, as far as admission.pxd lets them in, and given to each in turn."""

from libc.stdint cimport int32_t

from penstock.pyx.net.plane cimport Reactor

# Accepts from one of the reactor's listeners; `accept_ms` says when to go on, if that isn't all.
cdef void accept_all(Reactor* r, int32_t listener) noexcept nogil
