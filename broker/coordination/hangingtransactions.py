"""Transactions that are open in a log, and that no coordinator would ever end, in a cluster: Kafka's hanging transactions.

An unclean election takes the newest records of a log. Among them may be

- the marker of a complete transaction. It is open in that log again, and its coordinator has no more markers to send;
- the state of a transactional id. Its transaction is open in logs that have lost nothing.

So two kinds of leads are suspect. One is that of a partition which was led uncleanly, for transactions that began there before.
The other is every lead, once a partition of `__transaction_state` was led uncleanly. All other leads are above suspicion: a
coordinator has stored each transaction before it begins in a log, and forgets none before its markers are committed.

The leader asks all coordinators what becomes of these transactions (ListTransactions). `powercut.fate` decides. A broker may
answer that coordinates no more, and doesn't know a producer id that its successor has given. So an answer counts only if the
metadata store, which is read after it, has this broker as the leader in the leader epoch that it answered for. If every
partition of `__transaction_state` has been answered for, and none knows a producer id, the leader aborts its transaction.

The marker has the epoch of the records. Nobody can begin a transaction in that epoch later: the coordinators don't know the
producer id, or have used its epoch up. A marker of another transaction is never doubled: in the step that appends the marker,
the leader looks whether the transaction is the one that it has asked about. Meanwhile the producer may go on with a transaction
of a later epoch. It must not join the one that is open, since one marker would end both: the leader holds it (`holds`).

The outcome may be lost for good. Then nothing is guessed: an ERROR names the transaction, and a later one of its producer may
join it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from penstock import log
from penstock.broker.coordination import powercut
from penstock.broker.coordination.losses import is_ongoing
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.parts import BrokerSender, Parts
from penstock.broker.coordination.transactioncoordinator import TransactionCoordinator
from penstock.broker.coordination.transactions.state import Facts
from penstock.broker.topic import TRANSACTION_STATE
from penstock.broker.transactionmessages import Fate, Fates, Marker, OpenTransaction
from penstock.broker.turns import TurnOrder, Turns
from penstock.errors import ErrorCode, KafkaError

QUESTIONS_MAX = 1_000
"""Of one request."""
AGAIN_S = 1.0
"""How long the leader waits before it asks again, unless all transactions have a coordinator that will end them."""
LISTED_AGAIN_S = 5.0
"""Else: a marker that such a coordinator takes for committed may have been lost."""

NO_EPOCH = -1

_log = log.get(__name__)


class HangingTransactions:
    """Of one broker: asks as a leader, answers as a coordinator."""

    def __init__(self, parts: Parts, transactions: TransactionCoordinator) -> None:
        self._parts = parts
        self._transactions = transactions
        self._order = TurnOrder()
        self._are_states_lost = False
        """A partition of `__transaction_state` was led uncleanly: every lead is suspect."""
        self._unclean_epochs: dict[TopicPartition, int] = {}
        """Of partitions that this broker has led: the newest leader epoch that an unclean election began."""
        self._suspects: set[TopicPartition] = set()
        """Leads whose open transactions aren't known yet."""
        self._open: set[OpenTransaction] = set()
        self.unknown: set[OpenTransaction] = set()
        """Those whose outcome is lost, of the partitions that this broker leads."""
        self._news = asyncio.Event()
        transactions.markers.holds = self.holds
        self.ended: Counter[Fate] = Counter()
        """How many of them this broker has ended, and how many have lost their outcome."""

    # --- as a coordinator
    async def answer(self, asked: Sequence[OpenTransaction]) -> Fates:
        """What this broker's coordinators know of open transactions."""
        before = self._transactions.loaded()
        ids = {one.producer_id for one in asked}
        known: list[tuple[Facts, int]] = []
        async for entry in Turns(self._order).each(list(self._transactions.entries.values())):
            facts = entry.machine.facts
            if facts is not None and not ids.isdisjoint((facts.producer_id, facts.previous_producer_id)):
                known.append((facts, entry.partition))
        states = powercut.by_producer_id(facts for facts, _ in known)
        homes = {id(facts): partition for facts, partition in known}
        found = [
            (homes[id(facts)], _fate(one, facts)) if (facts := states.get(one.producer_id)) is not None else None
            for one in asked
        ]
        after = self._transactions.loaded()  # What was resigned in between may be missing.
        offsets = self._parts.log_manager.offsets  # A lead may go on in a later epoch than the one in which it began.
        leads = {
            index: offsets(TRANSACTION_STATE, index).leader_epoch for index, lead in before.items() if after.get(index) is lead
        }
        return Fates(leads, found)

    # --- as a leader
    def led(self, partition: TopicPartition, unclean_epoch: int) -> None:
        """This broker leads a partition. unclean_epoch: the newest that an unclean election began; -1: none."""
        if unclean_epoch != NO_EPOCH:
            self._unclean_epochs[partition] = unclean_epoch
        else:
            self._unclean_epochs.pop(partition, None)
        self.unknown = {one for one in self.unknown if one.partition != partition}
        if unclean_epoch != NO_EPOCH or self._are_states_lost:
            self._suspects.add(partition)
            self._news.set()

    def led_uncleanly(self, partitions: Collection[TopicPartition]) -> None:
        """Unclean elections of these are shown."""
        if any(name == TRANSACTION_STATE for name, _ in partitions):
            self._are_states_lost = True
            self._suspects.update(self._parts.log_manager.partitions())
            self._news.set()

    def holds(self, partition: TopicPartition, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer's transaction of that epoch must neither begin nor end in a partition yet: an earlier one is open
        there. That one is looked at, whether its lead is suspect or not."""
        try:
            producer = self._parts.log_manager.producer(*partition, producer_id)
        except KafkaError:
            return False  # The append will be refused.
        if producer is None or producer.txn_first_offset < 0 or producer.producer_epoch >= producer_epoch:
            return False
        one = powercut.open_transaction(partition, producer)
        one = replace(one, keeps_markers=self._keeps_markers(one))
        if one in self.unknown:
            return False
        if one not in self._open:
            self._open.add(one)
            self._news.set()
        return True

    async def run(self) -> None:
        """Look at suspect leads, for as long as this broker lives."""
        while True:
            try:
                wait_s = await self._look()
            except Exception:  # noqa: BLE001 - a transaction that hangs now is looked at again
                _log.exception("open transactions can't be looked at")
                wait_s = LISTED_AGAIN_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                continue
            self._news.clear()

    async def _look(self) -> float | None:
        """Look once, and ask once; after how long to do it again, None: once there is another suspect lead."""
        suspects, self._suspects = self._suspects, set()
        async for partition in Turns(self._order).each(sorted(suspects)):
            if self._is_led(partition):
                self._open |= self._find_open(partition)
        self._open = {one for one in self._open if self._is_open(one)}
        if not self._open:
            return None
        cluster, are_listed = self._parts.cluster, True
        assert cluster is not None
        asked = sorted(self._open, key=lambda one: (one.partition, one.producer_id))
        for at in range(0, len(asked), QUESTIONS_MAX):
            some = asked[at : at + QUESTIONS_MAX]
            fates = await self._ask(cluster, some)
            await asyncio.gather(*map(self._end, some, fates))
            are_listed &= all(fate is Fate.LISTED for fate in fates)
        return LISTED_AGAIN_S if are_listed else AGAIN_S

    def _find_open(self, partition: TopicPartition) -> set[OpenTransaction]:
        found = powercut.find_open(self._parts.log_manager, [partition])
        found = [replace(one, keeps_markers=self._keeps_markers(one)) for one in found]
        return {one for one in found if self._are_states_lost or not one.keeps_markers}

    def _keeps_markers(self, one: OpenTransaction) -> bool:
        """Whether a transaction began after the newest unclean election of its partition."""
        unclean_epoch = self._unclean_epochs.get(one.partition, NO_EPOCH)
        if unclean_epoch == NO_EPOCH:
            return True
        try:
            _, end = self._parts.log_manager.offset_for_epoch(*one.partition, unclean_epoch - 1)
        except KafkaError:
            return False
        return one.first_offset >= end

    def _is_led(self, partition: TopicPartition) -> bool:
        try:
            return self._parts.log_manager.replica_state(*partition).role == "leader"
        except KafkaError:
            return False

    def _is_open(self, one: OpenTransaction) -> bool:
        """Whether a transaction is still open, in a log that this broker leads. The next leader looks by itself."""
        if not self._is_led(one.partition):
            return False
        producer = self._parts.log_manager.producer(*one.partition, one.producer_id)
        return producer is not None and producer.txn_first_offset == one.first_offset

    async def _ask(self, cluster: BrokerSender, asked: Sequence[OpenTransaction]) -> list[Fate | None]:
        """What becomes of each; None: that isn't known yet."""
        topic = self._parts.topics.get(TRANSACTION_STATE)
        brokers = sorted({state.leader for state in topic.partitions} - {-1}) if topic is not None else []
        answers = await asyncio.gather(*(self._ask_one(cluster, broker, asked) for broker in brokers))
        stored = await cluster.read_leaders(TRANSACTION_STATE)
        return decide(dict(zip(brokers, answers, strict=True)), stored, len(asked))

    async def _ask_one(self, cluster: BrokerSender, broker: int, asked: Sequence[OpenTransaction]) -> Fates:
        if broker == self._parts.node_id:
            return await self.answer(asked)
        try:
            return await cluster.find_fates(broker, asked)
        except ConnectionError as error:
            _log.debug("broker %d can't be asked about open transactions: %s", broker, error)
            return Fates({}, [None] * len(asked))

    async def _end(self, one: OpenTransaction, fate: Fate | None) -> None:
        if fate is None or fate is Fate.LISTED:
            return
        what = f"topic={one.partition[0]} partition={one.partition[1]} producer_id={one.producer_id} epoch={one.producer_epoch}"
        if fate is Fate.UNKNOWN:
            self._open.discard(one)
            self.unknown.add(one)
            self.ended[fate] += 1
            _log.error(
                "%s: a transaction is open since offset %d and its outcome is lost; consumers of committed records wait there "
                "until `kafka-transactions.sh abort` ends it by the listener of the brokers", what, one.first_offset,
            )  # fmt: skip
            return
        if not self._is_open(one):  # In the step of the append: its own marker may have come.
            self._open.discard(one)
            return
        marker = Marker(one.producer_id, one.producer_epoch, fate is Fate.COMMIT, max(0, one.coordinator_epoch))
        answer = await self._transactions.markers.write_committed(one.partition, marker)
        if answer.error == ErrorCode.NONE:
            self._open.discard(one)
            self.ended[fate] += 1
            _log.warning(
                "%s: a transaction that no coordinator would have ended was %s; it was open since offset %d",
                what, "committed, as the state of its id says" if fate is Fate.COMMIT else "aborted", one.first_offset,
            )  # fmt: skip


def _fate(one: OpenTransaction, facts: Facts) -> Fate:
    """As `powercut.fate`. A marker of the present transaction would end an earlier one, too, and with its own outcome."""
    fate = powercut.fate(one, {one.producer_id: facts}, one.keeps_markers)
    # A marker of transactions v2 has the epoch after that of the records.
    ended = facts.producer_epoch - (0 if is_ongoing(facts) else 1)
    is_earlier = one.producer_epoch < ended and (is_ongoing(facts) or facts.client_version >= 2)
    if fate is Fate.LISTED and is_earlier:
        return Fate.ABORT if one.keeps_markers else Fate.UNKNOWN
    return fate


def decide(answers: Mapping[int, Fates], stored: Mapping[int, tuple[int, int]], count: int) -> list[Fate | None]:
    """What becomes of each transaction that was asked about; None: that isn't known yet.

    answers: by broker. stored: leader and leader epoch of each partition of `__transaction_state`, read after the answers.
    """
    confirmed = {
        (broker, index)
        for broker, answer in answers.items()
        for index, epoch in answer.leads.items()
        if stored.get(index) == (broker, epoch)
    }
    all_said = bool(stored) and len(confirmed) == len(stored)
    decided: list[Fate | None] = []
    for at in range(count):
        known = [
            found[1]
            for broker, answer in answers.items()
            if (found := answer.found[at]) is not None and (broker, found[0]) in confirmed
        ]
        decided.append(known[0] if known else Fate.ABORT if all_said else None)
    return decided
