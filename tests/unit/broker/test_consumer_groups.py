"""The state machine of KIP-848's groups: what members are told, and what their records bring back."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from penstock.broker.configs.groupconfig import GroupConfig, GroupSettings, MigrationPolicy
from penstock.broker.coordination.classicgroups import events as classic_events
from penstock.broker.coordination.classicgroups import machine as classic_machine
from penstock.broker.coordination.classicgroups import state as classic_state
from penstock.broker.coordination.consumergroups import commits, machine, records
from penstock.broker.coordination.consumergroups.events import ConsumerHeartbeat, HeartbeatResult, PatternsResolved
from penstock.broker.coordination.consumergroups.state import ConsumerGroup, Environment, TopicFacts
from penstock.broker.coordination.consumergroups.writing import AnyGroup
from penstock.broker.coordination.groupoffsets import Commit, Delete, DeleteOffsets, Expire
from penstock.broker.coordination.machines import Append, Appended, Now, Reply, Tick
from penstock.broker.coordination.offsets import Committed, OffsetRecord
from penstock.broker.coordination.statelog import decode_group_record, encode_group_record
from penstock.errors import ErrorCode as E
from penstock.pyx.wire.header import decode_version, encode_versioned
from penstock.pyx.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription

A, B = b"a" * 16, b"b" * 16


class Topics:
    """A catalog that a test changes."""

    def __init__(self, **counts: int) -> None:
        self.version = 0
        self.facts = {name: TopicFacts(name[0].encode() * 16, count) for name, count in counts.items()}

    def put(self, name: str, count: int) -> None:
        self.version += 1
        self.facts[name] = TopicFacts(name[0].encode() * 16, count)

    def drop(self, name: str) -> None:
        self.version += 1
        del self.facts[name]

    def get(self, name: str) -> TopicFacts | None:
        return self.facts.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, facts in self.facts.items() if facts.topic_id == topic_id), None)


class Bench:
    """One group, a clock, a log that takes bytes, and the members' last answers."""

    def __init__(self, config: GroupConfig | None = None, **counts: int) -> None:
        self.topics = Topics(**(counts or {"a": 4}))
        self.settings = GroupSettings(assignment_interval_ms=0)
        self.environment = Environment(config or GroupConfig(), self.topics, lambda name: self.settings)
        self.group: AnyGroup = classic_state.Group("g", self.environment.config)
        self.mono_ms = 1_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.refuse_appends = 0
        self.answers: dict[object, Any] = {}
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, dict[bytes, frozenset[int]]] = {}

    @property
    def now(self) -> Now:
        return Now(self.mono_ms, self.mono_ms + 1_700_000_000_000)

    @property
    def consumer(self) -> ConsumerGroup:
        assert isinstance(self.group, ConsumerGroup)
        return self.group

    def feed(self, event: Any) -> Any:
        queue: list[object] = [event]
        while queue:
            self.group, actions = machine.step(self.group, queue.pop(0), self.now, self.environment)
            for action in actions:
                if isinstance(action, Reply):
                    assert action.token not in self.answers
                    self.answers[action.token] = action.result
                elif isinstance(action, Append):
                    queue.append(self._append(action))
        token = getattr(event, "token", None)
        return self.answers.pop(token, None)

    def _append(self, action: Append) -> Appended:
        if self.refuse_appends:
            self.refuse_appends -= 1
            return Appended(action.id, E.KAFKA_STORAGE_ERROR)
        base = len(self.log)
        self.log += [encode_group_record("g", record) for record in action.records]
        return Appended(action.id, E.NONE, base)

    def beat(self, member: str, epoch: int | None = None, **said: Any) -> HeartbeatResult:
        """A heartbeat as a client would send it; the answer's epoch and assignment are taken up."""
        if epoch is None:
            epoch = self.epochs.get(member, 0)
        if epoch == 0:
            said = {"topics": ("a",), "rebalance_timeout_ms": 20_000, "owned": {}, **said}
        event = ConsumerHeartbeat(object(), member, epoch, client_id="c", client_host="/h", **said)
        result: HeartbeatResult = self.feed(event)
        if not result.error:
            self.epochs[member] = result.member_epoch
            if result.assignment is not None:
                self.owned[member] = dict(result.assignment)
        return result

    def settle(self, *members: str, rounds: int = 6) -> None:
        """Heartbeats that own up to what was assigned, until all is said."""
        for _ in range(rounds):
            for member in members:
                self.beat(member, owned=self.owned.get(member, {}))

    def pass_ms(self, ms: int) -> None:
        self.mono_ms += ms
        self.feed(Tick())

    def reloaded(self) -> AnyGroup:
        group: AnyGroup = classic_state.Group("g", self.environment.config)
        for offset, (key, value) in enumerate(self.log):
            loaded = decode_group_record(key, value, offset)
            assert loaded is not None and loaded.id == "g"
            record: Any = loaded.record
            group = machine.load(group, record, offset, -1, self.environment)
        if isinstance(group, ConsumerGroup):
            machine.loaded(group, self.now)
        else:
            classic_machine.loaded(group, self.now)
        return group

    def restart(self) -> None:
        self.group = self.reloaded()

    def partitions(self, member: str) -> dict[bytes, set[int]]:
        return {topic_id: set(p) for topic_id, p in self.owned.get(member, {}).items() if p}


def test_a_first_member_gets_everything_at_once() -> None:
    bench = Bench()
    result = bench.beat("m1")
    assert (result.error, result.member_epoch, result.heartbeat_interval_ms) == (E.NONE, 2, 5_000)
    assert bench.partitions("m1") == {A: {0, 1, 2, 3}}
    assert bench.consumer.state() == "Stable"
    again = bench.beat("m1")
    assert again.assignment is None and again.member_epoch == 2
    records_so_far = len(bench.log)
    bench.beat("m1")
    assert len(bench.log) == records_so_far  # A heartbeat that changes nothing writes nothing.


def test_what_one_gives_back_another_gets_and_never_before() -> None:
    bench = Bench()
    bench.beat("m1")
    joined = bench.beat("m2")
    assert joined.member_epoch == 3 and bench.partitions("m2") == {}
    assert bench.consumer.state() == "Reconciling"
    told = bench.beat("m1")
    assert told.member_epoch == 2 and len(bench.owned["m1"][A]) == 2
    assert bench.beat("m2").assignment is None  # m1 has not given anything back yet.
    still_has_all = {A: frozenset(range(4))}
    assert bench.beat("m1", owned=still_has_all).member_epoch == 2
    assert bench.beat("m1", owned=bench.owned["m1"]).member_epoch == 3
    bench.beat("m2")
    assert bench.partitions("m1")[A] | bench.partitions("m2")[A] == {0, 1, 2, 3}
    assert not bench.partitions("m1")[A] & bench.partitions("m2")[A]
    assert bench.consumer.state() == "Stable"


def test_a_member_that_leaves_makes_room() -> None:
    bench = Bench()
    bench.beat("m1")
    bench.settle("m1", "m2")
    left = bench.beat("m1", -1)
    assert (left.error, left.member_epoch) == (E.NONE, -1)
    bench.beat("m2")
    assert bench.partitions("m2") == {A: {0, 1, 2, 3}}
    assert list(bench.consumer.members) == ["m2"]


def test_a_silent_member_is_taken_out_after_its_session() -> None:
    bench = Bench()
    bench.settle("m1", "m2")
    bench.pass_ms(30_000)
    bench.beat("m2")
    bench.pass_ms(20_000)
    assert list(bench.consumer.members) == ["m2"]
    assert bench.beat("m1").error == E.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_give_back_is_taken_out_after_its_rebalance_timeout() -> None:
    bench = Bench()
    bench.beat("m1")
    bench.beat("m2")
    for _ in range(5):
        bench.beat("m1", owned={A: frozenset(range(4))})
        bench.beat("m2")
        bench.pass_ms(5_000)
    assert list(bench.consumer.members) == ["m2"]
    bench.beat("m2")
    assert bench.partitions("m2") == {A: {0, 1, 2, 3}}


def test_wrong_epochs_are_fenced_and_a_lost_answer_is_not() -> None:
    bench = Bench()
    bench.settle("m1", "m2")
    epoch = bench.epochs["m1"]
    assert bench.beat("m1", epoch + 1).error == E.FENCED_MEMBER_EPOCH
    assert bench.beat("m1", epoch - 1).error == E.FENCED_MEMBER_EPOCH
    assert bench.beat("m1", epoch - 1, owned={}).error == E.NONE  # The answer with the new epoch was lost.
    assert bench.beat("nobody", 3).error == E.UNKNOWN_MEMBER_ID
    assert bench.beat("m1", 0).error == E.NONE  # It may always come again from the start.


def test_heartbeats_of_a_group_that_is_not_there() -> None:
    bench = Bench()
    assert bench.beat("m1", 5).error == E.GROUP_ID_NOT_FOUND
    assert bench.beat("m1", -1).error == E.GROUP_ID_NOT_FOUND
    assert not bench.log and isinstance(bench.group, classic_state.Group)


def test_static_members_come_back_to_what_they_had() -> None:
    bench = Bench()
    bench.settle("m1")
    bench.beat("s1", instance_id="i")
    for _ in range(4):
        bench.beat("m1", owned=bench.owned["m1"])
        bench.beat("s1", instance_id="i", owned=bench.owned["s1"])
    had, epoch = bench.partitions("s1"), bench.consumer.epoch
    assert len(had[A]) == 2
    assert bench.beat("s2", instance_id="i").error == E.UNRELEASED_INSTANCE_ID
    assert bench.beat("s1", -2, instance_id="i").member_epoch == -2
    assert bench.beat("s2", instance_id="i").error == E.NONE
    assert bench.partitions("s2") == had and bench.consumer.epoch == epoch
    assert bench.beat("s1", instance_id="i", epoch=epoch).error == E.FENCED_INSTANCE_ID
    assert bench.beat("s9", instance_id="other", epoch=3).error == E.UNKNOWN_MEMBER_ID
    bench.beat("s2", -2, instance_id="i")
    bench.pass_ms(20_000)
    bench.beat("m1")
    bench.pass_ms(30_000)
    assert list(bench.consumer.members) == ["m1"]  # It did not come back in time.


def test_topics_that_grow_come_and_go() -> None:
    bench = Bench(a=1)
    bench.settle("m1")
    bench.topics.put("a", 3)
    assert bench.beat("m1").member_epoch == 3
    assert bench.partitions("m1") == {A: {0, 1, 2}}
    bench.topics.put("c", 5)  # Nobody is subscribed to it.
    assert bench.beat("m1").member_epoch == 3
    bench.topics.drop("a")
    bench.settle("m1")
    assert bench.partitions("m1") == {} and bench.consumer.state() == "Stable"
    bench.topics.put("a", 2)
    bench.settle("m1")
    assert bench.partitions("m1") == {A: {0, 1}}


def test_a_change_of_subscription_gives_back_at_once() -> None:
    bench = Bench(a=2, b=2)
    bench.beat("m1", topics=("a", "b"))
    assert bench.partitions("m1") == {A: {0, 1}, B: {0, 1}}
    bench.beat("m1", topics=("b",))
    assert bench.partitions("m1") == {B: {0, 1}}
    bench.settle("m1")
    assert bench.consumer.state() == "Stable"


def test_patterns_follow_the_topics() -> None:
    bench = Bench(a=2, b=2)
    bench.beat("m1", topics=None, pattern="a|b", resolved=frozenset({"a"}))
    assert bench.partitions("m1") == {A: {0, 1}}
    bench.feed(PatternsResolved({"a|b": frozenset({"a", "b"}), "unused": frozenset({"a"})}, 7))
    assert bench.consumer.patterns == {"a|b": frozenset({"a", "b"})} and bench.consumer.patterns_version == 7
    bench.settle("m1")
    assert bench.partitions("m1") == {A: {0, 1}, B: {0, 1}}
    assert bench.reloaded().patterns == bench.consumer.patterns  # type: ignore[union-attr]
    bench.beat("m2", topics=None, pattern="a|b")  # Known already: nobody has to look.
    bench.beat("m1", -1)
    bench.beat("m2", -1)
    assert bench.consumer.patterns == {}


def test_a_group_takes_the_assignor_that_most_members_want() -> None:
    bench = Bench(a=2, b=2)
    for member in ("m1", "m2"):
        bench.beat(member, topics=("a", "b"), assignor="range")
    bench.settle("m1", "m2")
    assert bench.partitions("m1") == {A: {0}, B: {0}} and bench.partitions("m2") == {A: {1}, B: {1}}


def test_no_more_members_than_allowed() -> None:
    bench = Bench(GroupConfig(consumer_max_size=1))
    bench.beat("m1")
    assert bench.beat("m2").error == E.GROUP_MAX_SIZE_REACHED
    assert bench.beat("m1").error == E.NONE


def test_targets_keep_their_distance() -> None:
    bench = Bench()
    bench.settings = GroupSettings(assignment_interval_ms=1_000)
    bench.beat("m1")
    joined = bench.beat("m2")
    assert (joined.member_epoch, bench.consumer.epoch, bench.consumer.state()) == (2, 3, "Assigning")
    bench.mono_ms += 1_000
    assert bench.beat("m2").member_epoch == 3
    bench.settle("m1", "m2")
    assert bench.consumer.state() == "Stable"


def test_a_refused_append_changes_nothing() -> None:
    bench = Bench()
    bench.refuse_appends = 1
    assert bench.beat("m1").error == E.NOT_COORDINATOR
    assert isinstance(bench.group, classic_state.Group) and not bench.log
    bench.settle("m1", "m2")
    before = bench.consumer.members["m1"].current
    bench.refuse_appends = 1
    assert bench.beat("m2", -1).error == E.NOT_COORDINATOR
    assert list(bench.consumer.members) == ["m1", "m2"] and bench.consumer.members["m1"].current == before
    bench.refuse_appends = 1
    bench.pass_ms(46_000)
    assert list(bench.consumer.members) == ["m1", "m2"]  # Both are late, but that can't be stored.
    bench.pass_ms(46_000)
    assert not bench.consumer.members


def test_a_restart_brings_back_what_was_stored() -> None:
    bench = Bench(a=5, b=2)
    bench.beat("m1", topics=("a", "b"), rack_id="r", assignor="uniform")
    bench.beat("s1", instance_id="i", topics=("a",))
    bench.beat("m1", owned={})
    before = bench.consumer
    bench.restart()
    after = bench.consumer
    assert {m.id: (m.facts, m.current) for m in after.members.values()} == {
        m.id: (m.facts, m.current) for m in before.members.values()
    }
    for name in ("epoch", "topics_hash", "target_epoch", "target_timestamp_ms", "target", "owners", "static_members"):
        assert getattr(after, name) == getattr(before, name), name
    for _ in range(4):
        bench.beat("m1", owned=bench.owned["m1"])
        bench.beat("s1", instance_id="i", owned=bench.owned["s1"])
    assert bench.consumer.state() == "Stable"
    bench.pass_ms(46_000)
    assert not bench.consumer.members
    assert bench.feed(Delete(object())) == E.NONE
    assert machine.is_disposable(bench.consumer)
    assert classic_state.is_disposable(bench.reloaded())  # type: ignore[arg-type]


# --- offsets --------------------------------------------------------------------------------------------------
def commit(member: str, epoch: int, *, topic: str = "a", partition: int = 0, **more: Any) -> Commit:
    return Commit(object(), member, None, epoch, {(topic, partition): Committed(7, -1, "", -1)}, **more)


def test_who_may_commit() -> None:
    bench = Bench()
    bench.settle("m1", "m2")
    epoch = bench.epochs["m1"]
    (mine, *_) = bench.partitions("m1")[A]
    (other, *_) = bench.partitions("m2")[A]
    assert bench.feed(commit("m1", epoch, partition=mine)) == {("a", mine): E.NONE}
    assert bench.feed(commit("m1", epoch + 1)) == E.STALE_MEMBER_EPOCH
    assert bench.feed(commit("nobody", epoch)) == E.UNKNOWN_MEMBER_ID
    assert bench.feed(commit("", -1)) == E.UNKNOWN_MEMBER_ID
    assert bench.feed(commit("m1", epoch, knows_epochs=False)) == E.UNSUPPORTED_VERSION
    # At an older epoch: what it has had since then, and nothing else.
    bench.topics.put("a", 6)
    bench.settle("m1", "m2")
    assert bench.epochs["m1"] > epoch
    assert bench.feed(commit("m1", epoch, partition=mine)) == {("a", mine): E.NONE}
    assert bench.feed(commit("m1", epoch, partition=other)) == E.STALE_MEMBER_EPOCH
    assert bench.feed(commit("m1", epoch, topic="x")) == E.STALE_MEMBER_EPOCH
    new = max(bench.partitions("m1")[A])
    assert new >= 4 and bench.feed(commit("m1", epoch, partition=new)) == E.STALE_MEMBER_EPOCH
    for knows_epochs, error in ((True, E.STALE_MEMBER_EPOCH), (False, E.ILLEGAL_GENERATION)):
        stale = commit("m1", epoch + 9, producer_id=5, producer_epoch=0, knows_epochs=knows_epochs)
        assert bench.feed(stale) == error
    assert bench.feed(commit("", -1, producer_id=5, producer_epoch=0)) == {("a", 0): E.NONE}
    assert bench.consumer.offsets.is_unstable(("a", 0))


def test_who_may_fetch() -> None:
    bench = Bench()
    bench.settle("m1")
    epoch = bench.epochs["m1"]
    assert commits.fetch_refused(bench.consumer, None, -1) == E.NONE
    assert commits.fetch_refused(bench.consumer, "m1", epoch) == E.NONE
    assert commits.fetch_refused(bench.consumer, "m1", epoch - 1) == E.STALE_MEMBER_EPOCH
    assert commits.fetch_refused(bench.consumer, "nobody", epoch) == E.UNKNOWN_MEMBER_ID


def test_offsets_of_subscribed_topics_stay() -> None:
    bench = Bench(GroupConfig(offsets_retention_ms=1_000), a=1, b=1)
    bench.settle("m1")
    epoch = bench.epochs["m1"]
    bench.feed(commit("m1", epoch))
    bench.feed(commit("m1", epoch, topic="b"))
    assert bench.feed(DeleteOffsets(object(), [("a", 0)])) == {("a", 0): E.GROUP_SUBSCRIBED_TO_TOPIC}
    assert bench.feed(Delete(object())) == E.NON_EMPTY_GROUP
    bench.mono_ms += 2_000
    bench.feed(Expire())
    assert set(bench.consumer.offsets.committed) == {("a", 0)}
    bench.beat("m1", -1)
    bench.feed(Expire())
    assert set(bench.consumer.offsets.committed) == {("a", 0)}, "it counts from when the last member left"
    bench.mono_ms += 2_000
    bench.feed(Expire())
    assert bench.consumer.dead and machine.is_disposable(bench.consumer)
    assert classic_state.is_disposable(bench.reloaded())  # type: ignore[arg-type]


# --- conversions ----------------------------------------------------------------------------------------------
def subscription(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    parts = [
        ConsumerProtocolSubscription.TopicPartition(topic=name, partitions=indexes) for name, indexes in (owned or {}).items()
    ]
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics), owned_partitions=parts), 1)


def assignment(**partitions: list[int]) -> bytes:
    parts = [ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=indexes) for name, indexes in partitions.items()]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=parts), 1)


def assigned(data: bytes) -> dict[str, set[int]]:
    version, rest = decode_version(data)
    message = ConsumerProtocolAssignment.decode(rest, version)
    return {part.topic: set(part.partitions) for part in message.assigned_partitions}


def join(member: str = "", fresh: str = "new", **changes: Any) -> classic_events.Join:
    given: dict[str, Any] = {
        "token": object(),
        "member_id": member,
        "fresh_member_id": fresh,
        "instance_id": None,
        "require_known_member": False,
        "can_skip_assignment": False,
        "client_id": "c",
        "client_host": "/h",
        "rebalance_timeout_ms": 20_000,
        "session_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": (("range", subscription("a")),),
    }
    return classic_events.Join(**{**given, **changes})


def classic_group(bench: Bench) -> str:
    """A stable classic group of one member; its id."""
    event = join(fresh="c1")
    bench.feed(event)
    bench.pass_ms(3_000)
    joined = bench.answers.pop(event.token)
    sync = classic_events.Sync(object(), "c1", None, joined.generation, "consumer", "range", {"c1": assignment(a=[0, 1, 2, 3])})
    assert bench.feed(sync).error == E.NONE
    return "c1"


def test_an_empty_group_takes_the_protocol_of_its_next_member() -> None:
    bench = Bench()
    bench.feed(commit("", -1))
    assert isinstance(bench.group, classic_state.Group)
    bench.settle("m1")
    assert bench.consumer.offsets.committed[("a", 0)].offset == 7
    bench.beat("m1", -1)
    assert bench.consumer.state() == "Empty"
    event = join(fresh="c1")
    bench.feed(event)
    assert isinstance(bench.group, classic_state.Group)
    assert bench.group.offsets.committed[("a", 0)].offset == 7
    reloaded = bench.reloaded()
    assert isinstance(reloaded, classic_state.Group) and ("a", 0) in reloaded.offsets.committed
    bench.pass_ms(3_000)
    assert bench.answers.pop(event.token).error == E.NONE


def test_a_group_moves_over_member_by_member_and_back() -> None:
    bench = Bench()
    classic_group(bench)
    bench.feed(commit("c1", 1))
    bench.beat("m1")
    assert bench.consumer.members["c1"].facts.classic is not None
    assert ("a", 0) in bench.consumer.offsets.committed
    reloaded = bench.reloaded()
    assert isinstance(reloaded, ConsumerGroup) and set(reloaded.members) == {"c1", "m1"}
    # The classic member is told to join again, and gives back what is to move.
    beat = classic_events.Heartbeat(object(), "c1", None, 1)
    assert bench.feed(beat) == E.REBALANCE_IN_PROGRESS
    owned = {"a": [0, 1, 2, 3]}
    joined = bench.feed(join("c1", protocols=(("range", subscription("a", owned=owned)),)))
    assert (joined.error, joined.generation, joined.members, joined.leader) == (E.NONE, 1, (), "")
    keeps = assigned(bench.feed(classic_events.Sync(object(), "c1", None, 1, "consumer", "range", {})).assignment)
    assert len(keeps["a"]) == 2
    joined = bench.feed(join("c1", protocols=(("range", subscription("a", owned={"a": sorted(keeps["a"])})),)))
    assert joined.generation == 2
    synced = bench.feed(classic_events.Sync(object(), "c1", None, 2, "consumer", "range", {}))
    assert synced.error == E.NONE
    bench.settle("m1")
    assert bench.partitions("m1")[A] | assigned(synced.assignment)["a"] == {0, 1, 2, 3}
    assert bench.feed(classic_events.Heartbeat(object(), "c1", None, 2)) == E.NONE
    # The last member of KIP-848 goes: a classic group again, which rebalances.
    bench.beat("m1", -1)
    assert isinstance(bench.group, classic_state.Group)
    assert bench.group.state is classic_state.GroupState.PREPARING_REBALANCE and list(bench.group.members) == ["c1"]
    assert ("a", 0) in bench.group.offsets.committed
    assert bench.feed(classic_events.Heartbeat(object(), "c1", None, bench.group.generation)) == E.REBALANCE_IN_PROGRESS
    after = bench.reloaded()
    assert isinstance(after, classic_state.Group) and list(after.members) == ["c1"]


def test_a_classic_member_that_does_not_join_again_is_taken_out() -> None:
    bench = Bench(GroupConfig(migration=MigrationPolicy.UPGRADE))
    classic_group(bench)
    bench.beat("m1")
    bench.feed(classic_events.Heartbeat(object(), "c1", None, 1))
    for _ in range(3):
        bench.pass_ms(7_000)
        bench.feed(classic_events.Heartbeat(object(), "c1", None, 1))
        bench.beat("m1")
    assert list(bench.consumer.members) == ["m1"]


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [
        (MigrationPolicy.DISABLED, False, False),
        (MigrationPolicy.UPGRADE, True, False),
        (MigrationPolicy.DOWNGRADE, False, True),
    ],
)
def test_the_migration_policy_holds(policy: MigrationPolicy, upgrades: bool, downgrades: bool) -> None:
    bench = Bench(GroupConfig(migration=policy))
    classic_group(bench)
    assert (bench.beat("m1").error == E.NONE) is upgrades
    if not upgrades:
        assert bench.beat("m1").error == E.GROUP_ID_NOT_FOUND
    bench = Bench(GroupConfig(migration=policy))
    bench.settle("m1")
    joined = bench.feed(join(fresh="c1"))
    if policy is MigrationPolicy.DISABLED:
        assert joined.error == E.INCONSISTENT_GROUP_PROTOCOL
        return
    assert joined.error == E.NONE
    bench.beat("m1", -1)
    assert isinstance(bench.group, classic_state.Group) is downgrades


def test_groups_of_other_protocols_and_custom_assignors_stay_as_they_are() -> None:
    bench = Bench()
    event = join(fresh="c1", protocol_type="connect")
    bench.feed(event)
    bench.pass_ms(3_000)
    assert bench.beat("m1").error == E.GROUP_ID_NOT_FOUND
    bench = Bench()
    event = join(fresh="c1", protocols=(("own", b"\x00"),))
    bench.feed(event)
    bench.pass_ms(3_000)
    assert "malformed" in (bench.beat("m1").message or "")


def test_a_static_member_may_change_its_protocol_both_ways() -> None:
    bench = Bench()
    bench.settle("x")
    bench.beat("s1", instance_id="i")
    joined = bench.feed(join(fresh="c1", instance_id="i"))
    assert joined.error == E.NONE and bench.consumer.static_members == {"i": "c1"}
    assert bench.beat("s2", instance_id="i").error == E.NONE
    assert bench.consumer.members["s2"].facts.classic is None
    bench.beat("x", -1)
    joined = bench.feed(join(fresh="c2", instance_id="i"))
    assert joined.error == E.NONE and isinstance(bench.group, classic_state.Group)
    assert list(bench.group.members) == ["c2"]
    assert bench.reloaded().members.keys() == {"c2"}


def test_refused_requests_of_classic_members() -> None:
    bench = Bench()
    bench.settle("m1")
    known = bench.feed(join(fresh="c1", require_known_member=True))
    assert (known.error, known.member_id) == (E.MEMBER_ID_REQUIRED, "c1")
    assert bench.feed(join("c1", session_timeout_ms=1)).error == E.INVALID_SESSION_TIMEOUT
    assert bench.feed(join("c1", protocol_type="connect")).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert bench.feed(join("c1", protocols=(("range", b"x"),))).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert bench.feed(join("c1")).error == E.NONE
    assert bench.feed(classic_events.Sync(object(), "c1", None, 99, None, None, {})).error == E.ILLEGAL_GENERATION
    assert bench.feed(classic_events.Sync(object(), "m1", None, 1, None, None, {})).error == E.UNKNOWN_MEMBER_ID
    epoch = bench.consumer.members["c1"].current.epoch
    assert bench.feed(classic_events.Sync(object(), "c1", None, epoch, "connect", None, {})).error == (
        E.INCONSISTENT_GROUP_PROTOCOL
    )
    assert bench.feed(classic_events.Heartbeat(object(), "c1", None, 99)) == E.ILLEGAL_GENERATION
    assert bench.feed(classic_events.Leave(object(), [("nobody", None), ("c1", None)])) == (
        E.NONE,
        [E.UNKNOWN_MEMBER_ID, E.NONE],
    )
    assert list(bench.consumer.members) == ["m1"]


# --- records --------------------------------------------------------------------------------------------------
def test_records_of_kafka_before_4_3_have_no_epochs_beside_partitions() -> None:
    value = struct.pack(">hiibB", 0, 9, 8, 0, 2) + A + b"\x02" + struct.pack(">i", 3) + b"\x00\x01\x00"
    key = struct.pack(">hh", 8, 1) + b"g" + struct.pack(">h", 1) + b"m"
    name, record = records.decode(key, value)
    assert name == "g" and record.value.assigned == {A: {3: 9}}  # type: ignore[union-attr]


def test_every_record_comes_back_as_it_was() -> None:
    bench = Bench(a=2, b=3)
    bench.beat("m1", topics=None, pattern="a.*", resolved=frozenset({"a"}), rack_id="r")
    bench.feed(join(fresh="c1", instance_id="i"))
    bench.beat("m1", -1)
    kinds = set()
    for key, value in bench.log:
        loaded = decode_group_record(key, value, 0)
        assert loaded is not None
        if not isinstance(loaded.record, classic_state.GroupRecord | OffsetRecord):
            kinds.add(type(loaded.record))
            assert records.encode("g", loaded.record) == (key, value)  # type: ignore[arg-type]
    assert len(kinds) == 6
