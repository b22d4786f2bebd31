# A reactor's waiting fetches, on its list and on its heap of deadlines.
from penstock.pyx.fetch cimport FetchJob
from penstock.pyx.plane cimport Reactor

cdef bint park(Reactor* r, FetchJob* job) noexcept nogil          # True also when it waits already; False: no memory
cdef void unpark(Reactor* r, FetchJob* job) noexcept nogil        # safe on a job that doesn't wait
