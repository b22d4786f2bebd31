"""Nights from a broker to the table, with one Spark session for all of them."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pytest
from confluent_kafka.admin import NewTopic

from penstock import failpoints
from penstock.config import Config, ConfigError
from penstock.pipeline import job
from penstock.pipeline.audit.counts import count_topic
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.sender import Sender
from penstock.pipeline.etl import (
    declared,
    delta,
    places,
    plan,
    ready,
    rejectfile,
    rowcounts,
    sqlfunctions,
    table,
    valuerules,
)
from penstock.pipeline.etl import rejects as reject_table
from penstock.pipeline.etl.cut import Clock
from penstock.pipeline.etl.errors import EtlError, Incomplete, Refused
from penstock.pipeline.etl.ledger import NightCommit
from penstock.pipeline.etl.load import Outcome
from penstock.pipeline.etl.localstorage import LocalStorage
from penstock.pipeline.etl.night import parse_night
from penstock.pipeline.stages.stagetopics import WIDE
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.crc import crc32c
from support.etl_world import SCHEMA, Loading, World, day_ms
from support.harness import BrokerProcess
from support.kafka_jars import ApacheKafka
from support.patience import until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

Run = Callable[..., Outcome]


@pytest.fixture
def world(apache_kafka: ApacheKafka, tmp_path: Path) -> World:
    return World(apache_kafka.bootstrap, tmp_path, configs=WIDE)


@pytest.fixture
def run(world: World, spark: Any) -> Run:
    def load(
        date: str,
        incomplete: str = "fail",
        wait_seconds: float = 0,
        reload: bool = False,
        clock: Clock = "records",
        **consent: bool,
    ) -> Outcome:
        config = job.load(world.config)
        one = Loading(config, clock=clock, incomplete=incomplete, wait_seconds=wait_seconds, spark=spark)
        try:
            return one.night(parse_night(date), reload=reload, **consent)
        finally:
            one.close()

    return load


def rows(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deltalake.DeltaTable(world.table).to_pyarrow_table().to_pylist()
    return found


def rejects(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deltalake.DeltaTable(f"{world.table}-rejects").to_pyarrow_table().to_pylist()
    return found


def test_each_record_is_a_row_of_its_day_once(world: World, run: Run) -> None:
    world.events("2013-01-01", 500)
    world.send("2013-01-01", [b'{"id": "aborted", "day": "2013-01-01"}'] * 4, abort=True)
    world.events("2013-01-02", 10)
    world.arrive()
    first = run("2013-01-01")
    world.events("2013-01-01", 3, start=500)  # late: they arrive in the second night
    world.events("2013-01-03", 7)
    world.arrive()
    second = run("2013-01-02")

    assert (first.did, first.commit.rows, second.commit.rows) == ("loaded", 510, 10)
    found = rows(world)
    assert len({row["id"] for row in found}) == len(found) == 520
    assert Counter(str(row["event_day"]) for row in found) == {"2013-01-01": 503, "2013-01-02": 10, "2013-01-03": 7}
    assert len({(row["partition"], row["offset"]) for row in found}) == 520
    assert {(row["topic"], row["timestamp"].year) for row in found} == {(f"{world.topic}.deduped", 2013)}

    commits = table.committed(world.storage)
    assert commits == [first.commit, second.commit]
    by_header = asyncio.run(count_topic(world.bootstrap, f"{world.topic}.deduped"))
    for partition in (0, 1):
        tp = (f"{world.topic}.deduped", partition)
        assert sum(commit.partitions[tp].records for commit in commits) == by_header.records[partition]
        for commit in commits:
            assert commit.partitions[tp].rows == rowcounts.rows_by_night(world.storage, commits)[commit.night, *tp]
        assert commits[0].partitions[tp].end == commits[1].partitions[tp].start
        # The markers and aborted records make the offsets more than the records.
        assert commits[0].partitions[tp].end - commits[0].partitions[tp].start > commits[0].partitions[tp].records


def test_a_night_without_records_commits_too(world: World, run: Run) -> None:
    world.arrive()
    empty = run("2013-01-01", clock="wall")
    assert (empty.did, empty.commit.records) == ("loaded", 0)
    world.events("2013-01-02", 4)
    world.arrive()
    assert run("2013-01-02", clock="wall").commit.rows == 4
    assert run("2013-01-03", clock="wall").commit.rows == 0
    assert [commit.run for commit in table.committed(world.storage)] == [1, 2, 3]
    assert len(rows(world)) == 4


def test_a_second_run_adds_nothing_and_restores_the_marker(world: World, run: Run) -> None:
    world.events("2013-01-01", 6)
    world.arrive()
    run("2013-01-01", clock="wall")
    marker = Path(world.table) / ready.ready_marker("2013-01-01")
    told = json.loads(marker.read_text())
    assert (told["rows"], told["run"]) == (6, 1)
    version = deltalake.DeltaTable(world.table).version()
    marker.unlink()
    world.events("2013-01-01", 6, start=6)
    world.arrive()
    again = run("2013-01-01", clock="wall")
    assert (again.did, again.commit.rows) == ("already", 6)
    assert json.loads(marker.read_text()) == told
    assert deltalake.DeltaTable(world.table).version() == version


def misfit(place: str, shown: str, kind: str) -> str:
    """What a reject says of a value that its column doesn't take."""
    return f"`{place}` is {shown}, and {kind} takes {valuerules.rule_of(kind).takes}"


BAD_VALUES: dict[bytes | None, str] = {
    None: "no value",
    b"": "not one JSON object: the value is empty",
    b"null": "not one JSON object: it is null",
    b"7": "not one JSON object: it is 7",
    b"[]": "not one JSON object: it is []",
    b'[{"id": "a", "day": "2013-01-01"}]': 'not one JSON object: it is [{"id": "a", "day": "2013-01-01"}]',
    b'{"id": "a"': "not one JSON object: it ends in the middle, after 10 bytes",
    b"{'id': 'a', 'day': '2013-01-01'}": "not one JSON object: byte 1 is `'`, where a name in double quotes should be",
    b'{"id": "a", "day": "2013-01-01"} x': "not one JSON object: more follows its end at byte 33",
    b'{"id": "a", "day": "2013-01-01"}{"id": "b"}': "not one JSON object: more follows its end at byte 32",
    b'{"id": "a", "day": "2013-01-01"},{"id": "b", "day": 1}': "not one JSON object: more follows its end at byte 32",
    b'{"id": "a", "day": "2013-01-01"}}': "not one JSON object: more follows its end at byte 32",
    b"null}": "not one JSON object: it is null",
    b"[]}": "not one JSON object: it is []",
    b'{"id": "a}': "not one JSON object: it ends in the middle, after 10 bytes",
    b'{"id": "a", "day": "2013-01-01", "x": {}} {}': "not one JSON object: more follows its end at byte 42",
    b'{"id": "a", "day": "2013-01-01", "x": {}, "seconds": []}': misfit("seconds", "[]", "INT"),
    b'{"id": "a", "day": "2013-01-01", "seconds": NaN}': "not one JSON object: NaN at byte 44 is no JSON value",
    b'{"id": "a", "x": ' + b"[" * 3000 + b"]" * 3000 + b"}": "not one JSON object: it is nested deeper than 1000 at byte 1016",
    b'{"id": "\xff", "day": "2013-01-01"}': "not UTF-8",
    b'{"day": "2013-01-01"}': "`id` is missing",
    b'{"id": null, "day": "2013-01-01"}': "`id` is missing",
    b'{"ID": "a", "day": "2013-01-01"}': "`id` is missing",
    b'{"id": "a", "day": "2013-01-01", "seconds": "7"}': misfit("seconds", '"7"', "INT"),
    b'{"id": "a", "day": "2013-01-01", "seconds": 99999999999}': misfit("seconds", "99999999999", "INT"),
    b'{"id": "a", "day": "yesterday", "seconds": 1.5}': "; ".join(
        [misfit("day", '"yesterday"', "DATE"), misfit("seconds", "1.5", "INT")]
    ),
    b'{"id": "a"}': "no event day",
    b'{"id": "a", "day": null}': "no event day",
}
GOOD_VALUES = [
    b' {"id": "g1", "day": "2013-01-01"}\r\n',
    b'{"id": 5, "day": "2013-01-01", "unknown": {"deep": [1, {"er": null}]}}',
    b'{"id": "g3", "day": "2013-01-01", "seconds": 2, "note": {"any": "text"}}',
    '{"id": "g4", "day": "2013-01-01", "note": "\u00fc \\u0000 ]}"}'.encode(),
]


def test_what_is_no_row_is_kept_with_its_reason_and_bytes(world: World, run: Run) -> None:
    sent = [*BAD_VALUES, *GOOD_VALUES]
    world.send("2013-01-01", sent)
    world.arrive()
    commit = run("2013-01-01", clock="wall").commit
    assert (commit.records, commit.rows, commit.rejects) == (len(sent), len(GOOD_VALUES), len(BAD_VALUES))
    kept = rejects(world)
    assert {reject["value"]: reject["reason"] for reject in kept} == BAD_VALUES
    assert {(reject["run"], reject["night"], reject["topic"], reject["key"]) for reject in kept} == {
        (1, "2013-01-01", f"{world.topic}.deduped", b"k")
    }
    positions = {(reject["partition"], reject["offset"]): reject["value"] for reject in kept}
    assert positions == {(number % 2, number // 2): value for number, value in enumerate(BAD_VALUES)}
    assert sorted(row["id"] for row in rows(world)) == ["5", "g1", "g3", "g4"]


def test_rejects_are_found_in_the_reading_that_finds_the_rows(world: World, spark: Any) -> None:
    """Where the topic has lost the night's records by the time that rejects are kept, none is missing."""
    lost = []

    def lose(words: str) -> None:
        if "rejects" in words:
            world.delete_records_before(30)
            lost.append(words)

    world.send("2013-01-01", [b'{"id": "%d", "day": "2013-01-01"}' % n if n % 20 else b"bad %d" % n for n in range(60)])
    world.arrive()
    one = Loading(job.load(world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=spark, on_step=lose)
    commit = one.night(parse_night("2013-01-01")).commit
    one.close()
    assert lost == ["2013-01-01 keeps 3 rejects"]
    assert (commit.rows, commit.rejects, len(rows(world))) == (57, 3, 57)
    assert sorted(reject["value"] for reject in rejects(world)) == [b"bad 0", b"bad 20", b"bad 40"]
    assert len(list(Path(world.table).rglob("*.parquet"))) == len(deltalake.DeltaTable(world.table).file_uris())


TYPED = (
    "id STRING NOT NULL, day DATE, at TIMESTAMP, price DECIMAL(9, 2), legs ARRAY<STRUCT<at: TIMESTAMP, fares: MAP<STRING,"
    " DECIMAL(9, 2)>>>, box STRUCT<`a-size`: DECIMAL(4, 1), days: ARRAY<DATE>>"
)
MISFITS = {
    b'{"id": "a", "day": "2013-01-01", "price": 1.239}': misfit("price", "1.239", "DECIMAL(9, 2)"),
    b'{"id": "a", "day": "2013-01-01", "price": 12345678.5}': misfit("price", "12345678.5", "DECIMAL(9, 2)"),
    b'{"id": "a", "day": "2013-01-01", "at": 1356998400000}': misfit("at", "1356998400000", "TIMESTAMP"),
    b'{"id": "a", "day": "2013-01-01", "at": 1356998400}': misfit("at", "1356998400", "TIMESTAMP"),
    b'{"id": "a", "day": "2013-01-01", "at": "2013-01-01"}': misfit("at", '"2013-01-01"', "TIMESTAMP"),
    b'{"id": "a", "day": "2013-01-01", "at": "soon"}': misfit("at", '"soon"', "TIMESTAMP"),
    b'{"id": "a", "day": "2013-01-01", "at": {"s": 1}}': misfit("at", '{"s": 1}', "TIMESTAMP"),
    b'{"id": "a", "day": "2013-01-01", "at": "+55000-01-01"}': misfit("at", '"+55000-01-01"', "TIMESTAMP"),
    b'{"id": "a", "day": "55000-01-01"}': misfit("day", '"55000-01-01"', "DATE"),
    b'{"id": "a", "day": "2013-01-01", "legs": [{}, null, {"fares": {"x": 1.5, "y": 1.239}}]}': misfit(
        "legs[].fares[]", "1.239", "DECIMAL(9, 2)"
    ),
    b'{"id": "a", "day": "2013-01-01", "legs": [{"at": "2013-01-01T12:00:00Z"}, {"at": 1356998400}]}': misfit(
        "legs[].at", "1356998400", "TIMESTAMP"
    ),
    b'{"id": "a", "day": "2013-01-01", "legs": [{"at": "soon"}]}': misfit("legs[].at", '"soon"', "TIMESTAMP"),
    b'{"id": "a", "day": "2013-01-01", "box": {"a-size": 1.25}}': misfit("box.a-size", "1.25", "DECIMAL(4, 1)"),
    b'{"id": "a", "day": "2013-01-01", "box": {"days": ["55000-01-01"]}}': misfit("box.days[]", '"55000-01-01"', "DATE"),
}
FITS = {
    b'{"id": "1", "day": "2013-01-01", "at": "2013-01-01T12:00:00.5Z", "price": 1.2}': ("2013-01-01T12:00:00.500000", "1.20"),
    b'{"id": "2", "day": "2013-01-01", "at": null, "price": "-1234567.89"}': (None, "-1234567.89"),
    b'{"id": "3", "day": "2013-01-01", "at": "2013-01-01 00:00", "price": 1e2}': ("2013-01-01T00:00:00", "100.00"),
    b'{"id": "4", "day": "2013-01-01", "price": 1, "legs": [null, {"at": null}, {"at": "2013-01-02T01:00:00Z", '
    b'"fares": {"x": 1.5, "y": null}}], "box": {"a-size": 100.5, "days": ["2013-01-03", null]}}': (None, "1.00"),
}


def test_what_would_be_rounded_or_guessed_is_rejected(apache_kafka: ApacheKafka, tmp_path: Path, spark: Any) -> None:
    """And into a table whose folder has a blank in its name, whose columns that rows must have are NOT NULL."""
    folder = tmp_path / "a table"
    folder.mkdir()
    world = World(apache_kafka.bootstrap, folder)
    world.write_config(penstock_etl_schema=TYPED)
    world.send("2013-01-01", [*MISFITS, *FITS])
    world.arrive()
    one = Loading(job.load(world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=spark)
    commit = one.night(parse_night("2013-01-01")).commit
    assert (commit.rows, commit.rejects) == (len(FITS), len(MISFITS))
    assert {reject["value"]: reject["reason"] for reject in rejects(world)} == MISFITS
    found = {row["id"]: row for row in rows(world)}
    for value, (at, price) in FITS.items():
        row = found[json.loads(value)["id"]]
        seen = None if row["at"] is None else row["at"].replace(tzinfo=None).isoformat()
        assert (seen, str(row["price"])) == (at, price)
    _, empty, leg = found["4"]["legs"]
    assert (empty["at"], leg["at"].isoformat(), dict(leg["fares"])) == (
        None, "2013-01-02T01:00:00+00:00", {"x": Decimal("1.50"), "y": None}
    )  # fmt: skip
    assert found["4"]["box"] == {"a-size": Decimal("100.5"), "days": [datetime.date(2013, 1, 3), None]}
    fields = {field.name: field.nullable for field in deltalake.DeltaTable(world.table).schema().fields}
    assert (fields["id"], fields["day"], fields["price"]) == (False, True, True)
    one.close()


def test_a_column_that_the_schema_gained_comes_with_the_night_that_first_has_it(world: World, run: Run) -> None:
    def fields() -> dict[str, tuple[str, bool]]:
        found = deltalake.DeltaTable(world.table).schema().fields
        return {field.name: (str(field.type), field.nullable) for field in found}

    world.send("2013-01-01", [b'{"id": "1", "day": "2013-01-01", "gate": "A1"}'])
    world.arrive()
    run("2013-01-01", clock="wall")
    before, version = fields(), deltalake.DeltaTable(world.table).version()
    world.write_config(penstock_etl_schema=f"{SCHEMA}, gate STRING, stops ARRAY<STRUCT<at: STRING>>")
    good = b'{"id": "2", "day": "2013-01-01", "gate": "B2", "stops": [{"at": "EWR"}]}'
    world.send("2013-01-02", [good, b'{"id": "3", "gate": 4'])
    world.arrive()
    failpoints.arm("etl.before_commit=error")
    try:
        with pytest.raises(failpoints.FailpointError):
            run("2013-01-02", clock="wall")
    finally:
        failpoints.disarm()
    assert fields() == before
    commit = run("2013-01-02", clock="wall").commit
    assert (commit.rows, commit.rejects, deltalake.DeltaTable(world.table).version()) == (1, 1, version + 1)
    gained = {name: kind for name, kind in fields().items() if name not in before}
    assert {name: fields()[name] for name in before} == before
    assert gained.keys() == {"gate", "stops"} and all(nullable for _, nullable in gained.values())
    assert {row["id"]: (row["gate"], row["stops"]) for row in rows(world)} == {"1": (None, None), "2": ("B2", [{"at": "EWR"}])}
    # A night that is loaded again is loaded by the schema of now.
    run("2013-01-01", reload=True)
    assert {row["id"]: row["gate"] for row in rows(world)} == {"1": "A1", "2": "B2"}
    # A column that is declared no more stays, and what else the schema declares goes on.
    world.write_config()
    world.send("2013-01-03", [b'{"id": "4", "day": "2013-01-03", "gate": "C3"}'])
    world.arrive()
    run("2013-01-03", clock="wall")
    assert {row["id"]: row["gate"] for row in rows(world)} == {"1": "A1", "2": "B2", "4": None}


def test_what_stands_beside_a_records_value_is_a_column_on_request(world: World, run: Run) -> None:
    """And an event may have a key and a value of its own."""
    world.write_config(penstock_etl_schema=f"{SCHEMA}, key INT, value STRING")
    world.send("2013-01-01", [b'{"id": "1", "day": "2013-01-01", "key": 7, "value": "v"}'])
    world.arrive()
    run("2013-01-01", clock="wall")
    (first,) = rows(world)
    assert (first["key"], first["value"]) == (7, "v")
    asked = "key AS record_key, headers, header:dc AS source, header:trace"
    world.write_config(penstock_etl_schema=f"{SCHEMA}, key INT, value STRING", penstock_etl_record_columns=asked)
    sent: list[tuple[str, bytes | None]] = [
        ("dc", b"EWR"),
        ("trace", b"\xfft"),
        ("trace", b"t"),
        ("dc", b"JFK"),
        ("none", None),
    ]
    world.send("2013-01-02", [b'{"id": "2", "day": "2013-01-02"}', b'{"id": 3, "key": "bad"}'], headers=sent)
    world.send("2013-01-02", [b'{"id": "4", "day": "2013-01-02"}'])
    world.send("2013-01-02", [b'{"id": "5", "day": "2013-01-02"}'], headers=[("dc", b"EW\xff")])
    world.arrive()
    commit = run("2013-01-02", clock="wall").commit
    assert (commit.rows, commit.rejects) == (2, 2)
    assert {reject["value"]: (reject["reason"], reject["key"]) for reject in rejects(world)} == {
        b'{"id": 3, "key": "bad"}': (misfit("key", '"bad"', "INT"), b"k"),
        b'{"id": "5", "day": "2013-01-02"}': ("`source` is not UTF-8 in header `dc`", b"k"),
    }
    found = {row["id"]: (row["record_key"], row["headers"], row["source"], row["trace"]) for row in rows(world)}
    headers = [{"key": name, "value": value} for name, value in sent]
    assert found == {"1": (None, None, None, None), "2": (b"k", headers, "JFK", "t"), "4": (b"k", None, None, None)}


def test_an_event_day_that_spark_refuses_leaves_no_plan(world: World, run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """In a sentence, without Spark's own words on standard error."""
    world.events("2013-01-01", 4)
    world.arrive()
    world.write_config(penstock_etl_event_day="no_such_function(day)")
    with pytest.raises(ConfigError, match="calls `no_such_function`, which is no function of Spark SQL"):
        run("2013-01-01", clock="wall")
    world.write_config(penstock_etl_event_day="date(day, 3)")
    capfd.readouterr()
    with pytest.raises(EtlError, match=r"`penstock\.etl\.schema` or `penstock\.etl\.event\.day`: Spark failed: [^\n]+\Z"):
        run("2013-01-01", clock="wall")
    assert "at org.apache.spark" not in "".join(capfd.readouterr())
    world.write_config()
    assert run("2013-01-01", clock="wall").commit.rows == 4


def test_the_functions_of_an_event_day_are_those_of_spark(spark: Any) -> None:
    registry = spark._jsparkSession.sessionState().functionRegistry()
    listed = registry.listFunction()
    groups: dict[str, str] = {}
    for index in range(listed.size()):
        name = listed.apply(index)
        info = registry.lookupFunction(name)
        if name.funcName().isidentifier():
            groups[name.funcName()] = str(info.get().getGroup())
    of_rows = {name for name, group in groups.items() if group in ("agg_funcs", "window_funcs", "generator_funcs")}
    assert of_rows | {"window", "window_time", "session_window"} == sqlfunctions.OF_ROWS
    assert groups.keys() - sqlfunctions.OF_ROWS == sqlfunctions.OF_A_ROW | sqlfunctions.CHANGING
    assert not sqlfunctions.OF_A_ROW & sqlfunctions.CHANGING


def test_what_a_constraint_of_the_table_refuses_is_a_reject(world: World, run: Run, spark: Any) -> None:
    """A record that is no row never meets the constraint; nor does it matter that one asks for a column declared no longer."""
    world.send("2013-01-01", [b'{"id": "1", "day": "2013-01-01", "seconds": 1, "note": "n"}'])
    world.arrive()
    run("2013-01-01", clock="wall")
    for name, condition in (("positive", "seconds > 0"), ("noted", "note IS NULL OR length(note) < 4")):
        spark.sql(f"ALTER TABLE delta.`{world.table}` ADD CONSTRAINT {name} CHECK ({condition})")
    world.write_config(penstock_etl_schema="id STRING NOT NULL, day DATE, seconds INT")
    sent = [b'{"id": "2", "day": "2013-01-02", "seconds": 2}', b"bad", b'{"id": "3", "day": "2013-01-02", "seconds": 0}']
    world.send("2013-01-02", [*sent, b'{"id": "4", "day": "2013-01-02"}'])
    world.arrive()
    commit = run("2013-01-02", clock="wall").commit
    assert (commit.rows, commit.rejects) == (1, 3)
    refused = "the table's constraint `positive` (seconds > 0) is not true of the row"
    assert {reject["value"]: reject["reason"] for reject in rejects(world)} == {
        b"bad": "not one JSON object: bad at byte 0 is no JSON value",
        sent[2]: refused,
        b'{"id": "4", "day": "2013-01-02"}': refused,
    }
    again = run("2013-01-02", reload=True).commit
    assert (again.rows, again.rejects) == (1, 3)
    assert {row["id"]: row["note"] for row in rows(world)} == {"1": "n", "2": None}
    with pytest.raises(Exception, match="CHECK constraint"):
        spark.sql(f"UPDATE delta.`{world.table}` SET seconds = 0")


def test_a_reject_is_kept_whole_where_the_table_has_column_mapping(world: World, run: Run, spark: Any) -> None:
    world.events("2013-01-01", 2)
    world.arrive()
    run("2013-01-01", clock="wall")
    mapping = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
    spark.sql(f"ALTER TABLE delta.`{world.table}` SET TBLPROPERTIES ({mapping})")
    world.send("2013-01-02", [b"bad", b'{"id": "good", "day": "2013-01-02"}'])
    world.arrive()
    run("2013-01-02", clock="wall")
    (reject,) = rejects(world)
    assert (reject["key"], reject["value"]) == (b"k", b"bad")
    assert reject["reason"] == "not one JSON object: bad at byte 0 is no JSON value"
    assert spark.read.format("delta").load(world.table).where("id = 'good'").count() == 1


def test_a_night_says_how_many_of_its_rows_are_of_later_days(world: World, run: Run) -> None:
    world.events("2013-01-01", 4)
    world.events("2013-01-01", 2, start=4)
    world.events("2013-01-02", 3)
    world.send("2013-01-03", [b"bad", b'{"id": "late", "day": "2012-12-31"}'])
    world.arrive()
    first = run("2013-01-01").commit
    assert (first.rows, first.rejects, first.later) == (10, 1, 4)
    assert table.committed(world.storage) == [first]


def corrupt_batch(day: str, records: int) -> bytes:
    """A batch that is right by header and checksum and can't be inflated."""
    builder = BatchBuilder(4)
    for number in range(records):
        assert builder.append(b"k", b'{"id": "%d"}' % number, day_ms(day))
    data = bytearray(builder.build())
    data[61:] = bytes(byte ^ 0x5A for byte in data[61:])
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def far_batch(day: str, time_ms: int) -> bytes:
    """A batch whose first record has a time that Kafka takes and Spark has no number for."""
    builder = BatchBuilder(0, any_time=True)
    for at_ms in (time_ms, day_ms(day)):
        assert builder.append(b"k", b'{"id": "far", "day": "2013-01-01"}', at_ms)
    return builder.build()


def test_the_time_of_a_record_is_one_that_readers_have(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path, spark: Any
) -> None:
    """One that readers can't have is a reject; a record without a time has none."""
    any_time = {"log.message.timestamp.after.max.ms": (1 << 63) - 1}
    broker = make_broker(**{"log.retention.ms": -1, "penstock.validate.records": "headers", **any_time})
    world = World(broker.bootstrap, tmp_path)
    first_ms, last_ms = -2_208_988_800_000, 253_402_300_799_999  # of the years 1900 to 9999
    builder = BatchBuilder(0, any_time=True)
    for time_ms in (-1, first_ms, last_ms, first_ms - 1, last_ms + 1):
        assert builder.append(b"k", b'{"id": "%d", "day": "2013-01-01"}' % time_ms, time_ms)

    async def send(batch: bytes) -> None:
        async with Admin(broker.bootstrap) as admin:
            await Sender(admin, idempotent=False).submit((f"{world.topic}.deduped", 0), [batch])

    asyncio.run(send(builder.build()))
    world.arrive()
    one = Loading(job.load(world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=spark)
    commit = one.night(parse_night("2013-01-01")).commit
    one.close()
    assert (commit.rows, commit.rejects, commit.later) == (3, 2, 1)
    assert {row["id"]: None if row["timestamp"] is None else row["timestamp"].isoformat() for row in rows(world)} == {
        "-1": None,
        str(first_ms): "1900-01-01T00:00:00+00:00",
        str(last_ms): "9999-12-31T23:59:59.999000+00:00",
    }
    assert {(reject["reason"], reject["timestamp"]) for reject in rejects(world)} == {
        ("the record has a time before the year 1900", None),
        (f"the record has the time {last_ms + 1} ms, after the year 9999", None),
    }


def test_batches_that_cannot_be_read_are_rejected_and_the_night_goes_on(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path, spark: Any
) -> None:
    # One that believes headers, with events of 2013.
    any_time = {"log.message.timestamp.after.max.ms": (1 << 63) - 1}
    broker = make_broker(**{"log.retention.ms": -1, "penstock.validate.records": "headers", **any_time})
    world = World(broker.bootstrap, tmp_path)
    rot, output = [corrupt_batch("2013-01-01", 3), corrupt_batch("2013-01-01", 5)], f"{world.topic}.deduped"
    rot += [far_batch("2013-01-01", time_ms) for time_ms in ((1 << 63) - 1, -(1 << 62))]

    async def send(batch: bytes) -> None:
        async with Admin(broker.bootstrap) as admin:
            await Sender(admin, idempotent=False).submit((output, 0), [batch])

    world.events("2013-01-01", 20)
    for batch in rot:
        asyncio.run(send(batch))
        world.events("2013-01-01", 20, start=20)
    world.send("2013-01-01", [b"bad"])
    world.arrive()
    one = Loading(job.load(world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=spark)
    commit = one.night(parse_night("2013-01-01")).commit
    assert (commit.records, commit.rows, commit.rejects) == (100 + 12 + 1, 100, 12 + 1)
    assert asyncio.run(count_topic(world.bootstrap, output)).total == commit.records
    # The first sixteen bytes, with base offset and leader epoch, are the broker's.
    kept = [(reject["reason"], reject["value"][16:]) for reject in rejects(world) if reject["value"] != b"bad"]
    wanted = zip((3, 5, 2, 2), rot, strict=True)
    assert sorted(kept) == sorted((f"a batch of {count} records that can't be read", data[16:]) for count, data in wanted)
    again = one.night(parse_night("2013-01-01"), reload=True).commit
    assert (again.records, again.rows, again.rejects, len(rows(world))) == (113, 100, 13, 100)
    assert len(rejects(world)) == 5
    # Nothing but rot.
    asyncio.run(send(rot[0]))
    world.arrive()
    assert one.night(parse_night("2013-01-02")).commit.rejects == 3
    one.close()


def test_an_incomplete_night_waits_fails_or_is_marked(world: World, run: Run) -> None:
    world.events("2013-01-01", 20)
    with pytest.raises(Incomplete, match="holds no record of after the night yet"):
        run("2013-01-01")
    world.events("2013-01-02", 2)
    world.arrive(less=3)
    with pytest.raises(Incomplete, match=r"source one: \S+ is mirrored up to 10 of 12"):
        run("2013-01-01")
    world.commit("penstock-mirror.mirror.one", world.ends(world.topic))
    with pytest.raises(Incomplete, match="dedupe: "):
        run("2013-01-01", incomplete="wait", wait_seconds=0.3)
    assert table.committed(world.storage) == []
    marked = run("2013-01-01", incomplete="mark").commit
    assert marked.rows == 22
    assert all(words.startswith("dedupe: ") for words in marked.missing) and marked.missing
    assert table.committed(world.storage)[0].missing == marked.missing
    told = json.loads((Path(world.table) / ready.incomplete_marker("2013-01-01")).read_text())
    assert told["missing"] == list(marked.missing)
    marker = Path(world.table) / ready.ready_marker("2013-01-01")
    assert not marker.exists()
    # The next night that lacks nothing has the rest.
    world.arrive()
    run("2013-01-02", clock="wall")
    told = json.loads(marker.read_text())
    assert (told["missing"], told["completed_with"]) == (list(marked.missing), "2013-01-02")
    assert not (Path(world.table) / ready.incomplete_marker("2013-01-01")).exists()


def test_trailing_markers_are_nothing_to_wait_for(world: World, run: Run) -> None:
    world.events("2013-01-01", 20)
    world.events("2013-01-02", 2)
    world.arrive(less=1)  # the last offset of each partition is a commit marker
    assert run("2013-01-01").commit.rows == 22


def test_a_source_that_is_down_is_named(world: World, run: Run) -> None:
    world.events("2013-01-01", 2)
    world.write_config(source_two_bootstrap_servers="127.0.0.1:1")
    world.arrive()
    with pytest.raises(Incomplete, match="source two can't be asked"):
        run("2013-01-01", clock="wall")


@pytest.mark.whole_day
def test_the_wall_clock_decides_when_a_night_is_over(world: World, run: Run) -> None:
    world.arrive()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for how in ("fail", "mark", "wait"):
        with pytest.raises(Incomplete, match="not over for another"):
            run(today, clock="wall", incomplete=how)


def test_a_night_takes_missing_ones_along_only_when_it_is_told_to(world: World, run: Run) -> None:
    world.events("2013-01-01", 4)
    world.arrive()
    run("2013-01-01", clock="wall")
    world.events("2013-01-02", 4)
    world.events("2013-01-04", 2)
    world.arrive()
    with pytest.raises(Refused, match=r"night 2013-01-02\.\.2013-01-03 is not in the table yet"):
        run("2013-01-04", clock="wall")
    assert len(table.committed(world.storage)) == 1
    commit = run("2013-01-04", clock="wall", covering=True).commit
    assert (commit.rows, commit.nights) == (6, ("2013-01-02", "2013-01-03"))
    assert table.committed(world.storage)[-1] == commit
    told = json.loads((Path(world.table) / ready.ready_marker("2013-01-03")).read_text())
    assert (told["night"], told["loaded_with"], told["rows"], told["run"]) == ("2013-01-03", "2013-01-04", 6, 2)
    assert "loaded_with" not in json.loads((Path(world.table) / ready.ready_marker("2013-01-04")).read_text())

    (Path(world.table) / ready.ready_marker("2013-01-02")).unlink()
    assert run("2013-01-02", clock="wall").did == "already"
    assert (Path(world.table) / ready.ready_marker("2013-01-02")).exists()
    with pytest.raises(Refused, match="2013-01-02 was loaded with night 2013-01-04"):
        run("2013-01-02", reload=True)
    assert run("2013-01-04", reload=True).commit.nights == commit.nights
    assert run("2013-01-05", clock="wall").commit.rows == 0


@pytest.mark.whole_day
def test_a_night_that_was_loaded_before_its_end_is_taken_back(world: World, run: Run, spark: Any) -> None:
    """Its rows and rejects stay, once, with the night before; a kill at any step leaves that to the next call."""
    today = datetime.datetime.now(datetime.UTC).date()
    first, second, early, after = ((today + datetime.timedelta(days=days)).isoformat() for days in (-3, -1, 0, 2))
    for number, (day, clock) in enumerate(((first, "wall"), (early, "records"))):
        world.events(day, 8, start=8 * number)
        world.send(day, [b"bad"])
        if clock == "records":
            world.events(after, 2)  # a sender's clock is ahead in each partition: the records say that today is over
        world.arrive()
        run(day, clock=clock, covering=True)
    before, rejected = rows(world), rejects(world)
    assert len(before) == 18 and len(rejected) == 2
    with pytest.raises(Refused, match=rf"night {early} \(run 2\) is in "):
        run(second, clock="wall", covering=True)

    def take_back(name: str = "") -> Outcome | None:
        one = Loading(job.load(world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=spark)
        failpoints.arm(f"{name}=error") if name else None
        try:
            return one.take_back()
        finally:
            failpoints.disarm()
            one.close()

    for name in ("etl.before_plan", "etl.plan_aside", "etl.after_plan", "etl.before_commit"):
        with pytest.raises(failpoints.FailpointError):
            take_back(name)
    with pytest.raises(Refused, match=rf"{early} are being taken back \(run 3\)\nhint: .*--take-back` finishes that"):
        run(second, clock="wall", covering=True)
    with pytest.raises(failpoints.FailpointError):
        take_back("etl.after_commit")
    assert take_back() is None
    (commit,) = table.committed(world.storage)
    assert (commit.night, commit.run, commit.rows, commit.rejects, commit.missing) == (first, 3, 18, 2, ())
    assert commit.decided == (f"took back {early}, loaded before their end",)
    assert (rows(world), rejects(world)) == (before, rejected)
    assert [path.name for path in (Path(world.table) / ready.READY).iterdir()] == [f"night={first}"]

    world.events(second, 4, start=100)
    world.arrive()
    assert run(second, clock="wall", covering=True).commit.rows == 4
    assert run(first, clock="wall").did == "already"
    again = run(first, reload=True).commit
    assert (again.rows, again.rejects, len(rows(world)), len(rejects(world))) == (18, 2, 22, 2)
    with pytest.raises(Incomplete, match="not over for another"):
        run(early, clock="wall")


@pytest.mark.whole_day
def test_the_first_night_of_a_table_may_be_taken_back(world: World, run: Run, spark: Any) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    yesterday, early, after = ((today + datetime.timedelta(days=days)).isoformat() for days in (-1, 0, 2))
    world.events(early, 8)
    world.events(after, 2)
    world.arrive()
    run(early)
    one = Loading(job.load(world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=spark)
    outcome = one.take_back()
    one.close()
    assert outcome is not None and (outcome.commit.night, outcome.commit.rows, outcome.did) == (yesterday, 10, "joined")
    assert outcome.commit.missing == (f"it was loaded as night {early}, by a clock that was ahead",)
    assert table.committed(world.storage) == [outcome.commit]
    found = sorted(str(path.relative_to(world.table)) for path in (Path(world.table) / "_penstock").glob("_*/*"))
    assert found == [ready.incomplete_marker(yesterday)]
    assert run(yesterday, clock="wall").did == "already"
    assert len(rows(world)) == 10


def test_a_table_over_a_topic_without_its_first_records_is_begun_by_a_person(world: World, run: Run) -> None:
    world.events("2013-01-01", 8)
    world.arrive()
    world.delete_records_before(3)
    with pytest.raises(Refused, match=r"has no nights, .*deduped-0 at 3, .*deduped-1 at 3\).*\nhint: .* --from-earliest`"):
        run("2013-01-01", clock="wall")
    assert table.committed(world.storage) == []
    done = world.etl("--night", "2013-01-01", "--clock", "wall", "--from-earliest")
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 2), done.stderr
    (commit,) = table.committed(world.storage)
    assert commit.decided[0].startswith(f"the table begins where its topic did by then: {world.topic}.deduped-0 at 3")
    assert run("2013-01-02", clock="wall").commit.decided == ()


def put_in_place(spark: Any, folder: str, copy: Path | None = None) -> None:
    """Let a copy lie where a table was, or nothing."""
    shutil.rmtree(folder)
    if copy is not None:
        shutil.copytree(copy, folder)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def test_a_table_that_is_lost_is_noticed(world: World, run: Run, spark: Any) -> None:
    """A disk that isn't mounted, say, over a topic that still has all."""
    world.events("2013-01-01", 8)
    world.arrive()
    run("2013-01-01", clock="wall")
    put_in_place(spark, world.table)
    for how in ("fail", "mark"):
        with pytest.raises(
            Refused, match=r"notes run 1 \(night 2013-01-01\) .* there is no table: .*\nhint: .* --from-earliest`"
        ):
            run("2013-01-02", clock="wall", incomplete=how)
    commit = run("2013-01-02", clock="wall", from_earliest=True).commit
    assert (commit.rows, commit.run, len(commit.decided)) == (8, 1, 1)
    assert run("2013-01-03", clock="wall").commit.run == 2


def test_a_table_that_was_exchanged_is_noticed(world: World, run: Run, spark: Any, tmp_path: Path) -> None:
    """For an older copy of itself, or for another table of the same topic."""
    world.events("2013-01-01", 8)
    world.arrive()
    run("2013-01-01", clock="wall")
    shutil.copytree(world.table, tmp_path / "older")
    run("2013-01-02", clock="wall")
    put_in_place(spark, world.table, tmp_path / "older")
    with pytest.raises(Refused, match=r"notes run 2 \(night 2013-01-02\) .* there is run 1: .*\nhint: .* --accept-table`"):
        run("2013-01-02", clock="wall")
    commit = run("2013-01-02", clock="wall", accept_table=True).commit
    assert (commit.run, len(commit.decided)) == (2, 1)

    world.write_config(penstock_etl_table=str(tmp_path / "other"))
    run("2013-01-01", clock="wall")
    run("2013-01-02", clock="wall")
    world.write_config()
    put_in_place(spark, world.table, tmp_path / "other")
    with pytest.raises(Refused, match=r"is another table \(id .*\nhint: .* --accept-table`"):
        run("2013-01-03", clock="wall")
    assert run("2013-01-03", clock="wall", accept_table=True).commit.run == 3
    assert run("2013-01-04", clock="wall").commit.decided == ()


def test_a_table_that_nobody_has_noted_is_noted_by_its_next_night(
    world: World, run: Run, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an earlier version, or on a host that got another name."""
    world.events("2013-01-01", 8)
    world.arrive()
    run("2013-01-01", clock="wall")
    monkeypatch.setattr("penstock.pipeline.etl.tablenotes.socket.gethostname", lambda: "renamed")
    for night, said in (("2013-01-02", 1), ("2013-01-03", 0)):
        steps: list[str] = []
        one = Loading(
            job.load(world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=spark, on_step=steps.append
        )
        one.night(parse_night(night))
        one.close()
        assert sum("the aggregate noted nothing of" in words for words in steps) == said
    put_in_place(spark, world.table)
    with pytest.raises(Refused, match="notes run 3"):
        run("2013-01-04", clock="wall")


def test_a_reload_replaces_exactly_the_rows_of_its_night(world: World, run: Run, spark: Any) -> None:
    for number, day in enumerate(("2013-01-01", "2013-01-02", "2013-01-03")):
        world.events("2013-01-01", 8, start=8 * number)
        world.send(day, [b"bad"])
        world.arrive()
        run(day, clock="wall")
    before, first_commit = rows(world), table.committed(world.storage)[0]
    # Somebody compacts the table, so that a file holds rows of all nights, and loses a row of two of them.
    lost = {"2013-01-01/10", "2013-01-01/17"}
    kept = spark.read.format("delta").load(world.table).where(f"id NOT IN {tuple(lost)}")
    kept.coalesce(1).write.format("delta").mode("overwrite").save(world.table)

    again = run("2013-01-02", reload=True)
    assert (again.did, again.commit.run, again.commit.rows, again.commit.rejects) == ("reloaded", 4, 8, 1)
    expected = {row["id"]: row for row in before if row["id"] != "2013-01-01/17"}
    assert {row["id"]: row for row in rows(world)} == expected and len(rows(world)) == len(expected)
    commits = table.committed(world.storage)
    assert [commit.run for commit in commits] == [1, 4, 3] and commits[0] == first_commit
    assert sorted(reject["run"] for reject in rejects(world)) == [1, 3, 4]
    assert json.loads((Path(world.table) / ready.ready_marker("2013-01-02")).read_text())["run"] == 4
    world.events("2013-01-04", 1)
    world.arrive()
    assert (run("2013-01-04", clock="wall").commit.run, len(rows(world))) == (5, 24)


def test_a_reload_needs_a_committed_night_and_its_records(world: World, run: Run) -> None:
    world.events("2013-01-01", 8)
    world.arrive()
    with pytest.raises(Refused, match="not in the table"):
        run("2013-01-01", reload=True)
    run("2013-01-01", clock="wall")
    world.delete_records_before(3)
    with pytest.raises(Refused, match="records are lost"):
        run("2013-01-01", reload=True)
    assert len(rows(world)) == 8


def test_nights_go_forward_and_a_begun_one_comes_first(world: World, run: Run) -> None:
    world.events("2013-01-02", 8)
    world.arrive()
    failpoints.arm("etl.after_plan=error")
    try:
        with pytest.raises(failpoints.FailpointError):
            run("2013-01-02", clock="wall")
    finally:
        failpoints.disarm()
    world.events("2013-01-03", 8)
    world.arrive()
    with pytest.raises(Refused, match=r"night 2013-01-02 was begun \(run 1\)"):
        run("2013-01-03", clock="wall")
    assert run("2013-01-02", clock="wall").commit.rows == 8  # by its plan, though more has come since
    with pytest.raises(Refused, match="lies before 2013-01-02"):
        run("2013-01-01", clock="wall")
    assert run("2013-01-03", clock="wall").commit.rows == 8


def test_a_plan_that_differs_from_the_commit_is_refused(world: World, run: Run) -> None:
    world.events("2013-01-01", 8)
    world.arrive()
    commit = run("2013-01-01", clock="wall").commit
    ranges = {tp: (part.start, part.end - 1) for tp, part in commit.partitions.items()}
    (Path(world.table) / plan.name(1)).unlink()
    plan.persist(world.storage, plan.Plan("2013-01-01", 1, ranges))
    with pytest.raises(Refused, match="nothing was changed"):
        run("2013-01-01", clock="wall")


def test_of_two_loads_at_once_one_commits(world: World, run: Run, spark: Any) -> None:
    world.events("2013-01-01", 4)
    world.arrive()
    first = run("2013-01-01", clock="wall").commit
    made = plan.Plan("2013-01-02", 2, {tp: (part.end, part.end) for tp, part in first.partitions.items()})
    another = plan.Plan("2013-01-03", 2, made.ranges)
    columns = declared.parse("id STRING", "id")
    one, two = (delta.Transaction(spark, world.storage, each, columns) for each in (made, another))
    one.commit(NightCommit("2013-01-02", 2, {}))
    with pytest.raises(Refused, match="another process"):
        two.commit(NightCommit("2013-01-03", 2, {}))
    with pytest.raises(Refused, match="overtaken"):
        delta.Transaction(spark, world.storage, another, columns)
    assert [commit.night for commit in table.committed(world.storage)] == ["2013-01-01", "2013-01-02"]


def test_rejects_of_another_plan_are_not_this_ones(world: World, run: Run, spark: Any) -> None:
    """And a table of rejects that was made before plans had ids is taken over with what it holds."""
    path = f"{world.table}-rejects"
    columns = ", ".join(part for part in reject_table.SCHEMA.split(", ") if not part.startswith("plan "))
    row = ("2013-01-09", 99, "t", 0, 0, None, "a batch", None, b"old")
    spark.createDataFrame([row], columns).write.format("delta").partitionBy("run").save(path)
    another = plan.Plan("2013-01-01", 1, {})
    found = rejectfile.of_batches([(plan.CorruptBatch("t", 0, 0, 0, 1, 1), b"another")])
    reject_table.write(spark, places.at(path, Config({}, frozenset())), another, [found])
    world.events("2013-01-01", 4)
    world.send("2013-01-01", [b"bad"])
    world.arrive()
    commit = run("2013-01-01", clock="wall").commit
    kept = {(reject["run"], reject["plan"], reject["value"]) for reject in rejects(world)}
    assert kept == {(1, commit.plan, b"bad"), (99, "none", b"old")}


def keep_stray_reject(world: World, spark: Any) -> str:
    """Let a run that nobody commits keep a reject; the folder of rejects."""
    path = f"{world.table}-rejects"
    found = rejectfile.of_batches([(plan.CorruptBatch("t", 0, 0, 0, 1, 1), b"stray")])
    reject_table.write(spark, places.at(path, Config({}, frozenset())), plan.Plan("2013-01-01", 1, {}), [found])
    return path


def test_rejects_that_delta_does_not_remove_leave_the_night_loaded(world: World, run: Run, spark: Any) -> None:
    """Any later call finds stray rejects, and tries to remove them."""
    world.events("2013-01-01", 4)
    world.arrive()
    run("2013-01-01", clock="wall")
    path = keep_stray_reject(world, spark)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    with pytest.raises(EtlError, match=r"night 2013-01-01 is loaded.*: run it again; the rejects .* Spark failed: "):
        run("2013-01-01", clock="wall")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    assert run("2013-01-01", clock="wall").did == "already"
    assert rejects(world) == []


def test_a_table_that_is_none_of_rejects_gets_none(world: World, run: Run, spark: Any) -> None:
    world.events("2013-01-01", 4)
    world.send("2013-01-01", [b"bad"])
    world.arrive()
    other = spark.sql("SELECT 1L AS run, 'another' AS plan, 7 AS value")
    other.write.format("delta").partitionBy("run", "plan").save(f"{world.table}-rejects")
    with pytest.raises(EtlError, match=r"-rejects` is no table of rejects: it has no column `night`, or one of another type"):
        run("2013-01-01", clock="wall")
    assert [reject["value"] for reject in rejects(world)] == [7]
    assert not table.committed(world.storage)


def test_of_several_that_keep_the_same_rejects_at_once_one_has_them(world: World, spark: Any) -> None:
    """Machines that carry out one plan don't see each other's lock. Each replaces what another kept a moment before."""
    place = places.at(f"{world.table}-rejects", Config({}, frozenset()))
    made = plan.Plan("2013-01-01", 1, {})
    found = [rejectfile.of_batches((plan.CorruptBatch("t", 0, 0, at, at + 1, 1), b"%d" % at) for at in range(3))]
    with ThreadPoolExecutor(4) as machines:
        for kept in [machines.submit(reject_table.write, spark, place, made, found) for _ in range(4)]:
            kept.result()
    assert sorted(reject["value"] for reject in rejects(world)) == [b"0", b"1", b"2"]
    assert rowcounts.reject_counts(place) == {(1, made.id): 3}


def test_rejects_cost_no_job_of_sparks(world: World, run: Run, spark: Any) -> None:
    """A job more compiles code that the night has no other use for: that took a tenth of the night's time, and more."""

    def jobs(day: str, values: list[bytes | None]) -> int:
        world.events(day, 4)
        world.send(day, values)
        world.arrive()
        before = len(spark.sparkContext.statusTracker().getJobIdsForGroup())
        assert run(day, clock="wall").commit.rejects == len(values)
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup()) - before

    first = jobs("2013-01-01", [b"bad", None])
    without, with_rejects = jobs("2013-01-02", []), jobs("2013-01-03", [b"bad", None])
    assert with_rejects == without > 0
    assert first <= without
    assert len(rejects(world)) == 4


def test_the_ledger_outlives_the_cleanup_of_the_log(world: World, run: Run, spark: Any) -> None:
    for day in ("2013-01-01", "2013-01-02", "2013-01-03"):
        world.events(day, 4)
        world.arrive()
        run(day, clock="wall")
    before = table.status(world.storage)
    log_folder = Path(world.table) / "_delta_log"
    # Another's commit comes last, so that none of ours is left as a file of its own.
    spark.sql(f"ALTER TABLE delta.`{world.table}` SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    for commit in sorted(log_folder.glob("*.json"))[:-1]:
        os.utime(commit, (1, 1))
    delta_log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, world.table)
    none = spark._jvm.scala.Option.empty()
    delta_log.checkpoint()
    delta_log.doLogCleanup(delta_log.update(False, none, none), none)
    assert [path.name for path in log_folder.glob("*.json")] == [f"{3:020d}.json"]
    assert table.status(world.storage) == before
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    world.events("2013-01-04", 4)
    world.arrive()
    assert run("2013-01-02", clock="wall").did == "already"
    assert run("2013-01-04", clock="wall").commit.run == 4
    assert len(rows(world)) == 16


@pytest.mark.timeout(400)
def test_tables_are_loaded_side_by_side_and_each_waits_for_its_own_stage(world: World) -> None:
    world.describe_raw(penstock_etl_clock="wall")
    world.events("2013-01-01", 6)
    world.ends(f"{world.topic}.deduped")
    world.commit("penstock-mirror.mirror.one", world.ends(world.topic))
    # Dedupe has read nothing yet: the table after it is incomplete, the other one isn't.
    one = world.etl("--night", "2013-01-01", "--incomplete", "fail")
    assert (one.returncode, "Traceback" in one.stderr) == (3, False), one.stderr
    assert "penstock: night 2013-01-01 is incomplete: dedupe: " in one.stderr
    assert "1 of 2 tables were not loaded: the table of `penstock.etl.*`" in one.stderr
    assert [(json.loads(line)["table"], json.loads(line)["rows"]) for line in one.stdout.splitlines()] == [("raw", 6)]
    assert table.committed(world.storage) == []
    assert {tp[0] for tp in table.committed(LocalStorage(Path(world.raw_table)))[0].partitions} == {world.topic}

    world.arrive()
    refused = world.etl("--night", "2013-01-01", "--table", "row")
    assert refused.returncode != 0 and "describes no table `row`, but the table of `penstock.etl.*`" in refused.stderr
    chosen = world.etl("--night", "2013-01-01", "--table", "")
    assert (chosen.returncode, json.loads(chosen.stdout)["did"]) == (0, "loaded"), chosen.stderr
    assert len(table.committed(world.storage)) == len(table.committed(LocalStorage(Path(world.raw_table)))) == 1


@pytest.mark.whole_day
@pytest.mark.timeout(400)
def test_following_loads_each_night_in_order_after_failures_too(world: World) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    days = [(today - datetime.timedelta(days=back)).isoformat() for back in (3, 2, 1)]
    world.describe_raw(penstock_etl_clock="wall", penstock_etl_retry_backoff_ms="500")
    world.events(days[0], 4)
    world.arrive(less=1)
    world.commit("penstock-mirror.mirror.one", [0, 0])  # so far nothing is mirrored: both tables fail, and wait
    command = [sys.executable, "-m", "penstock", "etl", "--config", str(world.config), "--json", "--follow"]
    command += ["--night", days[0], "--until", days[2]]
    with (world.folder / "said").open("w") as said, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said) as following:
        while (world.folder / "said").read_text().count("is incomplete: source one:") < 2:
            assert following.poll() is None
            time.sleep(0.1)
        world.arrive()
        answers = [json.loads(line) for line in following.stdout or ()]
        assert following.wait() == 0, (world.folder / "said").read_text()
    by_table = {name: [one["night"] for one in answers if one["table"] == name] for name in ("", "raw")}
    assert by_table == {"": days, "raw": days}
    assert [commit.rows for commit in table.committed(world.storage)] == [4, 0, 0]
    # One that is ended while it waits for the night that goes on leaves nothing behind.
    with (world.folder / "said").open("w") as said, subprocess.Popen(command[:-2], stdout=said, stderr=said) as following:
        while "waits until" not in (world.folder / "said").read_text():
            assert following.poll() is None
            time.sleep(0.1)
        started = [(task / "children").read_text() for task in Path(f"/proc/{following.pid}/task").iterdir()]
        assert "".join(started) == "", "no JVM while it waits"
        following.terminate()
        assert following.wait() == -signal.SIGTERM
    assert "interrupted" in (world.folder / "said").read_text()
    assert "Traceback" not in (world.folder / "said").read_text()


def test_what_was_read_before_a_topic_was_recreated_is_not_committed(world: World, spark: Any) -> None:
    """Between the reading and the commit, when all that Spark was told to read has been there."""
    output = f"{world.topic}.deduped"

    def recreate(words: str) -> None:
        if "keeps 1 rejects" not in words:
            return
        world.admin.delete_topics([output])[output].result(30)
        until(lambda: output not in world.admin.list_topics(timeout=30).topics, "the topic to be gone")
        world.admin.create_topics([NewTopic(output, 2, 1)])[output].result(30)

    world.events("2013-01-01", 8)
    world.send("2013-01-01", [b"bad"])
    world.arrive()
    one = Loading(job.load(world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=spark, on_step=recreate)
    with pytest.raises(Refused, match="was recreated"):
        one.night(parse_night("2013-01-01"))
    one.close()
    assert table.committed(world.storage) == []


def test_another_topic_is_refused(world: World, run: Run) -> None:
    world.events("2013-01-01", 8)
    world.arrive()
    run("2013-01-01", clock="wall")
    assert deltalake.DeltaTable(world.table).metadata().configuration["penstock.etl.topic"] == f"{world.topic}.deduped"
    world.write_config(penstock_etl_topic=world.topic, penstock_etl_after="mirror")
    for night in ("2013-01-01", "2013-01-02"):
        with pytest.raises(Refused, match=f"is loaded from `{world.topic}.deduped`, and the file's table from `{world.topic}`"):
            run(night, clock="wall")


def test_a_table_of_an_earlier_version_gets_the_name_of_its_topic(world: World, run: Run, spark: Any) -> None:
    """And is held against the topic of its nights before."""
    world.events("2013-01-01", 8)
    world.arrive()
    run("2013-01-01", clock="wall")
    spark.sql(f"ALTER TABLE delta.`{world.table}` UNSET TBLPROPERTIES ('penstock.etl.topic')")
    assert table.status(world.storage).named_topic == ""
    world.write_config(penstock_etl_topic=world.topic, penstock_etl_after="mirror")
    with pytest.raises(Refused, match=f"is loaded from `{world.topic}.deduped`"):
        run("2013-01-02", clock="wall")
    world.write_config()
    version = deltalake.DeltaTable(world.table).version()
    run("2013-01-02", clock="wall")
    assert table.status(world.storage).named_topic == f"{world.topic}.deduped"
    assert deltalake.DeltaTable(world.table).version() == version + 1


def test_a_topic_that_is_not_there_is_named(world: World, run: Run) -> None:
    world.write_config(topics="nowhere")
    with pytest.raises(EtlError, match=r"has no topic `nowhere\.deduped`"):
        run("2013-01-01", clock="wall", incomplete="mark")


def test_the_command_says_in_a_sentence_what_is_wrong(world: World) -> None:
    world.events("2013-01-01", 2)
    world.arrive()
    incomplete = world.etl("--night", "2013-01-01")
    assert (incomplete.returncode, incomplete.stdout) == (3, "")
    assert "penstock: night 2013-01-01 is incomplete: source one: " in incomplete.stderr
    assert "Traceback" not in incomplete.stderr
    refused = world.etl("--night", "2013-01-01", "--reload")
    assert refused.returncode == 1 and "not in the table" in refused.stderr
    for arguments in (["--night", "1.1.2013"], [], ["--nights", "2013-01-02..2013-01-01"]):
        wrong = world.etl(*arguments)
        assert wrong.returncode == 2 and "Traceback" not in wrong.stderr
    world.write_config(penstock_etl_schema="id STRING, offset INT")
    wrong = world.etl("--night", "2013-01-01")
    assert (wrong.returncode, "`offset`" in wrong.stderr) == (2, True)
