"""When a night is complete: no record that had arrived by its end may be left to the next one, and no look waits for ever.

One broker plays source and aggregate (see support/etl_world.py); Spark is not needed for the cut.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pipeline.etl.cut import Cut, Ranges
from penstock.pipeline.etl.errors import Refused
from penstock.pipeline.etl.ledger import NightCommit, Range, Status
from penstock.pipeline.etl.night import parse_night
from support.etl_world import World, day_ms
from support.harness import BrokerProcess
from support.logs import put_back

NIGHT = "2013-01-01"
LOOK_LIMIT_S = 30.0  # a look that takes so long waits for something


@pytest.fixture
def world(shared_broker: BrokerProcess, tmp_path: Path) -> World:
    return World(shared_broker.bootstrap, tmp_path)


@pytest.fixture
def open_transaction(shared_broker: BrokerProcess) -> Callable[[str, str], Producer]:
    """A function that leaves a transaction with a record in each partition of a topic open."""

    def begin(topic: str, day: str) -> Producer:
        producer = Producer({"bootstrap.servers": shared_broker.bootstrap, "transactional.id": f"open-{topic}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, b"open", partition=partition, timestamp=day_ms(day))
        assert producer.flush(30) == 0
        return producer

    return begin


def missing(world: World, everywhere: bool = False) -> list[str]:
    """What a look at the night says."""

    async def look() -> list[str]:
        cut = Cut(job.load(world.config), "wall", ZoneInfo("UTC"))
        goals = cut.goals(parse_night(NIGHT))
        found: Any = None
        try:
            async with asyncio.timeout(LOOK_LIMIT_S):
                found = await cut.missing(goals, everywhere=everywhere)
        finally:
            await cut.close()
        assert isinstance(found, list)
        return found

    return asyncio.run(look())


def send(world: World, topic: str, stamp_ms: int, count: int = 1) -> None:
    """Send records of that time to each partition, without transactions: their markers would bear today's time."""
    producer = Producer({"bootstrap.servers": world.bootstrap})
    for _ in range(count):
        for partition in (0, 1):
            producer.produce(topic, b"record", partition=partition, timestamp=stamp_ms)
    assert producer.flush(30) == 0


def test_a_night_that_has_arrived_is_complete(world: World) -> None:
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()
    assert missing(world) == []


def test_an_open_transaction_at_a_source_is_waited_for_with_words(
    world: World, open_transaction: Callable[[str, str], Producer]
) -> None:
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()
    producer = open_transaction(world.topic, NIGHT)
    send(world, world.topic, day_ms("2013-01-02"))  # the next day begins behind what nobody may read yet
    found = missing(world)
    assert found and all("is mirrored up to 10 of 12" in words for words in found)
    producer.abort_transaction(30)
    world.arrive()
    assert missing(world) == []


@pytest.mark.parametrize("ahead_ms", [1_800_000, 3 * 86_400_000])
def test_a_record_with_a_fast_clock_does_not_end_the_night_before_its_time(world: World, ahead_ms: int) -> None:
    night_end_ms = day_ms("2013-01-02") - 12 * 3_600_000
    send(world, world.topic, night_end_ms + ahead_ms)
    world.arrive()
    send(world, world.topic, day_ms(NIGHT))
    found = missing(world)
    assert found and all("is mirrored up to 1 of 2" in words for words in found)


def test_output_whose_marker_is_on_its_way_is_waited_for(
    world: World, open_transaction: Callable[[str, str], Producer]
) -> None:
    """A coordinator writes a position's marker and those of the data one after the other, in any order."""
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()
    producer = open_transaction(f"{world.topic}.deduped", NIGHT)
    found = missing(world)
    assert found and all("not stable" in words for words in found)
    producer.commit_transaction(30)
    world.ends(f"{world.topic}.deduped")
    assert missing(world) == []


def test_records_that_move_are_waited_for(world: World) -> None:
    """What dedupe has read is out of the input, but not in the output before its right partition's worker has read it."""
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()
    moved = job.moved_topic(world.topic, "dedupe")
    world.admin.create_topics([NewTopic(moved, 2, 1)])[moved].result(30)
    assert missing(world) == []
    send(world, moved, day_ms(NIGHT), 3)
    assert missing(world) == [f"dedupe: {moved}-{partition} is done up to 0 of 3" for partition in (0, 1)]
    world.commit("penstock-dedupe.dedupe", [3, 2], moved)
    assert missing(world) == [f"dedupe: {moved}-1 is done up to 2 of 3"]
    world.commit("penstock-dedupe.dedupe", [3, 3], moved)
    assert missing(world) == []


def stop(world: World, group: str, offset: int, state: str, why: str) -> None:
    """Note in a group's position in partition 1 of the topic that its stage stands still."""

    async def note() -> None:
        async with Admin(world.bootstrap) as admin:
            await admin.commit(group, {(world.topic, 1): (offset, json.dumps({"topic_id": "", state: why}))})

    asyncio.run(note())


@pytest.mark.parametrize(("state", "shown"), [("stopped", "STOPPED"), ("stalled", "STALLED")])
def test_a_stage_that_stands_still_is_said_first(world: World, state: str, shown: str) -> None:
    send(world, world.topic, day_ms(NIGHT), 10)
    mirror, dedupe = "penstock-mirror.mirror.one", "penstock-dedupe.dedupe"
    stop(world, mirror, 4, state, "the disk is bad")
    first, second = missing(world)
    assert first.endswith(f"{world.topic}-1 is mirrored up to 4 of 10 and {shown}: the disk is bad")
    assert second.endswith(f"{world.topic}-0 is mirrored up to 0 of 10")
    world.arrive()
    stop(world, dedupe, 3, state, "its output was cut back")
    assert missing(world) == [f"dedupe: {world.topic}-1 is done up to 3 of 10 and {shown}: its output was cut back"]
    # A stage that stands still is complete nowhere, whatever it has passed.
    stop(world, dedupe, 10, state, "its output was cut back")
    assert missing(world) == [f"dedupe: {world.topic}-1 is done up to 10 of 10 and {shown}: its output was cut back"]
    stop(world, mirror, 10, state, "the disk is bad")
    first, second = missing(world, everywhere=True)
    assert first.endswith(f"{world.topic}-1 is mirrored up to 10 of 10 and {shown}: the disk is bad")
    assert second.startswith("dedupe: ")
    world.arrive()
    assert missing(world) == []


@pytest.mark.parametrize("group", ["penstock-mirror.mirror.one", "penstock-dedupe.dedupe"])
def test_records_that_retention_took_from_a_stage_are_missing(world: World, group: str) -> None:
    """Though nothing younger is there, and whether the position was overtaken or has expired."""
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()
    world.commit(group, [4, 10])
    world.delete_records_before(10, world.topic)
    (words,) = missing(world)
    assert words.endswith(f"{world.topic}-0 was read up to 4, but starts at 10: the records between are gone")
    world.commit(group, [10, 10])
    assert missing(world) == []
    world.admin.delete_consumer_groups([group])[group].result(30)
    found = missing(world)
    assert [words[words.index(world.topic) :] for words in found] == [
        f"{world.topic}-{partition} starts at 10, and no position says what was read of the records before"
        for partition in (0, 1)
    ]


def test_moved_records_that_retention_took_are_missing(world: World) -> None:
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()
    moved = job.moved_topic(world.topic, "dedupe")
    world.admin.create_topics([NewTopic(moved, 2, 1)])[moved].result(30)
    send(world, moved, day_ms(NIGHT), 3)
    world.commit("penstock-dedupe.dedupe", [1, 3], moved)
    world.delete_records_before(3, moved)
    (words,) = missing(world)
    assert words.endswith(f"{moved}-0 was read up to 1, but starts at 3: the records between are gone")


def test_positions_of_a_stage_that_never_rests_are_read(world: World) -> None:
    """Two lanes take turns so that one of them has a transaction open at each moment."""
    world.events(NIGHT, 4)
    world.arrive()
    group, ends = "penstock-dedupe.dedupe", world.ends(world.topic)

    async def busy(admin: Admin, looked: asyncio.Event) -> None:
        lanes = [TransactionalSender(admin, f"{world.topic}-busy-{partition}") for partition in (0, 1)]
        for lane in lanes:
            await lane.init()
        turn = 0
        while not looked.is_set():
            partition = turn % 2
            await lanes[partition].begin()
            await lanes[partition].send_offsets(group, {(world.topic, partition): (ends[partition], "")})
            if turn:
                await lanes[1 - partition].commit()
            await asyncio.sleep(0.1)  # one is settled, the other is not
            turn += 1
        for lane in lanes:
            await lane.close()

    async def look() -> list[str]:
        async with Admin(world.bootstrap) as admin:
            looked = asyncio.Event()
            working = asyncio.create_task(busy(admin, looked))
            await asyncio.sleep(0.5)
            try:
                return await asyncio.to_thread(missing, world)
            finally:
                looked.set()
                await working

    assert asyncio.run(look()) == []


def test_a_night_that_is_marked_says_all_that_is_missing(world: World) -> None:
    world.write_config(source_two_bootstrap_servers="127.0.0.1:1")
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()
    world.commit("penstock-dedupe.dedupe", [7, 10])
    first, *others = missing(world, everywhere=True)
    assert "source two can't be asked" in first
    assert others == [f"dedupe: {world.topic}-0 is done up to 7 of 10"]
    assert missing(world) == [first]


def test_a_night_of_a_topic_that_no_source_feeds_is_refused(world: World) -> None:
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()
    for changes in (
        {"penstock_mirror_rename": "${source}.${topic}"},
        {"topics": "clicks", "penstock_dedupe_input_topic": world.topic},
        {"topics": "", "topics_include": "clicks.*", "penstock_dedupe_input_topic": world.topic},
    ):
        world.write_config(**changes)
        with pytest.raises(Refused, match=f"no source feeds `{world.topic}`.*\nhint: "):
            missing(world)
    world.write_config(topics="", topics_include=f"{world.topic}.*", penstock_dedupe_input_topic=world.topic)
    assert missing(world) == []


@pytest.mark.parametrize(
    ("group", "which"),
    [("penstock-mirror.mirror.lax%2E2", "source `lax.2`"), ("penstock-mirror.other.one", "mirror `other`")],
)
def test_a_source_that_the_aggregate_knows_and_the_file_lacks_is_named(world: World, group: str, which: str) -> None:
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()
    world.commit(group, [3, 3])
    with pytest.raises(Refused, match=f"{which} feeds `{world.topic}` .*\nhint: .*`penstock.etl.groups.gone={group}`"):
        missing(world)
    world.write_config(penstock_etl_groups_gone=group)
    assert missing(world) == []


@pytest.mark.parametrize("group", ["penstock-mirror.mirror.one", "penstock-dedupe.dedupe"])
def test_a_position_in_another_log_does_not_count(world: World, group: str) -> None:
    """A stage stops for a topic that was recreated or cut back; its old position says nothing of what came since."""
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()

    async def commit(offset: int, topic_id: str, changed: int | None = None) -> None:
        """With the mark of the last batch, if its CRC is to be changed so."""
        async with Admin(world.bootstrap) as admin:
            noted: dict[str, Any] = {"topic_id": topic_id}
            if changed is not None:
                batch = await admin.batch_at((world.topic, 0), offset - 1)
                assert batch is not None
                noted["last_batch"] = [batch.base_offset, batch.crc ^ changed, batch.max_timestamp]
            await admin.commit(group, {(world.topic, 0): (offset, json.dumps(noted))})

    async def topic_id() -> str:
        async with Admin(world.bootstrap) as admin:
            return (await admin.metadata([world.topic])).topics[world.topic].topic_id.hex()

    asyncio.run(commit(1000, "f" * 32))
    (words,) = missing(world)
    assert f"{world.topic}-0 was recreated" in words
    asyncio.run(commit(1000, asyncio.run(topic_id())))
    (words,) = missing(world)
    assert f"{world.topic}-0 was read up to 1000, but ends at 10" in words
    asyncio.run(commit(10, asyncio.run(topic_id())))
    assert missing(world) == []
    # A log that was put back from a copy, and has grown to the very offset again.
    asyncio.run(commit(10, asyncio.run(topic_id()), changed=1))
    (words,) = missing(world)
    assert f"{world.topic}-0 is not the log that was read: the last batch below offset 10 was the one of offset" in words
    asyncio.run(commit(10, asyncio.run(topic_id()), changed=0))
    assert missing(world) == []


def test_what_dedupe_wrote_to_another_topic_does_not_count(world: World) -> None:
    send(world, world.topic, day_ms(NIGHT), 10)
    world.arrive()

    async def commit() -> None:
        async with Admin(world.bootstrap) as admin:
            noted = {"topic_id": "", "output_id": "f" * 32}
            await admin.commit("penstock-dedupe.dedupe", {(world.topic, 0): (10, json.dumps(noted))})

    asyncio.run(commit())
    (words,) = missing(world)
    assert words.startswith(f"dedupe: {world.topic}-0 was written to a topic that isn't `{world.topic}.deduped`")


def test_a_table_is_not_continued_from_a_recreated_topic(world: World) -> None:
    """By its offsets alone a topic that has grown past them again would do."""
    topic = f"{world.topic}.deduped"
    send(world, topic, day_ms(NIGHT), 10)
    ranges = {(topic, partition): Range(0, 5, 5, 5, 0) for partition in (0, 1)}

    async def ask(topic_id: str) -> tuple[dict[tuple[str, int], tuple[int, int]], str]:
        cut = Cut(job.load(world.config), "wall", ZoneInfo("UTC"))
        try:
            await cut.check_still_there({tp: (part.start, part.end) for tp, part in ranges.items()}, topic_id, {})
            found = await cut.ranges(Status([NightCommit(NIGHT, 1, ranges, topic_id=topic_id)], 1))
            return found.offsets, found.topic_id
        finally:
            await cut.close()

    found, topic_id = asyncio.run(ask(""))
    assert found == {(topic, 0): (5, 10), (topic, 1): (5, 10)}
    assert asyncio.run(ask(topic_id)) == (found, topic_id)
    with pytest.raises(Refused, match="was recreated"):
        asyncio.run(ask("f" * 32))


def test_a_table_is_not_continued_from_a_topic_that_was_cut_back_and_grew(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """By its offsets and its id alone it would be: the records behind the cut are others."""
    broker = make_broker(**{"log.retention.ms": -1})
    folder = tmp_path / "world"
    folder.mkdir()
    world = World(broker.bootstrap, folder)
    topic = f"{world.topic}.deduped"

    def ask(status: Status, planned: Ranges | None = None) -> Ranges:
        async def look() -> Ranges:
            cut = Cut(job.load(world.config), "wall", ZoneInfo("UTC"))
            try:
                if planned is not None:
                    await cut.check_same_log(planned.offsets, planned.topic_id, planned.epochs)
                return await cut.ranges(status)
            finally:
                await cut.close()

        return asyncio.run(look())

    def restart(log: Path | None = None) -> None:
        """Start the broker again, with a partition's folder as it was if one is given."""
        assert broker.stop() == 0
        if log is not None:
            put_back(log, broker.data)
        broker.start()

    def committed(planned: Ranges, noted: bool = True) -> Status:
        ranges = {tp: Range(start, end, end - start, end - start, 0) for tp, (start, end) in planned.offsets.items()}
        commit = NightCommit(NIGHT, 1, ranges, topic_id=planned.topic_id, epochs=planned.epochs if noted else {})
        return Status([NightCommit.from_json(commit.to_json())], 1)

    send(world, topic, day_ms(NIGHT), 5)
    assert broker.stop() == 0
    shutil.copytree(broker.data / f"{topic}-0", tmp_path / f"{topic}-0")
    broker.start()
    send(world, topic, day_ms(NIGHT), 5)
    first = ask(Status([], 0))
    assert first.offsets[topic, 0] == (0, 10)
    status = committed(first)
    restart()
    send(world, topic, day_ms("2013-01-02"), 2)
    second = ask(status, first)
    assert second.offsets[topic, 0] == (10, 12)
    restart(tmp_path / f"{topic}-0")
    send(world, topic, day_ms("2013-01-02"), 20)
    with pytest.raises(Refused, match=rf"{topic}-0: everything below 10 was read, .* ends at 5 .* was cut back"):
        ask(status)
    with pytest.raises(Refused, match="everything below 12 was read"):
        ask(status, second)
    # An earlier version noted no epochs: its nights go on.
    third = ask(committed(first, noted=False))
    assert third.offsets[topic, 0] == (10, 25)
    # In a log that was put back from a copy epochs come again, batches don't.
    end = third.epochs[topic, 0]
    assert end.last_batch is not None
    assert ask(committed(third)).offsets[topic, 0] == (25, 25)
    another = end._replace(last_batch=end.last_batch._replace(crc=end.last_batch.crc ^ 1))
    with pytest.raises(Refused, match=f"{topic}-0 is not the log that was loaded: the last batch below offset 25 was"):
        ask(committed(third._replace(epochs={(topic, 0): another})))
