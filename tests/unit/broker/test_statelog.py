"""The coordinators' records are Kafka's, byte for byte, and corrupt ones are refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.coordination import statelog
from penstock.broker.coordination.classicgroups.state import GroupRecord, GroupSnapshot, MemberSnapshot
from penstock.broker.coordination.offsets import Committed, OffsetRecord
from penstock.broker.coordination.transactions.state import Facts, TransactionRecord, TransactionState
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.record.rawbatch import marker, records, split
from penstock.pyx.wire.message import WireError
from support.logs import LOGS

MEMBER = MemberSnapshot("m-1", "i", "c", "/127.0.0.1", 60_000, 10_000, b"sub", b"part")
FACTS = Facts(7, -1, -1, 3, -1, 60_000, TransactionState.ONGOING, frozenset({("t", 1), ("t", 0)}), 5, 4, 0)


@pytest.mark.parametrize(
    ("name", "number"),
    # String.hashCode of a JVM: 0, 96354, 97 * 31 + ..., negative ones, Integer.MIN_VALUE, a surrogate pair.
    [("", 0), ("abc", 96354), ("polygenelubricants", 0), ("console-consumer-1", None), ("\U0001f600", 1772899)],
)
def test_partitions_are_those_of_javas_hash(name: str, number: int | None) -> None:
    if number is not None:
        assert statelog.java_hash_partition(name, 1 << 31) == number
    assert 0 <= statelog.java_hash_partition(name, 50) < 50


def test_negative_hashes_lose_their_sign_as_in_kafka() -> None:
    # "my-group".hashCode() is -1906497762 in a JVM; Kafka's Utils.abs, not toPositive, makes it a partition.
    assert statelog.java_hash_partition("my-group", 1 << 31) == 1906497762


def test_the_bytes_of_a_commit() -> None:
    key, value = statelog.encode_group_record("g", OffsetRecord("t", 2, Committed(10, 1, "m", 5)))
    assert key == bytes.fromhex("000100016700017400000002")
    assert value == bytes.fromhex("0003000000000000000a0000000100016d0000000000000005")
    _, value = statelog.encode_group_record("g", OffsetRecord("t", 2, Committed(10, 1, "m", 5, 9)))
    assert value == bytes.fromhex("0001000000000000000a00016d00000000000000050000000000000009")


def test_the_bytes_of_a_transaction() -> None:
    key, value = statelog.encode_transaction_record("x", TransactionRecord(FACTS))
    assert key == bytes.fromhex("0000000178")
    assert value == bytes.fromhex(
        "0000" "0000000000000007" "0003" "0000ea60" "01"
        "00000001" "000174" "00000002" "00000000" "00000001"
        "0000000000000005" "0000000000000004"
    )  # fmt: skip


@pytest.mark.parametrize(
    "record",
    [
        OffsetRecord("t", 2, Committed(10, 1, "m", 5)),
        OffsetRecord("t", 2, Committed(10, -1, "", 5, 77)),
        OffsetRecord("t", 2, None),
        GroupRecord(GroupSnapshot("consumer", 3, "range", "m-1", 5, (MEMBER,))),
        GroupRecord(GroupSnapshot("consumer", 4, None, None, 5, ())),
        GroupRecord(None),
    ],
)
def test_group_records_come_back(record: OffsetRecord | GroupRecord) -> None:
    if isinstance(record, OffsetRecord) and record.value is not None and record.value.expire_timestamp_ms >= 0:
        record.value.leader_epoch = -1  # The format with an expiry has none.
    key, value = statelog.encode_group_record("g", record)
    assert statelog.decode_group_record(key, value, 8) == ("g", record, 8, -1)


@pytest.mark.parametrize(
    "facts",
    [
        FACTS,
        Facts(7, 6, 9, 3, -1, 60_000, TransactionState.PREPARE_COMMIT, frozenset({("t", 1)}), 5, 4, 2),
        Facts(7, -1, -1, 0, -1, 1, TransactionState.EMPTY, frozenset(), 5, -1, 0),
        replace(FACTS, topic_ids=frozenset({("t", bytes([1] * 16))})),
        replace(FACTS, topic_ids=frozenset({("t", bytes([1] * 16)), ("t", bytes([2] * 16))})),
        replace(FACTS, partitions=frozenset({("t", 1), ("t", 3), ("u", 0)}), unclean_epochs=frozenset({(("t", 3), 7)})),
        None,
    ],
)
def test_transaction_records_come_back(facts: Facts | None) -> None:
    record = TransactionRecord(facts)
    key, value = statelog.encode_transaction_record("x", record)
    assert statelog.decode_transaction_record(key, value, 8) == ("x", record, 8, -1)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=80))
def test_corrupt_records_are_refused_and_nothing_else(key: bytes, value: bytes | None) -> None:
    for decode in (statelog.decode_group_record, statelog.decode_transaction_record):
        with suppress(WireError):
            decode(key, value, 0)


@given(st.binary(max_size=80), st.sampled_from([b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\2\0\1g", b"\0\0\0\1x"]))
def test_corrupt_values_are_refused_and_nothing_else(value: bytes, key: bytes) -> None:
    for decode in (statelog.decode_group_record, statelog.decode_transaction_record):
        with suppress(WireError):
            decode(key, value, 0)


def test_kinds_that_are_not_ours_are_skipped() -> None:
    assert statelog.decode_group_record(b"\0\x0fwhatever", b"x", 0) is None
    assert statelog.decode_transaction_record(b"\0\1x", b"x", 0) is None


def test_long_lists_become_several_batches_but_a_transactions_never() -> None:
    pairs = [(b"k" * 100, b"v" * 100)] * 6_000
    batches = statelog.build_batches(pairs, 1)
    assert len(batches) > 1
    assert sum(split(batch)[0].record_count for batch in batches) == len(pairs)
    with pytest.raises(KafkaError) as raised:
        statelog.build_batches(pairs, 1, 5, 0)
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_partition_is_read_to_its_end_and_corrupt_records_are_left_out_only_if_they_may(tmp_path: Path) -> None:
    name = "__consumer_offsets"
    LOGS.lead(name, bytes(range(16)), 0, 0, str(tmp_path), {})
    try:
        good = statelog.encode_group_record("g", OffsetRecord("t", 0, Committed(1, -1, "", 1)))
        for pairs in ([good], [good, (b"\0\1\0\x7f", b""), good]):
            for batch in statelog.build_batches(pairs, 1):
                LOGS.append(name, 0, batch)
        [transactional] = statelog.build_batches([good], 1, 9, 0)
        LOGS.append(name, 0, transactional)
        LOGS.append(name, 0, marker(True, 9, 0, 0, 1))
        batches = statelog.read_batches(LOGS, name, 0, 0)
        decode = statelog.decode_group_record
        read = [statelog.read_records(raw, decode, name, 0, skip_corrupt=True) for raw in batches]
        assert [[found.offset for found in found_here] for found_here in read[:3]] == [[0], [1, 3], [4]]
        with pytest.raises(KafkaError) as raised:
            list(statelog.read_records(batches[1], decode, name, 0))
        assert raised.value.code == ErrorCode.CORRUPT_MESSAGE
        assert batches[2].is_transactional and batches[2].producer_id == 9
        assert batches[3].is_control and records(batches[3])
    finally:
        LOGS.stop(name, 0)
