"""The model of admin work judged: a lawful look has no anomaly, each planted one is found, and what is lawful isn't one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from support.admin_world import FAIL, INFO, OK, Record, Seen, SeenPartition, SeenTopic, Topic, Transaction, World
from support.history import decode

NOW_MS = 1_700_000_000_000.0
A, B, OLD = b"a" * 16, b"b" * 16, b"o" * 16


@dataclass
class Scene:
    """A world with what its broker shows; `topic` has two partitions, `compacted` and `aging` one."""

    world: World = field(default_factory=World)
    seen: Seen = field(default_factory=lambda: Seen(NOW_MS))

    def __post_init__(self) -> None:
        self.old = self.make("old", OLD, 1)
        self.old_records = self.send(self.old, 0, 3, at=0)
        self.commit("g", self.old, 5, OK, show=False)
        self.stale = self.commit("g", self.old, 7, OK, show=False)
        self.world.deleting(self.old)
        self.world.has_deleted(self.old, OK)
        del self.seen.topics["old"]
        self.topic = self.make("topic", A, 2, {"internal.segment.bytes": "5000"})
        self.plain = self.send(self.topic, 0, 10, at=0)
        self.refused = self.send(self.topic, 0, 1, outcome=FAIL)
        self.unknown_there = self.send(self.topic, 0, 1, at=10, outcome=INFO)
        self.unknown_gone = self.send(self.topic, 0, 1, outcome=INFO)
        self.committed = self.transaction("committed", OK, OK, at=0, shown=True)
        self.aborted = self.transaction("aborted", OK, FAIL, at=3, shown=False)
        self.open = self.transaction("open", OK, INFO, at=6, shown=True)
        self.first = self.commit("g", self.topic, 3, OK)
        self.last = self.commit("g", self.topic, 5, OK)
        self.commit("g", self.topic, 6, FAIL, show=False)

    @property
    def one(self) -> SeenPartition:
        return self.seen.topics["topic"].partitions[0]

    @property
    def two(self) -> SeenPartition:
        return self.seen.topics["topic"].partitions[1]

    def make(self, name: str, topic_id: bytes, count: int, configs: dict[str, str] | None = None) -> Topic:
        self.world.creating(name, count, configs or {})
        topic = self.world.created(name, OK, topic_id, NOW_MS - 100_000)
        assert topic is not None
        partitions = [SeenPartition(dirs=["d"]) for _ in range(count)]
        self.seen.topics[name] = SeenTopic(topic_id, partitions, dict(configs or {}))
        return topic

    def send(
        self, topic: Topic, index: int, count: int, *, at: int | None = None, outcome: object = OK,
        whole: Transaction | None = None, shown: bool = True,
    ) -> list[Record]:  # fmt: skip
        """Records that are sent, and show from offset `at` on."""
        made = [self.world.record(topic, index, b"k%d" % (n % 3), NOW_MS - 10_000, whole) for n in range(count)]
        self.world.produced(topic, index, made, outcome, at if outcome is OK else None)  # type: ignore[arg-type]
        if at is not None:
            self.show(topic.name, index, at, made, shown)
        return made

    def show(self, name: str, index: int, at: int, made: list[Record], shown: bool = True) -> None:
        there = self.seen.topics[name].partitions[index]
        for n, record in enumerate(made):
            there.records.append((at + n, record.key, record.value))
            if shown:
                there.committed.add(at + n)
        there.records.sort()
        there.end = there.stable_end = max(there.end, at + len(made))

    def transaction(self, name: str, records: object, end: object, *, at: int, shown: bool) -> Transaction:
        """A transaction of two records in partition 1, and a marker."""
        whole = self.world.begin(name)
        self.send(self.topic, 1, 2, at=at, outcome=records, whole=whole, shown=shown)
        whole.outcome = end  # type: ignore[assignment]
        self.two.end = self.two.stable_end = at + 3
        return whole

    def commit(self, group: str, topic: Topic, offset: int, outcome: object, show: bool = True) -> tuple[int, str]:
        commit = self.world.commit((group, topic.name, 0), topic, offset)
        commit.outcome = outcome  # type: ignore[assignment]
        if show:
            self.seen.groups[group, topic.name, 0] = (offset, commit.metadata)
        return offset, commit.metadata

    def kinds(self) -> list[str]:
        return sorted({anomaly.kind for anomaly in self.world.judge(self.seen)})


def test_a_lawful_look_is_valid_and_so_is_the_same_look_again() -> None:
    scene = Scene()
    assert scene.world.judge(scene.seen) == []
    assert scene.world.judge(scene.seen) == []
    assert scene.open.outcome is OK and scene.unknown_gone[0].outcome is FAIL


def drop(scene: Scene, partition: SeenPartition, *offsets: int) -> None:
    partition.records = [record for record in partition.records if record[0] not in offsets]


def begin_at(partition: SeenPartition, offset: int) -> None:
    partition.log_start = offset
    partition.records = [record for record in partition.records if record[0] >= offset]
    partition.end = partition.stable_end = max(partition.end, offset)


def put(partition: SeenPartition, offset: int, key: bytes | None, value: str) -> None:
    partition.records = sorted([*(one for one in partition.records if one[0] != offset), (offset, key, value)])
    partition.committed.add(offset)
    partition.end = partition.stable_end = max(partition.end, offset + 1)


def recreate_with_old_start(scene: Scene) -> None:
    """A topic that is made again under its name begins where the deleted one began."""
    again = scene.make("old", B, 1)
    scene.send(again, 0, 20, at=0)
    begin_at(scene.seen.topics["old"].partitions[0], 45)


def recreate_empty_with_old_start(scene: Scene) -> None:
    scene.make("old", B, 1)
    begin_at(scene.seen.topics["old"].partitions[0], 45)


def trim_and_forget(scene: Scene) -> None:
    scene.world.trimmed(scene.topic, 0, 4, OK, scene.world.changes["topic"])


def lose_after_trim(scene: Scene) -> None:
    trim_and_forget(scene)
    begin_at(scene.one, 6)


def expire_too_early(scene: Scene) -> None:
    scene.topic.altering("retention.ms", "60000", NOW_MS - 5_000)
    scene.topic.altered("retention.ms", "60000", OK, NOW_MS - 5_000)
    scene.seen.topics["topic"].configs["retention.ms"] = "60000"
    begin_at(scene.one, 5)


def expire_after_retention_was_off(scene: Scene) -> None:
    """Retention was on while no record was old enough."""
    for value, at_ms in (("3000", NOW_MS - 9_000), (None, NOW_MS - 8_000)):
        scene.topic.altering("retention.ms", value, at_ms)
        scene.topic.altered("retention.ms", value, OK, at_ms)
    begin_at(scene.one, 5)


def compact_newest(scene: Scene) -> None:
    scene.topic.compacted = True
    drop(scene, scene.one, 9)
    drop(scene, scene.one, 10)
    scene.unknown_there[0].outcome = FAIL


def compact_for_an_aborted_one(scene: Scene) -> None:
    """A record of an aborted transaction is no newer value of its key."""
    scene.topic.compacted = True
    scene.open.outcome = OK
    scene.transaction("newer", OK, FAIL, at=12, shown=False)
    drop(scene, scene.two, 6, 7)


def duplicate(scene: Scene) -> None:
    put(scene.one, 12, scene.plain[4].key, scene.plain[4].value)


def from_elsewhere(scene: Scene) -> None:
    put(scene.one, 12, b"k0", scene.committed.records[0].value)


def of_a_deleted_topic(scene: Scene) -> None:
    put(scene.one, 12, b"k0", scene.old_records[0].value)


def refused(scene: Scene) -> None:
    put(scene.one, 12, scene.refused[0].key, scene.refused[0].value)


def unknown_comes_late(scene: Scene) -> None:
    """What wasn't there after a kill can't come later."""
    assert scene.world.judge(scene.seen) == []
    put(scene.one, 12, scene.unknown_gone[0].key, scene.unknown_gone[0].value)


def unknown_goes(scene: Scene) -> None:
    """What was there after a kill stays."""
    assert scene.world.judge(scene.seen) == []
    drop(scene, scene.one, 10)


def move_record(scene: Scene) -> None:
    drop(scene, scene.one, 9)
    put(scene.one, 12, scene.plain[9].key, scene.plain[9].value)


def acknowledged_twice(scene: Scene) -> None:
    scene.world.produced(scene.topic, 0, scene.plain[:1], OK, 20)


def hang(scene: Scene) -> None:
    scene.two.stable_end = 6


def tear(scene: Scene) -> None:
    scene.two.committed.discard(7)


def tear_from_its_offset(scene: Scene) -> None:
    whole = scene.transaction("with an offset", OK, INFO, at=9, shown=True)
    commit = scene.world.commit(("h", "topic", 0), scene.topic, 1, whole)
    commit.outcome = OK


def undelete(scene: Scene) -> None:
    scene.seen.topics["old"] = SeenTopic(OLD, [SeenPartition(dirs=["d"])], {})


def lose_topic(scene: Scene) -> None:
    del scene.seen.topics["topic"]
    scene.seen.groups.clear()


def replace_topic(scene: Scene) -> None:
    scene.seen.topics["topic"].topic_id = B


def stale_offset(scene: Scene) -> None:
    scene.make("old", B, 1)
    scene.seen.groups["g", "old", 0] = scene.stale


def forgotten_growth(scene: Scene) -> None:
    scene.world.grown(scene.topic, 3, OK)


def other_growth(scene: Scene) -> None:
    scene.world.grown(scene.topic, 4, INFO)
    scene.seen.topics["topic"].partitions.append(SeenPartition(dirs=["d"]))


def forgotten_config(scene: Scene) -> None:
    scene.topic.altering("segment.ms", "7", NOW_MS)
    scene.topic.altered("segment.ms", "7", OK, NOW_MS)


def refused_config(scene: Scene) -> None:
    scene.topic.altering("segment.ms", "7", NOW_MS)
    scene.topic.altered("segment.ms", "7", FAIL, NOW_MS)
    scene.seen.topics["topic"].configs["segment.ms"] = "7"


def group(shown: Callable[[Scene], tuple[int, str] | None]) -> Callable[[Scene], None]:
    """Let the group show another commit, or none."""

    def plant(scene: Scene) -> None:
        found = shown(scene)
        del scene.seen.groups["g", "topic", 0]
        if found is not None:
            scene.seen.groups["g", "topic", 0] = found

    return plant


def aborted_offset(scene: Scene) -> None:
    whole = scene.transaction("with an offset", OK, FAIL, at=9, shown=False)
    commit = scene.world.commit(("h", "topic", 0), scene.topic, 1, whole)
    commit.outcome = OK
    scene.seen.groups["h", "topic", 0] = (1, commit.metadata)


PLANTS: list[tuple[str, Callable[[Scene], object]]] = [
    ("missing", lambda scene: drop(scene, scene.one, 4)),
    ("missing", lambda scene: drop(scene, scene.one, 9)),
    ("missing", unknown_goes),
    ("missing", compact_newest),
    ("missing", compact_for_an_aborted_one),
    ("missing", lambda scene: scene.one.records.clear()),
    ("hidden", lambda scene: begin_at(scene.one, 5)),
    ("hidden", recreate_with_old_start),
    ("hidden", lose_after_trim),
    ("hidden", expire_too_early),
    ("hidden", expire_after_retention_was_off),
    ("log_start", trim_and_forget),
    ("log_start", recreate_empty_with_old_start),
    ("changed", lambda scene: put(scene.one, 4, b"other", scene.plain[4].value)),
    ("changed", move_record),
    ("changed", acknowledged_twice),
    ("duplicate", duplicate),
    ("corrupt", lambda scene: put(scene.one, 12, b"k0", decode(b"garbage that is no payload"))),
    ("extra", from_elsewhere),
    ("extra", of_a_deleted_topic),
    ("extra", refused),
    ("extra", unknown_comes_late),
    ("committed_unread", lambda scene: scene.two.committed.discard(0)),
    ("committed_unread", lambda scene: scene.one.committed.discard(0)),
    ("aborted_read", lambda scene: scene.two.committed.add(3)),
    ("torn", tear),
    ("torn", tear_from_its_offset),
    ("hanging", hang),
    ("offline", lambda scene: setattr(scene.one, "error", "no leader")),
    ("misplaced", lambda scene: scene.one.dirs.append("e")),
    ("misplaced", lambda scene: scene.one.dirs.clear()),
    ("lost_topic", lose_topic),
    ("lost_topic", replace_topic),
    ("strange_topic", replace_topic),
    ("resurrected", undelete),
    ("resurrected", lambda scene: scene.seen.alive.add(OLD)),
    ("partitions", forgotten_growth),
    ("partitions", other_growth),
    ("config", forgotten_config),
    ("config", refused_config),
    ("group_lost", group(lambda scene: None)),
    ("group_back", group(lambda scene: scene.first)),
    ("group_changed", group(lambda scene: (4, scene.last[1]))),
    ("group_extra", group(lambda scene: scene.commit("g", scene.topic, 9, FAIL))),
    ("group_extra", group(lambda scene: (9, f"{A.hex()}/99999"))),
    ("group_extra", aborted_offset),
    ("group_stale", stale_offset),
    ("group_stale", lambda scene: scene.seen.groups.update({("g", "old", 0): scene.stale})),
    ("leftover", lambda scene: scene.seen.leftovers.append("old-0")),
    ("offline", lambda scene: scene.world.report("offline", "a disk", scene.topic)),
]


@pytest.mark.parametrize(("kind", "plant"), PLANTS, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(PLANTS)])
def test_each_planted_anomaly_is_found(kind: str, plant: Callable[[Scene], object]) -> None:
    scene = Scene()
    plant(scene)
    assert kind in scene.kinds()


def unknown_trim(scene: Scene) -> None:
    scene.world.trimmed(scene.topic, 0, 4, INFO, scene.world.changes["topic"])
    begin_at(scene.one, 4)


def trim(scene: Scene) -> None:
    trim_and_forget(scene)
    begin_at(scene.one, 4)


def trim_of_the_topic_before(scene: Scene) -> None:
    """The name was given to another topic while the deletion of records was under way."""
    changes = scene.world.changes["old"]
    again = scene.make("old", B, 1)
    scene.send(again, 0, 3, at=0)
    scene.world.trimmed(scene.old, 0, 2, OK, changes)
    begin_at(scene.seen.topics["old"].partitions[0], 2)


def expire(scene: Scene) -> None:
    scene.topic.altering("retention.ms", "500", NOW_MS - 5_000)
    begin_at(scene.one, 5)


def compact(scene: Scene) -> None:
    scene.topic.compacted = True
    drop(scene, scene.one, 0, 1, 2, 3, 4, 5, 6)
    drop(scene, scene.two, 0, 3, 4)


def unknown_deletion(scene: Scene) -> None:
    scene.world.deleting(scene.topic)
    lose_topic(scene)


def unknown_creation(scene: Scene) -> None:
    scene.world.creating("new", 1, {})
    scene.world.created("new", INFO, b"", NOW_MS)
    scene.seen.topics["new"] = SeenTopic(B, [SeenPartition(dirs=["d"])], {})


def unknown_growth(scene: Scene) -> None:
    scene.world.grown(scene.topic, 3, INFO)
    scene.seen.topics["topic"].partitions.append(SeenPartition(dirs=["d"]))


def unknown_config(scene: Scene) -> None:
    scene.topic.altering("segment.ms", "7", NOW_MS)
    scene.topic.altered("segment.ms", "7", INFO, NOW_MS)
    scene.seen.topics["topic"].configs["segment.ms"] = "7"


def unknown_commit(scene: Scene) -> None:
    scene.commit("g", scene.topic, 8, INFO)


def doubtful_commit(scene: Scene) -> None:
    """The topic was deleted and recreated while the commit was under way."""
    for commit in scene.world.commits["g", "old", 0]:
        commit.doubtful = True
    stale_offset(scene)


@pytest.mark.parametrize(
    "plant",
    [
        trim, unknown_trim, trim_of_the_topic_before, expire, compact, unknown_deletion, unknown_creation, unknown_growth,
        unknown_config, unknown_commit, doubtful_commit,
    ],
)  # fmt: skip
def test_what_is_lawful_is_no_anomaly(plant: Callable[[Scene], None]) -> None:
    scene = Scene()
    plant(scene)
    assert scene.world.judge(scene.seen) == []
    assert scene.world.judge(scene.seen) == [], "the same, looked at again"


def test_a_topic_with_an_anomaly_is_left_alone_until_it_is_deleted() -> None:
    scene = Scene()
    begin_at(scene.one, 5)
    assert scene.kinds() == ["hidden"]
    assert scene.kinds() == [] and scene.world.live("topic") is None
