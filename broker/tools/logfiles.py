"""The files of a log folder, read one by one for people: what `penstock log dump` shows. Nothing here writes.

Every reader gives rows (dicts) in the order of the file; damage is a last row with `damage`, and never an exception.
The formats are Kafka's: see segment.pxd, index.pxd, timeindex.pxd, txnindex.pxd, producerstate.pxd; ours is checks.pxd.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from penstock.broker.coordination import statelog
from penstock.pyx.log.logmanager import room_end
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import BatchError, RawBatch, count_records, marker_type, records
from penstock.pyx.wire.message import WireError

Row = dict[str, Any]
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
INDEX, TIMEINDEX, TXNINDEX = struct.Struct(">iI"), struct.Struct(">qi"), struct.Struct(">hqqqq")
SNAPSHOT_HEAD, SNAPSHOT, SEQUENCE = struct.Struct(">hIi"), struct.Struct(">qhiqiqiq"), struct.Struct(">qhiqiq")
CHECKS, SUM = struct.Struct(">hIqqqqq"), struct.Struct(">qI")
FOLLOWING = struct.Struct(">q")
CHECKS_CRC_FROM = 6
CONTROL_KEY = struct.Struct(">hh")
KRAFT_CONTROL = {2: "leader change", 3: "snapshot header", 4: "snapshot footer", 5: "kraft version", 6: "kraft voters"}
"""Types of control records that KRaft's own log has besides the two markers."""
KRAFT_SNAPSHOT = re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint")
OFFSET_MAX = (1 << 63) - 1
CHUNK_BYTES = 1 << 20
SEGMENT = re.compile(r"[0-9]{20}\.log")
SUMMED = ("index", "timeindex", "txnindex")
FORMATS = ("not known", "2", "some of 0 or 1")
"""What a `.checks` says of the batches of a segment (segment.pxd); version 1 says nothing."""
CHECKS_MORE = {1: 0, 2: 1, 3: 9}
"""Bytes of a `.checks` after its sums, by version: formats, then the base offset of the next segment (checks.pxd)."""
SNAPSHOT_FIELDS = (
    "producer_id", "producer_epoch", "last_sequence", "last_offset", "offset_delta", "timestamp_ms",
    "coordinator_epoch", "txn_first_offset",
)  # fmt: skip
DECODERS: dict[str, Callable[[bytes, bytes | None, int], statelog.Loaded | None]] = {
    "__consumer_offsets": statelog.decode_group_record,
    "__transaction_state": statelog.decode_transaction_record,
}


def read_file(path: Path, *, with_records: bool = False) -> Iterator[Row]:
    """The rows of any file of a log folder, by its name. Raises OSError; ValueError for a file of another kind."""
    is_log = path.suffix in (".log", ".deleted", ".cleaned", ".swap") and not path.name.endswith(".checks.swap")
    if is_log or KRAFT_SNAPSHOT.fullmatch(path.name):
        yield from batches(path, with_records)
    elif path.suffix == ".index":
        yield from _entries(path, INDEX, ("relative_offset", "position"))
    elif path.suffix == ".timeindex":
        yield from _entries(path, TIMEINDEX, ("timestamp_ms", "relative_offset"))
    elif path.suffix == ".txnindex":
        names = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
        yield from _entries(path, TXNINDEX, names)
    elif path.suffix == ".snapshot":
        yield from _producers(path, SNAPSHOT)
    elif path.suffix == ".sequences":
        yield from _producers(path, SEQUENCE)
    elif path.suffix == ".checks" or path.name.endswith(".checks.swap"):
        yield _checks(path)
    elif path.name.endswith(("checkpoint", "checkpoints")) or path.suffix in (".properties", ".metadata"):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            yield {"line": number, "text": line}
    else:
        raise ValueError(f"`{path.name}` is none of a log folder's files")


def batches(path: Path, with_records: bool) -> Iterator[Row]:
    """Every batch of a segment, checked; with its records if asked for. Raises OSError."""
    decode = DECODERS.get(path.resolve().parent.name.rpartition("-")[0])
    expected, limit = _bounds(path)
    # Not mapped: a broker that runs gives room ahead back, and a page that is gone ends a process.
    with path.open("rb", buffering=0) as file:
        fd, position = file.fileno(), 0
        size = os.fstat(fd).st_size
        while position < size:
            try:
                raw = RawBatch(_batch_bytes(fd, position, size))
                raw.check()
                row = _batch(raw, position)
                opened = records(raw) if with_records and not raw.is_control else None
            except BatchError as error:
                if size == room_end(position) and _is_zero(fd, position, size):
                    return  # Room ahead for appends, of a broker that runs or was killed.
                yield {"position": position, "damage": f"{error}; {size - position} bytes from here on"}
                return
            if opened is not None:
                row["records"] = [_record(record, decode) for record in opened]
            yield row
            # No checksum covers the base offset; older formats may have the last one there.
            if (raw.base_offset if raw.magic >= 2 else raw.last_offset) < expected:
                yield {"position": position, "damage": f"offset {expected} or more was to come, or the batch before lies"}
            elif raw.last_offset >= limit:
                yield {"position": position, "damage": f"its offsets go beyond {limit - 1}, where the segment ends"}
            expected = raw.last_offset + 1
            position += raw.size_in_bytes


def _bounds(path: Path) -> tuple[int, int]:
    """The least offset of a segment, and where the next one begins."""
    if not SEGMENT.fullmatch(path.name):
        return 0, OFFSET_MAX
    later = (other for other in path.parent.glob("*.log") if SEGMENT.fullmatch(other.name) and other.name > path.name)
    return int(path.stem), next((int(other.stem) for other in sorted(later) if _has_bytes(other)), OFFSET_MAX)


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False  # Retention or compaction removed it just now.


def _batch_bytes(fd: int, position: int, end: int) -> bytes:
    """The bytes of the batch at a position of a file that ends there. Raises BatchError, OSError."""
    head = os.pread(fd, 12, position)
    length = struct.unpack_from(">i", head, 8)[0] if len(head) == 12 else 0
    if length < 14 or length + 12 > end - position:
        raise BatchError(f"no whole batch at position {position}", 2, -1)
    return os.pread(fd, 12 + length, position)


def _is_zero(fd: int, position: int, end: int) -> bool:
    """Whether a file has nothing but zeros in a range, or ends there by now."""
    while position < end:
        piece = os.pread(fd, min(CHUNK_BYTES, end - position), position)
        if piece.strip(b"\0"):
            return False
        position += len(piece) or end
    return True


def _batch(raw: RawBatch, position: int) -> Row:
    row: Row = {
        "position": position,
        "bytes": raw.size_in_bytes,
        "magic": raw.magic,
        "base_offset": raw.base_offset,
        "last_offset": raw.last_offset,
        "records": None,
        "codec": CODECS.get(raw.codec, str(raw.codec)),
        "max_timestamp_ms": raw.max_timestamp,
    }
    if raw.magic < 2:
        return {**row, "count": count_records(raw)}
    row |= {
        "count": raw.record_count,
        "leader_epoch": raw.leader_epoch,
        "producer_id": raw.producer_id,
        "producer_epoch": raw.producer_epoch,
        "base_sequence": raw.base_sequence,
        "transactional": raw.is_transactional,
        "control": _control(raw) if raw.is_control else None,
    }
    return row


def _control(raw: RawBatch) -> str:
    """What a control batch is for: its first record's key says the type, unless compaction kept its header alone. Raises
    BatchError."""
    first = next(iter(records(raw)), None)
    if first is None:
        return "emptied"
    if first.key is None or len(first.key) < CONTROL_KEY.size:
        return marker_type(raw)  # which says what is wrong
    (_, kind) = CONTROL_KEY.unpack_from(first.key)
    return KRAFT_CONTROL[kind] if kind in KRAFT_CONTROL else marker_type(raw)


def _record(record: Any, decode: Callable[[bytes, bytes | None, int], statelog.Loaded | None] | None) -> Row:
    row: Row = {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
        "value": record.value,
        "headers": list(record.headers),
    }
    if decode is not None and record.key is not None:
        try:
            loaded = decode(record.key, record.value, record.offset)
        except WireError as error:
            row["decoded"] = f"not readable: {error}"
        else:
            row["decoded"] = None if loaded is None else {"id": loaded.id, **_plain(loaded.record)}
    return row


def _plain(record: object) -> Row:
    fields = asdict(record) if is_dataclass(record) and not isinstance(record, type) else {"value": record}
    return {"kind": type(record).__name__, **fields}


def _entries(path: Path, entry: struct.Struct, names: tuple[str, ...]) -> Iterator[Row]:
    """The entries of an index. Kafka fills the rest of one that it writes with zeros."""
    data = path.read_bytes()
    whole = len(data) // entry.size * entry.size
    previous: tuple[int, ...] | None = None
    for at in range(0, whole, entry.size):
        values = entry.unpack_from(data, at)
        if at and not any(values):
            return
        yield dict(zip(names, values, strict=True))
        if previous is not None and entry is not TXNINDEX and values < previous:
            yield {"position": at, "damage": "the entries don't grow"}
            return
        previous = values
    if whole != len(data):
        yield {"position": whole, "damage": f"{len(data) - whole} bytes that are no entry"}


def _checks(path: Path) -> Row:
    data = path.read_bytes()
    before_formats = CHECKS.size + len(SUMMED) * SUM.size
    more = CHECKS_MORE.get(int.from_bytes(data[:2], "big"), 0)
    if not data or len(data) != before_formats + more:
        return {"position": 0, "damage": f"{len(data)} bytes are no checks of a segment"}
    version, crc, base_offset, size, max_timestamp_ms, its_offset, next_offset = CHECKS.unpack_from(data)
    if crc != crc32c(data[CHECKS_CRC_FROM:]):
        return {"position": 0, "damage": "the checksum is wrong"}
    row = {"version": version, "base_offset": base_offset, "log_bytes": size, "max_timestamp_ms": max_timestamp_ms}
    row |= {"max_timestamp_offset": its_offset, "next_offset": next_offset}
    for name, (n, checksum) in zip(SUMMED, SUM.iter_unpack(data[CHECKS.size : before_formats]), strict=True):
        row |= {f"{name}_bytes": n, f"{name}_crc32c": f"{checksum:08x}"}
    formats = data[before_formats] if more else 0
    row["formats"] = FORMATS[formats] if formats < len(FORMATS) else formats
    return row | ({"following": FOLLOWING.unpack_from(data, before_formats + 1)[0]} if more > 1 else {})


def _producers(path: Path, entry: struct.Struct) -> Iterator[Row]:
    data = path.read_bytes()
    if len(data) < SNAPSHOT_HEAD.size:
        yield {"position": 0, "damage": "shorter than its header"}
        return
    version, crc, expected = SNAPSHOT_HEAD.unpack_from(data)
    if crc != crc32c(data[6:]):
        yield {"position": 0, "damage": f"version {version}: the checksum is wrong"}
        return
    for number in range(expected):
        at = SNAPSHOT_HEAD.size + number * entry.size
        if at + entry.size > len(data):
            yield {"position": at, "damage": f"{expected - number} producers are missing"}
            return
        yield dict(zip(SNAPSHOT_FIELDS, entry.unpack_from(data, at), strict=False))
