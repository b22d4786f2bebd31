"""Which logs a broker leads, and the folders that they lie in: what `logmanager.pyx` works with.

A partition's lock is taken without the GIL only, and nothing of Python runs under it: a write that hangs under it would
hold up every thread, and a thread that waits for it with the GIL would wait for one that has it and needs the GIL.
"""

from libc.stdint cimport int64_t

from penstock.pyx.log.endslots cimport EndSlots
from penstock.pyx.log.partition cimport LogSetOwner, Partition
from penstock.pyx.log.partitionlog cimport LogFolder, PartitionLog
from penstock.pyx.log.recovery cimport RecoveryReport

# A log folder: its checkpoint files, the slots with the ends of its logs, and what all its partitions share.
cdef class Folder:
    cdef LogFolder* shared
    cdef readonly object checkpoints
    cdef EndSlots ends
    # What is known of a log that isn't there any more.
    cdef object forget(self, tuple key)


# Holds the set's reference of a led partition, and what Python knows of it.
cdef class LeaderEntry:
    cdef Partition* partition
    cdef PartitionLog* p               # the same, seen from inside
    cdef Folder folder                 # None while it isn't open
    cdef dict config
    cdef tuple key


cdef class LogTable(LogSetOwner):
    # Of the tables below. The loop takes it, so nobody waits for a disk under it, nor for a partition's lock.
    cdef object lock
    cdef object loading                # one folder's checkpoints are read at a time
    cdef dict led                      # (topic, partition) -> LeaderEntry
    cdef object opening                # those that are on their way into `led`
    cdef dict announced                # (topic, partition) -> LeaderEntry of those that aren't open
    cdef dict retired                  # (topic, partition) -> LeaderEntry of those nobody finds, until they are deleted
    cdef dict folders                  # path -> Folder
    cdef readonly int news_fd
    cdef readonly int entrants_fd
    cdef readonly int moved_fd
    cdef readonly object rebuilt_indexes       # segments whose index files were wrong
    cdef readonly object damaged_segments      # those in which batches are missing or can't be read
    cdef int64_t walked                # atomic; bytes that openings have walked

    # Raises KafkaError for what isn't led, or isn't open.
    cdef LeaderEntry find(self, str topic, int partition)
    # The same for what has waited, when another topic may have the name.
    cdef LeaderEntry find_id(self, str topic, bytes topic_id, int partition)
    # Opens, or makes, a log, whose role then is ROLE_LEADER, or (with `leads` False) ROLE_FENCED.
    cdef object open(
        self, str topic, bytes topic_id, int partition, int leader_epoch, str folder, dict config, bint clean, bint new,
        bint power_cut, bint leads
    )
    # Made when it is asked for first.
    cdef Folder folder(self, str path)
    # Give a partition's offsets to its folder's checkpoints (in memory), unless it isn't led any more: what a delete
    # has dropped must not come back, a later topic of the name would begin with it.
    cdef object note(self, LeaderEntry led)
    cdef object _put(self, LeaderEntry led)
    cdef object _take_amendment(self, LeaderEntry led, object by)
    # Without the lock of the tables. Raises OSError.
    cdef object _settle(self, LeaderEntry led, int64_t number)
    cdef object _check_start(self, LeaderEntry led, object known, RecoveryReport* report)
    # Log what its files have turned out to be. With nothing to say it costs a lock.
    cdef object say(self, LeaderEntry led)
    cdef LeaderEntry _take_out(self, str topic, int partition, LeaderEntry place=*)


cdef object raise_os(int number, object what)
