"""The cleaner's table of keys: bounded memory, no key lost, published values of its hash."""

from __future__ import annotations

import random

import pytest

from penstock.pyx.compaction.offsetmap import KeyOffsets, siphash

# SipHash-2-4 with 128 bits of output, as its authors publish it: secret 00..0f, data 00, 01, ... of that length.
PUBLISHED = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
}


# The same with 64 bits.
PUBLISHED_64 = {
    0: "310e0edd47db6f72",
    1: "fd67dc93c539f874",
    2: "5a4fa9d909806c0d",
    3: "2d7efbd796666785",
    7: "37d1018bf50002ab",
    8: "6224939a79f5f593",
}


@pytest.mark.parametrize("length", PUBLISHED_64)
def test_the_shorter_hash_is_siphash(length: int) -> None:
    assert siphash(bytes(range(16)), bytes(range(length)), 8).hex() == PUBLISHED_64[length]


@pytest.mark.parametrize("length", PUBLISHED)
def test_the_hash_is_siphash(length: int) -> None:
    assert siphash(bytes(range(16)), bytes(range(length))).hex() == PUBLISHED[length]


def test_each_key_has_its_newest_offset_while_the_table_grows() -> None:
    table, model = KeyOffsets(10 << 20), {}
    chance = random.Random(20130101)
    for offset in range(60_000):
        key = b"%d" % chance.randrange(20_000)
        assert table.put(key, offset)
        model[key] = offset
    assert len(table) == len(model)
    assert all(table.get(key) == offset for key, offset in model.items())
    assert table.get(b"nothing") == -1
    table.clear()
    assert (len(table), table.size_bytes, table.get(b"1")) == (0, 0, -1)


@pytest.mark.parametrize("buffer_bytes", [1, 24, 48, 240, 24_000, 1 << 20, 9 << 19])
def test_memory_is_bounded_and_known_keys_are_taken_when_it_is_full(buffer_bytes: int) -> None:
    table = KeyOffsets(buffer_bytes, 0.9)
    taken = 0
    while table.put(b"%d" % taken, taken):
        taken += 1
        assert table.size_bytes <= max(buffer_bytes * 8 // 9, 48)
    assert taken == len(table) > 0
    if buffer_bytes >= 24_000:
        assert taken * 24 > 0.75 * buffer_bytes
    assert all(table.put(b"%d" % key, 1000 + key) for key in range(taken))
    assert all(table.get(b"%d" % key) == 1000 + key for key in range(taken))
    assert table.get(b"%d" % taken) == -1
