"""Groups: the offsets that they have committed, their members, which there are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.errors import ErrorCode
from penstock.pipeline.clients.client import Client, TopicPartition, Unsure
from penstock.pipeline.clients.fanout import ask_brokers
from penstock.pipeline.clients.partitionlists import by_topic, number, offset_topics, partition_codes
from penstock.pipeline.clients.truncation import Position
from penstock.pyx.wire import messages
from penstock.pyx.wire.message import Message

UNSTABLE = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})
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
    found = await _fetch_committed(client, group, wanted, require_stable)
    return {tp: _with_metadata(found[tp]) if tp in found else None for tp in wanted}


async def committed_positions(client: Client, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
    """A group's committed offsets with the leader epochs that were committed with them, of the partitions that have one."""
    found = await _fetch_committed(client, group, list(tps), require_stable=True)
    return {tp: Position(part.committed_offset, part.committed_leader_epoch) for tp, part in found.items()}


async def all_committed(client: Client, group: str, require_stable: bool = True) -> dict[TopicPartition, tuple[int, str]]:
    """Every offset that a group has committed. Of a busy group all together are never stable."""
    found = await _fetch_committed(client, group, None, require_stable)
    return {tp: _with_metadata(part) for tp, part in found.items()}


def _with_metadata(part: messages.OffsetFetchResponse.OffsetFetchResponsePartition) -> tuple[int, str]:
    return part.committed_offset, part.metadata or ""


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
    client: Client, group: str, wanted: Sequence[TopicPartition] | None, require_stable: bool
) -> dict[TopicPartition, messages.OffsetFetchResponse.OffsetFetchResponsePartition]:
    """What a group has committed for these partitions, or for all (None)."""
    topics = None
    if wanted is not None:
        request_topic = messages.OffsetFetchRequest.OffsetFetchRequestTopic
        topics = [request_topic(name=name, partition_indexes=numbers) for name, numbers in by_topic(wanted, number)]
    request = messages.OffsetFetchRequest(group_id=group, topics=topics, require_stable=require_stable)
    answer = await _ask(client, group, request, partition_codes, also=UNSTABLE, first_ms=20)
    return {
        (topic.name, part.partition_index): part
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
    epochs: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Commit offsets for a group, by default as a client outside of it (the group must then have no
    members). epochs: the leader epochs of the last batches below them, as far as they are known.
    """
    if not offsets:
        return
    request_type = messages.OffsetCommitRequest
    request = request_type(
        group_id=group,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=group_instance_id,
        topics=offset_topics(offsets, request_type.OffsetCommitRequestTopic, request_type.OffsetCommitRequestPartition, epochs),
    )
    await _ask(client, group, request, partition_codes)


async def delete_groups(client: Client, groups: Sequence[str]) -> None:
    """Delete groups without members, with their offsets."""

    for group in groups:
        await client.retry(partial(_delete_group, client, group, Unsure()))


async def _delete_group(client: Client, group: str, unsure: Unsure) -> None:
    accept = frozenset({int(ErrorCode.GROUP_ID_NOT_FOUND)}) if unsure.may_be_made else frozenset()
    with unsure:
        await client.ask_coordinator(
            group, "group", messages.DeleteGroupsRequest(groups_names=[group]), accept=accept,
            codes=lambda answer: [result.error_code for result in answer.results],
        )  # fmt: skip


async def describe_group(client: Client, group: str) -> messages.DescribeGroupsResponse.DescribedGroup:
    """A group's state and members."""
    described: messages.DescribeGroupsResponse.DescribedGroup
    (described,) = await _describe(client, group, messages.DescribeGroupsRequest(groups=[group]))
    return described


async def describe_consumer_group(client: Client, group: str) -> messages.ConsumerGroupDescribeResponse.DescribedGroup:
    """The same of a group of the consumer protocol (KIP-848). Raises KafkaError GROUP_ID_NOT_FOUND for others."""
    described: messages.ConsumerGroupDescribeResponse.DescribedGroup
    (described,) = await _describe(client, group, messages.ConsumerGroupDescribeRequest(group_ids=[group]))
    return described


async def _describe(client: Client, group: str, request: Message) -> Any:
    answer = await _ask(client, group, request, lambda answer: [described.error_code for described in answer.groups])
    return answer.groups


async def delete_offsets(client: Client, group: str, tps: Iterable[TopicPartition]) -> None:
    """Forget committed offsets of partitions that no member of the group is subscribed to."""
    request_type = messages.OffsetDeleteRequest

    def part(tp: TopicPartition) -> messages.OffsetDeleteRequest.OffsetDeleteRequestPartition:
        return request_type.OffsetDeleteRequestPartition(partition_index=tp[1])

    topics = [request_type.OffsetDeleteRequestTopic(name=name, partitions=parts) for name, parts in by_topic(tps, part)]
    await _ask(client, group, request_type(group_id=group, topics=topics), partition_codes)


async def _ask(client: Client, group: str, request: Message, codes: Callable[[Any], Iterable[int]], **retry: Any) -> Any:
    """Ask a group's coordinator, again while that helps; `codes` reads the error codes of its answer."""
    return await client.retry(partial(client.ask_coordinator, group, "group", request, codes=codes), **retry)


async def list_groups(client: Client) -> dict[str, str]:
    """Every group of the cluster with its state."""
    return {listed.group: listed.state for listed in await group_listings(client)}


async def group_listings(client: Client) -> list[GroupListing]:
    """Every group of the cluster, by name."""

    listed = {
        group.group_id: GroupListing(group.group_id, group.group_state, group.protocol_type, group.group_type)
        for answer in (await ask_brokers(client, messages.ListGroupsRequest(), "list groups")).values()
        for group in answer.groups
    }
    return [listed[name] for name in sorted(listed)]
