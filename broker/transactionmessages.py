"""What brokers ask each other of transactions, as values: a transaction's coordinator, and the leaders of its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

Partition = tuple[str, int]
TopicIds = frozenset[tuple[str, bytes]]
"""The ids of topics, by their names. A name can be there twice: a broker may have known an earlier topic of it."""

UncleanEpochs = frozenset[tuple[Partition, int]]
"""The leader epochs that the newest unclean elections of partitions began; of one that had none there is none."""

ANY_EPOCH = -1
"""In place of a leader epoch: whoever asks knows none."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a producer may begin its transaction in some partitions (KIP-890). adds: its coordinator adds them. topic_ids: of
    which topics the logs are; none: whoever asks doesn't say.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[Partition, ...]
    adds: bool
    topic_ids: TopicIds = frozenset()


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction. coordinator_epoch: the leader epoch of the transaction's partition of `__transaction_state`.
    version: 2 if the epoch is above that of the transaction's records (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class MarkerWrite:
    """A marker for partitions that one broker leads, each with the leader epoch in which it does. topic_ids: by name, of the
    topics that the transaction wrote to; a name that isn't there means whichever topic has it.
    """

    marker: Marker
    leader_epochs: Mapping[Partition, int]
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)


class MarkerAnswer(NamedTuple):
    """NONE: the marker is committed. UNKNOWN_TOPIC_ID: the log is another topic's. is_open: an older transaction of its
    producer is open in the partition, or may be.
    """

    error: int
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition's log, from `first_offset` on.

    keeps_markers: the log has lost no marker since then. So a transaction that is complete is not open there.
    """

    partition: Partition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int = -1
    first_offset: int = -1
    keeps_markers: bool = False


class Fate(IntEnum):
    """What becomes of a transaction that is open in a log. The numbers are those of ListTransactions."""

    LISTED = 0
    """The id's state names the partition: its own end writes the marker."""
    COMMIT = 1
    ABORT = 2
    UNKNOWN = 3
    """The outcome is lost: nobody may guess."""


@dataclass(frozen=True, slots=True)
class Fates:
    """What a broker's coordinators know of some open transactions.

    leads: the partitions of `__transaction_state` that they have read, with the leader epoch in which they coordinate each.
    found: of each transaction that was asked about, such a partition and what it says; None: none knows the producer id.
    """

    leads: Mapping[int, int]
    found: Sequence[tuple[int, Fate] | None]
