"""One replica of a partition on one broker: its role, its epochs, its high watermark.

    NONE ──► LEADER ◄──► FOLLOWER ──► OFFLINE   a cut below the high watermark was refused
                │            ▲
                └─► FENCED ──┘                  nobody leads, or this broker's registration is over

A role changes only by a state that isn't older: by leader epoch, and by partition epoch within one leader epoch. A replica that
was fenced doesn't lead the same epoch again: the controller gives a new epoch to a leader that registered again (*two
histories of one epoch*).

A log that should be there and isn't, or is damaged, is answered with KAFKA_STORAGE_ERROR. The controller takes this broker out
of that ISR and ELR, and only then the log is made, empty, as a follower's (*a removed folder that comes back empty and leads*).
The caller has to remember that a log isn't whole until a role was taken, through restarts, too: recovery cuts a damaged log, so
the next start finds one that is whole, only shorter (*and with its seat*).

A log whose last epoch is above the one that is told, or a role of a later epoch, is answered with FENCED_LEADER_EPOCH and that
epoch; the controller goes on above it (*a store that was restored from a copy gives an epoch twice*). Then versions and zxids
begin again lower: so the leader epoch alone decides where it differs.

A leader epoch that elections can't have reached is refused (`is_out_of_reach`). Once a log had it, the controller would have to
go on above it. Nobody can lead in an epoch of more than 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from penstock.broker.cluster import follower, leader
from penstock.broker.cluster.follower import Decision
from penstock.broker.cluster.leader import Leader
from penstock.broker.cluster.leaderandisr import NO_EPOCH, NO_LEADER, LeaderAndIsr
from penstock.broker.cluster.log import Log
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    Fetch,
    Fetched,
    Partition,
    PartitionRole,
    RoleAnswer,
)
from penstock.errors import ErrorCode

REACHABLE_EPOCH = 1 << 30
"""No partition has so many elections: one a second takes 34 years."""
EPOCH_STEP = 1_000
"""Above it, an epoch is believed that is so far above the newest known one, at most."""


class Role(Enum):
    """What a replica does."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"
    FENCED = "fenced"
    OFFLINE = "offline"


@dataclass(slots=True)
class Replica:
    """A replica on one broker, from the start of its process on."""

    broker: int
    partition: Partition
    high_watermark: int  # at the start: the checkpoint's, which is some seconds old
    role: Role = Role.NONE
    newest_role: PartitionRole | None = None  # that the broker has heard of
    broker_epoch: int = NO_EPOCH  # of the registration to which the role was told
    leads_since: int | None = None  # the epoch from which on this broker led without a pause
    leader: Leader | None = None

    @property
    def state(self) -> LeaderAndIsr | None:
        """The newest state that the broker has heard of."""
        return None if self.newest_role is None else self.newest_role.state

    @property
    def is_enough(self) -> bool:
        """Whether this broker leads, with min.insync.replicas members in the ISR."""
        return self.leader is not None and self.leader.is_enough


def on_role(
    replica: Replica,
    role: PartitionRole,
    broker_epoch: int,
    log: Log,
    now_ms: int,
    *,
    is_whole: bool = True,
) -> RoleAnswer:
    """Take a role. is_whole: the log is there, and recovery found in it all that it should hold."""
    state, newest = role.state, replica.state
    if newest is not None and _is_older(replica, state, newest, broker_epoch):
        return RoleAnswer(ErrorCode.FENCED_LEADER_EPOCH, newest.leader_epoch, log.end)
    if log.last_epoch > state.leader_epoch:
        return RoleAnswer(ErrorCode.FENCED_LEADER_EPOCH, log.last_epoch, log.end)
    if is_out_of_reach(state.leader_epoch, log.last_epoch if newest is None else max(log.last_epoch, newest.leader_epoch)):
        return RoleAnswer(ErrorCode.INVALID_REQUEST)
    if not is_whole and holds_seat(replica.broker, state):
        return RoleAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
    is_new_epoch = newest is None or state.leader_epoch > newest.leader_epoch
    replica.newest_role, replica.broker_epoch = role, broker_epoch
    if state.leader == replica.broker:
        if replica.leader is not None and not is_new_epoch:
            leader.on_state(replica.leader, role, now_ms)
        elif is_new_epoch or replica.role is not Role.FENCED:
            _lead(replica, role, broker_epoch, log, now_ms)
    elif state.leader == NO_LEADER:
        _drop_lead(replica, Role.FENCED)
    elif is_new_epoch or replica.role is not Role.OFFLINE:
        _drop_lead(replica, Role.FOLLOWER)
    move_high_watermark(replica, log)
    return RoleAnswer(ErrorCode.NONE, log.last_epoch, log.end)


def on_stored(replica: Replica, state: LeaderAndIsr, broker_epoch: int, log: Log, now_ms: int) -> bool:
    """Take what the store has of a partition that is led here, as this broker has read it by itself. Whether another one leads
    by now; it is followed then, as if the controller had said so. A lead is taken from the controller alone.
    """
    newest = replica.newest_role
    if replica.leader is None or newest is None or broker_epoch != replica.broker_epoch:
        return False
    if not state.is_of(newest.topic_id) or state.leader == replica.broker:
        return False
    if state.leader_epoch <= newest.state.leader_epoch:
        return False
    return on_role(replica, replace(newest, state=state), broker_epoch, log, now_ms).error == ErrorCode.NONE


def _is_older(replica: Replica, state: LeaderAndIsr, newest: LeaderAndIsr, broker_epoch: int) -> bool:
    """Whether a state is older than the newest that this broker has heard of."""
    if state.leader_epoch != newest.leader_epoch:
        return state.leader_epoch < newest.leader_epoch
    return state.partition_epoch < newest.partition_epoch or (
        replica.broker_epoch != NO_EPOCH and broker_epoch < replica.broker_epoch
    )


def is_out_of_reach(leader_epoch: int, known: int) -> bool:
    """Whether elections can't have reached a leader epoch. `known` is the newest that this broker has heard of."""
    return leader_epoch > max(known, REACHABLE_EPOCH) + EPOCH_STEP


def holds_seat(broker: int, state: LeaderAndIsr) -> bool:
    """Whether a log that isn't there contradicts the state: this broker may lead, and somebody has led."""
    return not state.is_new and broker in state.seats and broker not in state.unclean


def _lead(replica: Replica, role: PartitionRole, broker_epoch: int, log: Log, now_ms: int) -> None:
    """R5: the new leader keeps its whole log and cuts nothing."""
    if replica.role is not Role.LEADER:
        replica.leads_since = role.state.leader_epoch
    replica.role = Role.LEADER
    replica.leader = leader.begin(replica.broker, broker_epoch, role, log.end, now_ms)


def _drop_lead(replica: Replica, role: Role) -> None:
    replica.role, replica.leader, replica.leads_since = role, None, None


def fence(replica: Replica) -> None:
    """This broker's registration is over, or a follower knows a newer epoch: nothing is led until the controller speaks."""
    if replica.role is Role.LEADER:
        _drop_lead(replica, Role.FENCED)


def on_fetch(replica: Replica, fetch: Fetch, log: Log, now_ms: int) -> Fetched:
    """A follower's fetch, at its first try only: a fetch that waited for records and is tried again moves no mark."""
    state = replica.state
    if state is None or replica.leader is None:
        return Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if fetch.leader_epoch < state.leader_epoch:
        return Fetched(ErrorCode.FENCED_LEADER_EPOCH)
    if fetch.leader_epoch > state.leader_epoch:
        fence(replica)
        return Fetched(ErrorCode.UNKNOWN_LEADER_EPOCH)
    answer = leader.on_fetch(replica.leader, fetch, log, replica.high_watermark, now_ms)
    if move_high_watermark(replica, log):
        return replace(answer, high_watermark=replica.high_watermark)
    return answer


def on_altered(replica: Replica, answer: AlterPartitionAnswer, now_ms: int) -> AlterPartition | None:
    """The controller's answer to a proposal. The state that it brings counts for every later role: an older one may still be
    under way (*the leader takes a member out of MAX that the store has in the ISR*).
    """
    if replica.leader is None:
        return None
    ask = leader.on_answer(replica.leader, answer, now_ms)
    replica.newest_role = replica.leader.role
    return ask


def move_high_watermark(replica: Replica, log: Log) -> bool:
    """After an append, a fetch, a change of MAX: whether the high watermark moved."""
    if replica.leader is None:
        return False
    moved = leader.high_watermark(replica.leader, log.end, replica.high_watermark)
    if moved == replica.high_watermark:
        return False
    replica.high_watermark = moved
    return True


def next_fetch(replica: Replica, broker_epoch: int, log: Log) -> Fetch | None:
    """What this replica asks its leader; None if it isn't a follower, or its registration is over."""
    if replica.role is not Role.FOLLOWER or replica.state is None or broker_epoch != replica.broker_epoch:
        return None
    return follower.ask(replica.broker, broker_epoch, replica.state.leader_epoch, log)


def on_fetched(replica: Replica, fetch: Fetch, answer: Fetched, epochs: list[int], log: Log) -> list[Decision]:
    """The leader's answer. The feeder carries out the decisions in their order, then calls `decided`."""
    state = replica.state
    if state is None or not (answer.error == ErrorCode.NONE or answer.removed_below):
        return []
    if not follower.fits(fetch, replica.role is Role.FOLLOWER, replica.broker_epoch, state.leader_epoch, log):
        return []
    return follower.on_fetched(fetch, answer, epochs, state, log, replica.high_watermark)


def decided(replica: Replica, decision: Decision) -> None:
    """A decision about the replica itself was carried out."""
    if isinstance(decision, follower.SetHighWatermark):
        replica.high_watermark = decision.offset
    elif isinstance(decision, follower.Stop):
        replica.role = Role.OFFLINE
