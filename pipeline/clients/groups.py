"""Groups: the offsets that they have committed, their members, which there are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from penstock.errors import ErrorCode, raise_for
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.fanout import all_of
from penstock.pipeline.clients.partitionlists import by_topic, commit_topics
from penstock.pyx.wire import messages

SETTLING_S = 1.0  # how long what a group is committing now is waited for


class GroupListing(NamedTuple):
    """A group as a cluster lists it; state and type are empty from brokers that don't say them."""

    group: str
    state: str
    protocol: str
    type: str


async def committed(
    client: Client, group: str, tps: Iterable[TopicPartition], require_stable: bool = True
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
    found = await _fetch_committed(client, group, request)
    return {tp: found.get(tp) for tp in wanted}


async def all_committed(client: Client, group: str, require_stable: bool = True) -> dict[TopicPartition, tuple[int, str]]:
    """Every offset that a group has committed. Of a busy group all together are never stable."""
    return await _fetch_committed(
        client, group, messages.OffsetFetchRequest(group_id=group, topics=None, require_stable=require_stable)
    )


async def settled(
    client: Client, group: str, tps: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, tuple[int, str]]:
    """What a group has committed (all of it, or of some partitions), after a moment for what is being committed now: of a
    busy stage, or one that hangs, some transaction is always open."""

    async def ask(require_stable: bool) -> dict[TopicPartition, tuple[int, str]]:
        if wanted is None:
            return await all_committed(client, group, require_stable)
        found = await committed(client, group, wanted, require_stable)
        return {tp: at for tp, at in found.items() if at is not None}

    wanted = None if tps is None else list(tps)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLING_S):
            return await ask(True)
    return await ask(False)


async def _fetch_committed(
    client: Client, group: str, request: messages.OffsetFetchRequest
) -> dict[TopicPartition, tuple[int, str]]:
    def codes(answer: messages.OffsetFetchResponse) -> list[int]:
        parts = [part.error_code for topic in answer.topics for part in topic.partitions]
        return [answer.error_code, *parts]

    also = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})
    answer = await client.retry(lambda: client.ask_coordinator(group, "group", request, codes=codes), also=also, first_ms=20)
    return {
        (topic.name, part.partition_index): (part.committed_offset, part.metadata or "")
        for topic in answer.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


async def commit(
    client: Client,
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

    await client.retry(lambda: client.ask_coordinator(group, "group", request, codes=codes))


async def delete_groups(client: Client, groups: Sequence[str]) -> None:
    """Delete groups without members, with their offsets."""

    def codes(answer: messages.DeleteGroupsResponse) -> Iterable[int]:
        return (result.error_code for result in answer.results)

    for group in groups:
        request = messages.DeleteGroupsRequest(groups_names=[group])
        await client.retry(partial(client.ask_coordinator, group, "group", request, codes=codes))


async def describe_group(client: Client, group: str) -> messages.DescribeGroupsResponse.DescribedGroup:
    """A group's state and members."""
    request = messages.DescribeGroupsRequest(groups=[group])

    def codes(answer: messages.DescribeGroupsResponse) -> Iterable[int]:
        return (described.error_code for described in answer.groups)

    answer: messages.DescribeGroupsResponse = await client.retry(
        lambda: client.ask_coordinator(group, "group", request, codes=codes)
    )
    return answer.groups[0]


async def describe_consumer_group(client: Client, group: str) -> messages.ConsumerGroupDescribeResponse.DescribedGroup:
    """The same of a group of the consumer protocol (KIP-848). Raises KafkaError GROUP_ID_NOT_FOUND for others."""
    request = messages.ConsumerGroupDescribeRequest(group_ids=[group])

    def codes(answer: messages.ConsumerGroupDescribeResponse) -> Iterable[int]:
        return (described.error_code for described in answer.groups)

    answer: messages.ConsumerGroupDescribeResponse = await client.retry(
        lambda: client.ask_coordinator(group, "group", request, codes=codes)
    )
    return answer.groups[0]


async def delete_offsets(client: Client, group: str, tps: Iterable[TopicPartition]) -> None:
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

    await client.retry(lambda: client.ask_coordinator(group, "group", request, codes=codes))


async def list_groups(client: Client) -> dict[str, str]:
    """Every group of the cluster with its state."""
    return {listed.group: listed.state for listed in await group_listings(client)}


async def group_listings(client: Client) -> list[GroupListing]:
    """Every group of the cluster, by name."""

    async def attempt() -> list[GroupListing]:
        cluster = await client.metadata([], refresh=True)
        answers = await all_of(client.send(node, messages.ListGroupsRequest()) for node in cluster.brokers)
        groups: dict[str, GroupListing] = {}
        for answer in answers:
            raise_for(answer.error_code, "list groups")
            for group in answer.groups:
                groups[group.group_id] = GroupListing(group.group_id, group.group_state, group.protocol_type, group.group_type)
        return [groups[name] for name in sorted(groups)]

    return await client.retry(attempt)
