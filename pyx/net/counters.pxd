"""What a network thread counts. `SENTENCES` of broker/upkeep/watch.py names those that an operator sees."""

from libc.stdint cimport int64_t

from penstock.pyx.net.closures cimport Reason

# Of one reactor; plain numbers, written by its thread only and read by anybody.
cdef struct Counters:
    int64_t connections
    int64_t connections_accepted
    int64_t connections_closed
    int64_t closed_idle
    # By closures.pxd's Reason, in its order:
    int64_t closed_memory_short       # held memory for requests that others needed, and brought too little
    int64_t closed_slow_request       # a frame that took too long to come
    int64_t closed_slow_reader        # answers that weren't taken
    int64_t closed_address_limit      # at once, as their address has too many
    int64_t closed_tls
    int64_t closed_http
    int64_t closed_request_size
    int64_t closed_malformed
    int64_t closed_unsupported
    int64_t closed_unacknowledged
    int64_t closed_failed
    int64_t closed_fault
    # Others again:
    int64_t accepts_delayed           # times when nothing was accepted because of a limit
    int64_t accepts_without_descriptor  # times when it was because the process has too few descriptors
    int64_t requests
    int64_t requests_produce
    int64_t requests_fetch
    int64_t produces_held             # until the move of a partition was over
    int64_t produces_held_ms          # for how long, all of them together
    int64_t requests_control
    int64_t worked                    # jobs that were given to workers
    int64_t answers_late
    int64_t bytes_in
    int64_t bytes_out
    int64_t fetch_bytes
    int64_t fetch_errors
    int64_t fetch_waits
    int64_t fetch_sessions_made
    int64_t fetch_partitions_asked    # named by requests, not those that their sessions remember
    int64_t cold_ranges
    int64_t stalls


cdef inline void counters_closed(Counters* counters, Reason why) noexcept nogil:
    """One more connection was closed for that."""
    (&counters.closed_memory_short)[<int>why] += 1


# Adds one reactor's to those of a plane.
cdef inline void counters_add(Counters* total, const Counters* one) noexcept nogil:
    cdef size_t field
    for field in range(sizeof(Counters) // sizeof(int64_t)):
        (<int64_t*>total)[field] += (<const int64_t*>one)[field]
