"""The texts of committed positions: those of today are written byte by byte alike, those of other versions are told apart."""

from __future__ import annotations

import json
import re

import pytest

from penstock.dedupe.position import DedupePosition
from penstock.mirror.position import MirrorPosition
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.position import StagePosition

AT_MS = 1_770_000_000_123
TEXTS: list[tuple[type[StagePosition], str]] = [
    (
        MirrorPosition,
        '{"topic_id": "000102030405060708090a0b0c0d0e0f", "target_id": "101112131415161718191a1b1c1d1e1f", "cluster": "kXhz", '
        '"leader_epoch": 3, "records": 100, "rebuilt": 2, "gaps": 15, "gap_records": 12, "again_records": 4, '
        '"gap_ranges": "10..19,40..44", "target_end": 5012, "producer_id": 7001, "decisions": 2, "copied_ms": 1769999999000, '
        '"stopped": "the \\"source\\" €", "stalled": "it\\nfails", "committed_ms": 1770000000123, '
        '"last_batch": [4700, 4294967295, 1769999998000], "process": "1769999990000-0a1b2c3d"}',
    ),
    (
        MirrorPosition,
        '{"topic_id": "", "target_id": "00000000000000000000000000000000", "cluster": "", "leader_epoch": -1, "records": 0, '
        '"rebuilt": 0, "gaps": 0, "gap_records": 0, "again_records": 0, "gap_ranges": "", "target_end": -1, "producer_id": -1, '
        '"decisions": 0, "copied_ms": -1, "stopped": "", "stalled": "", "committed_ms": 1770000000123, "last_batch": [], '
        '"process": ""}',
    ),
    (
        MirrorPosition,
        '{"topic_id": "", "target_id": "00000000000000000000000000000000", "cluster": "", "leader_epoch": -1, "records": 0, '
        '"rebuilt": 0, "gaps": 20, "gap_records": 0, "again_records": 0, "gap_ranges": "20..39", "target_end": 0, '
        '"producer_id": -1, "decisions": 0, "copied_ms": -1, "stopped": "", "stalled": "", "committed_ms": 1770000000123, '
        '"last_batch": [], "process": "", "other_logs": 1, "lost_ranges": "20..39"}',
    ),
    (
        DedupePosition,
        '{"topic_id": "00ff00ff00ff00ff00ff00ff00ff00ff", "output_id": "aa11aa11aa11aa11aa11aa11aa11aa11", "read": 10, '
        '"written": 8, "dropped": 1, "quarantined": 1, "without_id": 3, "partitions": 5, "output_end": 9, "unknown": "3..5", '
        '"accepted": "0..1,7..8", "misplaced": 2, "decisions": 4, "leader_epoch": 3, "stopped": "the \\"input\\" €", '
        '"stalled": "it\\nfails", "moved": 6, "moved_id": "bb22bb22bb22bb22bb22bb22bb22bb22", "again": -5, '
        '"last_batch": [0, 7, -1], "process": "", "committed_ms": 1770000000123, "recent_read": 20, "recent_without_id": 5, '
        '"reached": 90, "gap_ranges": "50..59", "gaps": 10, "marks": 3, "untold": 1}',
    ),
    (
        DedupePosition,
        '{"topic_id": "", "output_id": "", "read": 0, "written": 0, "dropped": 0, "quarantined": 0, "without_id": 0, '
        '"partitions": 0, "output_end": 9, "unknown": "", "accepted": "", "misplaced": 0, "decisions": 1, "leader_epoch": -1, '
        '"stopped": "", "stalled": "", "moved": 0, "moved_id": "", "again": 0, "last_batch": [], "process": "", '
        '"committed_ms": 1770000000123, "recent_read": 0, "recent_without_id": 0, "reached": -1, "gap_ranges": "", "gaps": 0, '
        '"marks": 0, "untold": 0, "losses": 2}',
    ),
]
"""As the first version wrote them."""

EARLIER: list[tuple[type[StagePosition], str]] = [
    (MirrorPosition, '{"topic_id": "00", "target_id": "01", "leader_epoch": 1, "records": 3, "rebuilt": 2}'),
    (DedupePosition, '{"topic_id": "00", "output_id": "aa", "written": 3}'),
]


@pytest.mark.parametrize(("kind", "text"), TEXTS)
def test_texts_of_today_are_read_and_written_alike(
    kind: type[StagePosition], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.stages.position.time.time_ns", lambda: AT_MS * 1_000_000)
    position = kind.from_text(4711, text, "a command")
    assert (position.offset, position.committed_ms) == (4711, AT_MS)
    assert position.metadata() == text


@pytest.mark.parametrize(("kind", "text"), EARLIER)
def test_texts_of_earlier_versions_are_read_on(kind: type[StagePosition], text: str) -> None:
    position = kind.from_text(7, text, "a command")
    shared = (position.decisions, position.stopped, position.stalled, position.committed_ms)
    assert shared == (0, "", "", -1)
    assert json.loads(position.metadata()).items() >= json.loads(text).items()


@pytest.mark.parametrize(("kind", "text"), [*TEXTS, *EARLIER])
def test_a_downgrade_is_refused_in_words(kind: type[StagePosition], text: str) -> None:
    newer = json.dumps({**json.loads(text), "digest": 5, "generation": 2})
    words = (
        "a newer version wrote the position of `flights` (it also notes `digest`, `generation`), so start that version again, "
        "or give up what it noted: `a command` says where to go on"
    )
    with pytest.raises(OperatorNeeded, match=f"^{re.escape(words)}$"):
        kind.from_text(7, newer, "`a command`", "the position of `flights`")


@pytest.mark.parametrize(("kind", "text"), TEXTS)
@pytest.mark.parametrize("wrong", ["null", "true", '"7"', "7.0", "[7]"])
def test_each_field_has_its_type(kind: type[StagePosition], text: str, wrong: str) -> None:
    for name, value in json.loads(text).items():
        if wrong == '"7"' and isinstance(value, str):
            continue
        with pytest.raises(OperatorNeeded, match=f"no {kind.writer} wrote"):
            kind.from_text(7, json.dumps({**json.loads(text), name: json.loads(wrong)}), "a command")
