"""Where dedupe finds ids: fields that no record has are seen by every door, and ids of several fields are exact."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from penstock.pyx.record.builder import BatchBuilder
from support.dedupe_world import World
from support.harness import BrokerProcess
from support.patience import until
from support.stages import write_properties

SCHEMA = "event_id STRING, meta STRUCT<id: STRING, at: STRUCT<ms: BIGINT>>, `user.id` STRING, user STRING, ts BIGINT"


def check(folder: Path, *sets: str, part: str = "etl") -> tuple[int, str]:
    """What `penstock check` says of a pipeline with these ids and tables."""
    properties = {
        "bootstrap.servers": "127.0.0.1:9",
        "source.a.bootstrap.servers": "127.0.0.1:10",
        "topics": "events",
        "penstock.etl.table": folder / "table",
        "penstock.etl.schema": SCHEMA,
        "penstock.etl.event.day": "date(timestamp_millis(ts))",
        "penstock.dedupe.data": folder / "data",
    }
    config = write_properties(folder / "pipeline.properties", properties)
    more = [word for text in sets for word in ("--set", text)]
    words = [sys.executable, "-m", "penstock", "check", "--config", str(config), "--for", part, *more]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("fields", ["event_id", "meta.id", "meta.at.ms", "`user.id`", "user,ts", "event_id, meta.id"])
@pytest.mark.parametrize("part", ["etl", "dedupe"])
def test_an_id_that_is_in_the_schema_passes(tmp_path: Path, fields: str, part: str) -> None:
    assert check(tmp_path, f"penstock.dedupe.id=json:{fields}", part=part)[0] == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("evnt_id", "has no `evnt_id` (is `event_id` meant?)"),
        ("user.id", "has no `user.id` (is `user.id` meant?"),
        ("user.name", "has no `user.name`:"),
        ("meta.idd", "has no `meta.idd` (is `meta.id` meant?)"),
        ("meta.at.s", "has no `meta.at.s`"),
        ("user,tz", "has no `tz`"),
        ("EVENT_ID", "has no `EVENT_ID`"),
    ],
)
def test_an_id_that_is_not_in_the_schema_is_refused(tmp_path: Path, fields: str, said: str) -> None:
    code, text = check(tmp_path, f"penstock.dedupe.id=json:{fields}")
    assert code == 2 and said in text and "penstock.dedupe.id.in.schema=false" in text, text
    assert check(tmp_path, f"penstock.dedupe.id=json:{fields}", "penstock.dedupe.id.in.schema=false")[0] == 0
    named = ["etl.more.topic=events.deduped", f"etl.more.table={tmp_path / 'more'}", "etl.more.schema=ts BIGINT"]
    code, text = check(tmp_path, f"penstock.dedupe.id=json:{fields}", *named, "etl.more.event.day=date(timestamp_millis(ts))")
    assert code == 2 and "`etl.more.schema` has no" in text


def send(w: World, values: Sequence[Mapping[str, object]]) -> None:
    builder = BatchBuilder()
    for value in values:
        builder.append(None, json.dumps(value).encode(), 1)
    w.send(0, [builder.build()])


def values(w: World) -> list[object]:
    return [json.loads(record.value or b"") for record in w.records()]


def test_ids_of_several_fields(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, penstock_dedupe_id="json:user,meta.ts") as w:
        pairs = [("a,b", "c"), ("a", "b,c"), ("a,b", "c"), ("a", "b,c"), ("a", 1), ("a", "1"), ("", "a"), ("", "a")]
        events = [{"user": user, "meta": {"ts": ts}} for user, ts in pairs]
        send(w, events)
        w.run_once()
        w.stage.start()  # from the store
        send(w, events[:6])
        w.await_done()
        assert w.stage.stop() == 0
        assert values(w) == [events[i] for i in (0, 1, 4, 6, 7)]


def test_an_id_that_no_record_has(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, penstock_dedupe_id="json:evnt_id") as w:
        w.stage.start()
        send(w, [{"event_id": i % 10} for i in range(100)])
        w.await_done()
        w.stage.wait_for("most records have no id (id by json:evnt_id)")
        status = w.ask("status", "--json")
        (row,) = json.loads(status.stdout)
        assert (status.returncode, row["state"], row["without_id"]) == (1, "no ids", 100)
        assert "`penstock.dedupe.id=json:evnt_id`" in row["why"]
        send(w, [{"evnt_id": i} for i in range(30_000)])
        w.await_done()
        until(lambda: w.ask("status").returncode == 0, "the partition to read ids", w.stage.text)
        send(w, [{"event_id": i} for i in range(20_000)])  # many with ids before hide nothing
        w.await_done()
        assert w.ask("status").returncode == 1
        assert w.stage.stop() == 0


def test_a_slip_in_the_id_is_said_at_the_start(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    schema = "event_id STRING"
    with World(tmp_path, shared_broker, penstock_dedupe_id="json:evnt_id", penstock_etl_schema=schema) as w:
        w.stage.start()
        w.stage.wait_for("`penstock.etl.schema` has no `evnt_id` (is `event_id` meant?)")
        assert w.stage.stop() == 0
