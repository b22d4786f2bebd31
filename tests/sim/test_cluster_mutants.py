"""Scripted histories, each told twice: with the real machines nothing is lost; with one rule broken, an invariant fails.

Random runs miss most of these: the shortest history that shows a broken rule has up to 30 steps in an order of its own. Mutants
are made here, by a patch; the product has no switch. `cluster_laws.py` has the invariants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sim.calm_world import CalmWorld, P
from sim.cluster_laws import Violation
from sim.cluster_log import Batch, Range, ReplicaLog
from sim.cluster_world import ANYBODY, ClusterWorld

from penstock.broker.cluster import acks, controller, elections, follower, leader, registration
from penstock.broker.cluster.leaderandisr import NO_EPOCH, NO_LEADER, LeaderAndIsr
from penstock.broker.cluster.messages import AlterPartition, Fetched
from penstock.errors import ErrorCode

Patch = pytest.MonkeyPatch


def leave_entrant_without_records(world: CalmWorld) -> None:
    """The store has 2 in the ISR; the answer and the new state are on their way to the leader; 2 gets no records."""
    world.die(2)
    world.hold("altered", 0)
    world.hold("roles", 0)
    world.back(2)
    assert world.state.isr == (0, 1, 2)
    world.hold("fetched", 2)


def count_isr_alone(patch: Patch) -> None:
    patch.setattr(leader, "all_in_sync", lambda lead: set(lead.state.isr))


def entrant_is_elected() -> None:
    """An entrant is in the store's ISR before its leader knows."""
    world = CalmWorld(head=1)
    leave_entrant_without_records(world)
    assert world.produce(0)


def shrink_early(patch: Patch) -> None:
    def members(lead: leader.Leader) -> set[int]:
        return set(lead.state.isr) if lead.proposal is None else set(lead.state.isr) & set(lead.proposal.ask.isr)

    patch.setattr(leader, "all_in_sync", members)


def removal_is_under_way() -> None:
    """A member's removal is proposed and not written."""
    world = CalmWorld()
    world.hold("alter", 2)
    world.hold("fetched", 1)
    world.lag(1)
    assert world.produce(0) and world.state.isr == (0, 1, 2)


def move_below_min(patch: Patch) -> None:
    patch.setattr(leader.Leader, "is_enough", True)


def leader_is_alone() -> None:
    """The ISR is the leader; whoever left last is in the ELR."""
    world = CalmWorld(head=0)
    world.die(2)
    world.die(1)
    assert world.state.elr == (1,)
    world.append(0)


def keep_unclean(patch: Patch) -> None:
    patch.setattr(elections, "exit_unclean", elections.exit_clean)


def member_loses_power() -> None:
    """A member loses power while the ISR is small."""
    world = CalmWorld()
    world.die(1)
    assert world.produce(0)
    world.lose_power(2)


def mark_diverging(patch: Patch) -> None:
    real = leader.find_divergence

    def on_fetch(lead: leader.Leader, fetch: Any, log: Any, high_watermark: int, now_ms: int) -> Any:
        leader.move_mark(lead.marks[fetch.replica], fetch, log, now_ms)
        diverging = real(fetch, log)
        return Fetched(ErrorCode.NONE, high_watermark, fetch.offset if diverging else log.end, diverging)

    patch.setattr(leader, "on_fetch", on_fetch)


def expelled_leader_has_own_record() -> None:
    """An expelled leader has a record that nobody fetched; its successor has another one at that offset."""
    world = CalmWorld()
    world.hold("bytes", 0)
    world.append(0)
    world.hold("store", 0)
    world.expel(0)
    world.settle()
    assert world.state.leader == 1
    world.drop("bytes", 0)
    assert world.produce(1)
    world.release("store", 0)
    assert world.log(0) == world.log(1) and world.state.isr == (0, 1, 2)


def append_anything(patch: Patch) -> None:
    patch.setattr(follower, "fits", lambda fetch, is_follower, broker_epoch, leader_epoch, log: fetch.offset == log.end)


def old_answer_arrives() -> None:
    """Broker 1 has followed 0, then 2, whose log is another one as far; then the next answer of 0 arrives."""
    world = CalmWorld()
    world.wish(leader=2)
    world.hold("bytes", 2)
    world.append(2)
    world.hold("fetch", 0, 2)
    world.wish(leader=0)
    world.drop("bytes", 2)
    world.append(0)
    assert world.log(1) == world.log(0) != world.log(2)
    world.hold("fetched", 1, 0)
    world.append(0)
    world.hold("roles", 0)
    world.hold("moves", 0)
    world.wish(leader=2)
    assert world.log(1) == world.log(2)
    world.release("fetched", 1, 0)
    world.release("roles", 0)
    assert world.log(0) == world.log(1) == world.log(2)


def enter_at_high_watermark(patch: Patch) -> None:
    patch.setattr(leader, "entry_offset", lambda lead: 0)


def new_leader_is_behind() -> None:
    """A new leader's high watermark is a fetch behind; a replica without records is as far as that."""
    world = CalmWorld(brokers=4)
    world.die(2)
    world.hold("fetched", 1)
    assert world.produce(0)
    world.release_first("fetched", 1)
    assert len(world.log(1)) == 1 and world.brokers[1].roles.replicas[P].high_watermark == 0
    world.hold("fetch", 1, 3)
    world.hold("fetch", 1, 0)
    world.die(0)
    assert world.state.leader == 1 and set(world.state.isr) == {1, 3}
    world.hold("fetched", 2)
    world.back(2)
    world.release("fetched", 2)
    world.release("fetch", 1, 3)
    assert world.state.isr == (1, 2, 3)


def free_by_version(patch: Patch) -> None:
    patch.setattr(leader, "frees_entrants", lambda proposal, answer: True)


def answer_is_lost() -> None:
    """A proposal is written, its answer lost; the repetition is answered INVALID_UPDATE_VERSION."""
    world = CalmWorld(head=1)
    leave_entrant_without_records(world)
    world.drop("altered", 0)
    world.advance(leader.REPEAT_MS)
    assert world.counts["altered 95"]
    assert world.produce(0)


def free_after_repetition(patch: Patch) -> None:
    def frees(proposal: leader.Proposal, answer: Any) -> bool:
        return bool(answer.error == ErrorCode.INELIGIBLE_REPLICA)

    patch.setattr(leader, "frees_entrants", frees)


def first_copy_is_late() -> None:
    """The first copy of a proposal is on its way; the repetition is refused by a controller whose picture of the brokers lags,
    and knows the entrant when the first copy arrives.
    """
    world = CalmWorld(head=1)
    world.die(2)
    world.hold("alter", 1)
    world.back(2)
    (first,) = world.held.pop(("alter", 1, ANYBODY))
    head, machine = world.brokers[1], world.brokers[1].controller
    assert machine is not None
    brokers, incarnations = dict(machine.registrations), dict(machine.incarnations)
    world.act(head, controller.on_brokers(machine, {one: brokers[one] for one in (0, 1)}, incarnations, world.now_ms))
    world.hold("alter", 1)
    world.advance(leader.REPEAT_MS)
    world.release_first("alter", 1)
    assert world.counts["altered 107"]
    barrier = world.held.pop(("alter", 1, ANYBODY))
    world.act(head, controller.on_brokers(machine, brokers, incarnations, world.now_ms))
    world.hold("altered", 0)
    world.hold("roles", 0)
    first()
    world.settle()
    assert world.state.isr == (0, 1, 2)
    world.hold("fetched", 2)
    assert world.produce(0)
    for one in barrier:
        one()
    world.settle()


def keep_min_beside_state(patch: Patch) -> None:
    real_wish, real_answer = controller.on_wish, leader.on_answer

    def on_wish(machine: Any, partition: Any, now_ms: int, **wish: Any) -> Any:
        if wish.get("min_isr") is None:
            return real_wish(machine, partition, now_ms, **wish)
        image = machine.partitions[partition]
        image.state = replace(image.state, min_isr=wish["min_isr"])
        return []

    def on_answer(lead: leader.Leader, answer: Any, now_ms: int) -> AlterPartition | None:
        state = None if answer.state is None else replace(answer.state, min_isr=lead.state.min_isr)
        return real_answer(lead, replace(answer, state=state), now_ms)

    patch.setattr(controller, "on_wish", on_wish)
    patch.setattr(leader, "on_answer", on_answer)


def min_isr_is_raised() -> None:
    """min.insync.replicas is raised; the leader has heard nothing of it but what an answer to its proposal says."""
    world = CalmWorld(min_isr=1)
    world.keep_out(2)
    world.hold("roles", 0)
    world.wish(min_isr=2)
    world.hold("fetch", 0, 1)
    world.hold("fetched", 1)
    world.lag(1)
    world.append(0)
    world.release("roles", 0)
    assert world.state.min_isr == 2


def forget_replicas(patch: Patch) -> None:
    """Unclean recovery waits for the last seats alone, and compares them alone."""

    def recover(state: LeaderAndIsr, replicas: Any, live: Any, log_ends: Any) -> LeaderAndIsr | None:
        if state.leader != NO_LEADER or elections.candidate(state, replicas, replicas) is not None:
            return None
        if not all(one in live and one in log_ends for one in state.seats):
            return None
        return elections.lead_unclean(state, state.seats, log_ends.__getitem__)

    patch.setattr(elections, "recover", recover)


def recovery_meets_a_better_log() -> None:
    """Broker 2 left the ISR whole. The others then lost power, and with it everything."""
    world = CalmWorld()
    assert world.produce(0)
    world.die(2)
    for one in (0, 1):
        world.power_cut(one, keep=0)
        world.expire(one)
    world.settle()
    world.back(1)
    world.back(0)
    assert world.state.leader == NO_LEADER
    world.back(2)
    assert world.state.leader == 2 and len(world.log(0)) == len(world.log(1)) == 1


def count_any_incarnation(patch: Patch) -> None:
    patch.setattr(leader, "has_to_wait_for", lambda lead, broker: False)
    forget_replicas(patch)


def member_is_another_incarnation() -> None:
    """A member lost power, and the store took it out. Its leader doesn't know when the new incarnation fetches."""
    world = CalmWorld()
    world.keep_out(2)
    world.hold("roles", 0)
    world.lose_power(1)
    assert world.state.isr == (0,) and not world.state.elr
    world.produce(0)
    assert len(world.log(1)) == 1
    world.drop("roles", 0)
    world.lose_power(0)
    world.check_leader(1)


def take_out_again(patch: Patch) -> None:
    real = controller.on_image

    def on_image(machine: Any, partitions: Any, registrations: Any, incarnations: Any, now_ms: int) -> Any:
        known = {one: node if registrations[one].clean else replace(node, noted=NO_EPOCH) for one, node in incarnations.items()}
        return real(machine, partitions, registrations, known, now_ms)

    patch.setattr(controller, "on_image", on_image)
    forget_replicas(patch)


def controller_changes_after_recovery() -> None:
    """A broker lost power, was taken out, and has caught up. Then there is another controller; then the leader loses power."""
    world = CalmWorld()
    world.keep_out(2)
    world.lose_power(1)
    assert world.state.isr == (0, 1)
    assert world.produce(0)
    world.hold("fetch", 0, 1)
    world.die(2)
    assert world.counts["controller elected"] == 2
    world.lose_power(0)
    world.check_leader(1)


def write_unchecked(patch: Patch) -> None:
    patch.setattr(controller, "guard", lambda machine: [])


def old_controller_writes() -> None:
    """A controller was replaced and hasn't noticed."""
    world = CalmWorld()
    world.keep_out(2)
    world.hold("store", 2)
    world.expel(2)
    world.settle()
    assert world.counts["controller elected"] == 2
    old = world.brokers[2]
    assert old.controller is not None
    world.act(old, controller.on_wish(old.controller, P, world.now_ms, min_isr=1))
    world.settle()
    world.release("store", 2)


def trust_a_look(patch: Patch) -> None:
    real = controller.on_state_read

    def on_state_read(machine: Any, partition: Any, state: Any, now_ms: int) -> Any:
        wait = machine.partitions[partition]
        machine.partitions[partition] = Certain(wait)
        try:
            return real(machine, partition, state, now_ms)
        finally:
            machine.partitions[partition] = wait

    patch.setattr(controller, "on_state_read", on_state_read)


class Certain:
    """An image of which nothing is doubtful."""

    def __init__(self, image: Any) -> None:
        object.__setattr__(self, "image", image)

    def __getattr__(self, name: str) -> Any:
        return False if name == "is_doubtful" else getattr(self.image, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.image, name, False if name == "is_doubtful" else value)


def write_comes_late() -> None:
    """The answer to the write of an entrance is lost, and a look shows that nothing was written. The entrant loses power and is
    dealt with: it has no seat. Then the write comes.
    """
    world = CalmWorld()
    assert world.produce(0)
    world.die(1)
    real, late = world.write, []

    def write(broker: Any, operations: Any, done: Any) -> None:
        if any(one.path.endswith("/state") for one in operations):
            world.write = real  # type: ignore[method-assign]
            late.append((broker.session, operations))
            world.post("store", broker.id, lambda: done(controller.Outcome.UNKNOWN, "", 0))
        else:
            real(broker, operations, done)

    world.write = write  # type: ignore[method-assign]
    world.back(1)
    world.power_cut(1, keep=0)
    world.end_session(1)
    world.hold("fetch", 0, 1)
    world.back(1)
    assert late
    world._multi(*late[0])
    world.release("fetch", 0, 1)
    world.advance(leader.REPEAT_MS)
    world.check_whole()


def register_clean(patch: Patch) -> None:
    def on_lost(member: registration.OwnRegistration) -> None:
        member.epoch, member.clean = NO_EPOCH, True

    patch.setattr(registration, "on_lost", on_lost)


def session_ends_before_a_look() -> None:
    """A broker lost power and is back. Its session ends before a controller has looked."""
    world = CalmWorld()
    world.keep_out(2)
    assert world.produce(0)
    world.hold("store", 2)
    world.power_cut(1, keep=0)
    world.back(1)
    world.expel(1)
    world.settle()
    world.release("store", 2)
    assert world.log(1) == world.log(0)


def restart_clean(patch: Patch) -> None:
    real = ClusterWorld.start

    def start(world: ClusterWorld, number: int) -> None:
        real(world, number)
        world.brokers[number].is_clean = True

    patch.setattr(ClusterWorld, "start", start)


def process_ends_before_a_look() -> None:
    """A broker lost power and is back. It is killed before a controller has looked, and is back again."""
    world = CalmWorld()
    world.keep_out(2)
    assert world.produce(0)
    world.hold("store", 2)
    world.power_cut(1, keep=0)
    world.back(1)
    world.bounce(1)
    world.release("store", 2)
    assert world.log(1) == world.log(0)


class RangeInPlace(Range):
    """A log that is cut goes on in the same file: what was handed out is whatever stands there now."""

    def read(self) -> list[Batch]:
        return self.log.batches[self.start : self.end]


def write_in_place(patch: Patch) -> None:
    patch.setattr(ReplicaLog, "range_type", RangeInPlace)


def bytes_are_read_late() -> None:
    """Broker 0 sends a range to 2. Before its bytes are read, broker 0 cuts its log and takes over that of broker 1."""
    world = CalmWorld(min_isr=1)
    for one in (0, 1):
        world.hold("fetch", one, 1 - one)
    world.hold("bytes", 0, 1)
    world.append(0)  # on 0 and 2
    for one in (0, 2):
        world.hold("roles", one)
    world.hold("fetch", 1, 2)
    world.wish(leader=1)
    world.append(1)
    world.append(1)
    world.hold("roles", 1)
    world.wish(leader=0)
    for one in (0, 2):
        world.release("roles", one)
    assert len(world.log(0)) == len(world.log(2)) == 1 and len(world.log(1)) == 2
    world.hold("bytes", 0, 2)
    world.append(0)  # on its way to 2
    world.hold("roles", 2)
    world.wish(leader=1)
    world.release("roles", 1)
    world.drop("fetch", 1, 0)
    world.brokers[0].fetching[P] = 0
    world._fetch_again(world.brokers[0], P)
    world.settle()
    assert world.log(0) == world.log(1) != world.log(2)
    world.release("bytes", 0, 2)
    world.held.clear()


def elect_no_elr(patch: Patch) -> None:
    def exit_clean(state: LeaderAndIsr, broker: int, replicas: Any) -> LeaderAndIsr:
        if broker not in state.isr or len(state.isr) == 1:
            return state
        return replace(state, isr=tuple(one for one in state.isr if one != broker))

    patch.setattr(elections, "exit_clean", exit_clean)


def last_member_is_gone() -> None:
    """The ISR's last member is gone for good; who left before it, below min.insync.replicas, has everything."""
    world = CalmWorld()
    world.keep_out(2)
    assert world.produce(0)
    world.die(1)
    world.die(0)
    world.back(1)
    world.check_leader(1)


def ignore_broker_epochs(patch: Patch) -> None:
    patch.setattr(leader, "is_current", lambda mark, fetch: True)
    patch.setattr(leader, "has_to_wait_for", lambda lead, broker: False)
    patch.setattr(controller, "is_admitted", lambda machine, broker, epoch: broker in machine.registrations)


def old_fetch_arrives() -> None:
    """A broker lost power. A fetch from before arrives after its new registration was dealt with."""
    world = CalmWorld()
    world.keep_out(2)
    assert world.produce(0)
    world.hold("fetch", 0, 1)
    world.append(0)
    assert len(world.log(1)) == 2
    world.lose_power(1)
    assert world.state.isr == (0,)
    world.release_first("fetch", 0, 1)
    world.release("fetch", 0, 1)
    assert world.log(1) == world.log(0)


def fit_by_offset(patch: Patch) -> None:
    real = follower.fits

    def fits(fetch: Any, is_follower: bool, broker_epoch: int, leader_epoch: int, log: Any) -> bool:
        return real(replace(fetch, last_epoch=log.last_epoch), is_follower, broker_epoch, leader_epoch, log)

    patch.setattr(follower, "fits", fits)


def fetch_is_answered_twice() -> None:
    """A fetch was sent twice and is answered "cut" twice. Between the answers the log was cut, and has grown as far again."""
    world = CalmWorld()
    world.hold("bytes", 0)
    world.append(0)
    world.hold("store", 0)
    world.expel(0)
    world.settle()
    world.drop("bytes", 0)
    assert world.produce(1)
    world.hold("fetched", 0)
    world.release("store", 0)
    world._fetch_again(world.brokers[0], P)
    world.settle()
    world.release_first("fetched", 0)
    world._fetch_again(world.brokers[0], P)
    world.settle()
    second, third, *_ = world.held.pop(("fetched", 0, ANYBODY))
    third()
    assert world.log(0) == world.log(1)
    world.settle()
    second()
    world.settle()
    assert world.log(0) == world.log(1)


def answer_whoever_leads(patch: Patch) -> None:
    real = acks.answer

    def answer(waits: acks.Waits, high_watermark: int, leads_since: int | None, is_enough: bool, now_ms: int) -> Any:
        if leads_since is None:
            return []
        waits.heap = [replace(wait, leads_since=leads_since) for wait in waits.heap]
        return real(waits, high_watermark, leads_since, is_enough, now_ms)

    patch.setattr(acks, "answer", answer)


def lead_is_lost_and_regained() -> None:
    """A produce waits; its leader is replaced, its record cut, and then it leads again."""
    world = CalmWorld()
    world.hold("bytes", 0)
    token = world.produce(0)
    world.hold("store", 0)
    world.expel(0)
    world.settle()
    world.drop("bytes", 0)
    assert world.produce(1)
    world.release("store", 0)
    world.wish(leader=0)
    assert world.state.leader == 0 and world.answered[token] != 0


def set_high_watermark_first(patch: Patch) -> None:
    real = follower.on_fetched

    def on_fetched(fetch: Any, answer: Any, epochs: Any, state: Any, log: Any, high_watermark: int) -> Any:
        told = follower.SetHighWatermark(max(high_watermark, min(answer.high_watermark, log.end)))
        return [told, *real(fetch, answer, epochs, state, log, high_watermark)]

    patch.setattr(follower, "on_fetched", on_fetched)


def keep_epoch(patch: Patch) -> None:
    real = elections.elect
    patch.setattr(
        elections, "elect", lambda state, replicas, live: replace(real(state, replicas, live), leader_epoch=state.leader_epoch)
    )


def leader_dies() -> None:
    """The leader dies, and is back."""
    world = CalmWorld()
    world.die(0)
    world.back(0)
    world.check_whole()


def drop_last_seat(patch: Patch) -> None:
    def exit_unclean(state: LeaderAndIsr, broker: int, replicas: Any) -> LeaderAndIsr:
        return replace(
            state,
            isr=tuple(one for one in state.isr if one != broker),
            elr=tuple(one for one in state.elr if one != broker),
        )

    patch.setattr(elections, "exit_unclean", exit_unclean)


def everybody_loses_power() -> None:
    """All lose power, one after the other."""
    world = CalmWorld()
    assert world.produce(0)
    for one in (0, 1, 2):
        world.power_cut(one, keep=0)
        world.expire(one)
    for one in (0, 1, 2):
        world.back(one)
    world.check_whole()


def never_repeat(patch: Patch) -> None:
    patch.setattr(leader, "repeat", lambda lead, now_ms: None)


def proposal_is_lost() -> None:
    """The connection on which a proposal was sent is lost with it."""
    world = CalmWorld(head=1)
    world.die(2)
    world.hold("alter", 1)
    world.back(2)
    world.drop("alter", 1)
    world.advance(leader.REPEAT_MS)
    world.check_whole()


def leader_is_alone_and_nobody_else_may_lead() -> None:
    """The ISR is the leader, and the ELR is empty."""
    world = CalmWorld(head=0)
    world.die(2)
    world.hold("fetch", 0, 1)
    world.lose_power(1)
    assert world.state.isr == (0,) and not world.state.elr
    world.produce(0)


def lead_shortest(patch: Patch) -> None:
    real = elections.lead_unclean
    patch.setattr(elections, "lead_unclean", lambda state, among, log_end: real(state, [min(among, key=log_end)], log_end))


def operator_wants_unclean() -> None:
    """Broker 0 alone had a record, and is gone. An operator lets the best of the others lead; then broker 0 is back."""
    world = CalmWorld(min_isr=1)
    world.keep_out(2)
    assert world.produce(0)
    world.keep_out(1)
    assert world.produce(0) and world.produce(0)
    assert [len(world.log(one)) for one in (0, 1)] == [3, 2] and len(world.log(2)) < 2
    world.die(0)
    assert world.state.leader == NO_LEADER and world.state.isr == (0,)
    world.wish(unclean=True)
    world.check_leader(1)
    assert len(world.log(1)) == 2 and world.state.unclean_epoch == world.state.leader_epoch
    assert world.produce(1)
    world.back(0)
    assert world.log(0) == world.log(1) == world.log(2) and set(world.state.isr) == {0, 1, 2}


def operator_wants_unclean_with_one_log() -> None:
    """All replicas lost everything. Only an operator's word takes the last seat away."""
    world = CalmWorld()
    assert world.produce(0)
    world.die(2)
    for one in (0, 1):
        world.power_cut(one, keep=0)
        world.expire(one)
    world.settle()
    world.back(1)
    assert world.state.leader == NO_LEADER and world.state.seats
    world.wish(unclean=True)
    world.check_leader(1)


def ignore_operators(patch: Patch) -> None:
    real = controller.on_wish
    patch.setattr(controller, "on_wish", lambda *given, **wish: real(*given, **{**wish, "unclean": False}))


def compact(world: CalmWorld, broker: int) -> None:
    """Compaction takes out what is deleted, and with the next pass the tombstone."""
    log = world.brokers[broker].logs[P]
    log.flushed = log.end
    for _ in range(2):
        world.compact(broker, P)


def tombstone_goes_meanwhile() -> None:
    """A member is away while a tombstone is written and goes."""
    world = CalmWorld(min_isr=1)
    world.produce(0)
    world.die(2)
    world.produce(0)
    world.produce(0)
    compact(world, 0)
    world.back(2)
    assert world.brokers[2].logs[P].gone == {0, 1, 2}
    world.check_whole()


def tombstone_passes_a_slow_member() -> None:
    """A member never went, but it fetches so slowly that a tombstone is written and goes before it comes there."""
    world = CalmWorld(min_isr=1)
    world.produce(0)
    world.keep_out(2)
    world.produce(0)
    world.produce(0)
    compact(world, 0)
    world.release("fetch", 0, 2)
    assert world.brokers[2].logs[P].gone == {0, 1, 2}


def copy_leads_a_third() -> None:
    """Two are away while a tombstone is written and goes. One is back and leads the other, which never followed it before."""
    world = CalmWorld(min_isr=1)
    world.produce(0)
    world.die(2)
    world.die(1)
    world.produce(0)
    world.produce(0)
    compact(world, 0)
    world.back(1)
    world.die(0)
    world.check_leader(1)
    world.back(2)
    assert world.brokers[2].logs[P].gone == {0, 1, 2}


def keep_deleted(patch: Patch) -> None:
    patch.setattr(leader, "keeps_deleted", lambda lead, mark, fetch, log: False)


def trust_who_has_fetched(patch: Patch) -> None:
    real = leader.keeps_deleted
    patch.setattr(
        leader,
        "keeps_deleted",
        lambda lead, mark, fetch, log: fetch.broker_epoch != mark.broker_epoch and real(lead, mark, fetch, log),
    )


def take_nothing_over(patch: Patch) -> None:
    real = follower.on_fetched

    def on_fetched(*given: Any) -> Any:
        return [decision for decision in real(*given) if not isinstance(decision, follower.SetRemovedBelow)]

    patch.setattr(follower, "on_fetched", on_fetched)


def empty_members(patch: Patch) -> None:
    """A copy begins again wherever it stands."""
    patch.setattr(leader, "keeps_deleted", lambda lead, mark, fetch, log: fetch.offset > 0)


def member_ends_below_a_guess() -> None:
    """What a leader's compaction has removed is only guessed, and lies above the end of a member of the ISR."""
    world = CalmWorld(min_isr=1)
    world.produce(0)
    world.hold("fetched", 0, 2)
    log = world.brokers[0].logs[P]
    log.removed_below = log.end + 1
    world.produce(0)


@dataclass(frozen=True)
class Mutant:
    """One broken rule, the history that shows it, and what the laws say then."""

    breaks: Callable[[Patch], None]
    history: Callable[[], None]
    law: str


MUTANTS = {
    "no-max": Mutant(count_isr_alone, entrant_is_elected, "I[34]:"),
    "early-shrink": Mutant(shrink_early, removal_is_under_way, "I[34]:"),
    "no-broker-epoch": Mutant(ignore_broker_epochs, old_fetch_arrives, "I[34]:"),
    "append-unchecked": Mutant(append_anything, old_answer_arrives, "I2:"),
    "unclean-in-elr": Mutant(keep_unclean, member_loses_power, "I3:"),
    "below-min": Mutant(move_below_min, leader_is_alone, "I3:"),
    "below-min, held by too few": Mutant(move_below_min, leader_is_alone_and_nobody_else_may_lead, "I9:"),
    "divergent-marks": Mutant(mark_diverging, expelled_leader_has_own_record, "I[34]:"),
    "no-epoch-start": Mutant(enter_at_high_watermark, new_leader_is_behind, "I[34]:"),
    "version-refuses": Mutant(free_by_version, answer_is_lost, "I[34]:"),
    "resend-refuses": Mutant(free_after_repetition, first_copy_is_late, "I[34]:"),
    "answer-without-min": Mutant(keep_min_beside_state, min_isr_is_raised, "I3:"),
    "any-member-epoch": Mutant(count_any_incarnation, member_is_another_incarnation, "I3: .* and lacks"),
    "unclean-again": Mutant(take_out_again, controller_changes_after_recovery, "I3: .* and lacks"),
    "late-write": Mutant(trust_a_look, write_comes_late, "I3: .* and lacks"),
    "no-controller-check": Mutant(write_unchecked, old_controller_writes, "I11:"),
    "register-clean": Mutant(register_clean, session_ends_before_a_look, "I3:"),
    "clean-at-restart": Mutant(restart_clean, process_ends_before_a_look, "I3:"),
    "late-bytes": Mutant(write_in_place, bytes_are_read_late, "I2:"),
    "no-elr": Mutant(elect_no_elr, last_member_is_gone, "I12:"),
    "all-live": Mutant(forget_replicas, recovery_meets_a_better_log, "I3: .* a longer log"),
    "fit-by-offset": Mutant(fit_by_offset, fetch_is_answered_twice, "I[48]:"),
    "false acknowledgement": Mutant(answer_whoever_leads, lead_is_lost_and_regained, "I5:"),
    "high watermark before the cut": Mutant(set_high_watermark_first, expelled_leader_has_own_record, "I5:"),
    "one epoch for two": Mutant(keep_epoch, leader_dies, "I[16]:"),
    "no last seat": Mutant(drop_last_seat, everybody_loses_power, "I7:"),
    "the shortest log": Mutant(lead_shortest, operator_wants_unclean, "I3: .* a longer log"),
    "no operator": Mutant(ignore_operators, operator_wants_unclean_with_one_log, "I12:"),
    "no repetition": Mutant(never_repeat, proposal_is_lost, "I12:"),
    "deleted records stay": Mutant(keep_deleted, tombstone_goes_meanwhile, "keeps what was deleted"),
    "a slow member is trusted": Mutant(trust_who_has_fetched, tombstone_passes_a_slow_member, "keeps what was deleted"),
    "a copy is whole": Mutant(take_nothing_over, copy_leads_a_third, "keeps what was deleted"),
    "a member is emptied": Mutant(empty_members, member_ends_below_a_guess, "I[34]:"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_nothing_is_lost_along_the_history(name: str) -> None:
    MUTANTS[name].history()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_seen(name: str, monkeypatch: Patch) -> None:
    MUTANTS[name].breaks(monkeypatch)
    with pytest.raises(Violation, match=MUTANTS[name].law):
        MUTANTS[name].history()
