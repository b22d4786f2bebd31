"""Nights: their ends in a time zone, and how they are named on the command line."""

from __future__ import annotations

import datetime

import pytest

from penstock.config import ConfigError
from penstock.pipeline.etl.night import parse_night, parse_nights, time_zone


def test_a_night_ends_at_the_next_midnight_of_its_zone() -> None:
    end = datetime.datetime(2013, 1, 2, tzinfo=datetime.UTC)
    assert parse_night("2013-01-01").end_ms(time_zone("UTC")) == end.timestamp() * 1000
    assert parse_night("2013-01-01").end_ms(time_zone("America/New_York")) == (end.timestamp() + 5 * 3600) * 1000


def test_a_night_in_which_the_clock_goes_forward_is_an_hour_shorter() -> None:
    zone = time_zone("America/New_York")
    before, after = parse_night("2013-03-09").end_ms(zone), parse_night("2013-03-10").end_ms(zone)
    assert after - before == 23 * 3600 * 1000


def test_nights_are_a_range_with_both_ends() -> None:
    assert [str(night) for night in parse_nights("2013-02-27..2013-03-01")] == [
        "2013-02-27",
        "2013-02-28",
        "2013-03-01",
    ]
    assert [str(night) for night in parse_nights("2013-02-27")] == ["2013-02-27"]


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2013-02-30", "2013-01-02..2013-01-01", "2013-01-01..", "1000-01-01..2013-01-01"]
)
def test_what_is_no_night_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_nights(text)


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="no time zone"):
        time_zone("Mars/Olympus")
