"""Retention of records that say no time: the time when they were written counts, as in Kafka (lastModified)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from support.logs import LOGS, Log, batch

HOUR_MS = 3_600_000
UNTIMED = batch(timestamp_ms=-1)


def test_records_without_a_time_live_from_their_append_on(tmp_path: Path) -> None:
    log = Log(tmp_path / "a", retention_ms=HOUR_MS)
    log.append(UNTIMED)
    log.stop()
    now_ms = time.time_ns() // 1_000_000
    long_ago = now_ms / 1000 - 7200
    (path,) = log.files(".log")
    os.utime(path, (long_ago, long_ago))
    log.lead(clean=True)
    log.append(UNTIMED)
    assert log.upkeep(now_ms).segments_deleted == 0
    assert log.offsets().log_start == 0
    # When nothing has come for that long, they go.
    assert log.upkeep(now_ms + 2 * HOUR_MS).segments_deleted == 1
    assert log.offsets().log_start == 2
    log.drop()


def test_a_segment_without_a_time_expires_by_its_file(tmp_path: Path) -> None:
    log = Log(tmp_path / "a", retention_ms=HOUR_MS, segment_bytes=100)
    log.append(UNTIMED)
    log.append(UNTIMED)
    first, _ = log.files(".log")
    now_ms = time.time_ns() // 1_000_000
    os.utime(first, (now_ms / 1000 - 7200, now_ms / 1000 - 7200))
    assert log.upkeep(now_ms).segments_deleted == 1
    assert LOGS.offsets(log.topic, 0).log_start == 1
    log.drop()
