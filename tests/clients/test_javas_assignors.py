"""Our assignors beside Apache Kafka's own, on random groups that change round by round."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.pipeline.clients.assignors import ASSIGNORS, decode_subscription, encode_subscription
from penstock.pipeline.clients.stickiness import Assignment, Member
from support.harness import output
from support.kafka_jars import HEAP, kafka_classpath

pytestmark = pytest.mark.kafka

PROGRAM = Path(__file__).parents[1] / "golden" / "JavasAssignors.java"
GROUPS = 150
TOPICS = "abcd"
Case = tuple[str, dict[str, int], list[Member]]


def javas(lines: list[str]) -> list[str]:
    return output(["java", *HEAP, "-cp", kafka_classpath(), str(PROGRAM)], stdin="\n".join(lines) + "\n").splitlines()


def line_of(name: str, partitions: dict[str, int], members: list[Member]) -> str:
    words = [name, ",".join(f"{topic}={count}" for topic, count in partitions.items())]
    for member in members:
        data = encode_subscription(name, member.topics, member.owned, member.generation).hex()
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


def play(name: str, seed: int) -> list[Case]:
    """The rounds of one group: members come and go, some change their topics, topics grow."""
    chance = random.Random(f"{name} {seed}")
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
            present[member_id] = Member(member_id, topics, f"i{number}" if static else None)
        partitions[chance.choice(TOPICS)] += chance.randint(0, 2)
        members = list(present.values())
        known = {topic: count for topic, count in partitions.items() if any(topic in member.topics for member in members)}
        cases.append((name, known, members))
        made = ASSIGNORS[name](known, members)
        is_sticky = "sticky" in name
        for member in members:
            owned = tuple(sorted(made[member.member_id])) if is_sticky else ()
            since = generation if is_sticky else -1
            present[member.member_id] = Member(member.member_id, member.topics, member.group_instance_id, owned, since)
    return cases


@pytest.fixture(scope="module")
def answers() -> dict[str, list[tuple[Case, Assignment]]]:
    """All cases with what Kafka's assignors make of them."""
    cases = {name: [case for seed in range(GROUPS) for case in play(name, seed)] for name in ASSIGNORS}
    lines = iter(javas([line_of(*case) for listed in cases.values() for case in listed]))
    return {name: [(case, read(next(lines))) for case in listed] for name, listed in cases.items()}


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_plain_assignors_give_what_kafkas_give(name: str, answers: dict[str, list[tuple[Case, Assignment]]]) -> None:
    for (_, partitions, members), theirs in answers[name]:
        assert ASSIGNORS[name](partitions, members) == theirs


def kept(members: list[Member], made: Assignment) -> int:
    return sum(tp in member.owned for member in members for tp in made[member.member_id])


def counts(made: Assignment) -> list[int]:
    return sorted(len(tps) for tps in made.values())


def leaves_a_choice(partitions: dict[str, int], members: list[Member]) -> bool:
    """Whether more members have enough to keep one more than the others than may: Kafka then asks a hash."""
    least, more = divmod(sum(partitions[topic] for topic in members[0].topics), len(members))
    return sum(len(member.owned) > least for member in members) > more


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_sticky_assignors_give_what_kafkas_give_to_members_that_want_the_same(
    name: str, answers: dict[str, list[tuple[Case, Assignment]]]
) -> None:
    same = chosen_freely = 0
    for (_, partitions, members), theirs in answers[name]:
        if len({member.topics for member in members}) > 1:
            continue
        ours = ASSIGNORS[name](partitions, members)
        if leaves_a_choice(partitions, members):
            chosen_freely += 1
            assert kept(members, ours) == kept(members, theirs)
            assert name != "sticky" or counts(ours) == counts(theirs)
        else:
            same += 1
            assert {m: sorted(tps) for m, tps in ours.items()} == {m: sorted(tps) for m, tps in theirs.items()}
    assert same > 100 and chosen_freely > 20


def test_sticky_is_at_least_as_even_as_kafkas_where_members_want_different_topics(
    answers: dict[str, list[tuple[Case, Assignment]]],
) -> None:
    mixed = 0
    for (_, partitions, members), theirs in answers["sticky"]:
        if len({member.topics for member in members}) > 1:
            mixed += 1
            ours = ASSIGNORS["sticky"](partitions, members)
            assert sum(n * n for n in counts(ours)) <= sum(n * n for n in counts(theirs))
            assert sorted(tp for tps in ours.values() for tp in tps) == sorted(tp for tps in theirs.values() for tp in tps)
    assert mixed > 100


def test_what_stickys_member_says_of_itself_is_byte_for_byte_javas() -> None:
    (theirs,) = javas(["userdata t 0,3,4 7"])
    owned = (("t", 0), ("t", 3), ("t", 4))
    data = encode_subscription("sticky", ["t"], owned, 7)
    assert bytes.fromhex(theirs) in data
    assert decode_subscription(data, "m", None, "sticky").owned == owned
