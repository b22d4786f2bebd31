"""Headers of requests and responses, and the version prefix of internal records.

A frame here is what follows the four-byte size: header and message. Request headers are v1, or v2 (with
tagged fields) before a flexible request; response headers are v0, or v1 for flexible ones. ApiVersions
answers always have the v0 header, because the asker doesn't know yet what the broker speaks (KIP-511).
"""

import struct
from typing import NamedTuple, TypeVar

from penstock.pyx.wire.message import CompactReader, Message, WireError, Writer
from penstock.pyx.wire.messages import REQUESTS, RESPONSES, ApiVersionsResponse

__all__ = [
    "REQUESTS",
    "RESPONSES",
    "RequestHeader",
    "ResponseHeader",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "decode_response_header",
    "decode_version",
    "encode_request",
    "encode_request_header",
    "encode_response",
    "encode_versioned",
]

_REQUEST_HEAD = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_VERSION = struct.Struct(">h")

M = TypeVar("M", bound=Message)

HEADER_TAGS_MAX = 100
"""Tagged fields that a request header may have; Kafka has defined none."""


class RequestHeader(NamedTuple):
    """`body_start` is where in the frame the message begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_start: int


class ResponseHeader(NamedTuple):
    """`body_start` is where in the frame the message begins."""

    correlation_id: int
    body_start: int


def encode_request(request: Message, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The frame of a request. WireError if the version can't carry it."""
    return encode_request_header(request.API_KEY, version, correlation_id, client_id) + request.encode(version)


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """What stands in a frame before the message, of an API that is known."""
    head = Writer(_REQUEST_HEAD.pack(api_key, version, correlation_id))
    head.nullable_string(client_id)  # never compact, so that a broker can read it at versions unknown to it
    if version >= REQUESTS[api_key].FLEXIBLE_FROM:
        head += b"\x00"
    return bytes(head)


def decode_request_header(data: bytes | bytearray | memoryview) -> RequestHeader:
    """The header of any request frame, also of unknown APIs (for which a header without tags is assumed).

    A client id that isn't UTF-8 is kept as far as it goes: it's only ever shown. WireError on anything cut.
    """
    r = CompactReader(data, elements=HEADER_TAGS_MAX)
    try:
        api_key, api_version, correlation_id = r.fixed(_REQUEST_HEAD)
        (size,) = r.fixed(_VERSION)
        client_id = None if size == -1 else str(r.take(size), "utf-8", "replace")
        known = REQUESTS.get(api_key)
        if known is not None and api_version >= known.FLEXIBLE_FROM:
            r.skip_tags()
    except (struct.error, IndexError) as error:
        raise WireError(f"request header cut at byte {r.pos} of {r.end}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, r.pos)


def decode_request(data: bytes | bytearray | memoryview) -> tuple[RequestHeader, Message]:
    """Header and message of a request. WireError if API or version are unknown or anything is malformed."""
    header = decode_request_header(data)
    known = REQUESTS.get(header.api_key)
    if known is None:
        raise WireError(f"unknown api key {header.api_key}")
    return header, known.decode(memoryview(data)[header.body_start :], header.api_version)


def encode_response(response: Message, version: int, correlation_id: int) -> bytes:
    """The frame of a response. WireError if the version can't carry it."""
    head = _CORRELATION_ID.pack(correlation_id)
    if _tagged_response_header(type(response), version):
        head += b"\x00"
    return head + response.encode(version)


def decode_response(response_class: type[M], data: bytes | bytearray | memoryview, version: int) -> tuple[int, M]:
    """(correlation id, message) of the frame that answers a request of `version`. WireError if malformed."""
    header = decode_response_header(response_class, data, version)
    return header.correlation_id, response_class.decode(memoryview(data)[header.body_start :], version)


def decode_response_header(response_class: type[Message], data: bytes | bytearray | memoryview, version: int) -> ResponseHeader:
    """The header of the frame that answers a request of `version`. WireError if it is cut."""
    r = CompactReader(data)
    try:
        (correlation_id,) = r.fixed(_CORRELATION_ID)
        if _tagged_response_header(response_class, version):
            r.skip_tags()
    except (struct.error, IndexError) as error:
        raise WireError(f"response header cut at byte {r.pos} of {r.end}") from error
    return ResponseHeader(correlation_id, r.pos)


def _tagged_response_header(response_class: type[Message], version: int) -> bool:
    return version >= response_class.FLEXIBLE_FROM and response_class is not ApiVersionsResponse


def encode_versioned(message: Message, version: int) -> bytes:
    """An internal record's key or value: two bytes of version, then the message."""
    return _VERSION.pack(version) + message.encode(version)


def decode_version(data: bytes | bytearray | memoryview) -> tuple[int, memoryview]:
    """(version, rest) of an internal record; the version of a key says which kind of record it is."""
    view = memoryview(data)
    if len(view) < _VERSION.size:
        raise WireError(f"{len(view)} bytes have no version")
    return _VERSION.unpack_from(view)[0], view[_VERSION.size :]
