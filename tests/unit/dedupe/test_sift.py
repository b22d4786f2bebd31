"""Which records of some batches go on."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.config import ConfigError
from penstock.dedupe import opening
from penstock.dedupe.ids import IdSource
from penstock.dedupe.opening import join, open_batches
from penstock.dedupe.sift import Rules, Sifted, WithoutId, sift
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pyx.ids.store import IdStore
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.columns import decode
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import RawBatch, records
from support.id_columns import add

LIMIT = 1 << 20
LAST_OFFSET_DELTA_AT = 23


@pytest.fixture
def store(tmp_path: Path) -> Iterator[IdStore]:
    made = IdStore(str(tmp_path / "ids"), 64 << 20, 1000)
    yield made
    made.close()


def batch(ids: Sequence[bytes | None], base_offset: int = 0, codec: int = 4, hole: int = 0, rot: bool = False) -> RawBatch:
    """A batch as a log has it; `hole` records were compacted away behind its last one."""
    builder = BatchBuilder(codec)
    for i, word in enumerate(ids):
        builder.append(word, b"value %d" % (base_offset + i), 1000 + base_offset + i)
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base_offset)
    struct.pack_into(">i", data, LAST_OFFSET_DELTA_AT, len(ids) - 1 + hole)
    if rot:
        data[61:] = bytes(byte ^ 0x55 for byte in data[61:])
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return RawBatch(bytes(data))


def message_set(key: bytes, base_offset: int) -> RawBatch:
    """One message of magic 1, as producers before KIP-98 sent it."""
    body = struct.pack(">bbqi", 1, 0, 77, len(key)) + key + struct.pack(">i", 3) + b"old"
    message = struct.pack(">I", zlib.crc32(body)) + body
    return RawBatch(struct.pack(">qi", base_offset, len(message)) + message)


def sifted(
    batches: Sequence[RawBatch],
    store: IdStore,
    position: int = 0,
    limit: int = LIMIT,
    without_id: WithoutId = "pass",
) -> Sifted:
    found = sift(batches, position, store, Rules(("events", 3), IdSource("key"), limit, without_id))
    assert found.read == found.written + found.dropped + found.set_aside
    assert found.written == sum(one.record_count for one in found.batches)
    return found


def test_records_without_an_id_are_set_aside_whatever_their_time(store: IdStore) -> None:
    builder = BatchBuilder(0, any_time=True)
    for far_ms in (-2, -(1 << 62), (1 << 63) - 1):
        builder.append(None, b"x", far_ms)
    found = sifted([RawBatch(builder.build())], store, without_id="quarantine")
    aside = [record.timestamp_ms for one in found.aside for record in records(one)]
    assert aside == [-2, -(1 << 62), (1 << 63) - 1]


def keys(batches: Sequence[RawBatch]) -> list[bytes | None]:
    return [record.key for one in batches for record in records(one)]


def test_repeats_within_a_batch_across_batches_and_in_the_store(store: IdStore) -> None:
    add(store, [b"known"], 1)
    found = sifted([batch([b"a", b"known", b"a"]), batch([b"a", b"b", None], 3), batch([b"known", b"b"], 6)], store)
    assert keys(found.batches) == [b"a", b"b", None]
    assert (found.read, found.dropped, found.without_id) == (8, 5, 1)
    assert len(found.batches) == 2  # nothing is left of the third


def test_a_batch_without_repeats_is_the_very_same(store: IdStore) -> None:
    given = [batch([b"a", None]), batch([b"b"], 2)]
    found = sifted(given, store)
    assert all(went is came for went, came in zip(found.batches, given, strict=True))


def test_ids_meet_across_groups(store: IdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "GROUP_BYTES", 1)  # each batch is opened alone
    found = sifted([batch([b"a", b"b"]), batch([b"b", b"a", b"c"], 2)], store)
    assert keys(found.batches) == [b"a", b"b", b"c"]


def test_corrupt_batches_are_set_aside_the_others_go_on(store: IdStore) -> None:
    given = [
        batch([b"a"]),
        batch([b"x", b"y"], 1, rot=True),
        batch([b"a", b"b"], 3),
        batch([b"z"], 5, codec=1, rot=True),
    ]
    found = sifted(given, store)
    assert keys(found.batches) == [b"a", b"b"]
    assert [one.base_offset for one in found.corrupt] == [1, 5]
    assert found.read == 3


def test_records_below_the_position_were_read_before(store: IdStore) -> None:
    found = sifted([batch([b"a", b"b", b"c"], 10), batch([b"a"], 13)], store, position=12)
    assert keys(found.batches) == [b"c", b"a"]
    assert found.read == 2


def test_a_corrupt_batch_below_the_position(store: IdStore) -> None:
    found = sifted([batch([b"a", b"b"], 10, rot=True), batch([b"c"], 12)], store, position=11)
    assert (keys(found.batches), len(found.corrupt)) == ([b"c"], 1)


def test_batches_with_holes_go_on_without_them(store: IdStore) -> None:
    (one,) = sifted([batch([b"a", b"b"], 5, hole=3)], store).batches
    assert (one.record_count, one.last_offset_delta) == (2, 1)


def test_old_messages_are_rebuilt(store: IdStore) -> None:
    found = sifted([message_set(b"old", 0), message_set(b"old", 1), batch([b"old", b"new"], 2)], store)
    assert keys(found.batches) == [b"old", b"new"]
    assert {one.magic for one in found.batches} == {2}
    assert found.dropped == 2


def test_what_the_output_cannot_take(store: IdStore) -> None:
    found = sifted([batch([b"%d" % i for i in range(100)], codec=0)], store, limit=500)
    assert len(found.batches) > 1
    assert max(one.size_in_bytes for one in found.batches) <= 500
    with pytest.raises(OperatorNeeded, match=r"max\.message\.bytes"):
        sifted([batch([b"x" * 600], codec=0)], store, limit=500)


def test_records_without_id_are_set_aside(store: IdStore) -> None:
    given = [batch([b"a", None, b"", b"a"], 10), batch([b""], 14), batch([b"b"], 15)]
    found = sifted(given, store, without_id="quarantine")
    assert keys(found.batches) == [b"a", b"b"]
    assert (found.read, found.dropped, found.without_id, found.set_aside) == (6, 1, 3, 3)
    aside = [record for one in found.aside for record in records(one)]
    assert [(record.key, record.value) for record in aside] == [
        (None, b"value 11"),
        (b"", b"value 12"),
        (b"", b"value 14"),
    ]
    assert dict(aside[0].headers) == {
        "topic": b"events",
        "partition": b"3",
        "offset": b"11",
        "reason": b"no id (id by key)",
    }


def test_large_records_without_id_are_batches_of_their_own(store: IdStore) -> None:
    builder = BatchBuilder(max_bytes=1 << 22)
    for size in (10, 600 << 10, 600 << 10, 10):
        builder.append(None, bytes(size), 1)
    found = sifted([RawBatch(builder.build())], store, limit=1 << 22, without_id="quarantine")
    assert [len(record.value or b"") for one in found.aside for record in records(one)] == [
        10,
        600 << 10,
        600 << 10,
        10,
    ]
    assert len(found.aside) == 4


def test_each_record_must_have_an_id_if_one_says_so(store: IdStore) -> None:
    sifted([batch([b"a", b"b"])], store, without_id="stop")
    with pytest.raises(OperatorNeeded, match="record at offset 12 has no id"):
        sifted([batch([b"c"], 10), batch([b"d", b"", None], 11)], store, without_id="stop")


def test_nothing_at_all(store: IdStore) -> None:
    found = sifted([], store)
    assert (found.batches, found.read, len(found.ids.null)) == ([], 0, 0)


def test_groups_keep_their_order_and_join_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "GROUP_BYTES", 200)
    given = [batch([b"%d" % i, None, b""], 3 * i) for i in range(10)]
    corrupt: list[RawBatch] = []
    groups = list(open_batches(given, corrupt))
    assert len(groups) > 1 and not corrupt
    assert [one for group, _ in groups for one in group] == given
    source = IdSource("key")
    joined, whole = join([source.column(columns) for _, columns in groups]), source.column(decode(given))
    assert joined.data.tobytes() == whole.data.tobytes()
    assert joined.starts.tolist() == whole.starts.tolist()
    assert joined.null.tolist() == whole.null.tolist()


def test_where_the_id_is() -> None:
    builder = BatchBuilder()
    builder.append(b"key", b"", 1, [("id", b"first"), ("id", b"last")])
    builder.append(None, b"", 1, [("id", None)])
    columns = decode([RawBatch(builder.build())])
    data, starts, null = IdSource("header:id").column(columns)
    assert (data.tobytes(), starts.tolist(), null.tolist()) == (b"last", [0, 4, 4], [False, True])
    assert IdSource("key").column(columns).null.tolist() == [False, True]
    builder.append(b"", b"", 1, [("id", b"")])
    columns = decode([RawBatch(builder.build())])
    assert IdSource("header:id").column(columns).null.tolist() == [False, True, True]
    assert IdSource("key").column(columns).null.tolist() == [False, True, True]


JSON_IDS: dict[bytes | None, bytes | None] = {
    b'{"id": "a"}': b"a",
    b' {"x": {"id": 1}, "id": "\\u00fc"}\n': "\u00fc".encode(),
    b'{"id": ""}': None,
    b'{"id": 17}': b"17",
    b'{"id": -0}': b"0",
    b'{"id": 1.50}': b"1.50",
    b'{"id": 12345678901234567.25}': b"12345678901234567.25",
    b'{"id": 1e400}': b"1e400",
    b'{"id": true}': None,
    b'{"id": false}': None,
    b'{"id": NaN}': None,
    b'{"id": Infinity}': None,
    b'{"id": -Infinity}': None,
    b'{"id": {"a": 1}}': None,
    b'{"id": "\\ud800"}': b"\xed\xa0\x80",
    b'{"id": null}': None,
    b'{"id": ["a"]}': None,
    b'{"ID": "a"}': None,
    b'["id"]': None,
    b'{"id": "a"': None,
    b'{"id": "\xff"}': None,
    b'{"id": ' + b"9" * 5000 + b"}": None,
    b"[" * 100_000: None,
    b"": None,
    None: None,
}


def test_an_id_in_a_field() -> None:
    builder = BatchBuilder(max_bytes=1 << 20)
    for value in JSON_IDS:
        assert builder.append(b"key", value, 1)
    raw = RawBatch(builder.build())
    data, starts, null = join([IdSource("json:id").column(decode([raw]))])
    found = [None if null[i] else data[starts[i] : starts[i + 1]].tobytes() for i in range(len(JSON_IDS))]
    assert found == list(JSON_IDS.values())
    data, starts, null = IdSource("json:id").column(decode([]))
    assert (len(data), starts.tolist(), len(null)) == (0, [0], 0)


@pytest.mark.parametrize(
    ("text", "value", "word"),
    [
        ("json:meta.id", b'{"meta": {"id": "a"}}', b"a"),
        ("json:meta.id", b'{"meta": {"id": 7}, "meta.id": "b"}', b"7"),
        ("json:`meta.id`", b'{"meta": {"id": 7}, "meta.id": "b"}', b"b"),
        ("json:`a``b`.c", b'{"a`b": {"c": "d"}}', b"d"),
        ("json:meta.id", b'{"meta": "id"}', None),
        ("json:meta.id", b'{"meta": [{"id": "a"}]}', None),
        ("json:meta.id", b'{"meta.id": "a"}', None),
        ("json:a.b.c", b'{"a": {"b": {"c": {}}}}', None),
        ("json:user,ts", b'{"user": "a,b", "ts": "c"}', b"3:a,b,1:c,"),
        ("json:user,ts", b'{"user": "a", "ts": "b,c"}', b"1:a,3:b,c,"),
        ("json:user,ts", b'{"user": "a", "ts": 1}', b"1:a,1:1,"),
        ("json:user, meta.ts", b'{"user": "a", "meta": {"ts": 1.50}}', b"1:a,4:1.50,"),
        ("json:user,ts", b'{"user": "a"}', None),
        ("json:user,ts", b'{"user": "a", "ts": ""}', None),
        ("json:user,ts", b'{"user": "a", "ts": true}', None),
    ],
)
def test_an_id_by_a_path_and_of_several_fields(text: str, value: bytes, word: bytes | None) -> None:
    builder = BatchBuilder()
    builder.append(b"key", value, 1)
    data, _, null = IdSource(text).column(decode([RawBatch(builder.build())]))
    assert (None if null[0] else data.tobytes()) == word


def test_a_store_knows_by_which_fields_its_ids_are() -> None:
    """One field in backquotes is the field that earlier versions took for a name with a dot."""
    texts = ["json:id", "json:`id`", "json:a.b", "json:`a.b`", "json:a,b", "json:b,a", "json:`a,b`", "json:`a`.`b`"]
    assert [str(IdSource(text)) for text in texts] == [
        *("id by json:id", "id by json:id", "id by json:`a`.`b`", "id by json:a.b"),
        *("id by json:`a`,`b`", "id by json:`b`,`a`", "id by json:a,b", "id by json:`a`.`b`"),
    ]


NO_IDS = ["", "value", "header", "header:", "json", "json:", "key:x", "KEY"]
NO_IDS += ["json:a..b", "json:.a", "json:a.", "json:a,", "json:,a", "json:a,a", "json:`a", "json:``", "json: "]


@pytest.mark.parametrize("text", NO_IDS)
def test_where_no_id_can_be(text: str) -> None:
    with pytest.raises(ConfigError, match=r"penstock\.dedupe\.id"):
        IdSource(text)
