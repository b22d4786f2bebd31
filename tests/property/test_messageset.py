"""Message sets and the converter against plain Python: round trips, and bytes that were bent."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from penstock.pyx.record import convert, upconvert
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.columns import decode
from penstock.pyx.record.rawbatch import BatchError, Record, count_records, records, split
from support.messagesets import LOG_APPEND_TIME, Message, pack_set, unwrap, wrap

MAYBE_BYTES = st.none() | st.binary(max_size=100)
MESSAGES = st.lists(st.tuples(MAYBE_BYTES, MAYBE_BYTES, st.integers(-1, 2**62)), min_size=1, max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=5), MAYBE_BYTES), max_size=2)
RECORDS = st.lists(st.tuples(MAYBE_BYTES, MAYBE_BYTES, st.integers(0, 2**62), HEADERS), min_size=1, max_size=20)
Given = list[tuple[bytes | None, bytes | None, int]]
NewGiven = list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]


def a_set(given_messages: Given, magic: int, codec: int, first: int, gaps: int = 1, attributes: int = 0) -> bytes:
    """As a broker keeps it: absolute offsets, in a wrapper of magic 1 relative ones."""
    plain = [
        Message(first + i * gaps, key, value, timestamp if magic else -1, attributes if codec == 0 else 0)
        for i, (key, value, timestamp) in enumerate(given_messages)
    ]
    if codec == 0:
        return pack_set(magic, plain)
    inner = [one._replace(offset=one.offset - first) for one in plain] if magic == 1 else plain
    newest = max(one.timestamp_ms for one in plain)
    return wrap(magic, inner, codec, plain[-1].offset, attributes=attributes, timestamp_ms=newest)


def as_records(data: bytes, magic: int) -> list[Record]:
    return [Record(one.offset, one.timestamp_ms, one.key, one.value, ()) for one in unwrap(data, magic)]


@given(MESSAGES, st.integers(0, 1), st.integers(0, 3), st.integers(0, 2**40), st.integers(1, 5), st.booleans())
def test_sets_are_read(given_messages: Given, magic: int, codec: int, first: int, gaps: int, stamped: bool) -> None:
    data = a_set(given_messages, magic, codec, first, gaps, LOG_APPEND_TIME if stamped and magic else 0)
    expected = as_records(data, magic)
    found = [record for raw in split(data) for record in records(raw)]
    assert found == expected
    assert sum(count_records(raw) for raw in split(data)) == len(given_messages)
    columns = decode(split(data))
    assert columns.offsets.tolist() == [record.offset for record in expected]
    assert columns.timestamps.tolist() == [record.timestamp_ms for record in expected]
    assert [(columns.key(i), columns.value(i)) for i in range(len(columns))] == [(r.key, r.value) for r in expected]


@given(RECORDS, st.integers(0, 1), st.integers(0, 4), st.integers(0, 2**40), st.integers(0, 25), st.booleans())
def test_new_batches_are_converted_down(
    given_records: NewGiven, magic: int, codec: int, first: int, skip: int, stamped: bool
) -> None:
    builder = BatchBuilder(codec)
    for record in given_records:
        assert builder.append(*record)
    data = bytearray(builder.build())
    data[:8] = first.to_bytes(8, "big")
    if stamped:
        data[22] |= LOG_APPEND_TIME  # the converter doesn't look at checksums: the log has
    if codec == 4:
        try:
            convert.down(data, magic)
        except BatchError as refused:
            assert refused.code == 76
            return
        raise AssertionError
    newest = max(record[2] for record in given_records)
    expected = [
        Record(first + i, (newest if stamped else timestamp) if magic else -1, key, value, ())
        for i, (key, value, timestamp, _) in enumerate(given_records)
    ]
    assert as_records(convert.down(data, magic, first + skip), magic) == expected[skip:]


@given(MESSAGES, st.integers(0, 3), st.integers(0, 2**40), st.integers(1, 5), st.integers(0, 25))
def test_magic_1_is_converted_to_0_and_readable_bytes_stay(
    given_messages: Given, codec: int, first: int, gaps: int, skip: int
) -> None:
    data = a_set(given_messages, 1, codec, first, gaps)
    assert convert.down(data, 1, first + skip) == data
    old = a_set(given_messages, 0, codec, first, gaps)
    assert convert.down(old, 0) == convert.down(old, 1) == old
    kept = [one for one in as_records(data, 1) if one.offset >= first + skip]
    assert as_records(convert.down(data, 0, first + skip), 0) == [one._replace(timestamp_ms=-1) for one in kept]


PIECES = st.lists(
    st.tuples(MESSAGES, st.integers(0, 1), st.integers(0, 3), st.integers(1, 5), st.booleans()), min_size=1, max_size=5
)


@given(PIECES, st.integers(0, 2**40), st.booleans())
def test_sets_are_converted_up(pieces: list[tuple[Given, int, int, int, bool]], first: int, cut: bool) -> None:
    """Any messages one after the other, as a log may have them: today's clients see what those of old did."""
    data, wanted = b"", []
    for given_messages, magic, codec, gaps, stamped in pieces:
        piece = a_set(given_messages, magic, codec, first, gaps, LOG_APPEND_TIME if stamped and magic else 0)
        data += piece
        wanted += as_records(piece, magic)
        first = wanted[-1].offset + gaps
    if cut:
        data += a_set(pieces[0][0][:1], 1, 0, first)[:-1]
    made = split(upconvert.up(data))
    for raw in made:
        raw.check()
        assert (raw.magic, raw.producer_id) == (2, -1)
    assert [record for raw in made for record in records(raw)] == wanted
    assert upconvert.up(b"".join(map(bytes, made))) == b"".join(map(bytes, made))


@given(MESSAGES, st.integers(0, 1), st.integers(0, 3), st.data())
def test_bent_sets_never_crash_a_reader(given_messages: Given, magic: int, codec: int, data: st.DataObject) -> None:
    bent = bytearray(a_set(given_messages, magic, codec, 5) * 2)
    for _ in range(data.draw(st.integers(1, 4))):
        bent[data.draw(st.integers(0, len(bent) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BatchError):
        convert.down(bent, 0)
    with contextlib.suppress(BatchError):
        upconvert.up(bent)
    try:
        batches = split(bent)
    except BatchError:
        return
    for raw in batches:
        for reader in (records, count_records, lambda one: decode([one], 1 << 20)):
            with contextlib.suppress(BatchError):
                reader(raw)


@given(st.binary(max_size=200), st.integers(0, 1))
def test_noise_is_no_set(noise: bytes, magic: int) -> None:
    with contextlib.suppress(BatchError):
        convert.down(noise, magic)
    with contextlib.suppress(BatchError):
        upconvert.up(noise)
