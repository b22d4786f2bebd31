"""What brokers ask each other of transactions, between the values of `transactionmessages.py` and Kafka's messages."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from penstock.broker.cluster.leaderandisr import NO_EPOCH
from penstock.broker.topic import by_topic
from penstock.broker.transactionmessages import Fate, Fates, MarkerAnswer, MarkerWrite, OpenTransaction, Partition, Verification
from penstock.errors import ErrorCode
from penstock.pyx.wire.message import NIL_UUID, WireError
from penstock.pyx.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


def write_markers(writes: Sequence[MarkerWrite], sender: int, sender_epoch: int, number: int) -> WriteTxnMarkersRequest:
    """The message of some markers."""
    form = WriteTxnMarkersRequest
    return form(
        markers=[
            form.WritableTxnMarker(
                producer_id=write.marker.producer_id,
                producer_epoch=write.marker.producer_epoch,
                transaction_result=write.marker.commit,
                topics=[
                    form.WritableTxnMarkerTopic(
                        name=name,
                        partition_indexes=indexes,
                        leader_epochs=[write.leader_epochs[name, index] for index in indexes],
                        topic_id=write.topic_ids.get(name, NIL_UUID),
                    )
                    for name, indexes in by_topic(write.leader_epochs).items()
                ],
                coordinator_epoch=write.marker.coordinator_epoch,
                transaction_version=write.marker.version,
            )
            for write in writes
        ],
        sender=sender,
        sender_epoch=sender_epoch,
        number=number,
    )


def read_marker_answers(
    message: WriteTxnMarkersResponse, writes: Sequence[MarkerWrite]
) -> list[Mapping[Partition, MarkerAnswer]]:
    """What became of each. Raises WireError for an answer to something else."""
    if [one.producer_id for one in message.markers] != [write.marker.producer_id for write in writes]:
        raise WireError("markers of other producers than those that were sent")
    return [
        {
            (topic.name, one.partition_index): MarkerAnswer(one.error_code, one.is_open)
            for topic in result.topics
            for one in topic.partitions
            if (topic.name, one.partition_index) in write.leader_epochs
        }
        for result, write in zip(message.markers, writes, strict=True)
    ]


def write_verifications(questions: Sequence[Verification]) -> AddPartitionsToTxnRequest:
    """The message of some questions."""
    form = AddPartitionsToTxnRequest
    return form(
        transactions=[
            form.AddPartitionsToTxnTransaction(
                transactional_id=question.transactional_id,
                producer_id=question.producer_id,
                producer_epoch=question.producer_epoch,
                verify_only=not question.adds,
                topics=[
                    form.AddPartitionsToTxnTopic(
                        name=name, partitions=indexes, topic_id=dict(question.topic_ids).get(name, NIL_UUID)
                    )
                    for name, indexes in by_topic(question.partitions).items()
                ],
            )
            for question in questions
        ]
    )


def read_verification_answers(message: AddPartitionsToTxnResponse, questions: Sequence[Verification]) -> list[list[int]]:
    """The error code of each partition of each question. Raises WireError for an answer to something else."""
    asked = [question.transactional_id for question in questions]
    if message.error_code:
        return [[message.error_code] * len(question.partitions) for question in questions]
    if [one.transactional_id for one in message.results_by_transaction] != asked:
        raise WireError("other transactions than those that were asked about")
    found = []
    for result, question in zip(message.results_by_transaction, questions, strict=True):
        errors = {
            (topic.name, one.partition_index): one.partition_error_code
            for topic in result.topic_results
            for one in topic.results_by_partition
        }
        if not errors.keys() >= set(question.partitions):
            raise WireError("no answer for some partitions")
        found.append([errors[partition] for partition in question.partitions])
    return found


def write_leads(asked: Sequence[Mapping[Partition, int]]) -> OffsetForLeaderEpochRequest:
    """The message that asks a broker whether it leads partitions in these epochs, in the order of the questions.

    A leader that is shown an epoch may lead in a later one already. It notes each epoch in its log as it begins to lead: it is
    asked where the next one ends, and has to know none.
    """
    form = OffsetForLeaderEpochRequest
    topics = []
    for epochs in asked:
        for name, indexes in by_topic(sorted(epochs)).items():
            partitions = [
                form.OffsetForLeaderPartition(
                    partition=index, current_leader_epoch=epochs[name, index], leader_epoch=epochs[name, index] + 1
                )
                for index in indexes
            ]
            topics.append(form.OffsetForLeaderTopic(topic=name, partitions=partitions))
    return form(topics=topics)


def read_leads(message: OffsetForLeaderEpochResponse, asked: Sequence[Mapping[Partition, int]]) -> list[Collection[Partition]]:
    """Which of them it leads. Raises WireError for an answer to something else."""
    answers = [((topic.topic, one.partition), one) for topic in message.topics for one in topic.partitions]
    if [partition for partition, _ in answers] != [partition for epochs in asked for partition in sorted(epochs)]:
        raise WireError("an answer about other partitions than those that were asked about")
    left = iter(answers)
    return [
        [
            partition
            for partition, one in itertools.islice(left, len(epochs))
            if one.error_code == ErrorCode.NONE and one.leader_epoch == NO_EPOCH
        ]
        for epochs in asked
    ]


def write_open(asked: Sequence[OpenTransaction]) -> ListTransactionsRequest:
    """The message that asks a broker's coordinators what becomes of open transactions. To a broker that doesn't know such
    questions it asks for nothing: nobody has a producer id below 0."""
    form = ListTransactionsRequest
    return form(
        producer_id_filters=[-1],
        open_transactions=[
            form.OpenTransaction(
                topic=one.partition[0],
                partition_index=one.partition[1],
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                keeps_markers=one.keeps_markers,
            )
            for one in asked
        ],
    )


def read_fates(message: ListTransactionsResponse, count: int) -> Fates:
    """What a broker has answered. Raises WireError for an answer to something else, as an older broker gives one."""
    if len(message.fates) != count:
        raise WireError(f"it says nothing of {count} open transactions, error {message.error_code}")
    try:
        found = [None if one.partition_index < 0 else (one.partition_index, Fate(one.fate)) for one in message.fates]
    except ValueError as error:
        raise WireError(str(error)) from None
    return Fates({one.partition_index: one.leader_epoch for one in message.leads}, found)
