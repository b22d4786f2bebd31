"""What operators and stages ask a cluster: topics, configs, offsets, groups."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.clients.client import ANY_NODE, Client, TopicPartition
from penstock.pipeline.clients.fetcher import Isolation
from penstock.pyx.wire import messages

T = TypeVar("T")
EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
LOGGER_RESOURCE = 8
GROUP_RESOURCE = 32
# Where DescribeConfigs says that a value was set for the resource itself: topic, altered broker, logger, group.
OWN_SOURCES = frozenset({1, 2, 3, 6, 8})
STATIC_BROKER_SOURCE = 4
SETTLING_S = 1.0  # how long what a group is committing now is waited for
CONTROLLER_WAIT = frozenset({ErrorCode.NOT_CONTROLLER})


class OffsetAt(NamedTuple):
    """An offset found by timestamp: -1 for all three when there is none."""

    offset: int
    timestamp: int
    leader_epoch: int


class ConfigEntry(NamedTuple):
    """One config of a resource. `is_own`: it was set for this resource, not taken from a default."""

    name: str
    value: str | None
    source: int
    read_only: bool
    is_own: bool


class GroupListing(NamedTuple):
    """A group as a cluster lists it; state and type are empty from brokers that don't say them."""

    group: str
    state: str
    protocol: str
    type: str


class Admin(Client):
    """A client with administration. Everything is retried on errors that another try may cure, until
    `default.api.timeout.ms`; then, and on other errors, KafkaError is raised."""

    # Topics

    async def create_topics(
        self,
        topics: Mapping[str, int] | Iterable[str],
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create topics (name to partition count, or names alone for the broker's default) and wait until
        each has its leaders. With exist_ok a topic that is there already is left as it is."""
        counts = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, -1)
        request_topic = messages.CreateTopicsRequest.CreatableTopic
        config_list = [
            messages.CreateTopicsRequest.CreatableTopicConfig(name=name, value=str(value))
            for name, value in (configs or {}).items()
        ]
        made: set[str] = set()

        async def attempt() -> None:
            request = messages.CreateTopicsRequest(
                topics=[
                    request_topic(
                        name=name,
                        num_partitions=count,
                        replication_factor=replication_factor,
                        configs=config_list,
                    )
                    for name, count in counts.items()
                    if name not in made
                ],
                timeout_ms=self.config["request.timeout.ms"],
            )
            answer = await self._ask_controller(request)
            for topic in answer.topics:
                # A try before, whose answer was lost, may have made it; so only the first word counts as a
                # conflict.
                there = topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
                if there and not exist_ok and not again:
                    raise KafkaError(topic.error_code, f"create `{topic.name}`")
                if topic.error_code and not there:
                    raise KafkaError(topic.error_code, f"create `{topic.name}`: {topic.error_message}")
                made.add(topic.name)

        again = False

        async def once_more() -> None:
            nonlocal again
            try:
                await attempt()
            except KafkaError as error:
                again = error.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)
                raise

        await self.retry(once_more, also=CONTROLLER_WAIT)
        for name in counts:
            self.forget(name)
            for partition in await self.retry(partial(self._seen, name)):
                await self.leader(name, partition)

    async def _seen(self, topic: str) -> list[int]:
        cluster = await self.metadata([topic])
        raise_for(cluster.errors.get(topic, 0), f"topic `{topic}`")
        return list(cluster.topics[topic].partitions)

    async def delete_topics(self, names: Iterable[str], *, missing_ok: bool = False) -> None:
        """Delete topics by name."""
        left = list(names)

        async def attempt() -> None:
            request = messages.DeleteTopicsRequest(topic_names=left, timeout_ms=self.config["request.timeout.ms"])
            answer = await self._ask_controller(request)
            for topic in answer.responses:
                gone = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if gone and not missing_ok:
                    raise _Final(topic.error_code, f"delete `{topic.name}`")
                if topic.error_code and not gone:
                    raise KafkaError(topic.error_code, f"delete `{topic.name}`")
                if topic.name in left:
                    left.remove(topic.name)

        await self.retry(attempt, also=CONTROLLER_WAIT)

    async def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Grow topics to these partition counts."""
        request_topic = messages.CreatePartitionsRequest.CreatePartitionsTopic

        async def attempt() -> None:
            request = messages.CreatePartitionsRequest(
                topics=[request_topic(name=name, count=count, assignments=None) for name, count in counts.items()],
                timeout_ms=self.config["request.timeout.ms"],
            )
            answer = await self._ask_controller(request)
            for topic in answer.results:
                raise_for(topic.error_code, f"grow `{topic.name}`: {topic.error_message}")

        await self.retry(attempt, also=CONTROLLER_WAIT)
        for name in counts:
            self.forget(name)

    async def _ask_controller(self, request: Any) -> Any:
        controller = self._cluster.controller_id
        if controller not in self._cluster.brokers:
            await self.metadata([], refresh=True)
            controller = self._cluster.controller_id
        try:
            answer = await self.send(controller if controller in self._cluster.brokers else ANY_NODE, request)
        except KafkaError:
            await self.metadata([], refresh=True)
            raise
        parts = getattr(answer, "topics", None) or getattr(answer, "responses", None) or getattr(answer, "results", [])
        if any(part.error_code == ErrorCode.NOT_CONTROLLER for part in parts):
            await self.metadata([], refresh=True)
        return answer

    # Configs

    async def describe_configs(self, kind: int, name: str) -> dict[str, str | None]:
        """All configs of a topic (TOPIC_RESOURCE) or a broker (BROKER_RESOURCE, name = its id)."""
        return {entry.name: entry.value for entry in await self.config_entries(kind, name)}

    async def config_entries(self, kind: int, name: str) -> list[ConfigEntry]:
        """The same with where each comes from; also of a group (GROUP_RESOURCE) or a broker's loggers."""
        resource = messages.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        request = messages.DescribeConfigsRequest(resources=[resource])
        node_id = _node_of(kind, name)
        own = OWN_SOURCES | ({STATIC_BROKER_SOURCE} if kind == BROKER_RESOURCE else frozenset())

        async def attempt() -> list[ConfigEntry]:
            answer: messages.DescribeConfigsResponse = await self.send(node_id, request)
            (result,) = answer.results
            raise_for(result.error_code, f"configs of `{name}`: {result.error_message}")
            return [
                ConfigEntry(entry.name, entry.value, entry.config_source, entry.read_only, entry.config_source in own)
                for entry in sorted(result.configs, key=lambda entry: entry.name)
            ]

        return await self.retry(attempt)

    async def alter_configs(self, kind: int, name: str, changes: Mapping[str, str | None]) -> None:
        """Set configs of a topic or broker; None puts one back to its default."""
        request_resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource
        resource = request_resource(
            resource_type=kind,
            resource_name=name,
            configs=[
                messages.IncrementalAlterConfigsRequest.AlterableConfig(
                    name=key, config_operation=int(value is None), value=value
                )
                for key, value in changes.items()
            ],
        )
        request = messages.IncrementalAlterConfigsRequest(resources=[resource])
        node_id = _node_of(kind, name)

        async def attempt() -> None:
            answer: messages.IncrementalAlterConfigsResponse = await self.send(node_id, request)
            for result in answer.responses:
                raise_for(result.error_code, f"configs of `{name}`: {result.error_message}")

        await self.retry(attempt)

    # Offsets of logs

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: Isolation = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAt]:
        """For each partition the first offset at or after a timestamp (ms), or EARLIEST, LATEST,
        MAX_TIMESTAMP.

        With read_committed LATEST is the last stable offset. Offset -1: no record is so late.
        """
        request_topic = messages.ListOffsetsRequest.ListOffsetsTopic

        def build(node: Mapping[TopicPartition, int]) -> messages.ListOffsetsRequest:
            topics = [
                request_topic(
                    name=topic,
                    partitions=[
                        messages.ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=partition,
                            current_leader_epoch=self._epoch(topic, partition),
                            timestamp=node[topic, partition],
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in by_topic(node).items()
            ]
            return messages.ListOffsetsRequest(replica_id=-1, isolation_level=int(isolation == "read_committed"), topics=topics)

        def read(answer: messages.ListOffsetsResponse) -> Iterable[tuple[TopicPartition, int, OffsetAt]]:
            for topic in answer.topics:
                for part in topic.partitions:
                    found = OffsetAt(part.offset, part.timestamp, part.leader_epoch)
                    yield (topic.name, part.partition_index), part.error_code, found

        return await self._ask_leaders(wanted, build, read)

    async def start_offset(self, tp: TopicPartition) -> int:
        """The offset that a partition's log begins at."""
        return (await self.list_offsets({tp: EARLIEST}))[tp].offset

    async def end_offset(self, tp: TopicPartition, isolation: Isolation = "read_uncommitted") -> int:
        """The offset that a partition's log ends at; with read_committed its last stable offset."""
        return (await self.list_offsets({tp: LATEST}, isolation))[tp].offset

    async def offsets_for_leader_epoch(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """For each partition and leader epoch: (largest epoch not above it, its end offset). A log that was
        truncated ends an epoch earlier than a reader has seen it (KIP-320)."""
        request_topic = messages.OffsetForLeaderEpochRequest.OffsetForLeaderTopic

        def build(node: Mapping[TopicPartition, int]) -> messages.OffsetForLeaderEpochRequest:
            topics = [
                request_topic(
                    topic=topic,
                    partitions=[
                        messages.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                            partition=partition,
                            current_leader_epoch=self._epoch(topic, partition),
                            leader_epoch=node[topic, partition],
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in by_topic(node).items()
            ]
            return messages.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)

        def read(
            answer: messages.OffsetForLeaderEpochResponse,
        ) -> Iterable[tuple[TopicPartition, int, tuple[int, int]]]:
            for topic in answer.topics:
                for part in topic.partitions:
                    found = part.leader_epoch, part.end_offset
                    yield (topic.topic, part.partition), part.error_code, found

        return await self._ask_leaders(epochs, build, read)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete what lies before these offsets (-1: all); gives the new log start offsets."""
        request_topic = messages.DeleteRecordsRequest.DeleteRecordsTopic

        def build(node: Mapping[TopicPartition, int]) -> messages.DeleteRecordsRequest:
            topics = [
                request_topic(
                    name=topic,
                    partitions=[
                        messages.DeleteRecordsRequest.DeleteRecordsPartition(
                            partition_index=partition, offset=node[topic, partition]
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in by_topic(node).items()
            ]
            return messages.DeleteRecordsRequest(topics=topics, timeout_ms=self.config["request.timeout.ms"])

        def read(answer: messages.DeleteRecordsResponse) -> Iterable[tuple[TopicPartition, int, int]]:
            for topic in answer.topics:
                for part in topic.partitions:
                    yield (topic.name, part.partition_index), part.error_code, part.low_watermark

        return await self._ask_leaders(before, build, read)

    def _epoch(self, topic: str, partition: int) -> int:
        info = self.partition_info(topic, partition)
        return -1 if info is None else info.leader_epoch

    async def _ask_leaders(
        self,
        wanted: Mapping[TopicPartition, int],
        build: Callable[[Mapping[TopicPartition, int]], Any],
        read: Callable[[Any], Iterable[tuple[TopicPartition, int, T]]],
    ) -> dict[TopicPartition, T]:
        """Ask each partition's leader, all leaders at once; what failed in a curable way is asked again."""
        found: dict[TopicPartition, T] = {}

        async def ask(node_id: int, part: Mapping[TopicPartition, int]) -> None:
            error: KafkaError | None = None
            try:
                answer = await self.send(node_id, build(part))
            except KafkaError:
                for topic, _ in part:
                    self.forget(topic)
                raise
            for tp, code, value in read(answer):
                if code:
                    self.forget(tp[0])
                    failed = KafkaError(code, f"`{tp[0]}` partition {tp[1]}")
                    error = error if error is not None and not error.retriable else failed
                else:
                    found[tp] = value
            if error is not None:
                raise error

        async def attempt() -> None:
            nodes: dict[int, dict[TopicPartition, int]] = {}
            for tp, argument in wanted.items():
                if tp not in found:
                    nodes.setdefault(await self.leader(*tp), {})[tp] = argument
            await _all(ask(node_id, part) for node_id, part in nodes.items())
            if len(found) < len(wanted):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "an answer lacks partitions")

        await self.retry(attempt)
        return found

    # Groups

    async def committed(
        self, group: str, tps: Iterable[TopicPartition], require_stable: bool = True
    ) -> dict[TopicPartition, tuple[int, str] | None]:
        """A group's committed offsets with their metadata; None where there is none.

        require_stable waits until offsets of open transactions are decided (KIP-447).
        """
        wanted = list(tps)
        topics = [
            messages.OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=partitions)
            for topic, partitions in by_topic(wanted).items()
        ]
        request = messages.OffsetFetchRequest(group_id=group, topics=topics, require_stable=require_stable)
        found = await self._fetch_committed(group, request)
        return {tp: found.get(tp) for tp in wanted}

    async def all_committed(self, group: str, require_stable: bool = True) -> dict[TopicPartition, tuple[int, str]]:
        """Every offset that a group has committed. Of a busy group all together are never stable."""
        return await self._fetch_committed(
            group, messages.OffsetFetchRequest(group_id=group, topics=None, require_stable=require_stable)
        )

    async def settled(self, group: str, tps: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, tuple[int, str]]:
        """What a group has committed (all of it, or of some partitions), after a moment for what is being committed now: of a
        busy stage, or one that hangs, some transaction is always open."""

        async def ask(require_stable: bool) -> dict[TopicPartition, tuple[int, str]]:
            if wanted is None:
                return await self.all_committed(group, require_stable)
            found = await self.committed(group, wanted, require_stable)
            return {tp: at for tp, at in found.items() if at is not None}

        wanted = None if tps is None else list(tps)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLING_S):
                return await ask(True)
        return await ask(False)

    async def _fetch_committed(self, group: str, request: messages.OffsetFetchRequest) -> dict[TopicPartition, tuple[int, str]]:
        def codes(answer: messages.OffsetFetchResponse) -> list[int]:
            parts = [part.error_code for topic in answer.topics for part in topic.partitions]
            return [answer.error_code, *parts]

        also = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})
        answer = await self.retry(lambda: self.ask_coordinator(group, "group", request, codes=codes), also=also, first_ms=20)
        return {
            (topic.name, part.partition_index): (part.committed_offset, part.metadata or "")
            for topic in answer.topics
            for part in topic.partitions
            if part.committed_offset >= 0
        }

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        *,
        generation_id: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
    ) -> None:
        """Commit offsets for a group, by default as a client outside of it (the group must then have no
        members).
        """
        if not offsets:
            return
        request = messages.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=group_instance_id,
            topics=commit_topics(offsets),
        )

        def codes(answer: messages.OffsetCommitResponse) -> Iterable[int]:
            return (part.error_code for topic in answer.topics for part in topic.partitions)

        await self.retry(lambda: self.ask_coordinator(group, "group", request, codes=codes))

    async def delete_groups(self, groups: Sequence[str]) -> None:
        """Delete groups without members, with their offsets."""

        def codes(answer: messages.DeleteGroupsResponse) -> Iterable[int]:
            return (result.error_code for result in answer.results)

        for group in groups:
            request = messages.DeleteGroupsRequest(groups_names=[group])
            await self.retry(partial(self.ask_coordinator, group, "group", request, codes=codes))

    async def describe_group(self, group: str) -> messages.DescribeGroupsResponse.DescribedGroup:
        """A group's state and members."""
        request = messages.DescribeGroupsRequest(groups=[group])

        def codes(answer: messages.DescribeGroupsResponse) -> Iterable[int]:
            return (described.error_code for described in answer.groups)

        answer: messages.DescribeGroupsResponse = await self.retry(
            lambda: self.ask_coordinator(group, "group", request, codes=codes)
        )
        return answer.groups[0]

    async def describe_consumer_group(self, group: str) -> messages.ConsumerGroupDescribeResponse.DescribedGroup:
        """The same of a group of the consumer protocol (KIP-848). Raises KafkaError GROUP_ID_NOT_FOUND for others."""
        request = messages.ConsumerGroupDescribeRequest(group_ids=[group])

        def codes(answer: messages.ConsumerGroupDescribeResponse) -> Iterable[int]:
            return (described.error_code for described in answer.groups)

        answer: messages.ConsumerGroupDescribeResponse = await self.retry(
            lambda: self.ask_coordinator(group, "group", request, codes=codes)
        )
        return answer.groups[0]

    async def delete_offsets(self, group: str, tps: Iterable[TopicPartition]) -> None:
        """Forget committed offsets of partitions that no member of the group is subscribed to."""
        request_partition = messages.OffsetDeleteRequest.OffsetDeleteRequestPartition
        topics = [
            messages.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=topic, partitions=[request_partition(partition_index=partition) for partition in partitions]
            )
            for topic, partitions in by_topic(tps).items()
        ]
        request = messages.OffsetDeleteRequest(group_id=group, topics=topics)

        def codes(answer: messages.OffsetDeleteResponse) -> Iterable[int]:
            parts = [part.error_code for topic in answer.topics for part in topic.partitions]
            return [answer.error_code, *parts]

        await self.retry(lambda: self.ask_coordinator(group, "group", request, codes=codes))

    async def list_groups(self) -> dict[str, str]:
        """Every group of the cluster with its state."""
        return {listed.group: listed.state for listed in await self.group_listings()}

    async def group_listings(self) -> list[GroupListing]:
        """Every group of the cluster, by name."""

        async def attempt() -> list[GroupListing]:
            cluster = await self.metadata([], refresh=True)
            answers = await _all(self.send(node, messages.ListGroupsRequest()) for node in cluster.brokers)
            groups: dict[str, GroupListing] = {}
            for answer in answers:
                raise_for(answer.error_code, "list groups")
                for group in answer.groups:
                    groups[group.group_id] = GroupListing(
                        group.group_id, group.group_state, group.protocol_type, group.group_type
                    )
            return [groups[name] for name in sorted(groups)]

        return await self.retry(attempt)

    # Log folders

    async def log_dirs(self) -> dict[int, list[messages.DescribeLogDirsResponse.DescribeLogDirsResult]]:
        """The log folders of every broker, by its id; one that is offline has an error code and no partitions."""

        async def attempt() -> dict[int, list[messages.DescribeLogDirsResponse.DescribeLogDirsResult]]:
            nodes = sorted((await self.metadata([], refresh=True)).brokers)
            answers = await _all(self.send(node, messages.DescribeLogDirsRequest(topics=None)) for node in nodes)
            for answer in answers:
                raise_for(answer.error_code, "describe log folders")
            return {node: answer.results for node, answer in zip(nodes, answers, strict=True)}

        return await self.retry(attempt)


def _node_of(kind: int, name: str) -> int:
    """The broker to ask about a resource: a broker itself knows its own configs and loggers."""
    return int(name) if kind in (BROKER_RESOURCE, LOGGER_RESOURCE) and name else ANY_NODE


class _Final(KafkaError):
    """An error that another try does not cure, whatever its code says."""

    def __init__(self, code: int, what: str = "") -> None:
        super().__init__(code, what)
        self.retriable = False


def by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions under their topics, as Kafka's requests name them; both in the order in which they come."""
    topics: dict[str, list[int]] = {}
    for topic, partition in tps:
        topics.setdefault(topic, []).append(partition)
    return topics


def commit_topics(
    offsets: Mapping[TopicPartition, tuple[int, str]],
) -> list[messages.OffsetCommitRequest.OffsetCommitRequestTopic]:
    """Offsets by partition in the shape that OffsetCommit wants them."""

    def request_partition(topic: str, partition: int) -> messages.OffsetCommitRequest.OffsetCommitRequestPartition:
        offset, metadata = offsets[topic, partition]
        return messages.OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )

    return [
        messages.OffsetCommitRequest.OffsetCommitRequestTopic(
            name=topic, partitions=[request_partition(topic, partition) for partition in partitions]
        )
        for topic, partitions in by_topic(offsets).items()
    ]


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all to their end, then raise the first error that retrying does not cure, else the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        errors.sort(key=lambda error: isinstance(error, KafkaError) and error.retriable)
        raise errors[0]
    return [result for result in results if not isinstance(result, BaseException)]
