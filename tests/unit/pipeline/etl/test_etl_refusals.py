"""What a load refuses, and waits for with words, before it starts Spark."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock.config import Config, ConfigError
from penstock.pipeline import job
from penstock.pipeline.etl import places, plan
from penstock.pipeline.etl.cut import Cut
from penstock.pipeline.etl.errors import EtlError, Incomplete, Refused
from penstock.pipeline.etl.ledger import NightCommit, Range
from penstock.pipeline.etl.localstorage import LocalStorage
from penstock.pipeline.etl.night import parse_night
from support.etl_world import Loading
from support.patience import until

NOBODY = "127.0.0.1:1"


def load(
    folder: Path,
    wait_seconds: float = 0,
    clock: Literal["wall", "records"] = "wall",
    schema: str = "id STRING, day DATE",
    more: dict[str, str] | None = None,
    **options: Any,
) -> Loading:
    config = folder / "pipeline.properties"
    properties = {"penstock.etl.table": f"{folder}/table"} | (more or {})
    config.write_text(
        f"bootstrap.servers={NOBODY}\nsource.one.bootstrap.servers={NOBODY}\ntopics=flights\n"
        f"penstock.dedupe.data={folder}/dedupe\n"
        + "".join(f"{name}={value}\n" for name, value in properties.items())
        + f"penstock.etl.schema={schema}\npenstock.etl.event.day=day\n"
    )
    return Loading(job.load(config), clock=clock, incomplete="wait", wait_seconds=wait_seconds, **options)


@pytest.mark.parametrize("place", ["s3://bucket/table", "abfs://box/table", "hdfs://name", "file://host/table", "s3a://bucket"])
def test_a_place_that_a_table_can_not_lie_at_is_refused_and_no_folder_of_that_name_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"`{place}` is no place for a table"):
        load(tmp_path, more={"penstock.etl.table": place})
    with pytest.raises(ConfigError, match=f"`{place}` is no place for a table"):
        load(tmp_path, more={"penstock.etl.rejects": place})
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.properties"]


def test_a_folder_may_be_given_as_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place, folder in (("a table", tmp_path / "a table"), ((tmp_path / "b b").as_uri(), tmp_path / "b b")):
        found = places.at(place, Config({}, frozenset()))
        assert (str(found), found.uri) == (str(folder), f"file:{folder}")


def test_a_table_that_can_not_be_written_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    load(tmp_path, more={"penstock.etl.table": f"{tmp_path}/file/table"}).close()
    with (tmp_path / "pipeline.properties").open("a") as file:
        own = {"topic": "clicks", "table": tmp_path / "clicks", "schema": "day DATE", "event.day": "day", "after": "mirror"}
        file.write("".join(f"etl.clicks.{name}={value}\n" for name, value in own.items()))
    words = ["etl", "--config", file.name, "--night", "2013-01-01", "--incomplete", "fail"]
    done = subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, text=True, check=False)
    first, second, last = done.stderr.splitlines()
    assert done.returncode == 1 and first == f"penstock: `{tmp_path}/file/table/_penstock`: Not a directory"
    assert second.startswith("penstock: table clicks: night 2013-01-01 is incomplete: ")
    assert "2 of 2 tables were not loaded: the table of `penstock.etl.*`, the table `clicks`" in last


def test_a_table_that_waits_does_not_hold_up_the_others_and_its_wait_ends_without_spark(tmp_path: Path) -> None:
    load(tmp_path, more={"penstock.etl.table": f"{tmp_path}/flights"}).close()
    commit(tmp_path, "2013-01-01", topic="clicks")
    with (tmp_path / "pipeline.properties").open("a") as file:
        own = {"topic": "clicks", "table": tmp_path / "table", "schema": "id STRING, day DATE", "event.day": "day"}
        file.write("".join(f"etl.clicks.{name}={value}\n" for name, value in (own | {"after": "mirror"}).items()))
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")  # a Spark that takes long to start
    java.chmod(0o755)
    words = ["etl", "--config", file.name, "--night", "2013-01-01", "--wait-seconds", "12"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env=os.environ | {"JAVA_HOME": f"{tmp_path}/java"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 3 and "Traceback" not in done.stdout, done.stdout
    said = "table clicks: night 2013-01-01 is in the table already", "penstock: night 2013-01-01 is incomplete"
    assert 0 <= done.stdout.find(said[0]) < done.stdout.find(said[1]), done.stdout
    pid = tmp_path / "pid"
    if pid.exists():  # who is killed is there until its parent has looked
        until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists(), "Java to be gone")


FIELDS = {"id": ("string", True), "day": ("date", True), "price": ("decimal(9,2)", True), "event_day": ("date", True)}


def commit(folder: Path, night: str, fields: dict[str, tuple[str, bool]] = FIELDS, topic: str = "flights.deduped") -> None:
    """A table that holds one night; its fields with type and nullability."""
    entry = NightCommit(night, 1, {(topic, 0): Range(0, 5, 5, 5, 0)})
    log = folder / "table" / "_delta_log"
    log.mkdir(parents=True)
    domain = {"domain": f"penstock.etl.night.{night}", "configuration": entry.to_json(), "removed": False}
    columns = [{"name": name, "type": kind, "nullable": null} for name, (kind, null) in fields.items()]
    actions = [
        {"metaData": {"schemaString": json.dumps({"type": "struct", "fields": columns})}},
        {"domainMetadata": domain},
        {"txn": {"appId": "penstock.etl", "version": 1}},
    ]
    text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
    (log / f"{0:020d}.json").write_text(text)


def test_a_night_that_would_take_others_along_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, "2013-01-01")
    one = load(tmp_path)
    with pytest.raises(Refused, match=r"night 2013-01-02 is not in the table yet.* `--nights 2013-01-02\.\.2013-01-03`"):
        one.night(parse_night("2013-01-03"))
    with pytest.raises(Refused, match="nights behind 2013-01-01"):
        one.night(parse_night("2099-01-03"), covering=True)
    with pytest.raises(Refused, match="lies before"):
        one.night(parse_night("2012-12-31"), covering=True)
    one.close()


def test_many_nights_are_taken_along_only_by_a_persons_word(tmp_path: Path) -> None:
    """A clock that is a month ahead asks for as many as an outage of a month."""
    commit(tmp_path, "2013-01-01")
    one = load(tmp_path)
    with pytest.raises(Incomplete, match="can't be asked"):
        one.night(parse_night("2013-01-05"), covering=True)
    many, since = parse_night("2013-01-06"), "--night 2013-01-06 --covering-since 2013-01-02"
    with pytest.raises(Refused, match=rf"take 4 nights along \(2013-01-02\.\.2013-01-05\)[^`]*\nhint: .* {since}`"):
        one.night(many, covering=True)
    for wrong in ("2012-12-01", "2013-01-03"):
        with pytest.raises(Refused, match=f"hint: .* {since}`"):
            one.night(many, covering_since=parse_night(wrong))
    with pytest.raises(Incomplete, match="can't be asked"):
        one.night(many, covering_since=parse_night("2013-01-02"))
    one.close()


@pytest.mark.parametrize("clock", ["wall", "records"])
def test_a_night_of_the_future_that_the_table_has_is_named_by_each_call(
    tmp_path: Path, clock: Literal["wall", "records"]
) -> None:
    """And taken back only if another machine's clock agrees."""
    ahead = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=2)
    commit(tmp_path, ahead.isoformat())
    one = load(tmp_path, clock=clock)
    for date in (ahead, ahead - datetime.timedelta(days=3)):
        with pytest.raises(Refused, match=rf"night {ahead} \(run 1\) is in .* not over.*\nhint: .* --take-back` lets"):
            one.night(parse_night(date.isoformat()))
    with pytest.raises(Refused, match=f"night {ahead}"):
        one.next_night(parse_night("2013-01-01"))
    with pytest.raises(EtlError, match="can't be asked"):
        one.take_back()
    one.close()


def test_a_night_of_the_future_that_was_planned_is_named(tmp_path: Path) -> None:
    commit(tmp_path, "2013-01-01")
    ahead = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=2)
    plan.persist(LocalStorage(tmp_path / "table"), plan.Plan(ahead.isoformat(), 2, {("flights.deduped", 0): (5, 9)}))
    one = load(tmp_path)
    with pytest.raises(Refused, match=rf"night {ahead} \(run 2\) is in .* planned"):
        one.night(parse_night("2013-01-02"))
    one.close()


def test_rejects_that_can_not_be_read_leave_the_night_loaded(tmp_path: Path) -> None:
    commit(tmp_path, "2013-01-01")
    log = tmp_path / "table-rejects" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("no JSON\n")
    one = load(tmp_path)
    with pytest.raises(EtlError, match=r"night 2013-01-01 is loaded.*: run it again; the rejects' table `.*` can't be read"):
        one.night(parse_night("2013-01-01"))
    one.close()


@pytest.mark.parametrize("clock", ["wall", "records"])
def test_a_night_in_the_future_is_refused_at_once(tmp_path: Path, clock: Literal["wall", "records"]) -> None:
    one = load(tmp_path, wait_seconds=3600, clock=clock)
    # Two days ahead: tomorrow may begin while the test runs.
    ahead = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=2)
    with pytest.raises(Refused, match="has not begun"):
        one.night(parse_night(ahead.isoformat()))
    one.close()


@pytest.mark.whole_day
def test_a_night_that_goes_on_beyond_the_limit_is_not_waited_for(tmp_path: Path) -> None:
    one = load(tmp_path, wait_seconds=1)
    today = datetime.datetime.now(datetime.UTC).date()
    with pytest.raises(Incomplete, match=f"night {today} is incomplete: the night is not over"):
        one.night(parse_night(today.isoformat()))
    one.close()


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("id STRING, day DATE, price DECIMAL(9, 2), note STRING NOT NULL", "`note` NOT NULL, and the rows that the table has"),
        ("id STRING, day DATE, cost DECIMAL(9, 2)", "declares `cost`, .* no longer `price`, .* can't be given another name"),
        ("id STRING, day DATE, price DOUBLE", r"has `price` as decimal\(9,2\), the schema declares DOUBLE"),
        ("id BIGINT, day DATE", "has `id` as string"),
    ],
)
def test_a_schema_that_the_table_does_not_have_is_refused_before_anything_waits(tmp_path: Path, schema: str, why: str) -> None:
    commit(tmp_path, "2013-01-01")
    one = load(tmp_path, wait_seconds=3600, schema=schema)
    with pytest.raises(Refused, match=why):
        one.night(parse_night("2013-01-02"))
    one.close()


@pytest.mark.parametrize("schema", ["id STRING, day DATE", "day DATE"])
def test_a_column_that_the_table_requires_has_to_be_required(tmp_path: Path, schema: str) -> None:
    commit(tmp_path, "2013-01-01", FIELDS | {"id": ("string", False)})
    one = load(tmp_path, wait_seconds=3600, schema=schema)
    with pytest.raises(Refused, match="takes no row without `id`"):
        one.night(parse_night("2013-01-02"))
    one.close()


def test_fewer_columns_and_other_spellings_of_a_type_fit(tmp_path: Path) -> None:
    commit(tmp_path, "2013-01-01")
    for schema in ("ID string NOT NULL, day DATE, price numeric(9, 2)", "id STRING, day DATE"):
        one = load(tmp_path, schema=schema)
        with pytest.raises(Incomplete, match="can't be asked"):
            one.night(parse_night("2013-01-02"))
        one.close()


@pytest.mark.parametrize(("every_s", "lines"), [(3600.0, [0, 2]), (0.0, [0, 1, 2])])
def test_a_wait_says_what_it_waits_for_how_long_and_now_and_then_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float, lines: list[int]
) -> None:
    looks = [
        ["source one: flights-0 is mirrored up to 1 of 9", "source one: flights-1 is mirrored up to 2 of 9"],
        ["source one: flights-0 is mirrored up to 5 of 9"],
        ["dedupe: flights-0 is done up to 5 of 9"],
        [],
    ]
    expected = [looks[line][0] for line in lines]

    async def look(*given: object, **options: object) -> list[str]:
        return looks.pop(0)

    monkeypatch.setattr(Cut, "missing", look)
    monkeypatch.setattr("penstock.pipeline.etl.load.SAID_EVERY_S", every_s)
    steps: list[str] = []
    one = load(tmp_path, wait_seconds=3600, on_step=steps.append, spark=object())
    with pytest.raises(EtlError, match="can't be asked"):  # the night is complete then, and nobody has its ranges
        one.night(parse_night("2013-01-01"))
    one.close()
    found = [re.fullmatch(r"2013-01-01 waits, at most \d+ seconds more: (.+)", step) for step in steps]
    assert [words and words[1].removesuffix(" (and 1 more like it)") for words in found] == expected
    assert steps[0].endswith("(and 1 more like it)")
