"""Connections that the network threads close for what their peers sent: counted by reason, and kept with their peers."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest

from penstock.pyx.net import border
from penstock.pyx.net.border import Closed
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import ProduceResponse
from support.dataplane import Broker, api_versions, batch, fetch, lead, produce
from support.patience import until

MAX_BYTES = 1 << 20
REASONS = (
    "closed_tls",
    "closed_http",
    "closed_request_size",
    "closed_malformed",
    "closed_unsupported",
    "closed_unacknowledged",
    "closed_failed",
    "closed_fault",
)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def head(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, 1) + b"x"


def http(line: str, shown: str | None = None) -> tuple[bytes, str, str]:
    return line.encode("latin-1") + b"\r\nHost: x\r\n\r\n", "closed_http", line if shown is None else shown


SENT = {
    "tls 1.0 record": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), "closed_tls", ""),
    "ssl 3": (b"\x16\x03\x00\x02\x00", "closed_tls", ""),
    "get": http("GET /metrics HTTP/1.1"),
    "put": http("PUT / HTTP/1.1"),
    "options": http("OPTIONS * HTTP/1.1"),
    "http/2": http("PRI * HTTP/2.0"),
    "http with what belongs in no log": http("GET /\x1b[2Jx", "GET /"),
    "a long line": http("POST /" + "a" * 5000, ("POST /" + "a" * 5000)[:60]),
    "above the limit": (
        struct.pack(">i", MAX_BYTES + 1),
        "closed_request_size",
        "a request of 1048577 bytes, where 1048576 are the most",
    ),
    "-1": (struct.pack(">i", -1), "closed_request_size", "a request of -1 bytes, where 1048576 are the most"),
    "no room for a header": (
        struct.pack(">i", 7) + bytes(7),
        "closed_request_size",
        "a request of 7 bytes, where 1048576 are the most",
    ),
    "produce cut": (
        framed(head(0, 3) + b"\xff\xff\0\x01"),
        "closed_malformed",
        "api_key=0 version=3 in a request of 15 bytes",
    ),
    "fetch cut": (framed(head(1, 4) + b"\xff"), "closed_malformed", "api_key=1 version=4 in a request of 12 bytes"),
}


def closed_by(broker: Broker, sent: bytes) -> tuple[Closed, str]:
    """What is known of a connection that sent this, and its address."""
    with broker.connect() as peer:
        host, port = peer.socket.getsockname()
        peer.socket.sendall(sent)
        assert peer.has_ended()
    (one,) = broker.plane.closures()
    return one, f"{host}:{port}"


@pytest.mark.parametrize("name", SENT)
def test_a_closed_connection_is_told_with_its_reason(name: str) -> None:
    sent, reason, detail = SENT[name]
    with Broker(max_request_bytes=MAX_BYTES) as broker:
        one, address = closed_by(broker, sent)
        assert one == Closed(reason, address, "PLAINTEXT", 0, detail)
        counted = broker.plane.counters()
        assert {key: counted[key] for key in REASONS if counted[key]} == {reason: 1}


@pytest.mark.parametrize("version", [3, 9])
def test_a_produce_that_fails_with_acks_0(tmp_path: Path, version: int) -> None:
    lead(tmp_path, f"unacknowledged-{version}")
    bad = bytearray(batch([b"x"]))
    bad[-1] ^= 1
    frame = encode_request(produce(f"unacknowledged-{version}", bytes(bad), version, acks=0), version, 1, "c")
    with Broker() as broker:
        one, _ = closed_by(broker, framed(frame))
    assert one.reason == "closed_unacknowledged"


def test_what_the_control_plane_closes_has_its_reason() -> None:
    with Broker(lambda request: None) as broker:
        for reason in REASONS:
            with broker.connect() as peer:
                peer.send(api_versions(1))
                request = broker.wait_held(1)[0]
                broker.held.clear()
                broker.plane.close_connection(request.token, reason, "why: \u00e9" + "x" * 500)
                assert peer.has_ended()
        told = broker.plane.closures()
        counted = broker.plane.counters()
    assert [one.reason for one in told] == [reason for reason in REASONS if reason != "closed_failed"]
    assert all(one.detail == ("why: \\xe9" + "x" * 500)[:159] for one in told)
    assert [counted[reason] for reason in REASONS] == [1] * len(REASONS)


def test_more_than_are_kept_are_counted() -> None:
    with Broker() as broker:
        for _ in range(300):
            with broker.connect() as peer:
                peer.socket.sendall(struct.pack(">i", -1))
                assert peer.has_ended()
        until(lambda: broker.plane.counters()["connections"] == 0, "all to be closed")
        assert len(broker.plane.closures()) == 256
        assert broker.plane.counters()["closed_request_size"] == 300
        assert broker.plane.closures() == []


def test_a_segment_that_was_cut_short_is_told(tmp_path: Path) -> None:
    """Its log still says that the bytes are there, so only a closed connection can say that they aren't."""
    lead(tmp_path, "cut-short")
    with Broker() as broker, broker.connect() as peer:
        peer.ask(produce("cut-short", batch([b"x" * 1000]), 9), 9, ProduceResponse)
        (segment,) = (tmp_path / "cut-short-0").glob("*.log")
        os.truncate(segment, 500)
        peer.send(encode_request(fetch("cut-short", 0, 11), 11, 1, "c"))
        with pytest.raises(EOFError):
            peer.receive()
        (one,) = broker.plane.closures()
        assert broker.plane.counters()["closed_fault"] == 1
    assert (one.reason, one.detail) == (
        "closed_fault",
        "a segment could not be read, or its file is shorter than its log says",
    )


def test_the_counters_are_those_that_their_text_names() -> None:
    text = (Path(border.__file__).parent / "border.pyi").read_text()
    listed = text[text.index("Sums over the threads since `start`") :]
    listed = listed[: listed.index('"""')]
    with Broker() as broker:
        counted = set(broker.plane.counters())
    assert counted == set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\b(?:connections|requests|worked|stalls)\b", listed))
