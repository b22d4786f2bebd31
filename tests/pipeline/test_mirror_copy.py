"""The mirror copies what sources committed, batch for batch, and nothing else; positions end where the sources do."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.mirror.identity import Identity
from penstock.mirror.position import MirrorPosition
from penstock.mirror.source import Source
from penstock.mirror.status import status
from penstock.mirror.target import Into
from penstock.mirror.worker import MirrorWorker
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pyx.record.rawbatch import records
from penstock.pyx.wire.requests import delete_topic
from support.harness import BrokerProcess, output
from support.mirror_world import CODECS, LIMIT_S, World

HOUR_MS = 3_600_000
SOURCES = ("EWR", "JFK", "LGA")


def world(folder: Path, clusters: dict[str, BrokerProcess], *sources: str, **more: object) -> World:
    return World(folder, {name: clusters[name] for name in sources}, clusters["target"], **more)  # type: ignore[arg-type]  # all keywords


def test_three_sources_all_codecs_aborted_left_out(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with world(tmp_path, clusters, "EWR", "JFK", "LGA", penstock_mirror_batch_bytes=4000) as w:
        for codec in CODECS:
            w.fill(3, codec)
            w.fill_transactions("ac", codec)
        w.mirror.start()
        w.await_copied()
        w.fill_transactions("cca")  # while it runs, and a marker of an abort as the last thing in the logs
        w.finish()
        for name in w.sources:
            for partition, found in w.positions(name).items():
                assert found is not None
                assert found[0] == w.ends(name)[partition]
                counts = json.loads(found[1])
                assert (counts["records"], counts["rebuilt"]) == (len(w.ids[name, partition]), 0)


def test_batches_that_the_target_would_refuse_are_rebuilt_and_counted(
    tmp_path: Path, clusters: dict[str, BrokerProcess]
) -> None:
    limit = 3000
    with world(tmp_path, clusters, "EWR", target_configs={"max.message.bytes": str(limit)}) as w:
        w.fill(1, "lz4", count=10)
        w.fill(2, "zstd", count=100)
        w.run_once()
        w.check_ids()
        for partition, batches in w.batches().items():
            assert all(batch.size_in_bytes <= limit for batch in batches)
            assert bytes(batches[0].payload) == w.payloads["EWR", partition][0]
            assert {batch.codec for batch in batches[1:]} == {CODECS["zstd"]}
            found = w.positions("EWR")[partition]
            assert found is not None and json.loads(found[1])["rebuilt"] == len(batches) - 1 > 2


def test_a_log_that_begins_inside_a_batch(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with world(tmp_path, clusters, "EWR") as w:
        w.fill(2, "snappy", count=10)
        w.admin(clusters["EWR"], lambda admin: admin.delete_records({(w.topic, 0): 4}))
        w.ids["EWR", 0] = w.ids["EWR", 0][4:]
        w.mirror.start()
        w.mirror.wait_for(f"{w.topic}-0 is STOPPED")
        w.await_copied(partitions=[1])
        said = w.begin("EWR")
        assert f"EWR {w.topic}:0 was at 0 and goes on at 4" in said
        why = f"it goes on by itself from offset 20; name it as `{w.topic}:1` to move it all the same"
        assert f"EWR {w.topic}:1 is left as it is: {why}" in said
        w.await_copied()
        w.check_ids()


def test_idle_positions_are_committed_again(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with world(tmp_path, clusters, "EWR", penstock_mirror_position_refresh_ms=1000) as w:
        w.fill(1)
        w.mirror.start()
        w.await_copied()
        before = known(w)
        w.admin(clusters["target"], lambda admin: admin.commit(w.group("EWR"), {(w.topic, 0): (1, "forgotten")}))
        deadline = time.monotonic() + LIMIT_S
        while known(w) != before:
            assert w.mirror.running and time.monotonic() < deadline
            time.sleep(0.1)
        w.check()


def known(w: World) -> dict[int, MirrorPosition | str]:
    """The positions in EWR, whenever they were committed; the text of one that no mirror wrote."""
    found = {partition: value for partition, value in w.positions("EWR").items() if value is not None}
    return {
        p: text if text == "forgotten" else MirrorPosition.from_text(offset, text, "") for p, (offset, text) in found.items()
    }


def copied_long_ago(w: World) -> None:
    """All that there is was copied, and the mirror is killed: by its positions that was hours ago."""
    w.fill(1, age_ms=2 * HOUR_MS)
    w.mirror.start()
    w.await_copied()
    w.mirror.kill()
    make_older(w)


def test_records_that_wait_for_a_mirror_which_does_not_run(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with world(tmp_path, clusters, "EWR") as w:
        copied_long_ago(w)
        assert {row["state"] for row in w.status().values()} == {"copying"}  # nothing waits
        w.fill(1, age_ms=HOUR_MS)
        for row in w.status(code=1).values():
            assert (row["state"], row["lag"]) == ("silent", 10)
            assert "no commit for 36" in row["why"] and "while 10 records wait: does the mirror run?" in row["why"]
        w.mirror.start()
        w.await_copied()
        assert {row["state"] for row in w.status().values()} == {"copying"}
        w.mirror.kill()
        make_older(w)
        w.fill(1)
        for row in w.status().values():  # it was produced just now
            assert row["state"] == "copying" and "while 10 records wait; the partition is silent after 370 s" in row["why"]


def test_positions_of_which_one_is_never_settled_are_shown(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """Of a busy mirror, and of one that hangs in a turn, some transaction is open all the time."""
    with world(tmp_path, clusters, "EWR") as w:
        w.fill(1)
        w.mirror.start()
        w.await_copied()
        (at, _), group = w.positions("EWR").values(), w.group("EWR")
        assert at is not None

        async def look(admin: Admin) -> None:
            sender = TransactionalSender(admin, f"{w.topic}-open")
            await sender.init()
            await sender.begin()
            await sender.send_offsets(group, {(w.topic, 0): at})
            rows = await asyncio.to_thread(w.status)
            assert {(row["position"], row["state"]) for row in rows.values()} == {(10, "copying")}
            command = ["groups", "describe", group, "-b", w.target.bootstrap]
            assert w.topic in await asyncio.to_thread(output, [sys.executable, "-m", "penstock", *command])
            await sender.abort()
            await sender.close()

        w.admin(clusters["target"], look)


def test_lanes_that_go_on_while_status_waits_are_seen_beside_the_sources_new_ends(
    tmp_path: Path, clusters: dict[str, BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, clusters, "EWR") as w:
        copied_long_ago(w)
        w.fill(1, age_ms=HOUR_MS)

        def go_on() -> None:
            w.fill(1)
            w.mirror.start()
            w.await_copied()

        async def sleep(_: float) -> None:
            await asyncio.to_thread(go_on)

        monkeypatch.setattr("penstock.pipeline.stages.status.asyncio", SimpleNamespace(sleep=sleep))
        rows = asyncio.run(status(job.load(w.config, (), "mirror")))
        assert [(row["state"], row["lag"]) for row in rows] == [("copying", 0)] * w.partitions


def test_a_source_that_ends_before_the_position_is_no_silence(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """Nothing may ever come there, so whoever has left the partition can't wait for input to go on with it."""
    with world(tmp_path, clusters, "EWR") as w:
        w.fill(1)
        w.mirror.start()
        w.await_copied()
        w.mirror.kill()

        async def seen() -> list[tuple[int, bool]]:
            async with Admin(w.sources["EWR"].bootstrap) as admin, Admin(w.target.bootstrap) as target:
                source = Source("EWR", admin, target, w.group("EWR"))
                tps = [(w.topic, partition) for partition in range(w.partitions)]
                into = Into(target, w.topic)
                workers = [MirrorWorker(Identity(w.topic, "EWR", tp, tp), source, target, into) for tp in tps]
                return [await worker.look() for worker in workers]

        assert asyncio.run(seen()) == [(10, False)] * w.partitions
        delete_topic(w.sources["EWR"].bootstrap, w.topic)
        w.create(w.sources["EWR"])
        assert asyncio.run(seen()) == [(10, True)] * w.partitions
        for row in w.status(code=1).values():
            assert row["state"] == "lost" and "the source topic was recreated" in row["why"]
        w.mirror.start()
        w.mirror.wait_for("the source topic was recreated")
        w.mirror.wait_for(f"`penstock mirror begin EWR {w.topic}:0 --at OFFSET --because TEXT` once you know")


def make_older(w: World) -> None:
    """Let the positions in EWR look as if they had been committed an hour earlier."""
    older = {}
    for partition, found in w.positions("EWR").items():
        assert found is not None
        fields = json.loads(found[1])
        moved = {name: fields[name] - HOUR_MS for name in ("copied_ms", "committed_ms")}
        older[w.topic, partition] = found[0], json.dumps({**fields, **moved})
    w.admin(w.target, lambda admin: admin.commit(w.group("EWR"), older))


def test_a_later_source_needs_a_word(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with world(tmp_path, clusters, "EWR", "JFK", "LGA") as w:
        w.fill()
        lines = w.config.read_text().splitlines()
        w.config.write_text("".join(f"{line}\n" for line in lines if ".LGA." not in line))
        w.mirror.start()
        w.await_copied(["EWR", "JFK"])
        assert w.mirror.stop() == 0
        w.config.write_text("".join(f"{line}\n" for line in lines))
        w.mirror.start()
        w.mirror.wait_for(f"`penstock mirror begin LGA {w.topic}:1 --at earliest --because TEXT`")
        w.fill(1, sources=["EWR"])
        w.await_copied(["EWR", "JFK"])
        assert w.positions("LGA") == {0: None, 1: None}
        said = w.operate("retry", "LGA", w.topic, "--because", "the test says so")
        for partition in range(2):
            lane = f"LGA {w.topic}:{partition}"
            begin = f"`penstock mirror begin {lane} --at OFFSET --because TEXT`"
            assert f"{lane} is left as it is: it has no position to go on from: {begin} gives it one" in said
        rows = {partition: row for (name, partition), row in w.status(code=1).items() if name == "LGA"}
        assert {row["state"] for row in rows.values()} == {"no position"}
        for partition, row in rows.items():
            assert f"is new: `penstock mirror begin LGA {w.topic}:{partition} --at earliest --because TEXT`" in row["why"]
        w.begin("LGA")
        w.await_copied()  # without a restart
        assert {(row["state"], row["lag"]) for row in w.status().values()} == {("copying", 0)}
        assert w.mirror.stop() == 0
        w.check()


def test_wrong_words_are_one_sentence(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with world(tmp_path, clusters, "EWR") as w:
        said = w.operate("begin", "EWE", w.topic, "--at", "earliest", "--because", "why not", code=2)
        assert "no source `EWE`" in said
        said = w.operate("begin", "EWR", w.topic, "--at", "begin", "--because", "why not", code=2)
        assert "is none of earliest, latest, an offset" in said
        assert "Missing option '--because'" in w.operate("retry", "EWR", code=2)
        assert "names no partition" in w.operate("skip", "EWR", w.topic, "--to", 3, "--because", "why not", code=2)
        for before in (["--set", "penstock.miror.name=x"], ["--config", str(w.config)]):  # nobody would look at it there
            assert "give --config and --set behind `status`" in w.operate(*before, "status", code=2)
        w.mirror.start(arguments=["--set", "penstock.miror.name=x"], await_started=False)
        assert w.mirror.wait() == 2
        assert w.mirror.text().count("\n") == 1 and "did you mean" in w.mirror.text()


def test_a_copy_begins_at_a_place_of_the_log(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with world(tmp_path, clusters, "EWR") as w:
        copied_long_ago(w)
        w.fill(1)
        for word, offset in {"latest": 20, "-30m": 10, "2970-01-01T00:00:00Z": 20, "-1d": 0, "12": 12}.items():
            assert (
                f"EWR {w.topic}:1 was at" in (said := w.begin("EWR", f"{w.topic}:1", at=word))
                and f"goes on at {offset};" in said
            )


@pytest.mark.parametrize("target", ["CreateTime", "LogAppendTime"])
def test_append_times_of_the_source_stay(tmp_path: Path, clusters: dict[str, BrokerProcess], target: str) -> None:
    """Readers of the target see the times that readers of the source see, unless the target stamps records itself."""
    stamped = {"message.timestamp.type": "LogAppendTime"}
    configs = {"source_configs": stamped, "target_configs": {"message.timestamp.type": target}}
    with world(tmp_path, clusters, "EWR", **configs) as w:
        w.fill(3, "zstd")
        time.sleep(0.05)
        w.run_once()
        w.check_ids()
        theirs, ours = times(w, clusters["EWR"]), times(w, clusters["target"])
        if target == "CreateTime":
            assert theirs == ours
            assert [row["rebuilt"] for row in w.status().values()] == [3, 3]
        else:
            assert min(ours) > max(theirs)
            w.check_payloads()


def times(w: World, cluster: BrokerProcess) -> list[int]:
    """The timestamps of all records as a reader sees them."""

    async def read(admin: Admin) -> list[int]:
        fetcher = Fetcher(admin, max_wait_ms=300)
        fetcher.assign({(w.topic, partition): 0 for partition in range(w.partitions)})
        found: list[int] = []
        while len(found) < sum(map(len, w.ids.values())):
            for part in await fetcher.fetch():
                found += [record.timestamp_ms for batch in part.batches for record in records(batch)]
        await fetcher.close()
        return sorted(found)

    return w.admin(cluster, read)
