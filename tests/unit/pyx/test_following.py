"""A follower takes its leader's answers: what it appends, cuts, begins anew, refuses; and what is known of its log then."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.amendment import NAME, Amendment, format_amendment, parse_amendment, read_amendment
from penstock.pyx.log.checkpoint import HIGH_WATERMARKS, read_checkpoint
from penstock.pyx.log.logmanager import FollowerAsk, FollowResult
from penstock.pyx.record.rawbatch import marker
from support.followed import KEY, Batch, Follower, build, placed, sent
from support.logs import NOW_MS

OLD = [(0, 1), (0, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 7), (1, 8), (1, 9), (1, 10)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Follower]:
    """A follower of broker 1 in epoch 1 that has all of `OLD`, and a high watermark of 3."""
    made = Follower(tmp_path / "follower")
    made.follow(1, 1)
    assert append(made, OLD, 3) == FollowResult.DONE
    yield made
    made.logs.delete(*KEY)


def ask(log: Follower) -> FollowerAsk:
    asked = log.logs.follower_ask(*KEY)
    assert asked is not None
    return asked


def append(log: Follower, batches: list[Batch], high_watermark: int = 0, log_start: int = 0) -> FollowResult:
    asked = ask(log)
    return log.logs.follower_append(*KEY, asked, sent(asked.offset, batches), high_watermark, log_start)


def cut(log: Follower, epoch: int, end: int) -> FollowResult:
    return log.logs.follower_cut(*KEY, ask(log), epoch, end)


def offsets(log: Follower) -> tuple[int, int, int]:
    found = log.logs.offsets(*KEY)
    return found.log_start, found.high_watermark, found.log_end


def test_a_follower_takes_records_then_the_high_watermark_and_the_log_start(log: Follower) -> None:
    assert offsets(log) == (0, 3, 10)
    assert append(log, [(1, 11)], high_watermark=100, log_start=4) == FollowResult.DONE
    assert offsets(log) == (4, 11, 11)
    assert append(log, [], high_watermark=9, log_start=2) == FollowResult.DONE
    assert offsets(log) == (4, 11, 11)


def test_the_log_start_goes_no_further_than_the_high_watermark(log: Follower) -> None:
    assert append(log, [], high_watermark=5, log_start=8) == FollowResult.DONE
    assert offsets(log) == (5, 5, 10)


@pytest.mark.parametrize("field", FollowerAsk._fields[:5])
def test_what_the_fetch_named_has_to_fit_still(log: Follower, field: str) -> None:
    asked = ask(log)
    other = asked._replace(**{field: getattr(asked, field) - 1})
    records = sent(asked.offset, [(0 if field == "leader_epoch" else 1, 11)])
    if field == "offset":
        records = sent(asked.offset - 1, [(1, 11)])
    if field in ("leader_epoch", "last_epoch"):
        records = b""
    before = log.content()
    assert log.logs.follower_append(*KEY, other, records, 10) == FollowResult.STALE
    assert log.logs.follower_cut(*KEY, other, 0, 2) == FollowResult.STALE
    assert log.logs.follower_begin(*KEY, other, 50) == FollowResult.STALE
    assert log.content() == before and offsets(log) == (0, 3, 10)


def test_an_answer_of_an_older_role_is_stale(log: Follower) -> None:
    asked = ask(log)
    log.follow(1, 2, partition_epoch=1)
    assert log.logs.follower_append(*KEY, asked, sent(10, [(1, 11)]), 11) == FollowResult.STALE
    assert log.logs.follower_cut(*KEY, asked, 0, 2) == FollowResult.STALE
    assert offsets(log) == (0, 3, 10)


def test_a_log_that_parts_is_cut_where_its_own_epoch_ends(log: Follower) -> None:
    log.follow(2, 2, partition_epoch=1)
    assert cut(log, 1, 4) == FollowResult.DONE
    assert log.content() == OLD[:4] and offsets(log) == (0, 3, 4)
    assert (ask(log).offset, ask(log).last_epoch) == (4, 1)
    assert append(log, [(2, 20), (2, 21)], 6) == FollowResult.DONE
    assert log.content() == [*OLD[:4], (2, 20), (2, 21)]
    log.kill()
    assert log.content() == [*OLD[:4], (2, 20), (2, 21)]


def test_no_byte_of_a_range_that_was_handed_out_is_written_again(log: Follower) -> None:
    held = [(os.open(path, os.O_RDONLY), path.read_bytes()) for path in sorted(log.folder.glob("*.log"))]
    try:
        log.follow(2, 2, partition_epoch=1)
        assert cut(log, 1, 4) == FollowResult.DONE
        assert append(log, [(2, number) for number in range(20, 40)]) == FollowResult.DONE
        shortened = 0
        for fd, before in held:
            now = os.pread(fd, 1 << 20, 0)
            assert before.startswith(now)
            shortened += len(now) < len(before)
        assert shortened == 1
        assert f"{4:020d}.log" in [path.name for path in log.folder.glob("*.log")]
    finally:
        for fd, _ in held:
            os.close(fd)


def test_a_cut_below_the_high_watermark_is_refused(log: Follower, caplog: pytest.LogCaptureFixture) -> None:
    log.follow(2, 2, partition_epoch=1)
    assert cut(log, 0, 2) == FollowResult.REFUSED
    assert log.content() == OLD and offsets(log) == (0, 3, 10)
    assert log.logs.follower_ask(*KEY) is None
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "broker 2" in record.getMessage() and "up to offset 2 only" in record.getMessage()
    assert "high watermark 3" in record.getMessage()
    log.follow(3, 3, partition_epoch=2)  # a leader that has it all
    assert append(log, [(3, 30)]) == FollowResult.DONE


def test_an_unclean_election_permits_it(log: Follower) -> None:
    log.follow(2, 3, unclean_epoch=2, partition_epoch=1)
    assert cut(log, 0, 1) == FollowResult.DONE
    assert log.content() == OLD[:1] and offsets(log) == (0, 1, 1)
    log.follow(2, 4, unclean_epoch=0, partition_epoch=2)  # one of before the last batch permits nothing
    assert append(log, [(4, 20), (4, 21)], 3) == FollowResult.DONE
    assert cut(log, 0, 1) == FollowResult.REFUSED


def test_a_follower_that_ends_below_its_leaders_log_start_begins_there(log: Follower) -> None:
    assert log.logs.follower_begin(*KEY, ask(log), 10) == FollowResult.STALE  # it ends there
    assert log.logs.follower_begin(*KEY, ask(log), 50) == FollowResult.DONE
    assert log.content() == [] and offsets(log) == (50, 50, 50)
    assert (ask(log).offset, ask(log).last_epoch) == (50, -1)
    assert append(log, [(1, 20)], 51) == FollowResult.DONE
    assert log.content() == [(1, 20)] and offsets(log) == (50, 51, 51)
    log.kill()
    assert log.content() == [(1, 20)] and offsets(log)[0] == 50
    log.logs.write_checkpoints()
    log.kill()
    assert log.content() == [(1, 20)] and offsets(log)[0] == 50


def test_the_first_batch_may_begin_below_the_log_start(log: Follower) -> None:
    assert log.logs.follower_begin(*KEY, ask(log), 51) == FollowResult.DONE
    straddling = placed(build(20, count=4), 49, 1)
    damaged = bytearray(straddling)
    damaged[-1] ^= 1
    assert log.logs.follower_append(*KEY, ask(log), bytes(damaged), 53) == FollowResult.ROTTEN
    assert offsets(log) == (51, 51, 51)
    assert log.logs.follower_append(*KEY, ask(log), straddling, 53) == FollowResult.DONE
    assert offsets(log) == (51, 53, 53)
    assert [raw.base_offset for raw in log.raws()] == [49]
    log.kill()
    assert offsets(log)[0] == 51 and offsets(log)[2] == 53
    assert [raw.base_offset for raw in log.raws()] == [49]


def test_holes_of_a_compacting_leader_are_no_damage(log: Follower, caplog: pytest.LogCaptureFixture) -> None:
    records = sent(10, [(1, 11)]) + sent(15, [(1, 16)])
    assert log.logs.follower_append(*KEY, ask(log), records, 0) == FollowResult.ROTTEN  # a base offset has no checksum
    assert offsets(log)[2] == 10
    assert log.logs.follower_append(*KEY, ask(log), records, 0) == FollowResult.DONE
    assert "offsets 11 up to 15" in caplog.text
    assert [raw.base_offset for raw in log.raws()] == [*range(11), 15]
    for _ in range(2):
        log.kill()
        assert [raw.base_offset for raw in log.raws()] == [*range(11), 15]
        log.logs.write_checkpoints()
    log.follow(1, 1)
    assert log.logs.follower_append(*KEY, ask(log), sent(20, [(1, 21)]), 0) == FollowResult.DONE
    assert cut(log, 1, 18) == FollowResult.DONE  # in a hole
    assert offsets(log)[2] == 18
    log.kill()
    assert offsets(log)[2] == 18 and [raw.base_offset for raw in log.raws()] == [*range(11), 15]


def test_an_answer_may_be_larger_than_a_segment_and_end_within_a_batch(log: Follower) -> None:
    records = sent(10, [(1, number) for number in range(11, 40)])
    assert len(records) > log.config["segment_bytes"]
    assert log.logs.follower_append(*KEY, ask(log), records[:-30], 0) == FollowResult.DONE
    assert log.content() == [*OLD, *((1, number) for number in range(11, 39))]


@pytest.mark.parametrize(
    "records",
    [
        sent(9, [(1, 11)]),
        sent(10, [(2, 11)]),
        sent(10, [(0, 11)]),
        sent(10, [(1, 11)])[:-1],
        b"\0" * 100,
        sent(10, [(1, 11)])[:-1] + b"x",
        sent(10, [(1, 11), (1, 12)])[:-1] + b"x",
        sent(10, [(1, 11)]) + sent(10, [(1, 12)]),
        sent(1 << 40, [(1, 11)]),
    ],
    ids=["below", "above the epoch", "epoch falls", "cut", "zeros", "crc", "second crc", "twice", "far"],
)
def test_nothing_of_what_is_rotten_is_appended(log: Follower, records: bytes) -> None:
    for _ in range(2):
        assert log.logs.follower_append(*KEY, ask(log), records, 10) == FollowResult.ROTTEN
        assert offsets(log) == (0, 3, 10)
    assert log.content() == OLD


def test_of_a_leader_whose_log_grew_anew_only_what_follows_is_taken(log: Follower) -> None:
    assert append(log, [(1, 11), (2, 12), (1, 13)], 12) == FollowResult.DONE
    assert log.content() == [*OLD, (1, 11)] and offsets(log)[1] == 11


def history() -> list[bytes]:
    """What producers sent: an idempotent one, one that commits and one that aborts, in turn."""
    sequences = {5: 0, 6: 0, 7: 0}
    batches = []
    for i in range(24):
        producer = 5 + i % 3
        if producer > 5 and i % 9 > 5:
            batches.append(marker(producer == 6, producer, 0, 0, NOW_MS))
            continue
        sequence = sequences[producer]
        sequences[producer] += 1
        batches.append(build(i, producer=(producer, 0, sequence), transactional=producer > 5))
    return [placed(batch, offset, 1) for offset, batch in enumerate(batches)]


def known(log: Follower) -> tuple[Any, ...]:
    """What the log knows of producers and transactions, and where it ends."""
    producers = log.logs.producers(*KEY)
    end = log.logs.offsets(*KEY).log_end
    return (
        producers,
        {one.producer_id: log.logs.sequences(*KEY, one.producer_id) for one in producers},
        log.logs.aborted(*KEY, 0, end),
        [bytes(raw) for raw in log.raws()],
        log.logs.offset_for_timestamp(*KEY, NOW_MS + 5),
        log.logs.max_timestamp(*KEY),
    )


@pytest.mark.parametrize("at", range(1, 24, 2))
def test_producers_and_transactions_are_those_of_a_log_that_was_never_longer(tmp_path: Path, at: int) -> None:
    logs = [Follower(tmp_path / name, segment_bytes=500) for name in ("cut", "short")]
    sent_ = history()
    for log, count in zip(logs, (len(sent_), at), strict=True):
        log.follow(1, 1)
        for batch in sent_[:count]:
            assert log.logs.follower_append(*KEY, ask(log), batch, 0) == FollowResult.DONE
    logs[0].follow(2, 2, partition_epoch=1)
    assert cut(logs[0], 1, at) == FollowResult.DONE
    assert known(logs[0]) == known(logs[1])
    for log in logs:
        log.follow(2, 2, partition_epoch=2)
        assert log.logs.follower_append(*KEY, ask(log), placed(build(50), at, 2), 0) == FollowResult.DONE
    assert known(logs[0]) == known(logs[1])
    for log in logs:
        log.kill()
    assert known(logs[0]) == known(logs[1])
    for log in logs:
        log.stop()
    assert known(logs[0]) == known(logs[1])
    for log in logs:
        log.logs.delete(*KEY)


def test_the_high_watermark_is_the_checkpoints_after_a_start(log: Follower) -> None:
    log.logs.write_checkpoints()
    assert read_checkpoint(log.home / HIGH_WATERMARKS) == {KEY: 3}
    assert append(log, [], 8) == FollowResult.DONE
    log.kill()
    assert offsets(log) == (0, 3, 10)
    log.follow(1, 1)
    assert append(log, [], 8) == FollowResult.DONE
    log.stop()
    assert offsets(log) == (0, 8, 10)
    assert read_checkpoint(log.home / HIGH_WATERMARKS) == {KEY: 8}


def test_checkpoints_that_are_older_than_a_cut_accuse_nobody(log: Follower) -> None:
    log.logs.flush(*KEY)
    log.logs.write_checkpoints()
    log.follow(2, 2, partition_epoch=1)
    assert cut(log, 1, 4) == FollowResult.DONE
    for power_cut in (False, True):
        log.kill(power_cut=power_cut)
        assert log.content() == OLD[:4]
    log.logs.write_checkpoints()
    assert not (log.folder / NAME).exists()
    log.follow(2, 2, partition_epoch=1)
    assert append(log, [(2, number) for number in range(20, 40)]) == FollowResult.DONE
    for power_cut in (False, True):
        log.kill(power_cut=power_cut)
        assert offsets(log)[2] == 24


def test_an_amendment_older_than_the_checkpoints_says_nothing(log: Follower) -> None:
    log.follow(2, 2, partition_epoch=1)
    assert cut(log, 1, 4) == FollowResult.DONE
    amendment = (log.folder / NAME).read_bytes()
    assert append(log, [(2, number) for number in range(20, 30)], 14, log_start=12) == FollowResult.DONE
    log.logs.write_checkpoints()
    (log.folder / NAME).write_bytes(amendment)  # the process was killed before it removed the file
    log.kill()
    assert offsets(log) == (12, 14, 14)
    log.logs.write_checkpoints()
    assert not (log.folder / NAME).exists()


def test_an_amendment_says_what_it_was_given(tmp_path: Path) -> None:
    for known_ in (Amendment(1), Amendment(7, 12, 5, 4, 3, 2, 1, 100, False, True)):
        data = format_amendment(known_)
        assert parse_amendment(data) == known_
        for i in range(len(data)):
            with pytest.raises(ValueError):
                parse_amendment(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
    assert read_amendment(str(tmp_path)) is None
    (tmp_path / NAME).write_bytes(b"x")
    assert read_amendment(str(tmp_path)) is None


def test_an_amendment_of_the_data_plane_is_read_as_it_was_meant(log: Follower) -> None:
    log.follow(2, 2, partition_epoch=1)
    assert cut(log, 1, 4) == FollowResult.DONE
    found = read_amendment(str(log.folder))
    assert found is not None
    assert found._replace(kept=0, kept_bytes=0, recovery_point=0) == Amendment(1, 4, 4, 0, -1, -1, 0, 0, True, False)


def test_a_batch_of_an_epoch_below_its_predecessors_ends_a_replica(log: Follower) -> None:
    last = sorted(log.folder.glob("*.log"))[-1]
    with last.open("ab") as file:
        file.write(sent(10, [(0, 90), (1, 91)]))
    log.kill()
    assert log.content() == OLD
    assert len(list(log.folder.glob("*.cut-*"))) == 1


def test_nothing_is_appended_to_a_log_that_is_offline_or_stopped(log: Follower) -> None:
    asked = ask(log)
    log.logs.stop(*KEY)
    with pytest.raises(KafkaError) as refused:
        log.logs.follower_append(*KEY, asked, sent(10, [(1, 11)]), 0)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    log.open(clean=True)
    assert log.logs.follower_ask(*KEY) is None


def test_offsets_are_in_order_while_a_log_is_cut(log: Follower) -> None:
    stop = threading.Event()
    wrong = []

    def look() -> None:
        while not stop.is_set():
            found = log.logs.offsets(*KEY)
            if not found.log_start <= found.last_stable <= found.high_watermark <= found.log_end:
                wrong.append(found)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for epoch in range(2, 80, 2):
            log.follow(2, epoch, partition_epoch=epoch)
            assert append(log, [(epoch, number) for number in range(5)], 1 << 30) == FollowResult.DONE
            log.follow(2, epoch + 1, unclean_epoch=epoch + 1, partition_epoch=epoch + 1)
            assert cut(log, 0, epoch % 4 // 2) == FollowResult.DONE
    finally:
        stop.set()
        thread.join()
    assert not wrong


def removed_below(log: Follower) -> int:
    return log.logs.replica_state(*KEY).removed_below


def test_a_log_that_may_keep_what_was_deleted_is_emptied(log: Follower, caplog: pytest.LogCaptureFixture) -> None:
    log.logs.flush(*KEY)
    log.logs.write_checkpoints()
    assert log.logs.follower_begin(*KEY, ask(log), 0, 10) == FollowResult.STALE  # it ends there
    assert log.logs.follower_begin(*KEY, ask(log), 0, 11) == FollowResult.DONE
    assert log.content() == [] and offsets(log) == (0, 0, 0)
    assert (ask(log).offset, ask(log).last_epoch) == (0, -1)
    assert "ended at offset 10 when it came back" in caplog.text and "up to offset 11" in caplog.text
    log.kill(power_cut=True)
    assert log.content() == [] and offsets(log) == (0, 0, 0)
    log.follow(1, 1)
    records = sent(5, [(1, 6)]) + sent(12, [(1, 13)])  # as compaction has left them
    assert log.logs.follower_append(*KEY, ask(log), records, 13, 0, 11) == FollowResult.DONE
    assert offsets(log) == (0, 13, 13) and removed_below(log) == 11
    log.logs.write_checkpoints()
    log.kill()
    assert [raw.base_offset for raw in log.raws()] == [5, 12] and removed_below(log) == 11


def test_a_copy_that_is_overtaken_says_so(log: Follower, caplog: pytest.LogCaptureFixture) -> None:
    assert log.logs.follower_begin(*KEY, ask(log), 0, 11, True) == FollowResult.DONE
    assert "had come to offset 10" in caplog.text and "delete.retention.ms" in caplog.text


def test_what_the_leader_lacks_is_on_the_disk_before_the_records_that_lack_it(log: Follower) -> None:
    records = sent(10, [(1, 11)])
    stale = ask(log)._replace(last_epoch=0)
    assert log.logs.follower_append(*KEY, stale, records, 0, 0, 20) == FollowResult.STALE
    assert log.logs.follower_append(*KEY, ask(log), b"", 0, 0, 20) == FollowResult.DONE
    assert removed_below(log) == 0, "nothing was copied"
    beside = log.folder / "penstock-removed-checkpoint.tmp"
    beside.mkdir()  # which is no file that could be written
    assert log.logs.follower_append(*KEY, ask(log), records, 0, 0, 20) == FollowResult.DISK
    assert offsets(log)[2] == 10 and removed_below(log) == 0
    beside.rmdir()
    assert log.logs.follower_append(*KEY, ask(log), records, 0, 0, 20) == FollowResult.DONE
    assert offsets(log)[2] == 11 and removed_below(log) == 20
    log.kill()
    assert removed_below(log) == 20
    log.follow(2, 2, partition_epoch=1)
    assert cut(log, 1, 4) == FollowResult.DONE
    assert removed_below(log) == 20, "it is never too low"
    log.stop()
    assert removed_below(log) == 20
