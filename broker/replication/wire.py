"""What brokers say to each other, between the values of `broker/cluster/messages.py` and Kafka's messages.

`write_x` makes a message of a value, `read_x` a value of a message. What comes back equals what was written, except
`LeaderAndIsr.unknown`: fields of newer brokers stay with the one writer of states, the controller. A message may come from
anybody who reaches the listener, so `read_x` takes nothing on trust: a number out of its range, a broker, partition or topic id
that is there twice, an answer to what wasn't asked each raise WireError. Whether a state is a sensible one is for the machines.

What a controller says can be of any length; one message isn't. `in_pieces` cuts a list so that each piece stays far below the
array elements that the other broker accepts of a request (`dispatch.ELEMENTS_MAX`). To read one takes a thread some 40 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

from penstock.broker.cluster import messages
from penstock.broker.cluster.leaderandisr import NO_EPOCH, NO_LEADER, LeaderAndIsr
from penstock.broker.cluster.messages import BEING_DELETED, Partition
from penstock.broker.topic import NAME_MAX, check_name
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire import messages as forms
from penstock.pyx.wire.message import NIL_UUID, WireError

PIECE_ELEMENTS = 50_000
"""Array elements of one message: 2,500 partitions of three replicas."""
EPOCH_DURING_DELETE = -2
"""Kafka's leader epoch in a StopReplica of a topic that is being deleted."""
PORT_MAX = 65_535

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Proposals:
    """An AlterPartition request: what is asked, and what of it names no topic that this broker knows."""

    asks: tuple[messages.AlterPartition, ...]
    unknown: tuple[tuple[bytes, int], ...] = ()  # topic id, partition


# Roles: LeaderAndIsr


def write_roles(request: messages.LeaderAndIsrRequest) -> forms.LeaderAndIsrRequest:
    """The message of some roles. Raises ValueError for a topic id that isn't one."""
    form = forms.LeaderAndIsrRequest
    topics = [
        form.LeaderAndIsrTopicState(
            topic_name=name,
            topic_id=_topic_id(topic_id),
            partition_states=[
                form.LeaderAndIsrPartitionState(
                    partition_index=role.partition[1],
                    leader=role.state.leader,
                    partition_epoch=role.state.partition_epoch,
                    replicas=list(role.replicas),
                    is_new=role.state.is_new,
                    broker_epochs=[
                        form.BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in role.broker_epochs.items()
                    ],
                    **_state_fields(role.state),
                )
                for role in roles
            ],
        )
        for (name, topic_id), roles in _by_topic(request.roles)
    ]
    return form(
        controller_id=request.controller,
        controller_epoch=request.controller_epoch,
        broker_id=request.broker,
        broker_epoch=request.broker_epoch,
        topic_states=topics,
    )


def read_roles(message: forms.LeaderAndIsrRequest) -> messages.LeaderAndIsrRequest:
    """The roles of a message. Raises WireError."""
    roles = tuple(
        messages.PartitionRole(
            _partition(topic.topic_name, one.partition_index),
            _read_topic_id(topic.topic_id),
            _brokers(one.replicas),
            _read_told_state(one),
            _broker_epochs(one.broker_epochs),
        )
        for topic in message.topic_states
        for one in topic.partition_states
    )
    _check_once([role.partition for role in roles])
    _check_topics((role.partition[0], role.topic_id) for role in roles)
    return messages.LeaderAndIsrRequest(*_sender(message), roles)


def _read_told_state(one: forms.LeaderAndIsrRequest.LeaderAndIsrPartitionState) -> LeaderAndIsr:
    least = NO_EPOCH if one.is_new and one.leader == NO_LEADER else 0
    state = _read_state(one, _at_least(NO_LEADER, one.leader), _at_least(least, one.partition_epoch), least)
    return replace(state, is_new=one.is_new)


def write_role_answers(
    answer: messages.LeaderAndIsrAnswer, request: messages.LeaderAndIsrRequest
) -> forms.LeaderAndIsrResponse:
    """The message that answers a request; roles of the request that have no answer are left out."""
    form = forms.LeaderAndIsrResponse
    topics = []
    for (_, topic_id), roles in _by_topic(request.roles):
        told = [(role.partition[1], answer.answers[role.partition]) for role in roles if role.partition in answer.answers]
        errors = [
            form.LeaderAndIsrPartitionError(
                partition_index=index, error_code=one.error, last_epoch=one.last_epoch, log_end=one.log_end
            )
            for index, one in told
        ]
        if errors:
            topics.append(form.LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=errors))
    return form(
        error_code=answer.error,
        broker_id=answer.broker,
        broker_epoch=answer.broker_epoch,
        controller_epoch=answer.controller_epoch,
        topics=topics,
    )


def read_role_answers(
    message: forms.LeaderAndIsrResponse, request: messages.LeaderAndIsrRequest
) -> messages.LeaderAndIsrAnswer:
    """The answer to a request. Raises WireError, also for an answer to what wasn't asked."""
    asked = {(role.topic_id, role.partition[1]): role.partition for role in request.roles}
    found = [
        (
            _asked(asked, (topic.topic_id, one.partition_index)),
            messages.RoleAnswer(one.error_code, _at_least(NO_EPOCH, one.last_epoch), _at_least(0, one.log_end)),
        )
        for topic in message.topics
        for one in topic.partition_errors
    ]
    broker, broker_epoch, controller_epoch = _answerer(message)
    return messages.LeaderAndIsrAnswer(broker, broker_epoch, message.error_code, controller_epoch, _once(found))


# Replicas that a broker holds no longer: StopReplica


def write_stops(request: messages.StopReplica) -> forms.StopReplicaRequest:
    """The message of some replicas to be stopped. Raises ValueError for a topic id that isn't one."""
    form = forms.StopReplicaRequest
    topics = [
        form.StopReplicaTopicState(
            topic_name=name,
            topic_id=_topic_id(topic_id),
            partition_states=[
                form.StopReplicaPartitionState(
                    partition_index=one.partition[1], leader_epoch=one.leader_epoch, delete_partition=one.delete
                )
                for one in replicas
            ],
        )
        for (name, topic_id), replicas in _by_topic(request.replicas)
    ]
    return form(
        controller_id=request.controller,
        controller_epoch=request.controller_epoch,
        broker_id=request.broker,
        broker_epoch=request.broker_epoch,
        topic_states=topics,
    )


def read_stops(message: forms.StopReplicaRequest) -> messages.StopReplica:
    """The replicas that a message stops. Raises WireError."""
    replicas = tuple(
        messages.StoppedReplica(
            _partition(topic.topic_name, one.partition_index),
            _read_topic_id(topic.topic_id),
            _at_least(EPOCH_DURING_DELETE, one.leader_epoch),
            one.delete_partition,
        )
        for topic in message.topic_states
        for one in topic.partition_states
    )
    _check_once([one.partition for one in replicas])
    _check_topics((one.partition[0], one.topic_id) for one in replicas)
    return messages.StopReplica(*_sender(message), replicas)


def write_stop_answers(answer: messages.StopReplicaAnswer) -> forms.StopReplicaResponse:
    """The message that answers a request."""
    form = forms.StopReplicaResponse
    return form(
        error_code=answer.error,
        broker_id=answer.broker,
        broker_epoch=answer.broker_epoch,
        controller_epoch=answer.controller_epoch,
        partition_errors=[
            form.StopReplicaPartitionError(topic_name=topic, partition_index=index, error_code=error)
            for (topic, index), error in answer.errors.items()
        ],
    )


def read_stop_answers(message: forms.StopReplicaResponse, request: messages.StopReplica) -> messages.StopReplicaAnswer:
    """The answer to a request. Raises WireError, also for an answer to what wasn't asked."""
    asked = {one.partition: one.partition for one in request.replicas}
    found = [(_asked(asked, (one.topic_name, one.partition_index)), one.error_code) for one in message.partition_errors]
    broker, broker_epoch, controller_epoch = _answerer(message)
    return messages.StopReplicaAnswer(broker, broker_epoch, message.error_code, controller_epoch, _once(found))


# The picture that every broker has: UpdateMetadata


def write_metadata(update: messages.UpdateMetadata) -> forms.UpdateMetadataRequest:
    """The message of live brokers and some partitions. Raises ValueError for a topic id that isn't one."""
    form = forms.UpdateMetadataRequest
    topics = [
        form.UpdateMetadataTopicState(
            topic_name=name,
            topic_id=_topic_id(topic_id),
            partition_states=[
                form.UpdateMetadataPartitionState(
                    partition_index=one.partition[1],
                    leader=one.state.leader,
                    zk_version=one.state.partition_epoch,
                    replicas=list(one.replicas),
                    offline_replicas=list(one.offline),
                    **_state_fields(one.state),
                )
                for one in partitions
            ],
        )
        for (name, topic_id), partitions in _by_topic(update.partitions)
    ]
    brokers = [
        form.UpdateMetadataBroker(
            id=one.broker,
            rack=one.rack,
            endpoints=[
                form.UpdateMetadataEndpoint(
                    listener=at.listener, host=at.host, port=at.port, security_protocol=at.security_protocol
                )
                for at in one.endpoints
            ],
        )
        for one in update.brokers
    ]
    return form(
        controller_id=update.controller,
        controller_epoch=update.controller_epoch,
        broker_id=update.broker,
        broker_epoch=update.broker_epoch,
        topic_states=topics,
        live_brokers=brokers,
        is_whole=update.is_whole,
        number=update.number,
    )


def read_metadata(message: forms.UpdateMetadataRequest) -> messages.UpdateMetadata:
    """The live brokers and partitions of a message. Raises WireError."""
    partitions = tuple(
        messages.PartitionMetadata(
            _partition(topic.topic_name, one.partition_index),
            _read_topic_id(topic.topic_id),
            _brokers(one.replicas),
            _read_state(one, _at_least(BEING_DELETED, one.leader), _at_least(-1, one.zk_version), NO_EPOCH),
            _brokers(one.offline_replicas),
        )
        for topic in message.topic_states
        for one in topic.partition_states
    )
    _check_once([one.partition for one in partitions])
    _check_topics((one.partition[0], one.topic_id) for one in partitions)
    _brokers([one.id for one in message.live_brokers])
    brokers = tuple(
        messages.LiveBroker(one.id, tuple(_endpoint(at) for at in one.endpoints), one.rack) for one in message.live_brokers
    )
    return messages.UpdateMetadata(*_sender(message), brokers, partitions, message.is_whole, _at_least(0, message.number))


def read_metadata_answer(message: forms.UpdateMetadataResponse) -> int:
    """The error."""
    return message.error_code


def _endpoint(at: forms.UpdateMetadataRequest.UpdateMetadataEndpoint) -> messages.BrokerEndpoint:
    if not at.listener or not at.host or not 0 < at.port <= PORT_MAX:
        raise WireError(f"the endpoint `{at.listener}://{at.host}:{at.port}`")
    return messages.BrokerEndpoint(at.listener, at.host, at.port, _at_least(0, at.security_protocol))


# Another ISR: AlterPartition


def write_proposals(asks: Sequence[messages.AlterPartition]) -> forms.AlterPartitionRequest:
    """The message of proposals, at least one; all are of one broker under one registration, each of another partition.

    Raises ValueError if they aren't, or if a topic's id isn't one.
    """
    form = forms.AlterPartitionRequest
    if len({(ask.broker, ask.broker_epoch) for ask in asks}) != 1 or len({ask.partition for ask in asks}) != len(asks):
        raise ValueError("proposals of several registrations, or several of one partition, in one request")
    topics = [
        form.TopicData(
            topic_id=_topic_id(topic_id),
            partitions=[
                form.PartitionData(
                    partition_index=ask.partition[1],
                    leader_epoch=ask.leader_epoch,
                    partition_epoch=ask.partition_epoch,
                    new_isr_with_epochs=[
                        form.BrokerState(broker_id=broker, broker_epoch=ask.entrants.get(broker, NO_EPOCH))
                        for broker in ask.isr
                    ],
                )
                for ask in found
            ],
        )
        for topic_id, found in groupby(asks, key=lambda ask: ask.topic_id)
    ]
    return form(broker_id=asks[0].broker, broker_epoch=asks[0].broker_epoch, topics=topics)


def read_proposals(message: forms.AlterPartitionRequest, names: Mapping[bytes, str]) -> Proposals:
    """The proposals of a message; names: the topics that are known, by id. Raises WireError."""
    broker, broker_epoch = _at_least(0, message.broker_id), _at_least(NO_EPOCH, message.broker_epoch)
    asks, unknown = [], []
    for topic in message.topics:
        name = names.get(_read_topic_id(topic.topic_id))
        for one in topic.partitions:
            if name is None:
                unknown.append((topic.topic_id, one.partition_index))
                continue
            isr = _brokers([member.broker_id for member in one.new_isr_with_epochs])
            entrants = {
                member.broker_id: member.broker_epoch
                for member in one.new_isr_with_epochs
                if _at_least(NO_EPOCH, member.broker_epoch) != NO_EPOCH
            }
            leader_epoch, partition_epoch = _at_least(0, one.leader_epoch), _at_least(0, one.partition_epoch)
            partition = _partition(name, one.partition_index)
            asks.append(
                messages.AlterPartition(
                    partition, topic.topic_id, broker, broker_epoch, leader_epoch, partition_epoch, isr, entrants
                )
            )
    _check_once([ask.partition for ask in asks])
    _check_once(unknown)
    return Proposals(tuple(asks), tuple(unknown))


def write_proposal_answers(
    answers: Iterable[messages.AlterPartitionAnswer], proposals: Proposals
) -> forms.AlterPartitionResponse:
    """The message that answers proposals; those of unknown topics are answered UNKNOWN_TOPIC_ID."""
    form = forms.AlterPartitionResponse
    topics: dict[bytes, forms.AlterPartitionResponse.TopicData] = {}

    def put(topic_id: bytes, one: forms.AlterPartitionResponse.PartitionData) -> None:
        topics.setdefault(topic_id, form.TopicData(topic_id=topic_id)).partitions.append(one)

    for answer in answers:
        index = answer.ask.partition[1]
        one = form.PartitionData(partition_index=index, error_code=answer.error, leader_id=NO_LEADER, partition_epoch=-1)
        if answer.state is not None:
            one = form.PartitionData(
                partition_index=index,
                error_code=answer.error,
                leader_id=answer.state.leader,
                partition_epoch=answer.state.partition_epoch,
                **_state_fields(answer.state),
            )
        put(answer.ask.topic_id, one)
    for topic_id, index in proposals.unknown:
        put(
            topic_id,
            form.PartitionData(
                partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_ID, leader_id=NO_LEADER, partition_epoch=-1
            ),
        )
    return form(topics=list(topics.values()))


def read_proposal_answers(
    message: forms.AlterPartitionResponse, asks: Sequence[messages.AlterPartition]
) -> list[messages.AlterPartitionAnswer]:
    """The answers to proposals, in their order. An error of the whole request is every proposal's.

    Raises WireError, also for a proposal without an answer.
    """
    if message.error_code != ErrorCode.NONE:
        return [messages.AlterPartitionAnswer(ask, message.error_code) for ask in asks]
    asked = {(ask.topic_id, ask.partition[1]): ask for ask in asks}
    found = _once(
        (ask.partition, messages.AlterPartitionAnswer(ask, one.error_code, _answered_state(one)))
        for topic in message.topics
        for one in topic.partitions
        for ask in (_asked(asked, (topic.topic_id, one.partition_index)),)
    )
    if len(found) != len(asks):
        raise WireError(f"{len(found)} answers to {len(asks)} proposals")
    return [found[ask.partition] for ask in asks]


def _answered_state(one: forms.AlterPartitionResponse.PartitionData) -> LeaderAndIsr | None:
    if one.partition_epoch >= 0:
        return _read_state(one, _at_least(NO_LEADER, one.leader_id), one.partition_epoch)
    if one.error_code == ErrorCode.NONE:
        raise WireError("a proposal was accepted, and the answer lacks the state")
    return None


# A broker that is about to stop: ControlledShutdown


def write_remaining(error: int, remaining: Iterable[Partition]) -> forms.ControlledShutdownResponse:
    """The message that answers a broker that is about to stop: what it still leads."""
    form = forms.ControlledShutdownResponse
    partitions = [form.RemainingPartition(topic_name=topic, partition_index=index) for topic, index in remaining]
    return form(error_code=error, remaining_partitions=partitions)


def read_remaining(message: forms.ControlledShutdownResponse) -> tuple[int, list[Partition]]:
    """The error, and what the broker still leads. Raises WireError."""
    remaining = [_partition(one.topic_name, one.partition_index) for one in message.remaining_partitions]
    _check_once(remaining)
    return message.error_code, remaining


def read_stopping(message: forms.ControlledShutdownRequest) -> tuple[int, int]:
    """The broker that is about to stop, and its broker epoch. Raises WireError."""
    return _at_least(0, message.broker_id), _at_least(NO_EPOCH, message.broker_epoch)


# Lists of any length


def in_pieces(items: Sequence[T], replicas: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """Cut a list of partitions into pieces for a message each, by how many replicas each partition has; at least one piece."""
    piece: list[T] = []
    elements = 0
    for item in items:
        # Topic, partition and tags; replicas, ISR or ELR, unclean ones, broker epochs.
        more = 8 + 4 * replicas(item)
        if piece and elements + more > PIECE_ELEMENTS:
            yield tuple(piece)
            piece, elements = [], 0
        piece.append(item)
        elements += more
    yield tuple(piece)


# Parts of messages


def _state_fields(state: LeaderAndIsr) -> dict[str, Any]:
    """What the forms of a state call by the same names."""
    return {
        "controller_epoch": state.controller_epoch,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
        "leader_recovery_state": state.leader_recovery_state,
        "elr": list(state.elr),
        "unclean": list(state.unclean),
        "unclean_epoch": state.unclean_epoch,
        "min_isr": state.min_isr,
    }


def _read_state(one: Any, leader: int, partition_epoch: int, least_epoch: int = 0) -> LeaderAndIsr:
    if one.leader_recovery_state not in (0, 1):
        raise WireError(f"the leader recovery state {one.leader_recovery_state}")
    return LeaderAndIsr(
        leader,
        _at_least(least_epoch, one.leader_epoch),
        _brokers(one.isr),
        _brokers(one.elr),
        _brokers(one.unclean),
        _at_least(NO_EPOCH, one.unclean_epoch),
        _at_least(1, one.min_isr),
        _at_least(0, one.controller_epoch),
        one.leader_recovery_state,
        partition_epoch,
    )


def _sender(message: Any) -> tuple[int, int, int, int]:
    """Controller, its epoch, the broker that is addressed, its epoch."""
    return (
        _at_least(0, message.controller_id),
        _at_least(0, message.controller_epoch),
        _at_least(0, message.broker_id),
        _at_least(NO_EPOCH, message.broker_epoch),
    )


def _answerer(message: Any) -> tuple[int, int, int]:
    """The broker that answers, its epoch, the newest controller epoch that it has heard of."""
    return (
        _at_least(-1, message.broker_id),
        _at_least(NO_EPOCH, message.broker_epoch),
        _at_least(NO_EPOCH, message.controller_epoch),
    )


def _by_topic(items: Iterable[Any]) -> Iterator[tuple[tuple[str, bytes], Iterator[Any]]]:
    """Neighbours of one topic together, so that the order stays."""
    return groupby(items, key=lambda one: (one.partition[0], one.topic_id))


def _topic_id(topic_id: bytes) -> bytes:
    if len(topic_id) != len(NIL_UUID) or topic_id == NIL_UUID:
        raise ValueError(f"{topic_id!r} is no topic id")
    return topic_id


def _read_topic_id(topic_id: bytes) -> bytes:
    if topic_id == NIL_UUID:
        raise WireError("a topic without an id")
    return topic_id


def _partition(topic: str, index: int) -> Partition:
    return topic, _at_least(0, index)


def _at_least(least: int, value: int) -> int:
    if value < least:
        raise WireError(f"{value} where {least} is the least")
    return value


def _brokers(ids: Sequence[int]) -> tuple[int, ...]:
    if ids and min(ids) < 0:
        raise WireError(f"the broker id {min(ids)}")
    _check_once(ids)
    return tuple(ids)


def _broker_epochs(states: Sequence[forms.LeaderAndIsrRequest.BrokerState]) -> dict[int, int]:
    _brokers([one.broker_id for one in states])
    return {one.broker_id: _at_least(NO_EPOCH, one.broker_epoch) for one in states}


def _check_once(items: Sequence[object]) -> None:
    if len(set(items)) != len(items):
        raise WireError("a list names the same thing twice")


def _check_topics(topics: Iterable[tuple[str, bytes]]) -> None:
    """A topic has one id, and an id one topic: answers go by id. A folder is made by the name."""
    known = set(topics)
    for name, _ in known:
        try:
            check_name(name)
        except KafkaError:
            raise WireError(f"the topic name {name[:NAME_MAX]!r}") from None
    if len({name for name, _ in known}) != len(known) or len({topic_id for _, topic_id in known}) != len(known):
        raise WireError("a topic with two ids, or an id of two topics")


K = TypeVar("K")


def _once(pairs: Iterable[tuple[K, T]]) -> dict[K, T]:
    """The pairs as a mapping. Raises WireError for a key that is there twice."""
    listed = list(pairs)
    _check_once([key for key, _ in listed])
    return dict(listed)


def _asked(asked: Mapping[K, T], key: K) -> T:
    if key not in asked:
        raise WireError(f"an answer about {key}, which wasn't asked for")
    return asked[key]
