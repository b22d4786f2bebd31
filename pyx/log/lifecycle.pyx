"""A log opened, halted, closed; see lifecycle.pxd."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from penstock.pyx.linux.posix cimport EIO, atomic_store32, pthread_mutex_lock, pthread_mutex_unlock
from penstock.pyx.log.epochproof cimport epochs_agree, epochs_learn
from penstock.pyx.log.epochs cimport epochs_assign, epochs_cut_start
from penstock.pyx.log.files cimport sync_folder, wall_ms
from penstock.pyx.log.index cimport INDEX_WRONG
from penstock.pyx.log.logstate cimport NOTE_EPOCHS, note
from penstock.pyx.log.partition cimport Partition, wake_reactors
from penstock.pyx.log.partitionlog cimport (
    PartitionLog, advance_high_watermark, doubt_segment, is_offline, stable_end, take_all_waiting, write_epochs,
)
from penstock.pyx.log.producerstate cimport producers_write
from penstock.pyx.log.proof cimport prove_doubted
from penstock.pyx.log.recovery cimport RecoveryReport, recover, remove_stray_snapshots, snapshot_stem
from penstock.pyx.log.segment cimport (
    segment_close_idle, segment_give_back, segment_hold_indexes, segment_last_time, segment_write_checks,
)
from penstock.pyx.log.upkeep cimport choose_jitter, flush_log

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
    advance_high_watermark(p, p.log.log_end, stable_end(p))
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
