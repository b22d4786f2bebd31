"""Partitions of a transaction that may lack some of its records, in a cluster.

Once all replicas that were in sync have lost power, what is left of their logs leads, in an epoch that the partition's state
calls unclean. An operator, or a topic's config, may let a replica lead that lacks records, too. Each transaction notes for its
partitions which was the newest such epoch as they were added (`Facts.unclean_epochs`). If a later one is shown, records that
its producer believes to be there may be gone: the transaction is aborted, and its producer fenced.

So a commit is decided only once this broker is shown a leader of each partition. A machine that loses power is missed by the
others only some seconds later. Where the leader alone is in sync, so that its records go with it, the leader itself is asked
whether it still leads in that epoch. Records that are lost after the decision are lost to a committed transaction; an ERROR
names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.broker.coordination.delivery import Target, shown, targets
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.parts import BrokerSender, Parts
from penstock.broker.coordination.transactions.state import Facts, TransactionState
from penstock.broker.transactionmessages import TopicIds, UncleanEpochs
from penstock.errors import ErrorCode, KafkaError

RETRY_S = 0.5
"""How long the next picture of the cluster is waited for before leaders are asked again."""
PATIENCE_S = 5.0
"""How long an EndTxn waits for leaders; then its client asks again."""

NO_EPOCH = -1


@dataclass(slots=True)
class _Look:
    """What is shown of a transaction's partitions."""

    lost: list[TopicPartition] = field(default_factory=list)
    unled: list[Target] = field(default_factory=list)
    alone: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    """By leader the partitions, and their leader epochs, of which nobody else is in sync."""


class Losses:
    """Of one coordinator's transactions."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def unclean_epochs_of(self, partitions: Iterable[TopicPartition], topic_ids: TopicIds) -> UncleanEpochs:
        """What is to be noted of partitions that are added."""
        found = set()
        for partition, topic_id in targets(partitions, topic_ids):
            state = shown(self._parts.topics, partition, topic_id)
            if state is not None and state.unclean_epoch != NO_EPOCH:
                found.add((partition, state.unclean_epoch))
        return frozenset(found)

    def find(self, facts: Facts) -> list[TopicPartition]:
        """The partitions of a transaction that were led uncleanly since they were added, as far as this broker is shown it."""
        return self._look(facts).lost

    def _look(self, facts: Facts) -> _Look:
        look, noted = _Look(), dict(facts.unclean_epochs)
        for partition, topic_id in sorted(targets(facts.partitions, facts.topic_ids)):
            state = shown(self._parts.topics, partition, topic_id)
            if state is None:
                look.unled.append((partition, topic_id))
                continue
            if state.unclean_epoch > noted.get(partition, NO_EPOCH):
                look.lost.append(partition)
            elif state.leader < 0:
                look.unled.append((partition, topic_id))
            elif len(state.isr) <= 1 and state.leader != self._parts.node_id:
                look.alone.setdefault(state.leader, {})[partition] = state.leader_epoch
        return look

    async def wait_for_leaders(self, cluster: BrokerSender, ongoing: Callable[[], Facts | None]) -> bool:
        """Before a commit is decided: wait until all partitions of a transaction are led. False: records of it may be lost.

        ongoing: the facts of the transaction; None once it isn't ongoing any more. Raises KafkaError COORDINATOR_NOT_AVAILABLE
        for a leader that nobody knows, or that doesn't answer.
        """
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        confirmed: set[tuple[TopicPartition, int]] = set()
        gone: set[Target] = set()
        while (facts := ongoing()) is not None:
            look = self._look(facts)
            if look.lost:
                return False
            unled = [one for one in look.unled if one not in gone]
            asked = {
                leader: left
                for leader, epochs in look.alone.items()
                if (left := {one: epoch for one, epoch in epochs.items() if (one, epoch) not in confirmed})
            }
            if not unled and not asked:
                return True
            for partition, topic_id in unled:
                if shown(self._parts.topics, partition, topic_id) is None and await cluster.is_gone(partition, topic_id):
                    gone.add((partition, topic_id))
            answers = await asyncio.gather(*(_ask(cluster, leader, epochs) for leader, epochs in asked.items()))
            confirmed.update(*answers)
            if gone.issuperset(unled) and all(epochs.items() <= confirmed for epochs in asked.values()):
                continue
            if asyncio.get_running_loop().time() >= deadline_s:
                names = sorted({*(one for one, _ in unled), *(one for epochs in asked.values() for one in epochs)})[:5]
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"nobody leads {names} now, so no commit is decided")
            await cluster.next_picture(RETRY_S)
        return True


async def _ask(cluster: BrokerSender, leader: int, epochs: dict[TopicPartition, int]) -> set[tuple[TopicPartition, int]]:
    """Those partitions that a broker says to lead in these epochs; of one that can't be asked none."""
    try:
        led = await cluster.find_led(leader, epochs)
    except ConnectionError:
        return set()
    return {(one, epochs[one]) for one in led}


def is_ongoing(facts: Facts | None) -> bool:
    """Whether a transaction can still be aborted."""
    return facts is not None and facts.state is TransactionState.ONGOING
