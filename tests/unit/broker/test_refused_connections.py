"""A broker says in its log why it closed a connection for what came: who, where, and what it looked like."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from penstock.broker.upkeep.watch import SENTENCES
from support.harness import BrokerProcess
from support.patience import until

MAX_BYTES = 1_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path_factory.mktemp("refused") / "broker", {"socket.request.max.bytes": MAX_BYTES})
    yield made.start()
    made.close()


def request(api_key: int, version: int, body: bytes = b"") -> bytes:
    frame = struct.pack(">hhih", api_key, version, 7, 1) + b"x" + body
    return struct.pack(">i", len(frame)) + frame


CASES = {
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), ["look like a TLS handshake", "plaintext"]),
    "http": (b"GET /metrics HTTP/1.1\r\n\r\n", ["look like HTTP", "GET /metrics HTTP/1.1"]),
    "size": (struct.pack(">i", MAX_BYTES + 1), ["1000001 bytes, where 1000000 are the most", "socket.request.max.bytes"]),
    "body": (request(3, 1, b"\x7f\xff\xff\xff"), ["could not be read", "Metadata (api_key=3 version=1)"]),
    "version": (request(3, 99), ["not served", "Metadata (api_key=3 version=99)"]),
    "unknown": (request(9999, 0), ["not served", "unknown (api_key=9999 version=0)"]),
}
"""What is sent, and what the line says. `version` and `unknown` have one reason, and the second is said a minute later."""


def throw(broker: BrokerProcess, sent: bytes) -> str:
    """Send it, wait until the broker closes, and give back the own address."""
    with socket.create_connection(("127.0.0.1", broker.port), 30) as peer:
        host, port = peer.getsockname()
        peer.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(100) == b""
    return f"{host}:{port}"


def lines(broker: BrokerProcess, word: str) -> list[str]:
    return [line for line in broker.log_text().splitlines() if word in line]


@pytest.mark.parametrize("case", [name for name in CASES if name != "unknown"])
def test_one_line_says_who_where_and_why(broker: BrokerProcess, case: str) -> None:
    sent, words = CASES[case]
    before = len(lines(broker, words[0]))
    address = throw(broker, sent)
    until(lambda: len(lines(broker, words[0])) > before, "a line in the log", broker.log_text)
    (line,) = lines(broker, words[0])[before:]
    assert f"the last one: {address} at the listener PLAINTEXT" in line
    assert all(word in line for word in words), line
    assert "WARNING" in line


def test_what_comes_often_is_one_line(make_broker: Callable[..., BrokerProcess]) -> None:
    """The rest is said together when the broker stops, or a minute later."""
    broker = make_broker(**{"socket.request.max.bytes": MAX_BYTES})
    for _ in range(200):
        for sent, _ in CASES.values():
            throw(broker, sent)
    broker.stop()
    for sentence in SENTENCES.values():
        assert len(lines(broker, sentence.partition("%d ")[2])) <= 2
    counts = [int(line.split(" closed ")[1].split()[0]) for line in lines(broker, "not served")]
    assert sum(counts) == 400 and "unknown (api_key=9999 version=0)" in lines(broker, "not served")[-1]
