"""What a mirror must not decide by itself stops that partition, says why, and lets the others go on."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pyx.record.rawbatch import records
from support.harness import BrokerProcess
from support.logs import put_back
from support.mirror_world import LIMIT_S, World, alone


def stops(w: World, partition: int, *words: str) -> None:
    """The partition stopped with these words, once; the other ones of the topic go on."""
    w.mirror.wait_for(f"{w.topic}-{partition} is STOPPED")
    others = [p for p in range(w.partitions) if p != partition]
    w.await_copied(partitions=others)
    said = [line for line in w.mirror.text().splitlines() if "STOPPED" in line]
    assert len(said) == 1 and all(word in said[0] for word in words), said
    assert w.mirror.stop() == 1
    last = w.mirror.text().splitlines()[-1]
    assert last.startswith(f"penstock: EWR/{w.topic}-{partition} stopped: ") and words[0] in last


def quarantined(w: World) -> list[tuple[bytes | None, dict[str, str]]]:
    """The committed records of the quarantine topic: values and headers."""

    async def read(admin: Admin) -> list[tuple[bytes | None, dict[str, str]]]:
        fetcher = Fetcher(admin, max_wait_ms=500)
        fetcher.assign({("penstock.quarantine", 0): 0})
        found = [record for part in await fetcher.fetch() for batch in part.batches for record in records(batch)]
        await fetcher.close()
        return [(one.value, {name: (text or b"").decode() for name, text in one.headers}) for one in found]

    return w.admin(w.target, read)


def test_a_missing_position(w: World, clusters: dict[str, BrokerProcess]) -> None:
    w.fill()
    w.run_once()
    kept = w.positions("EWR")[1]
    assert kept is not None
    w.admin(clusters["target"], lambda admin: admin.delete_groups([w.group("EWR")]))
    w.admin(clusters["target"], lambda admin: admin.commit(w.group("EWR"), {(w.topic, 1): kept}))
    w.fill()
    w.mirror.start()
    stops(w, 0, "no position of source EWR", f"`penstock mirror begin EWR {w.topic}:0 --at earliest --because TEXT`")
    said = w.mirror.text()
    assert said.index(f"begin EWR {w.topic}:0 --at OFFSET") < said.index(f"begin EWR {w.topic}:0 --at earliest")
    assert w.positions("EWR")[0] is None


def test_the_command_for_a_source_whose_name_has_blanks(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """The sentence's command, read as a shell reads it, is the one that lets the partition go on."""
    source = "O'Hare east"
    with World(tmp_path / "it's here", {source: clusters["EWR"]}, clusters["target"]) as w:
        w.fill(2)
        w.run_once()
        w.fill(2)
        w.admin(clusters["EWR"], lambda admin: admin.delete_records({(w.topic, 0): 30}))
        w.mirror.start()
        w.mirror.wait_for(f"{w.topic}-0 is STOPPED")
        assert w.mirror.stop() == 1
        (said,) = set(re.findall("`penstock mirror (begin [^`]*)`", w.mirror.text()))
        w.operate(*shlex.split(said))
        w.ids[source, 0] = w.ids[source, 0][:20] + w.ids[source, 0][30:]
        del w.payloads[source, 0][2]
        w.mirror.start()
        w.finish()


def test_a_position_that_no_mirror_wrote(w: World, clusters: dict[str, BrokerProcess]) -> None:
    w.fill()
    w.run_once()
    w.admin(clusters["target"], lambda admin: admin.commit(w.group("EWR"), {(w.topic, 0): (3, "")}))
    w.fill()
    w.mirror.start()
    stops(w, 0, "which no mirror wrote")


def test_offsets_gone_at_the_source(w: World, clusters: dict[str, BrokerProcess]) -> None:
    w.fill(2)
    w.run_once()
    w.fill(2)  # ten records a batch: 20 to 40 come now
    w.admin(clusters["EWR"], lambda admin: admin.delete_records({(w.topic, 0): 30}))
    w.mirror.start()
    stops(w, 0, "from 20 to 30 are gone", f"`penstock mirror begin EWR {w.topic}:0 --at earliest --because TEXT`")
    # The operator knows that they are lost.
    w.ids["EWR", 0] = w.ids["EWR", 0][:20] + w.ids["EWR", 0][30:]
    del w.payloads["EWR", 0][2]
    w.begin("EWR", f"{w.topic}:0")
    assert w.status()["EWR", 0]["gaps"] == 10
    w.mirror.start()
    w.finish()


def test_a_source_that_lost_its_beginning(w: World, clusters: dict[str, BrokerProcess]) -> None:
    """Nobody has copied these offsets and nobody will: a first start says so instead of beginning behind them."""
    w.fill(3)
    w.admin(clusters["EWR"], lambda admin: admin.delete_records({(w.topic, 0): 20}))
    w.mirror.start()
    w.mirror.wait_for(f"{w.topic}-0 is STOPPED")
    way = f"penstock mirror begin EWR {w.topic}:0 --at earliest"
    for words in ("begins at offset 20", f"`{w.topic}` partition 0", "from 0 to 20", way):
        assert words in w.mirror.text()
    del w.ids["EWR", 0][:20], w.payloads["EWR", 0][:2]
    assert "goes on at 20; gaps so far: 20 offsets" in w.begin("EWR", f"{w.topic}:0")
    w.await_copied()  # without a restart
    assert w.mirror.stop() == 0
    w.check()


def test_offsets_go_while_it_runs(w: World, clusters: dict[str, BrokerProcess]) -> None:
    """Retention is faster than a mirror that was held up: the fetch itself finds its offset gone."""
    w.fill(2)
    w.mirror.start()
    w.await_copied()
    w.mirror.signal(signal.SIGSTOP)
    w.fill(20)
    w.admin(clusters["EWR"], lambda admin: admin.delete_records({(w.topic, 0): -1}))
    w.mirror.signal(signal.SIGCONT)
    stops(w, 0, "are gone before they were read")


@pytest.mark.parametrize("running", [True, False])
def test_a_recreated_topic(w: World, clusters: dict[str, BrokerProcess], running: bool) -> None:
    w.partitions = 1  # all of them are recreated
    w.fill()
    w.mirror.start()
    w.await_copied()
    if not running:
        assert w.mirror.stop() == 0
    w.admin(clusters["EWR"], lambda admin: admin.delete_topics([w.topic]))
    w.partitions = 2
    w.create(clusters["EWR"])
    w.fill(sources=["EWR"])
    if not running:
        w.mirror.start()
    for partition in range(2):
        w.mirror.wait_for(f"{w.topic}-{partition} is STOPPED, the others go on: the source topic was recreated")
    w.begin("EWR")
    w.finish()


def test_a_decision_holds_once(w: World, clusters: dict[str, BrokerProcess]) -> None:
    """A lane that was told to begin still stops for a topic that is recreated weeks later."""
    w.fill()
    w.mirror.start()
    w.await_copied()
    for partition in range(2):
        w.begin("EWR", f"{w.topic}:{partition}", at="latest")
    w.fill()
    w.await_copied()
    w.admin(clusters["EWR"], lambda admin: admin.delete_topics([w.topic]))
    w.create(clusters["EWR"])
    w.fill(sources=["EWR"])
    for partition in range(2):
        w.mirror.wait_for(f"{w.topic}-{partition} is STOPPED, the others go on: the source topic was recreated")
    assert w.mirror.stop() == 1


@pytest.mark.parametrize("running", [True, False])
def test_a_recreated_target_topic(w: World, clusters: dict[str, BrokerProcess], running: bool) -> None:
    w.fill()
    w.mirror.start()
    w.await_copied()
    if not running:
        assert w.mirror.stop() == 0
    kept = {(w.topic, p): position for p, position in w.positions("EWR").items() if position is not None}
    assert len(kept) == 2
    w.admin(clusters["target"], lambda admin: admin.delete_topics([w.topic]))
    w.create(clusters["target"])
    # A broker that forgets a deleted topic's positions makes it a topic that was never copied to; one that keeps
    # them must not make us believe that the copy is still there.
    w.admin(clusters["target"], lambda admin: admin.commit(w.group("EWR"), kept))
    if not running:
        w.mirror.start()
    for partition in range(2):
        w.mirror.wait_for(f"{w.topic}-{partition} is STOPPED, the others go on: the target topic was recreated")
    assert {row["state"] for row in w.status(code=1).values()} == {"stopped"}
    w.begin("EWR")
    w.finish()


def test_a_recreated_target_topic_within_a_turn(w: World, clusters: dict[str, BrokerProcess]) -> None:
    """The batches are on their way when the topic is replaced: they must not follow the name into the new one."""
    w.partitions = 1
    w.fill()
    w.mirror.start("mirror.begun=stop@1")
    w.mirror.wait_for_state("T")
    kept = {(w.topic, p): position for p, position in w.positions("EWR").items() if position is not None}
    w.admin(clusters["target"], lambda admin: admin.delete_topics([w.topic]))
    w.partitions = 2
    w.create(clusters["target"])
    w.admin(clusters["target"], lambda admin: admin.commit(w.group("EWR"), kept))
    w.mirror.signal(signal.SIGCONT)
    w.mirror.wait_for(f"{w.topic}-0 is STOPPED, the others go on: the target topic was recreated")
    assert w.mirror.stop() == 1
    assert w.batches() == {0: [], 1: []}


@pytest.mark.parametrize("running", [True, False])
def test_partition_counts_that_differ(w: World, clusters: dict[str, BrokerProcess], running: bool) -> None:
    if running:
        w.mirror.start()
    else:
        w.create(clusters["target"])
    w.admin(clusters["EWR"], lambda admin: admin.create_partitions({w.topic: 3}))
    if not running:
        w.mirror.start()
    for partition in range(2):
        w.mirror.wait_for(f"{w.topic}-{partition} is STOPPED, the others go on: topic {w.topic} has 3 partitions at")
    # The way that the words name, as an operator goes it.
    (words,) = set(re.findall(r"`(penstock topics grow .+?) -b TARGET`", w.mirror.text()))
    assert "a dedupe stage that reads the target's topic stops" in w.mirror.text()
    command = [sys.executable, "-m", *shlex.split(words), "-b", clusters["target"].bootstrap]
    assert subprocess.run(command, check=False, timeout=LIMIT_S, stdout=subprocess.DEVNULL).returncode == 0
    w.partitions = 3
    w.fill(1)
    w.finish()


def test_a_record_too_large(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    sources = {"EWR": clusters["EWR"]}
    with World(tmp_path, sources, clusters["target"], target_configs={"max.message.bytes": "2000"}) as w:
        w.partitions = 1
        w.fill(1)
        w.fill(1, count=1, size=9000)
        w.partitions = 2
        w.mirror.start()
        w.mirror.wait_for(f"{w.topic}-0 is STOPPED")
        way = f"raise that, then `penstock mirror retry EWR {w.topic}:0 --because TEXT`; or `penstock mirror skip "
        assert "more than `max.message.bytes`" in w.mirror.text() and way in w.mirror.text()
        w.await_copied(partitions=[1])
        w.admin(clusters["target"], lambda admin: admin.alter_configs(2, w.topic, {"max.message.bytes": "20000"}))
        w.operate("retry", "EWR", f"{w.topic}:0", "--because", "max.message.bytes is raised")
        w.await_copied()  # without a restart
        assert w.mirror.stop() == 0
        w.check()


def test_a_batch_with_a_wrong_checksum(tmp_path: Path) -> None:
    with alone(tmp_path, "EWR") as (w, clusters):
        w.fill(6)
        assert clusters["EWR"].stop() == 0
        # After a clean stop the log is not walked again, so what the disk made of it is served as it is.
        segment = next((tmp_path / "EWR" / f"{w.topic}-0").glob("*.log"))
        data = bytearray(segment.read_bytes())
        at = data.find(w.payloads["EWR", 0][3])
        assert at > 0
        data[at + 5] ^= 1
        segment.write_bytes(data)
        clusters["EWR"].start()
        w.mirror.start()
        w.mirror.wait_for(f"{w.topic}-0 is STOPPED")
        w.await_copied(partitions=[1])
        assert f"`penstock mirror skip EWR {w.topic}:0 --to 40 --because TEXT` sets it aside" in w.mirror.text()
        deadline = time.monotonic() + LIMIT_S
        while w.status(code=1)["EWR", 0]["state"] != "stopped":  # any host sees it, from the position
            assert time.monotonic() < deadline
        assert "--to 40" in w.status(code=1)["EWR", 0]["why"] and w.status(code=1)["EWR", 1]["state"] == "copying"
        w.operate("skip", "EWR", f"{w.topic}:0", "--to", "40", "--because", "a bad disk")
        w.await_copied()  # without a restart
        row = w.status()["EWR", 0]
        assert (row["state"], row["gaps"], row["gap_records"]) == ("copying", 10, 10)
        assert w.mirror.stop() == 0
        (raw, headers), (last, summary) = quarantined(w)
        assert raw is not None and raw[61:] == bytes(data[at : at + len(w.payloads["EWR", 0][3])]) and last is None
        assert headers["because"] == "a bad disk" and "skip" in headers["decision"] and "checksum" in headers["reason"].lower()
        assert (headers["topic"], headers["partition"], headers["offset"]) == (w.topic, "0", "30")
        assert summary["records"] == "10"
        del w.ids["EWR", 0][30:40]
        del w.payloads["EWR", 0][3]
        w.check()


def test_a_source_that_was_cut_back(tmp_path: Path) -> None:
    with alone(tmp_path, "EWR") as (w, clusters):
        w.fill(5)
        assert clusters["EWR"].stop() == 0
        shutil.copytree(tmp_path / "EWR", tmp_path / "before")
        clusters["EWR"].start()
        w.fill(5)
        w.run_once()
        assert clusters["EWR"].stop() == 0
        put_back(tmp_path / "before" / f"{w.topic}-0", tmp_path / "EWR")
        clusters["EWR"].start()
        w.mirror.start()
        stops(w, 0, "was cut back")


def test_a_source_that_was_restored_and_has_grown_again(tmp_path: Path) -> None:
    """Its end is past the position once more, but it never knew the leader epoch that was copied last."""
    with alone(tmp_path, "EWR") as (w, clusters):
        source = clusters["EWR"]
        w.fill(5)
        assert source.stop() == 0
        shutil.copytree(tmp_path / "EWR", tmp_path / "before")
        source.start().restart().restart()  # each start is a leader epoch
        w.fill(5)
        w.run_once()
        assert source.stop() == 0
        shutil.rmtree(tmp_path / "EWR")
        shutil.copytree(tmp_path / "before", tmp_path / "EWR")
        source.start()
        w.fill(8)
        w.mirror.start()
        for partition in range(2):
            w.mirror.wait_for(
                f"{w.topic}-{partition} is STOPPED, the others go on: source EWR: `{w.topic}` partition {partition} was cut "
                "back: it knows no"
            )
        assert w.mirror.stop() == 1
