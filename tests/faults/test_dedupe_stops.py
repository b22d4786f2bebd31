"""What the dedupe stage must not decide by itself: it stops that partition, or itself, with words."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka

from penstock.pyx.record.rawbatch import split
from support.dedupe_rot import corrupt
from support.dedupe_world import LIMIT_S, World
from support.harness import BrokerProcess
from support.logs import put_back
from support.patience import until
from support.stages import StageProcess, write_properties


def one_sentence(stage: StageProcess) -> str:
    """The error that a stage ended with: one line, no traceback."""
    text = stage.text()
    assert "Traceback" not in text, text
    (line,) = (line for line in text.splitlines() if line.startswith("penstock: "))
    return line


def await_stopped(stage: StageProcess, why: str) -> None:
    """Wait until a partition stopped for that reason, then end the stage, which must say so by its exit code."""
    stage.wait_for("is STOPPED")
    assert stage.stop() == 1
    assert why in one_sentence(stage), stage.text()


def await_gone_on(w: World, stage: StageProcess, partition: int) -> None:
    """Wait for one partition while the other one is stopped."""
    w.await_done([partition], stage)
    w.check([partition])


def follow(w: World) -> None:
    """Run the commands that a stopped partition names, in their order."""
    (why,) = (line for line in w.stage.text().splitlines() if "is STOPPED" in line)
    for command in re.findall("`penstock ([^`]*)`", why):
        words = shlex.split(command.replace("OFFSET", "0"))
        more = ["--config", str(w.config)] if words[0] == "dedupe" else ["--yes", "-b", w.cluster.bootstrap]
        done = subprocess.run([sys.executable, "-m", "penstock", *words, *more], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


# Repair


def test_a_deleted_database_is_rebuilt(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, penstock_dedupe_memory_max_ids=1000) as w:
        for _ in range(2):
            w.fill(batches=10, count=300)
            w.run_once()
            shutil.rmtree(w.database)
        w.fill(batches=3, repeats=0.9)
        w.stage.start()
        w.finish()


def test_a_database_older_than_the_output_is_repaired(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, penstock_dedupe_memory_max_ids=1000) as w:
        w.fill(batches=10, count=300)
        w.run_once()
        shutil.copytree(w.database, tmp_path / "old")
        w.fill(batches=10, count=300)
        w.run_once()
        shutil.rmtree(w.database)
        (tmp_path / "old").rename(w.database)
        w.fill(batches=3, repeats=0.9)
        w.stage.start()
        w.finish()


def test_a_damaged_database_stops_its_partition(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_memory_max_ids=1000) as w:
        w.fill(batches=10, count=300)
        w.run_once()
        for path in (w.database / "ids").glob("*.sst"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        w.fill(batches=1)
        w.stage.start()
        await_gone_on(w, w.stage, 1)
        await_stopped(w.stage, "sets the store aside, and the next start builds it from the output")
        follow(w)
        w.stage.start()
        w.finish()


def test_ids_of_another_place_are_set_aside_by_the_command_that_is_said(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill(batches=1)
        w.run_once()
        (w.database / "belongs-to").write_text("another output\n")
        w.stage.start()
        await_stopped(w.stage, "has the ids of another output, not those of")
        follow(w)
        w.fill(batches=1, repeats=0.9)
        w.stage.start()
        w.finish()


def test_what_a_partition_stood_still_for_is_forgotten_once_it_is_over(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.run_once()
        for path in (w.database / "ids").glob("*.sst"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        w.stage.start()
        until(lambda: w.position()[1]["stopped"] != "", "the position to say why", w.stage.text)
        status = w.ask("status")
        assert status.returncode == 1 and "stopped" in status.stdout and "the store failed" in status.stdout
        assert w.stage.stop() == 1
        shutil.rmtree(w.database)
        w.stage.start()  # with nothing more to read
        until(lambda: w.position()[1]["stopped"] == "", "the position to say no more", w.stage.text)
        assert w.stage.stop() == 0
        w.check()


def test_a_recreated_output_stops(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """Any host sees why, and the way on that the sentence says works."""
    with World(tmp_path, shared_broker, penstock_watch_ms=200) as w:
        w.fill()
        w.stage.start()
        w.await_done()
        w.admin(lambda admin: admin.delete_topics([w.output]))
        w.admin(lambda admin: admin.create_topics({w.output: w.partitions}))
        until(lambda: "recreated" in w.position()[1]["stopped"], "the position to say why", w.stage.text)
        status = w.ask("status")
        assert status.returncode == 1 and "the output topic was recreated" in status.stdout
        await_stopped(w.stage, "the output topic was recreated")
        follow(w)
        w.stage.start()
        w.finish()


def test_a_recreated_output_within_a_turn(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """The batches are on their way when the topic is replaced: they must not follow the name into the new one."""
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.stage.start("dedupe.sifted=stop@1")
        w.stage.wait_for_state("T")
        w.admin(lambda admin: admin.delete_topics([w.output]))
        w.admin(lambda admin: admin.create_topics({w.output: w.partitions}))
        w.stage.signal(signal.SIGCONT)
        await_stopped(w.stage, "the output topic was recreated")
        assert w.admin(lambda admin: admin.end_offset((w.output, 0))) == 0


def test_an_output_that_ends_before_the_store_stops(tmp_path: Path, make_broker: Callable[..., BrokerProcess]) -> None:
    """A broker that lost the end of its log (here: an old copy of its data folder)."""
    broker = make_broker()
    with World(tmp_path / "w", broker, penstock_dedupe_memory_max_ids=1000) as w:
        w.fill(batches=2)
        w.run_once()
        assert broker.stop() == 0
        shutil.copytree(broker.data, tmp_path / "old")
        broker.start()
        w.fill(batches=10, count=300)
        w.run_once()
        assert broker.stop() == 0
        shutil.rmtree(broker.data)
        (tmp_path / "old").rename(broker.data)
        broker.start()
        w.stage.start()
        await_stopped(w.stage, "the topic was cut back")


# Two at once


def test_the_same_folder_twice_is_refused_and_harms_nobody(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.stage.start()
        second = w.other("second")
        second.start(await_started=False)
        assert second.wait() == 1
        assert "is in use by another process: stop it, or give each" in one_sentence(second)
        w.fill()
        w.finish()


def test_a_folder_that_cannot_be_made(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    (tmp_path / "file").write_text("")
    with World(tmp_path, shared_broker, penstock_dedupe_data=tmp_path / "file" / "data") as w:
        w.stage.start(await_started=False)
        assert w.stage.wait() == 1
        assert "can't be used" in one_sentence(w.stage)


def test_stopped_at_any_moment_without_a_crash(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, penstock_dedupe_memory_max_ids=1000, penstock_dedupe_batch_bytes=4000) as w:
        for pause_s in (0, 0.05, 0.15):
            w.fill(batches=20, count=500)
            w.stage.start()
            time.sleep(pause_s)
            assert w.stage.stop() == 0, w.stage.text()
        for pause_s in (0.4, 0.6):  # before it has said that it is started
            w.stage.start(await_started=False)
            time.sleep(pause_s)
            w.stage.signal(signal.SIGTERM)
            assert w.stage.wait() in (0, -signal.SIGTERM), w.stage.text()
        w.stage.start()
        w.finish()


# Bad input


def test_a_corrupt_batch_is_kept_aside_and_counted(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        bad = corrupt(w, count=7)
        w.send(0, [w.batch(0, ["a", "b"], 4), bad, w.batch(0, ["b", "c"], 4), corrupt(w, codec=1)])
        w.fill()
        w.stage.start()
        w.finish()
        assert w.position()[1]["quarantined"] == 10
        aside = w.corrupt_aside()
        (kept,) = split(aside[min(aside)])
        assert len(aside) == 2 and (kept.base_offset, bytes(kept.payload)) == (2, bad[61:])


def test_a_recreated_input_stops(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.stage.start()
        w.await_done()
        written = len(w.records())
        tp, group = (w.topic, 0), f"penstock-dedupe.{w.topic}"
        position = w.admin(lambda admin: admin.committed(group, [tp]))[tp]
        assert position is not None
        w.admin(lambda admin: admin.delete_topics([w.topic]))
        w.admin(lambda admin: admin.create_topics({w.topic: 1}))
        w.send(0, [w.batch(0, ["new"], 0)])
        # With its topic a committed position goes too, unless the coordinator is late.
        w.stage.wait_for("is STOPPED")
        assert w.stage.stop() == 1
        w.admin(lambda admin: admin.commit(group, {tp: position}))
        w.stage.start()
        await_stopped(w.stage, "the input topic was recreated")
        assert len(w.records()) == written


def test_partition_counts_that_differ_stop(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.stage.start()
        w.await_done()
        w.admin(lambda admin: admin.create_partitions({w.topic: 2}))
        await_stopped(w.stage, "had 1 partitions when the stage began and has 2 now")
        w.stage.start()
        await_stopped(w.stage, "had 1 partitions when the stage began and has 2 now")


def test_topics_that_grew_together_stop(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """An id would meet another worker than before, which doesn't know it."""
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.stage.start()
        w.await_done()
        w.admin(lambda admin: admin.create_partitions({w.output: 2, w.topic: 2}))
        w.stage.wait_for("is STOPPED")
        assert w.stage.stop() == 1
        w.send(1, [w.batch(1, ["another"], 0)])
        w.stage.start()
        for partition in (0, 1):
            w.stage.wait_for(f"{w.topic}-{partition} is STOPPED, the others go on: `{w.topic}` had 1 partitions when")
        assert w.stage.stop() == 1
        assert w.records(1) == []


def test_a_position_that_nobody_of_us_wrote(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """Status shows it beside the other partitions. The commands that the sentence names work, also where names have blanks."""
    with World(tmp_path / "it's here", shared_broker, partitions=2) as w:
        name = f"o'hare {w.topic}"
        w.properties["penstock.dedupe.name"] = name
        write_properties(w.config, w.properties)
        w.fill(batches=1)
        w.run_once()
        group = f"penstock-dedupe.{name}"
        w.admin(lambda admin: admin.commit(group, {(w.topic, 1): (50, "somebody")}))
        status = w.ask("status", "--json")
        first, second = json.loads(status.stdout)
        assert (status.returncode, first["state"], second["state"], second["offset"]) == (1, "reading", "stopped", 50)
        assert f"`penstock groups delete {shlex.quote(group)} --topic {w.topic}:1`" in second["why"]
        w.fill(batches=1)
        w.stage.start()
        await_stopped(w.stage, f"the position of {w.topic}-1 in group `{group}` is offset 50")
        follow(w)
        w.run_once()
        assert [int(record.value or b"") for record in w.records(1)] == w.expected(1)


def test_an_output_without_a_position_stops(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.run_once()
        written = len(w.records())
        w.admin(lambda admin: admin.delete_groups([f"penstock-dedupe.{w.topic}"]))
        w.stage.start()
        await_stopped(w.stage, "no input position")
        assert len(w.records()) == written


def test_an_expired_input_stops_its_partition_alone(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2) as w:
        w.fill()
        w.run_once()
        w.fill()
        w.admin(lambda admin: admin.delete_records({(w.topic, 0): 700}))
        w.stage.start()
        await_gone_on(w, w.stage, 1)
        w.fill()
        await_gone_on(w, w.stage, 1)
        assert w.position(0)[0] == 500
        await_stopped(w.stage, "the offsets from 500 to 700 are gone before they were read")


def test_an_input_that_lost_its_beginning_stops(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """Events older than the topic's retention are gone before a new stage has read them: it must not begin behind them."""
    with World(tmp_path, shared_broker, partitions=2) as w:
        w.fill()
        w.admin(lambda admin: admin.delete_records({(w.topic, 0): 300}))
        w.stage.start()
        await_gone_on(w, w.stage, 1)
        await_stopped(w.stage, "the offsets from 0 to 300 are gone before they were read")


def test_an_input_that_was_cut_back_and_has_grown_again(tmp_path: Path, make_broker: Callable[..., BrokerProcess]) -> None:
    """Its end is past the position once more, but what was read under the last leader epoch is not in it."""
    broker = make_broker()
    with World(tmp_path / "w", broker) as w:
        w.fill()
        assert broker.stop() == 0
        shutil.copytree(broker.data / f"{w.topic}-0", tmp_path / f"{w.topic}-0")
        broker.start()
        w.fill()
        w.run_once()
        assert broker.stop() == 0
        put_back(tmp_path / f"{w.topic}-0", broker.data)
        broker.start()
        w.fill(batches=10)
        assert w.end(w.topic) > w.position()[0]
        w.stage.start()
        await_stopped(w.stage, "was cut back: it knows no epoch")


def test_a_partition_that_the_input_does_not_have(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, penstock_dedupe_partitions="0,7") as w:
        w.stage.start(await_started=False)
        assert w.stage.wait() != 0
        assert "has no partition 7" in one_sentence(w.stage)


def test_an_input_that_is_not_there_is_waited_for_or_refused(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.stage = nowhere = w.other("nowhere", topics=f"{w.topic}-not-there")  # ended with the world, whatever fails
        nowhere.start(await_started=False)
        nowhere.wait_for(f"waits to find topic `{w.topic}-not-there`")
        assert nowhere.stop() == 0


def test_a_transaction_that_hangs_in_one_output_partition_holds_up_that_one(
    tmp_path: Path, shared_broker: BrokerProcess
) -> None:
    with World(tmp_path, shared_broker, partitions=2) as w:
        w.fill()
        w.run_once()
        w.fill()
        producer = confluent_kafka.Producer({"bootstrap.servers": shared_broker.bootstrap, "transactional.id": w.topic})
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        producer.produce(w.output, b"somebody else's", partition=0)
        producer.flush(LIMIT_S)
        w.stage.start()
        await_gone_on(w, w.stage, 1)
        w.stage.wait_for(f"a transaction is open in `{w.output}` partition 0")
        until(lambda: "a transaction is open in" in w.position()[1]["stalled"], "the position to say so", w.stage.text)
        assert w.stage.running and w.position(0)[0] != w.end(w.topic, 0)
        producer.abort_transaction(LIMIT_S)
        w.await_done()
        assert w.position()[1]["stalled"] == ""
        assert w.stage.stop() == 0
        w.check()
