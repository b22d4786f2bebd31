"""A log opened, halted, closed; see lifecycle.pxd."""

from cython.operator cimport dereference as at, postincrement as step
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from penstock.pyx.linux.posix cimport EIO, atomic_store32, atomic_store64, pthread_mutex_lock, pthread_mutex_unlock
from penstock.pyx.log.epochproof cimport epochs_agree, epochs_learn
from penstock.pyx.log.epochs cimport epochs_assign, epochs_cut_start
from penstock.pyx.log.files cimport sync_folder, wall_ms
from penstock.pyx.log.index cimport INDEX_WRONG
from penstock.pyx.log.logstate cimport NOTE_EPOCHS, LogState, note
from penstock.pyx.log.partition cimport Partition, wake_reactors
from penstock.pyx.log.partitionlog cimport (
    PartitionLog, advance_high_watermark, doubt_segment, is_offline, keep_above_log_start, put_high_watermark,
    stable_end, take_all_waiting, write_epochs,
)
from penstock.pyx.log.producerstate cimport (
    NO_OFFSET, EndedTxn, producers_clear, producers_get, producers_read, producers_write, void_guards,
)
from penstock.pyx.log.proof cimport prove_doubted
from penstock.pyx.log.recovery cimport RecoveryReport, recover, remove_stray_snapshots, replay_batch, snapshot_stem
from penstock.pyx.log.role cimport ROLE_LEADER
from penstock.pyx.log.segment cimport (
    HEADERS_CHUNK, WALK_BATCH, LogWalk, Segment, segment_close_idle, segment_give_back, segment_hold_indexes,
    segment_last_time, segment_open, segment_write_checks, walk_begin, walk_next,
)
from penstock.pyx.log.upkeep cimport choose_jitter, flush_log
from penstock.pyx.record.batch cimport BatchHeader, batch_is_control


cdef bint _has_markers(const LogState* log) noexcept nogil:
    """Whether the producers know of any: a marker leaves its coordinator's epoch."""
    each = log.producers.entries.const_begin()
    while each != log.producers.entries.const_end():
        if at(each).second.coordinator_epoch >= 0:
            return True
        step(each)
    return False


cdef int _find_ended_in(PartitionLog* p, Segment* s, LogState* walked, int64_t now_ms) noexcept nogil:
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int64_t position
    cdef EndedTxn txn
    cdef int result = WALK_BATCH
    cdef int fd = segment_open(s, False)
    if fd < 0:
        return -fd
    walk_begin(&walk, fd, 0, s.size, HEADERS_CHUNK)
    while result == WALK_BATCH:
        position = walk.position
        result = walk_next(&walk, &header, &bytes, False)
        if result == WALK_BATCH and batch_is_control(&header):
            walk.position = position
            result = walk_next(&walk, &header, &bytes, True)
        if result != WALK_BATCH or header.magic < 2 or header.producer_id < 0:
            continue
        txn.first_offset = producers_get(&walked.producers, header.producer_id).txn_first_offset
        if batch_is_control(&header) and header.base_offset >= p.high_watermark and txn.first_offset != NO_OFFSET:
            txn.producer_id = header.producer_id
            txn.last_offset = header.base_offset
            txn.aborted = False
            p.ended.push_back(txn)
        replay_batch(walked, s, &header, bytes, position, False, now_ms)
    return -result if result < 0 else 0


cdef int _find_ended(PartitionLog* p, int64_t now_ms) noexcept nogil:
    """The transactions whose markers aren't below the high watermark, which the producers' states have forgotten: from
    the newest of the segments' snapshots that isn't above it. 0 or errno."""
    cdef LogState walked
    cdef size_t place = p.log.segments.size()
    cdef int64_t base
    cdef int result = 0
    if p.high_watermark >= p.log.log_end or not _has_markers(&p.log):
        return 0
    while place > 0:
        place -= 1
        base = p.log.segments[place].base_offset
        if base <= p.high_watermark and producers_read(&walked.producers, snapshot_stem(p.log.folder, base), now_ms):
            break
    while place < p.log.segments.size() and result == 0:
        result = _find_ended_in(p, p.log.segments[place], &walked, now_ms)
        place += 1
    producers_clear(&walked.producers)
    return result


cdef int _believe_high_watermark(PartitionLog* p, int64_t now_ms) noexcept nogil:
    """Of a log that nobody leads yet. 0 or errno."""
    cdef int result
    put_high_watermark(p, min(p.high_watermark, p.log.log_end))
    keep_above_log_start(p)
    result = _find_ended(p, now_ms)
    atomic_store64(&p.last_stable, stable_end(p))
    keep_above_log_start(p)
    return result


cdef int open_log(PartitionLog* p, int32_t leader_epoch, bint clean, RecoveryReport* report) noexcept nogil:
    """A partition whose folder is there, recovered and ready. 0 or errno."""
    cdef size_t i
    cdef int64_t now_ms = wall_ms()
    cdef int result = recover(&p.log, clean, now_ms, report)
    if result != 0:
        return result
    if not epochs_agree(&p.log):
        epochs_learn(&p.log)
        epochs_cut_start(&p.log.epochs, p.log.log_start)
        note(&p.log, NOTE_EPOCHS, 0, 0)
        write_epochs(p, False)         # should that fail, the next start learns them again
    if p.role == ROLE_LEADER:
        advance_high_watermark(p)
    else:
        result = _believe_high_watermark(p, now_ms)
        if result != 0:
            return result
    void_guards(&p.log.producers)
    p.flushed_ms = now_ms
    p.log_end_flushed = p.log.recovery_point
    p.leader_epoch = -1
    choose_jitter(p, now_ms)
    raise_epoch(p, leader_epoch)
    # Thousands of partitions are opened before the first upkeep: none keeps its files open.
    p.changed = report.batches_checked > 0 or report.cut_bytes > 0
    for i in range(p.log.segments.size()):
        p.changed = p.changed or (p.log.segments[i].unflushed and p.log.segments[i].size > 0)
        p.log.segments[i].touched = False
        p.log.segments[i].room.plain_size = p.log.segments[i].size
        segment_close_idle(p.log.segments[i])
    return 0


cdef void raise_epoch(PartitionLog* p, int32_t leader_epoch) noexcept nogil:
    """Under the lock: the epoch only grows, and begins at the log end."""
    if leader_epoch < p.leader_epoch:
        return
    atomic_store32(&p.leader_epoch, leader_epoch)
    if not p.log.epochs.entries.empty() and p.log.epochs.entries.back().epoch >= leader_epoch:
        return
    pthread_mutex_lock(&p.seldom)
    if epochs_assign(&p.log.epochs, leader_epoch, p.log.log_end):
        p.epochs_unwritten = True
    pthread_mutex_unlock(&p.seldom)


cdef void halt_log(PartitionLog* p) noexcept nogil:
    """No more appends or reads; whoever waits is told."""
    cdef uint64_t wake
    pthread_mutex_lock(&p.lock)
    atomic_store32(&p.stopped, True)
    wake = take_all_waiting(p)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(<Partition*>p, wake)


cdef int close_log(PartitionLog* p, int64_t now_ms) noexcept nogil:
    """With `upkeep` held and the partition halted: everything to the disk, so that the next start believes it. 0 or
    errno."""
    cdef int result = 0
    if is_offline(p):
        return EIO
    if not p.changed and p.log.recovery_point >= p.log.log_end - 1:
        return 0                       # as it was left by the last clean stop
    result = segment_give_back(p.log.segments.back())
    if result == 0:
        result = segment_hold_indexes(p.log.segments.back())
    if result == INDEX_WRONG:
        pthread_mutex_lock(&p.lock)
        doubt_segment(p, p.log.segments.back())
        pthread_mutex_unlock(&p.lock)
        result = prove_doubted(p, now_ms)
    if result == 0:
        segment_last_time(p.log.segments.back())
        result = flush_log(p, True, now_ms, False)
    if result == 0:
        segment_write_checks(p.log.segments.back())
    if result == 0:
        # Not synced: a snapshot that a power cut tears is found out by its checksum, and batches are replayed instead.
        result = producers_write(&p.log.producers, snapshot_stem(p.log.folder, p.log.log_end), False)
    if result == 0:
        remove_stray_snapshots(&p.log)
        if p.epochs_unsynced:
            result = write_epochs(p, True)
            result = sync_folder(p.log.folder.c_str()) if result == 0 else result
    return result
