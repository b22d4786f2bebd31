"""Our assignors next to Apache Kafka's own, on random groups that change round by round, in racks or without."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.pipeline.clients.assignors import ASSIGNORS, decode_subscription, encode_subscription
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.racks import PartitionRacks, Racks
from penstock.pipeline.clients.stickiness import Assignment, Member
from support.harness import output
from support.kafka_jars import HEAP, kafka_classpath

pytestmark = pytest.mark.kafka

PROGRAM = Path(__file__).parents[1] / "golden" / "JavasAssignors.java"
GROUPS = 150
TOPICS = "abcd"
RACKS = ["r1", "r2", "r3"]


class Case(NamedTuple):
    """What an assignor is asked."""

    name: str
    partitions: dict[str, int]
    members: list[Member]
    racks: PartitionRacks

    def made(self) -> Assignment:
        """What ours makes of it."""
        return ASSIGNORS[self.name](self.partitions, self.members, self.racks)


Answers = dict[str, list[tuple[Case, Assignment]]]


def javas(lines: list[str]) -> list[str]:
    return output(["java", *HEAP, "-cp", kafka_classpath(), str(PROGRAM)], stdin="\n".join(lines) + "\n").splitlines()


def line_of(case: Case) -> str:
    topics = []
    for topic, count in case.partitions.items():
        placed = ("+".join(sorted(case.racks.get((topic, number), ()))) for number in range(count))
        topics.append(f"{topic}={''.join(f'{racks}|' for racks in placed)}")
    words = [case.name, ",".join(topics)]
    for member in case.members:
        data = encode_subscription(case.name, member.topics, member.owned, member.generation, member.rack).hex()
        words.append(
            f"{member.member_id}={data}" + ("" if member.group_instance_id is None else f"={member.group_instance_id}")
        )
    return " ".join(words)


def read(line: str) -> Assignment:
    made: Assignment = {}
    for word in line.split():
        member_id, _, listed = word.partition("=")
        tps = [tp.rpartition(":") for tp in listed.split(",") if tp]
        made[member_id] = [(topic, int(number)) for topic, _, number in tps]
    return made


class Places:
    """The racks of a group's members, and of replicas: a random few of three, or none at all."""

    def __init__(self, seed: str, given: bool) -> None:
        self._chance = random.Random(f"racks {seed}")
        self._replicas = self._chance.randint(1, 2) if given else 0
        self._members = self._chance.sample(RACKS, self._chance.randint(1, 3)) if given else []
        self._placed: dict[TopicPartition, frozenset[str]] = {}

    def of_partition(self, tp: TopicPartition) -> frozenset[str]:
        """The racks of a partition's replicas, the same each time."""
        return self._placed.setdefault(tp, frozenset(self._chance.sample(RACKS, self._replicas)))

    def of_member(self) -> str | None:
        """A new member's rack; one in ten has none."""
        return self._chance.choice(self._members) if self._members and self._chance.random() < 0.9 else None


def play(name: str, seed: int, racked: bool) -> list[Case]:
    """The rounds of one group: members come and go, some change their topics, topics grow."""
    chance = random.Random(f"{name} {seed}")
    places = Places(f"{name} {seed}", racked)
    alike = chance.random() < 0.6
    partitions = {topic: chance.randint(1, 7) for topic in TOPICS}
    all_topics = tuple(TOPICS[: chance.randint(1, len(TOPICS))])
    static = chance.random() < 0.3
    present: dict[str, Member] = {}
    cases: list[Case] = []
    number = 0
    for generation in range(1, 5):
        for member_id in [member_id for member_id in present if chance.random() < 0.3]:
            del present[member_id]
        for _ in range(chance.randint(0 if present else 1, 3)):
            number += 1
            topics = all_topics if alike else tuple(sorted(chance.sample(TOPICS, chance.randint(1, len(TOPICS)))))
            member_id = f"m{chance.randrange(100)}-{number}"
            present[member_id] = Member(member_id, topics, f"i{number}" if static else None, rack=places.of_member())
        partitions[chance.choice(TOPICS)] += chance.randint(0, 2)
        members = list(present.values())
        known = {topic: count for topic, count in partitions.items() if any(topic in member.topics for member in members)}
        racks = {(topic, n): places.of_partition((topic, n)) for topic, count in known.items() for n in range(count)}
        cases.append(Case(name, known, members, racks))
        made = cases[-1].made()
        if "sticky" in name:
            for member in members:
                owned = tuple(sorted(made[member.member_id]))
                present[member.member_id] = replace(member, owned=owned, generation=generation)
    return cases


@pytest.fixture(scope="module", params=[False, True], ids=["no racks", "racks"])
def answers(request: pytest.FixtureRequest) -> Answers:
    """All cases with what Kafka's assignors make of them."""
    cases = {name: [case for seed in range(GROUPS) for case in play(name, seed, request.param)] for name in ASSIGNORS}
    lines = iter(javas([line_of(case) for listed in cases.values() for case in listed]))
    return {name: [(case, read(next(lines))) for case in listed] for name, listed in cases.items()}


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_plain_assignors_give_what_kafkas_give(name: str, answers: Answers) -> None:
    for case, theirs in answers[name]:
        assert case.made() == theirs


def kept(members: list[Member], made: Assignment) -> int:
    return sum(tp in member.owned for member in members for tp in made[member.member_id])


def counts(made: Assignment) -> list[int]:
    return sorted(len(tps) for tps in made.values())


def racks_of(case: Case) -> Racks:
    return Racks({member.member_id: member.rack for member in case.members}, case.racks, case.racks)


def leaves_a_choice(case: Case) -> bool:
    """Whether more members have enough to keep one more than the others than may: Kafka then asks a hash."""
    members, racks = case.members, racks_of(case)
    least, more = divmod(sum(case.partitions[topic] for topic in members[0].topics), len(members))
    fit = [[tp for tp in one.owned if not (racks.matter and racks.is_far(one.member_id, tp))] for one in members]
    return sum(len(tps) > least for tps in fit) > more


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_sticky_assignors_give_what_kafkas_give_to_members_that_want_the_same(name: str, answers: Answers) -> None:
    same = chosen_freely = 0
    for case, theirs in answers[name]:
        members = case.members
        if len({member.topics for member in members}) > 1:
            continue
        ours = case.made()
        if leaves_a_choice(case):
            chosen_freely += 1
            assert kept(members, ours) == kept(members, theirs)
            assert name != "sticky" or counts(ours) == counts(theirs)
        else:
            same += 1
            assert {m: sorted(tps) for m, tps in ours.items()} == {m: sorted(tps) for m, tps in theirs.items()}
    assert same > 100 and chosen_freely > 20


def nearby(case: Case, made: Assignment) -> int:
    """How many partitions went to members in whose racks they are."""
    racks = racks_of(case)
    return sum(racks.is_near(member_id, tp) for member_id, tps in made.items() for tp in tps)


def test_sticky_is_at_least_as_even_and_near_as_kafkas_where_members_want_different_topics(answers: Answers) -> None:
    mixed = nearer = 0
    for case, theirs in answers["sticky"]:
        if len({member.topics for member in case.members}) > 1:
            mixed += 1
            ours = case.made()
            nearer += nearby(case, ours) - nearby(case, theirs)
            assert sum(n * n for n in counts(ours)) <= sum(n * n for n in counts(theirs))
            assert sorted(tp for tps in ours.values() for tp in tps) == sorted(tp for tps in theirs.values() for tp in tps)
    assert mixed > 100 and nearer >= 0, "of all groups together: Kafka's may give up evenness for a nearer partition"


def test_what_stickys_member_says_of_itself_is_byte_for_byte_javas() -> None:
    (theirs,) = javas(["userdata t 0,3,4 7"])
    owned = (("t", 0), ("t", 3), ("t", 4))
    data = encode_subscription("sticky", ["t"], owned, 7)
    assert bytes.fromhex(theirs) in data
    assert decode_subscription(data, "m", None, "sticky").owned == owned
