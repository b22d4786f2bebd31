"""The dedupe stage as a process: repeats dropped once and for all, positions and counters that agree with the logs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka

from penstock.pipeline.clients.admin import TOPIC_RESOURCE
from penstock.pipeline.clients.partitioner import partition_for
from penstock.pyx.record.builder import BatchBuilder
from support.dedupe_world import CODECS, World
from support.harness import BrokerProcess


def test_repeats_within_and_across_batches_and_restarts(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_memory_max_ids=1000) as w:
        for _ in range(3):
            w.fill(batches=10)
            w.stage.start()
            w.await_done()
            w.fill(batches=5, count=300)  # all codecs again, while it runs
            w.await_done()
            assert w.stage.stop() == 0, w.stage.text()
            w.check()
        assert list((w.database / "ids").glob("*.sst")), "files of ids were not written"


def test_a_batch_without_repeats_goes_on_untouched(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        for codec in CODECS:
            w.send(0, [w.batch(0, w.some_ids(0, 50, repeats=0), codec) for _ in range(3)])
        w.run_once()
        given, gone_on = w.batches(w.topic), w.batches(w.output)
        assert [bytes(batch.payload) for batch in gone_on] == [bytes(batch.payload) for batch in given]
        assert [batch.max_timestamp for batch in gone_on] == [batch.max_timestamp for batch in given]
        assert {batch.codec for batch in gone_on} == set(CODECS)
        w.check()


def test_a_batch_with_a_repeat_keeps_its_codec_keys_and_timestamps(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        for codec in CODECS:
            w.send(0, [w.batch(0, ["twice", f"other-{codec}", "twice"], codec)])
        w.run_once()
        assert [batch.codec for batch in w.batches(w.output)] == list(CODECS)
        assert [record.key for record in w.records()] == [b"twice"] + [b"other-%d" % codec for codec in CODECS]
        w.check()


def test_stock_consumers_read_the_output(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill(batches=10)
        w.run_once()
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": shared_broker.bootstrap, "group.id": w.topic, "check.crcs": True}
        )
        consumer.assign([confluent_kafka.TopicPartition(w.output, 0, 0)])
        wanted = w.expected()
        values: list[int] = []
        while len(values) < len(wanted):
            message = consumer.poll(30)
            assert message is not None and message.error() is None
            values.append(int(message.value()))
        consumer.close()
        assert values == wanted


def test_records_without_id_pass_and_are_counted(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.send(0, [w.batch(0, [None, "a", None, "a", ""], 3), w.batch(0, [None, None], 0), w.batch(0, ["", "b"], 4)])
        w.stage.start()
        w.finish()
        counters = w.position()[1]
        assert (counters["without_id"], counters["dropped"]) == (6, 1)


def test_records_with_an_empty_key_are_not_repeats_of_each_other(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.send(0, [w.batch(0, ["", "", ""], 0)])
        w.run_once()
        assert [record.value for record in w.records()] == [b"0", b"1", b"2"]


def test_words_of_json_that_many_records_share_are_no_ids(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    shared = [b"null", b'""', b"true", b"false", b"NaN", b"Infinity", b"-Infinity", b"{}", b'["a"]', b"1e400", b"1.0"]
    with World(tmp_path, shared_broker, penstock_dedupe_id="json:id") as w:
        builder = BatchBuilder()
        for word in (*shared, *shared, b"1", b'"1"'):
            builder.append(None, b'{"id": %s}' % word, 1)
        w.send(0, [builder.build()])
        w.run_once()
        gone_on = [(record.value or b"")[7:-1] for record in w.records()]
        # A number that no computer's double holds is an id like any other; "1" and 1 are one.
        assert gone_on == [*shared, *shared[:-2], b"1"]
        assert (w.position()[1]["without_id"], w.position()[1]["dropped"]) == (18, 3)


def test_records_without_id_in_quarantine(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_without_id="quarantine") as w:
        for partition in (0, 1):
            w.send(
                partition,
                [w.batch(partition, ids, codec) for ids, codec in ((["a", None, "", "a"], 3), (["", None], 0))],
            )
        w.stage.start()
        w.await_done()
        w.fill()
        w.finish()
        first, *_ = w.quarantined(1)
        came = {"topic": w.topic.encode(), "partition": b"1", "offset": b"1", "reason": b"no id (id by key)"}
        assert (first.key, dict(first.headers)) == (None, came)


def test_a_record_without_id_stops_its_partition_if_each_must_have_one(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_without_id="stop") as w:
        w.fill()
        w.stage.start()
        w.await_done()
        w.send(0, [w.batch(0, ["a", ""], 0)])
        w.stage.wait_for("is STOPPED")
        assert "the record at offset 501 has no id (id by key)" in w.stage.text()
        w.send(1, [w.batch(1, ["b"], 0)])
        w.await_done([1])
        assert w.stage.stop() == 1
        w.check([1])
        assert w.position()[0] == 500
        passing = w.other("passing", penstock_dedupe_without_id="pass")
        passing.start()
        w.await_done(stage=passing)
        assert passing.stop() == 0
        w.check()


def test_ids_in_the_wrong_partition_are_counted_and_said(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    words = [f"id-{number}" for number in range(300)]
    home = {word: partition_for(word.encode(), 3) for word in words}
    with World(tmp_path, shared_broker, partitions=3) as w:
        for partition in range(3):
            w.send(partition, [w.batch(partition, [word for word in words if home[word] == partition], 3)])
        w.stage.start()
        w.await_done()
        assert [w.position(partition)[1]["misplaced"] for partition in range(3)] == [0, 0, 0]
        assert "another partition" not in w.stage.text()
        strangers = [word for word in words if home[word] != 1][:20]
        at = w.position(1)[0]
        for _ in range(3):
            w.send(1, [w.batch(1, [None, *strangers], 3)])
            w.await_done()
        assert w.position(1)[1]["misplaced"] == 60
        said = f"20 of 21 ids just read (the first at offset {at + 1}; 20 of {at + 21} since the stage began)"
        assert w.stage.text().count(said) == w.stage.text().count("another partition") == 1
        assert [row["misplaced"] for row in w.answer("status")] == [0, 60, 0]
        assert w.stage.stop() == 0
        w.check()


def test_ids_in_the_wrong_partition_move(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """Each id once, in its partition, whatever partitions its copies came in; also those that came before the topic of moved
    records was there, and over a restart."""
    words = [f"id-{number}" for number in range(200)]
    home = {word: partition_for(word.encode(), 3) for word in words}
    with World(tmp_path, shared_broker, partitions=3, penstock_dedupe_misplaced="move") as w:
        w.send(0, [w.batch(0, [word for word in words if home[word] == 0], 0)])
        w.stage.start()
        w.await_done()
        assert not w.exists(w.moved)
        for codec in CODECS:
            for partition in range(3):
                chosen = w.random.sample(words, 80)
                w.send(partition, [w.batch(partition, [None, *chosen, "", *chosen[:3]], codec)])
            if codec == 2:
                w.await_done()
                assert w.stage.stop() == 0
                w.stage.start()
        w.await_done()
        w.check_moved(home)
        assert w.stage.stop() == 0
        w.stage.start()
        for partition in range(3):
            w.send(partition, [w.batch(partition, words, 3)])
        w.await_done()
        w.check_moved(home)
        assert {row["state"] for row in w.answer("status")} == {"reading"}
        assert w.stage.stop() == 0


def test_ids_of_a_header_beside_another_key_move(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """Producers part records by key; the ids are elsewhere, and so are their repeats."""
    words = [f"id-{number}" for number in range(100)]
    home = {word: partition_for(word.encode(), 2) for word in words}
    properties = {"penstock_dedupe_misplaced": "move", "penstock_dedupe_id": "header:id"}
    with World(tmp_path, shared_broker, partitions=2, **properties) as w:
        w.stage.start()
        for partition in (0, 1, 1, 0):
            w.send(partition, [w.batch(partition, words, 4, header="id")])
        w.await_done()
        w.check_moved(home)
        assert w.stage.stop() == 0


def test_a_topic_of_moved_records_that_was_recreated_stops_its_partitions(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_misplaced="move") as w:
        wrong = partition_for(b"a", 2) ^ 1
        w.send(wrong, [w.batch(wrong, ["a"], 0)])
        w.stage.start()
        w.await_done()
        w.admin(lambda admin: admin.delete_topics([w.moved]))
        for partition in (0, 1):
            w.stage.wait_for(f"{w.topic}-{partition} is STOPPED, the others go on: `{w.moved}` was deleted")
        for partition in (0, 1):
            at = str(w.position(partition)[0])
            w.answer("position", f"{w.topic}:{partition}", "--at", at, "--because", "nothing was left in it")
        w.send(wrong, [w.batch(wrong, ["b", "c", "d", "a"], 0)])
        w.await_done()
        w.check_homes({word: partition_for(word.encode(), 2) for word in "abcd"})
        assert w.stage.stop() == 0


def test_an_id_in_the_wrong_partition_stops_it_if_none_may_be(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_misplaced="stop") as w:
        w.stage.start()
        wrong = partition_for(b"a", 2) ^ 1
        w.send(wrong, [w.batch(wrong, [None, "a"], 0)])
        w.stage.wait_for(f"{w.topic}-{wrong} is STOPPED, the others go on: the id of the record at offset 1 of")
        assert "`penstock.dedupe.misplaced=move` sends them there, `pass` lets them through" in w.stage.text()
        assert w.stage.stop() == 1
        assert w.position(wrong)[0] == 0


def test_ids_in_a_header(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, penstock_dedupe_id="header:message-id") as w:
        for codec in CODECS:
            w.send(0, [w.batch(0, ["a", None, f"b{codec}", "a"], codec, header="message-id")])
        w.stage.start()
        w.finish()
        assert dict(w.records()[0].headers) == {"message-id": b"a"}
        # The ids in the folder are those of a header: it is refused for others.
        keys = w.other("keys", penstock_dedupe_id="key")
        keys.start(await_started=False)
        keys.wait_for("is STOPPED")
        assert "has the ids of" in keys.text() and ": set `penstock.dedupe.id` as it was, or stop the stage" in keys.text()
        assert keys.stop() == 1


def test_other_transactions_of_the_input(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """Aborted input is nothing, and a marker at the end moves the position too."""
    with World(tmp_path, shared_broker) as w:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": shared_broker.bootstrap, "transactional.id": w.topic, "linger.ms": 0}
        )
        producer.init_transactions()
        for number, commit in enumerate((True, False, True)):
            producer.begin_transaction()
            for word in ("a", f"b{number}"):
                producer.produce(w.topic, b"%d" % number, word.encode(), partition=0)
            assert producer.flush(60) == 0  # An abort drops what was not sent.
            if commit:
                w.sent[0] += [("a", number), (f"b{number}", number)]
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        w.stage.start()
        w.finish()


def test_a_batch_larger_than_the_output_takes_is_split(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.admin(lambda admin: admin.create_topics({w.output: 1}, configs={"max.message.bytes": "5000"}))
        w.send(0, [w.batch(0, w.some_ids(0, 2000), 0), w.batch(0, w.some_ids(0, 50), 0)])
        w.run_once()
        assert all(batch.size_in_bytes <= 5000 for batch in w.batches(w.output))
        w.check()


def test_a_record_larger_than_the_output_takes_stops(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.admin(lambda admin: admin.create_topics({w.output: 1}, configs={"max.message.bytes": "5000"}))
        w.send(0, [w.batch(0, ["a", "b" * 6000], 0)])
        w.stage.start()
        w.stage.wait_for("of the topic that it goes to: raise that, then start the stage again")
        assert w.stage.stop() == 1
        w.admin(lambda admin: admin.alter_configs(TOPIC_RESOURCE, w.output, {"max.message.bytes": "50000"}))
        w.stage.start()
        w.finish()


def test_batches_that_inflate_to_a_lot(tmp_path: Path, make_broker: Callable[..., BrokerProcess]) -> None:
    """A few kilobytes that are hundreds of megabytes inside: opened one after the other. A broker that opens batches would
    refuse these."""
    with World(tmp_path, make_broker(**{"penstock.validate.records": "headers"})) as w:
        builder = BatchBuilder(4, max_bytes=1 << 30)
        assert builder.append(b"large", bytes(130 << 20), 1)
        w.send(0, [builder.build(), w.batch(0, ["a", "a"], 0), builder.build()])
        w.run_once()
        assert [record.key for record in w.records()] == [b"large", b"a"]
        assert w.position()[1]["dropped"] == 2


def test_records_of_any_time_go_on(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """What the input took, all topics that the stage makes take; one that was made narrower stops it with words."""
    any_time = {f"message.timestamp.{side}.max.ms": str((1 << 63) - 1) for side in ("before", "after")}
    options = {"penstock_dedupe_misplaced": "move", "penstock_dedupe_without_id": "quarantine"}
    words = [f"id {n}" for n in range(60)]

    def far() -> bytes:
        builder, ahead_ms = BatchBuilder(0, any_time=True), time.time_ns() // 1_000_000 + 7_200_000
        for word in words:
            assert builder.append(word.encode(), b"7", ahead_ms)
        assert builder.append(None, b"7", ahead_ms) and builder.append(None, b"7", -2)
        return builder.build()

    with World(tmp_path, shared_broker, partitions=2, **options) as world:
        world.admin(lambda admin: admin.alter_configs(TOPIC_RESOURCE, world.topic, any_time))
        world.stage.start()
        for partition in range(2):
            world.send(partition, [far()])
        world.await_done()
        assert sum(len(world.records(partition)) for partition in range(2)) == len(words)
        assert [len(world.quarantined(partition)) for partition in range(2)] == [2, 2]
        narrow = {"message.timestamp.after.max.ms": "1000"}
        world.admin(lambda admin: admin.alter_configs(TOPIC_RESOURCE, world.output, narrow))
        words = ["another"]
        home = partition_for(b"another", 2)
        world.send(home, [far()])
        world.stage.wait_for("is STOPPED")
        said = f"`{world.output}` refuses a batch of what is read of `{world.topic}` from offset 62 up to 65"
        assert said in world.stage.text()
        world.admin(lambda admin: admin.alter_configs(TOPIC_RESOURCE, world.output, any_time))
        assert world.stage.stop() == 1
        world.stage.start()
        world.await_done()
        assert world.records(home)[-1].key == b"another"
