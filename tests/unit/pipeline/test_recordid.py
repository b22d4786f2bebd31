"""Ids that a producer gives: to records without one, and to no others; UUIDs of version 7."""

from __future__ import annotations

import itertools
import time
import uuid

import numpy as np
import pytest

from penstock.config import ConfigError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.outgoing import Lists, headers_of
from penstock.pipeline.clients.producerrecord import Headers
from penstock.pipeline.clients.recordid import RecordId, new_record_id, record_ids
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch, Record, records

KEYS = [b"k0", None, b"", b"k3", None]
HEADERS: list[Headers] = [
    [("a", b"1")], [], [("id", b"mine"), ("a", None)], [("id", b"old"), ("id", b"")], [("id", None), ("ids", b"x")]
]  # fmt: skip
VALUES = [b"v%d" % n for n in range(5)]


def test_ids_are_uuids_of_version_7_and_no_two_are_one() -> None:
    before_ms = time.time_ns() // 1_000_000
    found = [new_record_id() for _ in range(300)] + [row.tobytes() for row in record_ids(300)]
    after_ms = time.time_ns() // 1_000_000
    parsed = [uuid.UUID(word.decode()) for word in found]
    assert [str(one).encode() for one in parsed] == found
    assert {(one.version, one.variant) for one in parsed} == {(7, uuid.RFC_4122)}
    assert all(before_ms <= one.int >> 80 <= after_ms for one in parsed)
    assert len(set(found)) == 600
    ones = np.bitwise_or.reduce([np.frombuffer(one.bytes[6:], np.uint8) for one in parsed])
    assert bytes(ones) == b"\x7f" + b"\xff" + b"\xbf" + b"\xff" * 7  # every other bit is dice


def test_keys_that_are_none_become_ids_one_by_one_and_in_columns() -> None:
    giver = RecordId("key")
    for had, headers, row in zip(KEYS, HEADERS, opened(giver, list(KEYS), HEADERS), strict=True):
        key, same, word = giver.give(had, headers)
        assert (same, row.headers, word) == (headers, tuple(headers), key)
        assert (key, row.key) == (had, had) if had else is_id(key) and is_id(row.key)


def test_headers_that_lack_become_ids_one_by_one_and_in_columns() -> None:
    giver = RecordId("header:id")
    for had, headers, row in zip(KEYS, HEADERS, opened(giver, list(KEYS), HEADERS), strict=True):
        key, more, word = giver.give(had, headers)
        assert (key, row.key) == (had, had)
        if dict(headers).get("id"):  # the last one counts
            assert (tuple(more), row.headers, word) == (tuple(headers), tuple(headers), dict(headers)["id"])
        else:
            assert tuple(more) == (*headers, ("id", word)) and is_id(word)
            assert row.headers[:-1] == tuple(headers) and row.headers[-1][0] == "id" and is_id(row.headers[-1][1])


def is_id(word: bytes | None) -> bool:
    return word is not None and uuid.UUID(word.decode()).version == 7


@pytest.mark.parametrize("where", ["key", "header:id"])
def test_what_has_an_id_is_left_as_it_is(where: str) -> None:
    giver = RecordId(where)
    once = giver.give_all(Lists(list(KEYS), VALUES, range(5), HEADERS))
    assert giver.give_all(once) is once


def test_records_without_headers_get_one() -> None:
    found = opened(RecordId("header:id"), list(KEYS), None)
    assert [(row.key, [name for name, _ in row.headers]) for row in found] == [(key, ["id"]) for key in KEYS]
    assert len({row.headers for row in found}) == 5


def test_where_no_id_can_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="is neither `key` nor `header:NAME`"):
        properties.load(properties.PRODUCER, {"record_id": "json:id"})


def opened(giver: RecordId, keys: list[bytes | None], headers: list[Headers] | None) -> list[Record]:
    """Records that got ids, as a reader has them."""
    columns = giver.give_all(Lists(keys, VALUES, range(5), headers))
    header_data, header_starts = headers_of(columns)
    assert all(low <= high for low, high in itertools.pairwise(columns.key_starts))
    builder = BatchBuilder()
    taken = builder.append_columns(
        timestamps=columns.timestamps.data,
        key_data=columns.key_data.data,
        key_starts=columns.key_starts.data,
        key_null=columns.key_null.data,
        value_data=columns.value_data.data,
        value_starts=columns.value_starts.data,
        value_null=columns.value_null.data,
        header_data=None if header_data is None else header_data.data,
        header_starts=None if header_starts is None else header_starts.data,
    )
    assert taken == 5
    return records(RawBatch(builder.build()))
