"""Whatever a client sends: it is in the log whole, readable and numbered without gaps, or it is refused whole."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import KafkaError
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import Record, records, split
from support.logs import LOGS, Log
from support.messagesets import Message, pack_set, wrap

MAYBE_BYTES = st.none() | st.binary(max_size=60)
MESSAGES = st.lists(st.tuples(MAYBE_BYTES, MAYBE_BYTES, st.integers(0, 2**40)), min_size=1, max_size=12)
Given = list[tuple[bytes | None, bytes | None, int]]
Topic = tuple[int, int, int]
KINDS = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), *((2, codec) for codec in range(5))]
TOPICS = list(product([-1, 0, 1, 3, 4], [0, 1], [0, 2]))
"""Codec to store, whether it is compacted, and the format of what old producers send: kept or today's."""
REFUSALS = {2, 10, 18, 32, 56, 76, 87}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Topic, Log]]:
    """One log for each of TOPICS; each batch is opened before it is taken."""
    root: Path = tmp_path_factory.mktemp("ingest")
    made = {
        (codec, compact, magic): Log(
            root, compression_codec=codec, cleanup_compact=compact, validate_records=2, message_magic=magic
        )
        for codec, compact, magic in TOPICS
    }
    yield made
    for log in made.values():
        log.drop()


def built(given_messages: Given, magic: int, codec: int, numbers: int) -> bytes:
    if magic == 2:
        builder = BatchBuilder(codec)
        for message in given_messages:
            assert builder.append(*message)
        return builder.build()
    messages = [Message(i * numbers, key, value, time if magic else -1) for i, (key, value, time) in enumerate(given_messages)]
    return wrap(magic, messages, codec, 0, timestamp_ms=5) if codec else pack_set(magic, messages)


def stored(log: Log, offset: int) -> list[Record]:
    """What is in the log from an offset on, checked."""
    found: list[Record] = []
    if offset < log.offsets().log_end:
        for raw in split(LOGS.read(log.topic, 0, offset, 1 << 24)):
            raw.check()
            found += records(raw)
    return found


@given(MESSAGES, st.sampled_from(KINDS), st.integers(0, 2), st.sampled_from(TOPICS))
def test_what_is_right_is_taken_as_it_is(
    logs: dict[Topic, Log],
    given_messages: Given,
    kind: tuple[int, int],
    numbers: int,
    topic: Topic,
) -> None:
    log = logs[topic]
    end = log.offsets().log_end
    data = built(given_messages, *kind, numbers)
    if topic[1] and any(key is None for key, _, _ in given_messages):
        with pytest.raises(KafkaError) as caught:
            log.append(data)
        assert caught.value.code == 87
        assert log.offsets().log_end == end
        return
    assert log.append(data) == end
    assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in stored(log, end)] == [
        (end + i, time if kind[0] else -1, key, value) for i, (key, value, time) in enumerate(given_messages)
    ]


def mended(data: bytearray, magic: int) -> bytes:
    """With the checksum that the bytes now have, so that the looks behind it are reached."""
    if magic == 2 and len(data) > 21:
        data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    elif len(data) > 16:
        size = int.from_bytes(data[8:12], "big", signed=True) + 12
        if 16 < size <= len(data):
            data[12:16] = zlib.crc32(bytes(data[16:size])).to_bytes(4, "big")
    return bytes(data)


@given(MESSAGES, st.sampled_from(KINDS), st.sampled_from(TOPICS), st.booleans(), st.data())
def test_what_was_bent_is_taken_whole_or_not_at_all(
    logs: dict[Topic, Log],
    given_messages: Given,
    kind: tuple[int, int],
    topic: Topic,
    mend: bool,
    data: st.DataObject,
) -> None:
    log = logs[topic]
    end = log.offsets().log_end
    bent = bytearray(built(given_messages, *kind, 1))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, min(len(bent), 80) - 1) | st.integers(0, len(bent) - 1))
        bent[place] = data.draw(st.integers(0, 255))
    try:
        base = log.append(mended(bent, kind[0]) if mend else bytes(bent))
    except KafkaError as refused:
        assert refused.code in {*REFUSALS, 45, 47, 48}
        assert log.offsets().log_end == end
        return
    found = stored(log, end)
    assert topic[2] < 2 or kind[0] == 2 or all(raw.magic == 2 for raw in split(LOGS.read(log.topic, 0, end, 1 << 24)))
    if base == end:
        assert [record.offset for record in found] == list(range(end, log.offsets().log_end))
        assert found
        assert not topic[1] or all(record.key is not None for record in found)
    else:
        assert not found  # a repeat of what an idempotent producer sent before


@given(st.binary(max_size=200), st.integers(0, 2))
def test_noise_is_refused(logs: dict[Topic, Log], noise: bytes, magic: int) -> None:
    log = logs[(-1, 0, 2)]
    end = log.offsets().log_end
    framed = bytearray(bytes(8) + len(noise).to_bytes(4, "big") + bytes(4) + bytes([magic]) + noise)
    for data in (noise, bytes(framed), mended(framed, magic)):
        try:
            log.append(data)
        except KafkaError as refused:
            assert refused.code in REFUSALS
    assert [record.offset for record in stored(log, end)] == list(range(end, log.offsets().log_end))
