"""What brokers say to each other: every value survives Kafka's messages, and no bytes are worse than refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.cluster.leaderandisr import NOT_CREATED, LeaderAndIsr
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    BrokerEndpoint,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    LiveBroker,
    Partition,
    PartitionMetadata,
    PartitionRole,
    RoleAnswer,
    StoppedReplica,
    StopReplica,
    StopReplicaAnswer,
    UpdateMetadata,
)
from penstock.broker.dispatch import ELEMENTS_MAX
from penstock.broker.replication import wire
from penstock.pyx.wire import messages as forms
from penstock.pyx.wire.message import Message, WireError

SETTINGS = settings(max_examples=60, deadline=None, database=None, derandomize=True)
INT, LONG = 2**31 - 1, 2**63 - 1
IDS = st.integers(0, INT)
LISTS = st.lists(IDS, max_size=5, unique=True).map(tuple)
EPOCHS = st.integers(0, INT)
BROKER_EPOCHS = st.integers(-1, LONG)
ERRORS = st.integers(-1, 133)
NAMES = st.text("aZ0._-", min_size=1, max_size=8).filter(lambda name: name not in (".", ".."))
TOPIC_IDS = st.binary(min_size=16, max_size=16).filter(any)
TOPICS = st.lists(st.tuples(NAMES, TOPIC_IDS), max_size=3, unique_by=(lambda one: one[0], lambda one: one[1]))
SENDERS = st.fixed_dictionaries({"controller": IDS, "controller_epoch": EPOCHS, "broker": IDS, "broker_epoch": BROKER_EPOCHS})
ANSWERERS = st.fixed_dictionaries(
    {"broker": IDS, "broker_epoch": BROKER_EPOCHS, "error": ERRORS, "controller_epoch": st.integers(-1, INT)}
)


def states(least_leader: int = -1, least_epoch: int = 0) -> st.SearchStrategy[LeaderAndIsr]:
    """States, with or without a leader."""
    return st.builds(
        LeaderAndIsr,
        leader=st.integers(least_leader, INT),
        leader_epoch=st.integers(least_epoch, INT),
        isr=LISTS,
        elr=LISTS,
        unclean=LISTS,
        unclean_epoch=st.integers(-1, INT),
        min_isr=st.integers(1, INT),
        controller_epoch=EPOCHS,
        leader_recovery_state=st.integers(0, 1),
        partition_epoch=st.integers(least_epoch, INT),
        unknown=st.just({}),
        is_new=st.booleans(),
    )


@st.composite
def partitions(draw: Callable[..., Any]) -> list[tuple[Partition, bytes]]:
    """Some partitions, each once, in any order, with their topics' ids."""
    found = [
        ((name, index), topic_id) for name, topic_id in draw(TOPICS) for index in draw(st.lists(IDS, max_size=3, unique=True))
    ]
    return list(draw(st.permutations(found)))


@st.composite
def roles(draw: Callable[..., Any]) -> LeaderAndIsrRequest:
    told = tuple(
        PartitionRole(partition, topic_id, draw(LISTS), draw(states()), draw(st.dictionaries(IDS, BROKER_EPOCHS, max_size=3)))
        for partition, topic_id in draw(partitions())
    )
    return LeaderAndIsrRequest(roles=told, **draw(SENDERS))


@st.composite
def metadata(draw: Callable[..., Any]) -> UpdateMetadata:
    told = tuple(
        PartitionMetadata(partition, topic_id, draw(LISTS), draw(states(-2, -1)), draw(LISTS))
        for partition, topic_id in draw(partitions())
    )
    endpoint = st.builds(BrokerEndpoint, NAMES, NAMES, st.integers(1, 65_535), st.integers(0, 3))
    brokers = tuple(
        LiveBroker(broker, tuple(draw(st.lists(endpoint, max_size=2))), draw(st.none() | st.text(max_size=3)))
        for broker in draw(LISTS)
    )
    number = draw(st.integers(0, 2**63 - 1))
    return UpdateMetadata(brokers=brokers, partitions=told, is_whole=draw(st.booleans()), number=number, **draw(SENDERS))


@st.composite
def stops(draw: Callable[..., Any]) -> StopReplica:
    told = tuple(
        StoppedReplica(partition, topic_id, draw(st.integers(-2, INT)), draw(st.booleans()))
        for partition, topic_id in draw(partitions())
    )
    return StopReplica(replicas=told, **draw(SENDERS))


@st.composite
def proposals(draw: Callable[..., Any]) -> tuple[AlterPartition, ...]:
    """Proposals that go together."""
    broker, broker_epoch = draw(IDS), draw(BROKER_EPOCHS)
    found = draw(partitions().filter(bool))
    asks = []
    for partition, topic_id in found:
        isr = draw(LISTS)
        entrants = {one: draw(st.integers(0, LONG)) for one in isr if draw(st.booleans())}
        asks.append(AlterPartition(partition, topic_id, broker, broker_epoch, draw(EPOCHS), draw(EPOCHS), isr, entrants))
    return tuple(asks)


def names_of(asks: Sequence[AlterPartition]) -> dict[bytes, str]:
    """Their topics' names, by id."""
    return {ask.topic_id: ask.partition[0] for ask in asks}


def some(draw: Callable[..., Any], asked: Sequence[Partition], answers: st.SearchStrategy[Any]) -> dict[Partition, Any]:
    """Answers to some of what was asked."""
    return {partition: draw(answers) for partition in asked if draw(st.booleans())}


@st.composite
def role_answers(draw: Callable[..., Any]) -> tuple[LeaderAndIsrAnswer, LeaderAndIsrRequest]:
    request = draw(roles())
    answer = st.builds(RoleAnswer, ERRORS, st.integers(-1, INT), st.integers(0, LONG))
    return LeaderAndIsrAnswer(
        answers=some(draw, [role.partition for role in request.roles], answer), **draw(ANSWERERS)
    ), request


@st.composite
def stop_answers(draw: Callable[..., Any]) -> tuple[StopReplicaAnswer, StopReplica]:
    request = draw(stops())
    return StopReplicaAnswer(errors=some(draw, [one.partition for one in request.replicas], ERRORS), **draw(ANSWERERS)), request


@st.composite
def proposal_answers(draw: Callable[..., Any]) -> tuple[list[AlterPartitionAnswer], tuple[AlterPartition, ...]]:
    asks = draw(proposals())
    answers = []
    for ask in asks:
        error = draw(ERRORS)
        state = draw(states()) if error == 0 else draw(st.none() | states())
        answers.append(AlterPartitionAnswer(ask, error, state))
    return answers, asks


def through(message: Message) -> Any:
    """A message as another broker gets it."""
    return type(message).decode(message.encode(message.MAX_VERSION), message.MAX_VERSION)


@SETTINGS
@given(roles())
def test_roles(request: LeaderAndIsrRequest) -> None:
    found = wire.read_roles(through(wire.write_roles(request)))
    assert found == request
    assert [role.state.is_new for role in found.roles] == [role.state.is_new for role in request.roles]


@pytest.mark.parametrize("state", [replace(NOT_CREATED, is_new=True), replace(NOT_CREATED, is_new=True, leader_epoch=7)])
def test_a_role_before_the_first_state(state: LeaderAndIsr) -> None:
    request = replace(REQUEST, roles=(replace(REQUEST.roles[0], state=state),))
    found = wire.read_roles(through(wire.write_roles(request)))
    assert found == request and found.roles[0].state.is_new


@SETTINGS
@given(role_answers())
def test_answers_to_roles(case: tuple[LeaderAndIsrAnswer, LeaderAndIsrRequest]) -> None:
    answer, request = case
    assert wire.read_role_answers(through(wire.write_role_answers(answer, request)), request) == answer


@SETTINGS
@given(metadata())
def test_metadata(update: UpdateMetadata) -> None:
    assert wire.read_metadata(through(wire.write_metadata(update))) == update


@SETTINGS
@given(stops())
def test_stops(request: StopReplica) -> None:
    assert wire.read_stops(through(wire.write_stops(request))) == request


@SETTINGS
@given(stop_answers())
def test_answers_to_stops(case: tuple[StopReplicaAnswer, StopReplica]) -> None:
    answer, request = case
    assert wire.read_stop_answers(through(wire.write_stop_answers(answer)), request) == answer


@SETTINGS
@given(proposals(), st.data())
def test_proposals(asks: Sequence[AlterPartition], data: st.DataObject) -> None:
    known = data.draw(st.sets(st.sampled_from(sorted(names_of(asks)))))
    names = {topic_id: name for topic_id, name in names_of(asks).items() if topic_id in known}
    read = wire.read_proposals(through(wire.write_proposals(asks)), names)
    assert list(read.asks) == [ask for ask in asks if ask.topic_id in known]
    assert list(read.unknown) == [(ask.topic_id, ask.partition[1]) for ask in asks if ask.topic_id not in known]
    answers = [AlterPartitionAnswer(ask, 41) for ask in read.asks]
    told = wire.read_proposal_answers(through(wire.write_proposal_answers(answers, read)), asks)
    assert [(one.ask, one.error) for one in told] == [(ask, 41 if ask.topic_id in known else 100) for ask in asks]


@SETTINGS
@given(proposal_answers())
def test_answers_to_proposals(case: tuple[list[AlterPartitionAnswer], tuple[AlterPartition, ...]]) -> None:
    answers, asks = case
    message = through(wire.write_proposal_answers(answers, wire.Proposals(asks)))
    assert wire.read_proposal_answers(message, asks) == answers
    message.error_code = 41
    assert wire.read_proposal_answers(message, asks) == [AlterPartitionAnswer(ask, 41) for ask in asks]


@SETTINGS
@given(ERRORS, st.lists(st.tuples(NAMES, IDS), max_size=4, unique=True))
def test_what_a_stopping_broker_still_leads(error: int, remaining: list[Partition]) -> None:
    assert wire.read_remaining(through(wire.write_remaining(error, remaining))) == (error, remaining)


# How one message is made, how it is read, and how what was read is written again (None: not by itself).
Way = tuple[Message, Callable[[Any], Any], Callable[[Any], Message] | None]


def read_and_write(case: tuple[Any, Any], write: Callable[..., Message], read: Callable[..., Any]) -> Way:
    answer, request = case
    return write(answer, request), lambda message: read(message, request), lambda value: write(value, request)


def proposal_case(asks: Sequence[AlterPartition]) -> Way:
    return wire.write_proposals(asks), partial(wire.read_proposals, names=names_of(asks)), None


def proposal_answer_case(
    case: tuple[list[AlterPartitionAnswer], tuple[AlterPartition, ...]],
) -> Way:
    answers, asks = case
    message = wire.write_proposal_answers(answers, wire.Proposals(asks))
    return message, partial(wire.read_proposal_answers, asks=asks), None


MESSAGES: dict[str, st.SearchStrategy[Way]] = {
    "roles": roles().map(lambda one: (wire.write_roles(one), wire.read_roles, wire.write_roles)),
    "role answers": role_answers().map(lambda case: read_and_write(case, wire.write_role_answers, wire.read_role_answers)),
    "metadata": metadata().map(lambda one: (wire.write_metadata(one), wire.read_metadata, wire.write_metadata)),
    "stops": stops().map(lambda one: (wire.write_stops(one), wire.read_stops, wire.write_stops)),
    "stop answers": stop_answers().map(
        lambda case: read_and_write(case, lambda one, _: wire.write_stop_answers(one), wire.read_stop_answers)
    ),
    "proposals": proposals().map(proposal_case),
    "proposal answers": proposal_answers().map(proposal_answer_case),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_spoilt_bytes_are_refused_or_read_as_a_value_that_can_be_written(kind: str) -> None:
    @SETTINGS
    @given(MESSAGES[kind], st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=12))
    def check(case: Way, mistakes: list[tuple[int, int]]) -> None:
        message, read, write = case
        data = bytearray(message.encode(message.MAX_VERSION))
        for at, byte in mistakes:
            data[at % len(data)] = byte
            try:
                value = read(type(message).decode(data, message.MAX_VERSION))
            except WireError:
                continue
            if write is not None:
                assert read(through(write(value))) == value

    check()


ID, OTHER = bytes(range(16)), bytes(range(1, 17))
STATE = LeaderAndIsr(1, 5, (1, 2), min_isr=2, partition_epoch=3)
REQUEST = LeaderAndIsrRequest(1, 7, 2, 99, (PartitionRole(("t", 0), ID, (1, 2, 3), STATE, {1: 5, 2: 6}),))


def spoil(**fields: object) -> Callable[[Any], None]:
    """Set fields of the first partition's state, or of its topic, or of the whole message."""

    def change(message: Any) -> None:
        for name, value in fields.items():
            places = (message.topic_states[0].partition_states[0], message.topic_states[0], message)
            setattr(next(place for place in places if name in place.__slots__), name, value)

    return change


WRONG: dict[str, Callable[[Any], None]] = {
    "a broker twice in the ISR": spoil(isr=[1, 1]),
    "a broker below 0": spoil(replicas=[-1]),
    "a broker twice in the ELR": spoil(elr=[4, 4]),
    "a broker twice among the unclean": spoil(unclean=[4, 4]),
    "no replica is needed": spoil(min_isr=0),
    "a leader below -1": spoil(leader=-2),
    "a leader epoch below 0": spoil(leader_epoch=-1),
    "a partition epoch below 0": spoil(partition_epoch=-1),
    "an unclean epoch below -1": spoil(unclean_epoch=-2),
    "a recovery state that there isn't": spoil(leader_recovery_state=2),
    "a partition below 0": spoil(partition_index=-1),
    "a topic without an id": spoil(topic_id=bytes(16)),
    "a name that leaves the folder": spoil(topic_name="../t"),
    "a topic without a name": spoil(topic_name=""),
    "a controller epoch below 0": spoil(controller_id=1, broker_id=-1),
    "a partition twice": lambda message: message.topic_states[0].partition_states.append(
        message.topic_states[0].partition_states[0]
    ),
    "a topic of two ids": lambda message: message.topic_states.append(
        forms.LeaderAndIsrRequest.LeaderAndIsrTopicState(
            topic_name="t", topic_id=OTHER, partition_states=[_with_index(message, 1)]
        )
    ),
    "an id of two topics": lambda message: message.topic_states.append(
        forms.LeaderAndIsrRequest.LeaderAndIsrTopicState(
            topic_name="u", topic_id=ID, partition_states=[_with_index(message, 0)]
        )
    ),
    "a registration twice": spoil(broker_epochs=[forms.LeaderAndIsrRequest.BrokerState(broker_id=1)] * 2),
}


def _with_index(message: Any, index: int) -> Any:
    one = through(message).topic_states[0].partition_states[0]
    one.partition_index = index
    return one


@pytest.mark.parametrize("what", WRONG)
def test_what_no_controller_says_is_refused(what: str) -> None:
    message = wire.write_roles(REQUEST)
    assert wire.read_roles(through(message)) == REQUEST
    WRONG[what](message)
    with pytest.raises(WireError):
        wire.read_roles(through(message))


def test_an_answer_to_what_was_not_asked_is_refused() -> None:
    other = replace(REQUEST, roles=(replace(REQUEST.roles[0], topic_id=OTHER),))
    answer = LeaderAndIsrAnswer(2, 99, 0, 7, {("t", 0): RoleAnswer(0)})
    with pytest.raises(WireError, match="wasn't asked"):
        wire.read_role_answers(through(wire.write_role_answers(answer, other)), REQUEST)
    ask = AlterPartition(("t", 0), ID, 1, 9, 5, 3, (1, 2), {2: 8})
    proposals = wire.Proposals((ask,))
    none = through(wire.write_proposal_answers([], proposals))
    with pytest.raises(WireError, match="0 answers to 1 proposals"):
        wire.read_proposal_answers(none, [ask])
    accepted = through(wire.write_proposal_answers([AlterPartitionAnswer(ask, 0)], proposals))
    with pytest.raises(WireError, match="lacks the state"):
        wire.read_proposal_answers(accepted, [ask])


def test_proposals_that_do_not_go_together_are_refused() -> None:
    ask = AlterPartition(("t", 0), ID, 1, 9, 5, 3, (1, 2), {2: 8})
    for asks in ([], [ask, ask], [ask, replace(ask, partition=("t", 1), broker_epoch=10)]):
        with pytest.raises(ValueError, match="in one request"):
            wire.write_proposals(asks)


@pytest.mark.parametrize("topic_id", [b"", b"short", bytes(16), bytes(17)])
def test_a_topic_id_that_is_none_is_not_sent(topic_id: bytes) -> None:
    with pytest.raises(ValueError, match="no topic id"):
        wire.write_roles(replace(REQUEST, roles=(replace(REQUEST.roles[0], topic_id=topic_id),)))


def test_kafkas_own_fields_are_where_kafka_looks_for_them() -> None:
    """A broker of Kafka's, which knows none of our tags, would read the same role."""
    message = wire.write_roles(REQUEST)
    (topic,) = message.topic_states
    (one,) = topic.partition_states
    assert (message.controller_id, message.controller_epoch, message.broker_epoch) == (1, 7, 99)
    assert (topic.topic_name, topic.topic_id, one.partition_index, one.leader, one.leader_epoch) == ("t", ID, 0, 1, 5)
    assert (one.isr, one.partition_epoch, one.replicas, one.is_new) == ([1, 2], 3, [1, 2, 3], False)
    first = replace(STATE, is_new=True)
    new = wire.write_roles(replace(REQUEST, roles=(replace(REQUEST.roles[0], state=first),)))
    assert new.topic_states[0].partition_states[0].is_new


@pytest.mark.parametrize("replicas", [1, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 20_000])
def test_pieces_hold_everything_and_no_more_than_is_accepted(count: int, replicas: int) -> None:
    """In the worst case, which is a topic for each partition and every list as long as it may be."""
    brokers = tuple(range(replicas))
    state = replace(STATE, isr=brokers, unclean=brokers)
    told = tuple(
        PartitionRole((f"t{at}", 0), at.to_bytes(16, "big"), brokers, state, dict.fromkeys(brokers, 1))
        for at in range(1, count + 1)
    )
    pieces = list(wire.in_pieces(told, lambda role: len(role.replicas)))
    assert tuple(role for piece in pieces for role in piece) == told
    assert len(pieces) == 1 or all(pieces)
    if replicas == 3 and count:
        assert len(pieces[0]) == min(2_500, count)
    for piece in pieces[:1]:
        body = wire.write_roles(replace(REQUEST, roles=piece)).encode(7)
        assert len(forms.LeaderAndIsrRequest.decode(body, 7, elements_max=ELEMENTS_MAX).topic_states) == len(piece)
