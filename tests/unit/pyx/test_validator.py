"""What clients send and what the log keeps of it: opened batches, codecs, message sets where a topic keeps them (what becomes
of them everywhere else: test_upconvert.py); and what is refused.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time_ns

import pytest

from penstock.errors import KafkaError
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.codec import compress
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import Record, records, split
from support.logs import LOGS, NOW_MS, Log, batch
from support.messagesets import GZIP, LOG_APPEND_TIME, LZ4, SNAPPY, Message, pack, pack_set, unpack, unwrap, wrap

CODECS = [GZIP, SNAPPY, LZ4]


def plain(magic: int, count: int, first: int = 0, step: int = 1) -> list[Message]:
    return [
        Message(first + i * step, b"k%d" % i, b"value %d" % i * 5, NOW_MS + i * 7 % 5 if magic else -1) for i in range(count)
    ]


def sent(magic: int, codec: int, count: int) -> bytes:
    """As clients send it: numbered from 0, a wrapper with the offset of its last message."""
    messages = plain(magic, count)
    if codec == 0:
        return pack_set(magic, messages)
    newest = max(one.timestamp_ms for one in messages)
    return wrap(magic, messages, codec, count - 1, timestamp_ms=newest)


def expected(magic: int, count: int, first: int) -> list[Message]:
    return [one._replace(offset=first + one.offset) for one in plain(magic, count)]


def stored(log: Log, offset: int = 0) -> bytes:
    return bytes(LOGS.read(log.topic, 0, offset, 1 << 24))


def refused(log: Log, data: bytes) -> int:
    """The error code; nothing of it may be in the log."""
    end = log.offsets().log_end
    with pytest.raises(KafkaError) as caught:
        log.append(data)
    assert log.offsets().log_end == end
    return int(caught.value.code)


def test_a_wrapper_of_two_gzip_members_is_stored_as_one(make_log: Callable[..., Log]) -> None:
    """librdkafka reads the first member only."""
    both = pack_set(1, [Message(i, b"k", b"v%d" % i, NOW_MS) for i in range(2)])
    half = len(both) // 2
    value = gzip.compress(both[:half]) + gzip.compress(both[half:])
    log = make_log(message_magic=1)
    assert log.append(pack(1, Message(1, None, value, NOW_MS, GZIP))) == 0
    (wrapper,) = unpack(stored(log), 1)
    inflate = zlib.decompressobj(31)
    assert wrapper.value is not None
    assert len(inflate.decompress(wrapper.value)) == len(both)
    assert inflate.unused_data == b""


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, *CODECS])
def test_sets_keep_their_magic_and_get_offsets(make_log: Callable[..., Log], magic: int, codec: int) -> None:
    log = make_log(message_magic=0)
    assert [log.append(sent(magic, codec, count)) for count in (3, 1, 5)] == [0, 3, 4]
    data = stored(log)
    assert unwrap(data, magic) == expected(magic, 3, 0) + expected(magic, 1, 3) + expected(magic, 5, 4)
    assert [raw.base_offset for raw in split(data)] == (list(range(9)) if codec == 0 else [2, 3, 8])
    if magic == 1 and codec:
        # Only the offset changed: a wrapper with the right relative offsets isn't compressed again.
        assert split(data)[2].payload == split(sent(1, codec, 5))[0].payload
        assert split(data)[2].crc == split(sent(1, codec, 5))[0].crc
    found = [record for raw in split(data) for record in records(raw)]
    assert [record.offset for record in found] == list(range(9))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, *CODECS])
def test_sets_survive_a_kill_and_are_read_from_any_offset(
    make_log: Callable[..., Log], tmp_path: Path, magic: int, codec: int
) -> None:
    log = make_log(index_interval_bytes=100, message_magic=0)
    for count in (3, 4, 5, 6):
        log.append(sent(magic, codec, count))
    log.append(batch(2))
    before = stored(log)
    log.kill(tmp_path / "after")
    assert stored(log) == before
    assert log.offsets().log_end == 20
    for offset in range(20):
        first = split(stored(log, offset))[0]
        assert records(first)[0].offset <= offset <= records(first)[-1].offset
    assert log.append(sent(magic, codec, 2)) == 20


@pytest.mark.parametrize("codec", [0, *CODECS])
def test_times_are_found_inside_of_wrappers(make_log: Callable[..., Log], codec: int) -> None:
    log = make_log(message_magic=0)
    times = [5, 3, 9, 4, 12, 1]
    messages = [Message(i, b"k", b"v", NOW_MS + time) for i, time in enumerate(times)]
    data = pack_set(1, messages) if codec == 0 else wrap(1, messages, codec, 5, timestamp_ms=NOW_MS + 12)
    log.append(data)
    found = [LOGS.offset_for_timestamp(log.topic, 0, NOW_MS + time) for time in (0, 6, 10, 13)]
    assert found == [(0, NOW_MS + 5), (2, NOW_MS + 9), (4, NOW_MS + 12), None]
    assert LOGS.max_timestamp(log.topic, 0) == (4, NOW_MS + 12)


@pytest.mark.parametrize("numbers", [[0, 0, 0], [7, 8, 9], [0, 2, 4], [2, 1, 0]])
@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers_with_other_inner_offsets_are_renumbered(
    make_log: Callable[..., Log], magic: int, numbers: Sequence[int]
) -> None:
    log = make_log(message_magic=0)
    log.append(batch(4))
    inner = [one._replace(offset=number) for one, number in zip(plain(magic, 3), numbers, strict=True)]
    log.append(wrap(magic, inner, GZIP, 0, timestamp_ms=NOW_MS))
    assert unwrap(stored(log, 4), magic) == expected(magic, 3, 4)


def test_a_wrappers_timestamp_becomes_its_newest(make_log: Callable[..., Log]) -> None:
    log = make_log(message_magic=0)
    log.append(wrap(1, plain(1, 4), GZIP, 3, timestamp_ms=-1))
    (raw,) = split(stored(log))
    raw.check()
    assert raw.max_timestamp == NOW_MS + 4


@pytest.mark.parametrize("codec", [0, *CODECS])
def test_log_append_time(make_log: Callable[..., Log], codec: int) -> None:
    log = make_log(log_append_time=1, message_magic=1)
    done = LOGS.append_client(log.topic, 0, sent(1, codec, 3))
    assert done.log_append_time_ms > NOW_MS
    for message in unpack(stored(log), 1):
        assert message.attributes == codec | LOG_APPEND_TIME
    assert {one.timestamp_ms for one in unwrap(stored(log), 1)} == {done.log_append_time_ms}
    assert LOGS.append_client(log.topic, 0, sent(0, codec, 2)).base_offset == 3
    assert [one.offset for one in unwrap(stored(log, 3), 0)] == [3, 4]


def bent(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def nested(magic: int) -> bytes:
    inner = wrap(magic, plain(magic, 2), GZIP, 1)
    return pack(magic, Message(1, None, compress(GZIP, inner), -1, GZIP))


@pytest.mark.parametrize("codec", [0, GZIP, LZ4])
def test_appenders_side_by_side_get_offsets_of_their_own(make_log: Callable[..., Log], codec: int) -> None:
    log = make_log(message_magic=0)
    with ThreadPoolExecutor(4) as threads:
        bases = list(threads.map(log.append, [sent(0, codec, 3)] * 100))
    assert sorted(bases) == list(range(0, 300, 3))
    found = unwrap(b"".join(bytes(raw) for raw in log.read_all()), 0)
    assert [one.offset for one in found] == list(range(300))


REFUSED: dict[str, tuple[Callable[[], bytes], int]] = {
    "checksum": (lambda: bent(sent(1, 0, 2), 40), 2),
    "the checksum of a wrapper": (lambda: bent(sent(1, GZIP, 2), 50), 2),
    "a checksum inside": (
        lambda: pack(1, Message(1, None, compress(GZIP, bent(sent(1, 0, 2), 40)), NOW_MS, GZIP)),
        2,
    ),
    "cut off": (lambda: sent(0, 0, 3)[:-1], 2),
    "two magics": (lambda: sent(0, 0, 1) + sent(1, 0, 1), 87),
    "a batch behind": (lambda: sent(1, 0, 1) + batch(1), 87),
    "a message behind a batch": (lambda: batch(1) + sent(1, 0, 1), 87),
    "two wrappers": (lambda: sent(1, GZIP, 2) * 2, 87),
    "a wrapper behind a message": (lambda: sent(0, 0, 1) + sent(0, GZIP, 2), 87),
    "two magics inside": (
        lambda: pack(1, Message(1, None, compress(GZIP, sent(1, 0, 1) + sent(0, 0, 1)), NOW_MS, GZIP)),
        87,
    ),
    "nested in magic 0": (lambda: nested(0), 87),
    "nested in magic 1": (lambda: nested(1), 87),
    "zstd": (lambda: pack(1, Message(1, None, compress(4, sent(1, 0, 2)), NOW_MS, 4)), 76),
    "an unknown codec": (lambda: pack(1, Message(1, None, b"?", NOW_MS, 5)), 76),
    "nothing the codec knows": (lambda: pack(0, Message(1, None, b"?" * 30, -1, GZIP)), 87),
    "no value in a wrapper": (lambda: pack(0, Message(1, None, None, -1, GZIP)), 87),
    "an empty wrapper": (lambda: pack(1, Message(1, None, compress(GZIP, b""), NOW_MS, GZIP)), 87),
    "the historical lz4 framing in magic 1": (
        lambda: pack(1, unpack(sent(0, LZ4, 2), 0)[0]._replace(timestamp_ms=NOW_MS)),
        87,
    ),
    "a bomb": (lambda: pack(1, Message(1, None, compress(GZIP, b"\0" * (66 << 20)), NOW_MS, GZIP)), 10),
    "too large": (lambda: pack(0, Message(0, None, b"x" * 200_000)), 10),
    "a producer's LogAppendTime": (lambda: pack(1, Message(0, None, b"x", NOW_MS, LOG_APPEND_TIME)), 32),
    "the far future": (lambda: pack(1, Message(0, None, b"x", 2**60)), 32),
    "the far future inside": (
        lambda: wrap(1, [Message(0, None, b"x", NOW_MS), Message(1, None, b"x", 2**60)], GZIP, 1),
        32,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("format_kept", [0, 1, 2])
def test_wrong_sets_are_refused_whole(make_log: Callable[..., Log], name: str, format_kept: int) -> None:
    log = make_log(max_message_bytes=100_000, message_magic=format_kept)
    make, code = REFUSED[name]
    assert refused(log, make()) == code


def rebuilt(data: bytes, at: int, packed: bytes) -> bytes:
    """A batch of magic 2 with other bytes and a right checksum."""
    changed = bytearray(data)
    changed[at : at + len(packed)] = packed
    changed[17:21] = struct.pack(">I", crc32c(bytes(changed[21:])))
    return bytes(changed)


def test_validate_records(make_log: Callable[..., Log]) -> None:
    none, headers, full = (make_log(validate_records=mode) for mode in range(3))
    corrupt = bent(batch(3), 80)
    assert (none.append(corrupt), refused(headers, corrupt), refused(full, corrupt)) == (0, 2, 2)
    for wrong in (
        rebuilt(batch(3), 61, b"\x7f"),  # the first record's length
        rebuilt(batch(3), 64, b"\x08"),  # its offset delta
        rebuilt(batch(3) + b"\0", 8, struct.pack(">i", len(batch(3)) - 11)),  # a byte behind the records
        rebuilt(rebuilt(batch(3), 23, struct.pack(">i", 1)), 57, struct.pack(">i", 2)),  # a record that isn't counted
    ):
        assert headers.append(wrong) >= 0
        assert refused(full, wrong) == 87
    for codec in range(5):
        assert full.append(batch(5, codec=codec)) == codec * 5
    broken = rebuilt(batch(5, codec=1), 70, b"\xff\xff\xff")
    assert refused(full, broken) == 87
    header = rebuilt(batch(1), 8, struct.pack(">i", 20))
    assert [refused(log, header) for log in (none, headers, full)] == [2, 2, 2]


def test_full_validation_mends_the_largest_timestamp(make_log: Callable[..., Log]) -> None:
    log = make_log(validate_records=2)
    log.append(rebuilt(batch(3), 35, struct.pack(">q", NOW_MS)))
    (raw,) = log.read_all()
    assert raw.max_timestamp == NOW_MS + 2


@pytest.mark.parametrize("missing", [-1, 0])
def test_a_missing_largest_timestamp_is_mended_always(make_log: Callable[..., Log], missing: int) -> None:
    log = make_log(timestamp_before_max_ms=time_ns() // 1_000_000 - NOW_MS + 3_600_000)
    for codec in range(5):
        log.append(rebuilt(batch(3, codec=codec), 35, struct.pack(">q", missing)))
    for raw in log.read_all():
        raw.check()
        assert raw.max_timestamp == NOW_MS + 2
    assert LOGS.offset_for_timestamp(log.topic, 0, NOW_MS + 1) == (1, NOW_MS + 1)


def test_full_validation_looks_at_each_timestamp(make_log: Callable[..., Log]) -> None:
    builder = BatchBuilder()
    for time in (NOW_MS, NOW_MS - 10_000_000, NOW_MS):
        builder.append(b"k", b"v", time)
    age_ms = 10**15
    data = builder.build()
    assert make_log(timestamp_before_max_ms=age_ms, validate_records=2).append(data) == 0
    now_ms = LOGS.append_client((probe := make_log(log_append_time=1)).topic, 0, batch(1)).log_append_time_ms
    assert probe.offsets().log_end == 1
    strict = make_log(timestamp_before_max_ms=now_ms - NOW_MS + 5_000_000, validate_records=2)
    assert refused(strict, data) == 32


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("codec", range(5))
def test_compacted_topics_take_no_record_without_a_key(make_log: Callable[..., Log], mode: int, codec: int) -> None:
    log = make_log(cleanup_compact=1, validate_records=mode)
    builder = BatchBuilder(codec)
    for key in (b"a", None, b"b", None):
        builder.append(key, b"v", NOW_MS)
    assert refused(log, builder.build()) == 87
    assert log.append(batch(3, codec=codec)) == 0
    if codec < 4:
        for magic in (0, 1):
            keyless = [Message(0, b"k", b"v", NOW_MS), Message(1, None, b"v", NOW_MS)]
            old = wrap(magic, keyless, codec, 1) if codec else pack_set(magic, keyless)
            assert refused(log, old) == 87
            log.append(sent(magic, codec, 2))


@pytest.mark.parametrize("wanted", range(5))
@pytest.mark.parametrize("codec", range(5))
def test_compression_type(make_log: Callable[..., Log], codec: int, wanted: int) -> None:
    log = make_log(compression_codec=wanted, compression_level=2 if wanted in (1, 4) else -1)
    first = batch(5, codec=codec, producer=(9, 1, 0), size=500)
    assert [log.append(first), log.append(batch(2, codec=codec, producer=(9, 1, 5)))] == [0, 5]
    assert log.append(first) == 0  # a repeat is one, whatever the codec
    raws = log.read_all()
    assert [raw.codec for raw in raws] == [wanted, wanted]
    assert [(raw.producer_id, raw.producer_epoch, raw.base_sequence) for raw in raws] == [(9, 1, 0), (9, 1, 5)]
    wished = [Record(i, NOW_MS + i, b"k%d" % i, b"v" * 500, ()) for i in range(5)]
    assert records(raws[0]) == wished
    if wanted == codec:
        assert raws[0].payload == split(first)[0].payload


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("wanted", range(5))
@pytest.mark.parametrize("codec", range(4))
def test_compression_type_of_message_sets(make_log: Callable[..., Log], magic: int, codec: int, wanted: int) -> None:
    log = make_log(compression_codec=wanted, message_magic=0)
    assert [log.append(sent(magic, codec, count)) for count in (3, 4)] == [0, 3]
    data = stored(log)
    assert unwrap(data, magic) == expected(magic, 3, 0) + expected(magic, 4, 3)
    kept = codec if wanted == 4 else wanted  # zstd has no place in a message set
    assert {raw.codec for raw in split(data)} == {kept}
