"""Roles and replicas for the control plane; see replicatable.pyi."""

from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint64_t
from libcpp.vector cimport vector
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.linux.posix cimport (
    atomic_load32, atomic_load64, atomic_store32, eventfd_read, monotonic_ns, pthread_mutex_lock, pthread_mutex_unlock,
)
from penstock.pyx.log.lease cimport lease_is_over
from penstock.pyx.log.logtable cimport Folder, LeaderEntry, LogTable, raise_os
from penstock.pyx.log.partition cimport (
    COMMITTED_NOT_YET, CONTROL_PLANE, Partition, logset_lease, logset_set_lease, partition_committed, partition_index,
    partition_release, partition_topic, wake_reactors,
)
from penstock.pyx.log.partitionlog cimport PartitionLog, last_batch_epoch, log_of, mail_take
from penstock.pyx.log.removals cimport note_removed
from penstock.pyx.log.replicas cimport (
    RoleTerms, fence_log, follow_log, is_unsettled, isolate_log, lead_log, replica_fetched,
)
from penstock.pyx.log.role cimport (
    NO_BROKER, NO_EPOCH, ROLE_FENCED, ROLE_FOLLOWER, ROLE_LEADER, ROLE_OFFLINE, Mark, ReplicaFetch,
)


class Replica(NamedTuple):
    """A replica, as the leader is told of it; see replicatable.pyi."""

    broker: int
    in_isr: bool
    in_max: bool
    named_epoch: int


class ReplicaState(NamedTuple):
    """What a replica is and has; see replicatable.pyi."""

    role: str
    leader: int
    leader_epoch: int
    partition_epoch: int
    leads_since: int
    log_start: int
    high_watermark: int
    log_end: int
    last_epoch: int
    epoch_start: int
    removed_below: int


class MarkState(NamedTuple):
    """How far a replica has fetched; see replicatable.pyi."""

    broker: int
    broker_epoch: int
    end: int
    caught_up_ms: int
    fetched_ms: int
    end_at_fetch: int
    log_start: int
    removed_below: int


class FetchOutcome(NamedTuple):
    """What a replica's fetch is answered; see replicatable.pyi."""

    error: int
    high_watermark: int
    log_end: int
    diverging: tuple
    begins: bool
    removed_below: int


cdef void _hear(int fd) noexcept:
    """What comes from here on writes into the eventfd again."""
    cdef uint64_t count
    eventfd_read(fd, &count)


cdef list _let_go(const vector[Partition*]& taken):
    """Topic and partition of each, whose reference is released."""
    cdef const char* name
    cdef size_t i, n
    found = []
    for i in range(taken.size()):
        name = partition_topic(taken[i], &n)
        found.append((name[:n].decode(), partition_index(taken[i])))
        with nogil:
            partition_release(taken[i])
    return found


cdef dict _ROLES = {ROLE_LEADER: "leader", ROLE_FOLLOWER: "follower", ROLE_FENCED: "fenced", ROLE_OFFLINE: "offline"}


cdef class ReplicaTable(LogTable):
    """What the control plane tells of roles, and hears of replicas; see replicatable.pyi."""

    def open_replica(
        self, str topic, bytes topic_id, int partition, str folder, dict config, *, bint clean=False, bint new=True,
        bint power_cut=False
    ):
        """Open (or create) a log that nobody leads; see replicatable.pyi."""
        return self.open(topic, topic_id, partition, NO_EPOCH, folder, config, clean, new, power_cut, False)

    def set_leader(
        self, str topic, int partition, *, int64_t broker_epoch, int leader_epoch, int partition_epoch, list replicas,
        int enough, bint sole=False, int64_t now_ms=-1
    ):
        """Lead a partition, or hear of its members; see replicatable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef RoleTerms terms
        cdef vector[Mark] members
        cdef Mark mark
        cdef bint taken
        terms.broker_epoch = broker_epoch
        terms.leader = NO_BROKER
        terms.leader_epoch = leader_epoch
        terms.partition_epoch = partition_epoch
        terms.unclean_epoch = NO_EPOCH
        terms.enough = enough
        terms.sole = sole
        for broker, in_isr, in_max, named_epoch in replicas:
            mark.broker = broker
            mark.in_isr = in_isr
            mark.in_max = in_max
            mark.named_epoch = named_epoch
            members.push_back(mark)
        if now_ms < 0:
            now_ms = monotonic_ns() // 1_000_000
        with nogil:
            taken = lead_log(led.partition, &terms, members, now_ms)
        return bool(taken)

    def set_follower(
        self, str topic, int partition, *, int64_t broker_epoch, int leader, int leader_epoch, int partition_epoch,
        int unclean_epoch
    ):
        """Follow a leader, or wait for one; see replicatable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef RoleTerms terms
        cdef bint taken
        terms.broker_epoch = broker_epoch
        terms.leader = leader
        terms.leader_epoch = leader_epoch
        terms.partition_epoch = partition_epoch
        terms.unclean_epoch = unclean_epoch
        terms.enough = 0
        terms.sole = False
        with nogil:
            taken = follow_log(led.partition, &terms)
        return bool(taken)

    def set_lease(self, object until_ms):
        """Until when this broker surely leads; see replicatable.pyi."""
        logset_set_lease(self.set, INT64_MAX if until_ms is None else <int64_t>until_ms)

    def isolate(self, object silence_ms):
        """Refuse clients of partitions with a silent member; see replicatable.pyi."""
        cdef LeaderEntry led
        cdef int64_t silence = INT64_MAX if silence_ms is None else <int64_t>silence_ms
        cdef int64_t now_ms = monotonic_ns() // 1_000_000
        cdef bint isolated
        found = []
        with self.lock:
            every = list(self.led.values())
        for led in every:
            with nogil:
                isolated = isolate_log(led.partition, now_ms, silence)
            if isolated:
                found.append(led.key)
        return found

    def unsettled(self, int64_t lag_ms, int64_t now_ms):
        """Partitions at which their leader has to look; see replicatable.pyi."""
        cdef LeaderEntry led
        cdef vector[Partition*] held
        cdef vector[size_t] found
        cdef size_t i
        with self.lock:
            every = list(self.led.values())
        for led in every:
            held.push_back(led.partition)
        with nogil:
            for i in range(held.size()):
                if is_unsettled(held[i], now_ms, lag_ms):
                    found.push_back(i)
        return [(<LeaderEntry>every[found[i]]).key for i in range(found.size())]

    def fence(self, str topic, int partition):
        """Lead a partition no longer; see replicatable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        with nogil:
            fence_log(led.partition)

    def fence_all(self):
        """Lead nothing any more; see replicatable.pyi."""
        cdef LeaderEntry led
        cdef bint fenced
        found = []
        with self.lock:
            every = list(self.led.values())
        for led in every:
            with nogil:
                fenced = fence_log(led.partition)
            if fenced:
                found.append(led.key)
        return found

    def replica_state(self, str topic, int partition):
        """What a replica is and has; see replicatable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef int32_t role, leader, leader_epoch, partition_epoch, leads_since, last_epoch
        cdef int64_t log_start, high_watermark, log_end, epoch_start, removed_below
        with nogil:
            pthread_mutex_lock(&p.lock)
            role = p.role
            leader = p.leader_id
            leader_epoch = p.leader_epoch
            partition_epoch = p.partition_epoch
            leads_since = p.leads_since
            log_start = p.log.log_start
            high_watermark = p.high_watermark
            log_end = p.log.log_end
            last_epoch = last_batch_epoch(p)
            epoch_start = p.epoch_start
            removed_below = p.removed_below
            pthread_mutex_unlock(&p.lock)
        return ReplicaState(
            _ROLES[role], leader, leader_epoch, partition_epoch, leads_since, log_start, high_watermark, log_end,
            last_epoch, epoch_start, removed_below,
        )

    def marks(self, str topic, int partition):
        """How far the other replicas have fetched; see replicatable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef vector[Mark] marks
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&p.lock)
            marks = p.marks
            pthread_mutex_unlock(&p.lock)
        return [
            MarkState(
                marks[i].broker, marks[i].broker_epoch, marks[i].end, marks[i].caught_up_ms, marks[i].fetched_ms,
                marks[i].end_at_fetch, marks[i].log_start, marks[i].removed_below,
            )
            for i in range(marks.size())
        ]

    def take_entrants(self):
        """Partitions in which a replica may enter the ISR; see replicatable.pyi."""
        cdef Folder folder
        cdef vector[Partition*] taken
        cdef size_t i
        _hear(self.entrants_fd)
        with self.lock:
            folders = list(self.folders.values())
        for folder in folders:
            with nogil:
                mail_take(&folder.shared.entrants, taken)
        for i in range(taken.size()):
            atomic_store32(&log_of(taken[i]).entrant, 0)
        return _let_go(taken)

    def take_moved(self):
        """Partitions whose records may be committed by now; see replicatable.pyi."""
        cdef Folder folder
        cdef vector[Partition*] taken
        _hear(self.moved_fd)
        with self.lock:
            folders = list(self.folders.values())
        for folder in folders:
            with nogil:
                mail_take(&folder.shared.moved, taken)
        return _let_go(taken)

    def check_leads(self, str topic, int partition, bint latest=False):
        """Refuse what only a leader answers; see replicatable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        # Without the lock: the loop asks. A lead that begins sets its start before its role.
        if atomic_load32(&p.role) != ROLE_LEADER:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} is led by another broker")
        if atomic_load32(&p.isolated) or (
            latest and not atomic_load32(&p.sole) and lease_is_over(logset_lease(self.set))
        ):
            words = f"{topic}-{partition} may be led by another broker by now"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, words)
        if latest and atomic_load64(&p.high_watermark) < atomic_load64(&p.epoch_start):
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{topic}-{partition} has a leader that is new")

    def committed(self, str topic, int partition, int64_t needed, int leader_epoch, bint last=False):
        """Whether records are in all in-sync replicas; see replicatable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef int16_t answer
        with nogil:
            answer = partition_committed(led.partition, CONTROL_PLANE, needed, leader_epoch, last)
        return None if answer == COMMITTED_NOT_YET else answer

    def replica_fetched(
        self, str topic, int partition, *, int replica, int64_t broker_epoch, int leader_epoch, int64_t offset,
        int last_epoch, int64_t now_ms, int64_t log_start=0, bint moves=True
    ):
        """What a network thread does with a replica's fetch; see replicatable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef ReplicaFetch fetch
        cdef uint64_t wake = 0
        cdef int16_t error
        cdef int64_t high_watermark, log_end
        fetch.replica = replica
        fetch.broker_epoch = broker_epoch
        fetch.leader_epoch = leader_epoch
        fetch.offset = offset
        fetch.last_epoch = last_epoch
        fetch.log_start = log_start
        fetch.now_ms = now_ms
        fetch.moves = moves
        with nogil:
            pthread_mutex_lock(&p.lock)
            error = replica_fetched(p, &fetch, &wake)
            high_watermark = p.high_watermark
            log_end = p.log.log_end
            pthread_mutex_unlock(&p.lock)
            wake_reactors(led.partition, wake)
        diverging = (fetch.diverging_epoch, fetch.diverging_end) if fetch.diverged else None
        return FetchOutcome(error, high_watermark, log_end, diverging, fetch.begins, fetch.removed_below)

    def note_removed(self, str topic, int partition, int64_t below):
        """What a compaction pass does before it removes deletions; see replicatable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef int result
        with nogil:
            pthread_mutex_lock(&led.p.upkeep)
            result = note_removed(led.p, below)
            pthread_mutex_unlock(&led.p.upkeep)
        if result != 0:
            raise_os(result, led.p.log.folder)
