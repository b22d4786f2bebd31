"""What must hold in every simulated cluster: the invariants, asked after each event that could break them.

- I1 at most one registration of one broker acts as leader in a (partition, epoch).
- I2 two logs that hold a batch of the same offset and epoch are the same up to there.
- I3 what was committed is in the log of each seat that may be elected, while fewer than min.insync.replicas of its holders have
  lost power or a disk; and who is elected uncleanly has it, too, and has the longest log of all replicas (the least loss).
- I4 no high watermark is above the log end of a member of the store's ISR; in one run of a replica none goes back.
- I5 offset -> record is one function for all readers for all time; a poll neither skips nor goes back.
- I6 epochs grow: leader, partition, controller, broker; an epoch has one leader in the store's history.
- I7 the leader is in the ISR, or nobody leads; the ISR is among the replicas; ISR and ELR are never both empty, but by an
  operator's word.
- I8 no truncation is refused: nobody is asked to cut below its high watermark, but by an unclean election.
- I9 an acks=all that is answered was held by min.insync.replicas replicas.
- I11 only the newest controller writes states.
- No replica keeps what was deleted: a log that lacks a tombstone has nothing of what it deleted.
- I12 when faults end, each partition has a leader and all replicas in sync, and nobody waits. (Asked by the world at its end.)
- The lease: it is over before the session is.
- A name proves nothing. Each topic of a name has laws of its own: no log of a topic has a record of another one, no log is
  deleted but with its topic, and none is set aside while its topic is there.

Not asked: I10 and I13 (no producers' sequences, transactions or coordinators here), retention.

"Committed" is what any leader's high watermark ever passed: more than what was answered. A seat is excused from I3 and I4 while
its broker's loss isn't known yet (`dirty`). After an unclean election I3 to I5 of that partition end, as the design has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.cluster_log import Batch, ReplicaLog

from penstock.broker.cluster.leaderandisr import NO_LEADER, NOT_CREATED, LeaderAndIsr
from penstock.broker.cluster.messages import Partition


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Truth:
    """What the laws know of one partition of one topic."""

    topic_id: bytes
    replicas: tuple[int, ...]
    state: LeaderAndIsr
    logs: dict[int, ReplicaLog]
    high_watermarks: dict[int, int] = field(default_factory=dict)  # of brokers that run
    shown: list[Batch] = field(default_factory=list)
    lost: dict[Batch, set[int]] = field(default_factory=dict)  # who lost power or a disk while holding it
    dirty: set[int] = field(default_factory=set)
    replaced: set[int] = field(default_factory=set)  # whose log was put back, and that hasn't said since where it ends
    led: dict[int, tuple[int, int]] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)  # epoch -> leader in the store's history
    least_min: int = 1
    has_changed: bool = True  # since the laws were asked last
    tainted: bool = False
    is_doomed: bool = False  # somebody wants its topic to be deleted
    has_lost: bool = False  # a disk or a power cut has taken something, or might have


class Laws:
    """The invariants of a run."""

    def __init__(self) -> None:
        self.truths: dict[Partition, Truth] = {}  # of the topics that have the names now, or had them last
        self.former: dict[tuple[Partition, bytes], Truth] = {}
        self.topics: dict[int, bytes] = {}  # record -> the topic to which it was produced
        self.unclean_wanted: set[Partition] = set()  # by an operator: what no live replica has
        self.controller_epoch = 0

    def add(
        self,
        partition: Partition,
        topic_id: bytes,
        replicas: tuple[int, ...],
        state: LeaderAndIsr,
        logs: dict[int, ReplicaLog],
    ) -> None:
        """A partition of a topic; an earlier topic of its name was deleted."""
        before = self.truths.get(partition)
        if before is not None:
            self.former[partition, before.topic_id] = before
            self.unclean_wanted.discard(partition)
        truth = self.truths[partition] = Truth(topic_id, replicas, state, logs, least_min=state.needed(replicas))
        truth.stored[state.leader_epoch] = state.leader

    def of(self, partition: Partition, topic_id: bytes) -> Truth:
        """What is known of a partition of a topic, which may be an earlier one of the name."""
        truth = self.truths[partition]
        return truth if truth.topic_id == topic_id else self.former[partition, topic_id]

    def on_gone(self, partition: Partition) -> None:
        """The state's node is removed, with its topic."""
        truth = self.truths[partition]
        _hold(truth.is_doomed, "topics", f"the state of {partition} is removed, and nobody asked for that: {truth.state}")
        truth.state, truth.has_changed = NOT_CREATED, True

    def on_delete(self, partition: Partition, topic_id: bytes, broker: int) -> None:
        """A log is deleted. That ends the laws of what the topic holds."""
        truth = self.of(partition, topic_id)
        _hold(truth.is_doomed, "topics", f"the log of {partition} on {broker} is deleted, and its topic isn't")
        truth.tainted = True

    def on_set_aside(self, partition: Partition, topic_id: bytes, broker: int) -> None:
        """A log makes room for that of another topic."""
        truth = self.truths[partition]
        is_there = truth.topic_id == topic_id and not truth.is_doomed
        _hold(not is_there, "topics", f"the log of {partition} on {broker} is set aside, and its topic is there")

    def on_append(self, partition: Partition, topic_id: bytes, batches: list[Batch]) -> None:
        """A leader or a follower has got records."""
        for _, record in batches:
            its_topic = self.topics.setdefault(record, topic_id)
            _hold(its_topic == topic_id, "topics", f"record {record} of another topic is in a log of {partition}")

    def on_state(self, partition: Partition, new: LeaderAndIsr, controller_epoch: int) -> None:
        """A state was written: I6, I7, I11, I3 of unclean elections."""
        truth = self.truths[partition]
        old = truth.state
        _hold(new.controller_epoch == controller_epoch, "I11", f"controller {new.controller_epoch} wrote in {controller_epoch}")
        _hold(new.leader_epoch >= old.leader_epoch, "I6", f"{old} -> {new}")
        if new.leader != NO_LEADER:
            leader = truth.stored.setdefault(new.leader_epoch, new.leader)
            _hold(leader == new.leader, "I6", f"epoch {new.leader_epoch} is of {leader} and of {new.leader}")
            _hold(new.leader in new.isr, "I7", f"{new}")
        _hold(bool(new.isr or new.elr) or partition in self.unclean_wanted, "I7", f"nobody is left: {new}")
        _hold(set(new.seats) <= set(truth.replicas) and not set(new.isr) & set(new.elr), "I7", f"{new}")
        truth.state, truth.has_changed = new, True
        truth.least_min = min(truth.least_min, new.needed(truth.replicas))
        if new.unclean_epoch != old.unclean_epoch:
            self._on_unclean(truth, new, partition in self.unclean_wanted)
        self.on_change(partition, truth.topic_id)

    def _on_unclean(self, truth: Truth, new: LeaderAndIsr, wants_unclean: bool) -> None:
        log, dirty = truth.logs[new.leader], new.leader in truth.dirty
        if not truth.tainted and not dirty and not wants_unclean:
            self._holds_shown(truth, log, f"{new.leader} was elected uncleanly")
        asked = truth.high_watermarks if wants_unclean else truth.logs  # An operator's word is about the replicas that run.
        said = [truth.logs[one] for one in asked if one not in truth.replaced] or [log]
        longest = max((one.last_epoch, one.end) for one in said)
        _hold(dirty or longest == (log.last_epoch, log.end), "I3", f"{new.leader} leads uncleanly, and a longer log is there")
        truth.tainted = True

    def on_lead(self, partition: Partition, topic_id: bytes, epoch: int, broker: int, broker_epoch: int) -> None:
        """A broker begins to lead: I1."""
        truth = self.of(partition, topic_id)
        truth.has_changed = True
        first = truth.led.setdefault(epoch, (broker, broker_epoch))
        _hold(first == (broker, broker_epoch), "I1", f"epoch {epoch} is led by {first} and by {(broker, broker_epoch)}")

    def on_high_watermark(self, partition: Partition, topic_id: bytes, broker: int, offset: int, *, leads: bool) -> None:
        """A replica's high watermark moved: I4, I5."""
        truth = self.of(partition, topic_id)
        before = truth.high_watermarks.get(broker)
        if before == offset and not truth.has_changed and not truth.logs[broker].has_changed:
            return
        before = before or 0
        truth.high_watermarks[broker], truth.has_changed = offset, True
        if truth.tainted:
            return
        _hold(offset >= before, "I4", f"the high watermark of {broker} went back from {before} to {offset}")
        log, shown = truth.logs[broker].batches, truth.shown
        if leads and offset > len(shown):
            _hold(log[: len(shown)] == shown, "I5", f"{broker} shows another history")
            shown.extend(log[len(shown) : offset])
        _hold(log[:offset] == shown[:offset], "I5", f"{broker} shows at its high watermark {offset} what isn't committed")
        self.on_change(partition, topic_id)

    def on_change(self, partition: Partition, topic_id: bytes) -> None:
        """A log, a high watermark or the state has changed: I2, I3, I4."""
        truth = self.of(partition, topic_id)
        logs = list(truth.logs.items())
        changed = [one for one, log in logs if log.has_changed]
        if not changed and not truth.has_changed:
            return
        truth.has_changed = False
        for _, log in logs:
            log.has_changed = False
        for at, (one, log) in enumerate(logs):
            for other, its in logs[:at]:
                if (one in changed or other in changed) and not _agree(log.batches, its.batches):
                    raise Violation(f"I2: logs of {one} and {other} differ: {log.batches} {its.batches}")
        if truth.tainted:
            return
        for one, log in logs:
            if log.kept_deleted:
                raise Violation(f"{one} keeps what was deleted at {log.kept_deleted}: {log.gone} {log.removed_below}")
        state = truth.state
        for broker in state.seats:
            if broker in truth.dirty or broker in state.unclean:
                continue
            log = truth.logs[broker]
            if log.batches[: len(truth.shown)] != truth.shown:
                self._holds_shown(truth, log, f"{broker} has a seat")
            if broker in state.isr:
                for other, offset in truth.high_watermarks.items():
                    if offset > log.end and not self._is_excused(truth, truth.shown[log.end]):
                        raise Violation(f"I4: the high watermark of {other} is {offset}, the log of {broker} ends at {log.end}")

    def _holds_shown(self, truth: Truth, log: ReplicaLog, why: str) -> None:
        for offset, batch in enumerate(truth.shown):
            if log.batches[offset : offset + 1] != [batch] and not self._is_excused(truth, batch):
                raise Violation(f"I3: {why} and lacks {batch} of offset {offset}; {truth.state}")

    def _is_excused(self, truth: Truth, batch: Batch) -> bool:
        return len(truth.lost.get(batch, ())) >= truth.least_min

    def on_answer(self, partition: Partition, topic_id: bytes, offset: int, batch: Batch, min_isr: int) -> None:
        """An acks=all was answered: I5, I9."""
        truth = self.of(partition, topic_id)
        if truth.tainted:
            return
        _hold(truth.shown[offset : offset + 1] == [batch], "I5", f"{batch} was answered at {offset}, and isn't there")
        holders = {broker for broker, log in truth.logs.items() if log.batches[offset : offset + 1] == [batch]}
        holders |= truth.lost.get(batch, set())
        _hold(len(holders) >= min(min_isr, truth.state.needed(truth.replicas)), "I9", f"{batch} is held by {holders}")

    def on_read(self, partition: Partition, topic_id: bytes, offset: int, batches: list[Batch]) -> None:
        """A client has read: I5 by what clients see."""
        truth = self.of(partition, topic_id)
        if not truth.tainted:
            _hold(truth.shown[offset : offset + len(batches)] == batches, "I5", f"a client read {batches} from {offset} on")

    def on_loss(self, partition: Partition, topic_id: bytes, broker: int) -> None:
        """A power cut or a disk is about to take some of what a broker holds."""
        truth = self.of(partition, topic_id)
        truth.has_lost = truth.has_changed = True
        truth.dirty.add(broker)
        for batch in truth.logs[broker].batches:
            truth.lost.setdefault(batch, set()).add(broker)

    def on_dealt_with(self, partition: Partition, topic_id: bytes, broker: int) -> None:
        """The controller has dealt with a broker's loss: it tells it a role."""
        truth = self.of(partition, topic_id)
        truth.dirty.discard(broker)
        truth.replaced.discard(broker)
        truth.has_changed = True

    def on_begin(self, partition: Partition, topic_id: bytes, broker: int) -> None:
        """A replica that may keep what was deleted begins again: its high watermark, too. I3 says that it has no seat."""
        self.of(partition, topic_id).high_watermarks.pop(broker, None)

    def on_stop(self, partition: Partition, topic_id: bytes, broker: int) -> None:
        """A process has ended: its high watermark is forgotten."""
        self.of(partition, topic_id).high_watermarks.pop(broker, None)

    def on_refused_cut(self, partition: Partition, broker: int, offset: int) -> None:
        """I8."""
        raise Violation(f"I8: {broker} was asked to cut {partition} to {offset}, below its high watermark")


def _agree(one: list[Batch], other: list[Batch]) -> bool:
    at = min(len(one), len(other)) - 1
    while at >= 0 and one[at][0] != other[at][0]:
        at -= 1
    return one[: at + 1] == other[: at + 1]


def _hold(holds: bool, law: str, why: str) -> None:
    if not holds:
        raise Violation(f"{law}: {why}")
