"""What a consumer has fetched of a partition is given out once, in order, up to the first batch that can't be read."""

from __future__ import annotations

import contextlib
import copy
import pickle
import struct
import sys
from types import FrameType
from typing import Any

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import partitionbuffer
from penstock.pipeline.clients.fetcher import Fetched
from penstock.pipeline.clients.partitionbuffer import ConsumerRecord, CorruptBatchError, PartitionBuffer
from penstock.pyx.record import rawbatch
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import BatchError, RawBatch

TP = "t", 0
HEADER_BYTES = 61


def batch(base: int, count: int, spoilt: bool = False) -> RawBatch:
    builder = BatchBuilder()
    for i in range(count):
        builder.append(None, b"%d" % (base + i), 1)
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base)
    if spoilt:
        data[HEADER_BYTES:] = b"\xff" * (len(data) - HEADER_BYTES)
    return RawBatch(bytes(data))


def filled(position: int, *batches: RawBatch, next_offset: int) -> PartitionBuffer:
    buffer = PartitionBuffer(TP, position)
    buffer.add(Fetched(*TP, list(batches), next_offset))
    return buffer


def test_records_go_on_from_the_position_and_past_what_was_left_out() -> None:
    buffer = filled(3, batch(0, 5), next_offset=9)
    assert [r.offset for r in buffer.take_records(1)] == [3]
    assert (buffer.position, buffer.fetch_offset, buffer.is_empty) == (4, 9, False)
    assert [r.value for r in buffer.take_records(10)] == [b"4"]
    assert (buffer.position, buffer.is_empty) == (9, True)


def test_a_record_is_like_one_that_a_caller_makes() -> None:
    builder = BatchBuilder()
    builder.append(b"k", None, 7, [("h", b"x"), ("none", None)])
    (record,) = filled(0, RawBatch(builder.build()), next_offset=1).take_records(1)
    made = ConsumerRecord("t", 0, 0, 7, b"k", None, (("h", b"x"), ("none", None)))
    assert (record, {record}, repr(record), type(record)) == (made, {made}, repr(made), ConsumerRecord)
    assert [pickle.loads(pickle.dumps(record)), copy.deepcopy(record), record._replace(offset=0)] == [made] * 3


def test_records_are_made_without_a_call_of_python_code_for_each() -> None:
    calls: list[str] = []
    buffer = filled(0, batch(0, 1000), batch(1000, 1000), next_offset=2000)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        polled = buffer.take_records(300), buffer.take_records(2000)
    finally:
        sys.setprofile(None)
    assert [len(records) for records in polled] == [300, 1700]
    assert len(calls) < 100


def test_a_fetch_of_left_out_batches_alone_moves_the_position() -> None:
    assert filled(3, next_offset=7).position == 7


def test_columns_after_records_skip_what_was_given_out() -> None:
    buffer = filled(0, batch(0, 5), batch(5, 2), next_offset=7)
    assert len(buffer.take_records(2)) == 2
    polled = buffer.take_columns()
    assert polled is not None
    assert (polled.first, polled.columns.offsets.tolist()) == (2, [0, 1, 2, 3, 4, 5, 6])
    assert (buffer.position, buffer.take_columns()) == (7, None)


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_batch_that_cannot_be_read_stops_the_position_in_front_of_it(by_columns: bool) -> None:
    bad = batch(2, 3, spoilt=True)
    buffer = filled(0, batch(0, 2), bad, batch(5, 1), next_offset=6)
    given: list[int] = []
    while not buffer.is_empty:
        if by_columns:
            polled = buffer.take_columns()
            given += [] if polled is None else polled.columns.offsets.tolist()
        else:
            given += [r.offset for r in buffer.take_records(10)]
    assert (given, buffer.position) == ([0, 1], 2)
    error = buffer.error
    assert isinstance(error, CorruptBatchError)
    assert (error.offset, error.next_offset, error.raw) == (2, 5, bytes(bad))


def test_an_error_of_the_fetch_stays_behind_its_batches() -> None:
    gone = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t")
    buffer = PartitionBuffer(TP, 0)
    buffer.add(Fetched(*TP, [batch(0, 1)], 1, error=gone))
    buffer.add(Fetched(*TP, [], 1))
    assert ([r.offset for r in buffer.take_records(5)], buffer.error) == ([0], gone)


def test_bytes_that_are_no_batch_are_passed_by_one() -> None:
    buffer = PartitionBuffer(TP, 4)
    buffer.add(Fetched(*TP, [], 4, error=BatchError("no batch")))
    assert isinstance(buffer.error, CorruptBatchError)
    assert (buffer.error.next_offset, buffer.error.raw) == (5, None)


def test_a_signal_handler_that_raises_as_a_batch_is_opened_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = rawbatch.records_as
    fails = [True, False, True, False]

    def interrupted(*given: Any) -> Any:
        found = opened(*given)
        if fails.pop(0):
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(partitionbuffer, "records_as", interrupted)
    buffer = filled(0, batch(0, 3), batch(3, 3), next_offset=6)
    got: list[int] = []
    while not buffer.is_empty:
        with contextlib.suppress(KeyboardInterrupt):
            got += [record.offset for record in buffer.take_records(3)]
    assert got == [*range(6)]
