"""A gate that threads pass between two pieces of work. Only a test closes it, to pause a broker of its process."""

from libc.stdint cimport int32_t

from penstock.pyx.linux.posix cimport (
    atomic_load32, atomic_store32, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_t,
    pthread_cond_wait, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t,
    pthread_mutex_unlock,
)

cdef struct Gate:
    pthread_mutex_t lock
    pthread_cond_t changed
    int32_t closed                    # atomic
    int32_t waiting                   # threads at a closed one


cdef inline void gate_new(Gate* gate) noexcept nogil:
    """An open one, in memory that is zero."""
    pthread_mutex_init(&gate.lock, NULL)
    pthread_cond_init(&gate.changed, NULL)


cdef inline void gate_free(Gate* gate) noexcept nogil:
    """When no thread comes to it any more."""
    pthread_cond_destroy(&gate.changed)
    pthread_mutex_destroy(&gate.lock)


cdef inline void gate_pass(Gate* gate) noexcept nogil:
    """Waits for as long as it is closed."""
    if not atomic_load32(&gate.closed):
        return
    pthread_mutex_lock(&gate.lock)
    gate.waiting += 1
    pthread_cond_broadcast(&gate.changed)
    while atomic_load32(&gate.closed):
        pthread_cond_wait(&gate.changed, &gate.lock)
    gate.waiting -= 1
    pthread_mutex_unlock(&gate.lock)


cdef inline void gate_close(Gate* gate) noexcept nogil:
    """The caller then wakes the threads, so that they come to it."""
    atomic_store32(&gate.closed, 1)


cdef inline void gate_await(Gate* gate, int32_t threads) noexcept nogil:
    """Until so many threads wait at it, or somebody opens it."""
    pthread_mutex_lock(&gate.lock)
    while atomic_load32(&gate.closed) and gate.waiting < threads:
        pthread_cond_wait(&gate.changed, &gate.lock)
    pthread_mutex_unlock(&gate.lock)


cdef inline void gate_open(Gate* gate) noexcept nogil:
    """Lets all of them go on."""
    pthread_mutex_lock(&gate.lock)
    atomic_store32(&gate.closed, 0)
    pthread_cond_broadcast(&gate.changed)
    pthread_mutex_unlock(&gate.lock)
