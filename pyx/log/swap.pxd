"""New files for a group of old segments, so that a crash at any moment leaves the old ones or the new one.

The cleaned segment is written beside the old ones and synced:  <base>.log.cleaned, .index.cleaned, .timeindex.cleaned,
.txnindex.cleaned (that one always, maybe empty), .checks.cleaned. Then, one file after the other:

    1. <base>.X.cleaned -> <base>.X.swap      the .log last; the folder is synced
    2. the other old segments' files are removed (indexes first)
    3. <base>.X.swap -> <base>.X              over the old ones, the .log last; the folder is synced
    4. an empty .txnindex is removed

After a crash a `.log.swap` says that the new segment is whole. Recovery proves that by its batches and its .checks, and
goes on with 2 for old segments that begin within the new one, and with 3. Without it, `.cleaned` and `.swap` files are
nothing and are removed. An old segment past the new one's last record may stay then: it is whole, and is compacted
again. Names and meaning are Kafka's, so a folder in any of these states is right for Kafka as well.
"""

from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.log.damage cimport Damage
from penstock.pyx.log.segment cimport Segment

cdef enum FileStepKind:
    STEP_RENAME = 0                    # source -> target
    STEP_REMOVE = 1                    # source, if it is there
    STEP_SYNC = 2                      # the folder

cdef struct FileStep:
    int kind
    string source
    string target

# The steps that put the cleaned segment of `stem` in the place of the `old` ones (the first has the same stem). The
# number of steps after which there is no way back but forward goes to `committed`.
cdef void swap_steps(
    const string& stem, const vector[Segment*]& old, bint empty_txnindex, vector[FileStep]& out, size_t* committed
) noexcept nogil
# 0 or errno. `folder_fd`: the folder, open: a step needs no descriptor of its own, as there may be none.
cdef int swap_step(const FileStep* step, int folder_fd) noexcept nogil
# Whether a step that failed so is tried again: it changed nothing, and the disk can be believed. A failed sync isn't.
cdef bint swap_again(const FileStep* step, int error) noexcept nogil
# Removes a cleaned segment's files that were not swapped in.
cdef void swap_undo(const string& stem) noexcept nogil
# What a crash has left half done in a partition's folder; before its segments are listed. 0, LOG_CORRUPT (the new
# segment isn't what was written: nothing is changed for it) or errno.
cdef int swap_recover(const string& folder, Damage* damage) noexcept nogil
