"""What a log knows of its producers: the last five batches of each (idempotence), epochs (fencing), open transactions.

Snapshots, taken when a segment is rolled (named after the new segment) and at a clean stop (named after the log
end), are Kafka's, version 1, big endian:

    <20 digits>.snapshot:  version i16 (1) | crc32c u32 of all that follows it | count i32 | entries of 46 bytes:
        producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 | timestamp i64 |
        coordinator epoch i32 | first offset of the open transaction i64 (-1 none)

Kafka's format has only the last batch of each producer. So that a restart forgets nothing, the older ones lie
beside it, in a file that Kafka passes over:

    <20 digits>.sequences: version i16 (1) | crc32c u32 | count i32 | entries of 34 bytes, oldest first:
        producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 | timestamp i64

A client makes up producer ids as it likes, so what is kept is bounded: a log keeps PRODUCERS_MAX of them, and all
logs of the process together PRODUCERS_ALL_MAX, beyond which a log that gets another one and has more than
PRODUCERS_SPARED makes room. It forgets the half that it hasn't heard of for longest, as if they had expired; never one
with an open transaction.

A transaction may begin in a partition once its coordinator was asked. Whatever comes between the question and the
append makes the answer worthless: the producer's marker, another role of this broker, a cut. So there is one count for
all logs of the process. Whoever asks takes a number, a guard; markers and such events take numbers, too. The append
presents its guard, which has to be above those of all that concerns its producer.

Crash story: a snapshot whose checksum is wrong, or whose companion's is, doesn't count;
recovery takes the one before it and walks on from there.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t
from libcpp.map cimport map as ordered_map
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map

from penstock.pyx.log.origin cimport Origin
from penstock.pyx.record.batch cimport BatchHeader

cdef enum:
    PRODUCERS_MAX = 100000             # about 20 MB
    PRODUCERS_ALL_MAX = 1000000
    PRODUCERS_SPARED = 1000
    PRODUCER_BATCHES = 5               # how many a producer may have in flight, and so may send again
    NO_EPOCH = -1
    NO_OFFSET = -1
    SEQUENCE_MASK = 0x7fffffff         # after the largest sequence comes 0
    SEQUENCES_AHEAD_MAX = 0x40000000   # half of them: one further away lies before

cdef inline bint sequence_is_after(int32_t sequence, int32_t other) noexcept nogil:
    cdef int32_t ahead = (sequence - other) & SEQUENCE_MASK
    return 0 < ahead < SEQUENCES_AHEAD_MAX

cdef struct BatchMark:
    int32_t last_sequence
    int32_t offset_delta
    int64_t last_offset
    int64_t timestamp_ms

cdef struct ProducerEntry:
    int64_t producer_id
    int16_t epoch                      # NO_EPOCH: nothing is known, any sequence may come
    int8_t count
    int32_t coordinator_epoch
    int64_t last_timestamp_ms          # of its last batch or marker
    int64_t seen_ms                    # by this broker's clock: expiry counts from here, old timestamps don't matter
    int64_t txn_first_offset           # of its open transaction, or NO_OFFSET
    int64_t ended                      # the number of its last marker; 0: none since the log was opened
    BatchMark batches[PRODUCER_BATCHES]        # oldest first

cdef struct OpenTxn:
    int64_t producer_id
    int64_t segment_base               # where its first batch lies, so that a read up to it needs no search; -1 unknown
    int64_t position

cdef struct ProducerStates:
    unordered_map[int64_t, ProducerEntry] entries      # changed by the functions below alone: they are counted
    ordered_map[int64_t, OpenTxn] open_txns    # by first offset
    int64_t guarded_since              # no guard up to this number counts, whoever's it is

# A transaction that a marker has ended.
cdef struct EndedTxn:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset                # the marker's
    bint aborted

# A data batch at base_offset: checks it against the entry (by origin) and takes it into the entry. Kafka's code, or
# 0 with `duplicate_of` >= 0 for a batch that the log has already (the entry is as before then).
cdef int16_t producer_data(
    ProducerEntry* e, const BatchHeader* header, Origin origin, int64_t base_offset, int64_t now_ms,
    int64_t* duplicate_of
) noexcept nogil
# Whether a transactional batch would begin its producer's transaction here. One of too old an epoch would not: it is
# refused.
cdef inline bint would_begin(const ProducerEntry* e, const BatchHeader* header) noexcept nogil:
    if header.producer_epoch < e.epoch:
        return False
    return e.txn_first_offset == NO_OFFSET or header.producer_epoch != e.epoch

# The next number of the count: a guard, or that of an event.
cdef int64_t next_guard() noexcept nogil
# From now on no guard counts that was given before.
cdef inline void void_guards(ProducerStates* states) noexcept nogil:
    states.guarded_since = next_guard()

# Whether nothing has come between the question and now. 0 is nobody's guard.
cdef inline bint guard_counts(const ProducerStates* states, const ProducerEntry* e, int64_t guard) noexcept nogil:
    return guard > states.guarded_since and guard > e.ended

# A commit or abort marker at `offset`. ended.first_offset is NO_OFFSET when no transaction was open.
cdef int16_t producer_marker(
    ProducerEntry* e, const BatchHeader* header, bint commit, int32_t coordinator_epoch, Origin origin, int64_t offset,
    int64_t now_ms, EndedTxn* ended
) noexcept nogil
# What is known of a producer; an entry without epoch and batches if that is nothing.
cdef ProducerEntry producers_get(ProducerStates* states, int64_t producer_id) noexcept nogil
# Put a changed entry back and keep the list of open transactions right.
cdef void producers_put(
    ProducerStates* states, const ProducerEntry* e, int64_t segment_base, int64_t position
) noexcept nogil
# min(first offset of the open transactions, otherwise)
cdef int64_t producers_first_open(const ProducerStates* states, int64_t otherwise) noexcept nogil
cdef void producers_expire(ProducerStates* states, int64_t now_ms, int64_t expiration_ms) noexcept nogil
cdef void producers_clear(ProducerStates* states) noexcept nogil

# `stem`: path of the snapshot without its suffix. 0 or errno.
cdef int producers_write(const ProducerStates* states, const string& stem, bint sync) noexcept nogil
cdef int producers_sync(const string& stem) noexcept nogil
# True if a valid snapshot was read; the states are empty otherwise.
cdef bint producers_read(ProducerStates* states, const string& stem, int64_t now_ms) noexcept nogil
cdef void producers_remove(const string& stem) noexcept nogil
