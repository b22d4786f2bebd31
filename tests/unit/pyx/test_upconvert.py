"""Message sets as batches of magic 2: those of old producers, byte by byte against Kafka 3.9's, and those that a log has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import KafkaError
from penstock.pyx.record import upconvert
from penstock.pyx.record.codec import CODEC_IDS, decompress
from penstock.pyx.record.rawbatch import BatchError, RawBatch, Record, records, split
from support.logs import LOGS, NOW_MS, Log, batch
from support.messagesets import GZIP, LOG_APPEND_TIME, LZ4, SNAPPY, Message, pack, pack_set, wrap

GOLDEN = Path(__file__).parents[2] / "golden"
CODECS = [0, GZIP, SNAPPY, LZ4]


def golden(name: str) -> list[list[str]]:
    lines = (GOLDEN / name).read_text().splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


JAVA = {name: bytes.fromhex(text) for name, text in golden("records_java.hex")}
KAFKA_39 = golden("validator_java_39.hex")


def stored(log: Log, offset: int = 0) -> list[RawBatch]:
    """What is in the log, its checksums checked."""
    found = split(LOGS.read(log.topic, 0, offset, 1 << 26))
    for raw in found:
        raw.check()
    return found


def header(raw: RawBatch) -> tuple[object, ...]:
    """All that a header says but for size and checksum, and the time of an append."""
    return (
        raw.base_offset, raw.leader_epoch, raw.magic, raw.attributes, raw.last_offset_delta, raw.base_timestamp,
        None if raw.attributes & LOG_APPEND_TIME else raw.max_timestamp, raw.producer_id, raw.producer_epoch,
        raw.base_sequence, raw.record_count,
    )  # fmt: skip


@pytest.mark.parametrize(("source", "codec", "clock", "expected"), KAFKA_39, ids=["-".join(one[:3]) for one in KAFKA_39])
def test_the_batch_is_kafkas(make_log: Callable[..., Log], source: str, codec: str, clock: str, expected: str) -> None:
    wanted = {"producer": -1, "uncompressed": 0}.get(codec, CODEC_IDS.get(codec, -1))
    log = make_log(compression_codec=wanted, log_append_time=int(clock == "LogAppendTime"))
    done = LOGS.append_client(log.topic, 0, JAVA[source])
    (made,) = stored(log)
    (kafkas,) = split(bytes.fromhex(expected))
    assert header(made) == header(kafkas)
    assert decompress(made.codec, bytes(made.payload)) == decompress(kafkas.codec, bytes(kafkas.payload))
    if clock == "LogAppendTime":
        assert made.max_timestamp == done.log_append_time_ms
    elif made.codec == 0:
        assert bytes(made) == bytes(kafkas)


def messages(magic: int, count: int, size: int = 10) -> list[Message]:
    return [Message(i, b"k%d" % i, b"v" * size, NOW_MS + i * 7 % 5 if magic else -1) for i in range(count)]


def sent(magic: int, codec: int, count: int, size: int = 10) -> bytes:
    """As clients send it: numbered from 0, a wrapper with the offset of its last message."""
    plain = messages(magic, count, size)
    newest = max(one.timestamp_ms for one in plain)
    return wrap(magic, plain, codec, count - 1, timestamp_ms=newest) if codec else pack_set(magic, plain)


def as_records(plain: list[Message], first: int = 0) -> list[Record]:
    return [Record(first + i, one.timestamp_ms, one.key, one.value, ()) for i, one in enumerate(plain)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_sets_share_offsets_with_batches_and_survive_a_kill(
    make_log: Callable[..., Log], tmp_path: Path, magic: int, codec: int
) -> None:
    log = make_log(index_interval_bytes=100)
    assert [log.append(sent(magic, codec, count)) for count in (3, 1, 5)] == [0, 3, 4]
    assert log.append(batch(2)) == 9
    assert log.append(sent(magic, codec, 2)) == 11
    before = [bytes(raw) for raw in stored(log)]
    log.kill(tmp_path / "after")
    raws = stored(log)
    assert [bytes(raw) for raw in raws] == before
    assert [(raw.magic, raw.codec, raw.base_offset) for raw in raws] == [
        (2, codec, 0), (2, codec, 3), (2, codec, 4), (2, 0, 9), (2, codec, 11),
    ]  # fmt: skip
    assert records(raws[2]) == as_records(messages(magic, 5), 4)


def test_plain_sets_that_are_larger_than_a_batch_become_several(make_log: Callable[..., Log]) -> None:
    """Kafka refuses them; but who sent them counts each message, and can't split a set."""
    for magic in (0, 1):
        log = make_log(max_message_bytes=1000)
        assert log.append(sent(magic, 0, 100, size=100)) == 0
        raws = stored(log)
        assert len(raws) > 10
        assert all(raw.size_in_bytes <= 1000 for raw in raws)
        assert [one for raw in raws for one in records(raw)] == as_records(messages(magic, 100, 100))
        assert log.append(sent(magic, 0, 1)) == 100
        # A wrapper is one batch, as its producer meant it to be.
        with pytest.raises(KafkaError) as caught:
            log.append(sent(magic, GZIP, 1000, size=100))
        assert caught.value.code == 10


def test_a_message_that_fits_only_in_its_old_format_is_refused(make_log: Callable[..., Log]) -> None:
    """As in Kafka: the batch around it is what max.message.bytes bounds."""
    log = make_log(max_message_bytes=1000)
    kept = make_log(max_message_bytes=1000, message_magic=0)
    data = pack(0, Message(0, None, b"x" * 970))
    assert len(data) < 1000
    assert kept.append(data) == 0
    with pytest.raises(KafkaError) as caught:
        log.append(data)
    assert caught.value.code == 10


@pytest.mark.parametrize("codec", CODECS)
def test_negative_times_are_refused(make_log: Callable[..., Log], codec: int) -> None:
    """Kafka converts none of them."""
    log = make_log()
    bad = [Message(0, b"k", b"v", NOW_MS), Message(1, b"k", b"v", -2)]
    with pytest.raises(KafkaError) as caught:
        log.append(wrap(1, bad, codec, 1) if codec else pack_set(1, bad))
    assert caught.value.code == 32
    assert log.offsets().log_end == 0


@pytest.mark.parametrize("codec", CODECS)
def test_times_are_found_in_what_was_converted(make_log: Callable[..., Log], codec: int) -> None:
    log = make_log()
    plain = [Message(i, b"k", b"v", NOW_MS + time) for i, time in enumerate([5, 3, 9, 4, 12, 1])]
    log.append(wrap(1, plain, codec, 5, timestamp_ms=NOW_MS) if codec else pack_set(1, plain))
    found = [LOGS.offset_for_timestamp(log.topic, 0, NOW_MS + time) for time in (0, 6, 10, 13)]
    assert found == [(0, NOW_MS + 5), (2, NOW_MS + 9), (4, NOW_MS + 12), None]


# --- what is stored -------------------------------------------------------------------------------------------


def opened(data: bytes) -> list[Record]:
    raws = split(data)
    for raw in raws:
        raw.check()
    assert {raw.magic for raw in raws} == {2}
    return [one for raw in raws for one in records(raw)]


def at(magic: int, offsets: list[int], codec: int = 0, attributes: int = 0, time_ms: int = NOW_MS) -> bytes:
    """As a broker keeps them."""
    times = [time_ms if attributes else time_ms + offset % 3 for offset in offsets]
    plain = [
        Message(offset, b"k%d" % offset, b"v", time if magic else -1, 0 if codec else attributes)
        for offset, time in zip(offsets, times, strict=True)
    ]
    if codec == 0:
        return pack_set(magic, plain)
    inner = [one._replace(offset=one.offset - offsets[0]) for one in plain] if magic else plain
    return wrap(magic, inner, codec, offsets[-1], attributes=attributes, timestamp_ms=time_ms)


def plain_records(magic: int, offsets: list[int], attributes: int = 0, time_ms: int = NOW_MS) -> list[Record]:
    return [
        Record(offset, (time_ms + (0 if attributes else offset % 3)) if magic else -1, b"k%d" % offset, b"v", ())
        for offset in offsets
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_offsets_and_their_holes_stay(magic: int, codec: int) -> None:
    made = upconvert.up(at(magic, [7, 9, 1000, 2**31 + 900], codec))
    assert opened(made) == plain_records(magic, [7, 9, 1000, 2**31 + 900])
    assert {raw.codec for raw in split(made)} == {codec}
    far = [3, 2**31 + 3, 2**33]
    assert opened(upconvert.up(at(magic, far, codec))) == plain_records(magic, far)


@pytest.mark.parametrize("codec", CODECS)
def test_the_brokers_clock_stays(codec: int) -> None:
    data = at(1, [1, 2], codec, LOG_APPEND_TIME) + at(1, [3], codec, LOG_APPEND_TIME, NOW_MS + 50) + at(1, [4], codec)
    made = split(upconvert.up(data))
    assert [(raw.attributes & LOG_APPEND_TIME, raw.max_timestamp) for raw in made] == [
        (LOG_APPEND_TIME, NOW_MS), (LOG_APPEND_TIME, NOW_MS + 50), (0, NOW_MS + 1),
    ]  # fmt: skip
    assert [one.timestamp_ms for raw in made for one in records(raw)] == [NOW_MS, NOW_MS, NOW_MS + 50, NOW_MS + 1]


def test_batches_stay_and_formats_may_alternate() -> None:
    new = bytearray(batch(2, codec=GZIP))
    new[7] = 5  # its base offset
    data = at(0, [0, 1]) + at(1, [2]) + at(1, [3, 4], GZIP) + bytes(new) + at(0, [7], LZ4) + at(1, [8])
    made = split(upconvert.up(data))
    assert [(raw.base_offset, raw.record_count) for raw in made] == [(0, 3), (3, 2), (5, 2), (7, 1), (8, 1)]
    assert bytes(made[2]) == new
    assert upconvert.up(bytes(new)) == new
    assert upconvert.up(data + at(1, [9])[:-1]) == upconvert.up(data), "what is cut off is left out"


def test_many_plain_messages_make_few_batches_of_bounded_size() -> None:
    data = pack_set(1, [Message(i, None, b"x" * 1000, NOW_MS) for i in range(3000)])
    made = split(upconvert.up(data))
    assert [raw.record_count for raw in made[:2]] == [made[0].record_count] * 2
    assert all(raw.size_in_bytes <= 1 << 20 for raw in made)
    assert len(made) == 3


def test_what_is_before_a_bad_message_is_given() -> None:
    bad = pack(1, Message(2, None, b"no gzip", NOW_MS, GZIP))
    with pytest.raises(BatchError) as caught:
        upconvert.up(bad)
    assert caught.value.code == 2
    backwards = at(1, [5, 4])
    with pytest.raises(BatchError) as caught:
        upconvert.up(backwards)
    assert caught.value.code == 2
