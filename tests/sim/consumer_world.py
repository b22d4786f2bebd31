"""A seeded world around the machine of KIP-848's groups: members, a network that loses, crashes, topics that change.

Chance is one `random.Random(seed)`, time a number: the same seed gives the same run. The coordinator is the real
machine under the shell's rules; its log is a list of records. A crash forgets the machine, of the append that was
under way perhaps a first part reached the log, and the machine is made again from it.

Checked all the time, by readings of the log and of the answers that know nothing of the machine:

- a partition has one holder: who got it last, until a record says that it gave it back (`Reader`);
- epochs only grow: the group's, the target's, and each member's;
- a commit is accepted only from who holds the partition;
- a request is answered at most once.

When the faults stop, all partitions of subscribed topics belong to members that want them, evenly, every client
believes what the coordinator does, and the group says Stable.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sim.clockwork import Clockwork

from penstock.broker.configs.groupconfig import GroupConfig, GroupSettings
from penstock.broker.coordination.classicgroups import events as classic_events
from penstock.broker.coordination.classicgroups import machine as classic_machine
from penstock.broker.coordination.classicgroups import state as classic_state
from penstock.broker.coordination.consumergroups import embedded, machine
from penstock.broker.coordination.consumergroups.events import ConsumerHeartbeat, HeartbeatResult, PatternsResolved
from penstock.broker.coordination.consumergroups.state import (
    ConsumerGroup,
    ConsumerRecord,
    CurrentRecord,
    Environment,
    EpochRecord,
    TargetEpochRecord,
    TopicFacts,
    subscribed,
)
from penstock.broker.coordination.consumergroups.writing import AnyGroup
from penstock.broker.coordination.groupoffsets import Commit
from penstock.broker.coordination.machines import Append, Appended, Reply, Tick
from penstock.broker.coordination.offsets import Committed, OffsetRecord
from penstock.errors import ErrorCode as E
from penstock.pyx.wire.header import encode_versioned
from penstock.pyx.wire.messages import ConsumerProtocolSubscription

SESSION_MS, REBALANCE_MS, BEAT_MS, LOST_AFTER_MS = 10_000, 8_000, 1_000, 2_500
PATTERN = "t.*"
Owned = dict[bytes, frozenset[int]]


class Violation(AssertionError):
    """An invariant does not hold."""


class Topics:
    """A catalog that changes."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._ids = itertools.count(1)
        self.version = 0
        self.facts: dict[str, TopicFacts] = {}
        for name in ("t1", "t2", "u"):
            self.create(name)

    def create(self, name: str) -> None:
        self.version += 1
        self.facts[name] = TopicFacts(next(self._ids).to_bytes(16, "big"), self._chance.randint(1, 6))

    def change(self) -> None:
        """Grow, delete or create one."""
        name = self._chance.choice(("t1", "t2", "t3", "u"))
        facts = self.facts.get(name)
        if facts is None:
            self.create(name)
        elif self._chance.random() < 0.3:
            self.version += 1
            del self.facts[name]
        else:
            self.version += 1
            self.facts[name] = TopicFacts(facts.topic_id, facts.partitions + self._chance.randint(1, 3))

    def get(self, name: str) -> TopicFacts | None:
        return self.facts.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, facts in self.facts.items() if facts.topic_id == topic_id), None)

    def matching(self) -> frozenset[str]:
        return frozenset(name for name in self.facts if name.startswith("t"))


@dataclass
class Reader:
    """What the log says by itself: who holds what, and how far the epochs are."""

    holders: dict[tuple[bytes, int], str] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    target_epoch: int = 0

    def read(self, record: object) -> None:
        if isinstance(record, EpochRecord):
            self.epoch = self._grown("group", self.epoch, record.value)
        elif isinstance(record, TargetEpochRecord):
            self.target_epoch = self._grown("target", self.target_epoch, record.value)
        elif isinstance(record, CurrentRecord):
            self._read_current(record)

    @staticmethod
    def _grown(what: str, before: int, value: tuple[int, int] | None) -> int:
        if value is None:
            return 0
        if value[0] < before:
            raise Violation(f"the {what} epoch went from {before} to {value[0]}")
        return value[0]

    def _read_current(self, record: CurrentRecord) -> None:
        member = record.member_id
        for key in [key for key, holder in self.holders.items() if holder == member]:
            del self.holders[key]
        if record.value is None:
            self.members.pop(member, None)
            return
        epoch = record.value.epoch
        if 0 <= epoch < self.members.get(member, 0):
            raise Violation(f"{member}'s epoch went from {self.members[member]} to {epoch}")
        self.members[member] = max(epoch, 0)
        for held in (record.value.assigned, record.value.revoking):
            for topic_id, partitions in held.items():
                for partition in partitions:
                    other = self.holders.setdefault((topic_id, partition), member)
                    if other != member:
                        raise Violation(f"{topic_id.hex()}-{partition} is held by {other} and given to {member}")


@dataclass(eq=False)
class Token:
    """A request under way; answered once, by the coordinator that it reached."""

    answer: Callable[[Any], None]
    incarnation: int = -1
    answered: bool = False


class World(Clockwork):
    """One run: `run()` plays it and raises Violation."""

    def __init__(self, seed: int, duration_ms: int = 40_000, classic: bool = True) -> None:
        super().__init__(seed, duration_ms)
        self.topics = Topics(self.random)
        interval_ms = self.random.choice((0, 1_000))
        settings = GroupSettings(SESSION_MS, BEAT_MS, interval_ms)
        config = GroupConfig(initial_rebalance_delay_ms=100, consumer=settings)
        self.environment = Environment(config, self.topics, lambda name: settings)
        self.log: list[object] = []
        self.reader = Reader()
        self.incarnation = 0
        self.pending: list[tuple[int, Append]] = []
        self.group: AnyGroup = classic_state.Group("g", config)
        self.ids = itertools.count(1)
        modern = self.random.randint(1, 4)
        self.members: list[Member | ClassicMember] = [Member(self, number) for number in range(modern)]
        if classic:
            self.members += [ClassicMember(self, number) for number in range(self.random.randint(0, 2))]

    def run(self) -> World:
        """With faults, then without, until everything has come to rest."""
        for member in self.members:
            self.later(self.random.randrange(5_000), member.start)
        self.later(self.random.randrange(20_000), self.disturb)
        self.play(self.duration_ms)
        self.faults = False
        self.play(self.duration_ms + 60_000)
        self.check_rest()
        return self

    def disturb(self) -> None:
        """A crash or a change of the topics, again and again."""
        if not self.faults:
            return
        if self.random.random() < 0.4:
            self.crash()
        else:
            self.topics.change()
            self.count("topic")
            self.later(self.random.randrange(1_000), self.resolve)
        self.later(self.random.randrange(500, 12_000), self.disturb)

    def resolve(self) -> None:
        """The shell evaluates the patterns again."""
        if isinstance(self.group, ConsumerGroup) and self.group.patterns:
            self.feed(PatternsResolved({PATTERN: self.topics.matching()}, self.topics.version))

    # --- the shell ------------------------------------------------------------------------------------------
    def ask(self, event: Any, then: Callable[[Any], None]) -> None:
        """Send a request; `then` gets the answer, or None if nothing came in time."""
        done: list[bool] = []

        def finish(answer: Any) -> None:
            if not done:
                done.append(True)
                then(answer)

        joins = isinstance(event, classic_events.Join)
        self.later(LOST_AFTER_MS * (10 if joins else 1), lambda: finish(None))
        if self.fault(0.03):
            self.count("request lost")
            return
        lost = self.fault(0.03)

        def answer(result: Any) -> None:
            if lost:
                self.count("answer lost")
            else:
                self.later(self.random.randrange(1, 30), lambda: finish(result))

        event.token = Token(answer)
        self.later(self.random.randrange(1, 30), lambda: self._arrive(event))

    def _arrive(self, event: Any) -> None:
        event.token.incarnation = self.incarnation
        self.feed(event)

    def feed(self, event: object) -> None:
        self.group, actions = machine.step(self.group, event, self.now, self.environment)
        for action in actions:
            if isinstance(action, Reply):
                self._answer(action)
            else:
                self._append(action)
        self._arm()

    def _arm(self) -> None:
        group = self.group
        due_ms = group.wake_at_ms
        if due_ms > self.now_ms + 10_000_000:
            return

        def tick() -> None:
            if self.group is group and group.wake_at_ms <= self.now_ms and not self.pending:
                self.feed(Tick())

        self.later(due_ms - self.now_ms, tick)

    def _answer(self, reply: Reply) -> None:
        token = reply.token
        assert isinstance(token, Token)
        if token.answered:
            raise Violation(f"answered twice: {reply.result}")
        token.answered = True
        if token.incarnation == self.incarnation:
            token.answer(reply.result)

    def _append(self, append: Append) -> None:
        """Mostly at once, as the broker does; sometimes it takes a while, and sometimes it fails."""
        incarnation = self.incarnation
        self.pending.append((append.id, append))
        delay_ms = self.random.randrange(1, 60) if self.random.random() < 0.3 else 0
        self.later(delay_ms, lambda: self._appended(append, incarnation))

    def _appended(self, append: Append, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        if self.pending[0][0] != append.id:  # In the order of the log.
            self.later(1, lambda: self._appended(append, incarnation))
            return
        self.pending.pop(0)
        if self.fault(0.02):
            self.count("append failed")
            self.feed(Appended(append.id, E.KAFKA_STORAGE_ERROR))
            return
        base = len(self.log)
        self._write(append)
        self.feed(Appended(append.id, E.NONE, base))

    def _write(self, append: Append) -> None:
        """All records of an append are one batch: all or none."""
        for record in append.records:
            self.log.append(record)
            self.reader.read(record)

    def crash(self) -> None:
        """Forget all but the log, to which some of what was under way may have made it."""
        self.count("crash")
        self.incarnation += 1
        for _, append in self.pending[: self.random.randint(0, len(self.pending))]:
            self._write(append)
        self.pending.clear()
        group: AnyGroup = classic_state.Group("g", self.environment.config)
        for offset, record in enumerate(self.log):
            assert isinstance(record, OffsetRecord | classic_state.GroupRecord | ConsumerRecord)
            group = machine.load(group, record, offset, -1, self.environment)
        if isinstance(group, ConsumerGroup):
            machine.loaded(group, self.now)
        else:
            classic_machine.loaded(group, self.now)
        self.group = group
        self._arm()

    # --- the end --------------------------------------------------------------------------------------------
    def check_rest(self) -> None:
        """What has to be when nothing has gone wrong for a long time."""
        group = self.group
        modern = [member for member in self.members if isinstance(member, Member)]
        if not isinstance(group, ConsumerGroup):
            raise Violation(f"members of KIP-848 are alive, but the group is {group.state}")
        if group.state() != "Stable":
            raise Violation(f"the group is {group.state()}, epochs {group.epoch} {group.target_epoch}")
        if len(group.members) != len(self.members):
            raise Violation(f"{len(self.members)} members are alive, the group knows {list(group.members)}")
        wanted = {
            (facts.topic_id, partition)
            for name, facts in self.topics.facts.items()
            if any(name in subscribed(member.facts, group.patterns) for member in group.members.values())
            for partition in range(facts.partitions)
        }
        if set(self.reader.holders) != wanted:
            raise Violation(f"held {len(self.reader.holders)} of {len(wanted)} partitions")
        for member in self.members:
            believed = {(topic, partition) for topic, parts in member.owned.items() for partition in parts}
            held = {key for key, holder in self.reader.holders.items() if holder == member.id}
            if believed != held:
                raise Violation(f"{member.id} believes in {len(believed)} partitions and holds {len(held)}")
        sizes = [len([1 for holder in self.reader.holders.values() if holder == member.id]) for member in self.members]
        if len({member.topics for member in self.members}) == 1 and max(sizes) - min(sizes) > 1:
            raise Violation(f"unevenly shared: {sizes}")
        self.count(f"rest of {len(modern)} and {len(self.members) - len(modern)}")


class Member:
    """A consumer of KIP-848, as its clients are: heartbeats, gives back, takes, commits, dies, comes again."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.instance = f"i{number}" if number % 3 == 1 else None
        self.pattern = PATTERN if number % 4 == 3 else ""
        self.topics: tuple[str, ...] = () if self.pattern else ("t1", "t2")
        self.id = ""
        self.life = 0
        self.epoch = 0
        self.owned: Owned = {}
        self.shall: Owned = {}
        self.full = True

    def start(self) -> None:
        self.life += 1
        self.id = f"m{next(self.world.ids)}"
        self.reset()
        self.beat()

    def reset(self) -> None:
        self.epoch, self.owned, self.shall, self.full = 0, {}, {}, True

    def _alive(self, action: Callable[[], None]) -> Callable[[], None]:
        life = self.life

        def act() -> None:
            if self.life == life:
                action()

        return act

    def beat(self) -> None:
        """A heartbeat; what it has to give back it has given back by the time that it says so."""
        self.owned = {topic: kept for topic, parts in self.owned.items() if (kept := parts & self.shall.get(topic, _NONE))}
        joining = self.epoch == 0
        tells = joining or self.full
        event = ConsumerHeartbeat(
            None,
            self.id,
            self.epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_MS if tells else -1,
            topics=self.topics if tells and not self.pattern else None,
            pattern=self.pattern if tells and self.pattern else None,
            resolved=self.world.topics.matching() if tells and self.pattern else None,
            owned={} if joining else dict(self.owned),
        )
        self.full = False
        life, owned_before = self.life, dict(self.owned)

        def heard(answer: HeartbeatResult | None) -> None:
            if self.life == life:
                self.heard(answer, owned_before)

        self.world.ask(event, heard)

    def heard(self, answer: HeartbeatResult | None, said: Owned) -> None:
        world = self.world
        if answer is None:
            self.full = True
        elif answer.error in (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND):
            world.count("fenced")
            self.reset()
        elif answer.error == E.UNRELEASED_INSTANCE_ID:
            world.count("unreleased")
        elif answer.error == E.FENCED_INSTANCE_ID:
            self.reset()
        elif answer.error:
            self.full = True
        else:
            if answer.member_epoch < self.epoch:
                raise Violation(f"{self.id} was told epoch {answer.member_epoch} after {self.epoch}")
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                world.count("assignment")
                self.shall = dict(answer.assignment)
                if all(parts <= self.shall.get(topic, _NONE) for topic, parts in self.owned.items()):
                    self.owned = dict(self.shall)
        if answer is not None and not answer.error:
            # What was given back has been said; the rest may be taken.
            if all(parts <= self.shall.get(topic, _NONE) for topic, parts in said.items()):
                self.owned = dict(self.shall)
            self.commit()
        world.later(world.random.randrange(BEAT_MS // 2, BEAT_MS * 2), self._alive(self.go_on))

    def go_on(self) -> None:
        world = self.world
        if world.fault(0.02):
            world.count("died")
            self.life += 1
            world.later(world.random.randrange(100, SESSION_MS * 2), self.start)
        elif world.fault(0.02):
            world.count("left")
            epoch = -2 if self.instance is not None and world.random.random() < 0.7 else -1
            world.ask(ConsumerHeartbeat(None, self.id, epoch, instance_id=self.instance), lambda answer: None)
            self.life += 1
            world.later(world.random.randrange(100, SESSION_MS), self.start)
        elif world.fault(0.02):
            world.count("paused")
            world.later(world.random.randrange(SESSION_MS * 2), self._alive(self.beat))
        else:
            self.beat()

    def commit(self) -> None:
        """Commit one of the partitions that it believes to own; who is no more its holder must be refused."""
        world = self.world
        if not self.owned or world.random.random() < 0.6:
            return
        topic_id = world.random.choice(sorted(self.owned))
        name = world.topics.name_of(topic_id)
        if name is None:
            return
        partition = world.random.choice(sorted(self.owned[topic_id]))
        commits = {(name, partition): Committed(1, -1, "", -1)}
        event = Commit(Token(lambda result: None), self.id, self.instance, self.epoch, commits)
        holder = self.id

        def check(result: Any) -> None:
            if isinstance(result, dict) and not any(result.values()):
                world.count("commit")
                if world.reader.holders.get((topic_id, partition)) != holder:
                    raise Violation(f"a commit of {holder} was accepted for a partition that it does not hold")

        event.token = Token(check)
        world.later(world.random.randrange(1, 4_000), lambda: world._arrive(event))


_NONE: frozenset[int] = frozenset()


class ClassicMember:
    """A cooperative consumer of the classic protocol, in a group of either kind."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.topics = ("t1", "t2")
        self.id = ""
        self.life = 0
        self.generation = -1
        self.owned: Owned = {}

    def start(self) -> None:
        self.life += 1
        self.id, self.owned = "", {}
        self.join()

    def _then(self, action: Callable[[Any], None]) -> Callable[[Any], None]:
        life = self.life

        def act(answer: Any) -> None:
            if self.life == life:
                action(answer)

        return act

    def join(self) -> None:
        names = {topic_id: self.world.topics.name_of(topic_id) for topic_id in self.owned}
        parts = [
            ConsumerProtocolSubscription.TopicPartition(topic=name, partitions=sorted(self.owned[topic_id]))
            for topic_id, name in names.items()
            if name is not None
        ]
        message = ConsumerProtocolSubscription(topics=list(self.topics), owned_partitions=parts)
        event = classic_events.Join(
            token=None,
            member_id=self.id,
            fresh_member_id=f"c{next(self.world.ids)}",
            instance_id=None,
            require_known_member=True,
            can_skip_assignment=False,
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=REBALANCE_MS,
            session_timeout_ms=SESSION_MS,
            protocol_type="consumer",
            protocols=(("cooperative-sticky", encode_versioned(message, 1)),),
        )
        self.world.ask(event, self._then(self.joined))

    def joined(self, answer: classic_events.JoinResult | None) -> None:
        if answer is None or answer.error:
            if answer is not None and answer.error == E.MEMBER_ID_REQUIRED:
                self.id = answer.member_id
            elif answer is not None and answer.error == E.UNKNOWN_MEMBER_ID:
                self.id, self.owned = "", {}
            self.world.later(100, lambda: self._then(lambda _: self.join())(None))
            return
        self.world.count("classic join")
        self.id, self.generation = answer.member_id, answer.generation
        assignments: dict[str, bytes] = {}
        if answer.leader == self.id:
            members = [member_id for member_id, _, _ in answer.members]
            catalog = self.world.topics
            for position, member_id in enumerate(members):
                mine = {
                    facts.topic_id: frozenset(range(position, facts.partitions, len(members)))
                    for name in self.topics
                    if (facts := catalog.get(name)) is not None
                }
                assignments[member_id] = embedded.write_assignment(mine, 1, catalog)
        sync = classic_events.Sync(None, self.id, None, self.generation, "consumer", "cooperative-sticky", assignments)
        self.world.ask(sync, self._then(self.synced))

    def synced(self, answer: classic_events.SyncResult | None) -> None:
        if answer is None or answer.error:
            if answer is not None and answer.error == E.UNKNOWN_MEMBER_ID:
                self.id, self.owned = "", {}
            self.world.later(50, lambda: self._then(lambda _: self.join())(None))
            return
        given = dict(embedded.read_assignment(answer.assignment, self.world.topics))
        revokes = any(not parts <= given.get(topic, _NONE) for topic, parts in self.owned.items())
        self.owned = {topic: parts for topic, parts in given.items() if parts}
        if revokes:  # Cooperative: say at once what was given back.
            self.join()
        else:
            self.wait()

    def wait(self) -> None:
        beat = self._then(lambda _: self.beat())
        self.world.later(self.world.random.randrange(BEAT_MS // 2, BEAT_MS), lambda: beat(None))

    def beat(self) -> None:
        world = self.world
        if world.fault(0.02):
            world.count("classic died")
            self.life += 1
            world.later(world.random.randrange(100, SESSION_MS * 2), self.start)
            return
        if world.fault(0.02):
            world.ask(classic_events.Leave(None, [(self.id, None)]), lambda answer: None)
            self.life += 1
            world.later(world.random.randrange(100, SESSION_MS), self.start)
            return
        world.ask(classic_events.Heartbeat(None, self.id, None, self.generation), self._then(self.beaten))

    def beaten(self, answer: int | None) -> None:
        if answer in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION):
            self.owned = {}
            if answer == E.UNKNOWN_MEMBER_ID:
                self.id = ""
            self.join()
        elif answer == E.REBALANCE_IN_PROGRESS:
            self.join()
        else:
            self.wait()
