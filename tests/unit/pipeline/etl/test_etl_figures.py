"""The file of a night's figures: read by Prometheus' parser, taken over by the next load, whatever tables are called."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import ConfigError
from penstock.metrics import Page
from penstock.pipeline.etl.errors import EtlError, Incomplete
from penstock.pipeline.etl.figures import UNNAMED, NightFigures
from penstock.pipeline.etl.ledger import NightCommit, Range
from penstock.pipeline.etl.load import Outcome
from penstock.pipeline.etl.night import Night, parse_night
from support.scraping import Scrape

NEW_YORK = ZoneInfo("America/New_York")
FIRST = parse_night("2013-01-01")


def outcome(night: Night, rows: int, rejects: int) -> Outcome:
    """What a load of so many rows and rejects came to."""
    return Outcome(
        NightCommit(str(night), 1, {("t", 0): Range(0, rows + rejects, rows + rejects, rows, rejects)}), "loaded", 1.5
    )


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=4, unique=True))
def test_the_next_load_goes_on_from_the_file_of_the_one_before(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "penstock-etl-x.prom")
        for number in (1, 2):
            figures = NightFigures(names, NEW_YORK, str(path))
            with figures.until_the_end(names[:1], FIRST):
                figures.begin(names[0])
                figures.done(names[0], outcome(FIRST, 10, number), FIRST)
        figures = NightFigures(names, NEW_YORK, str(path))
        figures.failed(names[-1], EtlError("no"), None)
        found = Scrape(path.read_bytes().decode())
        first = names[0] or UNNAMED
        assert found.value("penstock_night_loaded_rows_total", table=first) == 20
        assert found.value("penstock_night_loaded_rejects_total", table=first) == 3
        assert found.value("penstock_night_rejects", table=first) == 2
        assert found.value("penstock_night_exit_code", table=names[-1] or UNNAMED) == 1
        assert len(found.rows("penstock_night_waiting")) == 3 * len(names)
        assert list(Path(folder).iterdir()) == [path]


def test_times_are_those_of_the_tables_time_zone_and_any_user_may_read_them(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    before = os.umask(0o077)
    try:
        figures = NightFigures([""], NEW_YORK, str(path))
        figures.failed("", Incomplete("not yet"), FIRST)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    found = Scrape(path.read_text())
    ends = [datetime(2013, 1, day, 5, tzinfo=UTC).timestamp() for day in (2, 3)]
    assert found.value("penstock_night_last_loaded_day_timestamp_seconds", table=UNNAMED) == ends[0]
    assert found.value("penstock_night_due_timestamp_seconds", table=UNNAMED) == ends[1]
    assert found.value("penstock_night_exit_code", table=UNNAMED) == 3
    assert found.value("penstock_night_waiting", table=UNNAMED, reason="arrival") == 1
    assert found.rows("penstock_night_rows") == found.rows("penstock_night_last_loaded_timestamp_seconds") == []


def test_an_end_that_no_night_told_is_told_of_those_that_were_begun(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    for error, code in ((ConfigError("wrong"), 2), (RuntimeError("never thought of"), 1)):
        figures = NightFigures("abc", NEW_YORK, str(path))
        with contextlib.suppress(type(error)), figures.until_the_end("ab", FIRST):
            figures.begin("a")
            figures.done("a", outcome(FIRST, 1, 0), FIRST)
            raise error
        assert codes(path) == [0, code]  # the third is none of this call's
    figures.begin("b")
    figures.end(143)
    assert codes(path) == [0, 143]


def test_two_loads_of_one_pipeline_write_about_their_own_tables(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    first, second = (NightFigures("ab", NEW_YORK, str(path)) for _ in range(2))
    first.begin("a")
    second.failed("b", EtlError("no"), None)
    first.done("a", outcome(FIRST, 10, 1), FIRST)  # it has begun when nothing was known of the other
    assert codes(path) == [0, 1]
    second.done("b", outcome(FIRST, 5, 0), FIRST)
    first.end(0)
    assert codes(path) == [0, 0]
    second.done("a", outcome(FIRST.next, 7, 0), FIRST.next)  # a night of the other's table, by hand
    found = Scrape(path.read_text())
    assert found.value("penstock_night_loaded_rows_total", table="a") == 17
    assert found.value("penstock_night_rows", table="a") == 7
    assert list(tmp_path.iterdir()) == [path]


def codes(path: Path) -> list[float]:
    """The exit codes of all tables, by their names."""
    found = Scrape(path.read_text()).rows("penstock_night_exit_code")
    return [code for _, code in sorted(found, key=lambda row: row[0]["table"])]


def test_what_comes_next_and_what_there_is_are_known_before_anything_is_loaded() -> None:
    async def ask() -> Scrape:
        made = Page(open_metrics=True)
        await figures.metrics(made)
        return Scrape(made.encode().decode(), open_metrics=True)

    figures = NightFigures([""], NEW_YORK, "")
    with figures.until_the_end([""], FIRST):
        assert figures.ready() == (False, {"unasked": [UNNAMED], "failed": {}})
        figures.next("", FIRST.next, "day", FIRST)
        found = asyncio.run(ask())
        assert figures.ready() == (True, {"unasked": [], "failed": {}})
    ends = [found.value(f"penstock_night_{name}_timestamp_seconds") for name in ("last_loaded_day", "due")]
    assert ends == [night.end_ms(NEW_YORK) / 1000 for night in (FIRST, FIRST.next)]
    assert found.value("penstock_night_waiting", reason="day") == 1 and not found.rows("penstock_night_exit_code")


def due(path: Path) -> float | None:
    """When the only table's next night is due, as its file says."""
    return Scrape(path.read_text()).value("penstock_night_due_timestamp_seconds", table=UNNAMED)


def test_a_table_that_was_never_loaded_is_due_from_the_first_night_on_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    with pytest.raises(KeyboardInterrupt), NightFigures([""], NEW_YORK, str(path)).until_the_end([""], FIRST):
        assert due(path) == FIRST.end_ms(NEW_YORK) / 1000  # a kill -9 would leave that
        raise KeyboardInterrupt
    for night in (FIRST.next, FIRST.next.next):  # each day another one is the last that is over
        figures = NightFigures([""], NEW_YORK, str(path))
        with contextlib.suppress(EtlError), figures.until_the_end([""], night):
            figures.begin("")
            figures.failed("", EtlError("no"), None)
            raise EtlError("no")
        assert due(path) == FIRST.end_ms(NEW_YORK) / 1000
        figures.next("", night, "", None)  # as with --follow, after a restart
        figures.end(1)
        assert due(path) == FIRST.end_ms(NEW_YORK) / 1000
    with figures.until_the_end([""], FIRST.next):
        figures.done("", outcome(FIRST.next, 1, 0), FIRST.next)
    assert due(path) == FIRST.next.next.end_ms(NEW_YORK) / 1000
    # It doesn't begin again once another load comes.
    with NightFigures([""], NEW_YORK, str(path)).until_the_end([""], FIRST):
        assert due(path) == FIRST.next.next.end_ms(NEW_YORK) / 1000


def test_a_file_that_is_none_of_ours_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    path.write_bytes(b'\xff\nnonsense{} 1\npenstock_night_rows{table="a"} many\n')
    figures = NightFigures(["a"], NEW_YORK, str(path))
    figures.done("a", outcome(FIRST, 4, 0), FIRST)
    assert Scrape(path.read_text()).value("penstock_night_rows", table="a") == 4


def test_a_folder_that_is_not_there_costs_the_figures_and_no_night(tmp_path: Path) -> None:
    figures = NightFigures(["a"], NEW_YORK, str(tmp_path / "nowhere" / "x.prom"))
    figures.done("a", outcome(FIRST, 4, 0), FIRST)
