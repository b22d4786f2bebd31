"""Bytes of a .log file that are no right batch, and what lies behind them.

A write that was cut short (kill -9, a power cut) has nothing right behind it. Where a whole batch follows, with a
checksum that is right and an offset that fits, the disk has changed what was there: such bytes aren't cut off in
silence. Whatever is cut off lies beside the segment from then on, as `<base offset>.log.cut-<position>`.
"""

from libc.stdint cimport int64_t
from libcpp.string cimport string

from penstock.pyx.record.batch cimport BatchHeader

cdef enum:
    LOG_CORRUPT = 1 << 21              # where else an errno stands: `Damage` says what is wrong

cdef enum DamageKind:
    DAMAGE_BYTES = 0                   # bytes of a file, or what lies between two batches
    DAMAGE_BEGIN = 1                   # the log begins later than it did, and nobody has deleted anything
    DAMAGE_END = 2                     # it ends earlier than it did
    DAMAGE_MIDDLE = 3                  # segments, or bytes at the end of one, are gone between others

# Offsets that a log should have and hasn't, or can't read.
cdef struct Damage:
    int kind
    int64_t base_offset                # of the segment
    int64_t position                   # in its .log
    int64_t first_offset
    int64_t next_offset                # the first one that is there again; -1: none
    bint swap                          # of the file that compaction was putting in the segment's place

# The first whole batch of magic 2 at or after `position` whose checksum is right and whose offsets lie from `least` to
# `most`. WALK_BATCH, WALK_END (there is none), WALK_GARBAGE (too much looks like batches to say), or -errno. Memory and
# the bytes read are bounded, whatever is there.
cdef int find_batch(
    int fd, int64_t position, int64_t end, int64_t least, int64_t most, BatchHeader* header, int64_t* found
) noexcept nogil

# Copies a range of a segment into a file beside it, synced, unless all of it is zeros. `kept`: there is such a file. 0
# or errno.
cdef int set_aside(int fd, const string& log_path, int64_t position, int64_t end, bint* kept) noexcept nogil
