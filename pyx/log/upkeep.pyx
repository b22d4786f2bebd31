"""Keeping a log: roll, flush, retention; see upkeep.pxd."""

from libc.stdint cimport INT64_MAX, SIZE_MAX, int64_t, uint8_t, uint64_t
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport (
    EIO, FALLOC_FL_KEEP_SIZE, atomic_load32, atomic_store32, atomic_store64, errno, fallocate, fstat, ftruncate,
    monotonic_ns, pthread_mutex_lock, pthread_mutex_unlock, stat,
)
from penstock.pyx.log.files cimport is_full, is_passing, is_shortage, later_ms, sync_folder
from penstock.pyx.log.index cimport INDEX_WRONG
from penstock.pyx.log.partition cimport Partition, wake_reactors
from penstock.pyx.log.partitionlog cimport (
    PartitionLog, advance_high_watermark, cut_epochs, doubt_segment, fail_log, folder_ran_full, folder_tell,
    is_flush_due, is_offline, keep_above_log_start, take_config, write_epochs,
)
from penstock.pyx.log.producerstate cimport producers_expire, producers_remove, producers_sync, producers_write
from penstock.pyx.log.proof cimport prove_doubted, prove_expired
from penstock.pyx.log.recovery cimport snapshot_stem
from penstock.pyx.log.segment cimport (
    Segment, empty_trash, segment_close_idle, segment_flush, segment_flush_log, segment_give_back, segment_hold_indexes,
    segment_last_time, segment_new, segment_newest_ms, segment_open, segment_prepare_sync, segment_release,
    segment_reset_indexes, segment_retain, segment_retire, segment_seal, segment_write_out,
)
from penstock.pyx.record.crc cimport crc32c_update

cdef void choose_jitter(PartitionLog* p, int64_t now_ms) noexcept nogil:
    """Under the lock: segments of partitions that were made together are not all rolled together."""
    cdef int64_t most = p.config.segment_jitter_ms
    cdef int64_t seed[2]
    if most > p.config.segment_ms:
        most = p.config.segment_ms
    seed[0] = now_ms ^ p.log.log_end
    seed[1] = <int64_t><size_t>p
    p.roll_jitter_ms = 0
    if most > 0:
        p.roll_jitter_ms = <int64_t>crc32c_update(0, <const uint8_t*>seed, sizeof(seed)) % most


cdef int _emptied(int fd) noexcept nogil:
    """A file that a failed roll has left. One that is empty isn't touched: ext4 takes a truncation to nothing for the
    first half of a replacement and writes all of the file out when it is closed, even if it is to be deleted. 0 or
    errno."""
    cdef stat info
    if fstat(fd, &info) != 0 or (info.st_size > 0 and ftruncate(fd, 0) != 0):
        return errno
    return 0


cdef int make_file(PartitionLog* p, Segment* s) noexcept nogil:
    cdef int fd = segment_open(s, True)
    cdef int result = -fd if fd < 0 else _emptied(fd)
    if result == 0 and p.config.preallocate:
        # Beyond the end of the file: readers and recovery see its real size, and a full disk is met later by appends.
        fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, p.config.segment_bytes)
    return result


cdef int _trim(Segment* s) noexcept nogil:
    """Gives back what a segment took of `preallocate` and didn't use. 0 or errno."""
    cdef int fd = segment_open(s, False)
    return -fd if fd < 0 else errno if s.size > 0 and ftruncate(fd, s.size) != 0 else 0


cdef int roll(PartitionLog* p, int64_t now_ms) noexcept nogil:
    """Under the lock: a new segment at the log end. 0, INDEX_WRONG or errno; after an error the old one goes on."""
    cdef Segment* active = p.log.segments.back()
    cdef Segment* s
    cdef int result = segment_hold_indexes(active)
    if result == INDEX_WRONG:
        doubt_segment(p, active)
    if result == 0:
        # At once, as a kill may come before the flush: recovery would drop all that follows a segment with a tail that
        # isn't batches.
        result = segment_give_back(active)
    if result == 0 and p.config.preallocate:
        result = _trim(active)
    if result == 0:
        result = producers_write(&p.log.producers, snapshot_stem(p.log.folder, p.log.log_end), False)
    if result != 0:
        return result
    s = segment_new(p.log.folder, p.log.log_end, now_ms)
    segment_reset_indexes(s)
    result = make_file(p, s)
    if result != 0:
        segment_release(s)
        return result
    choose_jitter(p, now_ms)
    segment_seal(active)
    active.unflushed = True
    pthread_mutex_lock(&p.seldom)
    p.log.segments.push_back(s)
    pthread_mutex_unlock(&p.seldom)
    if p.flush_at_ms == 0:
        p.flush_at_ms = now_ms + SEALED_FLUSH_DELAY_MS
    if atomic_load32(&p.folder.rolled) == 0:
        atomic_store32(&p.folder.rolled, 1)
        folder_tell(p.folder)
    return 0


cdef inline bint _too_old(PartitionLog* p, const Segment* s, int64_t now_ms) noexcept nogil:
    return p.config.retention_ms >= 0 and now_ms - segment_newest_ms(s) > p.config.retention_ms


cdef int _prove_too_old(PartitionLog* p, int64_t now_ms) noexcept nogil:
    """With `upkeep` held: what retention by time is about to delete is proved by its batches first. 0 or errno."""
    cdef size_t count
    cdef int result = 0
    cdef bint proved = True
    while proved and result == 0:
        pthread_mutex_lock(&p.lock)
        take_config(p)
        count = 0
        while (
            p.config.cleanup_delete
            and count < p.log.segments.size()
            and p.log.segments[count].size > 0
            and not p.log.segments[count].corrupt
            and _too_old(p, p.log.segments[count], now_ms)
        ):
            count += 1
        proved = p.config.cleanup_delete and p.config.retention_ms >= 0
        pthread_mutex_unlock(&p.lock)
        if proved:
            result = prove_expired(p, count, now_ms, &proved)
    return result


cdef Reason _expired(PartitionLog* p, Segment* s, int64_t next_base, int64_t now_ms, int64_t* excess) noexcept nogil:
    """Under the lock: why retention lets a segment go, if it does. `excess`: bytes above retention_bytes, counted
    down."""
    if next_base > p.high_watermark:
        return KEPT
    if next_base <= p.log.log_start != p.unchecked_start and s.sealed:
        return BY_LOG_START
    if not p.config.cleanup_delete:
        return KEPT
    if _too_old(p, s, now_ms) and s.proved:
        return BY_TIME
    if p.config.retention_bytes >= 0 and excess[0] - s.size >= 0:
        excess[0] -= s.size
        return BY_BYTES
    return KEPT


cdef size_t _expired_front(PartitionLog* p, int64_t now_ms, size_t most, Upkeep* out) noexcept nogil:
    """Under the lock: how many segments retention lets go, counted from the front, at most `most`. The active one may
    be among them. `out` (or NULL): how many for each reason."""
    cdef Reason reason
    cdef int64_t excess = -p.config.retention_bytes, next_base
    cdef size_t i, n = p.log.segments.size()
    for i in range(n):
        excess += p.log.segments[i].size
    for i in range(min(n, most)):
        next_base = p.log.segments[i + 1].base_offset if i + 1 < n else p.log.log_end
        if i + 1 == n and p.log.segments[i].size == 0:
            return i
        reason = _expired(p, p.log.segments[i], next_base, now_ms, &excess)
        if reason == KEPT:
            return i
        if out != NULL:
            out.by[<int>reason] += 1
    return min(n, most)


cdef int _take_expired(PartitionLog* p, int64_t now_ms, Upkeep* out) noexcept nogil:
    """Under the lock: takes expired segments off the front. An active segment that has expired is rolled first, so that
    the log keeps its end. Their files stay until remove_expired."""
    cdef size_t i, n = _expired_front(p, now_ms, SIZE_MAX, NULL)
    cdef int result = 0
    if n == p.log.segments.size():
        result = roll(p, now_ms)
        if result == 0:
            out.rolled = True
        else:
            n -= 1
    if n == 0:
        return result
    _expired_front(p, now_ms, n, out)
    for i in range(n):
        out.segments_deleted += 1
        out.bytes_deleted += p.log.segments[i].size
        out.newest_ms = max(out.newest_ms, segment_newest_ms(p.log.segments[i]))
        p.expired.push_back(p.log.segments[i])
    pthread_mutex_lock(&p.seldom)
    p.log.segments.erase(p.log.segments.begin(), p.log.segments.begin() + n)
    pthread_mutex_unlock(&p.seldom)
    if p.log.log_start < p.log.segments.front().base_offset:
        atomic_store64(&p.log.log_start, p.log.segments.front().base_offset)
        keep_above_log_start(p)
    return result


cdef bint is_flush_deferred(int64_t due_ms, int64_t now_ms) noexcept nogil:
    """Whether it is less than SEALED_FLUSH_DELAY_MS to go, however the clock was set meanwhile."""
    return 0 < due_ms - now_ms <= SEALED_FLUSH_DELAY_MS


cdef int flush_log(PartitionLog* p, bint all, int64_t now_ms, bint log_only) noexcept nogil:
    """With `upkeep` held: flushes sealed segments, the active one too if `all`; of that, `log_only`, not the indexes.
    What retention will delete in its next round isn't worth the disk's time. In logs that keep little and grow fast
    that shows only a moment after a segment was sealed, so the flush of each waits as long. 0 or errno."""
    cdef vector[Segment*] wanted
    cdef size_t i, expired, last
    cdef int64_t end, believed, due_ms
    cdef int result = 0
    cdef uint64_t wake = 0
    cdef bint fatal = False, deferred
    pthread_mutex_lock(&p.lock)
    take_config(p)
    last = p.log.segments.size() - 1
    expired = 0 if all else _expired_front(p, now_ms, SIZE_MAX, NULL)
    believed = p.log.segments[last].base_offset
    p.flush_at_ms = 0
    for i in range(last + 1 if all else last):
        if not p.log.segments[i].unflushed:
            continue
        due_ms = 0 if all else p.log.segments[i + 1].created_ms + SEALED_FLUSH_DELAY_MS
        deferred = i >= expired and is_flush_deferred(due_ms, now_ms)
        if deferred and p.flush_at_ms == 0:
            p.flush_at_ms = due_ms
        if i < expired or deferred:
            believed = min(believed, p.log.segments[i].base_offset)
        elif p.log.segments[i].size > 0:
            segment_retain(p.log.segments[i])
            wanted.push_back(p.log.segments[i])
    end = p.log.log_end if all else believed
    # Recovery believes the indexes of segments that end at or below the recovery point. The active one's are complete
    # on disk only once it is sealed and flushed again: until then the recovery point stays inside of it.
    if end > believed:
        believed = end - 1
    pthread_mutex_unlock(&p.lock)
    for i in range(wanted.size()):
        if result == 0 and log_only and not wanted[i].sealed:
            result = segment_flush_log(wanted[i], &fatal)
        elif result == 0:
            if wanted[i].sealed:
                result = segment_write_out(wanted[i], &fatal)
            if result == 0:
                result = segment_flush(wanted[i], &fatal)
        if result == 0 and wanted[i].sealed:
            result = producers_sync(snapshot_stem(p.log.folder, wanted[i].next_offset))
        segment_release(wanted[i])
    if result == 0 and wanted.size() > 0:
        result = sync_folder(p.log.folder.c_str())
        fatal = result != 0 and not is_shortage(result)
    pthread_mutex_lock(&p.lock)
    if result == 0:
        if believed > p.log.recovery_point:
            atomic_store64(&p.log.recovery_point, believed)
        if all:
            p.flushed_ms = now_ms
            atomic_store64(&p.log_end_flushed, end)
            p.owes_flush = p.owes_flush and p.log.log_end > end
            wake = advance_high_watermark(p)
    elif fatal or not is_passing(result):
        # The kernel has dropped what it couldn't write, and would report the next fsync as done: never try again.
        wake = fail_log(p, result)
    elif is_full(result):
        folder_ran_full(p.folder)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(<Partition*>p, wake)
    return result


cdef int flush_until(PartitionLog* p, int64_t end, int64_t now_ms) noexcept nogil:
    cdef int result = 0
    cdef bint wanted
    pthread_mutex_lock(&p.upkeep)
    atomic_store64(&p.flushing_since_ms, monotonic_ns() // 1_000_000)
    pthread_mutex_lock(&p.lock)
    wanted = p.log_end_flushed < end and not p.stopped     # a log is flushed when it is stopped
    if is_offline(p):
        result = EIO
    pthread_mutex_unlock(&p.lock)
    if wanted and result == 0:
        result = flush_log(p, True, now_ms, True)
    atomic_store64(&p.flushing_since_ms, 0)
    pthread_mutex_unlock(&p.upkeep)
    return result


cdef int remove_expired(PartitionLog* p, int64_t now_ms) noexcept nogil:
    cdef vector[Segment*] gone
    cdef size_t i
    cdef int result = 0, error
    cdef int64_t due_ms
    pthread_mutex_lock(&p.lock)
    if not p.stopped and not is_offline(p):
        gone.swap(p.expired)
    due_ms = later_ms(now_ms, p.config.file_delete_delay_ms)
    pthread_mutex_unlock(&p.lock)
    for i in range(gone.size()):
        producers_remove(snapshot_stem(p.log.folder, gone[i].base_offset))
        error = segment_retire(gone[i], due_ms, p.trash)
        segment_release(gone[i])
        if error != 0:
            result = error
    empty_trash(p.trash, now_ms)
    return result


cdef int upkeep_log(PartitionLog* p, int64_t now_ms, bint retain, Upkeep* out) noexcept nogil:
    cdef size_t i
    cdef int result, error, proven
    cdef bint all, halted
    cdef Segment* s
    out.segments_deleted = 0
    out.bytes_deleted = 0
    out.newest_ms = -1
    for i in range(REASONS):
        out.by[i] = 0
    out.rolled = False
    out.flushed = False
    pthread_mutex_lock(&p.lock)
    halted = p.stopped or is_offline(p)
    pthread_mutex_unlock(&p.lock)
    if halted:
        return 0
    proven = prove_doubted(p, now_ms)
    if proven == 0 and retain:
        proven = _prove_too_old(p, now_ms)
    pthread_mutex_lock(&p.lock)
    if p.stopped or is_offline(p):
        pthread_mutex_unlock(&p.lock)
        return 0
    take_config(p)
    producers_expire(&p.log.producers, now_ms, p.config.producer_id_expiration_ms)
    s = p.log.segments.back()
    result = 0
    if s.size > 0 and now_ms - s.created_ms > p.config.segment_ms - p.roll_jitter_ms:
        result = roll(p, now_ms)
        out.rolled = result == 0
    if result == 0 and retain:
        result = _take_expired(p, now_ms, out)
    if out.segments_deleted > 0 and cut_epochs(p):
        write_epochs(p, False)
    all = p.log.log_end > p.log_end_flushed and (
        is_flush_due(p)
        or now_ms - p.flushed_ms >= p.config.flush_ms
        # A flush in the future says that the clock was set back since, nobody knows when: the log is due.
        or (now_ms < p.flushed_ms and p.config.flush_ms < INT64_MAX)
    )
    if is_full(result):
        folder_ran_full(p.folder)
    pthread_mutex_unlock(&p.lock)
    empty_trash(p.trash, now_ms)
    error = flush_log(p, all, now_ms, False)
    result = result if result != 0 else error
    out.flushed = all and error == 0
    pthread_mutex_lock(&p.lock)
    for i in range(p.log.segments.size()):
        segment_close_idle(p.log.segments[i])
    pthread_mutex_unlock(&p.lock)
    result = result if result != 0 else proven
    return 0 if result == INDEX_WRONG else result      # its proof is the next round's


cdef bint give_back_if_idle(PartitionLog* p) noexcept nogil:
    cdef uint64_t wake = 0
    cdef int result = 0
    cdef bint halted, idle
    pthread_mutex_lock(&p.lock)
    halted = p.stopped or is_offline(p)
    idle = halted or p.log.log_end == p.ahead_end
    p.ahead_end = p.log.log_end
    if idle:
        atomic_store32(&p.ahead, False)
    if idle and not halted:
        result = segment_give_back(p.log.segments.back())
    if result != 0 and not is_passing(result):
        wake = fail_log(p, result)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(<Partition*>p, wake)
    return idle


cdef int prepare_log_sync(PartitionLog* p) noexcept nogil:
    """With `upkeep` held: what is in memory goes into its files, which the caller then syncs for all logs together."""
    cdef size_t i
    cdef int result = 0, error
    pthread_mutex_lock(&p.lock)
    if not p.stopped and not is_offline(p):
        segment_last_time(p.log.segments.back())
        p.epochs_unsynced = False      # its file is there; the sync that follows is its too
        for i in range(p.log.segments.size()):
            if p.log.segments[i].unflushed and p.log.segments[i].size > 0:
                error = segment_prepare_sync(p.log.segments[i])
                result = result if result != 0 else error
    pthread_mutex_unlock(&p.lock)
    return result
