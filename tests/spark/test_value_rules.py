"""Each case of the corpus through a night, and the table read by Spark and by three readers that aren't Spark."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipeline import job
from penstock.pipeline.etl.night import parse_night
from support import valuecorpus
from support.etl_world import Loading, World
from support.kafka_jars import ApacheKafka
from support.valuecorpus import Refused, Wrong

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

NIGHT = "2013-01-01"


@dataclass
class Sent:
    """Values of records, with what is to become of them: a column's value by id and name, or a reason."""

    values: list[bytes] = field(default_factory=list)
    held: dict[str, tuple[str, Any]] = field(default_factory=dict)
    reasons: dict[bytes, str] = field(default_factory=dict)

    def add_column(self, name: str, kind: str, cases: dict[str, Any]) -> None:
        """Send each case as the value of a column."""
        for text, wanted in cases.items():
            key = str(len(self.values))
            before = f'{{"id": "{key}", "{name}": '.encode()
            value = before + text.encode() + b"}"
            self.values.append(value)
            start = len(before)
            if isinstance(wanted, Refused):
                self.reasons[value] = wanted.reason(name, kind, text)
            elif isinstance(wanted, Wrong):
                places = {"at": start, "at2": start + 2, "at3": start + 3, "at5": start + 5}
                self.reasons[value] = told(wanted.words, column=name, text=text, **places)
            else:
                self.held[key] = name, wanted

    def add_whole(self, cases: dict[bytes, str | None]) -> None:
        """Send values of records whole."""
        for text, words in cases.items():
            key = str(len(self.values))
            value = text.replace(b"%s", key.encode())
            self.values.append(value)
            if words is None:
                self.held[key] = "id", key
            else:
                start = value.find(b', "x": ') + 7
                self.reasons[value] = told(words, deep=start + 999, nan=start)


def told(words: str, **places: object) -> str:
    """Words of a reason, with what is known only of the record that was sent."""
    for name, place in places.items():
        words = words.replace(f"{{{name}}}", str(place))
    return words


def plain(value: Any) -> Any:
    """A value as each reader gives it: maps are lists of pairs to some, and -0 isn't 0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()} or []
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        return {key: plain(each) for key, each in value}
    if isinstance(value, list) and value and all(isinstance(each, dict) and set(each) == {"key", "value"} for each in value):
        return {each["key"]: plain(each["value"]) for each in value}
    return [plain(each) for each in value] if isinstance(value, list) else value


def rows_by_id(table: pa.Table) -> dict[str, dict[str, Any]]:
    rows = table.to_pylist()
    assert len(rows) == len({row["id"] for row in rows})
    return {row["id"]: row for row in rows}


def by_pyarrow(files: list[str]) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files])


def by_duckdb(files: list[str]) -> pa.Table:
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        return connection.sql(f"SELECT * FROM read_parquet({files})").to_arrow_table()


def by_polars(files: list[str]) -> pa.Table:
    return polars.read_parquet(files).to_arrow()


READERS: list[Callable[[list[str]], pa.Table]] = [by_pyarrow, by_duckdb, by_polars]


def check(world: World, spark: Any, sent: Sent, kinds: dict[str, str]) -> None:
    """Load a night of what was sent, and read it by every reader."""
    schema = "id STRING NOT NULL, " + ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    world.write_config(penstock_etl_schema=schema, penstock_etl_event_day="date(timestamp)")
    world.send(NIGHT, list(sent.values))
    world.arrive()
    one = Loading(job.load(world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=spark)
    commit = one.night(parse_night(NIGHT)).commit
    one.close()
    rejected = deltalake.DeltaTable(f"{world.table}-rejects").to_pyarrow_table().to_pylist()
    assert {reject["value"]: reject["reason"] for reject in rejected} == sent.reasons
    assert (commit.rows, commit.rejects) == (len(sent.held), len(sent.reasons))
    files = [Path(uri.removeprefix("file://")).as_posix() for uri in deltalake.DeltaTable(world.table).file_uris()]
    tables = {read.__name__: read(files) for read in READERS}
    tables["spark"] = spark.read.format("delta").load(world.table).toArrow()
    floats = {name for name, kind in kinds.items() if kind == "FLOAT"}
    for reader, table in tables.items():
        found = rows_by_id(table)
        assert found.keys() == sent.held.keys(), reader
        for key, (name, wanted) in sent.held.items():
            if name in floats and wanted is not None:
                (wanted,) = struct.unpack("<f", struct.pack("<f", wanted))
            assert plain(found[key][name]) == plain(wanted), (reader, name, kinds.get(name), sent.values[int(key)][:200])
            others = {other: found[key][other] for other in kinds if other != name}
            assert set(others.values()) <= {None}, (reader, key)


def test_a_column_holds_what_was_sent_or_the_record_is_a_reject(apache_kafka: ApacheKafka, tmp_path: Path, spark: Any) -> None:
    kinds = {f"c{number}": kind for number, kind in enumerate([*valuecorpus.SCALARS, *valuecorpus.NESTED])}
    sent = Sent()
    for name, kind in kinds.items():
        sent.add_column(name, kind, (valuecorpus.SCALARS | valuecorpus.NESTED)[kind])
    sent.add_whole(valuecorpus.WHOLE)
    assert len(sent.values) >= 500
    check(World(apache_kafka.bootstrap, tmp_path), spark, sent, kinds)


def test_a_time_without_a_zone_is_one_time_or_a_reject(apache_kafka: ApacheKafka, tmp_path: Path, spark: Any) -> None:
    sent = Sent()
    sent.add_column("at", "TIMESTAMP", valuecorpus.LOCAL_TIMES)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        check(World(apache_kafka.bootstrap, tmp_path), spark, sent, {"at": "TIMESTAMP"})
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_a_reason_names_the_first_misfits_of_many(apache_kafka: ApacheKafka, tmp_path: Path, spark: Any) -> None:
    """One of each column, and not all columns of a record that has every value wrong."""
    world = World(apache_kafka.bootstrap, tmp_path)
    names = [f"n{number}" for number in range(12)]
    world.write_config(
        penstock_etl_schema=", ".join(f"{name} ARRAY<INT>" for name in names), penstock_etl_event_day="date(timestamp)"
    )
    world.send(NIGHT, [b"{%s}" % b", ".join(b'"%s": ["a", "b"]' % name.encode() for name in names)])
    world.arrive()
    one = Loading(job.load(world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=spark)
    one.night(parse_night(NIGHT))
    one.close()
    (reject,) = deltalake.DeltaTable(f"{world.table}-rejects").to_pyarrow_table().to_pylist()
    takes = "and INT takes a whole number from -2147483648 to 2147483647, in any of JSON's notations"
    wanted = [f'`{name}[]` is "a", {takes}' for name in names[:8]]
    assert reject["reason"] == "; ".join([*wanted, "and 4 more columns"])
