"""What this broker asks others of transactions, over connections of their own: an answer may wait for a commit.

Markers go to the leaders of their partitions (WriteTxnMarkers), verifications to the coordinators (AddPartitionsToTxn). One
request of each kind is out to a broker at a time.

A request for markers may hang in a connection, and be read after a later one has brought the same markers. Without the
epochs of transactions v2, such a late marker would end the next transaction of its producer. So each request bears the
registration and the number that it was sent with, and a broker takes nothing older than what it has had
(`coordination/markers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.broker.cluster.leaderandisr import NO_EPOCH
from penstock.broker.replication.peers import Address, Peers, Prepare
from penstock.broker.replication.queues import Queues
from penstock.broker.topic import by_topic
from penstock.broker.transactionmessages import MarkerAnswer, MarkerWrite, Partition, Verification
from penstock.pyx.wire.message import WireError
from penstock.pyx.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

PARTITIONS_MAX = 10_000
"""Of one request, in all its transactions."""
LARGE = 500
"""From so many partitions on a message isn't made on the loop."""


class TransactionPeers:
    """For one broker; `stop` it once.

    broker_epoch: that of its registration, NO_EPOCH while it has none. prepare: see `Peers`.
    """

    def __init__(self, node_id: int, cluster_id: str, broker_epoch: Callable[[], int], prepare: Prepare | None = None) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._last_number = 0
        self._marking = Peers(node_id, cluster_id, prepare)
        self._verifying = Peers(node_id, cluster_id, prepare)
        self._markers: Queues[MarkerWrite, Mapping[Partition, MarkerAnswer]] = Queues(
            self._send_markers, lambda write: len(write.leader_epochs), PARTITIONS_MAX, "markers"
        )
        self._verifications: Queues[Verification, Sequence[int]] = Queues(
            self._send_verifications, lambda question: len(question.partitions), PARTITIONS_MAX, "verifications"
        )

    def set_brokers(self, addresses: Mapping[int, Address]) -> None:
        """See `Peers.set_brokers`."""
        self._marking.set_brokers(addresses)
        self._verifying.set_brokers(addresses)

    async def write_markers(self, broker: int, write: MarkerWrite) -> Mapping[Partition, MarkerAnswer]:
        """Have a broker append markers; the answers that it has given. Raises ConnectionError."""
        return await self._markers.ask(broker, write)

    async def verify(self, broker: int, question: Verification) -> Sequence[int]:
        """Ask a coordinator; the error code of each partition. Raises ConnectionError."""
        return await self._verifications.ask(broker, question)

    def abandon(self) -> None:
        """Close all connections, and make no more; `stop` is still to come."""
        self._marking.abandon()
        self._verifying.abandon()

    async def stop(self) -> None:
        """Close the connections; what waits fails."""
        await self._markers.stop()
        await self._verifications.stop()
        await self._marking.stop()
        await self._verifying.stop()

    async def _send_markers(self, broker: int, writes: Sequence[MarkerWrite]) -> Sequence[Mapping[Partition, MarkerAnswer]]:
        broker_epoch = self._broker_epoch()
        if broker_epoch == NO_EPOCH:
            raise ConnectionError("this broker isn't registered")
        self._last_number += 1
        number = self._last_number
        return await self._marking.ask(
            broker,
            WriteTxnMarkersRequest.API_KEY,
            lambda: write_markers(writes, self._node_id, broker_epoch, number),
            lambda message: read_marker_answers(message, writes),
            large=sum(len(write.leader_epochs) for write in writes) >= LARGE,
        )

    async def _send_verifications(self, broker: int, questions: Sequence[Verification]) -> Sequence[Sequence[int]]:
        return await self._verifying.ask(
            broker,
            AddPartitionsToTxnRequest.API_KEY,
            lambda: write_verifications(questions),
            lambda message: read_verification_answers(message, questions),
            large=sum(len(question.partitions) for question in questions) >= LARGE,
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
                    form.AddPartitionsToTxnTopic(name=name, partitions=indexes)
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
