"""A follower's log; see following.pxd."""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t

from penstock.pyx.errorcodes cimport KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER
from penstock.pyx.linux.posix cimport atomic_store32, pthread_mutex_lock, pthread_mutex_unlock
from penstock.pyx.log.append cimport Append, partition_append
from penstock.pyx.log.epochs cimport epochs_end_up_to
from penstock.pyx.log.files cimport wall_ms
from penstock.pyx.log.followerask cimport FollowerAsk, ask_fits
from penstock.pyx.log.index cimport RELATIVE_MAX
from penstock.pyx.log.logstate cimport NOTE_BEGUN_AGAIN, NOTE_COPY_OVERTAKEN, NOTE_HOLES, note
from penstock.pyx.log.origin cimport REPLICA
from penstock.pyx.log.partition cimport Partition, wake_reactors
from penstock.pyx.log.partitionlog cimport (
    PartitionLog, is_offline, last_batch_epoch, log_of, move_log_start, raise_high_watermark, tell_doubt,
)
from penstock.pyx.log.removals cimport note_removed
from penstock.pyx.log.role cimport NO_EPOCH, ROLE_FOLLOWER
from penstock.pyx.log.truncation cimport (
    CUT_ENDED, TAKE_DONE, TAKE_NOTHING, TAKE_REFUSED, TAKE_STALE, Truncation, amend_holes, truncation_close,
    truncation_open, truncation_plan, truncation_plan_whole, truncation_step, truncation_take,
)
from penstock.pyx.record.batch cimport BATCH_PARTIAL, MAGIC_2, BatchHeader, batch_last_offset, batch_parse

# What an answer has for a log.
cdef struct Brought:
    size_t n                           # bytes of whole batches that follow
    int64_t first_offset               # of the first batch; -1: of a message set, whose last offset alone is known
    int64_t last_offset                # of the same
    int64_t hole_from                  # the first offset that is missing; -1: none is
    int64_t hole_to


cdef bint follower_ask(Partition* partition, FollowerAsk* out) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef bint follows
    pthread_mutex_lock(&p.lock)
    follows = p.role == ROLE_FOLLOWER and not p.stopped and not p.cutting and not is_offline(p)
    out.leader_id = p.leader_id
    out.broker_epoch = p.broker_epoch
    out.leader_epoch = p.leader_epoch
    out.offset = p.log.log_end
    out.last_epoch = last_batch_epoch(p)
    out.log_start = p.log.log_start
    pthread_mutex_unlock(&p.lock)
    return follows


cdef bint _look(const FollowerAsk* ask, const uint8_t* records, size_t n, Brought* out) noexcept nogil:
    """What of the answer follows: epochs don't fall, and none is above the asked one. (The leader's bytes may be read
    long after it decided which to send; if its log was cut meanwhile, others come.) False: it is damaged."""
    cdef BatchHeader header
    cdef int64_t expected = ask.offset
    cdef int32_t last_epoch = ask.last_epoch
    cdef int fault
    out.n = 0
    out.first_offset = out.last_offset = out.hole_from = out.hole_to = -1
    while out.n < n:
        fault = batch_parse(records + out.n, n - out.n, &header)
        if fault == BATCH_PARTIAL:
            break
        if fault != 0:
            return False
        if header.magic >= MAGIC_2:
            if not last_epoch <= header.leader_epoch <= ask.leader_epoch:
                break
            last_epoch = header.leader_epoch
            if header.base_offset - expected > RELATIVE_MAX:
                return False
            if header.base_offset > expected and out.hole_from < 0:
                out.hole_from = expected
                out.hole_to = header.base_offset
        if out.n == 0:
            out.first_offset = header.base_offset if header.magic >= MAGIC_2 else <int64_t>-1
            out.last_offset = batch_last_offset(&header)
        expected = batch_last_offset(&header) + 1
        out.n += <size_t>header.size
    return out.n > 0


cdef FollowResult _note_holes(PartitionLog* p, const FollowerAsk* ask, const Brought* brought) noexcept nogil:
    """The leader's log was compacted: from now on this one may have holes, too, which the next start must not take for
    damage. No checksum covers a base offset, so the first hole has to come twice."""
    cdef int result = 0
    cdef bint dense, seen
    pthread_mutex_lock(&p.upkeep)
    pthread_mutex_lock(&p.lock)
    dense = p.log.dense and ask_fits(p, ask)
    seen = p.hole_from == brought.hole_from and p.hole_to == brought.hole_to
    p.hole_from = brought.hole_from
    p.hole_to = brought.hole_to
    pthread_mutex_unlock(&p.lock)
    if dense and not seen:
        pthread_mutex_unlock(&p.upkeep)
        return FOLLOW_ROTTEN
    if dense:
        result = amend_holes(p)
        if result == 0:
            result = note_removed(p, 0)
    if dense and result == 0:
        pthread_mutex_lock(&p.lock)
        p.log.dense = False
        if not p.config.cleanup_compact:
            note(&p.log, NOTE_HOLES, brought.hole_from, brought.hole_to)
            atomic_store32(&p.doubted, 1)
            tell_doubt(p)              # who hears of that says the note
        pthread_mutex_unlock(&p.lock)
    pthread_mutex_unlock(&p.upkeep)
    return FOLLOW_DONE if result == 0 else FOLLOW_DISK


cdef FollowResult _take_over_removed(PartitionLog* p, const FollowerAsk* ask, int64_t removed_below) noexcept nogil:
    """What the leader's log lacks, this one is about to lack, too: on the disk before the records are. So it has holes,
    which need not come twice."""
    cdef int result = 0
    cdef bint fits, dense
    pthread_mutex_lock(&p.upkeep)
    pthread_mutex_lock(&p.lock)
    fits = ask_fits(p, ask)
    dense = p.log.dense
    pthread_mutex_unlock(&p.lock)
    if fits:
        result = note_removed(p, removed_below)
    if fits and dense and result == 0:
        result = amend_holes(p)
        if result == 0:
            pthread_mutex_lock(&p.lock)
            p.log.dense = False
            pthread_mutex_unlock(&p.lock)
    pthread_mutex_unlock(&p.upkeep)
    if not fits:
        return FOLLOW_STALE
    return FOLLOW_DONE if result == 0 else FOLLOW_DISK


cdef FollowResult _cut(
    PartitionLog* p, Truncation* t, const FollowerAsk* ask, int planned
) noexcept nogil:
    """What was planned (0 or errno), to its end."""
    cdef int taken, result = planned
    if planned == 0:
        taken = truncation_take(p, t, ask)
        if taken != TAKE_DONE:
            truncation_close(p, t)
            if taken == TAKE_NOTHING:
                return FOLLOW_DONE
            return FOLLOW_STALE if taken == TAKE_STALE else FOLLOW_REFUSED if taken == TAKE_REFUSED else FOLLOW_DISK
        while result == 0 and t.step != CUT_ENDED:
            result = truncation_step(p, t)
    truncation_close(p, t)
    return FOLLOW_DONE if result == 0 else FOLLOW_DISK


cdef FollowResult _begin_at(
    PartitionLog* p, const FollowerAsk* ask, int64_t end, int64_t log_start, int64_t high_watermark
) noexcept nogil:
    cdef Truncation t
    truncation_open(p, &t, wall_ms())
    return _cut(p, &t, ask, truncation_plan_whole(p, &t, end, log_start, high_watermark))


cdef bint _begins_below(PartitionLog* p, const Brought* brought) noexcept nogil:
    """Whether the log is empty and begins within the first batch: its leader's log start does (DeleteRecords)."""
    cdef bint begins
    pthread_mutex_lock(&p.lock)
    begins = (
        0 <= brought.first_offset < p.log.log_end <= brought.last_offset
        and p.log.log_start == p.log.log_end
        and p.log.segments.size() == 1
        and p.log.segments[0].size == 0
    )
    pthread_mutex_unlock(&p.lock)
    return begins


cdef FollowResult _append(PartitionLog* p, const FollowerAsk* ask, uint8_t* records, size_t n) noexcept nogil:
    cdef Append part
    cdef Append* parts = &part
    cdef int64_t may_inflate = INT64_MAX
    cdef int64_t work_left = INT64_MAX
    part.records = records
    part.n = n
    part.origin = REPLICA
    part.ask = ask
    part.acks_all = False
    part.led_since = NO_EPOCH
    part.guard = 0
    part.lease_until_ms = NULL
    part.may_inflate = &may_inflate
    part.work_left = &work_left
    part.checked = NULL
    partition_append(<Partition*>p, &parts, 1)
    if part.done.error == 0:
        return FOLLOW_DONE
    if part.done.error == NOT_LEADER_OR_FOLLOWER:
        return FOLLOW_STALE
    return FOLLOW_DISK if part.done.error == KAFKA_STORAGE_ERROR else FOLLOW_ROTTEN


cdef FollowResult _advance(
    PartitionLog* p, const FollowerAsk* ask, int64_t high_watermark, int64_t log_start
) noexcept nogil:
    """High watermark and log start as told, after the records."""
    cdef uint64_t wake = 0
    cdef FollowResult result = FOLLOW_STALE
    pthread_mutex_lock(&p.lock)
    if ask_fits(p, ask):
        result = FOLLOW_DONE
        wake = raise_high_watermark(p, min(high_watermark, p.log.log_end))
        log_start = min(log_start, p.high_watermark)
        if log_start > p.log.log_start:
            move_log_start(p, log_start)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(<Partition*>p, wake)
    return result


cdef FollowResult follower_append(
    Partition* partition, const FollowerAsk* asked, uint8_t* records, size_t n, int64_t high_watermark,
    int64_t log_start, int64_t removed_below
) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef FollowerAsk ask = asked[0]
    cdef FollowerAsk after
    cdef FollowResult result = FOLLOW_DONE
    cdef Brought brought
    cdef bint begins_below = False
    if n > 0:
        if not _look(&ask, records, n, &brought):
            return FOLLOW_ROTTEN
        if removed_below > ask.offset:
            result = _take_over_removed(p, &ask, removed_below)
            if result != FOLLOW_DONE:
                return result
        begins_below = _begins_below(p, &brought)
        if begins_below:
            result = _begin_at(p, &ask, brought.first_offset, asked.offset, asked.offset)
            ask.offset = brought.first_offset
            ask.last_epoch = -1
        elif brought.hole_from >= 0 and p.log.dense:
            result = _note_holes(p, &ask, &brought)
        if result == FOLLOW_DONE:
            result = _append(p, &ask, records, brought.n)
            if begins_below and result == FOLLOW_ROTTEN:
                _begin_at(p, &ask, asked.offset, asked.offset, asked.offset)
        if result != FOLLOW_DONE:
            return result
        follower_ask(partition, &after)        # nobody else appends to it
        ask.offset = after.offset
        ask.last_epoch = after.last_epoch
    return _advance(p, &ask, high_watermark, log_start)


cdef FollowResult follower_cut(
    Partition* partition, const FollowerAsk* ask, int32_t epoch, int64_t end_offset
) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef Truncation t
    cdef int64_t offset
    cdef bint fits
    truncation_open(p, &t, wall_ms())
    pthread_mutex_lock(&p.lock)
    fits = ask_fits(p, ask)
    offset = max(min(end_offset, epochs_end_up_to(&p.log.epochs, epoch, p.log.log_end)), <int64_t>0)
    pthread_mutex_unlock(&p.lock)
    if not fits:
        truncation_close(p, &t)
        return FOLLOW_STALE
    return _cut(p, &t, ask, truncation_plan(p, &t, offset))


cdef void _tell_begun_again(PartitionLog* p, int64_t offset, int64_t removed_below, bint again) noexcept nogil:
    pthread_mutex_lock(&p.lock)
    note(&p.log, NOTE_COPY_OVERTAKEN if again else NOTE_BEGUN_AGAIN, offset, removed_below)
    atomic_store32(&p.doubted, 1)
    tell_doubt(p)                      # who hears of that says the note
    pthread_mutex_unlock(&p.lock)


cdef FollowResult follower_begin(
    Partition* partition, const FollowerAsk* ask, int64_t log_start, int64_t removed_below, bint again
) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef FollowResult result
    # Never because of an offset above the leader's end: what this log has is cut where it leaves the leader's.
    if ask.offset >= log_start and ask.offset >= removed_below:
        return FOLLOW_STALE
    result = _begin_at(p, ask, log_start, log_start, log_start)
    if result == FOLLOW_DONE and ask.offset < removed_below:
        _tell_begun_again(p, ask.offset, removed_below, again)
    return result
