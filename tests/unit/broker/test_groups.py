"""The group machine: Kafka's answers, step by step, on a clock of the test's own."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.broker.configs.groupconfig import GroupConfig
from penstock.broker.coordination.classicgroups import joining as classic_joining
from penstock.broker.coordination.classicgroups import machine as classic_machine
from penstock.broker.coordination.classicgroups import state as classic_state
from penstock.broker.coordination.classicgroups.events import Heartbeat, Join, JoinResult, Leave, Sync, SyncResult
from penstock.broker.coordination.classicgroups.state import Group, GroupRecord, GroupState
from penstock.broker.coordination.groupoffsets import Commit, Delete, DeleteOffsets, Expire, Marker, TopicDeleted
from penstock.broker.coordination.machines import NEVER
from penstock.broker.coordination.offsets import Committed, OffsetRecord
from penstock.errors import ErrorCode as E
from support.machine_bench import MachineBench

RANGE = (("range", b"r"),)
SESSION_MS, REBALANCE_MS = 10_000, 60_000


def subscription(*topics: str) -> bytes:
    """A ConsumerProtocolSubscription of version 0."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


class Bench(MachineBench):
    """A group."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.group = Group("g", GroupConfig(**{"initial_rebalance_delay_ms": 0} | config))

    @property
    def wake_at_ms(self) -> int:
        return self.group.wake_at_ms

    def step(self, event: object) -> Sequence[Any]:
        return classic_machine.step(self.group, event, self.now)[1]

    def join(self, member_id: str = "", fresh: str = "", instance: str | None = None, **given: Any) -> int:
        event = Join(
            token=self.token(),
            member_id=member_id,
            fresh_member_id=fresh,
            instance_id=instance,
            require_known_member=given.get("require_known", False),
            can_skip_assignment=given.get("can_skip", False),
            client_id="client",
            client_host="/127.0.0.1",
            rebalance_timeout_ms=given.get("rebalance_ms", REBALANCE_MS),
            session_timeout_ms=given.get("session_ms", SESSION_MS),
            protocol_type=given.get("kind", "consumer"),
            protocols=given.get("protocols", RANGE),
        )
        self.feed(event)
        return self.tokens

    def joined(self, *args: Any, **given: Any) -> JoinResult:
        result = self.replies[self.join(*args, **given)]
        assert isinstance(result, JoinResult)
        return result

    def sync(self, member_id: str, generation: int, parts: dict[str, bytes] | None = None, **given: Any) -> int:
        instance = given.get("instance")
        self.feed(Sync(self.token(), member_id, instance, generation, None, None, parts or {}))
        return self.tokens

    def synced(self, *args: Any, **given: Any) -> SyncResult:
        result = self.replies[self.sync(*args, **given)]
        assert isinstance(result, SyncResult)
        return result

    def beat(self, member_id: str, generation: int, instance: str | None = None) -> int:
        return int(self.ask(Heartbeat(None, member_id, instance, generation)))

    def commit(self, partition: int, offset: int, member_id: str = "", generation: int = -1, **given: Any) -> Any:
        commits = {("t", partition): Committed(offset, -1, given.pop("metadata", ""), -1)}
        return self.ask(Commit(None, member_id, given.pop("instance", None), generation, commits, **given))

    def committed(self, partition: int) -> int | None:
        value = self.group.offsets.committed.get(("t", partition))
        return None if value is None else value.offset

    def stable(self, *members: str, **given: Any) -> None:
        """Bring the group to a stable generation of these members, `m` leading."""
        tokens = {member: self.join(fresh=member, **given) for member in members}
        first = next(iter(members))
        if len(members) > 1:
            rejoin = self.join(first, **given)
            tokens[first] = rejoin
        generation = self.replies[tokens[first]].generation
        for member in members[1:]:
            self.sync(member, generation)
        self.sync(first, generation, {member: member.encode() for member in members})
        assert self.group.state is GroupState.STABLE

    def reloaded(self) -> Group:
        """A group made from the log alone."""
        group = Group("g", self.group.config)
        for offset, record in enumerate(self.log):
            assert isinstance(record, OffsetRecord | GroupRecord)
            classic_machine.load(group, record, offset)
        classic_machine.loaded(group, self.now)
        return group


def test_one_member_becomes_leader_and_gets_its_own_assignment() -> None:
    bench = Bench()
    result = bench.joined(fresh="m")
    assert (result.error, result.generation, result.leader, result.member_id) == (E.NONE, 1, "m", "m")
    assert result.protocol == "range" and result.members == [("m", None, b"r")]
    assert bench.group.state is GroupState.COMPLETING_REBALANCE
    synced = bench.synced("m", 1, {"m": b"all"})
    assert (synced.error, synced.assignment, synced.protocol) == (E.NONE, b"all", "range")
    assert bench.group.state is GroupState.STABLE  # type: ignore[comparison-overlap]  # no longer as above
    assert bench.beat("m", 1) == E.NONE


def test_a_new_dynamic_member_needs_a_known_id_first() -> None:
    bench = Bench()
    result = bench.joined(fresh="m", require_known=True)
    assert (result.error, result.member_id) == (E.MEMBER_ID_REQUIRED, "m")
    assert not bench.group.members
    assert bench.beat("m", 0) == E.UNKNOWN_MEMBER_ID
    assert bench.joined("m").error == E.NONE


def test_an_unused_member_id_ends_with_its_session_and_leaves_nothing() -> None:
    bench = Bench()
    bench.joined(fresh="m", require_known=True)
    assert not classic_state.is_disposable(bench.group)
    bench.pass_ms(SESSION_MS)
    assert classic_state.is_disposable(bench.group)
    assert bench.joined("m").error == E.UNKNOWN_MEMBER_ID


def test_the_initial_delay_gathers_members_and_is_extended_by_new_ones() -> None:
    bench = Bench(initial_rebalance_delay_ms=3_000)
    first = bench.join(fresh="a")
    bench.pass_ms(2_000)
    second = bench.join(fresh="b")
    bench.pass_ms(1_500)
    assert first not in bench.replies, "b came, so the group waits another delay"
    bench.pass_ms(2_500)
    assert bench.replies[first].generation == bench.replies[second].generation == 1
    assert [member for member, _, _ in bench.replies[first].members] == ["a", "b"]
    assert not bench.replies[second].members


def test_the_initial_delay_never_exceeds_the_rebalance_timeout() -> None:
    bench = Bench(initial_rebalance_delay_ms=3_000)
    first = bench.join(fresh="m0", rebalance_ms=5_000)
    for number in range(1, 20):
        if first in bench.replies:
            break
        bench.pass_ms(1_000)
        bench.join(fresh=f"m{number}", rebalance_ms=5_000)
    assert first in bench.replies
    assert bench.mono_ms <= 1_000 + 6_000


def test_a_second_member_makes_the_first_rejoin() -> None:
    bench = Bench()
    bench.stable("a")
    second = bench.join(fresh="b")
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert bench.beat("a", 1) == E.REBALANCE_IN_PROGRESS
    assert bench.synced("a", 1).error == E.REBALANCE_IN_PROGRESS
    leader = bench.joined("a")
    assert leader.generation == 2 and len(leader.members) == 2
    assert not bench.replies[second].members and bench.replies[second].leader == "a"
    waiting = bench.sync("b", 2)
    assert waiting not in bench.replies
    bench.sync("a", 2, {"a": b"1", "b": b"2"})
    assert bench.replies[waiting].assignment == b"2"


def test_a_member_that_does_not_rejoin_in_time_is_dropped() -> None:
    bench = Bench()
    bench.stable("a", session_ms=REBALANCE_MS * 2)
    second = bench.join(fresh="b", session_ms=REBALANCE_MS * 2)
    bench.pass_ms(REBALANCE_MS)
    assert bench.replies[second].leader == "b"
    assert set(bench.group.members) == {"b"}
    assert bench.beat("a", 1) == E.UNKNOWN_MEMBER_ID


def test_a_silent_member_loses_its_session() -> None:
    bench = Bench()
    bench.stable("a", "b")
    generation = bench.group.generation
    for _ in range(3):
        bench.pass_ms(SESSION_MS // 2)
        bench.beat("a", generation)
    assert set(bench.group.members) == {"a"}
    assert bench.joined("a").generation == generation + 1


def test_members_that_wait_for_an_answer_are_not_silent() -> None:
    bench = Bench()
    bench.stable("a", rebalance_ms=SESSION_MS * 5)
    second = bench.join(fresh="b")
    for _ in range(6):  # Far beyond b's session; a keeps the group waiting with heartbeats alone.
        bench.pass_ms(SESSION_MS // 2)
        assert bench.beat("a", 1) == E.REBALANCE_IN_PROGRESS
    assert second not in bench.replies and "b" in bench.group.members


def test_members_that_never_sync_are_dropped() -> None:
    bench = Bench()
    a, b = bench.join(fresh="a"), bench.join(fresh="b")
    rejoined = bench.joined("a")
    waiting = bench.sync("b", rejoined.generation)
    for _ in range(REBALANCE_MS // 5_000):
        bench.pass_ms(5_000)
        bench.beat("a", rejoined.generation)
    assert bench.replies[waiting].error == E.REBALANCE_IN_PROGRESS
    assert set(bench.group.members) == {"b"}
    assert {a, b} <= set(bench.replies)


def test_wrong_generation_and_unknown_members_are_told_so() -> None:
    bench = Bench()
    bench.stable("a")
    assert bench.beat("a", 7) == E.ILLEGAL_GENERATION
    assert bench.beat("x", 1) == E.UNKNOWN_MEMBER_ID
    assert bench.synced("a", 0).error == E.ILLEGAL_GENERATION
    assert bench.synced("x", 1).error == E.UNKNOWN_MEMBER_ID
    assert bench.joined("x").error == E.UNKNOWN_MEMBER_ID
    assert bench.commit(0, 5, "a", 0) == E.ILLEGAL_GENERATION
    assert bench.commit(0, 5, "x", 1) == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"session_ms": 1}, E.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1 << 30}, E.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"kind": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("range", bytes(classic_joining.MEMBER_METADATA_MAX_BYTES + 1)),)}, E.INVALID_REQUEST),
    ],
)
def test_joins_that_are_refused(given: dict[str, Any], error: int) -> None:
    bench = Bench()
    assert bench.joined(fresh="m", **given).error == error
    assert classic_state.is_disposable(bench.group)


def test_protocols_have_to_have_one_in_common() -> None:
    bench = Bench()
    bench.stable("a")
    assert bench.joined(fresh="b", kind="connect").error == E.INCONSISTENT_GROUP_PROTOCOL
    assert bench.joined(fresh="b", protocols=(("other", b""),)).error == E.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_with_most_votes_wins() -> None:
    bench = Bench(initial_rebalance_delay_ms=10)
    both = (("range", b""), ("sticky", b""))
    tokens = [
        bench.join(fresh="a", protocols=both),
        bench.join(fresh="b", protocols=both[::-1]),
        bench.join(fresh="c", protocols=both[::-1]),
    ]
    bench.pass_ms(20)
    assert {bench.replies[token].protocol for token in tokens} == {"sticky"}


def test_group_max_size() -> None:
    bench = Bench(max_size=2)
    bench.stable("a", "b")
    assert bench.joined(fresh="c").error == E.GROUP_MAX_SIZE_REACHED
    assert set(bench.group.members) == {"a", "b"}


def test_a_follower_that_rejoins_unchanged_gets_the_same_generation() -> None:
    bench = Bench()
    bench.stable("a", "b")
    generation = bench.group.generation
    again = bench.joined("b")
    assert (again.error, again.generation) == (E.NONE, generation)
    assert bench.group.state is GroupState.STABLE
    bench.join("a")  # The leader's rejoin is how it asks for a rebalance.
    assert bench.group.state is GroupState.PREPARING_REBALANCE  # type: ignore[comparison-overlap]  # no longer as above


def test_leaving_rebalances_the_rest_and_empties_the_group() -> None:
    bench = Bench()
    bench.stable("a", "b")
    assert bench.ask(Leave(None, [("b", None), ("x", None)])) == (E.NONE, [E.NONE, E.UNKNOWN_MEMBER_ID])
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert bench.ask(Leave(None, [("a", None)])) == (E.NONE, [E.NONE])
    assert bench.group.state is GroupState.EMPTY  # type: ignore[comparison-overlap]  # no longer as above
    record = bench.log[-1]
    assert isinstance(record, GroupRecord) and record.value is not None and record.value.members == ()


# --- static members -----------------------------------------------------------------------------------------


def test_a_static_member_returns_without_a_rebalance() -> None:
    bench = Bench()
    bench.stable("a", "b")
    bench.join(fresh="s1", instance="i")
    for member in ("a", "b"):
        bench.join(member)
    generation = bench.group.generation
    for member in ("b", "s1"):
        bench.sync(member, generation, instance="i" if member == "s1" else None)
    bench.sync("a", generation, {"s1": b"mine"})
    back = bench.joined(fresh="s2", instance="i")
    assert (back.error, back.generation, back.member_id) == (E.NONE, generation, "s2")
    assert bench.group.state is GroupState.STABLE
    assert bench.synced("s2", generation, instance="i").assignment == b"mine"
    assert bench.beat("s1", generation, "i") == E.FENCED_INSTANCE_ID
    assert bench.joined("s1", instance="i").error == E.FENCED_INSTANCE_ID
    assert bench.commit(0, 1, "s1", generation, instance="i") == E.FENCED_INSTANCE_ID
    assert "s2" in bench.reloaded().members


def test_a_static_leader_returns_and_only_new_clients_hear_that_they_lead() -> None:
    bench = Bench()
    bench.stable("s1", instance="i")
    old = bench.joined(fresh="s2", instance="i")
    assert (old.leader, old.members) == ("s1", ())
    new = bench.joined(fresh="s3", instance="i", can_skip=True)
    assert (new.leader, new.skip_assignment, len(new.members)) == ("s3", True, 1)


def test_a_static_member_that_waits_is_fenced_by_its_newer_self() -> None:
    bench = Bench()
    bench.stable("a")
    first = bench.join(fresh="s1", instance="i")
    second = bench.join(fresh="s2", instance="i")
    assert bench.replies[first].error == E.FENCED_INSTANCE_ID
    bench.join("a")
    assert bench.replies[second].error == E.NONE


def test_static_members_are_removed_by_instance_id() -> None:
    bench = Bench()
    bench.stable("s1", instance="i")
    assert bench.ask(Leave(None, [("", "i"), ("", "j")])) == (E.NONE, [E.NONE, E.UNKNOWN_MEMBER_ID])
    assert bench.group.state is GroupState.EMPTY


def test_a_static_swap_that_cannot_be_stored_changes_nothing() -> None:
    bench = Bench()
    bench.stable("s1", instance="i")
    bench.refuse = E.NOT_LEADER_OR_FOLLOWER
    assert bench.joined(fresh="s2", instance="i").error == E.NOT_COORDINATOR
    assert set(bench.group.members) == {"s1"} and bench.group.static_members == {"i": "s1"}


# --- durability ---------------------------------------------------------------------------------------------


def test_nobody_gets_an_assignment_before_it_is_stored() -> None:
    bench = Bench()
    bench.joined(fresh="m")
    bench.hold = True
    waiting = bench.sync("m", 1, {"m": b"part"})
    assert waiting not in bench.replies and bench.group.state is GroupState.COMPLETING_REBALANCE
    bench.release()
    assert bench.replies[waiting].assignment == b"part"


def test_an_assignment_that_cannot_be_stored_starts_another_rebalance() -> None:
    bench = Bench()
    bench.joined(fresh="m")
    bench.refuse = E.NOT_ENOUGH_REPLICAS
    assert bench.synced("m", 1, {"m": b"part"}).error == E.COORDINATOR_NOT_AVAILABLE
    assert bench.group.state is GroupState.PREPARING_REBALANCE


def test_a_rebalance_while_the_assignment_is_stored_wins() -> None:
    bench = Bench()
    bench.joined(fresh="m")
    bench.hold = True
    waiting = bench.sync("m", 1, {"m": b"part"})
    bench.join(fresh="n")
    assert bench.replies[waiting].error == E.REBALANCE_IN_PROGRESS
    bench.release()
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert bench.joined("m").generation == 2


def test_a_stable_group_is_the_same_after_a_restart() -> None:
    bench = Bench()
    bench.stable("a", "b")
    generation = bench.group.generation
    assert bench.commit(3, 42, "a", generation) == {("t", 3): E.NONE}
    bench.group = bench.reloaded()
    assert bench.group.state is GroupState.STABLE
    assert bench.beat("b", generation) == E.NONE
    assert bench.synced("b", generation).assignment == b"b"
    assert bench.committed(3) == 42
    bench.pass_ms(SESSION_MS)
    assert not bench.group.members, "nobody showed itself after the restart"


# --- offsets ------------------------------------------------------------------------------------------------


def test_simple_consumers_commit_to_empty_groups_only() -> None:
    bench = Bench()
    assert bench.commit(0, 5) == {("t", 0): E.NONE}
    assert bench.committed(0) == 5
    bench.stable("a")
    assert bench.commit(0, 6) == E.UNKNOWN_MEMBER_ID
    assert bench.committed(0) == 5


def test_a_commit_is_visible_and_answered_when_it_is_stored() -> None:
    bench = Bench()
    bench.hold = True
    event = Commit(99, "", None, -1, {("t", 0): Committed(5, -1, "", -1)})
    bench.feed(event)
    assert 99 not in bench.replies and bench.committed(0) is None
    bench.release()
    assert bench.replies[99] == {("t", 0): E.NONE} and bench.committed(0) == 5


def test_a_commit_that_is_not_stored_is_an_error_and_invisible() -> None:
    bench = Bench()
    bench.refuse = E.MESSAGE_TOO_LARGE
    assert bench.commit(0, 5) == {("t", 0): E.INVALID_COMMIT_OFFSET_SIZE}
    assert bench.committed(0) is None and bench.group.offsets.is_empty()


def test_no_commits_while_the_assignment_is_made() -> None:
    bench = Bench()
    bench.joined(fresh="m")
    assert bench.commit(0, 5, "m", 1) == E.REBALANCE_IN_PROGRESS
    bench.sync("m", 1)
    bench.join(fresh="n")
    assert bench.commit(0, 5, "m", 1) == {("t", 0): E.NONE}, "still allowed before its members rejoin"


def test_metadata_too_large_spoils_only_its_partition() -> None:
    bench = Bench()
    commits = {("t", 0): Committed(1, -1, "é" * 2049, -1), ("t", 1): Committed(2, -1, "é" * 2048, -1)}
    results = bench.ask(Commit(None, "", None, -1, commits))
    assert results == {("t", 0): E.OFFSET_METADATA_TOO_LARGE, ("t", 1): E.NONE}
    assert bench.committed(0) is None and bench.committed(1) == 2


@pytest.mark.parametrize("commit", [True, False])
def test_transactional_offsets_wait_for_the_marker(commit: bool) -> None:
    bench = Bench()
    bench.commit(0, 1)
    assert bench.commit(0, 9, producer_id=7, producer_epoch=0) == {("t", 0): E.NONE}
    assert bench.committed(0) == 1 and bench.group.offsets.is_unstable(("t", 0))
    bench.feed(Marker(7, commit))
    assert bench.committed(0) == (9 if commit else 1)
    assert not bench.group.offsets.is_unstable(("t", 0)) and not bench.group.offsets.transactional


def test_a_newer_plain_commit_outlives_an_older_transactional_one() -> None:
    bench = Bench()
    bench.commit(0, 9, producer_id=7, producer_epoch=0)
    bench.commit(0, 20)
    bench.feed(Marker(7, True))
    assert bench.committed(0) == 20


def test_transactional_commits_of_members_are_fenced_by_generation() -> None:
    bench = Bench()
    bench.stable("a")
    txn: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    assert bench.commit(0, 5, "a", 0, **txn) == E.ILLEGAL_GENERATION
    assert bench.commit(0, 5, "x", 1, **txn) == E.UNKNOWN_MEMBER_ID
    assert bench.commit(0, 5, "a", 1, **txn) == {("t", 0): E.NONE}
    assert bench.commit(0, 5, **txn) == {("t", 0): E.NONE}, "before v3 there are no members in the request"


def test_deleting_a_group() -> None:
    bench = Bench()
    bench.stable("a")
    bench.commit(0, 5, "a", 1)
    assert bench.ask(Delete(None)) == E.NON_EMPTY_GROUP
    bench.ask(Leave(None, [("a", None)]))
    assert bench.ask(Delete(None)) == E.NONE
    assert classic_state.is_disposable(bench.group)
    assert classic_state.is_disposable(bench.reloaded())


def test_a_deleted_groups_open_transaction_does_not_bring_offsets_back() -> None:
    bench = Bench()
    bench.commit(0, 9, producer_id=7, producer_epoch=0)
    assert bench.ask(Delete(None)) == E.NONE
    group = bench.reloaded()  # (Loads without producer ids; the tombstone comes last in the log either way.)
    group.offsets.end_transaction(7, True)
    assert not group.offsets.committed


def test_deleting_offsets_spares_subscribed_topics() -> None:
    bench = Bench()
    bench.stable("a", protocols=(("range", subscription("t")),))
    bench.commit(0, 5, "a", 1)
    everything = [("t", 0), ("u", 0)]
    expected = {("t", 0): E.GROUP_SUBSCRIBED_TO_TOPIC, ("u", 0): E.NONE}
    assert bench.ask(DeleteOffsets(None, everything)) == expected
    bench.ask(Leave(None, [("a", None)]))
    assert bench.ask(DeleteOffsets(None, everything)) == dict.fromkeys(everything, E.NONE)
    assert bench.committed(0) is None and not bench.reloaded().offsets.committed


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    bench = Bench()
    bench.commit(0, 5)
    bench.feed(TopicDeleted("t"))
    assert bench.committed(0) is None and not bench.reloaded().offsets.committed


def test_offsets_of_simple_consumers_expire_by_commit_time() -> None:
    bench = Bench(offsets_retention_ms=1_000)
    bench.commit(0, 5)
    bench.pass_ms(600)
    bench.commit(1, 6)
    bench.pass_ms(600)
    bench.feed(Expire())
    assert bench.committed(0) is None and bench.committed(1) == 6
    bench.pass_ms(600)
    bench.feed(Expire())
    assert bench.group.state is GroupState.DEAD and classic_state.is_disposable(bench.group)


def test_retention_of_a_consumer_group_starts_when_it_becomes_empty() -> None:
    bench = Bench(offsets_retention_ms=1_000)
    bench.stable("a", protocols=(("range", subscription("t")),))
    bench.commit(0, 5, "a", 1)
    bench.pass_ms(2_000)
    bench.feed(Expire())
    assert bench.committed(0) == 5, "subscribed"
    bench.ask(Leave(None, [("a", None)]))
    bench.pass_ms(900)
    bench.feed(Expire())
    assert bench.committed(0) == 5
    bench.pass_ms(100)
    bench.feed(Expire())
    assert bench.group.state is GroupState.DEAD
    assert classic_state.is_disposable(bench.reloaded())


def test_a_clients_own_retention_counts_from_its_commit() -> None:
    bench = Bench(offsets_retention_ms=1_000_000)
    bench.commit(0, 5, retention_ms=500)
    bench.pass_ms(499)
    bench.feed(Expire())
    assert bench.committed(0) == 5
    bench.pass_ms(1)
    bench.feed(Expire())
    assert bench.committed(0) is None


@pytest.mark.parametrize(
    "metadata",
    [b"", b"\0", b"\0\0\xff\xff\xff\xff", b"\0\0\0\0\0\x05\0\1a", b"\0\0\0\0\0\1\xff\xff", b"\0\0\0\0\0\1\0\2\xff\xfe"],
)
def test_corrupt_subscriptions_are_no_subscriptions(metadata: bytes) -> None:
    assert classic_state.subscription_topics(metadata) is None


def test_subscriptions_are_read() -> None:
    assert classic_state.subscription_topics(subscription("a", "b")) == ["a", "b"]


def test_a_group_at_rest_wants_no_wake_up() -> None:
    bench = Bench()
    bench.commit(0, 1)
    assert bench.group.wake_at_ms == NEVER
