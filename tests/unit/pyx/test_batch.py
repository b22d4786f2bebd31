"""Batches against the classes of Java, aiokafka and kafka-python, and every way in which a header can be wrong."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import (
    HEADER_SIZE,
    BatchError,
    RawBatch,
    Record,
    marker,
    marker_type,
    records,
    records_as,
    split,
)
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import ProduceRequest, ProduceResponse

GOLDEN = Path(__file__).parents[2] / "golden" / "records_java.hex"
LINES = [line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
JAVA = {name: bytes.fromhex(text) for name, text in LINES}
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
READABLE = [name for name in JAVA if name.startswith("v")]  # v0-lz4 with the wrong header checksum of its time

Sample = tuple[bytes | None, bytes | None, int, Sequence[tuple[str, bytes | None]]]


def golden_record(name: str, i: int) -> Record:
    """What RecordsGolden.java puts into record i of a batch."""
    new = name.startswith("v2")
    timestamp = 1_700_000_000_000 + i * 10 - (i % 3) * 25
    if name.startswith("v0"):
        timestamp = -1
    if name.endswith("appendtime"):
        timestamp = 1_700_000_099_000
    return Record(
        1000 + i * (3 if name.endswith("holes") else 1),
        timestamp,
        None if i % 5 == 0 else b"key-%d" % i,
        None if i % 11 == 0 else b"value-%d " % i * (i % 7),
        (("h", b"%d" % i), ("näll", None)) if new and i % 4 == 0 else (),
    )


def samples(count: int = 100) -> list[Sample]:
    return [
        (
            b"k%d" % i if i % 3 else None,
            b"v" * i if i % 5 else None,
            1_700_000_000_000 + i * 7 - (i % 4) * 50,
            [("h", b"x"), ("none", None)] if i % 7 == 0 else [],
        )
        for i in range(count)
    ]


def built(codec: int = 0, count: int = 100, **fields: Any) -> bytes:
    builder = BatchBuilder(codec)
    for sample in samples(count):
        assert builder.append(*sample)
    return builder.build(**fields)


def patched(batch: bytes, at: int, form: str, value: int, *, crc: bool = True) -> bytes:
    """The batch with one header field changed and, unless told otherwise, the checksum put right."""
    out = bytearray(batch)
    struct.pack_into(form, out, at, value)
    if crc:
        struct.pack_into(">I", out, 17, crc32c(out[21:]))
    return bytes(out)


@pytest.mark.parametrize("name", READABLE)
def test_batches_of_java(name: str) -> None:
    batches = split(JAVA[name])
    for batch in batches:
        batch.check()
        assert CODECS[batch.codec] in name
    found = [record for batch in batches for record in records(batch)]
    assert found == [golden_record(name, i) for i in range(60)]


class Placed(NamedTuple):
    """A record and where it was found."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@pytest.mark.parametrize("name", READABLE)
def test_batches_of_java_as_tuples_of_another_kind_from_an_offset_on(name: str) -> None:
    expected = [Placed("t", 3, *golden_record(name, i)) for i in range(60)]
    expected = [record for record in expected if record.offset >= 1030]
    found = [record for batch in split(JAVA[name]) for record in records_as(batch, Placed, ("t", 3), 1030)]
    assert found == expected
    assert {type(record) for record in found} == {Placed}
    assert set(found) == set(expected)  # their hashes are equal, too


def test_tuples_that_lack_fields_hold_no_record() -> None:
    with pytest.raises(TypeError, match="Record is no named tuple of 7 fields"):
        records_as(RawBatch(JAVA["v2-none"]), Record, ("t", 3), 0)


@pytest.mark.parametrize("codec", CODECS)
def test_header_fields_of_java(codec: str) -> None:
    raw = RawBatch(JAVA[f"v2-{codec}-transactional"])
    assert (raw.base_offset, raw.last_offset, raw.next_offset, raw.last_offset_delta) == (
        1000,
        1059,
        1060,
        59,
    )
    assert (raw.producer_id, raw.producer_epoch, raw.base_sequence, raw.last_sequence) == (4711, 3, 17, 76)
    assert (raw.leader_epoch, raw.magic, raw.record_count) == (5, 2, 60)
    assert (raw.base_timestamp, raw.max_timestamp) == (1_700_000_000_000, 1_700_000_000_570)
    assert (raw.is_transactional, raw.is_control, raw.is_log_append_time) == (True, False, False)
    assert len(raw) == raw.size_in_bytes == len(JAVA[f"v2-{codec}-transactional"])
    assert RawBatch(JAVA[f"v2-{codec}-appendtime"]).is_log_append_time
    holes = RawBatch(JAVA[f"v2-{codec}-holes"])
    assert (holes.record_count, holes.last_offset_delta) == (60, 177)


def test_uncompressed_batch_equals_that_of_java_byte_for_byte() -> None:
    builder = BatchBuilder()
    for i in range(60):
        _, timestamp, key, value, headers = golden_record("v2-none", i)
        builder.append(key, value, timestamp, headers)
    ours = builder.build(4711, 3, 17, transactional=True)
    # Base offset and leader epoch are the broker's to set.
    assert ours[16:] == JAVA["v2-none-transactional"][16:]


@pytest.mark.parametrize("commit", [True, False])
def test_marker_equals_that_of_java(commit: bool) -> None:
    theirs = JAVA["marker-commit" if commit else "marker-abort"]
    ours = marker(commit, 4711, 3, 9, 1_700_000_000_000)
    assert ours[16:] == theirs[16:]
    raw = RawBatch(theirs)
    raw.check()
    assert raw.is_control
    assert raw.is_transactional
    assert marker_type(raw) == ("commit" if commit else "abort")


def test_what_is_no_marker() -> None:
    with pytest.raises(BatchError, match="not a control batch"):
        marker_type(RawBatch(built()))
    with pytest.raises(BatchError, match="can't be read"):
        marker_type(RawBatch(patched(built(1), 21, ">h", 0x30)))
    other_type = bytearray(marker(True, 1, 0, 0, 0))
    other_type[61 + 7 + 1] = 7
    with pytest.raises(BatchError, match="can't be read"):
        marker_type(RawBatch(other_type))


@pytest.mark.parametrize("codec", range(5))
def test_aiokafka_reads_ours_and_we_read_theirs(codec: int) -> None:
    expected = samples()
    theirs = AiokafkaRecords(built(codec)).next_batch()
    assert theirs is not None
    assert theirs.validate_crc()
    assert [(r.key, r.value, r.timestamp, r.headers) for r in theirs] == expected
    builder = DefaultRecordBatchBuilder(2, codec, 1, 7, 1, 42, 1 << 20)
    for i, (key, value, timestamp, headers) in enumerate(expected):
        builder.append(i, timestamp, key, value, headers)
    raw = RawBatch(bytes(builder.build()))
    raw.check(client=True)
    assert (raw.producer_id, raw.producer_epoch, raw.base_sequence, raw.is_transactional) == (7, 1, 42, True)
    assert [(r.key, r.value, r.timestamp_ms, list(r.headers)) for r in records(raw)] == expected


@pytest.mark.parametrize("codec", [0, 1])  # its other codecs need packages of their own
def test_kafka_python_reads_ours(codec: int) -> None:
    theirs = KafkaPythonRecords(built(codec)).next_batch()
    assert theirs.validate_crc()
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in theirs] == samples()


def send_as_it_is(host: str, port: int, topic: str, batch: bytes) -> None:
    """Produce one batch whose bytes are given to partition 0 of a topic."""
    partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
    frame = encode_request(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[data]), 7, 1, "test")
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        _, response = decode_response(ProduceResponse, connection.recv(size, socket.MSG_WAITALL), 7)
    assert response.responses[0].partition_responses[0].error_code == 0


def test_librdkafka_reads_ours() -> None:
    # Through the mock broker that comes with librdkafka: it stores what it is sent and hands it to a real consumer.
    holder = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "replaced", "log_level": 0})
    holder.list_topics("ours", timeout=30)
    (broker,) = holder.list_topics(timeout=30).brokers.values()
    for codec in range(5):
        send_as_it_is(broker.host, broker.port, "ours", built(codec))
    consumer = Consumer({"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "unused", "check.crcs": True})
    consumer.assign([TopicPartition("ours", 0, 0)])
    expected = samples() * 5
    found: list[Sample] = []
    while len(found) < len(expected):
        messages = consumer.consume(len(expected), timeout=30)
        assert messages, f"{len(found)} of {len(expected)} records came"
        for message in messages:
            assert message.error() is None
            found.append((message.key(), message.value(), message.timestamp()[1], message.headers() or []))
    consumer.close()
    assert found == expected


@pytest.mark.parametrize(
    ("at", "form", "value", "code", "words"),
    [
        (21, ">h", 5, 76, "codec"),
        (21, ">h", 7, 76, "codec"),
        (21, ">h", 0x80, 87, "attribute bits"),
        (21, ">h", -0x8000, 87, "attribute bits"),
        (21, ">h", 0x40, 87, "attribute bits"),
        (21, ">h", 0x08, 32, "LogAppendTime"),
        (21, ">h", 0x20, 87, "control"),
        (21, ">h", 0x10, 87, "producer"),
        (23, ">i", 100, 87, "count"),
        (23, ">i", 98, 87, "count"),
        (23, ">i", -1, 87, "count"),
        (23, ">i", 2**31 - 1, 87, "count"),
        (57, ">i", 0, 87, "count"),
        (57, ">i", -1, 87, "count"),
        (57, ">i", 2**31 - 1, 87, "count"),
        (43, ">q", 5, 87, "producer"),
        (43, ">q", -2, 87, "producer"),
    ],
)
def test_what_a_client_may_not_send(at: int, form: str, value: int, code: int, words: str) -> None:
    with pytest.raises(BatchError, match=words) as caught:
        RawBatch(patched(built(), at, form, value)).check(client=True)
    assert caught.value.code == code


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (0, -1), (-5, -5)])
def test_a_producer_id_needs_epoch_and_sequence(epoch: int, sequence: int) -> None:
    with pytest.raises(BatchError, match="producer"):
        RawBatch(built(producer_id=1, producer_epoch=epoch, base_sequence=sequence)).check(client=True)


def test_without_a_producer_id_the_sequence_means_nothing() -> None:
    RawBatch(patched(built(), 53, ">i", 0)).check(client=True)


def test_a_count_that_the_bytes_cannot_hold() -> None:
    lying = patched(patched(built(), 23, ">i", 999_999), 57, ">i", 1_000_000)
    with pytest.raises(BatchError, match="count"):
        RawBatch(lying).check()


@pytest.mark.parametrize("byte", [17, 21, 22, 23, 30, 40, 50, 60, 61, 100, -1])
def test_any_changed_byte_breaks_the_checksum(byte: int) -> None:
    batch = bytearray(built())
    batch[byte] ^= 0x01
    with pytest.raises(BatchError, match="checksum") as caught:
        RawBatch(batch).check()
    assert caught.value.code == 2


def test_what_the_log_may_hold_and_a_client_may_not_send() -> None:
    holes = RawBatch(JAVA["v2-none-holes"])
    empty = RawBatch(patched(built()[:8] + struct.pack(">i", 49) + built()[12:HEADER_SIZE], 57, ">i", 0))
    stamped = RawBatch(JAVA["v2-none-appendtime"])
    control = RawBatch(marker(True, 1, 0, 0, 0))
    horizon = RawBatch(patched(built(), 21, ">h", 0x40))
    for raw in (holes, empty, stamped, control, horizon, RawBatch(JAVA["v1-gzip"])):
        raw.check()
        with pytest.raises(BatchError):
            raw.check(client=True)
    assert records(empty) == []


def test_offsets_in_the_log_are_not_negative() -> None:
    negative = RawBatch(patched(built(), 0, ">q", -1, crc=False))
    negative.check(client=True)
    with pytest.raises(BatchError, match="offset"):
        negative.check()


def test_size_limit() -> None:
    raw = RawBatch(built())
    raw.check(max_bytes=len(raw), client=True)
    with pytest.raises(BatchError, match="larger") as caught:
        raw.check(max_bytes=len(raw) - 1)
    assert caught.value.code == 10


@pytest.mark.parametrize(
    ("at", "form", "value", "words"),
    [(8, ">i", -1, "length"), (8, ">i", 13, "length"), (8, ">i", 48, "length"), (16, ">b", 3, "magic"),
     (16, ">b", -1, "magic"), (8, ">i", 2**31 - 1, "cut off")],
)  # fmt: skip
def test_garbage_is_no_batch(at: int, form: str, value: int, words: str) -> None:
    with pytest.raises(BatchError, match=words):
        RawBatch(patched(built(), at, form, value))


def test_split_leaves_out_a_cut_batch_only() -> None:
    one, two = built(0, 3), built(4, 5)
    for length in range(len(one) + len(two) + 1):
        found = split((one + two)[:length])
        assert [bytes(raw) for raw in found] == [one, two][: (length >= len(one)) + (length >= len(one) + len(two))]
    with pytest.raises(BatchError, match="magic"):
        split(one + bytes(8) + b"\x00\x00\x01\x00" + b"\xff" * 100)
    assert split(b"") == []


def test_raw_batches_keep_their_buffer_alive() -> None:
    found = split(bytearray(built()) + bytearray(built(1)))
    assert [len(records(raw)) for raw in found] == [100, 100]
    assert bytes(found[0].payload) == built()[HEADER_SIZE:]
    with pytest.raises(TypeError):
        memoryview(found[0])[0] = 1


def test_builder_is_full_when_the_next_record_does_not_fit() -> None:
    builder = BatchBuilder(max_bytes=HEADER_SIZE + 30)
    assert builder.append(None, b"x" * 1000, 0)  # the first is always taken
    assert not builder.append(None, b"", 0)
    builder.clear()
    assert builder.count == 0
    while builder.append(None, b"12345", 0):
        pass
    assert builder.count == 2
    assert builder.size_in_bytes == len(builder.build()) <= builder.max_bytes


def test_builder_refuses() -> None:
    builder = BatchBuilder()
    with pytest.raises(ValueError, match="at least one"):
        builder.build()
    with pytest.raises(ValueError, match="negative"):
        builder.append(b"k", b"v", -2)
    assert BatchBuilder(any_time=True).append(b"k", b"v", -2)
    with pytest.raises(TypeError):
        builder.append("k", b"v", 0)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(TypeError):
        builder.append(b"k", b"v", 0, [("h", "text")])  # type: ignore[list-item]
    assert builder.count == 0
    for codec in (-1, 5):
        with pytest.raises(ValueError, match="codec"):
            BatchBuilder(codec)


def test_columns_give_the_same_batch_as_records() -> None:
    plain = BatchBuilder()
    keys = [b"k%d" % i for i in range(50)]
    for i, key in enumerate(keys):
        plain.append(key if i % 2 else None, b"", i)
    columns = BatchBuilder()
    starts = np.concatenate([[0], np.cumsum([len(key) for key in keys])])
    taken = columns.append_columns(
        timestamps=np.arange(50).data,
        key_data=np.frombuffer(b"".join(keys), np.uint8).data,
        key_starts=starts.data,
        key_null=(np.arange(50) % 2 == 0).data,
        value_data=np.empty(0, np.uint8).data,
        value_starts=np.zeros(51, np.int64).data,
    )
    assert taken == 50
    assert columns.build() == plain.build()


@pytest.mark.parametrize(("at_most", "taken"), [(-1, 4), (0, 0), (1, 1), (3, 3), (4, 4), (5, 4)])
def test_no_more_records_of_columns_are_taken_than_asked_for(at_most: int, taken: int) -> None:
    builder = BatchBuilder()
    assert builder.append_columns(timestamps=np.arange(5).data, first=1, at_most=at_most) == taken
    assert builder.count == taken


def test_a_bad_time_behind_the_records_that_are_asked_for_is_no_matter_yet() -> None:
    builder = BatchBuilder()
    times = np.array([1, 2, -9])
    assert builder.append_columns(timestamps=times.data, at_most=2) == 2
    with pytest.raises(ValueError):
        builder.append_columns(timestamps=times.data, first=1, at_most=2)


def test_columns_that_do_not_fit_each_other() -> None:
    def check(words: str, **columns: Any) -> None:
        with pytest.raises(ValueError, match=words):
            BatchBuilder().append_columns(**({"timestamps": np.zeros(2, np.int64)} | columns))

    data, starts = np.zeros(4, np.uint8), np.array([0, 2, 4])
    check("longer", value_data=data, value_starts=starts[:2])
    check("outside", value_data=data, value_starts=starts + 1)
    check("outside", value_data=data, value_starts=starts - 1)
    check("go down", value_data=data, value_starts=np.array([0, 4, 2]))
    check("8 bytes", value_data=data, value_starts=starts.astype(np.int32))
    check("as long", value_data=data, value_starts=starts, value_null=np.zeros(1, bool))
    check("first", first=3)
    check("negative", timestamps=np.array([0, -2]))
