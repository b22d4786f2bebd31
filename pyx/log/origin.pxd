"""Who appends: it decides what is checked."""

cdef enum Origin:
    CLIENT = 0                         # a producer: all is checked, sequences too; control batches are refused
    COORDINATOR = 1                    # this broker's coordinators: control batches allowed, magic 2 only, no sequences
    REPLICA = 2                        # the leader's bytes, or the log's own at recovery: offsets and epochs stay
    VERIFIED = 3                       # a producer whose transaction the coordinator has just been asked about
    ADDED = 4                          # the same with transactions v2: the coordinator has added the partition to it
    MARKER = 5                         # a marker of transactions v2: its epoch is above that of its records

cdef inline bint from_client(Origin origin) noexcept nogil:
    return origin == CLIENT or origin == VERIFIED or origin == ADDED

# Appended on the control plane's loop, which waits for no flush: whoever appends so flushes before it answers.
cdef inline bint flushed_by_caller(Origin origin) noexcept nogil:
    return origin == VERIFIED or origin == ADDED

cdef inline bint from_coordinator(Origin origin) noexcept nogil:
    return origin == COORDINATOR or origin == MARKER
