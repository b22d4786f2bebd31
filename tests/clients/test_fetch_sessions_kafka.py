"""The same fetches, asked of Apache Kafka and of ours: sessions that grow, shrink, go wrong and start again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import FetchRequest
from penstock.pyx.wire.requests import create_topic, produce
from support.dataplane import batch
from support.harness import BrokerProcess, WireConnection, topic_name
from support.kafka_jars import ApacheKafka

VERSION = 12
PARTITIONS = 3
NAMES = ("first", "second")
LARGE = 1 << 20
Place = tuple[str, int]
PLACES: list[Place] = [(name, index) for name in NAMES for index in range(PARTITIONS)]
MISSING: list[Place] = [("first", 7), ("third", 0)]


class Fetch(NamedTuple):
    """A fetch; the session is the one that was opened last, its epoch the next one unless another is said."""

    asked: list[tuple[Place, int, int]]  # partition, offset, most bytes
    forgotten: list[Place]
    max_bytes: int
    epoch: int | None = None


Step = Place | Fetch  # what is produced to, or a fetch


def steps(seed: int) -> list[Step]:
    """Some of each, in an order that follows from the seed."""
    dice = random.Random(seed)

    def asked(count: int) -> list[tuple[Place, int, int]]:
        chosen = dice.sample(PLACES + MISSING, count)
        return [(place, dice.choice([0, 0, 1, 2, 50]), dice.choice([1, 1500, LARGE])) for place in chosen]

    def fetch(count: int, epoch: int | None = None) -> Fetch:
        forgotten = dice.sample(PLACES + MISSING, dice.randrange(3)) if epoch is None else []
        return Fetch(asked(count), forgotten, dice.choice([1, 3000, LARGE]), epoch)

    made: list[Step] = [PLACES[0], PLACES[4], PLACES[4], fetch(dice.randrange(1, 7), 0)]
    for _ in range(14):
        kind = dice.random()
        if kind < 0.3:
            made.append(dice.choice(PLACES))
        elif kind < 0.85:
            made.append(fetch(dice.randrange(3)))
        else:
            made.append(fetch(2, dice.choice([9, 9, 0, -1])))
    return made


def carried_out(bootstrap: str, plan: list[Step], named: Callable[[str], str]) -> list[Any]:
    """What each fetch of a plan is answered with; `named` gives topics their names in this run."""
    session, next_epoch = 0, 0
    answers: list[Any] = []
    short = {named(name): name for name in (*NAMES, "third")}
    with WireConnection(bootstrap) as connection:
        for step in plan:
            if not isinstance(step, Fetch):
                produce(connection, named(step[0]), {step[1]: batch([b"v" * 1000])})
                continue
            epoch = next_epoch if step.epoch is None else step.epoch
            answer = connection.ask(_request(step, session, epoch, named), VERSION)
            if answer.error_code == 0:
                if epoch == 0:
                    session, next_epoch = answer.session_id, 1
                elif step.epoch is None:
                    next_epoch += 1
            told = [
                (
                    short[topic.topic],
                    one.partition_index,
                    one.error_code,
                    (one.log_start_offset, one.last_stable_offset, one.high_watermark),
                    len(one.records or b""),
                )
                for topic in answer.responses
                for one in topic.partitions
            ]
            # Kafka answers what it doesn't have at the end, we in its turn.
            told.sort(key=lambda one: one[2] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            answers.append((answer.error_code, answer.session_id != 0, told))
    return answers


def _request(step: Fetch, session: int, epoch: int, named: Callable[[str], str]) -> FetchRequest:
    return FetchRequest(
        min_bytes=1,
        max_bytes=step.max_bytes,
        session_id=session,
        session_epoch=epoch,
        topics=[
            FetchRequest.FetchTopic(
                topic=named(name),
                partitions=[FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=most)],
            )
            for (name, index), offset, most in step.asked
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=named(name), partitions=[index]) for name, index in step.forgotten
        ],
    )


@pytest.mark.kafka
@pytest.mark.parametrize("seed", range(5))
def test_sessions_are_answered_as_apache_kafka_answers_them(
    shared_broker: BrokerProcess, apache_kafka: ApacheKafka, seed: int
) -> None:
    run = topic_name("sessions")

    def named(name: str) -> str:
        return f"{run}-{name}"

    both = []
    for bootstrap in (apache_kafka.bootstrap, shared_broker.bootstrap):
        for name in NAMES:
            create_topic(bootstrap, named(name), PARTITIONS)
        both.append(carried_out(bootstrap, steps(seed), named))
    kafkas, ours = both
    assert ours == kafkas
    assert any(told for _, _, told in ours)
