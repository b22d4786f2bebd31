"""What a transactional id is asked, what it answers and has done, and what its appends were for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.broker.coordination.machines import Append, Reply, TopicPartition
from penstock.broker.coordination.transactions.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Facts
from penstock.broker.transactionmessages import TopicIds, UncleanEpochs


@dataclass(slots=True)
class Init:
    """InitProducerId. `fresh_producer_id` is given when `needs_producer_id` said so. Answered by ProducerResult.

    expected_*: the producer's present id and epoch if it goes on after an error (KIP-360), -1 otherwise.
    """

    token: object
    timeout_ms: int
    expected_producer_id: int = NO_PRODUCER_ID
    expected_epoch: int = NO_PRODUCER_EPOCH
    fresh_producer_id: int = NO_PRODUCER_ID


@dataclass(slots=True)
class ProducerResult:
    """An error code, and the producer's id and epoch from now on."""

    error: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(slots=True)
class AddPartitions:
    """AddPartitionsToTxn and AddOffsetsToTxn; with client_version 2 a Produce or TxnOffsetCommit that adds by itself
    (KIP-890). topic_ids: in a cluster, of the topics that these are partitions of. unclean_epochs: of these partitions, as this
    broker sees them. Answered by an error code.
    """

    token: object
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]
    client_version: int = 0
    topic_ids: TopicIds = frozenset()
    unclean_epochs: UncleanEpochs = frozenset()


@dataclass(slots=True)
class End:
    """EndTxn; `raises_epoch` from v5 on (KIP-890). Answered by ProducerResult."""

    token: object
    producer_id: int
    producer_epoch: int
    commit: bool
    raises_epoch: bool = False
    fresh_producer_id: int = NO_PRODUCER_ID


@dataclass(slots=True)
class MarkersWritten:
    """The shell has tried to write the markers that a WriteMarkers asked for. decided: the decision itself is as durable as it
    has to be before somebody hears of it.
    """

    all_written: bool
    decided: bool = True


@dataclass(slots=True)
class MarkersLate:
    """Markers are on their way for so long that the client needn't wait for them."""


@dataclass(slots=True)
class TopicDeleted:
    """A topic is gone: its partitions need no marker."""

    topic: str


@dataclass(slots=True)
class Expire:
    """Check whether the transactional id has been unused for too long."""


@dataclass(slots=True)
class PowerCut:
    """Records and states that weren't flushed may be gone, also the newest epochs of the producer id."""


@dataclass(slots=True)
class RecordsLost:
    """A partition of the ongoing transaction may lack records of it, since it was led uncleanly."""


@dataclass(slots=True)
class WriteMarkers:
    """Action: append a commit or abort marker to each partition, then feed MarkersWritten.

    A partition that no longer exists counts as written. Writing a marker twice does no harm. topic_ids: the topics that have to
    get it, by the names that have any there.
    """

    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]
    version: int = 0  # 2: the epoch is above that of the transaction's records (KIP-890).
    topic_ids: TopicIds = frozenset()


@dataclass(slots=True)
class AfterChange:
    """Facts that hold once they are stored, and which request is answered what then."""

    facts: Facts
    token: object | None = None
    result: object = None


@dataclass(slots=True)
class AfterForget:
    """The tombstone of an expired transactional id."""


Action = Reply | Append | WriteMarkers
Out = list[Action]
