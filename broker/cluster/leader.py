"""The leader's view of a partition's replicas: how far each has fetched, who is in sync, and so how far records are committed.

    MAX = the ISR of the newest state that the leader has heard of, and everyone whose entry it has proposed

Rule R2: the high watermark is the least log end of MAX. It moves only while the ISR has min.insync.replicas members. A log end
is taken only from a fetch that fits the leader's log, bears the leader's epoch, and bears the broker epoch under which the
controller named this member. Each condition guards against a loss:

- *the ISR alone instead of MAX*: the store has accepted an entrant, its answer is still under way, and the entrant is elected
  without the records that were answered in between;
- *a diverging fetch moves the mark*: its offset counts records of another history;
- *any broker epoch*: a member lost its tail in a power cut and fetches again. Until the controller has named the new
  registration (and so taken the old one out), the store may still elect it: it holds the high watermark back;
- *an ISR that is too small*: a member of the ELR is electable, too, and the leader can't wait for it.

Rule R3: the leader drops a member from MAX only when a newer partition epoch has told it so, or when the one copy of its
proposal was refused. So:

- a member that is proposed to leave stays in MAX until the newer state is there;
- a proposal without an answer is sent again, for the same partition epoch, and stays in MAX;
- INVALID_UPDATE_VERSION is no refusal: the newer state may be this proposal's own write;
- UNKNOWN_TOPIC_ID, like any other error, is none either: the controller has forgotten the topic, or hasn't heard of it yet;
- after a repetition a refusal frees nobody, because the first copy may still arrive, at a controller that knows the entrant by
  then. The leader then proposes the ISR that it knows. That write changes nothing but the version, which ends all copies.

An entrant must have reached the high watermark and `epoch_start`, the log end with which the leader's epoch began. Below
`epoch_start` the entrant's log may still be another history than the leader's. While the ISR is too small the entrant must also
be caught up, or else it would go in and out for ever, since the high watermark doesn't move.

Compaction removes a tombstone once what it deletes is gone, and a marker once its transaction's records are. A replica that was
away meanwhile still has those records, and would keep them for ever: *a deleted position is back once that replica leads*. So a
fetch from below the leader's `removed_below` is only taken from

- an empty log;
- one whose last fetch, under the same registration, was taken when `removed_below` was the same;
- a member of the ISR under the registration that the controller named: it has all below the high watermark, and no compaction
  goes further.

Any other log is emptied and begins again at the leader's log start. A follower takes the leader's `removed_below` over with
what it copies from below it: it lacks the same deletions from then on. No clock decides, so none can be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.broker.cluster.leaderandisr import NO_EPOCH, LeaderAndIsr
from penstock.broker.cluster.log import Log
from penstock.broker.cluster.messages import AlterPartition, AlterPartitionAnswer, Fetch, Fetched, Partition, PartitionRole
from penstock.errors import ErrorCode

LONG_AGO = -(1 << 62)
LATE_MS = 1_500  # a scan that comes so late has been held up, however short the lag time is
REPEAT_MS = 500  # a proposal without an answer is sent again after this time
REFUSED_MS = 500  # an entrant that was refused is proposed again after this time


@dataclass(slots=True)
class Mark:
    """How far one replica has fetched."""

    broker_epoch: int = NO_EPOCH
    end: int = 0  # all records below it are in the replica's log
    caught_up_ms: int = LONG_AGO  # when the replica last had all that the leader had
    fetched_ms: int = LONG_AGO
    end_at_fetch: int = 0  # the leader's log end at that fetch
    removed_below: int = 0  # the leader's at that fetch
    not_before_ms: int = LONG_AGO  # a proposal of this replica waits until then


@dataclass(slots=True)
class Proposal:
    """The one proposal that is out."""

    ask: AlterPartition
    sent_ms: int
    counted: bool = False  # its entrants count for the high watermark, and it may have been sent
    repeated: bool = False
    refused: bool = False  # after a repetition


@dataclass(slots=True)
class Leader:
    """The lead of one partition in one leader epoch."""

    broker: int
    broker_epoch: int
    role: PartitionRole
    epoch_start: int  # the log end when the lead began
    marks: dict[int, Mark] = field(default_factory=dict)
    broker_epochs: dict[int, int] = field(default_factory=dict)  # under which the controller named the members
    proposal: Proposal | None = None
    scanned_ms: int = LONG_AGO

    @property
    def state(self) -> LeaderAndIsr:
        """The newest state that the leader has heard of."""
        return self.role.state

    @property
    def partition(self) -> Partition:
        """The partition that is led."""
        return self.role.partition

    @property
    def is_enough(self) -> bool:
        """Whether the ISR has min.insync.replicas members."""
        return len(self.state.isr) >= self.state.needed(self.role.replicas)


def begin(broker: int, broker_epoch: int, role: PartitionRole, log_end: int, now_ms: int) -> Leader:
    """The lead of a new leader epoch: nothing is known of any replica, and the members' time to catch up begins now."""
    marks = {one: Mark(caught_up_ms=now_ms if one in role.state.isr else LONG_AGO) for one in role.replicas if one != broker}
    return Leader(broker, broker_epoch, role, log_end, marks, dict(role.broker_epochs), scanned_ms=now_ms)


def on_state(leader: Leader, role: PartitionRole, now_ms: int) -> None:
    """A newer partition epoch of the same leader epoch: every proposal for an older one is over. The same partition epoch
    again (a full picture after a reconnect) says nothing about a proposal that is out; it may name newer registrations. If a
    closed connection delivers it late, it names older ones, which don't count (*a member whose fetches count no more*).
    """
    before = leader.broker_epochs
    named = {broker: max(epoch, before.get(broker, NO_EPOCH)) for broker, epoch in role.broker_epochs.items()}
    if role.state.partition_epoch > leader.state.partition_epoch:
        before = {}
        leader.proposal = None
        for broker in role.state.isr:
            if broker not in leader.state.isr and broker in leader.marks:
                leader.marks[broker].caught_up_ms = max(leader.marks[broker].caught_up_ms, now_ms)
    leader.role = role
    leader.broker_epochs = {**before, **named}


def on_fetch(leader: Leader, fetch: Fetch, log: Log, high_watermark: int, now_ms: int) -> Fetched:
    """A follower's fetch: move its mark if the fetch fits the log. A fetch of another epoch never comes here."""
    mark = leader.marks.get(fetch.replica)
    if mark is None:
        return Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if not is_current(mark, fetch):
        return Fetched(ErrorCode.STALE_BROKER_EPOCH)
    diverging = find_divergence(fetch, log)
    if diverging is not None:
        return Fetched(ErrorCode.NONE, high_watermark, fetch.offset, diverging)
    answer = on_retry(leader, fetch, log, high_watermark)
    if answer.error == ErrorCode.NONE:
        move_mark(mark, fetch, log, now_ms)
    return answer


def on_retry(leader: Leader, fetch: Fetch, log: Log, high_watermark: int) -> Fetched:
    """A fetch that fits the log is answered, be it tried again after a wait: then it moves no mark, but compaction may have
    removed something since.
    """
    removed_below = log.removed_below if fetch.offset < log.removed_below else 0
    if removed_below and keeps_deleted(leader, leader.marks[fetch.replica], fetch, log):
        return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, removed_below=removed_below)
    return Fetched(ErrorCode.NONE, high_watermark, log.end, removed_below=removed_below)


def is_current(mark: Mark, fetch: Fetch) -> bool:
    """Whether a fetch isn't of an older registration than one that has fetched already."""
    return fetch.broker_epoch >= mark.broker_epoch


def find_divergence(fetch: Fetch, log: Log) -> tuple[int, int] | None:
    """Where the follower's log leaves the leader's (KIP-101, KIP-279, KIP-595): None if it is a part of it."""
    if fetch.offset == 0 or fetch.last_epoch == NO_EPOCH:
        return None
    epoch, end = log.epoch_end(fetch.last_epoch)
    return None if epoch == fetch.last_epoch and fetch.offset <= end else (epoch, end)


def keeps_deleted(leader: Leader, mark: Mark, fetch: Fetch, log: Log) -> bool:
    """Whether the follower's log, which ends below `removed_below`, may have what a removed deletion deleted."""
    if fetch.offset == 0:
        return False
    if fetch.replica in leader.state.isr and fetch.broker_epoch == leader.broker_epochs.get(fetch.replica):
        return False
    return fetch.broker_epoch != mark.broker_epoch or mark.removed_below != log.removed_below


def move_mark(mark: Mark, fetch: Fetch, log: Log, now_ms: int) -> None:
    """The replica has everything below the fetch's offset. Caught up: it has all that there is, or all that there was at its
    last fetch (a follower of a steady stream is never at the very end).
    """
    if fetch.broker_epoch > mark.broker_epoch:
        mark.fetched_ms, mark.end_at_fetch = LONG_AGO, log.end
    if fetch.offset >= log.end:
        mark.caught_up_ms = now_ms
    elif fetch.offset >= mark.end_at_fetch and mark.fetched_ms > mark.caught_up_ms:
        mark.caught_up_ms = mark.fetched_ms
    mark.broker_epoch, mark.end = fetch.broker_epoch, fetch.offset
    mark.fetched_ms, mark.end_at_fetch = now_ms, log.end
    mark.removed_below = log.removed_below


def all_in_sync(leader: Leader) -> set[int]:
    """MAX: the ISR, and everyone whose entry is proposed and not refused for good."""
    members = set(leader.state.isr)
    if leader.proposal is not None:
        members.update(leader.proposal.ask.isr)
    return members


def has_to_wait_for(leader: Leader, broker: int) -> bool:
    """Whether a member's log end counts as nothing: its fetches aren't of the registration that the controller has named."""
    return broker in leader.state.isr and leader.marks[broker].broker_epoch != leader.broker_epochs.get(broker)


def high_watermark(leader: Leader, log_end: int, high_watermark: int) -> int:
    """Where the high watermark may stand now: never lower than it stood."""
    if not leader.is_enough:
        return high_watermark
    least = log_end
    for broker in all_in_sync(leader):
        if broker != leader.broker:
            least = min(least, 0 if has_to_wait_for(leader, broker) else leader.marks[broker].end)
    return max(high_watermark, least)


def propose(leader: Leader, log_end: int, high_watermark: int, lag_ms: int, now_ms: int) -> AlterPartition | None:
    """The next proposal: members that lag go out, replicas that have caught up come in. Only one is out at a time."""
    if leader.proposal is not None:
        return None
    entrants = {
        broker: mark.broker_epoch
        for broker, mark in leader.marks.items()
        if broker not in leader.state.isr and may_enter(leader, mark, high_watermark, log_end, lag_ms, now_ms)
    }
    stays = [broker for broker in leader.state.isr if broker == leader.broker or not is_lagging(leader, broker, lag_ms, now_ms)]
    isr = (*stays, *entrants)
    if set(isr) == set(leader.state.isr):
        return None
    return make_proposal(leader, isr, entrants, now_ms)


def may_enter(leader: Leader, mark: Mark, high_watermark: int, log_end: int, lag_ms: int, now_ms: int) -> bool:
    """Whether a replica may be proposed for the ISR."""
    if mark.broker_epoch == NO_EPOCH or now_ms < mark.not_before_ms or mark.end < max(high_watermark, entry_offset(leader)):
        return False
    return now_ms - mark.fetched_ms <= lag_ms and (
        leader.is_enough or mark.end >= log_end or now_ms - mark.caught_up_ms <= lag_ms
    )


def entry_offset(leader: Leader) -> int:
    """An entrant needs all that the leader had when it began to lead."""
    return leader.epoch_start


def is_lagging(leader: Leader, broker: int, lag_ms: int, now_ms: int) -> bool:
    """Whether a member hasn't been caught up for replica.lag.time.max.ms."""
    return now_ms - leader.marks[broker].caught_up_ms > lag_ms


def make_proposal(leader: Leader, isr: tuple[int, ...], entrants: dict[int, int], now_ms: int) -> AlterPartition:
    """The proposal of an ISR in place of the one that the leader knows; it is out from now on."""
    topic_id, state = leader.role.topic_id, leader.state
    ask = AlterPartition(
        leader.partition, topic_id, leader.broker, leader.broker_epoch, state.leader_epoch, state.partition_epoch, isr, entrants
    )
    leader.proposal = Proposal(ask, now_ms)
    return ask


def count(leader: Leader, high_watermark: int) -> bool:
    """The proposal's entrants count for the high watermark from now on: whether it may be sent. Between the look that found
    them and this moment the high watermark may have passed one; nothing was sent yet, so the proposal is withdrawn then (R2:
    *an entrant that is elected without records that were answered*).
    """
    proposal = leader.proposal
    assert proposal is not None
    least = max(high_watermark, entry_offset(leader))
    if not proposal.counted and any(leader.marks[broker].end < least for broker in proposal.ask.entrants):
        leader.proposal = None
        return False
    proposal.counted = True
    return True


def on_time(leader: Leader, log_end: int, high_watermark: int, lag_ms: int, now_ms: int) -> AlterPartition | None:
    """The scan, due some times a second: repeat a proposal without an answer, or make one. A scan that comes late,
    after a pause, drops nobody: the fetches that wait in the broker's sockets come first.
    """
    is_late = now_ms - leader.scanned_ms > max(lag_ms, LATE_MS)
    leader.scanned_ms = now_ms
    if leader.proposal is not None:
        return repeat(leader, now_ms) if now_ms - leader.proposal.sent_ms >= REPEAT_MS else None
    return None if is_late else propose(leader, log_end, high_watermark, lag_ms, now_ms)


def is_whole(leader: Leader) -> bool:
    """Whether all replicas are in sync and nothing is proposed: only a member that lags can be a reason to propose."""
    return leader.proposal is None and len(leader.state.isr) == len(leader.role.replicas)


def repeat(leader: Leader, now_ms: int) -> AlterPartition:
    """Send the proposal again; or, if a repetition was refused, the known ISR, which ends all copies."""
    proposal = leader.proposal
    assert proposal is not None
    proposal.repeated, proposal.sent_ms = True, now_ms
    if not proposal.refused:
        return proposal.ask
    return replace(proposal.ask, isr=leader.state.isr, entrants={})


def on_answer(leader: Leader, answer: AlterPartitionAnswer, now_ms: int) -> AlterPartition | None:
    """The controller's answer: the newer state, or a refusal; anything else changes nothing. May ask for the known ISR.

    An answer that was under way while its topic was deleted and made again is about another partition of the same name and
    epoch (*a member of the ISR leaves MAX, and what is acknowledged without it is lost once it leads*).
    """
    if answer.ask.topic_id != leader.role.topic_id:
        return None
    proposal, state = leader.proposal, answer.state
    if answer.error == ErrorCode.NONE and state is not None:
        if state.leader_epoch == leader.state.leader_epoch and state.partition_epoch > leader.state.partition_epoch:
            entrants = {} if proposal is None else dict(proposal.ask.entrants)
            epochs = {**leader.broker_epochs, **{one: entrants[one] for one in entrants if one in state.isr}}
            role = leader.role
            on_state(leader, PartitionRole(role.partition, role.topic_id, role.replicas, state, epochs), now_ms)
    elif proposal is not None and answer.ask.partition_epoch == proposal.ask.partition_epoch:
        if frees_entrants(proposal, answer):
            leader.proposal = None
            for broker in proposal.ask.entrants:
                leader.marks[broker].not_before_ms = now_ms + REFUSED_MS
        elif answer.error == ErrorCode.INELIGIBLE_REPLICA and not proposal.refused:
            proposal.refused = True
            return repeat(leader, now_ms)
    return None


def frees_entrants(proposal: Proposal, answer: AlterPartitionAnswer) -> bool:
    """Whether the proposal can't be written any more: the one copy that was ever sent has been refused."""
    return answer.error == ErrorCode.INELIGIBLE_REPLICA and not proposal.repeated
