"""One question to several brokers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pyx.wire.message import Message

T = TypeVar("T")


async def ask_leaders(
    client: Client,
    wanted: Mapping[TopicPartition, int],
    build: Callable[[Mapping[TopicPartition, int]], Any],
    read: Callable[[Any], Iterable[tuple[TopicPartition, int, T]]],
) -> dict[TopicPartition, T]:
    """Ask each partition's leader, all leaders at once; what failed in a curable way is asked again."""
    found: dict[TopicPartition, T] = {}

    async def ask(node_id: int, part: Mapping[TopicPartition, int]) -> None:
        error: KafkaError | None = None
        answer = await client.send(node_id, build(part))
        for tp, code, value in read(answer):
            if code:
                client.forget(tp[0])
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
                nodes.setdefault(await client.leader(*tp), {})[tp] = argument
        await _all(ask(node_id, part) for node_id, part in nodes.items())
        if len(found) < len(wanted):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "an answer lacks partitions")

    await client.retry(attempt)
    return found


async def ask_brokers(client: Client, request: Message, what: str) -> dict[int, Any]:
    """Ask every broker of the cluster; gives the answers by broker."""

    async def attempt() -> dict[int, Any]:
        nodes = sorted((await client.metadata([], refresh=True)).brokers)
        answers = await _all(client.send(node, request) for node in nodes)
        for answer in answers:
            raise_for(answer.error_code, what)
        return dict(zip(nodes, answers, strict=True))

    return await client.retry(attempt)


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all to their end, then raise the first error that retrying does not cure, else the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        errors.sort(key=lambda error: isinstance(error, KafkaError) and error.retriable)
        raise errors[0]
    return [result for result in results if not isinstance(result, BaseException)]
