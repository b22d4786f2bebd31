"""A copy that would never end, or would be made twice, is refused before a record of it is copied."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from penstock.pipeline.clients.admin import LATEST, Admin
from penstock.pipeline.clients.transaction import TransactionalSender
from support.harness import BrokerProcess
from support.mirror_world import World
from support.patience import until
from support.stages import StageProcess, write_properties

SOURCES = ("EWR", "JFK")


def records(w: World, cluster: BrokerProcess) -> list[int]:
    tps = {(w.topic, partition): LATEST for partition in range(w.partitions)}
    return [at.offset for at in w.admin(cluster, lambda admin: admin.list_offsets(tps)).values()]


def test_a_source_that_is_the_target(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["EWR"]) as w:
        w.fill(1)
        w.mirror.start()
        w.mirror.wait_for(f"{w.topic} is STOPPED, the others go on: source EWR is the target itself")
        assert w.mirror.stop() == 1
        assert records(w, clusters["EWR"]) == [10, 10] and w.positions("EWR") == {0: None, 1: None}


def test_two_names_for_one_cluster(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    sources = {"EWR": clusters["EWR"], "EWR2": clusters["EWR"], "JFK": clusters["JFK"]}
    w = World(tmp_path / "w", {name: sources[name] for name in ("EWR", "JFK")}, clusters["target"])
    with w:
        w.configure(source_EWR2_bootstrap_servers=clusters["EWR"].bootstrap)
        w.fill(1)
        w.mirror.start()
        w.mirror.wait_for("sources EWR and EWR2 are one cluster")
        w.mirror.wait_for("sources EWR2 and EWR are one cluster")
        w.await_copied(["JFK"])
        assert w.mirror.stop() == 1
        assert w.positions("EWR") == w.positions("EWR2") == {0: None, 1: None}


def test_two_names_for_one_cluster_whose_topics_are_renamed(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    w = World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"], penstock_mirror_rename="${source}.${topic}")
    with w:
        w.configure(source_EWR2_bootstrap_servers=clusters["EWR"].bootstrap)
        w.mirror.start()
        for one, other in (("EWR", "EWR2"), ("EWR2", "EWR")):
            why = f"nothing may be copied into topic {one}.{w.topic}: sources {one} and {other} are one cluster"
            w.mirror.wait_for(f"waits to find topic {one}.{w.topic} on the target: {why}")
        assert "that can be reached" not in w.mirror.text()
        assert w.mirror.stop() == 1


def test_a_second_name_while_the_first_can_not_be_reached(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """The first name's positions say which cluster they are of."""
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"]) as w:
        w.fill(1)
        w.run_once()
        w.configure(source_EWR_bootstrap_servers="127.0.0.1:1", source_EWR2_bootstrap_servers=clusters["EWR"].bootstrap)
        begin = ("begin", "EWR2", w.topic, "--at", "earliest", "--because", "a test")
        assert f"group `{w.group('EWR')}` at the target says that another mirror" in w.operate(*begin, code=1)
        # A version that didn't refuse that may have written a position.
        kept = {partition: json.loads(found[1]) for partition, found in w.positions("EWR").items() if found is not None}
        begun = {(w.topic, p): (0, json.dumps({**noted, "cluster": "", "records": 0})) for p, noted in kept.items()}
        w.admin(clusters["target"], lambda admin: admin.commit(w.group("EWR2"), begun))
        w.mirror.start()
        for partition in range(2):
            w.mirror.wait_for(f"{w.topic}-{partition} is STOPPED, the others go on: sources EWR2 and EWR are one cluster")
        assert w.mirror.stop() == 1
        w.check()


def test_a_ring(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """JFK is copied to EWR; a mirror of EWR to JFK is refused, also while the first one doesn't run."""
    with World(tmp_path / "w", {"JFK": clusters["JFK"]}, clusters["EWR"]) as w:
        w.fill(1)
        w.mirror.start()
        w.await_copied()
        back = {
            "bootstrap.servers": clusters["JFK"].bootstrap,
            "source.EWR.bootstrap.servers": clusters["EWR"].bootstrap,
            "topics": w.topic,
            "penstock.mirror.name": "back",
        }
        other = StageProcess("mirror", write_properties(tmp_path / "back.properties", back), "back")
        try:
            other.start()
            other.wait_for(f"{w.topic} is STOPPED, the others go on: a ring: group `{w.group('JFK')}` at source EWR")
            assert other.stop() == 1
        finally:
            other.kill()
        assert w.mirror.stop() == 0
        assert records(w, clusters["JFK"]) == [10, 10]
        w.check()


def test_a_busy_mirror_the_other_way_round_of_other_topics(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """There is no moment at which none of its transactions is open; nobody waits for one."""
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["target"]) as w:
        theirs, group, said = (f"{w.topic}-theirs", 0), f"penstock-mirror.{w.topic}.back", '{"cluster": "another"}'

        async def copied_while_open(admin: Admin) -> None:
            await admin.create_topics({theirs[0]: 1})
            sender = TransactionalSender(admin, f"{group}.{theirs[0]}-0")
            await sender.init()
            for last in (False, True):
                await sender.begin()
                await sender.send_offsets(group, {theirs: (7, said)})
                if last:
                    await asyncio.to_thread(w.mirror.start)
                    await asyncio.to_thread(w.await_copied)
                await sender.commit()
            await sender.close()

        w.fill(1)
        w.admin(clusters["EWR"], copied_while_open)
        w.finish()


def test_a_ring_whose_two_mirrors_start_at_once(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """Neither has copied anything when the other one looks; no record may go round, whoever is first."""
    with World(tmp_path / "w", {"JFK": clusters["JFK"]}, clusters["EWR"], penstock_watch_ms=600_000) as w:
        w.create(clusters["EWR"])
        back = {
            "bootstrap.servers": clusters["JFK"].bootstrap,
            "source.EWR.bootstrap.servers": clusters["EWR"].bootstrap,
            "topics": w.topic,
            "penstock.mirror.name": f"{w.topic}-back",
            "penstock.watch.ms": 600_000,
        }
        other = StageProcess("mirror", write_properties(tmp_path / "back.properties", back), "back")

        try:
            w.mirror.start(await_started=False)
            other.start(await_started=False)
            for stage in (w.mirror, other):
                stage.wait_for(" started\n")
            w.fill(1)
            until(lambda: "a ring: group" in w.mirror.text() + other.text(), "one of them to see the ring", w.mirror.text)
            time.sleep(3)  # for records to go round, if they could: less time would prove less, and fail nothing
            # Whatever one of them still had in hand is written once it has stopped.
            for stage in (w.mirror, other):
                assert stage.stop() in (0, 1)
            assert max(records(w, clusters["JFK"])) == 10 and max(records(w, clusters["EWR"])) <= 20
        finally:
            other.kill()


def test_another_cluster_behind_the_address(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"]) as w:
        w.fill(1)
        w.run_once()
        w.create(clusters["JFK"])
        w.configure(source_EWR_bootstrap_servers=clusters["JFK"].bootstrap)
        w.mirror.start()
        for partition in range(2):
            w.mirror.wait_for(f"{w.topic}-{partition} is STOPPED, the others go on: the source's address leads to another")
        assert w.mirror.stop() == 1
