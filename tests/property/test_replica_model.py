"""Random lives of a replica: the pure machines of `broker/cluster` and the log that carries out what they decide.

Both get the same events: roles, appends, fetches of other replicas, proposals and their answers, fences. After each event
roles, epochs, marks, high watermark, entrants and answers are the same.

Two things differ, and are allowed for. Where the leader has no epoch as old as the follower's last one, it answers that epoch
and where its own first one begins; the machine answers no epoch and 0 (a log of the machines keeps its beginning). And a
refused fetch bears no offsets.

Each of these changes of the compiled code was seen to be found (once, by hand):

- the high watermark goes over the ISR instead of MAX; it moves while too few are in sync
- a member's fetch counts under any broker epoch; a fetch of an older registration is heard
- a fetch that has diverged moves the mark; one of a newer leader epoch doesn't fence
- a fenced replica leads the same epoch again; an older partition epoch is taken, or an epoch older than the last batch's
- marks stay in a new epoch; a change of members forgets them; `leads_since` begins with each epoch
- a follower of a steady stream is never caught up; an entrant needs only the high watermark
- an epoch without a batch counts as the last one; a follower keeps such epochs
- a wait survives its lead; a wait that ends while too few are in sync is only late
- a fetch from below `removed_below` is taken: of any replica, of a registration that never fetched, after `removed_below` rose,
  of a fetch that is tried again; a member of the ISR is told to begin again
"""

from __future__ import annotations

import itertools
import random
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sim.cluster_log import ReplicaLog

from penstock.broker.cluster import acks, leader, replica
from penstock.broker.cluster.leaderandisr import NO_EPOCH, NO_LEADER, LeaderAndIsr
from penstock.broker.cluster.messages import AlterPartition, AlterPartitionAnswer, Fetch, PartitionRole
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.replicatable import Replica
from support.logs import LOGS, TOPIC_ID, batch

US, OTHERS = 0, (1, 2, 3)
LAG_MS = 1_000
SEEDS = 60
EVENTS = 150

_numbers = itertools.count()


class Life:
    """One replica, twice."""

    def __init__(self, seed: int, root: Path) -> None:
        self.random = random.Random(seed)
        self.topic = f"replica{next(_numbers)}"
        LOGS.open_replica(self.topic, TOPIC_ID, 0, str(root), {})
        LOGS.take_entrants()
        self.log = ReplicaLog()
        self.machine = replica.Replica(US, (self.topic, 0), 0)
        self.waits = acks.Waits()
        self.epochs: dict[int, int] = {}  # in which the records were appended that a token waits for
        self.state: LeaderAndIsr | None = None
        self.now_ms = 10
        self.broker_epoch = 5
        self.registered = dict.fromkeys(OTHERS, 100)
        self.ask: AlterPartition | None = None
        self.entrants: set[tuple[str, int]] = set()
        self.last: tuple[leader.Leader, Fetch] | None = None  # the last fetch that was taken, which may be tried again
        self.seen: set[str] = set()

    # --- roles
    def any_role(self) -> None:
        """A newer state, an older one, or the same again."""
        draw = self.random
        before = self.state
        members = tuple(sorted({US, *draw.sample(OTHERS, draw.randint(0, 3))}))
        if before is None or draw.random() < 0.5:
            elected = draw.choice((US, US, US, 1, NO_LEADER))
            epoch = 0 if before is None else before.leader_epoch + draw.randint(1, 2)
            epoch = max(epoch, self.log.last_epoch - draw.choice((0, 0, 0, 1)))
            state = LeaderAndIsr(elected, epoch, members, min_isr=draw.randint(1, 4))
        else:
            state = replace(before, isr=members, min_isr=draw.choice((before.min_isr, draw.randint(1, 4))))
        version = -1 if before is None else before.partition_epoch
        kind = draw.random()
        state = replace(state, partition_epoch=version + 1 if kind < 0.8 else max(version - draw.randint(0, 1), 0))
        if kind > 0.9 and before is not None:
            state = replace(state, leader_epoch=before.leader_epoch - draw.randint(0, 1))
        broker_epoch = self.broker_epoch + draw.choice((0, 0, 0, 0, 1, -1))
        self.take(state, broker_epoch)

    def take(self, state: LeaderAndIsr, broker_epoch: int) -> None:
        named = {
            one: epoch - self.random.choice((0, 0, 0, 1))
            for one, epoch in self.registered.items()
            if self.random.random() < 0.9
        }
        role = PartitionRole(self.machine.partition, TOPIC_ID, (US, *OTHERS), state, named)
        answer = replica.on_role(self.machine, role, broker_epoch, self.log, self.now_ms)
        if state.leader == US:
            taken = self.tell(state, broker_epoch, named)
        else:
            taken = LOGS.set_follower(
                self.topic, 0, broker_epoch=broker_epoch, leader=state.leader, leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch, unclean_epoch=state.unclean_epoch,
            )  # fmt: skip
        assert taken == (answer.error == ErrorCode.NONE)
        self.seen.add(f"role {taken}")
        if taken:
            self.state, self.broker_epoch = state, broker_epoch
            if self.machine.leader is None or self.machine.leader.proposal is None:
                self.ask = None

    def tell(self, state: LeaderAndIsr, broker_epoch: int, named: dict[int, int]) -> bool:
        lead = self.machine.leader
        everyone = set(state.isr) if lead is None else leader.all_in_sync(lead)
        return LOGS.set_leader(
            self.topic, 0, broker_epoch=broker_epoch, leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch,
            replicas=[Replica(one, one in state.isr, one in everyone, named.get(one, NO_EPOCH)) for one in OTHERS],
            enough=state.needed((US, *OTHERS)), now_ms=self.now_ms,
        )  # fmt: skip

    def tell_members(self) -> None:
        """MAX or the named epochs have changed by a proposal, or its answer."""
        lead = self.machine.leader
        assert lead is not None
        self.state = lead.state
        assert self.tell(lead.state, self.broker_epoch, dict(lead.broker_epochs))
        replica.move_high_watermark(self.machine, self.log)

    def fence(self) -> None:
        replica.fence(self.machine)
        LOGS.fence(self.topic, 0)

    # --- records
    def append(self) -> None:
        state = self.machine.state
        try:
            appended = LOGS.append_client(self.topic, 0, batch())
        except KafkaError as error:
            assert error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self.machine.leader is None
            return
        assert self.machine.leader is not None and state is not None and self.machine.leads_since is not None
        assert appended.base_offset == self.log.end
        self.log.append([(state.leader_epoch, self.log.end)])
        replica.move_high_watermark(self.machine, self.log)
        token = len(self.epochs)
        self.epochs[token] = state.leader_epoch
        until_ms = self.now_ms + self.random.choice((100, 2_000, 60_000))
        acks.add(self.waits, acks.Wait(self.log.end, token, self.machine.leads_since, until_ms))

    def follow(self) -> None:
        """A batch of the leader's."""
        state = self.machine.state
        if self.machine.role is not replica.Role.FOLLOWER or state is None or state.leader_epoch < max(self.log.last_epoch, 0):
            return
        epoch = self.random.randint(max(self.log.last_epoch, 0), state.leader_epoch)
        data = bytearray(batch())
        struct.pack_into(">q", data, 0, self.log.end)
        struct.pack_into(">i", data, 12, epoch)
        LOGS.append_replica(self.topic, 0, bytes(data))
        self.log.append([(epoch, self.log.end)])

    def look(self) -> None:
        """Which produces are over by now."""
        waiting = list(self.waits.heap)
        over = dict(
            acks.answer(self.waits, self.machine.high_watermark, self.machine.leads_since, self.machine.is_enough, self.now_ms)
        )
        for wait in waiting:
            answer = LOGS.committed(self.topic, 0, wait.offset, self.epochs[wait.token], self.now_ms >= wait.deadline_ms)
            assert answer == over.get(wait.token)
            self.seen.add(f"ack {answer}")

    # --- other replicas
    def fetch(self) -> None:
        draw = self.random
        asker = draw.choice((*OTHERS, 1, 2, 3, 9))
        state = self.machine.state
        known = 0 if state is None else state.leader_epoch
        epoch = draw.choice((known,) * 8 + (known - 1, known + 1)) if draw.random() < 0.4 else known
        if draw.random() < 0.1:
            self.registered[asker] = self.registered.get(asker, 100) + 1
        broker_epoch = self.registered.get(asker, 100) - draw.choice((0,) * 12 + (1,))
        places = (self.log.end, draw.randint(0, self.log.end + 1), self.machine.high_watermark)
        offset = draw.choice((self.log.end, *places, draw.randint(0, self.log.removed_below)))
        fits = self.log.batches[offset - 1][0] if 0 < offset <= self.log.end else NO_EPOCH
        last = fits if draw.random() < 0.85 or offset == 0 else draw.randint(0, max(known, 0) + 1)
        if offset > self.log.end:
            last = max(last, draw.randint(0, max(known, 0)))
        ask = Fetch(asker, broker_epoch, epoch, offset, last)
        expected = replica.on_fetch(self.machine, ask, self.log, self.now_ms)
        answer = LOGS.replica_fetched(
            self.topic, 0, replica=asker, broker_epoch=broker_epoch, leader_epoch=epoch, offset=offset, last_epoch=last,
            now_ms=self.now_ms,
        )  # fmt: skip
        assert answer.error == expected.error
        self.seen.add(f"fetch {answer.error} {expected.diverging is not None}")
        assert answer.begins == (expected.error == ErrorCode.OFFSET_OUT_OF_RANGE and expected.removed_below > 0)
        assert answer.removed_below == expected.removed_below
        self.seen.add(f"removed {answer.removed_below > 0} {answer.begins}")
        if expected.error != ErrorCode.NONE:
            return
        diverging = expected.diverging
        assert answer.diverging == ((last, 0) if diverging is not None and diverging[0] == NO_EPOCH else diverging)
        assert answer.high_watermark == expected.high_watermark
        if diverging is None:
            assert answer.log_end == expected.end
            lead = self.machine.leader
            assert lead is not None
            self.last = (lead, ask)
            start = max(self.machine.high_watermark, leader.entry_offset(lead))
            if asker not in leader.all_in_sync(lead) and offset >= start:
                self.entrants.add((self.topic, 0))

    def retry(self) -> None:
        """A fetch that waited is tried again."""
        if self.last is None or self.last[0] is not self.machine.leader:
            return
        lead, ask = self.last
        if not leader.is_current(lead.marks[ask.replica], ask) or leader.find_divergence(ask, self.log) is not None:
            return
        expected = leader.on_retry(lead, ask, self.log, self.machine.high_watermark)
        answer = LOGS.replica_fetched(
            self.topic, 0, replica=ask.replica, broker_epoch=ask.broker_epoch, leader_epoch=ask.leader_epoch,
            offset=ask.offset, last_epoch=ask.last_epoch, now_ms=self.now_ms, moves=False,
        )  # fmt: skip
        assert (answer.error, answer.removed_below) == (expected.error, expected.removed_below)
        self.seen.add(f"retry {answer.begins}")

    def remove(self) -> None:
        """A pass of compaction takes a tombstone out."""
        most = self.machine.high_watermark
        below = self.random.choice((most, self.random.randint(0, most)))
        LOGS.note_removed(self.topic, 0, below)
        self.log.removed_below = max(self.log.removed_below, below)
        self.retry()

    def propose(self) -> None:
        lead = self.machine.leader
        if lead is not None and self.ask is None:
            self.ask = leader.propose(lead, self.log.end, self.machine.high_watermark, LAG_MS, self.now_ms)
            if self.ask is not None:
                self.seen.add("proposal")
                self.tell_members()

    def answer_proposal(self) -> None:
        ask, lead = self.ask, self.machine.leader
        if ask is None or lead is None:
            return
        error = self.random.choice((ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA))
        state = replace(lead.state, isr=ask.isr, partition_epoch=lead.state.partition_epoch + 1)
        replica.on_altered(
            self.machine, AlterPartitionAnswer(ask, error, state if error == ErrorCode.NONE else None), self.now_ms
        )
        self.ask = None if lead.proposal is None else self.ask
        self.tell_members()
        self.seen.add(f"answered {error}")

    # --- both
    def step(self) -> None:
        self.now_ms += self.random.choice((0, 1, 20, 400))
        does = self.random.choices(
            (
                self.any_role, self.append, self.follow, self.fetch, self.retry, self.remove, self.propose,
                self.answer_proposal, self.fence,
            ),
            (8, 25, 8, 50, 8, 6, 8, 6, 1),
        )[0]  # fmt: skip
        does()
        self.check()

    def check(self) -> None:
        machine, now = self.machine, LOGS.replica_state(self.topic, 0)
        role = "fenced" if machine.role is replica.Role.NONE else machine.role.value
        assert (now.role, now.log_end, now.last_epoch) == (role, self.log.end, self.log.last_epoch)
        assert (now.high_watermark, now.removed_below) == (machine.high_watermark, self.log.removed_below)
        assert LOGS.offsets(self.topic, 0).last_stable == now.high_watermark
        if machine.state is not None:
            assert (now.leader_epoch, now.partition_epoch) == (machine.state.leader_epoch, machine.state.partition_epoch)
        assert now.leads_since == (NO_EPOCH if machine.leads_since is None else machine.leads_since)
        marks = {}
        if machine.leader is not None:
            assert now.epoch_start == machine.leader.epoch_start
            marks = machine.leader.marks
        assert {
            one.broker: (one.broker_epoch, one.end, one.caught_up_ms, one.fetched_ms, one.end_at_fetch, one.removed_below)
            for one in LOGS.marks(self.topic, 0)
        } == {
            one: (mark.broker_epoch, mark.end, mark.caught_up_ms, mark.fetched_ms, mark.end_at_fetch, mark.removed_below)
            for one, mark in marks.items()
        }
        lags = machine.leader is not None and any(
            leader.is_lagging(machine.leader, one, LAG_MS, self.now_ms) for one in machine.leader.state.isr if one != US
        )
        is_unsettled = (self.topic, 0) in LOGS.unsettled(LAG_MS, self.now_ms)
        assert is_unsettled == (lags or now.role in ("fenced", "offline"))
        if lags:
            self.seen.add("a member lags")
        assert set(LOGS.take_entrants()) == self.entrants
        self.entrants.clear()
        self.look()
        self.seen.add(now.role)
        if machine.high_watermark < self.log.end:
            self.seen.add("high watermark waits")
        elif self.log.end:
            self.seen.add("all is committed")


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def live(seed: int, root: Path) -> set[str]:
    life = Life(seed, root)
    try:
        life.any_role()
        for _ in range(EVENTS):
            life.step()
    finally:
        LOGS.delete(life.topic, 0)
    return life.seen


def test_a_log_does_what_the_machines_of_a_replica_say(root: Path) -> None:
    seen: set[str] = set()
    for seed in range(SEEDS):
        try:
            seen |= live(seed, root)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    # A run that saw too little proves nothing.
    assert seen >= {
        "role True", "role False", "leader", "follower", "fenced", "high watermark waits", "all is committed",
        "fetch 0 False", "fetch 0 True", "fetch 6 False", "fetch 74 False", "fetch 75 False", "fetch 77 False",
        "ack None", "ack 0", "ack 6", "ack 7", "ack 20", "proposal", "answered 0", "answered 107", "removed False False",
        "removed True False", "removed True True", "retry False", "retry True", "a member lags",
    }  # fmt: skip
