"""Who may lead a partition, and who is in sync: pure functions from one state to the next. The controller alone calls them.

    a seat        a place in the ISR or in the ELR: whoever has one may be elected
    a clean exit  the broker died, was expelled or registered again (kill -9 counts as clean: the page cache survives it)
    an unclean    its log may have lost a tail: a power cut, a missing, damaged or restored log
      exit

Rule R5: a new leader comes out of the ISR, else out of the ELR, and keeps its whole log. Every record that was answered with
acks=all is below a high watermark, and every seat has everything below it. So each election is safe, however wrong the
suspicion was that caused it. What the rules here guard against:

- *A member that lost its tail and leads*: an unclean exit costs the seat in the ISR and in the ELR.
- *No seat is left*: the last seat stays and is marked `unclean`. No ordinary election takes it; `recover` does, and only after
  all replicas are back, so that the longest log of all leads.
- *A member that died as the ISR fell below min.insync.replicas is forgotten* although it has all that was answered: it goes to
  the ELR.
- *The ELR outlives its reason*: the write with which the ISR is large enough again empties it, because the high watermark
  moves without the ELR from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from penstock.broker.cluster.leaderandisr import NO_LEADER, LeaderAndIsr

Replicas = tuple[int, ...]
LogEnd = tuple[int, int]  # the last batch's epoch and the log end offset


def settle(state: LeaderAndIsr, replicas: Replicas) -> LeaderAndIsr:
    """Empty the ELR once the ISR is large enough, and forget unclean exits from before."""
    if len(state.isr) < state.needed(replicas):
        return state
    return replace(state, elr=(), unclean=tuple(broker for broker in state.unclean if broker in state.isr))


def candidate(state: LeaderAndIsr, replicas: Replicas, live: Collection[int]) -> int | None:
    """Who leads next: the first live replica in the ISR, in the order of the assignment; else the first in the ELR."""
    for seats in (state.isr, state.elr):
        for broker in replicas:
            if broker in seats and broker in live and broker not in state.unclean:
                return broker
    return None


def elect(state: LeaderAndIsr, replicas: Replicas, live: Collection[int]) -> LeaderAndIsr:
    """The next leader epoch, or no leader if nobody can. A leader from the ELR is the ISR then, the old ISR joins the ELR."""
    leader = candidate(state, replicas, live)
    if leader is None:
        return replace(state, leader=NO_LEADER)
    if leader in state.isr:
        return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)
    elr = tuple(broker for broker in replicas if broker in state.seats and broker != leader)
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=(leader,), elr=elr)


def exit_clean(state: LeaderAndIsr, broker: int, replicas: Replicas) -> LeaderAndIsr:
    """A broker leaves the ISR with its log whole. The only member of the ISR keeps its seat."""
    if broker not in state.isr or len(state.isr) == 1:
        return state
    isr = _without(state.isr, broker)
    elr = (*state.elr, broker) if len(isr) < state.needed(replicas) else state.elr
    return replace(state, isr=isr, elr=elr)


def exit_unclean(state: LeaderAndIsr, broker: int, replicas: Replicas) -> LeaderAndIsr:
    """A broker leaves ISR and ELR, as its log may be shorter than it was. The last seat of all stays, marked."""
    if broker not in state.seats:
        return state
    isr, elr = _without(state.isr, broker), _without(state.elr, broker)
    marked = state.unclean if broker in state.unclean else (*state.unclean, broker)
    if not isr and not elr:
        return replace(state, unclean=marked)
    return replace(state, isr=isr, elr=elr, unclean=marked if len(isr) < state.needed(replicas) else state.unclean)


def leave(state: LeaderAndIsr, broker: int, clean: bool, replicas: Replicas, live: Collection[int]) -> LeaderAndIsr:
    """The state after a broker died, registered again or lost its log; with a new leader where it led."""
    after = exit_clean(state, broker, replicas) if clean else exit_unclean(state, broker, replicas)
    if after.leader == broker or (after.leader != NO_LEADER and after.leader not in after.isr):
        after = elect(after, replicas, live if clean else [one for one in live if one != broker])
    return settle(after, replicas)


def alter(state: LeaderAndIsr, isr: Collection[int], replicas: Replicas) -> LeaderAndIsr:
    """The ISR that a leader proposes, with the members that it drops in the ELR where the ISR is too small."""
    members = tuple(broker for broker in replicas if broker in isr)
    dropped = tuple(broker for broker in state.isr if broker not in isr)
    elr = tuple(broker for broker in state.elr if broker not in isr)
    if len(members) < state.needed(replicas):
        elr += dropped
    unclean = tuple(broker for broker in state.unclean if broker not in isr)
    return settle(replace(state, isr=members, elr=elr, unclean=unclean), replicas)


def move(state: LeaderAndIsr, leader: int) -> LeaderAndIsr:
    """A member of the ISR leads instead of the leader, by somebody's wish."""
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)


def require(state: LeaderAndIsr, min_isr: int, replicas: Replicas) -> LeaderAndIsr:
    """Another min.insync.replicas: a write of its own. A lower one empties the ELR in this very write."""
    return settle(replace(state, min_isr=min_isr), replicas)


def recover(
    state: LeaderAndIsr, replicas: Replicas, live: Collection[int], log_ends: Mapping[int, LogEnd]
) -> LeaderAndIsr | None:
    """The unclean election after every seat was lost: the longest log leads. None: it isn't time.

    The controller waits for all replicas: a replica that left the ISR long ago, cleanly, may have records that the last seats
    lost. `log_ends` has what the live replicas said after they had been told that nobody leads.
    """
    if state.leader != NO_LEADER or candidate(state, replicas, replicas) is not None:
        return None
    if not all(broker in live and broker in log_ends for broker in replicas):
        return None
    return lead_unclean(state, replicas, log_ends.__getitem__)


def lead_unclean(state: LeaderAndIsr, among: Collection[int], log_end: Callable[[int], LogEnd]) -> LeaderAndIsr:
    """The replica with the newest last epoch, then the largest log end, leads alone; its epoch is marked as unclean."""
    epoch = state.leader_epoch + 1
    leader = max(among, key=log_end)
    return replace(state, leader=leader, leader_epoch=epoch, isr=(leader,), elr=(), unclean=(), unclean_epoch=epoch)


def _without(brokers: tuple[int, ...], broker: int) -> tuple[int, ...]:
    return tuple(one for one in brokers if one != broker)
