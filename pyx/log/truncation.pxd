"""Cutting a log that is open. A follower's log loses what its leader's hasn't, or all of it; nobody else's is ever cut.

The log goes on in a new segment, so no byte of a range that was handed out is ever written again. Whoever reads from a
segment that goes reads on; a range of the segment that is cut comes up short, and its connection is closed. (Records
written in place could pass a follower's checks: two histories, both "in sync".)

Order of calls:  truncation_open -> truncation_plan or truncation_plan_whole -> truncation_take
                 -> truncation_step until `step` is CUT_ENDED -> truncation_close

truncation_open takes `cleaning` and `upkeep` (partitionlog.pxd), which are held until truncation_close. The plan walks
headers and writes the amendment beside its place, without the partition's lock. truncation_take changes all that is in
memory, under the lock, and from then on appends are refused. The steps change the files, in an order in which a crash
at any moment leaves the log before the cut or after it:

    1. the amendment (amendment.py) gets its name: from here on the next start finishes the cut
    2. segments behind the cut go, the newest first
    3. the last one that stays is shortened and synced
    4. snapshots of producers behind the cut go
    5. the new segment is made
    6. the epochs are written
    7. the folder is synced
    8. the amendment says that it is done
"""

from libc.stdint cimport int64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.log.followerask cimport FollowerAsk
from penstock.pyx.log.logstate cimport LogState
from penstock.pyx.log.partitionlog cimport Amendment, PartitionLog
from penstock.pyx.log.segment cimport DeletedFile, Segment

cdef enum CutStep:
    CUT_NOTE = 0
    CUT_RETIRE = 1
    CUT_SHORTEN = 2
    CUT_PRODUCERS = 3
    CUT_BEGIN = 4
    CUT_EPOCHS = 5
    CUT_SYNC = 6
    CUT_FINISH = 7
    CUT_ENDED = 8

cdef enum TakeResult:
    TAKE_DONE = 0
    TAKE_NOTHING = 1                   # the log doesn't go as far
    TAKE_STALE = 2                     # the partition isn't what the caller asked for any more, or it was stopped
    TAKE_REFUSED = 3                   # below the high watermark: the replica is ROLE_OFFLINE now, with all its bytes
    TAKE_OFFLINE = 4                   # its disk has failed

cdef struct Truncation:
    int64_t now_ms
    int64_t end                        # where the log ends after it
    int64_t log_start
    int64_t committed                  # the high watermark after it; -1: it stays, or goes down to `end`
    int64_t kept_bytes                 # of the last segment that stays
    size_t kept                        # how many segments stay
    Segment* last                      # the last one that stays, with a reference; NULL: none
    Segment* seen                      # what the walk has found of it; in `walked`
    Segment* fresh                     # the one in which the log goes on
    LogState walked
    vector[Segment*] gone
    vector[DeletedFile] trash
    Amendment amendment
    int step                           # CutStep: the next one
    bint taken

cdef void truncation_open(PartitionLog* p, Truncation* t, int64_t now_ms) noexcept nogil
# The log is to end at `offset`, or where the batch begins that holds it. 0 or errno: then truncation_close is next.
cdef int truncation_plan(PartitionLog* p, Truncation* t, int64_t offset) noexcept nogil
# All of the log is to go; it begins again at `end`, with that log start and high watermark.
cdef int truncation_plan_whole(
    PartitionLog* p, Truncation* t, int64_t end, int64_t log_start, int64_t committed
) noexcept nogil
# `ask`: it has to fit still, and the high watermark counts; NULL: the caller knows what he does. A TakeResult.
cdef int truncation_take(PartitionLog* p, Truncation* t, const FollowerAsk* ask) noexcept nogil
# 0 or errno: the partition is offline then, and the next start finishes the cut.
cdef int truncation_step(PartitionLog* p, Truncation* t) noexcept nogil
cdef void truncation_close(PartitionLog* p, Truncation* t) noexcept nogil

# With `upkeep` held: say on the disk that the log may have holes between its batches. 0 or errno.
cdef int amend_holes(PartitionLog* p) noexcept nogil
