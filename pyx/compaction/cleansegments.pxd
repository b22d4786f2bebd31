"""The second half of a compaction pass: what stays. Kafka's rules (KIP-58, KIP-98, KIP-354, KIP-534).

What stays of a record at or below `latest`: it has a key, no newer record has it, and it isn't a tombstone (a null
value) whose batch's delete horizon has passed. Offsets, order and timestamps stay. A batch of which something stays
keeps its base offset, last offset delta, producer fields and codec. One that loses all its records goes, unless it is
the last of a producer that the log still knows (its sequence must not be forgotten) or the last of the range: then
its header stays.

The delete horizon (KIP-534): the first pass that finds a tombstone to be the newest of its key, or a marker to be all
that is left of its transaction, writes now + delete.retention.ms into the batch: attribute bit 6 says that the base
timestamp is this horizon, timestamp deltas are then counted from it. Messages of magic 0 and 1 have no room for it:
their tombstones go by the age of their segment's file, as in Kafka.

Transactions: data of aborted ones goes at once. The marker stays until a pass that saw no data of its transaction,
and then until its horizon. The index of aborted transactions has an entry for as long as the marker stays.
"""

from libc.stdint cimport int64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.compaction.cleaning cimport Cleaning
from penstock.pyx.log.segment cimport Segment

# What stays of the group as `<stem of the first>.X.cleaned`, synced, and as a sealed segment that reads those files
# already. `changed`: False if nothing went (the files are then of no use). Before the first one of a pass: track_begin.
cdef int clean_segments(
    Cleaning* c, const string& folder, const vector[Segment*]& group, int64_t next_base, Segment** out, bint* changed
) noexcept nogil
