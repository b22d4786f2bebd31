"""Ids for records that have none, given before the first try, so that whoever drops repeats by id knows every later one.

An id is a UUID of version 7 as text (RFC 9562): unique without asking anybody, and in order of time, about. A producer's own
resends never repeat a record. An application's do, after a failure that leaves a record's fate open: it sends the record
with the id that it had (`Delivery.record_id`, `BulkDelivery.columns`). One that has to know after a restart what it had sent
takes ids itself (`new_record_id`) and writes them down before it sends.
"""

from __future__ import annotations

import binascii
import os
import time
import uuid

import numpy as np
import numpy.typing as npt

from penstock.pipeline.clients.outgoing import Columns, headers_of
from penstock.pipeline.clients.producerrecord import Headers
from penstock.pyx.record.builder import BatchBuilder, pack_headers
from penstock.pyx.record.columns import Column, decode
from penstock.pyx.record.rawbatch import RawBatch

ID_BYTES = 36
VERSION_7, VARIANT = 0x70, 0x80
GROUPS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))  # of hexadecimal digits, a dash between


class RecordId:
    """Where records have their ids: `key`, or `header:NAME`, of which the last counts. An empty one is none, as in dedupe."""

    def __init__(self, where: str) -> None:
        kind, _, name = where.partition(":")
        self._header = name if kind == "header" else None

    def give(self, key: bytes | None, headers: Headers) -> tuple[bytes | None, Headers, bytes]:
        """A record's key and headers with an id, and that id."""
        if self._header is None:
            key = key or new_record_id()
            return key, headers, key
        last = [value for name, value in headers if name == self._header][-1:]
        if last and last[0]:
            return key, headers, last[0]
        made = new_record_id()
        return key, (*headers, (self._header, made)), made

    def give_all(self, columns: Columns) -> Columns:
        """Records that all have an id. Raises ValueError for headers that are none."""
        if self._header is None:
            missing = _missing(Column(columns.key_data, columns.key_starts, columns.key_null))
            return WithIds(columns, missing, None) if missing.any() else columns
        missing = self._without_header(columns, self._header)
        return WithIds(columns, missing, self._header) if missing.any() else columns

    def _without_header(self, columns: Columns, name: str) -> npt.NDArray[np.bool_]:
        """Which records lack the header: their headers are opened as any reader opens them."""
        header_data, header_starts = headers_of(columns)
        count = len(columns.timestamps)
        if header_data is None or header_starts is None or count == 0:
            return np.ones(count, np.bool_)
        builder = BatchBuilder(0, max_bytes=(1 << 31) - 1)
        builder.append_columns(
            timestamps=columns.timestamps.data, header_data=header_data.data, header_starts=header_starts.data
        )
        return _missing(decode([RawBatch(builder.build())]).header_column(name))


class WithIds:
    """Columns whose `missing` records have got an id: a key, or one more `header`."""

    def __init__(self, columns: Columns, missing: npt.NDArray[np.bool_], header: str | None) -> None:
        self.timestamps = columns.timestamps
        self.value_data, self.value_starts, self.value_null = (
            columns.value_data, columns.value_starts, columns.value_null
        )  # fmt: skip
        self.key_data, self.key_starts, self.key_null = columns.key_data, columns.key_starts, columns.key_null
        header_data, header_starts = headers_of(columns)
        ids = record_ids(int(missing.sum()))
        if header is None:
            self.key_data, self.key_starts = _appended(columns.key_data, columns.key_starts, missing, ids)
            self.key_null = columns.key_null & ~missing
        else:
            if header_data is None or header_starts is None:
                header_data, header_starts = np.zeros(0, np.uint8), np.zeros(len(missing) + 1, np.int64)
            before = np.frombuffer(pack_headers([(header, bytes(ID_BYTES))])[:-ID_BYTES], np.uint8)
            packed = np.hstack([np.broadcast_to(before, (len(ids), len(before))), ids])
            header_data, header_starts = _appended(header_data, header_starts, missing, packed)
        if header_data is not None and header_starts is not None:
            self.header_data, self.header_starts = header_data, header_starts


def new_record_id() -> bytes:
    """One id."""
    random = int.from_bytes(os.urandom(10), "big")
    fields = time.time_ns() // 1_000_000 << 80 | random
    fields = fields & ~(0xF << 76) & ~(0x3 << 62) | VERSION_7 >> 4 << 76 | VARIANT >> 6 << 62
    return str(uuid.UUID(int=fields)).encode()


def record_ids(count: int) -> npt.NDArray[np.uint8]:
    """Many ids, a row each."""
    raw = np.frombuffer(bytearray(os.urandom(16 * count)), np.uint8).reshape(count, 16)
    raw[:, :6] = np.frombuffer((time.time_ns() // 1_000_000).to_bytes(6, "big"), np.uint8)
    raw[:, 6] = raw[:, 6] & 0x0F | VERSION_7
    raw[:, 8] = raw[:, 8] & 0x3F | VARIANT
    digits = np.frombuffer(binascii.hexlify(raw.tobytes()), np.uint8).reshape(count, 32)
    text = np.full((count, ID_BYTES), ord("-"), np.uint8)
    for group, (first, end) in enumerate(GROUPS):
        text[:, first + group : end + group] = digits[:, first:end]
    return text


def _missing(ids: Column) -> npt.NDArray[np.bool_]:
    missing: npt.NDArray[np.bool_] = ids.null | (np.diff(ids.starts) == 0)
    return missing


def _appended(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_], more: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Byte strings of which the chosen ones end with a row more each."""
    length = more.shape[1]
    grown = np.insert(data, np.repeat(starts[1:][chosen], length), more.reshape(-1))
    shift = np.concatenate([np.zeros(1, np.int64), np.cumsum(chosen, dtype=np.int64) * length])
    return grown, starts + shift
