"""The cluster's machines by themselves: what random runs and scripted histories don't ask (`tests/sim` has those)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from sim.cluster_log import ReplicaLog

from penstock.broker.cluster import (
    acks,
    balance,
    controller,
    elections,
    follower,
    fulldisks,
    leader,
    lease,
    planning,
    registration,
)
from penstock.broker.cluster.controller import AnswerAlter, Controller, Outcome, ReadState, SendRoles, WriteStates
from penstock.broker.cluster.fulldisks import FullDisks
from penstock.broker.cluster.leaderandisr import NO_EPOCH, NO_LEADER, NOT_CREATED, LeaderAndIsr, read_state, state_json
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    Partition,
    PartitionRole,
    RoleAnswer,
)
from penstock.broker.cluster.registration import WRITABLE, Incarnation, Registration, Unwritable
from penstock.broker.cluster.replica import Replica, on_altered, on_role
from penstock.broker.store.base import BadValueError, Check, Create, Set, paths
from penstock.errors import ErrorCode

PATH = "/brokers/topics/t/partitions/0/state"
REPLICAS = (1, 2, 3)
TOPIC_ID = b"#" * 16


def test_a_state_is_what_kafka_with_zookeeper_wrote_and_more() -> None:
    node = b'{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":4,"isr":[1,2]}'
    state = read_state(PATH, node, 9)
    assert state == LeaderAndIsr(1, 4, (1, 2), controller_epoch=7, partition_epoch=9)
    written = json.loads(state_json(state))
    assert {name: written[name] for name in json.loads(node)} == json.loads(node)
    full = LeaderAndIsr(2, 5, (2,), (1,), (3,), 3, 2, 8, 1, 10)
    assert read_state(PATH, state_json(full), 10) == full


def test_fields_of_a_newer_broker_are_kept() -> None:
    node = b'{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":4,"isr":[1,2],"directories":["x"],"newer":{"a":1}}'
    state = read_state(PATH, node, 0)
    again = json.loads(state_json(elections.leave(state, 2, True, REPLICAS, [1])))
    assert (again["directories"], again["newer"], again["isr"]) == (["x"], {"a": 1}, [1])
    incarnation = registration.read_incarnation(1, b'{"version":1,"incarnation":"i","noted":4,"newer":2}', 3)
    assert json.loads(registration.incarnation_json(replace(incarnation, noted=5)))["newer"] == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("isr", [1, 1]),
        ("isr", "1"),
        ("isr", [-1]),
        ("leader", -3),
        ("leader_epoch", -1),
        ("elr", [True]),
        ("min_isr", 0),
        ("unclean_epoch", "x"),
    ],
)
def test_a_state_that_no_broker_can_have_written_is_refused(name: str, value: object) -> None:
    fields = {"controller_epoch": 7, "leader": 1, "version": 1, "leader_epoch": 4, "isr": [1, 2]}
    node = json.dumps({**fields, name: value}).encode()
    with pytest.raises(BadValueError, match="partitions/0/state"):
        read_state(PATH, node, 0)


def test_a_broker_that_does_not_say_whether_it_is_clean_is_not() -> None:
    assert registration.read_registration(1, b'{"penstock":{"incarnation":"i"}}', 5) == Registration(1, 5, "i", clean=False)
    with pytest.raises(BadValueError):
        registration.read_registration(1, b'{"version":4}', 5)


@pytest.mark.parametrize(
    "unwritable", [WRITABLE, Unwritable(is_all=True), Unwritable(partitions=frozenset({("t", 0), ("t", 2), ("u", 1)}))]
)
def test_a_registration_says_where_its_broker_can_not_write(unwritable: Unwritable) -> None:
    node = registration.registration_json("i", True, {"rack": "r"}, {"folders": []})
    before = registration.report_unwritable(1, node, 3, 7, Unwritable(is_all=True))[1]
    assert isinstance(before, Set)
    check, write = registration.report_unwritable(1, before.data, 4, 7, unwritable)
    assert check == Check(paths.incarnation(1), 7) and isinstance(write, Set)
    assert (write.path, write.version) == (paths.broker(1), 4)
    assert registration.read_registration(1, write.data, 5) == Registration(1, 5, "i", True, True, unwritable)
    assert json.loads(write.data).items() >= {"rack": "r", "version": 5}.items()


@pytest.mark.parametrize("said", ['"all"', "[1]", '{"t":1}', '{"t":[-1]}', '{"t":[]}'])
def test_a_report_that_no_broker_can_have_written_is_refused(said: str) -> None:
    node = b'{"penstock":{"incarnation":"i","unwritable":%b}}' % said.encode()
    with pytest.raises(BadValueError, match="unwritable"):
        registration.read_registration(1, node, 5)


def test_only_leaders_in_full_log_folders_give_way() -> None:
    machine = Controller(3, epoch=7, epoch_version=6)
    states = {("t", number): planning.PartitionImage(TOPIC_ID, REPLICAS, LeaderAndIsr(1, 4, REPLICAS)) for number in (0, 1)}
    brokers = {one: Registration(one, 10 + one, "i", clean=True) for one in REPLICAS}
    noted = {one: Incarnation("i", noted=10 + one, version=2) for one in REPLICAS}
    controller.on_image(machine, states, brokers, noted, 0)
    full = {**brokers, 1: replace(brokers[1], unwritable=Unwritable(partitions=frozenset({("t", 1)})))}
    controller.on_brokers(machine, full, noted, 1)
    assert {partition: planned.state.leader for partition, planned in machine.writing.items()} == {("t", 1): 2}


def test_a_new_partition_begins_where_there_is_room() -> None:
    brokers = {one: Registration(one, 10 + one, "i", clean=True) for one in REPLICAS}
    ends = {one: (10 + one, planning.EMPTY) for one in REPLICAS}
    image = planning.PartitionImage(TOPIC_ID, REPLICAS, NOT_CREATED, log_ends=ends, unwritable=frozenset({1}))
    assert planning.plan(image, brokers).leader == 2
    image.unwritable = frozenset(REPLICAS)
    assert planning.plan(image, brokers).leader == 1


def test_replicas_in_full_log_folders_are_shown_as_offline_but_for_leaders() -> None:
    brokers = {one: Registration(one, 10 + one, "i", clean=True) for one in REPLICAS}
    state = LeaderAndIsr(1, 4, REPLICAS)
    image = planning.PartitionImage(TOPIC_ID, REPLICAS, state, unwritable=frozenset({1, 2}))
    assert planning.offline(image, brokers) == (2,)


def test_the_last_seat_stays_and_no_ordinary_election_takes_it() -> None:
    alone = LeaderAndIsr(1, 4, (1,), min_isr=2)
    lost = elections.leave(alone, 1, False, REPLICAS, [1, 2])
    assert (lost.leader, lost.isr, lost.unclean) == (NO_LEADER, (1,), (1,))
    assert elections.elect(lost, REPLICAS, REPLICAS).leader == NO_LEADER
    ends = {1: (4, 10), 2: (4, 12), 3: (3, 99)}
    assert elections.recover(lost, REPLICAS, [1, 2], ends) is None
    best = elections.recover(lost, REPLICAS, REPLICAS, ends)
    assert best is not None and (best.leader, best.isr, best.unclean_epoch, best.unclean) == (2, (2,), 5, ())


def test_the_order_of_exits_keeps_the_best_seat() -> None:
    """One of two members lost its tail, the other one died: the one that died keeps the seat."""
    image = planning.PartitionImage(TOPIC_ID, REPLICAS, LeaderAndIsr(1, 4, (1, 2), min_isr=1), {1: 10, 2: 11, 3: 12})
    state = planning.plan(image, {1: Registration(1, 20, "a", clean=False)})
    assert (state.isr, state.leader) == ((2,), NO_LEADER)


def test_config_allows_an_unclean_election_by_the_best_live_log() -> None:
    state = LeaderAndIsr(NO_LEADER, 4, (1,), min_isr=1)
    image = planning.PartitionImage(TOPIC_ID, REPLICAS, state, {2: 11, 3: 12}, log_ends={2: (11, (4, 5)), 3: (12, (4, 7))})
    live = {one: Registration(one, 9 + one, "i", clean=True) for one in (2, 3)}
    assert planning.plan(image, live) == state
    image.may_lose = True
    chosen = planning.plan(image, live)
    assert (chosen.leader, chosen.unclean_epoch) == (3, 5)
    image.log_ends[3] = (10, (4, 7))  # an older registration's
    assert planning.plan(image, live) == state


def test_a_lost_log_counts_as_none_where_config_allows_an_unclean_election() -> None:
    state = LeaderAndIsr(NO_LEADER, 4, (2,), unclean=(2,), min_isr=1)
    image = planning.PartitionImage(TOPIC_ID, REPLICAS, state, {2: 11, 3: 12}, log_ends={3: (12, (4, 7))}, without_log={2: 11})
    live = {one: Registration(one, 9 + one, "i", clean=True) for one in (2, 3)}
    assert planning.plan(image, live) == state
    image.may_lose = True
    assert planning.plan(image, live).leader == 3
    alone = planning.PartitionImage(TOPIC_ID, (2,), state, {2: 11}, without_log={2: 11}, may_lose=True)
    assert planning.plan(alone, live) == state
    alone.wants_unclean = True
    empty = planning.plan(alone, live)
    assert (empty.leader, empty.isr, empty.elr, empty.unclean) == (NO_LEADER, (), (), ())
    alone.state, alone.without_log, alone.log_ends = empty, {}, {2: (11, (-1, 0))}
    led = planning.plan(alone, live)
    assert (led.leader, led.isr, led.unclean_epoch) == (2, (2,), 5)


def test_patience_ends_once() -> None:
    machine = Controller(3, epoch=7, epoch_version=6)
    state = LeaderAndIsr(NO_LEADER, 4, (1,), min_isr=1)
    ends = {2: (12, (4, 5)), 3: (13, (4, 7))}
    image = planning.PartitionImage(TOPIC_ID, REPLICAS, state, log_ends=ends, patience_ms=1_000)
    brokers = {one: Registration(one, 10 + one, "i", clean=True) for one in (2, 3)}
    noted = {one: Incarnation("i", noted=10 + one, version=2) for one in (2, 3)}
    assert not writes(controller.on_image(machine, {("t", 0): image}, brokers, noted, 5_000))
    assert not writes(controller.on_time(machine, 5_999))
    assert len(writes(controller.on_time(machine, 6_000))) == 1
    assert machine.writing["t", 0].state.leader == 3


def test_preferred_leaders_in_sync_lead_again_where_a_broker_lacks_too_many() -> None:
    states = [LeaderAndIsr(2, 4, (1, 2)), LeaderAndIsr(2, 4, (2,)), LeaderAndIsr(1, 4, (1, 2)), LeaderAndIsr(2, 4, (1, 2))]
    orders = ((1, 2), (1, 2), (1, 2), (2, 1))
    partitions = {
        ("t", at): planning.PartitionImage(TOPIC_ID, order, state)
        for at, (order, state) in enumerate(zip(orders, states, strict=True))
    }
    assert balance.find_unbalanced(partitions, {1, 2}, 60) == [("t", 0)]
    assert balance.find_unbalanced(partitions, {1, 2}, 67) == []
    assert balance.find_unbalanced(partitions, {2}, 10) == []
    partitions["t", 0].unwritable = frozenset({1})
    assert balance.find_unbalanced(partitions, {1, 2}, 60) == []


def test_a_role_that_a_deletion_overtook_is_not_told_again() -> None:
    machine, actions = cluster(1)
    request = roles_for(actions, 2)
    told = {("t", 0): RoleAnswer(ErrorCode.UNKNOWN_TOPIC_ID)}
    answer = LeaderAndIsrAnswer(2, 12, ErrorCode.NONE, 7, told)
    controller.on_deleting(machine, [("t", 0)], 1)
    controller.on_answer(machine, request, answer, 2)
    controller.on_deleted(machine, [("t", 0)], 3)
    assert controller.on_time(machine, 99_999) == []


def test_a_follower_takes_no_batch_of_a_falling_or_unasked_epoch() -> None:
    assert follower.accept([3, 4, 4, 5], asked_epoch=5, last_epoch=3) == 4
    assert follower.accept([3, 2], asked_epoch=5, last_epoch=3) == 1
    assert follower.accept([4, 6], asked_epoch=5, last_epoch=3) == 1
    assert follower.accept([2], asked_epoch=5, last_epoch=3) == 0


def test_a_wait_ends_with_its_lead_its_records_or_its_time() -> None:
    waits = acks.Waits()
    for token, offset in ((1, 10), (2, 12), (3, 14)):
        acks.add(waits, acks.Wait(offset, token, leads_since=4, deadline_ms=100))
    assert acks.answer(waits, 11, 4, True, 50) == [(1, ErrorCode.NONE)]
    assert acks.answer(waits, 12, 4, False, 100) == [(2, ErrorCode.NONE), (3, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
    acks.add(waits, acks.Wait(16, 4, leads_since=4, deadline_ms=100))
    assert acks.answer(waits, 20, 6, True, 50) == [(4, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert waits.heap == []


def test_the_lease_lasts_from_when_its_write_was_sent() -> None:
    held = lease.Lease(6_000)
    lease.renew(held, sent_ms=1_000)
    assert held.holds(4_999) and not held.holds(5_000)
    lease.renew(held, sent_ms=500)
    assert held.until_ms == 5_000


@pytest.mark.parametrize(
    ("acks_wanted", "members", "elr", "silent_ms", "error"),
    [
        (1, (1, 2), (), 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (0, (1,), (2,), 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (1, (1,), (), 9_000, ErrorCode.NONE),
        (-1, (1, 2), (), 100, ErrorCode.NONE),
        (-1, (1, 2), (), 9_000, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_without_the_lease(
    acks_wanted: int, members: tuple[int, ...], elr: tuple[int, ...], silent_ms: int, error: ErrorCode
) -> None:
    assert lease.produce_error(False, acks_wanted, 1, members, elr, silent_ms) == error
    assert lease.produce_error(True, acks_wanted, 1, members, elr, silent_ms) == ErrorCode.NONE


def cluster(partitions: int, live: tuple[int, ...] = REPLICAS) -> tuple[Controller, controller.Out]:
    """A new controller of some partitions whose leader is 1, and what it does first. All registrations are dealt with."""
    machine = Controller(3, epoch=7, epoch_version=6)
    images = {
        ("t", number): planning.PartitionImage(TOPIC_ID, REPLICAS, LeaderAndIsr(1, 4, REPLICAS, min_isr=2))
        for number in range(partitions)
    }
    brokers = {one: Registration(one, 10 + one, "i", clean=True) for one in live}
    noted = {one: Incarnation("i", noted=10 + one, version=2) for one in live}
    return machine, controller.on_image(machine, images, brokers, noted, 0)


def writes(actions: controller.Out) -> list[WriteStates]:
    return [action for action in actions if isinstance(action, WriteStates)]


def test_many_states_are_written_in_multis_of_a_bounded_size() -> None:
    _, actions = cluster(controller.STATES_AT_A_TIME + 5, live=(2, 3))
    sizes = [len(write.operations) - 2 for write in writes(actions)]
    assert sizes == [controller.STATES_AT_A_TIME, 5]
    assert all(write.operations[0] == Check(paths.CONTROLLER_EPOCH, 6) for write in writes(actions))


def test_a_refused_version_holds_up_no_other_partition() -> None:
    machine, actions = cluster(3, live=(2, 3))
    (write,) = writes(actions)
    refused: Partition = ("t", 1)
    actions = controller.on_written(machine, write.id, Outcome.REFUSED, 1, controller.state_path(refused))
    assert [action.partition for action in actions if isinstance(action, ReadState)] == [refused]
    (again,) = writes(actions)
    assert [one.path for one in again.operations[2:]] == [controller.state_path(("t", number)) for number in (0, 2)]
    actions = controller.on_state_read(machine, refused, LeaderAndIsr(1, 4, (1, 3), min_isr=2, partition_epoch=3), 2)
    (last,) = writes(actions)
    written = last.operations[2]
    assert isinstance(written, Set) and written.version == 3


def test_a_write_whose_answer_was_lost_is_found_again() -> None:
    machine, actions = cluster(1, live=(2, 3))
    (write,) = writes(actions)
    planned = machine.writing["t", 0].state
    assert ReadState(("t", 0)) in controller.on_written(machine, write.id, Outcome.UNKNOWN, 1)
    assert not writes(controller.on_state_read(machine, ("t", 0), planned.written(1), 2))
    assert machine.partitions["t", 0].state == planned.written(1)


def test_a_controller_that_was_replaced_resigns() -> None:
    machine, actions = cluster(1, live=(2, 3))
    (write,) = writes(actions)
    assert controller.on_written(machine, write.id, Outcome.REFUSED, 1, paths.CONTROLLER_EPOCH) == [controller.Resign()]
    assert controller.on_time(machine, 99_999) == []
    machine, actions = cluster(1)
    request = roles_for(actions, 2)
    refused = LeaderAndIsrAnswer(2, 12, ErrorCode.STALE_CONTROLLER_EPOCH, 9)
    assert controller.on_answer(machine, request, refused, 1) == [controller.Resign(9)]


def roles_for(actions: controller.Out, broker: int) -> LeaderAndIsrRequest:
    (request,) = [one.request for one in actions if isinstance(one, SendRoles) and one.request.broker == broker]
    return request


def test_a_store_that_went_back_gives_no_epoch_twice() -> None:
    """A replica's log has batches of epoch 9, the store says 4: the next leader epoch is above 9."""
    machine, actions = cluster(1)
    request = roles_for(actions, 2)
    answer = LeaderAndIsrAnswer(2, 12, ErrorCode.NONE, 7, {("t", 0): RoleAnswer(ErrorCode.FENCED_LEADER_EPOCH, 9, 100)})
    (write,) = writes(controller.on_answer(machine, request, answer, 1))
    written = write.operations[2]
    assert isinstance(written, Set) and json.loads(written.data)["leader_epoch"] == 10


def test_a_broker_without_its_log_loses_its_seat_before_it_may_make_one() -> None:
    machine, actions = cluster(1)
    request = roles_for(actions, 2)
    answer = LeaderAndIsrAnswer(2, 12, ErrorCode.NONE, 7, {("t", 0): RoleAnswer(ErrorCode.KAFKA_STORAGE_ERROR)})
    actions = controller.on_answer(machine, request, answer, 1)
    (write,) = writes(actions)
    written = write.operations[2]
    assert isinstance(written, Set) and json.loads(written.data)["isr"] == [1, 3]
    assert not [one for one in actions if isinstance(one, SendRoles)]
    told = roles_for(controller.on_written(machine, write.id, Outcome.DONE, 2), 2)
    assert told.roles[0].state.isr == (1, 3)


def test_a_role_that_a_broker_failed_to_take_is_told_again_and_says_nothing_of_its_log() -> None:
    """By an answer for this role, and by one for the whole request: a handler failed, or refused as it was busy."""
    role: Partition = ("t", 1)
    for whole in (False, True):
        machine, actions = cluster(2)
        request = roles_for(actions, 2)
        for image in machine.partitions.values():
            image.state = replace(image.state, leader=NO_LEADER)
        request = replace(
            request, roles=tuple(replace(one, state=machine.partitions[one.partition].state) for one in request.roles)
        )
        machine.peers[2].out = request
        taken, failed = RoleAnswer(ErrorCode.NONE, 4, 100), RoleAnswer(ErrorCode.UNKNOWN_SERVER_ERROR)
        answers = {} if whole else {("t", 0): taken, role: failed}
        error = ErrorCode.UNKNOWN_SERVER_ERROR if whole else ErrorCode.NONE
        actions = controller.on_answer(machine, request, LeaderAndIsrAnswer(2, 12, error, 7, answers), 1)
        assert not [one for one in actions if isinstance(one, SendRoles)]
        assert machine.partitions[role].log_ends == {}
        again = roles_for(controller.on_time(machine, 1 + controller.AGAIN_MS), 2)
        assert [one.partition for one in again.roles] == ([("t", 0), role] if whole else [role])


def test_a_broker_hears_nothing_before_its_registration_is_dealt_with() -> None:
    machine, _ = cluster(1)
    new = {**machine.registrations, 2: Registration(2, 50, "j", clean=True)}
    nodes = {**machine.incarnations, 2: Incarnation("j", NO_EPOCH, version=3)}
    actions = controller.on_brokers(machine, new, nodes, 1)
    assert not [one for one in actions if isinstance(one, SendRoles) and one.request.broker == 2]
    for _ in range(2):  # the state without its seat, then the note
        (write,) = writes(actions)
        actions = controller.on_written(machine, write.id, Outcome.DONE, 2)
    assert roles_for(actions, 2).broker_epoch == 50
    assert machine.partitions["t", 0].state.isr == (1, 3)


EMPTY = RoleAnswer(ErrorCode.NONE)


def make(machine: Controller, partition: Partition, image: planning.PartitionImage) -> controller.Out:
    """A partition becomes known that has no state; what the controller does then."""
    return controller.on_partitions(machine, {partition: image}, 1)


def say(machine: Controller, actions: controller.Out, broker: int, now_ms: int = 2, told: RoleAnswer = EMPTY) -> controller.Out:
    """A broker answers its one role, under the registration that it was told under."""
    request = roles_for(actions, broker)
    answer = LeaderAndIsrAnswer(broker, request.broker_epoch, ErrorCode.NONE, 7, {request.roles[0].partition: told})
    return controller.on_answer(machine, request, answer, now_ms)


def new_image(replicas: tuple[int, ...] = REPLICAS, topic_id: bytes = TOPIC_ID) -> planning.PartitionImage:
    return planning.PartitionImage(topic_id, replicas, replace(NOT_CREATED, min_isr=2))


def test_a_partition_gets_its_first_state_from_the_replicas_whose_logs_are_there() -> None:
    machine, _ = cluster(0, live=(2, 3))
    new: Partition = ("new", 0)
    made = make(machine, new, new_image())
    assert not writes(made)
    for broker in (2, 3):
        state = roles_for(made, broker).roles[0].state
        assert state.is_new and (state.leader, state.leader_epoch, state.seats) == (NO_LEADER, NO_EPOCH, ())
    assert not writes(say(machine, made, 3))
    actions = say(machine, made, 2)
    (write,) = writes(actions)
    assert write.operations[1] == Check(paths.DELETED, 0)  # A topic may have been made again under its name,
    assert write.operations[2] == Check(paths.topic("new"))  # or may have been deleted.
    created = write.operations[3]
    assert isinstance(created, Create) and created.path == controller.state_path(new)
    assert read_state(created.path, created.data, 0) == LeaderAndIsr(2, 0, (2, 3), min_isr=2, controller_epoch=7)
    assert not [one for one in actions if isinstance(one, SendRoles)]
    actions = controller.on_written(machine, write.id, Outcome.UNKNOWN, 2)
    assert actions == [ReadState(new)]
    (again,) = writes(controller.on_state_read(machine, new, None, 3))
    assert again.operations == write.operations
    for broker in (2, 3):  # They are told once more meanwhile that there is no state.
        peer = machine.peers[broker]
        assert peer.out is not None
        controller.on_answer(machine, peer.out, LeaderAndIsrAnswer(broker, 10 + broker, ErrorCode.NONE, 7, {new: EMPTY}), 4)
    told = controller.on_written(machine, again.id, Outcome.DONE, 4)
    assert {one.request.broker: one.request.roles[0].state.isr for one in told if isinstance(one, SendRoles)} == {
        2: (2, 3),
        3: (2, 3),
    }


def created_anew(outcome: Outcome, refused: str = "") -> tuple[Controller, controller.Out, WriteStates]:
    """A partition's first state is being written; its topic goes by nobody's word, and one of its name comes; then the write
    ends so, and the next topic's only replica says that its log is there. The machine, what it does then, and that write."""
    machine, _ = cluster(0, live=(2, 3))
    new: Partition = ("new", 0)
    (write,) = writes(say(machine, make(machine, new, new_image((2,), b"1" * 16)), 2))
    controller.on_deleted(machine, [new], 2)
    made = make(machine, new, new_image((3,), b"2" * 16))
    assert not writes(made)
    actions = controller.on_written(machine, write.id, outcome, 4, refused)
    return machine, [*actions, *say(machine, made, 3, 5)], write


def last_write(actions: controller.Out) -> tuple[int, LeaderAndIsr]:
    """The one state that is written, and the version that it replaces; -1: none."""
    (write,) = writes(actions)
    last = write.operations[-1]
    assert isinstance(last, (Set, Create))
    return (last.version if isinstance(last, Set) else -1), read_state(last.path, last.data, 0)


def test_a_state_that_was_written_for_a_deleted_topic_is_not_the_next_ones() -> None:
    """It is replaced, and its leader epoch, 0, is exceeded by what replicas are told, 1, and by the first state."""
    new: Partition = ("new", 0)
    machine, actions, first = created_anew(Outcome.DONE)
    replaced, state = last_write(actions)
    assert (replaced, state.topic_id, state.leader, state.isr) == (0, b"2" * 16, 3, (3,))
    assert state.leader_epoch == state.unclean_epoch == 2

    machine, actions, first = created_anew(Outcome.UNKNOWN)
    assert ReadState(new) in actions and not writes(actions)
    created = first.operations[-1]
    assert isinstance(created, Create)
    found = read_state(created.path, created.data, 0)
    assert found.topic_id == b"1" * 16
    replaced, state = last_write(controller.on_state_read(machine, new, found, 5))
    assert (replaced, state.topic_id, state.isr) == (0, b"2" * 16, (3,))
    assert state.leader_epoch == state.unclean_epoch == 2


def test_no_state_names_a_broker_that_has_not_said_that_its_log_is_there() -> None:
    """The leader that would be is dead, and its session isn't over yet. Another one is waited for, but not for ever."""
    machine, _ = cluster(0, live=(2, 3))
    new: Partition = ("new", 0)
    made = make(machine, new, new_image((2, 3)))
    controller.on_unanswered(machine, roles_for(made, 2), 2)
    assert not writes(say(machine, made, 3, 10))
    assert not writes(controller.on_time(machine, 9 + controller.MAKING_MS))
    state = first_state(controller.on_time(machine, 10 + controller.MAKING_MS))
    assert (state.leader, state.isr) == (3, (3,))


def test_a_controller_that_is_elected_before_the_first_leader_answered_makes_it_lead() -> None:
    """The only replica was dead when its topic was made. A state would say to the second controller that somebody has led."""
    new: Partition = ("new", 0)
    first, _ = cluster(0, live=(2, 3))
    made = make(first, new, new_image((2,)))
    controller.on_unanswered(first, roles_for(made, 2), 2)
    assert not writes(controller.on_brokers(first, {3: first.registrations[3]}, {3: first.incarnations[3]}, 3))
    assert not writes(controller.on_time(first, 99_999))
    second, _ = cluster(0, live=(3,))
    assert not writes(make(second, new, planning.image_of(TOPIC_ID, (2,), None, 1)))
    back = {**second.registrations, 2: Registration(2, 50, "again", clean=True)}
    notes = {**second.incarnations, 2: Incarnation("again", noted=50)}
    actions = controller.on_brokers(second, back, notes, 500)
    state = first_state(say(second, actions, 2, 501))
    assert (state.leader, state.isr, state.unclean_epoch) == (2, (2,), NO_EPOCH)


def test_what_a_replica_said_under_another_registration_says_nothing() -> None:
    machine, _ = cluster(0, live=(2, 3))
    new: Partition = ("new", 0)
    made = make(machine, new, new_image((2, 3)))
    say(machine, made, 2)
    again = {**machine.registrations, 2: Registration(2, 50, "again", clean=True)}
    notes = {**machine.incarnations, 2: Incarnation("again", noted=50)}
    actions = controller.on_brokers(machine, again, notes, 3)
    assert not writes(say(machine, made, 3, 4))
    assert first_state(say(machine, actions, 2, 5)).isr == (2, 3)


def test_a_replica_that_has_no_room_for_its_log_is_not_waited_for() -> None:
    machine, _ = cluster(0, live=(2, 3))
    made = make(machine, ("new", 0), new_image((2, 3)))
    assert not writes(say(machine, made, 2, told=RoleAnswer(ErrorCode.KAFKA_STORAGE_ERROR)))
    assert first_state(say(machine, made, 3)).isr == (3,)


def test_where_a_state_is_lost_the_longest_log_leads_once_all_have_said_where_theirs_end() -> None:
    """A replica still follows in epoch 7; another one has records, and a third has none. One of them is late."""
    machine, _ = cluster(0)
    new: Partition = ("new", 0)
    made = make(machine, new, new_image())
    knows = RoleAnswer(ErrorCode.FENCED_LEADER_EPOCH, 7, 10)
    actions = say(machine, made, 1, told=knows)
    assert roles_for(actions, 1).roles[0].state.leader_epoch == 8
    assert not writes(say(machine, made, 2, told=RoleAnswer(ErrorCode.NONE, 6, 12)))
    assert not writes(say(machine, actions, 1, 3, told=RoleAnswer(ErrorCode.NONE, 7, 10)))
    assert not writes(controller.on_time(machine, 3 + controller.MAKING_MS))
    state = first_state(say(machine, made, 3, 4_000))
    assert (state.leader, state.isr, state.leader_epoch, state.unclean_epoch) == (1, (1,), 9, 9)


def test_a_known_state_is_written_over_another_topics_and_again_where_it_was_removed() -> None:
    for found, replaced, epoch in (
        (LeaderAndIsr(2, 30, (2,), partition_epoch=9, topic_id=b"f" * 16), 9, 31),
        (None, -1, 5),
    ):
        machine, actions = cluster(1, live=(2, 3))
        (write,) = writes(actions)
        assert controller.on_written(machine, write.id, Outcome.REFUSED, 1, PATH) == [ReadState(("t", 0))]
        version, state = last_write(controller.on_state_read(machine, ("t", 0), found, 2))
        assert (version, state.topic_id, state.leader, state.leader_epoch) == (replaced, TOPIC_ID, 2, epoch)
        assert (state.isr, state.unclean_epoch) == ((2, 3), NO_EPOCH)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (controller, "_is_planned_for", test_a_state_that_was_written_for_a_deleted_topic_is_not_the_next_ones),
        (LeaderAndIsr, "is_of", test_a_known_state_is_written_over_another_topics_and_again_where_it_was_removed),
    ],
    ids=["any write", "any state"],
)
def test_without_the_topics_id_that_fails(
    owner: object, name: str, broken: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, lambda *_: True)
    with pytest.raises((AssertionError, ValueError)):
        broken()


def test_a_write_that_a_deletion_overtook_is_planned_again_with_the_new_count() -> None:
    machine, actions = cluster(2, live=(2, 3))
    (write,) = writes(actions)
    actions = controller.on_written(machine, write.id, Outcome.REFUSED, 1, paths.DELETED)
    assert actions == [controller.ReadDeletions()]
    (again,) = writes(controller.on_deletions(machine, 4, 2))
    assert again.operations[1] == Check(paths.DELETED, 4) and again.operations[2:] == write.operations[2:]
    machine, actions = cluster(1, live=(2, 3))  # Its topic is the one that went.
    (write,) = writes(actions)
    controller.on_written(machine, write.id, Outcome.REFUSED, 1, paths.DELETED)
    controller.on_deleted(machine, [("t", 0)], 2)
    assert controller.on_deletions(machine, 4, 3) == []


def first_state(actions: controller.Out) -> LeaderAndIsr:
    """The one state that is written, as the store has it then: it is the first."""
    (write,) = writes(actions)
    (state,) = (one for one in write.operations if isinstance(one, Create))
    return read_state(state.path, state.data, 0)


def test_a_write_that_is_refused_with_its_topic_holds_up_no_later_one() -> None:
    machine, actions, _ = created_anew(Outcome.REFUSED, paths.topic("new"))
    replaced, state = last_write(actions)
    assert (replaced, state.topic_id, state.isr) == (-1, b"2" * 16, (3,))
    assert not machine.deleting

    machine, _ = cluster(0, live=(2, 3))
    (write,) = writes(say(machine, make(machine, ("new", 0), new_image((2,), b"1" * 16)), 2))
    controller.on_deleted(machine, [("new", 0)], 2)
    controller.on_written(machine, write.id, Outcome.REFUSED, 3, paths.topic("new"))
    assert len(writes(say(machine, make(machine, ("new", 0), new_image((3,), b"2" * 16)), 3))) == 1


def test_what_a_leader_proposed_for_a_deleted_topic_is_answered() -> None:
    machine, _ = cluster(1, live=(2, 3))  # A write is out: proposals wait.
    ask = AlterPartition(("t", 0), TOPIC_ID, 1, 11, 4, 0, (1,), {})
    assert controller.on_alter(machine, [("token", ask)], 1) == []
    (answer,) = [one for one in controller.on_deleted(machine, [("t", 0)], 2) if isinstance(one, AnswerAlter)]
    assert (answer.token, answer.answer.error) == ("token", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_a_wish_that_comes_while_a_write_is_out_is_carried_out_after_it() -> None:
    machine, actions = cluster(1)
    for broker in REPLICAS:
        assert roles_for(actions, broker)
    (lower,) = writes(controller.on_wish(machine, ("t", 0), 1, min_isr=1))
    assert not writes(controller.on_wish(machine, ("t", 0), 2, min_isr=2, leader=3))
    replaced, state = last_write(controller.on_written(machine, lower.id, Outcome.DONE, 3))
    assert (replaced, state.min_isr, state.leader) == (1, 2, 3)


def test_a_partition_without_a_live_replica_waits_for_one() -> None:
    machine, _ = cluster(0, live=())
    assert make(machine, ("new", 0), new_image((1, 2))) == []
    one = {2: Registration(2, 12, "i", clean=True)}
    actions = controller.on_brokers(machine, one, {2: Incarnation("i", noted=12)}, 2)
    assert first_state(say(machine, actions, 2)).leader == 2


def lead(topic_id: bytes, isr: tuple[int, ...]) -> tuple[Replica, leader.Leader]:
    """The first lead of a topic's partition."""
    one, state = Replica(1, ("t", 0), 0), LeaderAndIsr(1, 0, isr, partition_epoch=0)
    role = PartitionRole(one.partition, topic_id, REPLICAS, state, {1: 11, 2: 12, 3: 13})
    assert on_role(one, role, 11, ReplicaLog(), 0).error == ErrorCode.NONE
    assert one.leader is not None
    return one, one.leader


def test_an_answer_does_not_count_for_the_topic_made_again_under_the_name() -> None:
    _, former = lead(b"1" * 16, (1, 2, 3))
    ask = leader.make_proposal(former, (1, 2), {}, 0)
    again, led = lead(b"2" * 16, (1, 2, 3))
    written = AlterPartitionAnswer(ask, ErrorCode.NONE, replace(former.state, isr=(1, 2), partition_epoch=1))
    assert on_altered(again, written, 0) is None
    assert (led.state.isr, led.state.partition_epoch, leader.all_in_sync(led)) == ((1, 2, 3), 0, {1, 2, 3})
    assert on_altered(again, replace(written, ask=leader.make_proposal(led, (1, 2), {}, 0)), 0) is None
    assert (led.state.isr, led.state.partition_epoch, leader.all_in_sync(led)) == ((1, 2), 1, {1, 2})


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.UNKNOWN_TOPIC_ID])
def test_no_refusal_of_another_topics_proposal_frees_an_entrant(error: ErrorCode) -> None:
    _, former = lead(b"1" * 16, (1, 2))
    refused = leader.make_proposal(former, (1, 2, 3), {3: 13}, 0)
    again, led = lead(b"2" * 16, (1, 2))
    ask = leader.make_proposal(led, (1, 2, 3), {3: 13}, 0)
    assert leader.count(led, 0)
    assert on_altered(again, AlterPartitionAnswer(refused, error), 0) is None
    assert leader.all_in_sync(led) == {1, 2, 3}
    assert leader.repeat(led, leader.REPEAT_MS) == ask


def test_the_controller_refuses_a_proposal_of_a_topic_that_had_the_name_before() -> None:
    machine = Controller(3, epoch=7, epoch_version=6)
    state = LeaderAndIsr(1, 0, REPLICAS, partition_epoch=0)
    image = planning.PartitionImage(b"2" * 16, REPLICAS, state)
    brokers = {one: Registration(one, 10 + one, "i", clean=True) for one in REPLICAS}
    noted = {one: Incarnation("i", noted=10 + one, version=2) for one in REPLICAS}
    controller.on_image(machine, {("t", 0): image}, brokers, noted, 0)
    ask = AlterPartition(("t", 0), b"1" * 16, 1, 11, 0, 0, (1, 2), {})
    answer = AlterPartitionAnswer(ask, ErrorCode.UNKNOWN_TOPIC_ID)
    assert controller.on_alter(machine, [("token", ask)], 0) == [AnswerAlter("token", answer)]
    written = controller.on_alter(machine, [("token", replace(ask, topic_id=image.topic_id))], 0)
    assert [type(one) for one in written] == [WriteStates]


@pytest.mark.parametrize("late", [{1: 11, 2: 12}, {1: 11}])
def test_a_role_that_comes_late_names_no_member_by_an_older_registration(late: dict[int, int]) -> None:
    state = LeaderAndIsr(1, 0, (1, 2), partition_epoch=3)
    replica, log = Replica(1, ("t", 0), 0), ReplicaLog()
    for epochs in ({1: 11, 2: 12}, {1: 11, 2: 22}, late):
        told = PartitionRole(("t", 0), TOPIC_ID, (1, 2), state, epochs)
        assert on_role(replica, told, 11, log, 0).error == ErrorCode.NONE
    assert replica.leader is not None and replica.leader.broker_epochs == {1: 11, 2: 22}
    newer = replace(state, isr=(1,), partition_epoch=4)
    on_role(replica, PartitionRole(("t", 0), TOPIC_ID, (1, 2), newer, {1: 11}), 11, log, 0)
    assert replica.leader.broker_epochs == {1: 11}


def in_sync(count: int) -> tuple[Controller, list[tuple[object, AlterPartition]]]:
    """Broker 1 leads partitions of a topic, and asks that 3 leaves the ISRs. Each proposal has its partition as token."""
    machine = Controller(3, epoch=7, epoch_version=6)
    state = LeaderAndIsr(1, 0, REPLICAS, partition_epoch=0, topic_id=TOPIC_ID)
    images = {("t", number): planning.PartitionImage(TOPIC_ID, REPLICAS, state) for number in range(count)}
    brokers = {one: Registration(one, 10 + one, "i", clean=True) for one in REPLICAS}
    noted = {one: Incarnation("i", noted=10 + one, version=2) for one in REPLICAS}
    controller.on_image(machine, images, brokers, noted, 0)
    return machine, [(one, AlterPartition(one, TOPIC_ID, 1, 11, 0, 0, (1, 2), {})) for one in images]


def written_paths(write: WriteStates) -> set[str]:
    return {one.path for one in write.operations if isinstance(one, Set)}


def answers(actions: controller.Out) -> dict[object, int]:
    return {one.token: one.answer.error for one in actions if isinstance(one, AnswerAlter)}


def test_what_a_leader_proposes_together_is_written_together() -> None:
    count = 2 * controller.STATES_AT_A_TIME + 1
    machine, asks = in_sync(count)
    multis = writes(controller.on_alter(machine, asks, 1))
    assert [len(written_paths(one)) for one in multis] == [controller.STATES_AT_A_TIME] * 2 + [1]
    found: dict[object, int] = {}
    for one in multis:
        found.update(answers(controller.on_written(machine, one.id, Outcome.DONE, 2)))
    assert found == {partition: ErrorCode.NONE for partition, _ in asks}


@pytest.mark.parametrize("refused", ["state", "deletions"])
def test_a_refused_version_holds_up_no_other_proposal(refused: str) -> None:
    """One multi has them all, and one operation of it is refused. That says nothing of the other partitions: they are written
    again, and their leader hears of that write alone."""
    machine, asks = in_sync(3)
    (write,) = writes(controller.on_alter(machine, asks, 1))
    if refused == "state":
        actions = controller.on_written(machine, write.id, Outcome.REFUSED, 2, controller.state_path(("t", 1)))
        assert ReadState(("t", 1)) in actions
        again = {("t", 0), ("t", 2)}
    else:
        actions = controller.on_written(machine, write.id, Outcome.REFUSED, 2, paths.DELETED)
        assert not answers(actions)
        actions = controller.on_deletions(machine, 5, 3)
        again = {("t", 0), ("t", 1), ("t", 2)}
    assert not answers(actions)
    (write,) = writes(actions)
    assert written_paths(write) == {controller.state_path(one) for one in again}
    assert answers(controller.on_written(machine, write.id, Outcome.DONE, 4)) == dict.fromkeys(again, ErrorCode.NONE)


def test_proposals_of_a_topic_that_goes_are_answered_after_a_refused_write() -> None:
    machine, asks = in_sync(2)
    (write,) = writes(controller.on_alter(machine, asks, 1))
    assert not answers(controller.on_deleting(machine, [("t", 0), ("t", 1)], 2))
    found = answers(controller.on_written(machine, write.id, Outcome.REFUSED, 3, controller.state_path(("t", 1))))
    found |= answers(controller.on_state_read(machine, ("t", 1), None, 4))
    assert set(found) == {("t", 0), ("t", 1)} and ErrorCode.NONE not in found.values()


def test_a_disk_that_is_full_counts_as_full_however_short_the_pause_after_it() -> None:
    disks = FullDisks(0)
    assert fulldisks.on_look(disks, ["/d"], 5) == {"/d"}
    assert fulldisks.on_look(disks, [], 5) == frozenset()
