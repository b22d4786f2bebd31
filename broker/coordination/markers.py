"""Transaction markers, as the leader of a partition appends them, for this broker's coordinator or another's.

In a cluster a marker is written once it is committed. A marker that only this leader has may go with it, and the transaction
would be open again on the next one. So may one of before, which the log says to have: a refusal waits for the commit, too.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock import log
from penstock.broker.coordination.groupcoordinator import GroupCoordinator
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.parts import Parts
from penstock.broker.coordination.transactions.state import EPOCH_MAX
from penstock.broker.topic import GROUP_OFFSETS
from penstock.broker.transactionmessages import ANY_EPOCH, Marker, MarkerAnswer
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.log.logmanager import Appended
from penstock.pyx.record.rawbatch import marker as marker_batch

BEFORE_MARKER = declare("coordinator.before_marker", "before each transaction marker is appended")

COMMIT_TIMEOUT_MS = 3_000
"""How long a marker's commit is waited for: less than a broker waits for an answer. The coordinator sends it again."""

FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
"""What a partition answers to a marker whose producer, or coordinator, is a newer one there."""

_log = log.get(__name__)


def is_done(answer: MarkerAnswer) -> bool:
    """A producer that was fenced there has none of this transaction open; where it has one, it isn't decided."""
    return answer.error == ErrorCode.NONE or (answer.error in FENCED and not answer.is_open)


class Markers:
    """Of one broker's partitions: `context.transactions.markers`."""

    def __init__(self, parts: Parts, groups: GroupCoordinator) -> None:
        self._parts = parts
        self._groups = groups
        self.holds: Callable[[TopicPartition, int, int], bool] = lambda *_: False
        """See `HangingTransactions.holds`."""
        self._newest: dict[int, tuple[int, int]] = {}  # by sender: registration and number of its newest request

    def is_late(self, sender: int, sender_epoch: int, number: int) -> bool:
        """Whether a broker's request for markers is older than one that was here already: it hung in a connection. Its markers
        were sent again in a later one, and may have ended their transactions."""
        newest = self._newest.get(sender, (ANY_EPOCH, 0))
        self._newest[sender] = max(newest, (sender_epoch, number))
        return (sender_epoch, number) < newest

    def write(self, partition: TopicPartition, marker: Marker) -> int:
        """On one node: append a marker, and inform the groups if it is one of theirs. An error code."""
        error, _ = self._append(partition, marker)
        if error == ErrorCode.NONE:
            self._tell_groups(partition, marker)
        return error

    async def write_committed(
        self, partition: TopicPartition, marker: Marker, leader_epoch: int = ANY_EPOCH, topic_id: bytes = b""
    ) -> MarkerAnswer:
        """In a cluster: append a marker at once, if this broker leads the partition in that epoch, and wait for its commit.
        topic_id: of the topic that the transaction wrote to; the log of another one takes no such marker."""
        try:
            offsets, held = self._parts.log_manager.offsets(*partition), self._parts.log_manager.topic_id(*partition)
        except KafkaError as unknown:
            return MarkerAnswer(unknown.code)
        if topic_id not in (b"", held):
            return MarkerAnswer(ErrorCode.UNKNOWN_TOPIC_ID)
        if leader_epoch not in (ANY_EPOCH, offsets.leader_epoch):
            return MarkerAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if marker.version >= 2 and self.holds(partition, marker.producer_id, marker.producer_epoch - 1):
            return MarkerAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        error, appended = self._append(partition, marker, offsets.leader_epoch)
        if error in FENCED:
            if self.has_open(partition, marker):
                return MarkerAnswer(error, is_open=True)
            needed = self._parts.log_manager.offsets(*partition).log_end
        elif appended is None:
            return MarkerAnswer(error)
        else:
            needed = appended.needed
        failed = await self._parts.commits.wait(partition, needed, offsets.leader_epoch, COMMIT_TIMEOUT_MS)
        if failed:
            return MarkerAnswer(failed)
        if error == ErrorCode.NONE:
            self._tell_groups(partition, marker)
        return MarkerAnswer(error)

    def has_open(self, partition: TopicPartition, marker: Marker) -> bool:
        """Whether a marker that was refused leaves a transaction of its producer open, or it can't be known. From version 2 on
        one of the marker's epoch or above is a later transaction: this one's marker is there already.
        """
        return self.is_open(partition, marker.producer_id, marker.producer_epoch if marker.version >= 2 else EPOCH_MAX + 1)

    def is_open(self, partition: TopicPartition, producer_id: int, below: int = EPOCH_MAX + 1) -> bool:
        """Whether a producer has an open transaction of an epoch below that one in that partition, or it can't be known."""
        try:
            found = self._parts.log_manager.producer(*partition, producer_id)
        except KafkaError:
            return True
        return found is not None and found.txn_first_offset >= 0 and found.producer_epoch < below

    def _append(self, partition: TopicPartition, marker: Marker, led_since: int = ANY_EPOCH) -> tuple[int, Appended | None]:
        """From version 2 on (KIP-890) a marker whose epoch is that of an open transaction's records is refused: it is an
        older transaction's, come late.
        """
        failpoint(BEFORE_MARKER)
        topic, index = partition
        batch = marker_batch(
            marker.commit, marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, self._parts.now_ms()
        )
        logs = self._parts.log_manager
        try:
            append = logs.append_marker if marker.version >= 2 else logs.append
            return ErrorCode.NONE, append(topic, index, batch, led_since)
        except KafkaError as error:
            _log.warning("marker refused: %s topic=%s partition=%d", error, topic, index)
            return error.code, None
        except OSError as error:
            _log.error("marker failed: %s topic=%s partition=%d", error, topic, index)
            return ErrorCode.KAFKA_STORAGE_ERROR, None

    def _tell_groups(self, partition: TopicPartition, marker: Marker) -> None:
        if partition[0] == GROUP_OFFSETS:
            self._groups.marker_written(partition[1], marker.producer_id, marker.commit)
