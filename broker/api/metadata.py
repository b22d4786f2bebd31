"""Metadata: brokers, topics and leaders; creates topics when that is allowed.

Versions 0-13. A topic is asked for by name (created if the client and `auto.create.topics.enable` allow it)
or, since version 12, by id. All topics: null since version 1, the empty list in version 0. A topic that has
just been created serves already. The answer that creates it says so below version 7, whose clients often take an
error for the end; from 7 on it says UNKNOWN_TOPIC_OR_PARTITION as Kafka's does, and the client asks again.
So it says of a topic that is being deleted. A broker of a cluster that hasn't been told of all partitions says
LEADER_NOT_AVAILABLE of those that it doesn't know (*clients that forget a topic because a broker has just started*).
Version 0 names replicas on brokers that live alone, and says REPLICA_NOT_AVAILABLE where some don't, as Kafka's does: clients
of 0.8 look each one up among the brokers, and fail where it isn't there.
Operations that a client may do (KIP-430, versions 8-10 of the cluster, 8 and up of a topic) are all there are:
there is no authorizer.
"""

from collections.abc import Collection
from functools import partial
from typing import cast

from penstock.broker.acls import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, operations_bits
from penstock.broker.context import Call, Context
from penstock.broker.dispatch import CloseConnection
from penstock.broker.patience import Deadline
from penstock.broker.topic import INTERNAL, Topic, check_name, internal_settings
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.message import Encoded
from penstock.pyx.wire.messages import MetadataRequest, MetadataResponse

KEY, VERSIONS = 3, (0, 13)
NO_ID = bytes(16)
IDS_SINCE = 12
ASKED_AGAIN_SINCE = 7  # Clients of Kafka 2.0 and later ask again for a topic that has just been created.
CREATION_MS = 5_000
"""How long a request waits for topics that it makes; a hung disk mustn't hold up the others. The creation goes on."""

Entry = MetadataResponse.MetadataResponseTopic


async def handle(context: Context, request: MetadataRequest, call: Call) -> MetadataResponse:
    """Answer for the topics that are asked for."""
    if _is_wrong(request, call):
        return await _refused(request, call)
    racks = context.racks
    if context.topics.isolated:
        _check_reach(context, request)
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=broker, host=host, port=port, rack=racks.get(broker))
        for broker, (host, port) in context.brokers_for(call.listener).items()
    ]
    response = MetadataResponse(brokers=brokers, cluster_id=context.cluster_id, controller_id=context.controller_id)
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = operations_bits(CLUSTER_OPERATIONS)
    live = tuple(broker.node_id for broker in brokers) if call.api_version == 0 else None
    tell = partial(_encoded, version=call.api_version, operations=request.include_topic_authorized_operations, live=live)
    if request.topics is None or (call.api_version == 0 and not request.topics):
        response.topics = [tell(topic) async for topic in call.turns.each(context.topics.all())]
        return response
    # Versions below 4 can't say no.
    may_create = request.allow_auto_topic_creation or call.api_version < 4
    # Java's client sends an empty name beside an id.
    asked = dict.fromkeys((None if any(one.topic_id) else one.name, bytes(one.topic_id)) for one in request.topics)
    deadline = context.patience.deadline(CREATION_MS)
    async for name, topic_id in call.turns.each(asked):
        found = await _one(context, name, topic_id, may_create, call.api_version, deadline)
        response.topics.append(tell(found) if isinstance(found, Topic) else found)
    return response


def _encoded(topic: Topic, version: int, operations: bool, live: Collection[int] | None = None) -> Entry:
    """A topic as this version has it; its bytes are kept, since there may be thousands of partitions."""
    state = (
        live,
        [
            (one.leader, one.leader_epoch, one.offline, one.is_isolated, one.away, *one.replicas, *one.isr)
            for one in topic.partitions
        ],
    )
    known = topic.encoded.get((version, operations))
    if known is None or known[0] != state:
        entry = describe(topic)
        if live is not None:
            _leave_out_dead(entry, live)
        if operations:
            entry.topic_authorized_operations = operations_bits(TOPIC_OPERATIONS)
        known = topic.encoded[version, operations] = (state, MetadataResponse.encode_struct(entry, version))
    return cast(Entry, Encoded(known[1]))


def _leave_out_dead(entry: Entry, live: Collection[int]) -> None:
    """Name no replica whose broker isn't among those of the answer."""
    for part in entry.partitions:
        count = len(part.replica_nodes) + len(part.isr_nodes)
        part.replica_nodes = [broker for broker in part.replica_nodes if broker in live]
        part.isr_nodes = [broker for broker in part.isr_nodes if broker in live]
        if not part.error_code and len(part.replica_nodes) + len(part.isr_nodes) < count:
            part.error_code = ErrorCode.REPLICA_NOT_AVAILABLE


class CutOffError(CloseConnection):
    """This broker is cut off from the others, and doesn't know who leads. A client that was told so would ask it again, over
    the connection that it has: librdkafka did so for ever. Without that connection it asks another broker."""

    reason = "closed_failed"


def _check_reach(context: Context, request: MetadataRequest) -> None:
    """Raise CutOffError if a topic is asked for of which this broker may be the last to know that others lead it."""
    asked = context.topics.isolated
    if request.topics:
        by_id = (context.topics.get_by_id(one.topic_id) for one in request.topics if any(one.topic_id))
        asked = asked & {*(one.name for one in request.topics), *(topic.name for topic in by_id if topic is not None)}
    if asked:
        raise CutOffError("it is cut off from the other brokers")


def _is_wrong(request: MetadataRequest, call: Call) -> bool:
    """Whether something is asked for by id where that can't be, or by neither name nor id."""
    asked = request.topics or ()
    if call.api_version < IDS_SINCE:
        return any(one.name is None or any(one.topic_id) for one in asked)
    return any(one.name is None and not any(one.topic_id) for one in asked)


async def _refused(request: MetadataRequest, call: Call) -> MetadataResponse:
    invalid = partial(Entry, error_code=ErrorCode.INVALID_REQUEST)
    asked = call.turns.each(request.topics or ())
    return MetadataResponse(topics=[invalid(name=one.name or "", topic_id=one.topic_id) async for one in asked])


async def _one(
    context: Context, name: str | None, topic_id: bytes, may_create: bool, version: int, deadline: Deadline
) -> Entry | Topic:
    """The topic, or an entry that says why there is none."""
    is_blind = context.cluster is not None and not context.cluster.is_pictured
    if name is None:
        found = context.topics.get_by_id(topic_id)
        if found is None:
            error = ErrorCode.LEADER_NOT_AVAILABLE if is_blind else ErrorCode.UNKNOWN_TOPIC_ID
            return Entry(error_code=error, name=None, topic_id=topic_id)
        return found
    topic = context.topics.get(name)
    if topic is None:
        try:
            if is_blind:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, name)
            topic = await _create(context, name, may_create, deadline)
            if version >= ASKED_AGAIN_SINCE:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        except KafkaError as error:
            internal = name in INTERNAL
            return Entry(error_code=error.code, name=name, topic_id=NO_ID, is_internal=internal)
    return topic


async def _create(context: Context, name: str, may_create: bool, deadline: Deadline) -> Topic:
    check_name(name)
    may_create = may_create and context.config["auto.create.topics.enable"]
    if not may_create or context.topics.deleted_recently(name):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
    if name in INTERNAL:
        made = context.topics.ensure(name, *internal_settings(context.config, name))
    else:
        made = context.topics.ensure(name, context.config["num.partitions"], {})
    try:
        return await deadline.wait(made)
    except KafkaError as error:
        if error.code != ErrorCode.REQUEST_TIMED_OUT:
            raise
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, name) from None


def describe(topic: Topic) -> Entry:
    """A topic with all its partitions."""
    return Entry(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            MetadataResponse.MetadataResponsePartition(
                partition_index=state.index,
                error_code=0 if state.leader_for_clients >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                leader_id=state.leader_for_clients,
                leader_epoch=state.leader_epoch,
                replica_nodes=state.replicas,
                isr_nodes=state.isr,
                offline_replicas=state.offline_replicas,
            )
            for state in topic.partitions
        ],
    )
