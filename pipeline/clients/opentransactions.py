"""Transactions that are open in partitions: what lies behind such a one can't be read committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.fanout import ask_brokers, ask_leaders
from penstock.pipeline.clients.partitionlists import by_topic
from penstock.pyx.wire import messages

ONGOING = "Ongoing"
ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


class OpenTransaction(NamedTuple):
    """The oldest open transaction of a partition, from `offset` on.

    `state` is its coordinator's, `began_ms` when that says that it began. An empty `state`: no coordinator that we may ask
    tells of it, though it was still open when they had answered (KIP-664 calls it hanging).
    """

    offset: int
    producer_id: int
    transactional_id: str = ""
    state: str = ""
    began_ms: int = -1


async def open_transactions(client: Client, tps: Sequence[TopicPartition]) -> dict[TopicPartition, OpenTransaction]:
    """The oldest open transaction of each partition that has one. Raises KafkaError, UNSUPPORTED_VERSION of clusters before
    Kafka 3.0."""
    oldest = await _oldest(client, tps)
    known = await _coordinated(client, {found.producer_id for found in oldest.values()}) if oldest else {}
    told = {tp: known.get((one.producer_id, tp)) for tp, one in oldest.items()}
    found = {tp: one._replace(offset=oldest[tp].offset) for tp, one in told.items() if one is not None}
    if unknown := {tp: one for tp, one in oldest.items() if tp not in found}:
        # One that has ended since the leaders were asked has no state, either.
        still = await _oldest(client, list(unknown))
        found |= {tp: one for tp, one in unknown.items() if still.get(tp) == one}
    return found


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
                found = None if first is None else OpenTransaction(first.current_txn_start_offset, first.producer_id)
                yield (topic.name, part.partition_index), part.error_code, found

    answers = await ask_leaders(client, dict.fromkeys(tps, 0), build, read)
    return {tp: found for tp, found in answers.items() if found is not None}


async def _coordinated(client: Client, producer_ids: Iterable[int]) -> dict[tuple[int, TopicPartition], OpenTransaction]:
    """What coordinators say of the open transactions of producers, by producer id and partition; the offsets aren't known."""
    request = messages.ListTransactionsRequest(producer_id_filters=sorted(producer_ids))
    answers = await ask_brokers(client, request, "list transactions")
    names = [
        each.transactional_id
        for answer in answers.values()
        for each in answer.transaction_states
        if each.transaction_state not in ENDED
    ]
    found: dict[tuple[int, TopicPartition], OpenTransaction] = {}
    for name in names:
        try:
            states = await client.retry(partial(_describe, client, name))
        except KafkaError as error:
            if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # expired meanwhile
                continue
            raise
        for state in states:
            if state.transaction_state in ENDED:
                continue
            one = OpenTransaction(-1, state.producer_id, name, state.transaction_state, state.transaction_start_time_ms)
            found |= {(state.producer_id, (topic.topic, p)): one for topic in state.topics for p in topic.partitions}
    return found


async def _describe(client: Client, name: str) -> list[messages.DescribeTransactionsResponse.TransactionState]:
    request = messages.DescribeTransactionsRequest(transactional_ids=[name])
    answer: messages.DescribeTransactionsResponse = await client.ask_coordinator(
        name, "transaction", request, codes=lambda answer: [state.error_code for state in answer.transaction_states]
    )
    return answer.transaction_states
