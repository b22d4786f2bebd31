"""Metadata: brokers, topics and leaders; creates topics when that is allowed.

Versions 0-13. A topic is asked for by name (created if the client and `auto.create.topics.enable` allow it)
or, since version 10, by id. All topics: null since version 1, the empty list in version 0. A topic that has
just been created serves already, so the answer never says LEADER_NOT_AVAILABLE. Operations that a client
may do (versions 8-10) are answered as "not asked": there is no authorizer.
"""

from penstock.broker.context import Call, Context
from penstock.broker.topics import INTERNAL, Topic, internal_settings
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import MetadataRequest, MetadataResponse

KEY, VERSIONS = 3, (0, 13)
NO_ID = bytes(16)

Entry = MetadataResponse.MetadataResponseTopic


async def handle(context: Context, request: MetadataRequest, call: Call) -> MetadataResponse:
    """Answer for the topics that are asked for."""
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=context.node_id, host=context.advertised.host, port=context.advertised.port
            )
        ],
        cluster_id=context.cluster_id,
        controller_id=context.node_id,
    )
    wants_all = request.topics is None or (call.api_version == 0 and not request.topics)
    if wants_all:
        response.topics = [describe(topic) for topic in context.topics.all()]
        return response
    # Versions below 4 can't say no.
    may_create = request.allow_auto_topic_creation or call.api_version < 4
    seen: set[tuple[str | None, bytes]] = set()
    for asked in request.topics or ():
        key = (asked.name, bytes(asked.topic_id))
        if key not in seen:
            seen.add(key)
            response.topics.append(await _one(context, asked.name, bytes(asked.topic_id), may_create))
    return response


async def _one(context: Context, name: str | None, topic_id: bytes, may_create: bool) -> Entry:
    if name is None:
        found = context.topics.get_by_id(topic_id)
        if found is None:
            return Entry(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        return describe(found)
    topic = context.topics.get(name)
    if topic is None:
        try:
            topic = await _create(context, name, may_create)
        except KafkaError as error:
            internal = name in INTERNAL
            return Entry(error_code=error.code, name=name, topic_id=NO_ID, is_internal=internal)
    return describe(topic)


async def _create(context: Context, name: str, may_create: bool) -> Topic:
    context.topics.check_new(name, 1, {})
    if not (may_create and context.config["auto.create.topics.enable"]):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
    if name in INTERNAL:
        return await context.topics.ensure_internal(name, *internal_settings(context.config, name))
    return await context.topics.ensure(name, context.config["num.partitions"], {})


def describe(topic: Topic) -> Entry:
    """A topic with all its partitions."""
    return Entry(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            MetadataResponse.MetadataResponsePartition(
                partition_index=state.index,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=state.replicas,
                isr_nodes=state.isr,
            )
            for state in topic.partitions
        ],
    )
