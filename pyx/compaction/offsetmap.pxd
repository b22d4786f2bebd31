"""The newest offset of each key in the dirty part of a log: what compaction decides by.

A key is known by 128 bits of SipHash-2-4 under a random key of the map's own. Two of n keys share a hash with a
probability of n^2 / 2^129: 10^-19 for the five million keys of a full default buffer, far below that of a wrong bit in
memory. And since nobody knows the random key, nobody can choose keys that collide and so make another key's record go.

Open addressing, 24 bytes a slot. The table begins small, grows eightfold, and never takes more than its buffer, also
not while it grows: eight ninths of the buffer hold keys in the end, up to the load factor. Memory goes back with
offsetmap_clear.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef enum:
    OFFSETMAP_FULL = -1

cdef struct OffsetEntry:
    uint64_t low                       # the hash
    uint64_t high
    int64_t past                       # the offset + 1; 0: the slot is free

cdef struct OffsetMap:
    uint64_t secret[2]
    size_t most_slots
    double load_factor
    size_t slots
    size_t used
    OffsetEntry* entries

# Takes no memory yet. `load_factor` above 0, at most 1.
cdef void offsetmap_begin(OffsetMap* map, size_t buffer_bytes, double load_factor) noexcept nogil
# The key's newest offset so far. 0, OFFSETMAP_FULL (a new key and no room), or ENOMEM.
cdef int offsetmap_put(OffsetMap* map, const uint8_t* key, size_t n, int64_t offset) noexcept nogil
# -1: not there.
cdef int64_t offsetmap_get(const OffsetMap* map, const uint8_t* key, size_t n) noexcept nogil
# Empties it, gives the memory back and takes another secret.
cdef void offsetmap_clear(OffsetMap* map) noexcept nogil
