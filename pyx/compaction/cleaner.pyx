"""Compaction passes over the logs of a broker; see cleaner.pyi. The halves are in cleaning.pxd, the rules
in cleansegments.pxd, the files in swap.pxd.

A pass holds the partition's `cleaning` lock from its first to its last step (stop and delete end it and wait), `upkeep`
only while files change their names, and the partition's `lock` for moments. Settings that were altered meanwhile end it
before files change their names; if they do already, whoever altered them waits for that (`swapping`). Segments are read
and written without any lock: they are sealed. If retention has taken one of them meanwhile, what was made of its group
is thrown away.
"""

import os
from collections import namedtuple
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.operator cimport dereference as at, postincrement as step
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libcpp.algorithm cimport sort
from libcpp.vector cimport vector

from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.compaction.cleaning cimport (
    CLEAN_CANCELLED, CLEAN_CORRUPT, CLEAN_DONE, CLEAN_FULL, Cleaning, LastRecord,
)
from penstock.pyx.compaction.cleankeys cimport clean_keys
from penstock.pyx.compaction.cleansegments cimport clean_segments
from penstock.pyx.compaction.offsetmap cimport OffsetMap, offsetmap_begin, offsetmap_clear
from penstock.pyx.compaction.pace cimport Pace
from penstock.pyx.compaction.txntrack cimport AbortSpan, track_begin
from penstock.pyx.linux.descriptors cimport open_file
from penstock.pyx.linux.posix cimport (
    EIO, O_CLOEXEC, O_DIRECTORY, O_RDONLY, atomic_load32, atomic_store32, close, fstat, pthread_mutex_lock,
    pthread_mutex_unlock, stat, usleep,
)
from penstock.pyx.log.files cimport dropped, made, ms_of, wall_ms
from penstock.pyx.log.index cimport INDEX_WRONG, RELATIVE_MAX
from penstock.pyx.log.logconfig cimport LogConfig, config_compacts
from penstock.pyx.log.partition cimport LogSetOwner, Partition, partition_find, partition_release, wake_reactors
from penstock.pyx.log.partitionlog cimport PartitionLog, fail_log, is_offline, log_of, take_config
from penstock.pyx.log.producerstate cimport OpenTxn, ProducerEntry, producers_remove
from penstock.pyx.log.proof cimport prove_all
from penstock.pyx.log.recovery cimport snapshot_stem
from penstock.pyx.log.removals cimport note_removed
from penstock.pyx.log.segment cimport (
    WALK_BATCH, LogWalk, Segment, segment_aborts, segment_close_file, segment_hold_indexes, segment_newest_ms,
    segment_open, segment_release, segment_retain, walk_begin, walk_next,
)
from penstock.pyx.log.swap cimport FileStep, swap_again, swap_step, swap_steps, swap_undo
from penstock.pyx.log.timeindex cimport TIMEINDEX_ENTRY
from penstock.pyx.log.txnindex cimport (
    TXNINDEX_ENTRY, TXN_FIRST_OFFSET_AT, TXN_LAST_OFFSET_AT, TXN_PRODUCER_ID_AT, TXN_STABLE_OFFSET_AT,
)
from penstock.pyx.record.batch cimport BATCH_BAD_OFFSET, BatchHeader, batch_error_text
from penstock.pyx.record.endian cimport get_i64
from penstock.pyx.record.frame cimport TOPIC_ID_BYTES

Cleanable = namedtuple("Cleanable", "first_dirty upper_bound clean_bytes cleanable_bytes oldest_dirty_ms")
Compacted = namedtuple(
    "Compacted",
    "first_dirty bytes_indexed bytes_read bytes_written records_read records_kept records_without_key keys "
    "segments_before segments_after",
)

CLEANED = declare("compact.cleaned", "a group's cleaned segment is written and synced, nothing has its name yet")
NOTED = declare("compact.noted", "the log's folder says which deletions the pass removes, nothing has its name yet")
SWAPPING = declare("compact.swapping", "before each step that puts cleaned files in the place of old ones")
SWAPPED = declare("compact.swapped", "the cleaned files have their names, readers still have the old segments")

cdef enum:
    NEVER = -1
    AGAIN_TRIES = 200                  # of a step that the system has no means for just now
    AGAIN_US = 50_000


class UncleanableError(Exception):
    """See cleaner.pyi."""


# A log as it was when a pass began. The last segment is the active one.
cdef struct Picture:
    vector[Segment*] segments          # a reference to each is held
    int64_t log_start
    int64_t log_end
    int64_t last_stable
    int64_t recovery_point
    LogConfig config


cdef bint _picture(PartitionLog* p, Picture* out) noexcept nogil:
    """False: the partition is stopped or offline."""
    cdef size_t i
    cdef bint serves
    pthread_mutex_lock(&p.lock)
    serves = not p.stopped and not is_offline(p) and not p.log.segments.empty()
    for i in range(p.log.segments.size()):
        segment_retain(p.log.segments[i])
        out.segments.push_back(p.log.segments[i])
    out.log_start = p.log.log_start
    out.log_end = p.log.log_end
    out.last_stable = p.last_stable
    out.recovery_point = p.log.recovery_point
    take_config(p)
    out.config = p.config
    pthread_mutex_unlock(&p.lock)
    return serves


cdef void _forget(Picture* picture) noexcept nogil:
    cdef size_t i
    for i in range(picture.segments.size()):
        segment_release(picture.segments[i])
    picture.segments.clear()


cdef int64_t _first_dirty(const Picture* picture, int64_t checkpoint) noexcept nogil:
    """Where the dirty part begins: what the checkpoint says, unless that lies outside of the log."""
    return checkpoint if picture.log_start <= checkpoint <= picture.log_end else picture.log_start


cdef int64_t _upper_bound(
    const Picture* picture, int64_t first_dirty, int64_t now_ms, int64_t min_lag_ms
) noexcept nogil:
    """The first offset that may not be cleaned: of the active segment, of an open transaction, of what isn't flushed (a
    pass would remove the value before it, and a power cut then take it), or of a segment with a record that is younger
    than the lag."""
    cdef size_t i, last = picture.segments.size() - 1
    cdef int64_t bound = min(picture.segments[last].base_offset, picture.last_stable, picture.recovery_point)
    for i in range(last):
        if min_lag_ms <= 0 or picture.segments[i + 1].base_offset <= first_dirty:
            continue
        if segment_newest_ms(picture.segments[i]) > now_ms - min_lag_ms:
            if picture.segments[i].base_offset < bound:
                bound = picture.segments[i].base_offset
            break
    return bound if bound > first_dirty else first_dirty


cdef int64_t _first_timestamp(Segment* s) noexcept nogil:
    """The timestamp of a sealed segment's first batch; -1 unknown."""
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int fd
    if s.first_timestamp >= 0 or s.size == 0:
        return s.first_timestamp
    fd = segment_open(s, False)
    if fd < 0:
        return -1
    walk_begin(&walk, fd, 0, s.size, 4096)
    return header.max_timestamp if walk_next(&walk, &header, &bytes, False) == WALK_BATCH else -1


cdef int64_t _modified_ms(Segment* s) noexcept nogil:
    cdef stat info
    cdef int fd = segment_open(s, False)
    if fd < 0 or fstat(fd, &info) != 0:
        return 0
    return ms_of(&info.st_mtim)


cdef bint _begins_first(const AbortSpan& a, const AbortSpan& b) noexcept nogil:
    return a.first_offset < b.first_offset


cdef int _aborted(const Picture* picture, vector[AbortSpan]& out) noexcept nogil:
    """Every aborted transaction that the log's indexes name. 0 or errno."""
    cdef vector[uint8_t] entries
    cdef const uint8_t* entry
    cdef AbortSpan span
    cdef size_t i, k
    cdef int result
    for i in range(picture.segments.size()):
        result = segment_aborts(picture.segments[i], entries)
        if result != 0:
            return result
        for k in range(entries.size() // TXNINDEX_ENTRY):
            entry = entries.data() + k * TXNINDEX_ENTRY
            span.producer_id = get_i64(entry + TXN_PRODUCER_ID_AT)
            span.first_offset = get_i64(entry + TXN_FIRST_OFFSET_AT)
            span.last_offset = get_i64(entry + TXN_LAST_OFFSET_AT)
            span.stable_offset = get_i64(entry + TXN_STABLE_OFFSET_AT)
            out.push_back(span)
    sort(out.begin(), out.end(), &_begins_first)
    return 0


cdef void _last_records(PartitionLog* p, Cleaning* c) noexcept nogil:
    cdef const ProducerEntry* e
    cdef LastRecord last
    pthread_mutex_lock(&p.lock)
    place = p.log.producers.entries.begin()
    while place != p.log.producers.entries.end():
        e = &at(place).second
        last.data_offset = e.batches[e.count - 1].last_offset if e.count > 0 else -1
        last.epoch = e.epoch
        c.last_records[e.producer_id] = last
        step(place)
    pthread_mutex_unlock(&p.lock)


cdef void _close_read(PartitionLog* p, Segment* s) noexcept nogil:
    """Closes a file that the pass has read, unless somebody else reads it: a pass over many segments would otherwise
    hold as many descriptors until its end, as nobody else may close what it has a reference to."""
    cdef size_t i
    pthread_mutex_lock(&p.lock)
    for i in range(p.log.segments.size()):
        if p.log.segments[i] == s:     # the log's own reference keeps it alive
            segment_release(s)
            segment_close_file(s)
            segment_retain(s)
            break
    pthread_mutex_unlock(&p.lock)


cdef int _index(PartitionLog* p, Cleaning* c, const Picture* picture) noexcept nogil:
    """The first half of a pass. A CleanResult; CLEAN_DONE also when the map is full."""
    cdef size_t i
    cdef int result
    track_begin(&c.track)
    for i in range(picture.segments.size() - 1):
        if picture.segments[i].base_offset >= c.upper_bound:
            break
        if picture.segments[i + 1].base_offset <= c.first_dirty:
            continue
        result = clean_keys(c, picture.segments[i], picture.segments[i + 1].base_offset)
        _close_read(p, picture.segments[i])
        if result != CLEAN_DONE:
            return CLEAN_DONE if result == CLEAN_FULL else result
    return CLEAN_DONE


cdef int64_t _index_bytes(const Segment* s, int64_t interval_bytes) noexcept nogil:
    """Roughly the bytes of a segment's larger index."""
    return (s.size // (interval_bytes if interval_bytes > 0 else 1) + 1) * TIMEINDEX_ENTRY


cdef size_t _group(const Picture* picture, size_t first, int64_t end) noexcept nogil:
    """How many segments from the `first` on become one, of those that begin below `end`: as many as fit."""
    cdef size_t last = first
    cdef int64_t bytes = picture.segments[first].size
    cdef int64_t interval_bytes = picture.config.index_interval_bytes
    cdef int64_t entries = _index_bytes(picture.segments[first], interval_bytes)
    while last + 2 < picture.segments.size() and picture.segments[last + 1].base_offset < end:
        bytes += picture.segments[last + 1].size
        entries += _index_bytes(picture.segments[last + 1], interval_bytes)
        if bytes > picture.config.segment_bytes or entries > picture.config.segment_index_bytes:
            break
        if picture.segments[last + 2].base_offset - picture.segments[first].base_offset > RELATIVE_MAX:
            break
        last += 1
    return last - first + 1


cdef int64_t _place_of(PartitionLog* p, const vector[Segment*]& group) noexcept nogil:
    """Under the lock: where the group lies in the log; -1 if it isn't there any more."""
    cdef size_t i, k
    if p.stopped or is_offline(p):
        return -1
    for i in range(p.log.segments.size()):
        if p.log.segments[i] == group[0]:
            if i + group.size() >= p.log.segments.size():
                return -1
            for k in range(group.size()):
                if p.log.segments[i + k] != group[k]:
                    return -1
            return <int64_t>i
    return -1


cdef inline bint _may_remove(const PartitionLog* p, const Cleaning* c) noexcept nogil:
    """Under `seldom`: whether the log's settings, which may have been altered since, allow what the pass does."""
    return config_compacts(&p.wanted, c.min_lag_ms, c.delete_retention_ms)


cdef int _pin(PartitionLog* p, const Cleaning* c, const vector[Segment*]& group) noexcept nogil:
    """With `upkeep` held, so that it stays so: the group is where it was, and readers who have its segments can go on
    when the paths lead to other files. 0 or errno; CLEAN_CANCELLED, also if the log's settings don't allow the pass any
    more: whoever alters them from here on sees `swapping`."""
    cdef size_t i
    cdef int fd, result = 0
    cdef bint there
    pthread_mutex_lock(&p.lock)
    pthread_mutex_lock(&p.seldom)      # of `reconfigure`, too: one of the two sees the other
    there = _place_of(p, group) >= 0 and _may_remove(p, c)
    atomic_store32(&p.swapping, there)
    pthread_mutex_unlock(&p.seldom)
    pthread_mutex_unlock(&p.lock)
    if not there:
        return CLEAN_CANCELLED
    for i in range(group.size()):
        fd = segment_open(group[i], False)
        if fd < 0:
            return -fd
        result = segment_hold_indexes(group[i])
        if result != 0:
            return result
    return 0


cdef void _replace(PartitionLog* p, const vector[Segment*]& group, Segment* cleaned) noexcept nogil:
    """With `upkeep` held: the new segment takes the group's place in memory."""
    cdef size_t i
    cdef int64_t place
    cdef OpenTxn* transaction
    pthread_mutex_lock(&p.lock)
    place = _place_of(p, group)
    if place < 0:                      # it failed under us: its segments serve nobody any more
        pthread_mutex_unlock(&p.lock)
        return
    segment_retain(cleaned)
    pthread_mutex_lock(&p.seldom)
    p.log.segments[<size_t>place] = cleaned
    p.log.segments.erase(
        p.log.segments.begin() + (<size_t>place + 1), p.log.segments.begin() + (<size_t>place + group.size())
    )
    pthread_mutex_unlock(&p.seldom)
    first = p.log.producers.open_txns.begin()
    while first != p.log.producers.open_txns.end():
        transaction = &at(first).second
        if cleaned.base_offset <= transaction.segment_base < cleaned.next_offset:
            transaction.segment_base = -1      # its batch lies elsewhere now: readers look for it
            transaction.position = -1
        step(first)
    pthread_mutex_unlock(&p.lock)
    for i in range(group.size()):
        if i > 0:
            producers_remove(snapshot_stem(p.log.folder, group[i].base_offset))
        segment_release(group[i])


cdef void _fail(Partition* partition, int error) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef uint64_t wake
    pthread_mutex_lock(&p.lock)
    wake = fail_log(p, error)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(partition, wake)


cdef class _Found:
    """A partition that is held for as long as this object lives."""

    cdef Partition* partition
    cdef PartitionLog* p
    cdef object logs
    cdef str topic
    cdef int index

    def __cinit__(self, LogSetOwner logs, str topic, int index):
        cdef bytes name = topic.encode()
        self.logs = logs
        self.topic = topic
        self.index = index
        self.partition = partition_find(logs.set, PyBytes_AS_STRING(name), <size_t>PyBytes_GET_SIZE(name), index)
        if self.partition == NULL:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{index} is not led here")
        self.p = log_of(self.partition)

    def __dealloc__(self):
        if self.partition != NULL:
            partition_release(self.partition)

    cdef object path(self):
        return os.fsdecode(self.p.log.folder)

    cdef object note_holes(self):
        """A kill between the first swap and the end of the pass must not leave a log that is taken for damaged."""
        cdef bytes topic_id = PyBytes_FromStringAndSize(<char*>self.p.topic_id, TOPIC_ID_BYTES)
        self.logs.note_holes(self.topic, topic_id, self.index)

    cdef object gone(self):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index} can't be compacted now")

    cdef object fail(self, Cleaning* c, int result):
        if result == CLEAN_CANCELLED or result == INDEX_WRONG:
            self.gone()                # the next pass proves it again
        if result == CLEAN_CORRUPT:
            what = batch_error_text(c.fault).decode() if c.fault != BATCH_BAD_OFFSET else "it is out of order"
            raise UncleanableError(f"{self.path()}: the batch at offset {c.fault_offset} can't be read: {what}")
        raise OSError(result, os.strerror(result), self.path())


def cleanable(LogSetOwner logs, str topic, int partition, int64_t checkpoint, int64_t now_ms, int64_t min_lag_ms):
    """What there is to compact; see cleaner.pyi."""
    cdef _Found found = _Found(logs, topic, partition)
    cdef Picture picture
    cdef Segment* s
    cdef int64_t first_dirty, bound, next_base, clean = 0, dirty = 0, oldest = NEVER, timestamp
    cdef size_t i
    cdef bint serves
    with nogil:
        serves = _picture(found.p, &picture)
        first_dirty = _first_dirty(&picture, checkpoint)
        bound = _upper_bound(&picture, first_dirty, now_ms, min_lag_ms) if serves else first_dirty
        for i in range(picture.segments.size() - 1 if serves else 0):
            s = picture.segments[i]
            next_base = picture.segments[i + 1].base_offset
            if s.base_offset < first_dirty:
                clean += s.size
            if next_base > first_dirty:
                timestamp = _first_timestamp(s)
                if timestamp > 0 and (oldest < 0 or timestamp < oldest):
                    oldest = timestamp
                if next_base <= bound:
                    dirty += s.size
        _forget(&picture)
    if not serves:
        found.gone()
    return Cleanable(first_dirty, bound, clean, dirty, oldest)


cdef class Cleaner:
    """One thread's means to compact: the table of keys and buffers; see cleaner.pyi."""

    cdef OffsetMap map
    cdef Pace pace
    cdef size_t inflated_max_bytes
    cdef bint committed                # the swap of the group that is worked on can only go forward

    def __cinit__(
        self, Pace pace, size_t buffer_bytes=128 << 20, double load_factor=0.9, size_t inflated_max_bytes=128 << 20
    ):
        self.pace = pace
        self.inflated_max_bytes = inflated_max_bytes
        offsetmap_begin(&self.map, buffer_bytes, load_factor)

    def __dealloc__(self):
        offsetmap_clear(&self.map)

    def compact(
        self, LogSetOwner logs, str topic, int partition, int64_t checkpoint, int64_t now_ms, int64_t min_lag_ms,
        int64_t delete_retention_ms
    ):
        """One pass; see cleaner.pyi."""
        cdef _Found found = _Found(logs, topic, partition)
        cdef Cleaning* c = made[Cleaning]()
        cdef Picture* picture = made[Picture]()
        with nogil:
            pthread_mutex_lock(&found.p.cleaning)
        try:
            c.map = &self.map
            c.pace = &self.pace.pace
            c.cancelled = &found.p.cancelled
            c.now_ms = now_ms
            c.min_lag_ms = min_lag_ms
            c.delete_retention_ms = delete_retention_ms
            c.inflated_max_bytes = self.inflated_max_bytes
            return self._pass(found, c, picture, checkpoint)
        finally:
            with nogil:
                pthread_mutex_unlock(&found.p.cleaning)
                _forget(picture)
                dropped[Picture](picture)
                dropped[Cleaning](c)
                offsetmap_clear(&self.map)

    cdef object _pass(self, _Found found, Cleaning* c, Picture* picture, int64_t checkpoint):
        cdef PartitionLog* p = found.p
        cdef int result
        cdef size_t i, groups = 0, keys = 0, first = 0
        cdef bint serves
        with nogil:
            # An aborted transaction that no index names would be compacted as if it had been committed.
            pthread_mutex_lock(&p.upkeep)
            result = 0 if p.stopped or is_offline(p) else prove_all(p, wall_ms())
            pthread_mutex_unlock(&p.upkeep)
            serves = _picture(p, picture) and not atomic_load32(&p.cancelled)
        if not serves:
            found.gone()
        if result != 0:
            found.fail(c, result)
        with nogil:
            c.first_dirty = _first_dirty(picture, checkpoint)
            c.upper_bound = _upper_bound(picture, c.first_dirty, c.now_ms, c.min_lag_ms)
            c.latest = c.first_dirty - 1
            c.index_interval_bytes = picture.config.index_interval_bytes
            for i in range(picture.segments.size()):
                if picture.segments[i].base_offset < c.first_dirty:
                    c.legacy_horizon_ms = _modified_ms(picture.segments[i]) - c.delete_retention_ms
            _last_records(p, c)
            result = _aborted(picture, c.track.aborted)
            if result == CLEAN_DONE:
                result = _index(p, c, picture)
            keys = self.map.used
            track_begin(&c.track)
        if result != CLEAN_DONE:
            found.fail(c, result)
        while first + 1 < picture.segments.size() and picture.segments[first].base_offset <= c.latest:
            with nogil:
                pthread_mutex_lock(&p.seldom)
                serves = _may_remove(p, c)
                pthread_mutex_unlock(&p.seldom)
            if not serves:
                found.gone()           # its work would only be thrown away
            i = _group(picture, first, c.latest + 1)
            self._clean_group(found, c, picture, first, i)
            first += i
            groups += 1
        return Compacted(
            c.latest + 1, c.stats.bytes_indexed, c.stats.bytes_read, c.stats.bytes_written, c.stats.records_read,
            c.stats.records_kept, c.stats.records_without_key, keys, first, groups,
        )

    cdef object _clean_group(self, _Found found, Cleaning* c, Picture* picture, size_t first, size_t count):
        cdef PartitionLog* p = found.p
        cdef vector[Segment*] group
        cdef Segment* cleaned = NULL
        cdef int64_t next_base = picture.segments[first + count].base_offset
        cdef bint changed = False
        cdef size_t i
        cdef int result
        for i in range(count):
            group.push_back(picture.segments[first + i])
        self.committed = False
        with nogil:
            result = clean_segments(c, p.log.folder, group, next_base, &cleaned, &changed)
        try:
            if result != CLEAN_DONE:
                found.fail(c, result)
            if changed:
                failpoint(CLEANED)
                found.note_holes()
                self._swap(found, c, group, cleaned)
        finally:
            with nogil:
                if not self.committed:
                    swap_undo(cleaned.stem)
                segment_release(cleaned)
                for i in range(count):
                    _close_read(p, group[i])

    cdef object _swap(self, _Found found, Cleaning* c, vector[Segment*]& group, Segment* cleaned):
        """The cleaned files and segment in the place of the group's. Raises while the old ones are all there, or with
        the partition offline: then half of the names are the new ones, which the next start puts right. All that needs
        a descriptor is opened before the first step; a step after the commit that the system has no means for just now
        is tried again."""
        cdef PartitionLog* p = found.p
        cdef vector[FileStep] steps
        cdef size_t committed = 0, done = 0
        cdef int result, folder_fd, tries = 0
        with nogil:
            pthread_mutex_lock(&p.upkeep)
            result = _pin(p, c, group)
            if result == 0:
                result = note_removed(p, c.removed_below)
            folder_fd = open_file(p.log.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)
            if result == 0 and folder_fd < 0:
                result = -folder_fd
            swap_steps(cleaned.stem, group, cleaned.txnindex.bytes.empty(), steps, &committed)
        try:
            if result == 0:
                failpoint(NOTED)
            while result == 0 and done < steps.size():
                failpoint(SWAPPING)
                with nogil:
                    result = swap_step(&steps[done], folder_fd)
                    while self.committed and tries < AGAIN_TRIES and swap_again(&steps[done], result):
                        usleep(AGAIN_US)
                        tries += 1
                        result = swap_step(&steps[done], folder_fd)
                if result == 0:
                    done += 1
                    self.committed = done >= committed
            if result != 0:
                found.fail(c, result)
            failpoint(SWAPPED)
            with nogil:
                _replace(p, group, cleaned)
        except BaseException:
            if self.committed:
                with nogil:
                    _fail(found.partition, result if result != 0 else EIO)
            raise
        finally:
            with nogil:
                if folder_fd >= 0:
                    close(folder_fd)
                atomic_store32(&p.swapping, 0)
                pthread_mutex_unlock(&p.upkeep)
