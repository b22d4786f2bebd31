"""The position's text is read back as it was, and what is not one is refused with words."""

from __future__ import annotations

import pytest

from penstock.mirror.position import Position
from penstock.pipeline.failures import OperatorNeeded

POSITION = Position(7, bytes(range(16)), bytes(range(16, 32)), 3, 100, 2)


def test_written_and_read() -> None:
    assert Position.read(7, POSITION.metadata()) == POSITION
    assert len(POSITION.metadata()) < 4096


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "7", "{}", '{"topic_id": 3}', POSITION.metadata().replace("00", "zz")]
)
def test_somebody_elses(text: str) -> None:
    with pytest.raises(OperatorNeeded, match="no mirror wrote"):
        Position.read(7, text)


def test_another_topic() -> None:
    POSITION.check_topic(bytes(range(16)))
    with pytest.raises(OperatorNeeded, match="source topic was recreated"):
        POSITION.check_topic(bytes(16))
    POSITION.check_target(bytes(range(16, 32)))
    with pytest.raises(OperatorNeeded, match="target topic was recreated"):
        POSITION.check_target(bytes(16))
