"""What the controller wants a partition's state to be: a pure function of the state, the registrations and what replicas said.

Each registration costs a broker its seat in the ISR exactly once, also if nobody saw the broker gone, and its seat in the ELR
if it isn't clean (`registration.py`). `PartitionImage.handled` says which registrations a partition's state takes into account;
it changes only when the store has confirmed the write, or when no write was needed.

Unclean exits come first, then deaths, then new registrations: so the last seat is the best one. *A clean replica leaves first,
and the last seat is one that lost its tail.*
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.broker.cluster import elections
from penstock.broker.cluster.leaderandisr import NO_EPOCH, NO_LEADER, LeaderAndIsr
from penstock.broker.cluster.registration import Registration


@dataclass(slots=True)
class PartitionImage:
    """What the controller knows of a partition."""

    topic_id: bytes
    replicas: tuple[int, ...]
    state: LeaderAndIsr  # as the store has confirmed it
    handled: dict[int, int] = field(default_factory=dict)  # broker -> the broker epoch that the state takes into account
    lost: dict[int, int] = field(default_factory=dict)  # broker -> the broker epoch under which its log was missing or damaged
    log_ends: dict[int, tuple[int, elections.LogEnd]] = field(default_factory=dict)  # broker -> broker epoch, log end
    least_epoch: int = NO_EPOCH  # a replica's log has batches of this leader epoch
    without_log: dict[int, int] = field(default_factory=dict)  # broker -> broker epoch, where no log can be opened
    may_lose: bool = False  # unclean.leader.election.enable
    patience_ms: int = -1  # unclean.recovery.timeout.ms; -1: for ever
    is_overdue: bool = False  # nobody has led for longer than that
    wants_unclean: bool = False  # an operator gives up what the seats hold and no live replica has
    is_doubtful: bool = False  # a write of this state was asked for, and isn't there: it may still come
    is_unheard: bool = False  # this controller has created the state, and nobody has said since that it leads
    wanted_leader: int | None = None
    wanted_min_isr: int | None = None

    @property
    def min_isr(self) -> int:
        """The min.insync.replicas that the state is to have."""
        return self.state.min_isr if self.wanted_min_isr is None else self.wanted_min_isr


def plan(image: PartitionImage, registrations: Mapping[int, Registration]) -> LeaderAndIsr:
    """The state that the registrations ask for; the same state if nothing has to change."""
    state, replicas = image.state, image.replicas
    live = [broker for broker in replicas if broker in registrations]
    if not state.is_created:
        return _create(state, live)
    new = [broker for broker in live if image.handled.get(broker) != registrations[broker].epoch]
    unclean = [broker for broker in new if not registrations[broker].clean]
    unclean += [broker for broker in live if image.lost.get(broker) == registrations[broker].epoch]
    for broker in unclean:
        state = elections.leave(state, broker, False, replicas, live)
    for broker in replicas:
        if broker not in live:
            state = elections.leave(state, broker, True, replicas, live)
    for broker in new:
        if broker not in unclean:
            state = elections.leave(state, broker, True, replicas, live)
    if state.leader == NO_LEADER:
        state = elections.settle(elections.elect(state, replicas, live), replicas)
    if state.leader == NO_LEADER and state == image.state:
        state = _recover(image, registrations)
    if state.leader != NO_LEADER and state.leader_epoch <= image.least_epoch:
        state = replace(state, leader_epoch=image.least_epoch + 1)
    return _follow_wishes(image, state, live)


def _create(state: LeaderAndIsr, live: list[int]) -> LeaderAndIsr:
    """The first state of a partition: the first live replica leads, all live ones are in sync, since all logs are empty. A
    partition without a live replica waits for one.
    """
    return replace(state, leader=live[0], leader_epoch=0, isr=tuple(live)) if live else state


def _recover(image: PartitionImage, registrations: Mapping[int, Registration]) -> LeaderAndIsr:
    """Every seat is lost, and this is written: the longest log leads, once all replicas have said where their logs end under
    their present registrations. By config all live ones are enough, if any of them has a log.

    An operator's word takes all seats away in a write of its own: only then is a log made again, empty, where it is lost
    or damaged. Where no seat is left the longest log of the live replicas leads.
    """
    if image.wants_unclean and image.state.seats:
        return replace(image.state, isr=(), elr=(), unclean=())
    log_ends = {
        broker: end
        for broker, (epoch, end) in image.log_ends.items()
        if broker in registrations and registrations[broker].epoch == epoch
    }
    live = [broker for broker in image.replicas if broker in registrations]
    if image.may_lose or image.is_overdue or not image.state.seats:
        among = [broker for broker in live if image.without_log.get(broker) != registrations[broker].epoch]
        if among and all(broker in log_ends for broker in among):
            return elections.lead_unclean(image.state, among, log_ends.__getitem__)
    return elections.recover(image.state, image.replicas, live, log_ends) or image.state


def _follow_wishes(image: PartitionImage, state: LeaderAndIsr, live: list[int]) -> LeaderAndIsr:
    """Another min.insync.replicas, and another leader where that is possible."""
    if image.min_isr != state.min_isr:
        state = elections.require(state, image.min_isr, image.replicas)
    wanted = image.wanted_leader
    if wanted is not None and wanted != state.leader != NO_LEADER and wanted in live and wanted in state.isr:
        state = elections.move(state, wanted)
    return state


def offline(image: PartitionImage, registrations: Mapping[int, Registration]) -> tuple[int, ...]:
    """The replicas whose broker isn't there, or said that it can open no log of this partition."""
    return tuple(
        broker
        for broker in image.replicas
        if broker not in registrations or image.without_log.get(broker) == registrations[broker].epoch
    )


def see(image: PartitionImage, registrations: Mapping[int, Registration]) -> dict[int, int]:
    """What `handled` is once the planned state holds."""
    return {broker: registrations[broker].epoch for broker in image.replicas if broker in registrations}
