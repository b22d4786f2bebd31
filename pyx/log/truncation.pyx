"""Cutting a log that is open; see truncation.pxd."""

from cython.operator cimport dereference as at, postincrement as step
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.linux.descriptors cimport open_file
from penstock.pyx.linux.posix cimport (
    EIO, O_CLOEXEC, O_CREAT, O_TRUNC, O_WRONLY, atomic_add32, atomic_load32, atomic_store32, atomic_store64, close, dup,
    errno, fsync, ftruncate, pthread_mutex_lock, pthread_mutex_unlock, rename, snprintf, unlink,
)
from penstock.pyx.log.endslots cimport note_end
from penstock.pyx.log.epochs cimport epochs_cut_end
from penstock.pyx.log.files cimport FILE_MODE, is_full, is_passing, sync_folder, write_at
from penstock.pyx.log.followerask cimport FollowerAsk, ask_fits
from penstock.pyx.log.index cimport INDEX_WRONG
from penstock.pyx.log.logstate cimport NOTE_CORRUPT_BATCH, NOTE_REFUSED_CUT, note
from penstock.pyx.log.partition cimport Partition, wake_reactors
from penstock.pyx.log.partitionlog cimport (
    Amendment, PartitionLog, doubt_segment, fail_log, folder_ran_full, folder_tell, is_offline, last_batch_epoch,
    put_high_watermark, take_all_waiting, take_config, tell_doubt, write_epochs,
)
from penstock.pyx.log.producerstate cimport (
    NO_OFFSET, ProducerEntry, producers_clear, producers_first_open, producers_get, producers_put, producers_write,
    void_guards,
)
from penstock.pyx.log.proof cimport prove_doubted
from penstock.pyx.log.recovery cimport recover_indexes, remove_stray_snapshots, snapshot_stem
from penstock.pyx.log.role cimport ROLE_OFFLINE
from penstock.pyx.log.segment cimport (
    FORMATS_UNKNOWN, WALK_BATCH, WALK_END, BatchPlace, Segment, empty_trash, segment_drop_checks, segment_find,
    segment_new, segment_open, segment_release, segment_reset_indexes, segment_retain, segment_retire, segment_seal,
    segment_take_indexes,
)
from penstock.pyx.log.upkeep cimport SEALED_FLUSH_DELAY_MS, choose_jitter, make_file
from penstock.pyx.record.batch cimport MAGIC_2, BatchHeader
from penstock.pyx.record.crc cimport crc32c_update

cdef enum:
    TEXT_MAX = 512                     # bytes of an amendment


# --- the amendment ------------------------------------------------------------------------------------------
cdef int _amendment_text(const Amendment* a, char* text) noexcept nogil:
    """As amendment.py reads it. How many bytes."""
    cdef int n = snprintf(
        text, TEXT_MAX,
        b"penstock-amendment 1\nnumber %lld\ncut %lld %lld %lld %lld %lld %lld %lld %s\nholes %d\n",
        <long long>a.number, <long long>a.end, <long long>a.least_end, <long long>a.recovery_point,
        <long long>a.first_segment, <long long>a.log_start, <long long>a.kept, <long long>a.kept_bytes,
        <const char*>b"done" if a.done else <const char*>b"begun", <int>a.holes,
    )
    return n + snprintf(text + n, TEXT_MAX - n, b"crc32c %08x\n", crc32c_update(0, <const uint8_t*>text, <size_t>n))


cdef string _amendment_path(const PartitionLog* p) noexcept nogil:
    cdef string path = p.log.folder
    path.append(b"/penstock-amendment")
    return path


cdef int _prepare_amendment(const PartitionLog* p, const Amendment* a) noexcept nogil:
    """Beside its place, synced, so that a rename is all that is left. 0 or errno."""
    cdef char text[TEXT_MAX]
    cdef string path = _amendment_path(p)
    cdef int n = _amendment_text(a, text)
    cdef int result, fd
    path.append(b".tmp")
    fd = open_file(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, FILE_MODE)
    if fd < 0:
        return -fd
    result = write_at(fd, text, <size_t>n, 0)
    if result == 0 and fsync(fd) != 0:
        result = errno
    close(fd)
    if result != 0:
        unlink(path.c_str())
    return result


cdef int _place_amendment(const PartitionLog* p) noexcept nogil:
    """0 or errno."""
    cdef string path = _amendment_path(p)
    cdef string beside = path
    beside.append(b".tmp")
    if rename(beside.c_str(), path.c_str()) != 0:
        return errno
    return sync_folder(p.log.folder.c_str())


cdef void _tell_amendment(PartitionLog* p, const Amendment* a) noexcept nogil:
    """With `upkeep` held: the checkpoints are to say it, too."""
    cdef int64_t number = a.number
    cdef int64_t before = p.amendment.number
    p.amendment = a[0]
    p.amendment.number = before
    atomic_store32(&p.amendment.owed, 1)
    atomic_store64(&p.amendment.number, number)            # last: who sees it sees the others


cdef int amend_holes(PartitionLog* p) noexcept nogil:
    cdef Amendment a = p.amendment
    cdef int result
    a.number += 1
    a.holes = True
    result = _prepare_amendment(p, &a)
    if result == 0:
        result = _place_amendment(p)
    if result == 0:
        _tell_amendment(p, &a)
    return result


cdef void _amend(PartitionLog* p, Truncation* t) noexcept nogil:
    """What the amendment says of this cut, and of those that the checkpoints don't have either."""
    cdef Amendment* a = &t.amendment
    cdef int64_t point = t.end if t.last == NULL else t.last.base_offset
    a[0] = p.amendment
    a.number += 1
    a.end = t.end
    a.least_end = t.end if a.least_end < 0 else min(a.least_end, t.end)
    a.recovery_point = point if a.recovery_point < 0 else min(a.recovery_point, point)
    a.kept = -1 if t.last == NULL else t.last.base_offset
    a.kept_bytes = t.kept_bytes
    if t.last == NULL:
        a.first_segment = t.end
        a.log_start = t.log_start
    elif a.first_segment >= 0:
        a.log_start = min(a.log_start, t.log_start)
    a.done = False


# --- the plan -----------------------------------------------------------------------------------------------
cdef void truncation_open(PartitionLog* p, Truncation* t, int64_t now_ms) noexcept nogil:
    # A pass that is under way ends first, and the next one waits.
    atomic_add32(&p.cancelled, 1)
    pthread_mutex_lock(&p.cleaning)
    atomic_add32(&p.cancelled, -1)
    pthread_mutex_lock(&p.upkeep)
    t.now_ms = now_ms
    t.committed = -1
    t.kept_bytes = 0
    t.kept = 0
    t.last = NULL
    t.seen = NULL
    t.fresh = NULL
    t.step = CUT_NOTE
    t.taken = False


cdef int _find(PartitionLog* p, Segment* s, Truncation* t, BatchHeader* header, int64_t* position) noexcept nogil:
    """The first batch whose last offset is at or above `end`: a WalkResult, or -errno."""
    cdef int result = segment_find(s, t.end, s.size, False, header, position)
    if result != -INDEX_WRONG:
        return result
    pthread_mutex_lock(&p.lock)
    doubt_segment(p, s)
    pthread_mutex_unlock(&p.lock)
    result = prove_doubted(p, t.now_ms)
    return -result if result != 0 else segment_find(s, t.end, s.size, False, header, position)


cdef int _find_place(PartitionLog* p, Truncation* t) noexcept nogil:
    """Which segment is the last one that stays, of how many bytes, and where the log ends then. 0 or errno."""
    cdef Segment* s
    cdef BatchHeader header
    cdef int64_t position = 0
    cdef int result
    if t.walked.segments.empty():
        return 0
    s = t.walked.segments.back()
    result = _find(p, s, t, &header, &position)
    if result != WALK_BATCH and result != WALK_END:
        return -result if result < 0 else EIO
    if result == WALK_BATCH and position == 0:
        t.end = min(t.end, header.base_offset) if header.magic >= MAGIC_2 else s.base_offset
        t.walked.segments.pop_back()
        segment_release(s)
        if not t.walked.segments.empty():
            t.kept_bytes = t.walked.segments.back().size
    elif result == WALK_BATCH:
        t.kept_bytes = position
        # Of a message set the last offset is all that is known: where the one before ends is seen by the walk.
        t.end = min(t.end, header.base_offset) if header.magic >= MAGIC_2 else <int64_t>-1
    else:
        t.kept_bytes = s.size
    return 0


cdef int _walk(PartitionLog* p, Truncation* t) noexcept nogil:
    """What the indexes of the last segment that stays are to be, and what the producers have sent by its end. 0 or
    errno."""
    cdef size_t place = t.walked.segments.size() - 1
    cdef int64_t good = 0
    cdef int result, fd
    t.last = t.walked.segments[place]
    fd = segment_open(t.last, False)
    if fd < 0:
        t.walked.segments.pop_back()
        return -fd
    t.seen = segment_new(p.log.folder, t.last.base_offset, t.now_ms)
    t.walked.segments[place] = t.seen
    t.seen.fd = dup(fd)
    if t.seen.fd < 0:
        return errno
    result = recover_indexes(&t.walked, place, t.kept_bytes, t.now_ms, &good)
    if result != 0:
        return result
    if good != t.kept_bytes:
        pthread_mutex_lock(&p.lock)
        note(&p.log, NOTE_CORRUPT_BATCH, t.last.base_offset, good)
        atomic_store32(&p.doubted, 1)
        tell_doubt(p)
        pthread_mutex_unlock(&p.lock)
        return EIO
    if t.end < 0:
        t.end = t.seen.next_offset
    return 0


cdef int _finish_plan(PartitionLog* p, Truncation* t) noexcept nogil:
    """0 or errno."""
    cdef int result
    t.kept = t.walked.segments.size()
    t.log_start = min(t.log_start, t.end)
    _amend(p, t)
    result = _prepare_amendment(p, &t.amendment)
    if result == 0:
        t.fresh = segment_new(p.log.folder, t.end, t.now_ms)
        segment_reset_indexes(t.fresh)
    elif is_full(result):
        folder_ran_full(p.folder)
    return result


cdef int truncation_plan(PartitionLog* p, Truncation* t, int64_t offset) noexcept nogil:
    cdef size_t i
    cdef int result
    cdef bint reaches
    pthread_mutex_lock(&p.lock)
    reaches = not p.stopped and not is_offline(p) and not p.cutting and offset < p.log.log_end
    t.end = offset
    t.log_start = p.log.log_start
    t.walked.folder = p.log.folder
    t.walked.index_interval_bytes = p.log.index_interval_bytes
    t.walked.dense = False
    t.walked.walked_bytes = NULL
    for i in range(p.log.segments.size() if reaches else 0):
        if p.log.segments[i].base_offset >= offset:
            break
        segment_retain(p.log.segments[i])
        t.walked.segments.push_back(p.log.segments[i])
    pthread_mutex_unlock(&p.lock)
    if not reaches:
        return 0                       # truncation_take says why
    result = _find_place(p, t)
    if result == 0 and not t.walked.segments.empty():
        result = _walk(p, t)
    return result if result != 0 else _finish_plan(p, t)


cdef int truncation_plan_whole(
    PartitionLog* p, Truncation* t, int64_t end, int64_t log_start, int64_t committed
) noexcept nogil:
    t.end = end
    t.log_start = log_start
    t.committed = committed
    t.kept = 0
    _amend(p, t)
    t.fresh = segment_new(p.log.folder, end, t.now_ms)
    segment_reset_indexes(t.fresh)
    return _prepare_amendment(p, &t.amendment)


# --- in memory ----------------------------------------------------------------------------------------------
cdef void _end_compacted(PartitionLog* p, Truncation* t) noexcept nogil:
    """Under the lock: ends transactions that an old snapshot has as open and whose marker compaction has removed. What
    begins below the last stable offset is decided, and the marker lies below the high watermark: it isn't cut."""
    cdef vector[int64_t] ended
    cdef ProducerEntry e
    cdef size_t i
    place = t.walked.producers.open_txns.begin()
    while place != t.walked.producers.open_txns.end():
        if at(place).first < p.last_stable:
            ended.push_back(at(place).second.producer_id)
        step(place)
    for i in range(ended.size()):
        e = producers_get(&t.walked.producers, ended[i])
        e.txn_first_offset = NO_OFFSET
        producers_put(&t.walked.producers, &e, -1, -1)


cdef void _take_last(PartitionLog* p, Truncation* t) noexcept nogil:
    """Under the lock: the last segment that stays is what the walk has found, and sealed."""
    cdef Segment* s = t.last
    atomic_store64(&s.size, t.kept_bytes)
    segment_take_indexes(s, t.seen)
    s.next_offset = t.end              # reads go on there
    s.max_timestamp = t.seen.max_timestamp
    s.max_timestamp_offset = t.seen.max_timestamp_offset
    s.first_timestamp = t.seen.first_timestamp
    s.ended_before = producers_first_open(&t.walked.producers, t.end)
    s.tail = BatchPlace(-1, -1, 0)
    if s.formats == FORMATS_UNKNOWN:
        s.formats = t.seen.formats
    s.proved = True
    s.walked = True
    s.corrupt = False
    s.corrupt_read = False
    s.room.reserved = 0                # the file is cut to its batches
    s.room.zeroed = 0
    s.room.plain_size = t.kept_bytes
    s.room.writes_zeros = False
    segment_seal(s)


cdef uint64_t _take(PartitionLog* p, Truncation* t) noexcept nogil:
    """Under the lock. Gives the network threads to be woken."""
    cdef size_t i
    cdef bint is_above = t.end >= p.high_watermark
    take_config(p)
    if not p.log.dense and is_above:
        _end_compacted(p, t)
    if t.last != NULL:
        _take_last(p, t)
    for i in range(t.kept, p.log.segments.size()):
        t.gone.push_back(p.log.segments[i])
    pthread_mutex_lock(&p.seldom)
    p.log.segments.resize(t.kept)
    p.log.segments.push_back(t.fresh)
    if t.last == NULL:
        p.log.epochs.entries.clear()
    else:
        epochs_cut_end(&p.log.epochs, t.end)
    pthread_mutex_unlock(&p.seldom)
    t.fresh = NULL
    p.log.producers.entries.swap(t.walked.producers.entries)
    p.log.producers.open_txns.swap(t.walked.producers.open_txns)
    void_guards(&p.log.producers)
    while not p.ended.empty() and (t.last == NULL or p.ended.back().last_offset >= t.end):
        p.ended.pop_back()             # its marker is cut: it is open again, if any of it stays
    if t.committed >= 0:
        put_high_watermark(p, t.committed)
        atomic_store64(&p.last_stable, t.committed)
    elif not is_above:
        atomic_store64(&p.last_stable, min(p.last_stable, t.end))
        put_high_watermark(p, t.end)
    atomic_store64(&p.log.recovery_point, min(p.log.recovery_point, t.amendment.recovery_point))
    atomic_store64(&p.log_end_flushed, min(p.log_end_flushed, t.end))
    p.owes_flush = p.owes_flush and p.log_end_flushed < t.end
    atomic_store64(&p.log.log_start, t.log_start)
    atomic_store64(&p.log.log_end, t.end)
    note_end(p.end_slot, t.end)
    p.changed = True
    p.ahead_end = -1
    choose_jitter(p, t.now_ms)
    p.flush_at_ms = t.now_ms + SEALED_FLUSH_DELAY_MS
    if atomic_load32(&p.folder.rolled) == 0:
        atomic_store32(&p.folder.rolled, 1)
        folder_tell(p.folder)
    atomic_store32(&p.cutting, True)
    t.taken = True
    return take_all_waiting(p)


cdef bint _is_unclean(const PartitionLog* p) noexcept nogil:
    """Under the lock: whether the state names an unclean election since the log's last batch."""
    return last_batch_epoch(p) < p.unclean_epoch <= p.leader_epoch


cdef int truncation_take(PartitionLog* p, Truncation* t, const FollowerAsk* ask) noexcept nogil:
    cdef uint64_t wake = 0
    cdef int result = TAKE_DONE
    pthread_mutex_lock(&p.lock)
    if p.stopped or p.cutting or (ask != NULL and not ask_fits(p, ask)):
        result = TAKE_STALE
    elif is_offline(p):
        result = TAKE_OFFLINE
    elif t.fresh == NULL or (t.committed < 0 and t.end >= p.log.log_end):
        result = TAKE_NOTHING
    elif ask != NULL and t.committed < 0 and t.end < p.high_watermark and not _is_unclean(p):
        result = TAKE_REFUSED
        atomic_store32(&p.role, ROLE_OFFLINE)
        note(&p.log, NOTE_REFUSED_CUT, t.end, ask.leader_id)
        atomic_store32(&p.doubted, 1)
        tell_doubt(p)                  # who hears of that says the note
        wake = take_all_waiting(p)
    else:
        wake = _take(p, t)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(<Partition*>p, wake)
    return result


# --- in files -----------------------------------------------------------------------------------------------
cdef int _retire(Truncation* t) noexcept nogil:
    """0 or errno."""
    cdef int result = segment_retire(t.gone.back(), 0, t.trash)
    if result == 0:
        segment_release(t.gone.back())
        t.gone.pop_back()
    return result


cdef int _shorten(Truncation* t) noexcept nogil:
    """0 or errno."""
    cdef int fd = segment_open(t.last, False)
    if fd < 0:
        return -fd
    segment_drop_checks(t.last)
    return errno if ftruncate(fd, t.kept_bytes) != 0 or fsync(fd) != 0 else 0


cdef int _begin(PartitionLog* p) noexcept nogil:
    """0 or errno. Without the snapshot the next start takes an older one and walks more."""
    producers_write(&p.log.producers, snapshot_stem(p.log.folder, p.log.log_end), False)
    return make_file(p, p.log.segments.back())


cdef int _write_epochs(PartitionLog* p) noexcept nogil:
    """Should that fail, the next start cuts them, and learns them from the batches."""
    pthread_mutex_lock(&p.lock)
    write_epochs(p, False)
    pthread_mutex_unlock(&p.lock)
    return 0


cdef int _finish(PartitionLog* p, Truncation* t) noexcept nogil:
    """0 or errno."""
    cdef int result
    t.amendment.done = True
    result = _prepare_amendment(p, &t.amendment)
    if result == 0:
        result = _place_amendment(p)
    if result == 0:
        _tell_amendment(p, &t.amendment)
    return result


cdef int _do_step(PartitionLog* p, Truncation* t) noexcept nogil:
    """0 or errno."""
    if t.step == CUT_NOTE:
        return _place_amendment(p)
    if t.step == CUT_RETIRE:
        return _retire(t) if not t.gone.empty() else 0
    if t.step == CUT_SHORTEN:
        return _shorten(t) if t.last != NULL else 0
    if t.step == CUT_PRODUCERS:
        remove_stray_snapshots(&p.log)
        return 0
    if t.step == CUT_BEGIN:
        return _begin(p)
    if t.step == CUT_EPOCHS:
        return _write_epochs(p)
    if t.step == CUT_SYNC:
        return sync_folder(p.log.folder.c_str())
    return _finish(p, t)


cdef int truncation_step(PartitionLog* p, Truncation* t) noexcept nogil:
    cdef uint64_t wake = 0
    cdef int result = _do_step(p, t)
    if result == 0:
        if t.step != CUT_RETIRE or t.gone.empty():
            t.step += 1
        return 0
    pthread_mutex_lock(&p.lock)
    if is_passing(result):
        # There is no way back, and no other log of the folder is the worse for it.
        atomic_store32(&p.offline, True)
        wake = take_all_waiting(p)
    else:
        wake = fail_log(p, result)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(<Partition*>p, wake)
    return result


cdef void truncation_close(PartitionLog* p, Truncation* t) noexcept nogil:
    cdef size_t i
    if t.step == CUT_ENDED:
        pthread_mutex_lock(&p.lock)
        atomic_store32(&p.cutting, False)
        pthread_mutex_unlock(&p.lock)
    pthread_mutex_unlock(&p.upkeep)
    pthread_mutex_unlock(&p.cleaning)
    empty_trash(t.trash, 0)
    for i in range(t.walked.segments.size()):
        segment_release(t.walked.segments[i])
    for i in range(t.gone.size()):
        segment_release(t.gone[i])
    if t.last != NULL:
        segment_release(t.last)
    if t.fresh != NULL:
        segment_release(t.fresh)
    producers_clear(&t.walked.producers)
