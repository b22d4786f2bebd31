"""Topics: created, grown, deleted; their leaders elected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.clients.client import ANY_NODE, Client, TopicPartition, Unsure
from penstock.pipeline.clients.partitionlists import by_topic, number
from penstock.pyx.wire import messages

CONTROLLER_WAIT = frozenset({ErrorCode.NOT_CONTROLLER})


async def create_topics(
    client: Client,
    topics: Mapping[str, int] | Iterable[str],
    *,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
    exist_ok: bool = False,
) -> None:
    """Create topics (name to partition count, or names alone for the broker's default) and wait until
    each has its leaders. With exist_ok a topic that is there already is left as it is. Raises KafkaError."""
    counts = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, -1)
    request_type = messages.CreateTopicsRequest
    settings = [request_type.CreatableTopicConfig(name=name, value=str(value)) for name, value in (configs or {}).items()]
    made: set[str] = set()
    unsure = Unsure()

    async def attempt() -> None:
        topics = [
            request_type.CreatableTopic(
                name=name, num_partitions=count, replication_factor=replication_factor, configs=settings
            )
            for name, count in counts.items()
            if name not in made
        ]
        request = request_type(topics=topics, timeout_ms=client.config["request.timeout.ms"])
        with unsure:
            for topic in (await _ask_controller(client, request)).topics:
                there = topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
                if there and not exist_ok and not unsure.may_be_made:
                    raise KafkaError(topic.error_code, f"create `{topic.name}`")
                if topic.error_code and not there:
                    raise KafkaError(topic.error_code, f"create `{topic.name}`: {topic.error_message}")
                made.add(topic.name)

    await client.retry(attempt, also=CONTROLLER_WAIT)
    for name in counts:
        client.forget(name)
        for partition in await client.retry(partial(_seen, client, name)):
            await client.leader(name, partition)


async def _seen(client: Client, topic: str) -> list[int]:
    return list((await client.metadata([topic])).topic(topic).partitions)


async def delete_topics(client: Client, names: Iterable[str], *, missing_ok: bool = False) -> None:
    """Delete topics by name. Raises KafkaError; with missing_ok a topic that isn't there is no error."""
    left, unsure = list(names), Unsure()

    async def attempt() -> None:
        request = messages.DeleteTopicsRequest(topic_names=left, timeout_ms=client.config["request.timeout.ms"])
        with unsure:
            for topic in (await _ask_controller(client, request)).responses:
                gone = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if gone and not missing_ok and not unsure.may_be_made:
                    raise _Final(topic.error_code, f"delete `{topic.name}`")
                if topic.error_code and not gone:
                    raise KafkaError(topic.error_code, f"delete `{topic.name}`")
                if topic.name in left:
                    left.remove(topic.name)

    await client.retry(attempt, also=CONTROLLER_WAIT)


async def create_partitions(client: Client, counts: Mapping[str, int]) -> None:
    """Grow topics to these partition counts."""
    request_topic, unsure = messages.CreatePartitionsRequest.CreatePartitionsTopic, Unsure()

    async def attempt() -> None:
        request = messages.CreatePartitionsRequest(
            topics=[request_topic(name=name, count=count, assignments=None) for name, count in counts.items()],
            timeout_ms=client.config["request.timeout.ms"],
        )
        with unsure:
            for topic in (await _ask_controller(client, request)).results:
                if topic.error_code == ErrorCode.INVALID_PARTITIONS and unsure.may_be_made:
                    grown = await client.metadata([topic.name], refresh=True)
                    if len(grown.topic(topic.name).partitions) == counts[topic.name]:
                        continue
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise _Final(topic.error_code, f"grow `{topic.name}`: {topic.error_message}")
                raise_for(topic.error_code, f"grow `{topic.name}`: {topic.error_message}")

    await client.retry(attempt, also=CONTROLLER_WAIT)
    for name in counts:
        client.forget(name)


async def elect_leaders(
    client: Client, partitions: Sequence[TopicPartition] | None, *, unclean: bool
) -> dict[TopicPartition, int]:
    """Have preferred leaders elected, or (unclean) any live replica where nobody can lead. Answers an error code each; of all
    partitions (None) those are left out that need no election."""
    form, topics = messages.ElectLeadersRequest, None
    if partitions is not None:
        topics = [form.TopicPartitions(topic=name, partitions=held) for name, held in by_topic(partitions, number)]

    async def attempt() -> dict[TopicPartition, int]:
        request = form(
            election_type=int(unclean),
            topic_partitions=topics,
            timeout_ms=client.config["request.timeout.ms"],
        )
        answer = await _ask_controller(client, request)
        raise_for(answer.error_code, "elect leaders")
        found = answer.replica_election_results
        return {(topic.topic, one.partition_id): one.error_code for topic in found for one in topic.partition_result}

    return await client.retry(attempt, also=CONTROLLER_WAIT)


async def refused_reassignment(client: Client) -> str:
    """What a Penstock controller says of a wish to move replicas that an old tool has left in ZooKeeper; "": nothing."""

    async def attempt() -> str:
        answer = await _ask_controller(client, messages.ListPartitionReassignmentsRequest(topics=None))
        raise_for(answer.error_code, "list reassignments")
        return answer.error_message or ""

    return await client.retry(attempt, also=CONTROLLER_WAIT)


async def _ask_controller(client: Client, request: Any) -> Any:
    cluster = await client.metadata([])
    if cluster.controller_id not in cluster.brokers:
        cluster = await client.metadata([], refresh=True)
    try:
        answer = await client.send(cluster.controller_id if cluster.controller_id in cluster.brokers else ANY_NODE, request)
    except KafkaError:
        await client.metadata([], refresh=True)
        raise
    parts = getattr(answer, "topics", None) or getattr(answer, "responses", None) or getattr(answer, "results", [])
    if ErrorCode.NOT_CONTROLLER in (getattr(answer, "error_code", 0), *(part.error_code for part in parts)):
        await client.metadata([], refresh=True)
    return answer


class _Final(KafkaError):
    """An error that another try does not cure, whatever its code says."""

    def __init__(self, code: int, what: str = "") -> None:
        super().__init__(code, what)
        self.retriable = False
