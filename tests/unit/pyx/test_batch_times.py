"""When the batches at some offsets were written: what the lag of groups in seconds is made of."""

from __future__ import annotations

from pathlib import Path

from support.logs import LOGS, NOW_MS, Log, batch, delete_records
from support.pagecache import drop_cache_or_skip


def times(log: Log, *offsets: int) -> list[tuple[int, bool] | None]:
    return LOGS.batch_times([(log.topic, 0, offset) for offset in offsets])


def test_a_batch_has_the_time_of_its_first_record(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for second in range(3):
        log.append(batch(10, timestamp_ms=NOW_MS + 1000 * second))
    assert times(log, 0, 9, 10, 25) == [(NOW_MS, True), (NOW_MS, True), (NOW_MS + 1000, True), (NOW_MS + 2000, True)]
    # The end, beyond it, and a partition that isn't there.
    assert times(log, 30, 31) == [None, None]
    assert LOGS.batch_times([("nobody-has-it", 0, 0), (log.topic, 1, 0), (log.topic, 0, 0)]) == [None, None, (NOW_MS, True)]


def test_the_time_is_the_logs_where_it_stamps_records(tmp_path: Path) -> None:
    log = Log(tmp_path, log_append_time=1)
    log.append(batch(2, timestamp_ms=NOW_MS))
    (found,) = times(log, 1)
    assert found is not None and found[1] and found[0] > NOW_MS


def test_what_retention_took_is_not_there(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for second in range(3):
        log.append(batch(timestamp_ms=NOW_MS + 1000 * second))
    delete_records(log.topic, 2)
    assert times(log, 0, 1, 2) == [None, None, (NOW_MS + 2000, True)]


def test_a_batch_that_is_not_in_memory_has_the_newest_time_of_its_segment(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for second in range(200):
        log.append(batch(size=10_000, timestamp_ms=NOW_MS + 1000 * second))
    log.flush()
    drop_cache_or_skip(next(log.folder.glob("*.log")))
    assert times(log, 60) == [(NOW_MS + 199_000, False)]


def test_a_record_without_a_time_has_none(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append(batch(timestamp_ms=-1))
    assert times(log, 0) == [None]
