"""Log lines: the words, their arguments, and the fields behind them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from penstock import log


def test_fields_stand_behind_the_words(caplog: pytest.LogCaptureFixture) -> None:
    log.get("test", broker=1, topic="a").warning("%d of %s", 3, "four")
    log.get("test").warning("90%")
    assert caplog.messages == ["3 of four broker=1 topic=a", "90%"]


def test_a_percent_sign_in_a_field_is_no_place_for_an_argument(caplog: pytest.LogCaptureFixture) -> None:
    named = log.get("test", client_id="90%d")
    named.warning("lost %d", 3)
    named.warning("lost")
    assert caplog.messages == ["lost 3 client_id=90%d", "lost client_id=90%d"]


@pytest.fixture
def as_it_was() -> Iterator[None]:
    root = logging.getLogger("penstock")
    before = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.level, root.propagate = before


def test_a_line_of_json_keeps_its_fields(capsys: pytest.CaptureFixture[str], as_it_was: None) -> None:
    log.setup("info", "json", "broker-7")
    named = log.get("penstock.test", topic='a"\n', partition=0)
    named.warning("lost %d of 90%%", 3)
    try:
        raise ValueError("the cause\nin two lines")
    except ValueError:
        named.exception("failed")
    log.get("penstock.test", message="a field", level="high").info("100%")
    first, second, third = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    where = {"process": "broker-7", "logger": "penstock.test"}
    assert first.pop("time").endswith("+00:00") and second.pop("time") and third.pop("time")
    assert first == {"level": "WARNING", **where, "message": "lost 3 of 90%", "topic": 'a"\n', "partition": 0}
    assert second.pop("error").endswith("ValueError: the cause\nin two lines")
    assert second == {"level": "ERROR", **where, "message": "failed", "topic": 'a"\n', "partition": 0}
    assert third == {"level": "INFO", **where, "message": "100%"}


def test_each_line_of_text_names_its_process(capsys: pytest.CaptureFixture[str], as_it_was: None) -> None:
    log.setup("info", process="broker-7")
    log.get("penstock.test", topic="a").info("begun")
    log.setup("info")
    log.get("penstock.test").info("begun")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" INFO broker-7 penstock.test: begun topic=a")
    assert second.endswith(" INFO penstock.test: begun")


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(log.LevelError, match="`loud` is not one of DEBUG"):
        log.setup("loud")
