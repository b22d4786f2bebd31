"""Every message at every version: what is written is read back, and bad bytes are refused, never worse."""

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.pyx.wire import codegen, messages, schema
from penstock.pyx.wire.header import decode_request
from penstock.pyx.wire.message import Message, WireError

APIS = Path(codegen.__file__).with_name("apis")
SCHEMAS = {m.root.name: m for path in sorted(APIS.glob("*.api")) for m in schema.parse(path)}
CASES = [
    pytest.param(name, version, id=f"{name}-v{version}")
    for name, m in SCHEMAS.items()
    for version in range(m.root.versions.first, m.root.versions.last + 1)
]
QUICK = settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=200),
    "records": st.binary(max_size=200),
    "uuid": st.binary(min_size=16, max_size=16),
    "uint16": st.integers(0, (1 << 16) - 1),
    "float64": st.floats(allow_nan=False),
    **{name: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for name, bits in BITS.items()},
}


@cache
def values(message_name: str, struct_name: str, version: int) -> st.SearchStrategy[Any]:
    """Instances of one struct of a message with values in the fields that `version` has."""
    message = SCHEMAS[message_name]
    top = getattr(messages, message_name)
    if struct_name == message_name:
        made, struct = top, message.root
    else:
        made, struct = getattr(top, struct_name), message.structs[struct_name]
    fields = {}
    for field in struct.fields:
        if version not in field.versions:
            continue
        one = values(message_name, field.type, version) if field.is_struct else SIMPLE[field.type]
        if field.array:
            one = st.lists(one, max_size=2)
        fields[field.name] = st.none() | one if field.nullable_at(version) else one
    return st.builds(made, **fields)


@pytest.mark.parametrize(("name", "version"), CASES)
def test_round_trip(name: str, version: int) -> None:
    @QUICK
    @given(values(name, name, version))
    def check(value: Message) -> None:
        data = value.encode(version)
        again = type(value).decode(data, version)
        assert again == value
        assert again.encode(version) == data

    check()


MISTAKES = st.tuples(st.integers(0, 1 << 16), st.integers(0, 4), st.integers(0, 255))


def spoilt(data: bytes, at: int, how: int, byte: int) -> bytes:
    """`data` with one mistake of a kind that a broken or hostile peer makes."""
    at %= len(data) + 1
    match how:
        case 0:
            return data[:at]
        case 1:
            return data[:at] + bytes([byte]) + data[at + 1 :]
        case 2:
            return data[:at] + bytes([byte]) + data[at:]
        case 3:
            return data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :]
        case _:
            return data[:at] + b"\x7f\xff\xff\xff" + data[at + 4 :]


def refused_or_read(message_class: type[Message], data: bytes, version: int) -> None:
    try:
        message = message_class.decode(data, version)
    except WireError:
        return
    # By their texts, in which a NaN is like itself.
    assert repr(message_class.decode(message.encode(version), version)) == repr(message)


@pytest.mark.parametrize(("name", "version"), CASES)
def test_spoilt_bytes(name: str, version: int) -> None:
    made = getattr(messages, name)

    @QUICK
    @given(
        values(name, name, version),
        st.lists(MISTAKES, min_size=1, max_size=9),
    )
    def check(value: Message, mistakes: list[tuple[int, int, int]]) -> None:
        data = value.encode(version)
        for mistake in mistakes:
            refused_or_read(made, spoilt(data, *mistake), version)

    check()


@pytest.mark.parametrize(("name", "version"), CASES)
def test_every_cut_is_refused(name: str, version: int) -> None:
    """No proper front of a message is a message: versions that end in optional parts don't exist."""

    @settings(QUICK, max_examples=2)
    @given(values(name, name, version))
    def check(value: Message) -> None:
        data = value.encode(version)
        for size in range(len(data)):
            with pytest.raises(WireError):
                type(value).decode(data[:size], version)

    check()


@settings(max_examples=500, deadline=None, database=None, derandomize=True)
@given(st.binary(max_size=300), st.sampled_from(CASES))
def test_any_bytes(data: bytes, case: Any) -> None:
    name, version = case.values
    refused_or_read(getattr(messages, name), data, version)


@settings(max_examples=500, deadline=None, database=None, derandomize=True)
@given(st.integers(-1, 80), st.integers(-1, 20), st.binary(max_size=100))
def test_any_frame(api_key: int, version: int, rest: bytes) -> None:
    frame = api_key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True) + rest
    with suppress(WireError):
        decode_request(frame)
