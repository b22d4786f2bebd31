"""Bugs that Apache Kafka and others have had in their clusters, each by its name, as a history that is told twice.

With the real machines nothing is lost. With the guard broken as it was broken there, a law fails. Histories and mutants that
were made for our own rules (`test_cluster_mutants.py`) are listed under the names of the bugs that they are, too.

Bugs of coordinators are in `test_transaction_mutants.py`. Where a guard is compiled, `mutants/table.py` takes it out of the
product, too: what is broken here is the model of a log, or the machine that specifies it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from sim import test_cluster_mutants as ours
from sim.calm_world import CalmWorld, P
from sim.cluster_laws import Violation
from sim.cluster_log import ReplicaLog
from sim.cluster_world import Broker, ClusterWorld

from penstock.broker.cluster import controller, follower, leader, registration, replica
from penstock.broker.cluster.controller import Outcome
from penstock.broker.cluster.replica import Role

Patch = pytest.MonkeyPatch


def cut_at_high_watermark(patch: Patch) -> None:
    """KIP-101: who follows cuts its log at its own high watermark, which is a fetch old."""
    real = replica.on_role

    def on_role(one: replica.Replica, role: Any, broker_epoch: int, log: Any, now_ms: int, **found: bool) -> Any:
        before = one.role
        answer = real(one, role, broker_epoch, log, now_ms, **found)
        if one.role is Role.FOLLOWER and before is not Role.FOLLOWER and log.end > one.high_watermark:
            log.cut(one.high_watermark)
        return answer

    patch.setattr(replica, "on_role", on_role)


def two_quick_restarts() -> None:
    """A follower restarts before it hears that its last record is committed; its leader dies before it fetches again."""
    world = CalmWorld()
    world.keep_out(2)
    world.hold("fetched", 1)
    token = world.produce(0)
    world.release_first("fetched", 1)
    assert world.answered[token] == 0
    assert len(world.log(1)) == 1 and world.brokers[1].roles.replicas[P].high_watermark == 0
    world.hold("fetch", 0, 1)
    world.bounce(1)
    world.die(0)
    world.check_leader(1)
    world.back(0)
    assert world.log(0) == world.log(1)


def compare_ends_alone(patch: Patch) -> None:
    """KIP-101 without KIP-279: a follower cuts where the leader's epoch ends, though its own epoch ended before."""

    def cut(diverging: tuple[int, int], state: Any, log: Any, high_watermark: int) -> Any:
        return [follower.Truncate(max(high_watermark, min(diverging[1], log.end)))]

    patch.setattr(follower, "cut", cut)


def three_leaders(order: tuple[int, ...]) -> None:
    """Three leaders in a row append a record each that nobody fetches: the last one never saw the epoch of the second one."""
    world = CalmWorld(min_isr=1)
    assert world.produce(0)
    world.hold("fetched", 1, 0)
    world.append(0)  # on 0 and 2, in the first epoch
    assert [len(world.log(one)) for one in (0, 1, 2)] == [2, 1, 2]
    for one in (0, 2):
        world.hold("roles", one)
    world.hold("bytes", 1)
    world.wish(leader=1)
    world.append(1)
    world.hold("roles", 1)
    world.wish(leader=2)
    world.drop("fetched", 1, 0)
    world.release("roles", 2)
    world.append(2)
    for one in order:
        world.release("roles", one)
    world.held.clear()
    world.settle()
    world.check_whole()


class LogWithEmptyEpochs(ReplicaLog):
    """A log whose last epoch is the one in which it was led last, though no batch is of it."""

    led = -1

    @property
    def last_epoch(self) -> int:
        return max(super().last_epoch, self.led)


def name_empty_epochs(patch: Patch) -> None:
    """KAFKA-10706: an epoch counts as the log's last though no batch was written in it."""
    real = replica.on_role

    def on_role(one: replica.Replica, role: Any, broker_epoch: int, log: Any, now_ms: int, **found: bool) -> Any:
        answer = real(one, role, broker_epoch, log, now_ms, **found)
        if one.role is Role.LEADER:
            log.led = role.state.leader_epoch
        return answer

    patch.setattr(ClusterWorld, "log_type", LogWithEmptyEpochs)
    patch.setattr(replica, "on_role", on_role)


def elections_without_a_record() -> None:
    """The lead goes round; nothing is appended meanwhile."""
    world = CalmWorld()
    assert world.produce(0)
    for one in (1, 2, 0):
        world.wish(leader=one)
        assert world.state.leader == one
    assert world.produce(0)
    world.check_whole()


def never_read_again(patch: Patch) -> None:
    """KAFKA-2729: the version that a writer has noted of a node isn't read again, though a write was refused because of it."""
    real = controller.on_written

    def on_written(machine: Any, write: int, outcome: Outcome, now_ms: int, refused: str = "") -> Any:
        about = machine.writes[write]
        is_known = outcome is Outcome.DONE or refused == "/controller_epoch" or isinstance(about, controller.Note)
        out = real(machine, write, outcome, now_ms, refused)
        if is_known:
            return out
        for one in about:
            machine.reading.discard(one)
            controller._forget(machine, one, [])
        return [one for one in out if not isinstance(one, controller.ReadState)]

    patch.setattr(controller, "on_written", on_written)


def own_write_is_refused() -> None:
    """The connection breaks while the state of an election is written; it was written, and the answer is lost."""
    world = CalmWorld()
    real = world.write

    def write(broker: Broker, operations: Any, done: Callable[[Outcome, str, int], None]) -> None:
        if not any(one.path.endswith("/state") for one in operations):
            real(broker, operations, done)
            return
        world.write = real  # type: ignore[method-assign]
        real(broker, operations, lambda outcome, refused, zxid: done(Outcome.UNKNOWN, "", 0))

    world.write = write  # type: ignore[method-assign]
    world.die(0)
    world.back(0)
    world.check_whole()


def two_leave_and_the_last_loses_power(first: int) -> None:
    """min.insync.replicas is 2; two members leave; the last one loses power. Who is back first?"""
    world = CalmWorld(head=2)
    world.hold("fetch", 0, 2)
    world.lag(2)
    assert world.produce(0)
    world.die(1)
    world.append(0)
    world.power_cut(0, keep=0)
    world.end_session(0)
    for one in (first, 1 - first):
        world.back(one)
    world.check_leader(1)
    assert len(world.log(1)) == 1


def know_by_id_alone(patch: Patch) -> None:
    """KAFKA-7235: a broker that restarted before anybody looked is taken for its former self."""
    real = controller.on_brokers

    def on_brokers(machine: Any, registrations: Any, incarnations: Any, now_ms: int) -> Any:
        known = {one: machine.registrations.get(one, new) for one, new in registrations.items()}
        return real(machine, known, incarnations, now_ms)

    patch.setattr(controller, "on_brokers", on_brokers)


def bounce_between_two_looks() -> None:
    """A broker is killed and back before its session is over and before the controller looks."""
    world = CalmWorld()
    world.hold("store", 2)
    world.bounce(1)
    world.release("store", 2)
    assert world.produce(0)
    world.advance(leader.REPEAT_MS)
    world.check_whole()


def meet_own_ghost(patch: Patch) -> None:
    """KAFKA-1387: a broker waits for the registration of its own former session, which nobody removes while that one lives."""
    real = registration.register
    patch.setattr(registration, "register", lambda *given, replaces, **named: real(*given, replaces=False, **named))


@dataclass(frozen=True)
class Bug:
    """What went wrong, where it is played, and how it shows."""

    breaks: Callable[[Patch], None]
    history: Callable[[], None]
    shows: str
    error: type[Exception] = Violation


def of_ours(name: str) -> Bug:
    """A mutant of our own rules that is that bug."""
    mutant = ours.MUTANTS[name]
    return Bug(mutant.breaks, mutant.history, mutant.law)


NEVER_AT_REST = "never comes to rest"
BUGS = {
    "KIP-101, KAFKA-1211: cut at the high watermark": Bug(cut_at_high_watermark, two_quick_restarts, "I[34]:"),
    **{
        f"KIP-279, KAFKA-6361: an epoch that the leader never saw, {order}": Bug(
            compare_ends_alone, partial(three_leaders, order), NEVER_AT_REST, AssertionError
        )
        for order in ((0, 1), (1, 0))
    },
    "KAFKA-10706: a leader without a record": Bug(name_empty_epochs, elections_without_a_record, NEVER_AT_REST, AssertionError),
    "KAFKA-14704: high watermark before the cut": of_ours("high watermark before the cut"),
    "KAFKA-2729: a version that isn't read again": Bug(never_read_again, own_write_is_refused, "I12:"),
    "KAFKA-6082: a controller that was replaced writes": of_ours("no-controller-check"),
    "KAFKA-15221: a fetch of before the restart": of_ours("no-broker-epoch"),
    "KAFKA-14617, KIP-903: a start that dies before it is noted": of_ours("clean-at-restart"),
    "KAFKA-14139: a session that ends before it is noted": of_ours("register-clean"),
    **{
        f"KIP-966: last replica standing, {first} is back first": Bug(
            ours.keep_unclean, partial(two_leave_and_the_last_loses_power, first), "I3:"
        )
        for first in (0, 1)
    },
    "KAFKA-7235: a bounce between two looks": Bug(know_by_id_alone, bounce_between_two_looks, "I12:"),
    "KAFKA-1387, KAFKA-7165: the own ghost": Bug(meet_own_ghost, bounce_between_two_looks, NEVER_AT_REST, AssertionError),
    "KAFKA-18723: new bytes out of an old range": of_ours("late-bytes"),
    "Redpanda 3039: acknowledged before it is replicated": of_ours("false acknowledgement"),
}


@pytest.mark.parametrize("name", BUGS)
def test_it_does_not_happen(name: str) -> None:
    BUGS[name].history()


@pytest.mark.parametrize("name", BUGS)
def test_it_is_seen_where_its_guard_is_broken(name: str, monkeypatch: Patch) -> None:
    bug = BUGS[name]
    bug.breaks(monkeypatch)
    with pytest.raises(bug.error, match=bug.shows):
        bug.history()
