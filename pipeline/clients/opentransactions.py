"""Transactions that are open in partitions: what lies behind such a one can't be read committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.fanout import ask_brokers, ask_leaders
from penstock.pipeline.clients.partitionlists import by_topic
from penstock.pyx.wire import messages

ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


class OpenTransaction(NamedTuple):
    """The oldest open transaction of a partition, from `offset` on. `began_ms` is when its coordinator says that it began; -1,
    and an empty `transactional_id`: no coordinator knows of it (KIP-664 calls it hanging)."""

    offset: int
    producer_id: int
    transactional_id: str
    began_ms: int


async def open_transactions(client: Client, tps: Sequence[TopicPartition]) -> dict[TopicPartition, OpenTransaction]:
    """The oldest open transaction of each partition that has one. Raises KafkaError, UNSUPPORTED_VERSION of clusters before
    Kafka 3.0."""
    oldest = await _oldest(client, tps)
    known = await _coordinated(client, {found.producer_id for found in oldest.values()}) if oldest else {}
    return {
        tp: found._replace(transactional_id=known[found.producer_id][0], began_ms=known[found.producer_id][1])
        if found.producer_id in known
        else found
        for tp, found in oldest.items()
    }


async def _oldest(client: Client, tps: Sequence[TopicPartition]) -> dict[TopicPartition, OpenTransaction]:
    """As the partitions' leaders know them, without what coordinators say."""
    request_type = messages.DescribeProducersRequest

    def build(node: Mapping[TopicPartition, int]) -> messages.DescribeProducersRequest:
        topics = by_topic(node, lambda tp: tp[1])
        return request_type(topics=[request_type.TopicRequest(name=name, partition_indexes=ids) for name, ids in topics])

    def read(
        answer: messages.DescribeProducersResponse,
    ) -> Iterable[tuple[TopicPartition, int, OpenTransaction | None]]:
        for topic in answer.topics:
            for part in topic.partitions:
                begun = [each for each in part.active_producers if each.current_txn_start_offset >= 0]
                first = min(begun, key=lambda each: each.current_txn_start_offset, default=None)
                found = None if first is None else OpenTransaction(first.current_txn_start_offset, first.producer_id, "", -1)
                yield (topic.name, part.partition_index), part.error_code, found

    answers = await ask_leaders(client, dict.fromkeys(tps, 0), build, read)
    return {tp: found for tp, found in answers.items() if found is not None}


async def _coordinated(client: Client, producer_ids: Iterable[int]) -> dict[int, tuple[str, int]]:
    """By producer id: the transactional id whose transaction is open, and when it began."""
    request = messages.ListTransactionsRequest(producer_id_filters=sorted(producer_ids))
    answers = await ask_brokers(client, request, "list transactions")
    listed = [each for answer in answers.values() for each in answer.transaction_states]
    found: dict[int, tuple[str, int]] = {}
    for each in listed:
        if each.transaction_state in ENDED:
            continue
        ask = messages.DescribeTransactionsRequest(transactional_ids=[each.transactional_id])
        try:
            answer: messages.DescribeTransactionsResponse = await client.ask_coordinator(
                each.transactional_id,
                "transaction",
                ask,
                codes=lambda answer: (state.error_code for state in answer.transaction_states),
            )
        except KafkaError as error:
            if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # expired meanwhile
                continue
            raise
        for state in answer.transaction_states:
            if state.transaction_state not in ENDED:
                found[state.producer_id] = state.transactional_id, state.transaction_start_time_ms
    return found
