"""Tests that are about today don't see two days."""

from __future__ import annotations

import datetime

import pytest

from support.whole_day import LONGEST_S, wait_s

MIDNIGHT_S = datetime.datetime(2026, 12, 31, tzinfo=datetime.UTC).timestamp()


@pytest.mark.parametrize("before_s", [0, 0.001, 1, LONGEST_S - 1, LONGEST_S, LONGEST_S + 1, 43_200, 86_399])
def test_no_midnight_comes_within_the_longest_time_of_a_test(before_s: float) -> None:
    begins_s = MIDNIGHT_S - before_s + wait_s(MIDNIGHT_S - before_s)
    ends_s = begins_s + LONGEST_S - 1
    assert begins_s // 86_400 == ends_s // 86_400


def test_far_from_midnight_nothing_is_waited_for() -> None:
    assert wait_s(MIDNIGHT_S) == wait_s(MIDNIGHT_S - LONGEST_S - 1) == 0
