"""The topic of moved records belongs to one stage: nobody else's records come out of it, and none of its own are lost."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.partitioner import partition_for
from penstock.pipeline.job import moved_topic
from penstock.pyx.record.rawbatch import records
from support.dedupe_world import World
from support.harness import BrokerProcess
from support.patience import until

WORDS = [f"id-{number}" for number in range(100)]
HOME = {word: partition_for(word.encode(), 2) for word in WORDS}


def ids(w: World, output: str) -> list[str]:
    """The ids in an output topic, each where it belongs."""
    found = []
    for partition in range(2):
        here = [(record.key or b"").decode() for batch in w.batches(output, partition) for record in records(batch)]
        assert all(HOME[word] == partition for word in here)
        found += here
    return sorted(found)


def test_two_stages_that_read_one_topic(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_misplaced="move") as w:
        name, output = f"{w.topic}-b", f"{w.topic}.other"
        more = {"penstock_dedupe_output_topic": output, "penstock_dedupe_data": tmp_path / "other"}
        other = w.other("other", penstock_dedupe_name=name, **more)
        w.stage.start()
        other.start()
        try:
            for partition in (0, 1, 0):
                w.send(partition, [w.batch(partition, WORDS, 0)])
            w.await_done()
            until(lambda: len(ids(w, output)) >= len(WORDS), "the other stage", other.text)
            w.send(1, [w.batch(1, ["id-0"], 0)])  # both have read all before
            w.await_done()
            assert w.stage.stop() == 0 and other.stop() == 0
            assert ids(w, w.output) == ids(w, output) == sorted(WORDS)
            assert w.exists(w.moved) and w.exists(moved_topic(w.topic, name)) and w.moved != moved_topic(w.topic, name)
        finally:
            other.kill()


def test_names_never_meet() -> None:
    pairs = [
        ("a", "b.c"),
        ("a.b", "c"),
        ("a_2eb", "c"),
        ("a", "b"),
        ("é", "c"),
        ("a/b", "c"),
        ("x" * 200, "y" * 200),
        ("x", "y" * 249),
    ]
    names = [moved_topic(topic, stage) for stage, topic in pairs]
    assert len(set(names)) == len(pairs) and all(len(name) <= 249 and name.startswith("penstock.moved.") for name in names)


def test_a_topic_of_that_name_that_somebody_else_made(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """A source's own topic may be called TOPIC.moved; and whatever has the stage's own name without its mark is not read."""
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_misplaced="move") as w:
        theirs = f"{w.topic}.moved"
        w.admin(lambda admin: admin.create_topics({theirs: 2, w.moved: 2}))
        for topic in (theirs, w.moved):
            for partition in range(2):
                words = [word for word in WORDS if HOME[word] == partition]
                w.send(partition, [w.batch(partition, words, 0, note=False)], topic)
        w.stage.start()
        for partition in range(2):
            w.stage.wait_for(f"{w.topic}-{partition} is STOPPED, the others go on: `{w.moved}` isn't this stage's")
        assert w.ask("status").returncode == 1
        assert w.stage.stop() == 1
        assert ids(w, w.output) == []
        w.admin(lambda admin: admin.delete_topics([w.moved]))
        w.stage.start()
        for partition in range(2):
            w.send(partition, [w.batch(partition, WORDS[:50], 0)])
        w.await_done()
        assert w.stage.stop() == 0
        assert ids(w, w.output) == sorted(WORDS[:50])


def positions(w: World, offset: int = 0) -> None:
    """Let the stage look as if an earlier version had made TOPIC.moved for it."""
    shared, group = f"{w.topic}.moved", f"penstock-dedupe.{w.topic}"
    topic_id = w.admin(lambda admin: admin.metadata([shared], refresh=True)).topics[shared].topic_id.hex()
    texts: dict[TopicPartition, tuple[int, str]] = {}
    for partition in range(2):
        at, noted = w.position(partition)
        fresh = {"topic_id": topic_id, "output_id": noted["output_id"], "partitions": 2}
        texts[w.topic, partition] = at, json.dumps({**noted, "moved_id": topic_id})
        texts[shared, partition] = offset, json.dumps(fresh)
    w.admin(lambda admin: admin.commit(group, texts))


def test_the_topic_of_an_earlier_version_is_read_on(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_misplaced="move") as w:
        w.stage.start()
        w.await_done()
        until(lambda: w.position(1)[0] >= 0, "the first positions", w.stage.text)
        assert w.stage.stop() == 0
        w.moved = f"{w.topic}.moved"
        w.admin(lambda admin: admin.create_topics({w.moved: 2}))
        for partition in range(2):
            words = [word for word in WORDS[:40] if HOME[word] == partition]
            w.send(partition, [w.batch(partition, words, 0, note=False)], w.moved)
        positions(w)
        for partition in range(2):
            w.send(partition, [w.batch(partition, WORDS, 0)])
        w.stage.start()
        w.await_done()
        assert {row["state"] for row in w.answer("status")} == {"reading"}
        assert w.stage.stop() == 0
        assert ids(w, w.output) == sorted(WORDS)
        assert not w.exists(moved_topic(w.topic, w.topic))


def test_a_lost_beginning_is_not_passed_over_for_another_decision(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_misplaced="move") as w:
        w.stage.start()
        w.send(0, [w.batch(0, [word for word in WORDS[:50] if HOME[word] == 0], 0)])
        w.await_done([0])
        until(lambda: w.position(1)[0] >= 0, "the first positions", w.stage.text)
        assert w.stage.stop() == 0
        w.answer("position", f"{w.topic}:0", "--at", "0", "--because", "another matter")
        half = w.other("half", penstock_dedupe_partitions="1", penstock_dedupe_data=tmp_path / "half").start()
        try:
            w.send(1, [w.batch(1, WORDS, 0)])
            w.await_done([1], half)
            assert half.stop() == 0
        finally:
            half.kill()
        end = w.end(w.moved, 0)
        assert end > 1
        w.admin(lambda admin: admin.delete_records({(w.moved, 0): end}))
        w.stage.start()
        w.stage.wait_for(f"{w.topic}-0 is STOPPED, the others go on: input: `{w.moved}` partition 0 begins at offset {end}")
        assert w.stage.stop() == 1
        w.answer("position", f"{w.topic}:0", "--at", "0", "--because", "what was moved is lost")
        assert w.position(0, w.moved)[1]["gap_ranges"] == f"0..{end - 1}"
        w.run_once()


def test_a_topic_of_moved_records_that_is_another_log_is_read_from_its_beginning(
    tmp_path: Path, shared_broker: BrokerProcess
) -> None:
    """The command that the words name lets the partition go on."""
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_misplaced="move") as w:
        w.stage.start()
        for partition in range(2):
            w.send(partition, [w.batch(partition, WORDS, 0)])
        w.await_done()
        assert w.stage.stop() == 0
        group, tp = f"penstock-dedupe.{w.topic}", (w.moved, 0)
        kept = w.admin(lambda admin: admin.committed(group, [tp]))[tp]
        assert kept is not None
        noted = json.loads(kept[1])
        noted["last_batch"][1] ^= 1
        w.admin(lambda admin: admin.commit(group, {tp: (kept[0], json.dumps(noted))}))
        w.stage.start()
        w.stage.wait_for(f"{w.topic}-0 is STOPPED")
        assert "is not the log that was read" in w.stage.text() and w.stage.stop() == 1
        w.answer("position", f"{w.topic}:0", "--at", "latest", "--because", "a copy was put back")
        w.run_once()
        assert ids(w, w.output) == sorted(WORDS)
