"""What the controller wants a partition's state to be: a pure function of the state, the registrations and what replicas said.

Each registration costs a broker its seat in the ISR exactly once, also if nobody saw the broker gone, and its seat in the ELR
if it isn't clean (`registration.py`). `PartitionImage.handled` says which registrations a partition's state takes into account;
it changes only when the store has confirmed the write, or when no write was needed.

Unclean exits come first, then deaths, then new registrations: so the last seat is the best one. *A clean replica leaves first,
and the last seat is one that lost its tail.*

A partition without a state has had no leader, so any replica may become the first one. Its replicas are told to make their
logs. Who has said that its log is there, gets a seat by the first state (*a broker that was dead already is named as leader,
and comes back without a log: nobody may lead in its place*). Where a state is lost that had been there, replicas know of it, or
another topic's state is in its place. Then all replicas have to say where their logs end, and the longest log leads.

A leader whose log folder takes no writes (`unwritable`) gives way to another member of the ISR, and no wish makes such a
replica the leader. It keeps its own seat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.broker.cluster import elections
from penstock.broker.cluster.leaderandisr import NO_EPOCH, NO_LEADER, NOT_CREATED, LeaderAndIsr
from penstock.broker.cluster.registration import Registration

EMPTY: elections.LogEnd = (NO_EPOCH, 0)


@dataclass(slots=True)
class PartitionImage:
    """What the controller knows of a partition."""

    topic_id: bytes
    replicas: tuple[int, ...]
    state: LeaderAndIsr  # as the store has confirmed it
    handled: dict[int, int] = field(default_factory=dict)  # broker -> the broker epoch that the state takes into account
    lost: dict[int, int] = field(default_factory=dict)  # broker -> the broker epoch under which its log was missing or damaged
    log_ends: dict[int, tuple[int, elections.LogEnd]] = field(default_factory=dict)  # broker -> broker epoch, log end
    least_epoch: int = NO_EPOCH  # the newest leader epoch that a replica knows, or a state of another topic has
    is_state_lost: bool = False  # it has no state, and isn't new
    without_log: dict[int, int] = field(default_factory=dict)  # broker -> broker epoch, where no log can be opened
    unwritable: frozenset[int] = frozenset()  # brokers on which this partition's log folder takes no writes
    may_lose: bool = False  # unclean.leader.election.enable
    patience_ms: int = -1  # unclean.recovery.timeout.ms; -1: for ever
    is_overdue: bool = False  # nobody has led for longer than that
    wants_unclean: bool = False  # an operator gives up what the seats hold and no live replica has
    is_doubtful: bool = False  # a write of this state was asked for, and isn't there: it may still come
    is_waiting: bool = True  # before its first state: for live replicas that haven't said yet that their logs are there
    wanted_leader: int | None = None
    wanted_min_isr: int | None = None

    @property
    def min_isr(self) -> int:
        """The min.insync.replicas that the state is to have."""
        return self.state.min_isr if self.wanted_min_isr is None else self.wanted_min_isr

    @property
    def told(self) -> LeaderAndIsr:
        """The state that replicas are told. Without one nobody leads, in an epoch above all that are known."""
        if self.state.is_created:
            return self.state
        epoch = NO_EPOCH if self.least_epoch == NO_EPOCH else self.least_epoch + 1
        return replace(NOT_CREATED, leader_epoch=epoch, min_isr=self.state.min_isr, is_new=True)


def image_of(topic_id: bytes, replicas: tuple[int, ...], stored: LeaderAndIsr | None, min_isr: int) -> PartitionImage:
    """What a controller knows of a partition at first. stored: the state in its place, which may be another topic's."""
    if stored is not None and stored.is_of(topic_id):
        return PartitionImage(topic_id, replicas, stored)
    image = PartitionImage(topic_id, replicas, replace(NOT_CREATED, min_isr=min_isr))
    if stored is not None:
        replace_stranger(image, stored)
    return image


def replace_stranger(image: PartitionImage, stranger: LeaderAndIsr) -> None:
    """Another topic's state is in the place of this one's: what is known is written over it, and goes on above its epoch."""
    image.state = image.state.written(stranger.partition_epoch)
    image.least_epoch = max(image.least_epoch, stranger.leader_epoch)
    image.is_doubtful = image.state.is_created
    image.is_state_lost = not image.state.is_created


def plan(image: PartitionImage, registrations: Mapping[int, Registration]) -> LeaderAndIsr:
    """The state that the registrations ask for; the same state if nothing has to change."""
    state, replicas = image.state, image.replicas
    live = [broker for broker in replicas if broker in registrations]
    if not state.is_created:
        return _create(image, registrations)
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
    if state.leader in image.unwritable:
        state = _give_way(image, state, live)
    if state.leader != NO_LEADER and state.leader_epoch <= image.least_epoch:
        state = replace(state, leader_epoch=image.least_epoch + 1)
    return _follow_wishes(image, state, live)


def _give_way(image: PartitionImage, state: LeaderAndIsr, live: list[int]) -> LeaderAndIsr:
    """Another member of the ISR leads instead of a leader that can't write, where one can. A member of the ELR
    alone lacks what this leader has answered for acks=0 and 1. It gains nothing: acks=all waits for the ISR either way."""
    able = [broker for broker in live if broker in state.isr and broker not in image.unwritable]
    if elections.candidate(state, image.replicas, able) is None:
        return state
    return elections.settle(elections.elect(state, image.replicas, able), image.replicas)


def _create(image: PartitionImage, registrations: Mapping[int, Registration]) -> LeaderAndIsr:
    """The first state of a partition: of the replicas whose logs are there the first one leads, and all of them are in sync,
    since all logs are empty. Live ones are waited for, for a while.

    Without a word of an operator's, a partition of which a log isn't empty has lost its state.
    """
    state = replace(image.state, leader_epoch=image.told.leader_epoch)
    if image.wants_unclean:
        return replace(state, leader_epoch=state.leader_epoch + 1)
    log_ends = _log_ends(image, registrations)
    if image.is_state_lost or any(end != EMPTY for end in log_ends.values()):
        return _lead_longest(image, state, False, registrations) or image.state
    made = tuple(broker for broker in image.replicas if broker in log_ends)
    if not made or (image.is_waiting and not log_ends.keys() >= set(_with_log(image, registrations))):
        return image.state
    leader = next((broker for broker in made if broker not in image.unwritable), made[0])
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=made)


def _recover(image: PartitionImage, registrations: Mapping[int, Registration]) -> LeaderAndIsr:
    """Every seat is lost, and this is written: the longest log leads, once all replicas have said where their logs end under
    their present registrations. By config all live ones are enough, if any of them has a log.

    An operator's word takes all seats away in a write of its own: only then is a log made again, empty, where it is lost
    or damaged. Where no seat is left the longest log of the live replicas leads.
    """
    if image.wants_unclean and image.state.seats:
        return replace(image.state, isr=(), elr=(), unclean=())
    return _lead_longest(image, image.state, not image.state.seats, registrations) or image.state


def _lead_longest(
    image: PartitionImage, state: LeaderAndIsr, is_given_up: bool, registrations: Mapping[int, Registration]
) -> LeaderAndIsr | None:
    """The longest log leads once all replicas, or all live ones where that is enough, have said where theirs end; else None."""
    log_ends = _log_ends(image, registrations)
    if image.may_lose or image.is_overdue or is_given_up:
        among = _with_log(image, registrations)
        if among and all(broker in log_ends for broker in among):
            return elections.lead_unclean(state, among, log_ends.__getitem__)
    return elections.recover(state, image.replicas, list(registrations), log_ends)


def _log_ends(image: PartitionImage, registrations: Mapping[int, Registration]) -> dict[int, elections.LogEnd]:
    """Where the logs of live replicas end, by what they said under their present registrations."""
    return {
        broker: end
        for broker, (epoch, end) in image.log_ends.items()
        if broker in registrations and registrations[broker].epoch == epoch
    }


def _with_log(image: PartitionImage, registrations: Mapping[int, Registration]) -> list[int]:
    """The live replicas, but for those that said that they have no log."""
    live = [broker for broker in image.replicas if broker in registrations]
    return [broker for broker in live if image.without_log.get(broker) != registrations[broker].epoch]


def _follow_wishes(image: PartitionImage, state: LeaderAndIsr, live: list[int]) -> LeaderAndIsr:
    """Another min.insync.replicas, and another leader where that is possible."""
    if image.min_isr != state.min_isr:
        state = elections.require(state, image.min_isr, image.replicas)
    wanted = image.wanted_leader
    can_lead = wanted in live and wanted in state.isr and wanted not in image.unwritable
    if wanted is not None and wanted != state.leader != NO_LEADER and can_lead:
        state = elections.move(state, wanted)
    return state


def offline(image: PartitionImage, registrations: Mapping[int, Registration]) -> tuple[int, ...]:
    """The replicas whose broker isn't there, or said that it can open no log of this partition, or can't write to it. A leader
    isn't one of them: it can't write, and serves consumers."""
    return tuple(
        broker
        for broker in image.replicas
        if broker not in registrations
        or image.without_log.get(broker) == registrations[broker].epoch
        or (broker in image.unwritable and broker != image.state.leader)
    )


def see(image: PartitionImage, registrations: Mapping[int, Registration]) -> dict[int, int]:
    """What `handled` is once the planned state holds."""
    return {broker: registrations[broker].epoch for broker in image.replicas if broker in registrations}
