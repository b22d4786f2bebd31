"""The position's text is read back as it was, and what is not one is refused with words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.mirror.position import MirrorPosition
from penstock.mirror.targetloss import TargetLoss
from penstock.pipeline.stages import ranges
from penstock.pipeline.stages.failures import OperatorNeeded

BEGIN = "`penstock mirror begin EWR flights:3 --at OFFSET --because TEXT`"
POSITION = MirrorPosition(7, bytes(range(16)), bytes(range(16, 32)), leader_epoch=3, records=100, rebuilt=2)


def test_written_and_read() -> None:
    assert MirrorPosition.from_text(7, POSITION.metadata(), BEGIN) == POSITION
    assert len(POSITION.metadata()) < 4096


@pytest.mark.parametrize(
    "text",
    [
        *["", "null", "[]", "7", "{}", '{"topic_id": 3}'],
        # The text has the time, and every process that runs tests must give a test the same name.
        pytest.param(POSITION.metadata().replace("00", "zz"), id="ids that are no hex"),
    ],
)
def test_somebody_elses(text: str) -> None:
    with pytest.raises(OperatorNeeded, match=f"no mirror wrote.*: {BEGIN} says"):
        MirrorPosition.from_text(7, text, BEGIN)


def test_another_topic() -> None:
    POSITION.check_topic(bytes(range(16)), BEGIN)
    with pytest.raises(OperatorNeeded, match=f"source topic was recreated.*: {BEGIN} once"):
        POSITION.check_topic(bytes(16), BEGIN)
    POSITION.check_target(bytes(range(16, 32)), BEGIN)
    with pytest.raises(OperatorNeeded, match=f"target topic was recreated.*: {BEGIN} says"):
        POSITION.check_target(bytes(16), BEGIN)


def test_gaps_are_noted_as_ranges() -> None:
    at = MirrorPosition(10, b"s", b"t").passing(20).passing(25)
    assert (at.offset, at.gaps, at.gap_ranges) == (25, 15, "10..24")
    at = replace(at, offset=40).passing(45)
    assert (at.gaps, at.gap_ranges) == (20, "10..24,40..44")
    assert MirrorPosition.from_text(45, at.metadata(), BEGIN) == at
    again = at.passing(12)  # what follows is copied after all
    assert (again.offset, again.gaps, again.gap_ranges) == (12, 2, "10..11")
    assert at.passing(0).gap_ranges == "" and at.passing(45) == at


def test_a_loss_is_left_out_of_the_copy_until_it_is_made_again() -> None:
    at = MirrorPosition(50, b"s", b"t", records=45, target_end=60).passing(55)
    loss = TargetLoss(20, 55, 28, 21)
    proved = loss.roll_back(at)
    assert (proved.offset, proved.records, proved.gaps, proved.target_end) == (20, 17, 0, 21)
    assert loss.leave_out(proved) == proved
    left = loss.leave_out(proved.passing(40))
    assert (left.gap_ranges, left.lost_ranges) == ("20..39", "20..39")
    assert loss.leave_out(proved.passing(70)).lost_ranges == "20..54"  # what lies behind it was never copied
    assert MirrorPosition.from_text(40, left.metadata(), BEGIN) == left
    assert left.passing(30).lost_ranges == "20..29" and left.passing(20).lost_ranges == ""
    unknown = TargetLoss(None, 55)
    assert unknown.roll_back(at) == replace(at, target_end=-1, other_logs=1) == unknown.leave_out(unknown.roll_back(at))


def test_of_many_gaps_the_last_ones_are_noted() -> None:
    at = MirrorPosition(0, b"s", b"t")
    for _ in range(40):
        at = replace(at.passing(at.offset + 3), offset=at.offset + 10)
    assert at.gaps == 120 and len(ranges.parse(at.gap_ranges)) == 24 and at.gap_ranges.endswith("390..392")
    worst = replace(at, gap_ranges=ranges.text_of([(10**18 + n, 10**18 + n) for n in range(0, 48, 2)]), stopped="\"'" * 1000)
    assert len(replace(worst, stalled="\u20ac" * 2000).metadata().encode()) < 4096


RANGE = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(RANGE, st.lists(RANGE, max_size=6))
def test_what_lies_outside_of_ranges(of: ranges.Range, gaps: list[ranges.Range]) -> None:
    def offsets(some: list[ranges.Range]) -> list[int]:
        return [offset for first, last in some for offset in range(first, last + 1)]

    assert offsets(ranges.outside(of, gaps)) == [offset for offset in offsets([of]) if offset not in offsets(gaps)]
    assert ranges.outside((5, 4), gaps) == []
