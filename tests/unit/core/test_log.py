"""Log lines: the words, their arguments, and the fields behind them."""

from __future__ import annotations

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
