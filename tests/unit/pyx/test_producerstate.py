"""Idempotence, fencing, transactions and snapshots of producers."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import marker
from support.logs import LOGS, NOW_MS, Log, batch, delete_records


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "logs")


def code(log: Log, records: bytes) -> int:
    """The error of an append, 0 when it went well."""
    try:
        log.append(records)
    except KafkaError as error:
        return error.code
    return 0


def send(epoch: int, sequence: int, count: int = 1, *, transactional: bool = False, producer: int = 1) -> bytes:
    return batch(count, producer=(producer, epoch, sequence), transactional=transactional)


def test_the_last_five_batches_are_recognised(log: Log) -> None:
    for i in range(7):
        assert log.append(send(0, 2 * i, 2)) == 2 * i
    for i in range(2, 7):
        assert log.append(send(0, 2 * i, 2)) == 2 * i
    assert code(log, send(0, 2, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.offsets().log_end == 14


@pytest.mark.parametrize("sequence", [1, 77, (1 << 31) - 1])
def test_a_log_that_never_had_a_record_takes_a_producer_from_its_first_batch(log: Log, sequence: int) -> None:
    with pytest.raises(KafkaError) as refused:
        log.append(send(0, sequence))
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append(send(0, 0))


def test_a_log_whose_records_are_deleted_takes_any_sequence(log: Log) -> None:
    """A producer's state may have gone with them."""
    log.append(batch(3))
    delete_records(log.topic, 3)
    log.append(send(0, 77))


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ((0, 0), (0, 1), 0),
        ((0, 0), (0, 2), 45),
        ((0, 0), (1, 0), 0),
        ((0, 0), (1, 1), 45),
        ((3, 0), (2, 0), 47),
        ((3, 0), (2, 1), 47),
        ((0, 77), (0, 78), 0),  # unknown producers may begin anywhere: their history may have been deleted
        ((0, (1 << 31) - 1), (0, 0), 0),  # sequences go round
        ((0, (1 << 31) - 1), (0, 1), 45),
    ],
)
def test_sequences_and_epochs(log: Log, first: tuple[int, int], then: tuple[int, int], expected: int) -> None:
    log.append(batch(1))  # an empty log takes a producer from its first batch only
    log.append(send(*first))
    assert code(log, send(*then)) == expected


def test_part_of_a_batch_is_no_duplicate(log: Log) -> None:
    log.append(send(0, 0, 4))
    assert code(log, send(0, 0, 2)) == 45
    assert code(log, send(0, 2, 2)) == 45


def test_a_request_whose_front_is_known_appends_the_rest(log: Log) -> None:
    log.append(send(0, 0, 2))
    log.append(batch(1))
    assert log.append(send(0, 0, 2) + send(0, 2, 3)) == 0
    assert log.offsets().log_end == 6
    assert log.append(send(0, 0, 2) + send(0, 2, 3)) == 0
    assert log.offsets().log_end == 6
    assert code(log, send(0, 5) + send(0, 7)) == 45
    assert code(log, send(0, 5) + send(0, 2, 3)) == 45
    assert log.offsets().log_end == 6


def test_markers_fence_older_epochs_and_coordinators(log: Log) -> None:
    log.append(send(0, 0, transactional=True))
    log.mark(marker(False, 1, 2, 5, NOW_MS))
    assert code(log, send(1, 0, transactional=True)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code(log, send(2, 3, transactional=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(log, send(2, 0, transactional=True)) == 0
    for epoch, coordinator, expected in ((1, 6, 47), (2, 4, 52)):
        with pytest.raises(KafkaError) as caught:
            log.mark(marker(True, 1, epoch, coordinator, NOW_MS))
        assert caught.value.code == expected
    log.mark(marker(True, 1, 2, 5, NOW_MS))
    assert LOGS.producers(log.topic, 0) == [(1, 2, 0, NOW_MS, 5, -1)]


def test_sequences_go_on_over_markers_of_the_same_epoch(log: Log) -> None:
    for i in range(4):
        assert log.append(send(0, i, transactional=True)) == 2 * i
        log.mark(marker(i % 2 == 0, 1, 0, 0, NOW_MS))
    assert LOGS.aborted(log.topic, 0, 0, 8) == [(1, 2), (1, 6)]


def test_a_plain_batch_inside_a_transaction_is_refused(log: Log) -> None:
    log.append(send(0, 0, transactional=True))
    assert code(log, send(0, 1)) == ErrorCode.INVALID_TXN_STATE
    assert code(log, send(0, 1, transactional=True)) == 0


def test_an_abort_without_a_transaction_lists_nothing(log: Log) -> None:
    log.mark(marker(False, 1, 0, 0, NOW_MS))
    assert LOGS.aborted(log.topic, 0, 0, 1) == []
    assert log.offsets().last_stable == 1


def test_coordinators_need_no_sequences(log: Log) -> None:
    coordinated = batch(1, producer=(4, 0, -1), transactional=True)
    for _ in range(3):
        log.mark(coordinated)
    assert code(log, coordinated) == ErrorCode.INVALID_RECORD
    assert log.offsets().last_stable == 0


def test_producers_expire_but_not_inside_a_transaction(tmp_path: Path) -> None:
    log = Log(tmp_path, producer_id_expiration_ms=1000)
    log.append(send(0, 0, producer=1))
    log.append(send(0, 0, producer=2, transactional=True))
    log.upkeep(NOW_MS)
    assert [p.producer_id for p in LOGS.producers(log.topic, 0)] == [1, 2]
    log.upkeep(1 << 50)
    assert [p.producer_id for p in LOGS.producers(log.topic, 0)] == [2]
    log.mark(marker(True, 2, 0, 0, NOW_MS))
    log.upkeep(1 << 50)
    assert LOGS.producers(log.topic, 0) == []


def test_made_up_producer_ids_push_out_the_older_half_but_no_open_transaction(tmp_path: Path) -> None:
    most, at_once = 100_000, 5_000
    log = Log(tmp_path)
    log.append(send(0, 0, producer=0, transactional=True))
    log.append(send(0, 5, producer=1))
    for first in range(2, most + 2, at_once):
        records = [send(0, 0, producer=number) for number in range(first, min(first + at_once, most + 2))]
        LOGS.append_client(log.topic, 0, b"".join(records))
    known = {producer.producer_id for producer in LOGS.producers(log.topic, 0)}
    assert {0, most + 1} <= known, "the open transaction and the newest"
    assert most // 2 <= len(known) <= most // 2 + 2
    assert code(log, send(0, 1, producer=most + 1)) == 0
    assert code(log, send(0, 3, producer=most + 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_client_begins_no_transaction_unasked_where_that_is_verified(tmp_path: Path) -> None:
    log = Log(tmp_path, verify_transactions=1)
    assert code(log, send(0, 0, transactional=True)) == ErrorCode.INVALID_TXN_STATE
    assert code(log, send(0, 0)) == 0, "without a transaction"
    assert code(log, send(1, 0, transactional=True)) == ErrorCode.INVALID_TXN_STATE
    assert code(log, send(0, 0, transactional=True)) == 0, "a repeat of what is stored"
    assert LOGS.producers(log.topic, 0)[0].txn_first_offset == -1
    assert log.offsets().log_end == 1


def test_a_marker_of_transactions_v2_is_above_its_records(log: Log) -> None:
    log.append(send(0, 0, transactional=True))

    def mark(epoch: int) -> int:
        try:
            LOGS.append_marker(log.topic, 0, marker(True, 1, epoch, 0, NOW_MS))
        except KafkaError as error:
            return error.code
        return 0

    assert mark(0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert mark(1) == 0
    assert mark(1) == 0, "once more, while nothing is open"
    assert code(log, send(0, 1, transactional=True)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code(log, send(1, 1, transactional=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(log, send(1, 0, transactional=True)) == 0
    assert mark(1) == ErrorCode.INVALID_PRODUCER_EPOCH, "late: it is the marker of the transaction before"
    assert mark(2) == 0


def test_old_record_timestamps_dont_expire_a_busy_producer(tmp_path: Path) -> None:
    log = Log(tmp_path, producer_id_expiration_ms=86_400_000)
    log.append(batch(1, producer=(1, 0, 0), timestamp_ms=1))
    log.upkeep(int(time.time() * 1000))
    assert len(LOGS.producers(log.topic, 0)) == 1
    log.restart()
    log.upkeep(int(time.time() * 1000))
    assert len(LOGS.producers(log.topic, 0)) == 1


def test_snapshot_bytes(log: Log) -> None:
    log.append(send(3, 0, 2))
    log.append(send(3, 2, 4))
    log.append(send(0, 9, producer=2, transactional=True))
    log.stop()
    data = (log.folder / f"{7:020d}.snapshot").read_bytes()
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, count, len(data)) == (1, 2, 10 + 2 * 46)
    assert crc == crc32c(data[6:])
    entries = sorted(struct.iter_unpack(">qhiqiqiq", data[10:]))
    assert entries == [(1, 3, 5, 5, 3, NOW_MS + 3, -1, -1), (2, 0, 9, 6, 0, NOW_MS, -1, 6)]
    older = (log.folder / f"{7:020d}.sequences").read_bytes()
    assert struct.unpack_from(">hIi", older) == (1, crc32c(older[6:]), 1)
    assert struct.unpack_from(">qhiqiq", older, 10) == (1, 3, 1, 1, 1, NOW_MS + 1)


def test_snapshots_of_kafka_are_read(log: Log) -> None:
    """As above, but without our companion file: the last batch of each producer is known then."""
    for i in range(4):
        log.append(send(0, i))
    log.stop()
    next(iter(log.files(".sequences"))).unlink()
    log.lead(clean=True)
    assert LOGS.sequences(log.topic, 0, 1) == [(3, 3, 3)]
    assert log.append(send(0, 3)) == 3
    assert log.append(send(0, 4)) == 4


@pytest.mark.parametrize("suffix", [".snapshot", ".sequences"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_snapshot_is_replaced_by_a_walk(tmp_path: Path, suffix: str, clean: bool) -> None:
    log = Log(tmp_path, segment_bytes=500)
    for i in range(20):
        log.append(send(0, i, transactional=i > 15))
    before = log.state()
    log.stop()
    for path in log.files(suffix):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    log.lead(clean=clean)
    after = log.state()
    if suffix == ".snapshot":
        assert after == before
    else:
        # Without the companion the last batch of the snapshot and what was walked after it are known.
        assert after._replace(sequences={}) == before._replace(sequences={})
        assert after.sequences[1] == before.sequences[1][-len(after.sequences[1]) :]
