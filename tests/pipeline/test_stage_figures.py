"""What mirror and dedupe say of themselves: figures of a load that is known, and states in the words of `status`."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest

from penstock.dedupe.figures import FAMILIES as DEDUPE_FAMILIES
from penstock.metrics import FAMILIES as PROCESS_FAMILIES
from penstock.pipeline.clients.admin import TOPIC_RESOURCE
from penstock.pipeline.stages.figures import FAMILIES
from support.clock import Clock
from support.dedupe_world import World as DedupeWorld
from support.harness import BrokerProcess
from support.mirror_world import HEADER_BYTES, World, alone, brokers
from support.scraping import Scrape, await_figures, health, scrape, scrapes

HOUR_MS = 3_600_000


def published(w: World, first: int = 0) -> dict[int, tuple[int, int]]:
    """Records and bytes that were sent to each partition, batches from the `first` on."""
    return {
        partition: (10 * len(w.payloads["EWR", partition][first:]), sum(
            HEADER_BYTES + len(payload) for payload in w.payloads["EWR", partition][first:]
        ))
        for partition in range(w.partitions)
    }  # fmt: skip


def lane_figures(found: Scrape, w: World, partition: int) -> tuple[float, ...]:
    """Read, published, bytes, lag in records and in seconds of a lane."""
    names = ("lane_read_records_total", "lane_records_total", "lane_bytes_total", "lane_lag_records", "lane_lag_seconds")
    lane = {"stage": "mirror", "name": w.topic, "source": "EWR", "topic": w.topic, "partition": partition}
    return tuple(found.value(f"penstock_{name}", **lane) for name in names)


def test_figures_of_a_mirror_are_those_of_the_load(w: World) -> None:
    """Also behind a kill -9: counters begin again, whatever tells where a lane stands goes on."""
    w.fill(5)
    w.fill_transactions("ca", codec="zstd")
    began_ms = int(time.time() * 1000)
    w.mirror.start()
    w.await_copied()
    for killed in (False, True):
        first = 7 if killed else 0  # five batches, and the two of the transaction that was committed
        if killed:
            w.mirror.kill()
            w.fill(3, age_ms=HOUR_MS)
            w.mirror.start()
            w.await_copied()
        wanted = published(w, first)

        def are_there(found: Scrape, wanted: dict[int, tuple[int, int]] = wanted) -> bool:
            return all(lane_figures(found, w, p)[1:3] == wanted[p] for p in wanted)

        found = await_figures(w.mirror, are_there)
        for partition, (records, count) in wanted.items():
            assert lane_figures(found, w, partition) == (records, records, count, 0, 0)
            commit_s = found.value("penstock_lane_last_commit_timestamp_seconds", partition=partition)
            assert began_ms / 1000 <= commit_s <= time.time()
        assert found.value("penstock_lanes", state="copying") == w.partitions
        assert found.total("penstock_lanes") == w.partitions
        assert found.value("penstock_stage_ready") == 1 and found.value("penstock_stage_held_bytes") == 0
    assert health(w.mirror, "ready") == (200, {"tried": True, "target": "reached", "standing": {}})
    assert health(w.mirror, "live") == (200, {"hung": []})


def test_what_waits_is_lag_in_records_and_by_the_age_of_its_first(w: World) -> None:
    w.mirror.start()
    w.fill(1)
    w.await_copied()
    assert w.mirror.stop() == 0
    w.configure(penstock_mirror_linger_ms=1 << 30)
    w.mirror.start()
    w.fill(1, age_ms=HOUR_MS)
    w.fill(2)
    found = await_figures(w.mirror, lambda found: found.total("penstock_lane_lag_records") == 60)
    for partition in range(w.partitions):
        read, records, count, behind, behind_s = lane_figures(found, w, partition)
        assert (read, records, count, behind) == (0, 0, 0, 30)
        assert HOUR_MS / 1000 <= behind_s < HOUR_MS / 1000 + 300
    assert found.value("penstock_stage_held_bytes") > 0
    assert set(found.states().values()) == {"copying"}


def test_a_page_has_the_families_that_are_declared(w: World, tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    w.fill(1)
    w.mirror.start()
    with DedupeWorld(tmp_path / "d", clusters["target"]) as d:
        d.fill()
        d.stage.start()
        d.await_done()
        for process, own in ((w.mirror, ()), (d.stage, DEDUPE_FAMILIES)):
            declared = {family.name: family.kind for family in (*PROCESS_FAMILIES, *FAMILIES, *own)}
            assert scrape(process, open_metrics=True).kinds == declared


def test_figures_of_dedupe_are_those_of_the_load(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with DedupeWorld(tmp_path, clusters["target"], partitions=2) as w:
        w.fill()
        w.send(0, [w.batch(0, [None, None, ""], 0)])
        w.stage.start()
        w.await_done()
        before = {0: 0, 1: 0}
        for killed in (False, True):
            if killed:
                w.stage.kill()
                before = {partition: len(w.sent[partition]) for partition in (0, 1)}
                w.fill()
                w.stage.start()
                w.await_done()
            for partition in range(2):
                sent = w.sent[partition]
                goes = w.expected(partition)
                new = [value for value in goes if value in {number for _, number in sent[before[partition] :]}]
                without = [word for word, _ in sent[before[partition] :] if not word]
                ids = {word for word, _ in sent if word}
                read = len(sent) - before[partition]
                wanted = (read, len(new), read - len(new), len(without), 0, len(ids), 0)

                def figures(found: Scrape, partition: int = partition) -> tuple[float, ...]:
                    names = (
                        *("lane_read_records_total", "lane_records_total", "dedupe_duplicates_total"),
                        *("dedupe_without_id_total", "dedupe_moved_total", "dedupe_ids", "lane_lag_records"),
                    )
                    lane = {"stage": "dedupe", "name": w.topic, "source": "", "topic": w.topic, "partition": partition}
                    return tuple(found.value(f"penstock_{name}", **lane) for name in names)

                found = await_figures(w.stage, lambda found: figures(found) == wanted)  # noqa: B023  (called at once)
                assert found.value("penstock_dedupe_memory_bytes", partition=partition) > 0
                size = found.value("penstock_dedupe_database_bytes", partition=partition)
                assert size < found.value("penstock_dedupe_database_max_bytes", partition=partition) == 8 << 30
        assert w.stage.stop() == 0  # what memory has becomes a file
        w.stage.start()
        for partition in range(2):
            found = scrape(w.stage)
            assert found.value("penstock_dedupe_ids", partition=partition) == len(
                {word for word, _ in w.sent[partition] if word}
            )
            assert found.value("penstock_dedupe_database_bytes", partition=partition) > 0
            assert 0 <= found.value("penstock_dedupe_window_seconds", partition=partition) < 300


def test_moved_records_are_counted(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with DedupeWorld(tmp_path, clusters["target"], partitions=2, penstock_dedupe_misplaced="move") as w:
        w.mix([f"id-{number}" for number in range(200)])
        w.stage.start()
        w.await_done()
        moved = [w.position(partition)[1]["moved"] for partition in range(2)]
        assert sum(moved) > 0
        await_figures(
            w.stage,
            lambda found: [found.value("penstock_dedupe_moved_total", partition=partition) for partition in range(2)] == moved,
        )


# States, in the words of `status`


def await_states(w: World, *states: str, code: int = 1) -> Scrape:
    """Scrape until the partitions have these states; `status` has the same, though it asks the clusters."""
    found = await_figures(w.mirror, lambda found: list(dict(sorted(found.states().items())).values()) == list(states))
    rows = sorted((row["source"], row["topic"], row["partition"] or 0, row["state"]) for row in w.status(code=code).values())
    assert [state.replace(" ", "_") for *_, state in rows] == list(states)
    assert {have["state"]: count for have, count in found.rows("penstock_lanes") if count} == Counter(states)
    return found


def test_a_partition_that_stopped(w: World, clusters: dict[str, BrokerProcess]) -> None:
    w.fill(1)
    w.run_once()
    w.fill(1, age_ms=HOUR_MS)
    w.admin(clusters["EWR"], lambda admin: admin.delete_records({(w.topic, 0): -1}))
    w.mirror.start()
    found = await_states(w, "stopped", "copying")
    w.fill(2)  # it stands still, and is farther and farther behind
    found = await_figures(w.mirror, lambda found: found.value("penstock_lane_lag_records", partition=0) == 30)
    assert found.value("penstock_lane_lag_records", partition=1) in (0, 10, 20)  # it goes on
    assert health(w.mirror, "ready") == (200, {"tried": True, "target": "reached", "standing": {"stopped": 1}})
    w.begin("EWR")
    await_states(w, "copying", "copying", code=0)


def test_what_waits_for_a_partition_that_stands_still_grows_older(w: World, clusters: dict[str, BrokerProcess]) -> None:
    """Its records are fetched by nobody: the age of the first is looked up once."""
    w.fill(1)
    w.mirror.start()
    w.await_copied()
    w.admin(clusters["target"], lambda admin: admin.alter_configs(TOPIC_RESOURCE, w.topic, {"max.message.bytes": "200"}))
    w.fill(1, codec="none", size=1000, age_ms=HOUR_MS)
    found = await_states(w, "stopped", "stopped")
    for partition in range(w.partitions):
        found = await_figures(w.mirror, lambda found: found.value("penstock_lane_lag_records", partition=partition) == 10)  # noqa: B023  (called at once)
        assert HOUR_MS / 1000 <= found.value("penstock_lane_lag_seconds", partition=partition) < HOUR_MS / 1000 + 300


def test_a_source_that_went_away_and_one_that_never_was_there(tmp_path: Path) -> None:
    with alone(tmp_path, "EWR") as (w, made):
        w.fill(1)
        w.mirror.start()
        w.await_copied()
        await_states(w, "copying", "copying", code=0)
        made["EWR"].kill()
        found = await_states(w, "unreachable", "unreachable")
        assert not found.rows("penstock_lane_lag_records") and not found.rows("penstock_lane_lag_seconds")
        made["EWR"].start()
        await_states(w, "copying", "copying", code=0)
        made["EWR"].kill()
        assert w.mirror.stop() == 0
        w.configure(penstock_stalled_after_ms=1)
        w.mirror.start()
        await_states(w, "stalled", "stalled")
        made["target"].kill()
        for _ in scrapes(w.mirror):
            status, said = health(w.mirror, "ready")
            if status == 503:
                break
        assert said["tried"] and said["target"] != "reached"
        assert scrape(w.mirror).value("penstock_stage_ready") == 0
        assert health(w.mirror, "live") == (200, {"hung": []})


def test_a_source_that_has_no_topic(w: World, clusters: dict[str, BrokerProcess]) -> None:
    w.fill(1)
    w.mirror.start()
    w.await_copied()
    w.admin(clusters["EWR"], lambda admin: admin.delete_topics([w.topic]))
    await_states(w, "no_topic", "no_topic")


def test_a_transaction_that_is_open_for_long(
    w: World, clusters: dict[str, BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tmp_path)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    w.mirror.start()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": clusters["EWR"].bootstrap,
            "transactional.id": f"{w.topic}-slow",
            "transaction.timeout.ms": 900_000,
        }
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(w.topic, b"x", partition=0, timestamp=time.time_ns() // 1_000_000 - HOUR_MS)
    producer.flush()
    await_figures(w.mirror, lambda found: [behind for _, behind in found.rows("penstock_lane_lag_records", partition=0)] == [1])
    await_states(w, "copying", "copying", code=0)
    clock.set_ahead(400)
    found = await_states(w, "waiting", "copying")
    assert found.value("penstock_lane_lag_records", partition=0) == 1
    assert HOUR_MS / 1000 <= found.value("penstock_lane_lag_seconds", partition=0) < HOUR_MS / 1000 + 700
    clock.set_ahead(0)
    producer.abort_transaction()
    await_states(w, "copying", "copying", code=0)


def test_a_source_that_came_later_has_no_position(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["target"], partitions=1) as w:
        w.fill(1)
        w.run_once()
        with brokers(tmp_path, "JFK") as made:
            w.create(made["JFK"])
            w.configure(source_JFK_bootstrap_servers=made["JFK"].bootstrap)
            w.mirror.start()
            found = await_states(w, "copying", "no_position")
            assert not found.rows("penstock_lane_lag_records", source="JFK")


def test_topics_that_no_partition_is_copied_of(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with World(tmp_path, {"A": clusters["EWR"]}, clusters["target"]) as w:
        w.configure(source_B_bootstrap_servers=clusters["EWR"].bootstrap)  # twice the same cluster
        w.mirror.start()
        found = await_states(w, "not_copied", "not_copied")
        assert {(have["source"], have["partition"]) for have, _ in found.rows("penstock_lane_state")} == {("A", ""), ("B", "")}


def await_stage(w: DedupeWorld, state: str) -> Scrape:
    """The same of a dedupe stage with one partition."""
    found = await_figures(w.stage, lambda found: list(found.states().values()) == [state])
    (row,) = json.loads(w.ask("status", "--json").stdout)
    assert row["state"].replace(" ", "_") == state
    return found


def test_states_of_dedupe(tmp_path: Path) -> None:
    with brokers(tmp_path, "target") as made, DedupeWorld(tmp_path / "d", made["target"]) as w:
        w.admin(lambda admin: admin.delete_topics([w.topic]))
        w.stage.start()
        found = await_figures(w.stage, lambda found: list(found.states().items()) == [(("", w.topic, ""), "not_begun")])
        assert found.value("penstock_lanes", state="not_begun") == 1
        w.admin(lambda admin: admin.create_topics({w.topic: 1}))
        await_stage(w, "reading")
        w.send(0, [w.batch(0, [None] * 10, 0)])
        await_stage(w, "no_ids")
        w.send(0, [w.batch(0, [f"id-{number}" for number in range(100)], 0)])
        await_stage(w, "reading")
        made["target"].kill()
        found = await_figures(w.stage, lambda found: list(found.states().values()) == ["unreachable"])
        assert found.value("penstock_stage_ready") == 0


def test_an_address_that_can_not_be_had_is_one_sentence(w: World) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        for address, code, words in (
            (f"127.0.0.1:{other.getsockname()[1]}", 1, "can't be listened at: "),
            ("0.0.0.0:0", 2, "is reached from other machines, and asks nobody who they are: set `penstock.http.public=true`"),
            ("nonsense", 2, "is not HOST:PORT"),
        ):
            w.configure(penstock_mirror_http_listen=address)
            w.mirror.start(await_started=False)
            assert w.mirror.wait() == code, w.mirror.text()
            assert f"`penstock.mirror.http.listen={address}` {words}" in w.mirror.text()
            assert "Traceback" not in w.mirror.text() and "started" not in w.mirror.text()


def test_health_is_told_while_the_target_is_away_and_lines_are_json(w: World) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        w.configure(bootstrap_servers=f"127.0.0.1:{nobody.getsockname()[1]}", penstock_log_format="json")
        w.mirror.start(await_started=False)
        w.mirror.wait_for("waits to reach the cluster")
        status, said = health(w.mirror, "ready")
        assert (status, said["tried"], said["target"]) == (503, False, "it was not reached yet")
        assert health(w.mirror, "live")[0] == 200
        assert scrape(w.mirror).value("penstock_stage_ready") == 0
        lines = [json.loads(line) for line in w.mirror.text().splitlines()]
        assert {(line["process"], line["mirror"]) for line in lines if "mirror" in line} == {(f"mirror-{w.topic}", w.topic)}
