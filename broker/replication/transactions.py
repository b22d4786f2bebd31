"""What this broker asks others of transactions, over connections of their own: an answer may wait for a commit.

Markers go to the leaders of their partitions (WriteTxnMarkers), verifications to the coordinators (AddPartitionsToTxn). Leaders
are asked whether they still lead in an epoch (OffsetForLeaderEpoch), and coordinators what becomes of transactions that are
open in a log (ListTransactions). One request of each kind is out to a broker at a time.

A request for markers may hang in a connection, and be read after a later one has brought the same markers. Without the
epochs of transactions v2, such a late marker would end the next transaction of its producer. So each request bears the
registration and the number that it was sent with, and a broker takes nothing older than what it has had
(`coordination/markers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from penstock.broker.cluster.leaderandisr import NO_EPOCH
from penstock.broker.replication import transactionwire
from penstock.broker.replication.peers import Address, Peers, Prepare
from penstock.broker.replication.queues import Queues
from penstock.broker.transactionmessages import Fates, MarkerAnswer, MarkerWrite, OpenTransaction, Partition, Verification
from penstock.pyx.wire.messages import (
    AddPartitionsToTxnRequest,
    ListTransactionsRequest,
    OffsetForLeaderEpochRequest,
    WriteTxnMarkersRequest,
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
        self._leads: Queues[Mapping[Partition, int], Collection[Partition]] = Queues(
            self._send_leads, len, PARTITIONS_MAX, "leads"
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

    async def find_led(self, broker: int, epochs: Mapping[Partition, int]) -> Collection[Partition]:
        """Ask a broker which of these partitions it leads, each in that leader epoch. Raises ConnectionError."""
        return await self._leads.ask(broker, epochs)

    async def find_fates(self, broker: int, asked: Sequence[OpenTransaction]) -> Fates:
        """Ask a broker's coordinators what becomes of open transactions. Raises ConnectionError."""
        return await self._verifying.ask(
            broker,
            ListTransactionsRequest.API_KEY,
            lambda: transactionwire.write_open(asked),
            lambda message: transactionwire.read_fates(message, len(asked)),
            large=len(asked) >= LARGE,
        )

    def abandon(self) -> None:
        """Close all connections, and make no more; `stop` is still to come."""
        self._marking.abandon()
        self._verifying.abandon()

    async def stop(self) -> None:
        """Close the connections; what waits fails."""
        await self._markers.stop()
        await self._verifications.stop()
        await self._leads.stop()
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
            lambda: transactionwire.write_markers(writes, self._node_id, broker_epoch, number),
            lambda message: transactionwire.read_marker_answers(message, writes),
            large=sum(len(write.leader_epochs) for write in writes) >= LARGE,
        )

    async def _send_verifications(self, broker: int, questions: Sequence[Verification]) -> Sequence[Sequence[int]]:
        return await self._verifying.ask(
            broker,
            AddPartitionsToTxnRequest.API_KEY,
            lambda: transactionwire.write_verifications(questions),
            lambda message: transactionwire.read_verification_answers(message, questions),
            large=sum(len(question.partitions) for question in questions) >= LARGE,
        )

    async def _send_leads(self, broker: int, asked: Sequence[Mapping[Partition, int]]) -> Sequence[Collection[Partition]]:
        return await self._verifying.ask(
            broker,
            OffsetForLeaderEpochRequest.API_KEY,
            lambda: transactionwire.write_leads(asked),
            lambda message: transactionwire.read_leads(message, asked),
            large=sum(map(len, asked)) >= LARGE,
        )
