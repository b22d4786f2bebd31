"""Roles, and what other replicas have fetched; see replicas.pxd."""

from penstock.pyx.errorcodes cimport (
    FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, STALE_BROKER_EPOCH, UNKNOWN_LEADER_EPOCH,
)
from penstock.pyx.linux.posix cimport (
    atomic_load32, atomic_store32, atomic_store64, pthread_mutex_lock, pthread_mutex_unlock,
)
from penstock.pyx.log.epochs cimport epochs_cut_end, epochs_end
from penstock.pyx.log.lifecycle cimport raise_epoch
from penstock.pyx.log.partition cimport wake_reactors
from penstock.pyx.log.partitionlog cimport (
    advance_high_watermark, last_batch_epoch, log_of, take_all_waiting, tell_entrant,
)
from penstock.pyx.log.producerstate cimport void_guards
from penstock.pyx.log.role cimport (
    NO_BROKER, NO_EPOCH, ROLE_FENCED, ROLE_FOLLOWER, ROLE_LEADER, ROLE_OFFLINE, ReplicaFetch, Role,
)


cdef int64_t LONG_AGO_MS = -(<int64_t>1 << 62)


# --- roles --------------------------------------------------------------------------------------------------
cdef bint _is_older(const PartitionLog* p, const RoleTerms* terms) noexcept nogil:
    # With a store that was put back from a copy versions and zxids begin again lower, but never a leader epoch.
    cdef bint is_same = terms.leader_epoch == p.leader_epoch and p.partition_epoch != NO_EPOCH
    return (
        terms.leader_epoch < p.leader_epoch
        or (is_same and terms.partition_epoch < p.partition_epoch)
        or (is_same and p.broker_epoch != NO_EPOCH and terms.broker_epoch < p.broker_epoch)
        or last_batch_epoch(p) > terms.leader_epoch
    )


cdef bint _is_new_epoch(const PartitionLog* p, const RoleTerms* terms) noexcept nogil:
    """The first role that is told is new in any case."""
    return p.partition_epoch == NO_EPOCH or terms.leader_epoch > p.leader_epoch


cdef void _drop_lead(PartitionLog* p, Role role) noexcept nogil:
    atomic_store32(&p.role, role)
    atomic_store32(&p.sole, 0)
    atomic_store32(&p.isolated, 0)
    p.leads_since = NO_EPOCH
    p.isr_n = 0
    p.enough = 0
    p.marks.clear()
    void_guards(&p.log.producers)


cdef void _begin_lead(
    PartitionLog* p, const RoleTerms* terms, const vector[Mark]& members, int64_t now_ms
) noexcept nogil:
    """The new leader keeps its whole log and cuts nothing. The members' time to catch up begins now."""
    cdef size_t i
    if p.role != ROLE_LEADER or p.leads_since == NO_EPOCH:
        p.leads_since = terms.leader_epoch
    atomic_store64(&p.epoch_start, p.log.log_end)
    atomic_store32(&p.role, ROLE_LEADER)
    void_guards(&p.log.producers)
    atomic_store32(&p.isolated, 0)
    p.marks = members
    for i in range(p.marks.size()):
        p.marks[i].broker_epoch = NO_EPOCH
        p.marks[i].end = 0
        p.marks[i].log_start = 0
        p.marks[i].caught_up_ms = now_ms if p.marks[i].in_isr else LONG_AGO_MS
        p.marks[i].fetched_ms = LONG_AGO_MS
        p.marks[i].end_at_fetch = 0
        p.marks[i].removed_below = 0
    raise_epoch(p, terms.leader_epoch)


cdef Mark* _mark_of(vector[Mark]& marks, int32_t broker) noexcept nogil:
    cdef size_t i
    for i in range(marks.size()):
        if marks[i].broker == broker:
            return &marks[i]
    return NULL


cdef void _change_members(
    PartitionLog* p, bint newer, const vector[Mark]& members, int64_t now_ms
) noexcept nogil:
    """`newer`: the members are of a newer state; else a proposal of this broker has changed them, or a registration."""
    cdef vector[Mark] marks = members
    cdef Mark* mark
    cdef const Mark* before
    cdef Mark known
    cdef size_t i
    for i in range(marks.size()):
        mark = &marks[i]
        mark.broker_epoch = NO_EPOCH
        mark.end = 0
        mark.log_start = 0
        mark.caught_up_ms = LONG_AGO_MS
        mark.fetched_ms = LONG_AGO_MS
        mark.end_at_fetch = 0
        mark.removed_below = 0
        before = _mark_of(p.marks, mark.broker)
        known = before[0] if before != NULL else mark[0]
        if before != NULL:
            known.in_isr = mark.in_isr
            known.in_max = mark.in_max
            known.named_epoch = mark.named_epoch
        if newer and mark.in_isr and (before == NULL or not before.in_isr):
            known.caught_up_ms = max(known.caught_up_ms, now_ms)
        marks[i] = known
    p.marks.swap(marks)


cdef void _count_members(PartitionLog* p, const RoleTerms* terms) noexcept nogil:
    """This broker is one of them."""
    cdef size_t i
    p.enough = terms.enough
    atomic_store32(&p.sole, terms.sole)
    p.isr_n = 1
    for i in range(p.marks.size()):
        p.marks[i].in_max = p.marks[i].in_max or p.marks[i].in_isr
        p.isr_n += p.marks[i].in_isr


cdef bint lead_log(
    Partition* partition, const RoleTerms* terms, const vector[Mark]& members, int64_t now_ms
) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef uint64_t wake = 0
    cdef bint taken, fresh, newer
    pthread_mutex_lock(&p.lock)
    taken = not p.stopped and not _is_older(p, terms)
    if taken:
        fresh = _is_new_epoch(p, terms)
        newer = terms.partition_epoch > p.partition_epoch
        p.leader_id = terms.leader
        p.broker_epoch = terms.broker_epoch
        p.partition_epoch = terms.partition_epoch
        if fresh or p.role == ROLE_OFFLINE or p.role == ROLE_FOLLOWER:
            _begin_lead(p, terms, members, now_ms)
        elif p.role == ROLE_LEADER:
            _change_members(p, newer, members, now_ms)
        if p.role == ROLE_LEADER:                     # one that was fenced doesn't lead the same epoch again
            _count_members(p, terms)
        wake = take_all_waiting(p) | advance_high_watermark(p)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(partition, wake)
    return taken


cdef void _forget_empty_epochs(PartitionLog* p) noexcept nogil:
    """Epochs in which this broker led and appended nothing: a follower names the epoch of its last batch."""
    pthread_mutex_lock(&p.seldom)
    if epochs_cut_end(&p.log.epochs, p.log.log_end):
        p.epochs_unwritten = False
    pthread_mutex_unlock(&p.seldom)


cdef bint follow_log(Partition* partition, const RoleTerms* terms) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef uint64_t wake = 0
    cdef bint taken, fresh
    pthread_mutex_lock(&p.lock)
    taken = not p.stopped and not _is_older(p, terms)
    if taken:
        fresh = _is_new_epoch(p, terms)
        p.leader_id = terms.leader
        p.broker_epoch = terms.broker_epoch
        p.partition_epoch = terms.partition_epoch
        p.unclean_epoch = terms.unclean_epoch
        atomic_store32(&p.leader_epoch, terms.leader_epoch)
        if terms.leader == NO_BROKER:
            _drop_lead(p, ROLE_FENCED)
        elif fresh or p.role != ROLE_OFFLINE:
            _drop_lead(p, ROLE_FOLLOWER)
        _forget_empty_epochs(p)
        wake = take_all_waiting(p)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(partition, wake)
    return taken


cdef bint isolate_log(Partition* partition, int64_t now_ms, int64_t silence_ms) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef uint64_t wake = 0
    cdef int32_t isolated = 0
    cdef size_t i
    pthread_mutex_lock(&p.lock)
    for i in range(p.marks.size() if p.role == ROLE_LEADER else 0):
        # A member's time begins with the lead, or with its entry.
        if p.marks[i].in_max and now_ms - max(p.marks[i].fetched_ms, p.marks[i].caught_up_ms) > silence_ms:
            isolated = 1
    if isolated:
        wake = take_all_waiting(p)
    atomic_store32(&p.isolated, isolated)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(partition, wake)
    return isolated


cdef bint is_unsettled(Partition* partition, int64_t now_ms, int64_t lag_ms) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef int32_t role = atomic_load32(&p.role)
    cdef bint unsettled = False
    cdef size_t i
    if role != ROLE_LEADER:  # Without the lock: a log that another leads may be at a disk that hangs.
        return role != ROLE_FOLLOWER
    pthread_mutex_lock(&p.lock)
    for i in range(p.marks.size() if p.role == ROLE_LEADER else 0):
        if p.marks[i].in_isr and now_ms - p.marks[i].caught_up_ms > lag_ms:
            unsettled = True
    pthread_mutex_unlock(&p.lock)
    return unsettled


cdef bint fence_log(Partition* partition) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef uint64_t wake = 0
    cdef bint led
    pthread_mutex_lock(&p.lock)
    led = p.role == ROLE_LEADER
    if led:
        _drop_lead(p, ROLE_FENCED)
        wake = take_all_waiting(p)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(partition, wake)
    return led


# --- fetches ------------------------------------------------------------------------------------------------
cdef bint _has_diverged(PartitionLog* p, ReplicaFetch* fetch) noexcept nogil:
    """Whether the follower's log isn't a part of this one, by the epoch of its last batch (KIP-101, KIP-279, KIP-595).
    An epoch from before the first one that is known ended where that begins."""
    cdef int32_t newest = last_batch_epoch(p)
    if fetch.offset == 0 or fetch.last_epoch == NO_EPOCH:
        return False
    if fetch.last_epoch > newest:
        fetch.diverging_epoch = newest if newest != NO_EPOCH else fetch.last_epoch
        fetch.diverging_end = p.log.log_end
    else:
        pthread_mutex_lock(&p.seldom)
        epochs_end(&p.log.epochs, fetch.last_epoch, p.log.log_end, &fetch.diverging_epoch, &fetch.diverging_end)
        pthread_mutex_unlock(&p.seldom)
    return fetch.diverging_epoch != fetch.last_epoch or fetch.offset > fetch.diverging_end


cdef bint _keeps_deleted(const PartitionLog* p, const Mark* mark, const ReplicaFetch* fetch) noexcept nogil:
    """Whether the follower's log may have what a deletion deleted that isn't in this one any more. A log that is empty
    has nothing; one whose last fetch was taken under the same `removed_below` lacks none that was removed since. A
    member of the ISR has all below the high watermark, which compaction doesn't pass."""
    if fetch.last_epoch == NO_EPOCH and fetch.offset <= p.log.log_start:
        return False
    if mark.in_isr and fetch.broker_epoch == mark.named_epoch:
        return False
    return fetch.broker_epoch != mark.broker_epoch or mark.removed_below != p.removed_below


cdef void _move_mark(Mark* mark, const ReplicaFetch* fetch, const PartitionLog* p) noexcept nogil:
    """The replica has everything below the fetch's offset. Caught up: it has all that there is, or all that there was
    at its last fetch (a follower of a steady stream is never at the very end)."""
    if fetch.broker_epoch > mark.broker_epoch:
        mark.fetched_ms = LONG_AGO_MS
        mark.end_at_fetch = p.log.log_end
    if fetch.offset >= p.log.log_end:
        mark.caught_up_ms = fetch.now_ms
    elif fetch.offset >= mark.end_at_fetch and mark.fetched_ms > mark.caught_up_ms:
        mark.caught_up_ms = mark.fetched_ms
    mark.broker_epoch = fetch.broker_epoch
    mark.end = fetch.offset
    mark.log_start = fetch.log_start
    mark.fetched_ms = fetch.now_ms
    mark.end_at_fetch = p.log.log_end
    mark.removed_below = p.removed_below


cdef int16_t replica_fetched(PartitionLog* p, ReplicaFetch* fetch, uint64_t* wake) noexcept nogil:
    cdef Mark* mark
    fetch.diverged = False
    fetch.begins = False
    fetch.removed_below = 0
    if p.role != ROLE_LEADER:
        return NOT_LEADER_OR_FOLLOWER
    if fetch.leader_epoch < p.leader_epoch:
        return FENCED_LEADER_EPOCH
    if fetch.leader_epoch > p.leader_epoch:
        _drop_lead(p, ROLE_FENCED)
        wake[0] |= take_all_waiting(p)
        return UNKNOWN_LEADER_EPOCH
    mark = _mark_of(p.marks, fetch.replica)
    if mark == NULL:
        return NOT_LEADER_OR_FOLLOWER
    if fetch.broker_epoch < mark.broker_epoch:
        return STALE_BROKER_EPOCH
    if fetch.offset < p.log.log_start:                # whatever its epochs: its log begins again at this log's start
        return OFFSET_OUT_OF_RANGE
    fetch.diverged = _has_diverged(p, fetch)
    if fetch.diverged:
        return 0
    if fetch.offset > p.log.log_end:
        return OFFSET_OUT_OF_RANGE
    if fetch.offset < p.removed_below:
        fetch.removed_below = p.removed_below
        fetch.begins = _keeps_deleted(p, mark, fetch)
        if fetch.begins:
            return OFFSET_OUT_OF_RANGE
    if fetch.moves:
        _move_mark(mark, fetch, p)
        wake[0] |= advance_high_watermark(p)
        if not mark.in_max and mark.end >= max(p.high_watermark, p.epoch_start):
            tell_entrant(p)
    return 0
