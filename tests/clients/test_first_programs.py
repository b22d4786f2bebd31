"""What people write first: README's program, and what they get wrong. That is refused with the right form, or does no harm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.inprocess import Broker
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.consumer import Consumer
from penstock.pipeline.clients.producer import Producer
from support import asking
from support.our_members import CLASSIC, NEWER, QUICK_BROKER
from support.patience import until

GROUP = "g"
README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def penstock_broker_properties() -> dict[str, object]:
    return QUICK_BROKER


@pytest.mark.parametrize("topics", ["events", [("events", 0)], [b"events"]], ids=str)
def test_what_is_no_list_of_names_makes_no_topics(penstock_broker: Broker, topics: Any) -> None:
    with Consumer(penstock_broker.bootstrap, **CLASSIC, group_id=GROUP) as consumer:
        with pytest.raises(TypeError, match=r'a list of names, such as \["events"\]'):
            consumer.subscribe(topics)
        assert consumer.poll(0.0) == []
        consumer.assign([])  # it is not subscribed


@pytest.mark.parametrize("partitions", ["events", ["events"], [("events",)], [["events", 0]]], ids=str)
def test_what_is_no_pair_of_topic_and_number_is_not_assigned(penstock_broker: Broker, partitions: Any) -> None:
    with Consumer(penstock_broker.bootstrap) as consumer:
        with pytest.raises(TypeError, match=r'such as \("events", 0\), not'):
            consumer.assign(partitions)
        assert consumer.assignment() == []


@pytest.mark.parametrize("given", [CLASSIC, NEWER], ids=["classic", "consumer"])
def test_a_commit_before_the_first_records_commits_nothing(penstock_broker: Broker, given: dict[str, Any]) -> None:
    asking.create(penstock_broker, "events")
    with Producer(penstock_broker.bootstrap) as producer:
        producer.send("events", b"k", b"v")
    with Consumer(penstock_broker.bootstrap, **given, group_id=GROUP) as consumer:
        consumer.commit()
        consumer.subscribe(["events"])
        consumer.commit()
        with pytest.raises(KafkaError, match=f"`poll` has not yet joined group `{GROUP}`") as refused:
            consumer.membership()
        assert refused.value.code == ErrorCode.UNKNOWN_MEMBER_ID
        records: list[object] = []

        def worked() -> bool:
            records.extend(consumer.poll(0.05))
            consumer.commit()
            return bool(records)

        until(worked, "the record")
        assert consumer.committed([("events", 0)]) == {("events", 0): (1, "")}


HEADERS: list[Any] = [{"id": b"1"}, {"trace": b"1"}, [("id", "1")], [(b"id", b"1")], ["id"], [("id", 1)]]


@pytest.mark.parametrize("headers", HEADERS, ids=str)
@pytest.mark.parametrize("many", [False, True], ids=["send", "send_many"])
def test_what_is_no_header_is_refused_with_its_form(penstock_broker: Broker, headers: Any, many: bool) -> None:
    asking.create(penstock_broker, "events")
    with Producer(penstock_broker.bootstrap) as producer:
        with pytest.raises(TypeError, match=r'headers are pairs of a name and bytes or None, such as \[\("id", b"1"\)\]'):
            if many:
                producer.send_many("events", [b"k"], [b"v"], headers=[headers])
            else:
                producer.send("events", b"k", b"v", headers=headers)
        producer.send("events", b"k", b"v", headers=[("id", b"1")]).result()


class ReadError(Exception):
    """Ends a program at what it prints."""


def test_the_first_program_of_the_readme_reads_what_it_sends(penstock_broker: Broker) -> None:
    found = re.search(r"^Our Python clients .*?^```python\n(.*?)^```", README.read_text(), re.M | re.S)
    assert found is not None
    code = found[1].replace("127.0.0.1:9092", penstock_broker.bootstrap).replace("10_000", "120_000")

    def show(*what: object) -> None:
        raise ReadError(*what)

    with pytest.raises(ReadError) as read:
        exec(code, {"print": show})
    assert read.value.args == (0, b"id-1", b"...")
