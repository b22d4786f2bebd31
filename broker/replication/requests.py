"""Requests to other brokers, as values: a list that is too long for one message goes in pieces, one after the other.

Each raises ConnectionError if it wasn't answered. What went out before a piece that wasn't answered may have been carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    Partition,
    RoleAnswer,
    StopReplica,
    StopReplicaAnswer,
    UpdateMetadata,
)
from penstock.broker.replication import wire
from penstock.broker.replication.peers import Peers
from penstock.errors import ErrorCode
from penstock.pyx.wire import messages as forms

LARGE = 200
"""From so many partitions on a message isn't made on the loop."""


async def tell_roles(peers: Peers, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
    """Tell a broker its roles. After a piece that is refused as a whole no other is sent."""
    answers: dict[Partition, RoleAnswer] = {}
    for roles in wire.in_pieces(request.roles, lambda role: len(role.replicas)):
        piece = replace(request, roles=roles)
        answer = await peers.ask(
            request.broker,
            forms.LeaderAndIsrRequest.API_KEY,
            partial(wire.write_roles, piece),
            partial(wire.read_role_answers, request=piece),
            large=len(roles) >= LARGE,
        )
        answers.update(answer.answers)
        if answer.error != ErrorCode.NONE:
            break
    return replace(answer, answers=answers)


async def tell_metadata(peers: Peers, update: UpdateMetadata) -> int:
    """Tell a broker which brokers live, and some partitions; the first error."""
    error = int(ErrorCode.NONE)
    pieces = list(wire.in_pieces(update.partitions, lambda one: len(one.replicas)))
    for number, partitions in enumerate(pieces, 1):
        piece = replace(update, partitions=partitions, is_whole=update.is_whole and number == len(pieces))
        error = await peers.ask(
            update.broker,
            forms.UpdateMetadataRequest.API_KEY,
            partial(wire.write_metadata, piece),
            wire.read_metadata_answer,
            large=len(partitions) >= LARGE,
        )
        if error != ErrorCode.NONE:
            break
    return error


async def stop_replicas(peers: Peers, request: StopReplica) -> StopReplicaAnswer:
    """Take replicas from a broker. After a piece that is refused as a whole no other is sent."""
    errors: dict[Partition, int] = {}
    for replicas in wire.in_pieces(request.replicas, lambda one: 0):
        piece = replace(request, replicas=replicas)
        answer = await peers.ask(
            request.broker,
            forms.StopReplicaRequest.API_KEY,
            partial(wire.write_stops, piece),
            partial(wire.read_stop_answers, request=piece),
            large=len(replicas) >= LARGE,
        )
        errors.update(answer.errors)
        if answer.error != ErrorCode.NONE:
            break
    return replace(answer, errors=errors)


async def propose(peers: Peers, controller: int, asks: Sequence[AlterPartition]) -> list[AlterPartitionAnswer]:
    """Propose other ISRs to the controller, at least one; all under one registration, each of another partition.

    The answers, in the order of the proposals. Raises ValueError for proposals that don't go together.
    """
    answers: list[AlterPartitionAnswer] = []
    for piece in wire.in_pieces(asks, lambda ask: len(ask.isr)):
        answers += await peers.ask(
            controller,
            forms.AlterPartitionRequest.API_KEY,
            partial(wire.write_proposals, piece),
            partial(wire.read_proposal_answers, asks=piece),
            large=len(piece) >= LARGE,
        )
    return answers


async def announce_stop(peers: Peers, controller: int, broker: int, broker_epoch: int) -> tuple[int, list[Partition]]:
    """Tell the controller that a broker is about to stop: an error, and what it still leads."""
    request = forms.ControlledShutdownRequest(broker_id=broker, broker_epoch=broker_epoch)
    return await peers.ask(controller, forms.ControlledShutdownRequest.API_KEY, lambda: request, wire.read_remaining)


async def count_led(peers: Peers, broker: int, topic_id: bytes) -> int:
    """How many partitions of a topic a broker shows to its clients, with a leader each; 0: it doesn't know the topic."""
    form = forms.MetadataRequest
    request = form(topics=[form.MetadataRequestTopic(topic_id=topic_id, name=None)], allow_auto_topic_creation=False)
    return await peers.ask(broker, form.API_KEY, lambda: request, _count_led)


def _count_led(answer: forms.MetadataResponse) -> int:
    return sum(partition.leader_id >= 0 for topic in answer.topics for partition in topic.partitions)
