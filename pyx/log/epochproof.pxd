"""Whether what `leader-epoch-checkpoint` says (epochs.pxd) is what the batches say, and learning it from them.

The file has no checksum of its own, but each entry can be held against two batches: the one that begins where the
entry does, and the one before it. Batches carry their leader epochs, which only grow, so a whole log is learned from
the first batch of each segment and the headers of those segments in which the epoch grew.
"""

from penstock.pyx.log.logstate cimport LogState

# Of a recovered log. One that is compacted has fewer batches than it had epochs.
cdef bint epochs_agree(LogState* log) noexcept nogil
# Entries of the batches in place of what there is.
cdef void epochs_learn(LogState* log) noexcept nogil
