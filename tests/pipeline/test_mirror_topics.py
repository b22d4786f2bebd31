"""Topics and partitions that come later are followed; what a target's topic is made like; two names for one topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.config import ConfigError
from penstock.pipeline import job
from penstock.pipeline.clients.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.clients.sender import Sender
from penstock.pipeline.stages.topics import TopicChoice
from penstock.pyx.record.builder import BatchBuilder
from support.harness import BrokerProcess
from support.mirror_world import LIMIT_S, World
from support.stages import write_properties

LONG_AGO_MS = 1_357_000_000_000  # 2013
SOURCES = ("EWR", "JFK")


def send(w: World, cluster: BrokerProcess, topic: str, value: bytes, timestamp_ms: int = 0, partition: int = 0) -> None:
    async def work(admin: Admin) -> None:
        builder = BatchBuilder(0)
        assert builder.append(b"k", value, timestamp_ms or time.time_ns() // 1_000_000)
        await Sender(admin, idempotent=False).submit((topic, partition), [builder.build()])

    w.admin(cluster, work)


def await_records(w: World, topic: str, wanted: int, partition: int = 0) -> None:
    """Wait until a topic of the target has so many committed records."""
    topic, w.topic = w.topic, topic
    partitions, w.partitions = w.partitions, partition + 1
    try:
        await_true(w, lambda: sum(batch.record_count for batch in w.batches().get(partition, [])) == wanted)
    finally:
        w.topic, w.partitions = topic, partitions


def await_true(w: World, seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            if seen():
                return
        except KeyError:  # no such topic yet
            pass
        assert w.mirror.running and time.monotonic() < deadline, w.mirror.text()
        time.sleep(0.1)


def exists(w: World, topic: str) -> bool:
    found = w.admin(w.target, lambda admin: admin.metadata([topic], refresh=True))
    return topic in found.topics


def test_a_topic_that_the_target_refuses_is_shown_and_made_once_it_can_be(
    tmp_path: Path, clusters: dict[str, BrokerProcess]
) -> None:
    """A name that collides with another one on the target (a dot and an underscore are one in metrics)."""
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["target"]) as w:
        refused, in_the_way = f"{w.topic}.col_lide", f"{w.topic}.col.lide"
        w.admin(clusters["EWR"], lambda admin: admin.create_topics({refused: 1}))
        w.admin(w.target, lambda admin: admin.create_topics({in_the_way: 1}))
        send(w, clusters["EWR"], refused, b"one")
        w.configure(topics="", topics_include=f"{w.topic}.*")
        w.mirror.start()
        w.mirror.wait_for(f"{refused} is STOPPED, the others go on")
        lanes = w.status(code=1)
        assert lanes["EWR", None]["state"] == "not copied"  # type: ignore[index]  # it has no partitions on the target
        w.admin(w.target, lambda admin: admin.delete_topics([in_the_way]))
        await_true(w, lambda: exists(w, refused))
        await_records(w, refused, 1)
        assert w.mirror.text().count(f"{refused} is STOPPED") == 1
        assert w.mirror.stop() == 0


def test_topics_of_an_expression_are_followed(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    sources = {name: clusters[name] for name in ("EWR", "JFK")}
    with World(tmp_path, sources, clusters["target"]) as w:
        w.configure(topics="", topics_include=f"{w.topic}(-.*)?", topics_exclude=".*-private")
        w.fill(2)
        w.mirror.start()
        w.await_copied()
        later, private = f"{w.topic}-later", f"{w.topic}-private"
        for name in (later, private):
            made = {name: 1}
            w.admin(clusters["EWR"], lambda admin, made=made: admin.create_topics(made))  # type: ignore[misc]
            send(w, clusters["EWR"], name, b"one")
        await_true(w, lambda: exists(w, later))
        await_records(w, later, 1)
        # The other source gets the topic weeks later: it was registered before, so nobody has to say anything.
        w.admin(clusters["JFK"], lambda admin: admin.create_topics({later: 1}))
        send(w, clusters["JFK"], later, b"two")
        await_records(w, later, 2)
        assert not exists(w, private)
        assert "STOPPED" not in w.mirror.text()
        assert w.mirror.stop() == 0
        w.check()


def test_partitions_that_come_later_are_followed(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """While the counts differ the topic stands still; once the target has grown too it goes on without a restart."""
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["target"]) as w:
        w.fill(1)
        w.mirror.start()
        w.await_copied()
        w.admin(clusters["EWR"], lambda admin: admin.create_partitions({w.topic: 3}))
        for partition in range(2):
            w.mirror.wait_for(f"{w.topic}-{partition} is STOPPED")
        w.admin(clusters["target"], lambda admin: admin.create_partitions({w.topic: 3}))
        w.partitions = 3
        w.fill(2)
        w.finish()


def test_each_source_under_a_name_of_its_own(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """So a cluster may even be mirrored into itself."""
    sources = {name: clusters[name] for name in ("EWR", "JFK")}
    with World(tmp_path, sources, clusters["EWR"]) as w:
        w.configure(penstock_mirror_rename="from.${source}.${topic}")
        w.fill(1)
        w.mirror.start()
        for name in sources:
            await_records(w, f"from.{name}.{w.topic}", 10, partition=1)
        assert {(row["state"], row["lag"], row["topic"]) for row in w.status().values()} == {("copying", 0, w.topic)}
        assert w.mirror.stop() == 0


def test_of_two_topics_that_would_have_one_name_one_is_refused(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with World(tmp_path, {"us": clusters["EWR"], "us-east": clusters["JFK"]}, clusters["target"]) as w:
        east = f"east-{w.topic}"
        w.configure(topics="", topics_include=f"(east-)?{w.topic}", penstock_mirror_rename="${source}-${topic}")
        w.admin(clusters["EWR"], lambda admin: admin.create_topics({east: 1}))
        send(w, clusters["EWR"], east, b"1")
        w.fill(1)
        w.mirror.start()
        await_records(w, f"us-{w.topic}", 10, partition=1)
        name = f"it would be us-{east} on the target, as topic "
        w.mirror.wait_for(name)
        refused = [line for line in w.mirror.text().splitlines() if name in line]
        assert len(refused) == 1 and (f"us/{east} is STOPPED" in refused[0] or f"us-east/{w.topic} is STOPPED" in refused[0])
        assert w.mirror.stop() == 1


def test_a_topic_is_made_as_the_source_has_it(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    kept = {"cleanup.policy": "compact,delete", "retention.ms": "604800000", "max.message.bytes": "1500000"}
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["target"], source_configs=kept) as w:
        send(w, clusters["EWR"], w.topic, b"old", LONG_AGO_MS)
        w.mirror.start()
        w.mirror.wait_for(f"the oldest records of {w.topic} at source EWR are of 2013-01-01")
        found = w.admin(clusters["target"], lambda admin: admin.describe_configs(TOPIC_RESOURCE, w.topic))
        assert {name: found[name] for name in kept} == kept
        assert found["compression.type"] == "producer"
        assert w.mirror.stop() == 0


def test_a_topic_takes_what_any_of_its_sources_took(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """The largest record that one source takes, and times that the target's own default refuses."""
    ahead_ms = time.time_ns() // 1_000_000 + 10 * 86_400_000
    any_time = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
    sources = {name: clusters[name] for name in ("EWR", "JFK")}
    with World(tmp_path, sources, clusters["target"], source_configs=any_time) as w:
        larger = {"max.message.bytes": "3000000"}
        w.admin(clusters["JFK"], lambda admin: admin.alter_configs(TOPIC_RESOURCE, w.topic, larger))
        send(w, clusters["EWR"], w.topic, b"small", ahead_ms)
        send(w, clusters["JFK"], w.topic, bytes(2_500_000))
        w.mirror.start()
        await_records(w, w.topic, 2)
        assert w.mirror.stop() == 0
        found = w.admin(clusters["target"], lambda admin: admin.describe_configs(TOPIC_RESOURCE, w.topic))
        assert found["max.message.bytes"] == "3000000"


def topics(tmp_path: Path, **properties: object) -> TopicChoice:
    given = {name.replace("_", "."): value for name, value in properties.items()}
    base = {"bootstrap.servers": "t:1", "source.EWR.bootstrap.servers": "s:1", "topics": "flights"}
    return TopicChoice(job.load(write_properties(tmp_path / "p.properties", {**base, **given}), (), "mirror"))


def test_what_is_chosen(tmp_path: Path) -> None:
    chosen = topics(tmp_path, topics_include="flights.*|penstock.*|__.*", topics_exclude=".*-private")
    assert chosen.wants("flights") and chosen.wants("flights-a")
    assert not any(map(chosen.wants, ["flights-private", "xflights", "penstock.quarantine", "__consumer_offsets"]))
    assert not chosen.wants("flights-internal", internal=True)
    # A source's own `flights.deduped` would be copied into what dedupe writes.
    deduping = topics(tmp_path, topics_include=".*", penstock_dedupe_data="data", penstock_mirror_rename="${topic}-copy")
    assert not any(deduping.wants(topic, source="EWR") for topic in ("penstock.moved.a.flights", "penstock.moved.dedupe.b"))
    apart = topics(tmp_path, topics_include=".*", penstock_dedupe_data="data")
    assert not any(apart.wants(topic, source="EWR") for topic in ("flights.deduped", "flights.moved"))
    assert apart.wants("other.deduped", source="EWR") and deduping.wants("flights.deduped", source="EWR")
    assert topics(tmp_path, topics_include=".*").wants("flights.deduped", source="EWR")  # the file has no dedupe
    with pytest.raises(ConfigError, match=r"would copy into `flights\.deduped`, where dedupe writes"):
        topics(tmp_path, topics="flights,flights.deduped", penstock_dedupe_input_topic="flights", penstock_dedupe_data="data")
    renamed = topics(tmp_path, penstock_mirror_rename="${source}.${topic}-copy")
    assert renamed.into("EWR", "flights") == "EWR.flights-copy"
    assert renamed.out_of("EWR", "EWR.flights-copy") == "flights" and renamed.out_of("EWR", "JFK.flights-copy") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("topics_include", "(a"), ("penstock_mirror_rename", "${source}"), ("penstock_mirror_rename", "${topic}.${cluster}"),
     ("penstock_mirror_rename", "${topic}${topic}")],
)  # fmt: skip
def test_what_is_no_choice_is_refused(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key.replace("_", ".")):
        topics(tmp_path, **{key: value})
