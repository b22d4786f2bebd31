"""Keys and their newest offsets; see offsetmap.pxd. Python sees it for tests only."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from penstock.pyx.ids.siphash cimport siphash64, siphash128
from penstock.pyx.linux.posix cimport ENOMEM, calloc, free, getrandom, memcpy

cdef enum:
    FIRST_SLOTS = 1024
    GROWTH = 8


cdef void _new_secret(OffsetMap* map) noexcept nogil:
    # 16 bytes come whole once the system has started; should they not, an old secret is as good as any other.
    cdef ssize_t got = getrandom(map.secret, 16, 0)
    if got < 0:
        return


cdef void offsetmap_begin(OffsetMap* map, size_t buffer_bytes, double load_factor) noexcept nogil:
    # Beside the last table there is the one before it, while it grows.
    map.most_slots = buffer_bytes // sizeof(OffsetEntry) * GROWTH // (GROWTH + 1)
    if map.most_slots < 2:
        map.most_slots = 2             # a table must have a free slot beside a used one
    map.load_factor = load_factor
    map.slots = 0
    map.used = 0
    map.entries = NULL
    _new_secret(map)


cdef void offsetmap_clear(OffsetMap* map) noexcept nogil:
    free(map.entries)
    map.entries = NULL
    map.slots = 0
    map.used = 0
    _new_secret(map)


cdef inline OffsetEntry* _slot(OffsetEntry* entries, size_t slots, uint64_t low, uint64_t high) noexcept nogil:
    """The slot that holds the hash, or the free one where it belongs."""
    cdef size_t i = <size_t>(low % slots)
    while entries[i].past != 0 and (entries[i].low != low or entries[i].high != high):
        i += 1
        if i == slots:
            i = 0
    return &entries[i]


cdef inline size_t _room(size_t slots, double load_factor) noexcept nogil:
    cdef size_t room = <size_t>(<double>slots * load_factor)
    return room if room < slots else slots - 1


cdef int _grow(OffsetMap* map) noexcept nogil:
    """To the next size whose table fits beside the present one. 0, OFFSETMAP_FULL or ENOMEM."""
    cdef size_t i, slots = map.most_slots
    cdef OffsetEntry* entries
    # Counted from the last size, so that the buffer is used up whatever it is.
    while slots // GROWTH > map.slots and slots // GROWTH >= FIRST_SLOTS:
        slots //= GROWTH
    if slots <= map.slots:
        return OFFSETMAP_FULL
    entries = <OffsetEntry*>calloc(slots, sizeof(OffsetEntry))
    if entries == NULL:
        return ENOMEM
    for i in range(map.slots):
        if map.entries[i].past != 0:
            _slot(entries, slots, map.entries[i].low, map.entries[i].high)[0] = map.entries[i]
    free(map.entries)
    map.entries = entries
    map.slots = slots
    return 0


cdef int offsetmap_put(OffsetMap* map, const uint8_t* key, size_t n, int64_t offset) noexcept nogil:
    cdef uint64_t low, high
    cdef OffsetEntry* entry = NULL
    cdef int result
    siphash128(map.secret, key, n, &low, &high)
    if map.slots > 0:
        entry = _slot(map.entries, map.slots, low, high)
        if entry.past != 0:
            entry.past = offset + 1
            return 0
    if map.slots == 0 or map.used >= _room(map.slots, map.load_factor):
        result = _grow(map)
        if result != 0:
            return result
        entry = _slot(map.entries, map.slots, low, high)
    entry.low = low
    entry.high = high
    entry.past = offset + 1
    map.used += 1
    return 0


cdef int64_t offsetmap_get(const OffsetMap* map, const uint8_t* key, size_t n) noexcept nogil:
    cdef uint64_t low, high
    if map.slots == 0:
        return -1
    siphash128(map.secret, key, n, &low, &high)
    return _slot(map.entries, map.slots, low, high).past - 1


cdef class KeyOffsets:
    """The map, for tests; see offsetmap.pyi."""

    cdef OffsetMap map

    def __cinit__(self, size_t buffer_bytes, double load_factor=0.9):
        offsetmap_begin(&self.map, buffer_bytes, load_factor)

    def __dealloc__(self):
        offsetmap_clear(&self.map)

    def __len__(self):
        return self.map.used

    def put(self, bytes key, int64_t offset):
        """Whether there was room; see offsetmap.pyi."""
        cdef int result = offsetmap_put(
            &self.map, <const uint8_t*>PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key), offset
        )
        if result == ENOMEM:
            raise MemoryError
        return result == 0

    def get(self, bytes key):
        """The newest offset, or -1; see offsetmap.pyi."""
        return offsetmap_get(&self.map, <const uint8_t*>PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key))

    def clear(self):
        """Empty it; see offsetmap.pyi."""
        offsetmap_clear(&self.map)

    @property
    def size_bytes(self):
        """Bytes of the table."""
        return self.map.slots * sizeof(OffsetEntry)


def siphash(bytes secret, bytes data, int size=16):
    """SipHash-2-4 of 16 or 8 bytes; see offsetmap.pyi."""
    cdef uint64_t words[2]
    cdef uint64_t out[2]
    if len(secret) != 16:
        raise ValueError("a secret has 16 bytes")
    memcpy(words, PyBytes_AS_STRING(secret), 16)
    if size == 8:
        out[0] = siphash64(words, <const uint8_t*>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data))
    else:
        siphash128(words, <const uint8_t*>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data), &out[0], &out[1])
    return (<char*>out)[:size]
