"""What a power cut has left of transactions, and what becomes of it.

A power cut takes the newest records of each log, of each as much as it likes: the state of a transactional id may be older
than what the id's producer has written, and records of a transaction may be gone that its producer believes to be there.
So the first start after it fences every transactional producer. Epochs may have been given of which no log knows: the producer
id is used up, and the next producer gets another one. An ongoing transaction is aborted, and so is one that only a log knows:
its decision was never made, or its record is lost too.

With `penstock.transaction.flush` a completed transaction has its markers on the disk. Without, such a marker may be lost.
It is written again where the id's state tells what it was (transactions v2 raise the epoch with each end); where it doesn't,
the transaction stays open, and an ERROR names it: nobody may guess.

In a cluster an unclean election follows a power cut of all replicas that were in sync. If a coordinator's own log was elected
so, ids whose newest record is older than that election are fenced, before anybody is served (`is_outdated`). The fence is a
newer record: so it is made once, also if a coordinator dies meanwhile. Of a partition that a transaction wrote to, `losses.py`
says which transactions are aborted. What is still open in a log then is asked about by `hangingtransactions.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.transactions.state import (
    COMPLETED,
    EPOCH_EXHAUSTED,
    PREPARED,
    Facts,
    TransactionState,
)
from penstock.broker.transactionmessages import Fate, OpenTransaction
from penstock.errors import KafkaError
from penstock.pyx.log.logmanager import LogManager, Producer


def find_open(logs: LogManager, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """The transactions that are open in these logs."""
    found = list[OpenTransaction]()
    for partition in partitions:
        try:
            found += [open_transaction(partition, one) for one in logs.open_transactions(*partition)]
        except KafkaError:  # deleted, moved or taken offline since
            continue
    return found


def open_transaction(partition: TopicPartition, producer: Producer) -> OpenTransaction:
    """That of a producer which has one open."""
    return OpenTransaction(
        partition, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch, producer.txn_first_offset
    )


def is_outdated(newest_epoch: int, unclean_epoch: int) -> bool:
    """Whether an id has to be fenced whose newest record was written in a leader epoch. unclean_epoch: that of the log's newest
    unclean election; -1: there was none."""
    return newest_epoch < unclean_epoch


def by_producer_id(every: Iterable[Facts]) -> dict[int, Facts]:
    """The state that an id's records belong to; of an id that was used up, too."""
    found: dict[int, Facts] = {}
    for facts in every:
        found.setdefault(facts.previous_producer_id, facts)
        found[facts.producer_id] = facts
    return found


def fate(one: OpenTransaction, states: Mapping[int, Facts], keeps_markers: bool) -> Fate:
    """What becomes of an open transaction; `keeps_markers`: its log has the markers of all that is complete."""
    facts = states.get(one.producer_id)
    if facts is None:
        return Fate.ABORT
    used_up = facts.producer_id != one.producer_id
    if not used_up and facts.last_end is not None and facts.last_end[0] == one.producer_epoch:
        return Fate.COMMIT if facts.last_end[1] else Fate.ABORT
    if one.partition in facts.partitions and (facts.state is TransactionState.ONGOING or facts.state in PREPARED):
        # From version 2 on the end that is decided has raised the epoch: what is as high came after its marker.
        raised = facts.state in PREPARED and facts.client_version >= 2
        return Fate.ABORT if raised and one.producer_epoch >= facts.producer_epoch else Fate.LISTED
    last = facts.state in COMPLETED and facts.client_version >= 2
    if last and (one.producer_epoch == EPOCH_EXHAUSTED if used_up else one.producer_epoch + 1 == facts.producer_epoch):
        return Fate.COMMIT if facts.state is TransactionState.COMPLETE_COMMIT else Fate.ABORT
    # Else it is newer than what the state remembers, unless a marker was lost. An end of version 2, and an InitProducerId, have
    # raised the epoch: what has it came after them.
    raised = facts.client_version >= 2 or facts.state is TransactionState.EMPTY
    is_newer = not used_up and (
        one.producer_epoch > facts.producer_epoch or (raised and one.producer_epoch == facts.producer_epoch)
    )
    return Fate.ABORT if keeps_markers or is_newer else Fate.UNKNOWN
