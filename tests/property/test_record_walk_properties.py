"""Any bytes where records ought to be: taken are exactly those that a plain decoder reads, and other clients' decoders then
read the same from the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from penstock.errors import KafkaError
from support.crafted import Decoded, batch, body, decoded, packed, record, sized, varint
from support.logs import LOGS, NOW_MS, Log

# Lengths about where a varint takes another byte.
LENGTHS = st.sampled_from([0, 1, 2, 62, 63, 64, 65, 200, 8190, 8191, 8192, 8193])
MAYBE_BYTES = st.none() | LENGTHS.map(lambda n: b"x" * n)
HEADERS = st.lists(st.tuples(st.sampled_from([b"", b"h", b"n" * 70]), st.none() | st.just(b"v" * 5)), max_size=3)
DELTAS = st.sampled_from([0, -1, 1, 63, 64, -65, 8191, 8192, 1 << 19, 1 << 20, -(1 << 20), 1 << 40])
ONE = st.tuples(MAYBE_BYTES, MAYBE_BYTES, st.just([]) | HEADERS, DELTAS)
CODECS = st.sampled_from([0, 0, 1, 2, 3, 4])
# Numbers as they may stand in a record, overlong and out of range too.
NUMBERS = st.builds(varint, st.integers(-3, 70) | st.sampled_from([-(2**31), 2**31 - 1, 2**40]), st.integers(0, 6))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    root: Path = tmp_path_factory.mktemp("walk")
    made = Log(root, max_message_bytes=1 << 24, timestamp_after_max_ms=2**62)
    yield made
    made.drop()


def check(log: Log, payload: bytes, count: int, codec: int) -> None:
    """Append the payload; the log has it if the plain decoder reads it, and all decoders agree about it."""
    expected = decoded(payload, count) if count else None
    data = batch(packed(codec, payload), count, codec=codec, base_ms=NOW_MS)
    end = log.offsets().log_end
    try:
        log.append(data)
    except KafkaError as refused:
        assert refused.code == 87
        assert expected is None
        assert log.offsets().log_end == end
        return
    assert expected is not None
    if not all(is_text(name) for one in expected for name, _ in one.headers):
        return  # Java and librdkafka read other bytes too, those in Python raise: the same with Kafka
    stored = bytes(LOGS.read(log.topic, 0, end, 1 << 24))
    assert read(AiokafkaRecords(stored).next_batch(), end) == expected
    if codec != 4:  # kafka-python needs a package for zstd that isn't there
        assert read(KafkaPythonRecords(stored).next_batch(), end) == expected


def is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def read(records: Iterator[object], offset: int) -> list[Decoded]:
    """What another client's decoder finds; the offsets must follow each other."""
    found = []
    for number, one in enumerate(records):
        assert one.offset == offset + number  # type: ignore[attr-defined]
        headers = tuple((key.encode(), value) for key, value in one.headers)  # type: ignore[attr-defined]
        found.append(Decoded(one.timestamp - NOW_MS, one.key, one.value, headers))  # type: ignore[attr-defined]
    return found


def made(records: Sequence[tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]], int]]) -> bytes:
    return b"".join(
        record(i, key=key, value=value, headers=headers, timestamp_delta=delta)
        for i, (key, value, headers, delta) in enumerate(records)
    )


@given(st.lists(ONE, min_size=1, max_size=8), CODECS)
def test_right_records_are_taken(
    log: Log, records: list[tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]], int]], codec: int
) -> None:
    payload = made(records)
    assert decoded(payload, len(records)) == [
        Decoded(delta, key, value, tuple(headers)) for key, value, headers, delta in records
    ]
    check(log, payload, len(records), codec)


@given(st.lists(ONE, min_size=1, max_size=5), CODECS, st.integers(-1, 1), st.data())
def test_bent_records_are_taken_if_they_can_be_read(
    log: Log,
    records: list[tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]], int]],
    codec: int,
    more: int,
    data: st.DataObject,
) -> None:
    payload = bytearray(made(records))
    for _ in range(data.draw(st.integers(0, 2))):
        place = data.draw(st.integers(0, min(len(payload), 24) - 1) | st.integers(0, len(payload) - 1))
        payload[place] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 2, 7]))
    check(log, bytes(payload[: len(payload) - cut]), len(records) + (more if data.draw(st.booleans()) else 0), codec)


@given(st.lists(NUMBERS, min_size=5, max_size=5), st.binary(max_size=4), st.integers(0, 255), CODECS, st.booleans())
def test_records_of_any_numbers(log: Log, numbers: list[bytes], tail: bytes, attributes: int, codec: int, last: bool) -> None:
    """Alone in its batch, and in front of others, where a faster reader looks first."""
    timestamp, offset, key, value, headers = numbers
    odd = body(bytes([attributes]), timestamp, offset, key, value, headers, tail)
    check(log, odd if last else odd + record(1) + record(2), 1 if last else 3, codec)


@given(st.lists(st.integers(0, 11), min_size=6, max_size=6), HEADERS, CODECS, st.booleans())
def test_numbers_of_more_bytes_than_they_need(
    log: Log, sizes: list[int], headers: list[tuple[bytes, bytes | None]], codec: int, last: bool
) -> None:
    """Up to 5 and 10 bytes as in Java, no more."""
    length, timestamp, offset, key, value, count = sizes
    inner = bytes(1) + varint(5, timestamp) + varint(0, offset) + varint(1, key) + b"k" + varint(3, value) + b"vvv"
    inner += varint(len(headers), count) + b"".join(sized(name) + sized(content) for name, content in headers)
    odd = varint(len(inner), length) + inner
    check(log, odd if last else odd + record(1), 1 if last else 2, codec)


@given(st.binary(max_size=60), st.integers(1, 4), CODECS)
def test_noise(log: Log, noise: bytes, count: int, codec: int) -> None:
    check(log, noise, count, codec)
    check(log, body(b"\0\0\0", sized(b"k"), noise), count, codec)
