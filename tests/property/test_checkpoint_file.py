"""`penstock-checkpoints`, whatever becomes of its bytes: what was written is read, or nothing is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.pyx.log.checkpoint import (
    HIGH_WATERMARKS,
    KAFKAS,
    Offsets,
    format_checkpoint,
    format_line,
    format_offsets,
    parse_checkpoint,
    parse_offsets,
)

OFFSETS = st.integers(0, (1 << 63) - 1)
KEYS = st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, (1 << 31) - 1))
KNOWN = st.builds(
    Offsets,
    st.one_of(st.none(), st.binary(min_size=16, max_size=16)),
    OFFSETS,
    OFFSETS,
    st.one_of(st.just(-1), OFFSETS),
    st.one_of(st.just(-1), OFFSETS),
    OFFSETS,
    OFFSETS,
    st.one_of(st.just(-1), OFFSETS),
    OFFSETS,
)
SUM = st.one_of(st.just("-"), st.integers(0, (1 << 32) - 1).map("{:08x}".format))
NOT_THERE = "-", "-"
SUMS = st.tuples(SUM, SUM)
# The file of high watermarks is named only where it is, or was.
FILES = st.tuples(
    st.dictionaries(KEYS, KNOWN, max_size=5),
    st.fixed_dictionaries(
        {name: SUMS for name in KAFKAS if name != HIGH_WATERMARKS},
        optional={HIGH_WATERMARKS: SUMS.filter(lambda sums: sums != NOT_THERE)},
    ),
)


def written(offsets: dict[tuple[str, int], Offsets], sums: dict[str, tuple[str, str]]) -> bytes:
    return format_offsets((format_line(key, known) for key, known in offsets.items()), sums)


@given(FILES)
def test_what_is_written_is_read(file: tuple[dict[tuple[str, int], Offsets], dict[str, tuple[str, str]]]) -> None:
    assert parse_offsets(written(*file)) == file


@given(FILES)
def test_high_watermarks_that_are_not_there_are_not_named(
    file: tuple[dict[tuple[str, int], Offsets], dict[str, tuple[str, str]]],
) -> None:
    offsets, sums = file
    sums.pop(HIGH_WATERMARKS, None)
    assert written(offsets, {**sums, HIGH_WATERMARKS: NOT_THERE}) == written(offsets, sums)


@given(FILES, st.data())
def test_damage_is_refused(
    file: tuple[dict[tuple[str, int], Offsets], dict[str, tuple[str, str]]], data: st.DataObject
) -> None:
    whole = written(*file)
    first = data.draw(st.integers(0, len(whole)))
    last = data.draw(st.integers(first, len(whole)))
    damaged = whole[:first] + data.draw(st.binary(max_size=20)) + whole[last:]
    try:
        found = parse_offsets(damaged)
    except ValueError as error:
        assert str(error)
        return
    assert damaged == whole and found == file


@given(st.dictionaries(KEYS, OFFSETS, max_size=5), st.data())
def test_kafkas_file_is_read_or_refused(offsets: dict[tuple[str, int], int], data: st.DataObject) -> None:
    whole = format_checkpoint(offsets)
    assert parse_checkpoint(whole) == offsets
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        parse_checkpoint(whole[:cut])
    except ValueError as error:
        assert str(error)
        return
    raise AssertionError(f"{whole[:cut]!r} is not whole")
