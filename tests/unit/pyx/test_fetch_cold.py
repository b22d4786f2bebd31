"""Fetches of pages that aren't in memory: who reads them, who sends them, and that nobody else waits."""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock.pyx.record.rawbatch import split
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import FetchResponse
from support.dataplane import Broker, Peer, batch, fetch, fetched, lead
from support.harness import topic_name
from support.logs import LOGS
from support.pagecache import cached_bytes, drop_cache, drop_cache_or_skip
from support.patience import until

PIECE_BYTES = 600_000  # a fetch
FIRST_LOOK_BYTES = 65_536
TRIES = 10


@pytest.fixture
def topic(folder: Path) -> str:
    """An empty topic of this test's own."""
    name = topic_name("fetch")
    lead(folder, name, partitions=1)
    return name


def read_on(peer: Peer, topic: str, offset: int) -> tuple[int, bytes]:
    """A fetch from an offset: the offset after its last whole batch, and the bytes of whole batches."""
    answer = peer.ask(fetch(topic, offset, 12, partition_max_bytes=PIECE_BYTES), 12, FetchResponse)
    whole = split(fetched(answer).records or b"")
    return whole[-1].base_offset + 1, b"".join(bytes(one) for one in whole)


def cold_log(folder: Path, topic: str) -> Path:
    """A log of 4 MB, written out."""
    for n in range(40):
        LOGS.append(topic, 0, batch([bytes([n]) * 100_000]))
    LOGS.flush(topic, 0)
    return folder / f"{topic}-0" / "00000000000000000000.log"


def test_cold_pages_are_read_by_the_pool(folder: Path, topic: str) -> None:
    """Pages that are dropped from the cache are read by the reader threads; what comes is the same."""
    log = cold_log(folder, topic)
    expected = LOGS.read(topic, 0, 0, 1 << 24)
    with Broker() as served, served.connect() as peer:
        for _ in range(5):
            read = served.plane.counters()["cold_ranges"]
            cold = drop_cache(log)
            request = fetch(topic, 0, 12, partition_max_bytes=1 << 24)
            one = fetched(peer.ask(request, 12, FetchResponse))
            assert bytes(one.records or b"") == expected
            assert not cold or served.plane.counters()["cold_ranges"] > read


def test_who_reads_cold_pages_alone_leaves_none_in_memory(folder: Path, topic: str) -> None:
    """What one consumer reads once drives nothing of the others out of the page cache."""
    log = cold_log(folder, topic)
    expected = LOGS.read(topic, 0, 0, 1 << 24)
    left = []
    with Broker(threads=1) as served, served.connect() as peer:
        for _ in range(TRIES):
            drop_cache_or_skip(log)
            got, offset = b"", 0
            while len(got) < len(expected):
                offset, piece = read_on(peer, topic, offset)
                got += piece
            assert got == expected
            left.append(cached_bytes(log))
    # Where the first fetch began. After a peer that was late the next one has to look, too; but it isn't late each time.
    assert min(left) <= FIRST_LOOK_BYTES


def test_those_who_read_the_same_cold_pages_read_them_once(folder: Path, topic: str) -> None:
    """By turns: the first brings into memory what the second then needs."""
    log = cold_log(folder, topic)
    expected = LOGS.read(topic, 0, 0, 1 << 24)
    drop_cache_or_skip(log)
    with Broker(threads=1) as served, served.connect() as one, served.connect() as other:
        got, offsets = {one: b"", other: b""}, {one: 0, other: 0}
        while any(len(had) < len(expected) for had in got.values()):
            for peer, had in got.items():
                if len(had) < len(expected):
                    offsets[peer], piece = read_on(peer, topic, offsets[peer])
                    got[peer] += piece
    assert list(got.values()) == [expected, expected]
    assert cached_bytes(log) > len(expected) // 2


@pytest.mark.parametrize("pause_s", [0.0, 0.002, 0.05])
def test_cold_pages_for_peers_that_take_their_time(folder: Path, topic: str, pause_s: float) -> None:
    """More of them than reader threads, each with two requests under way: whoever sends, the bytes come in order."""
    log = cold_log(folder, topic)
    expected = LOGS.read(topic, 0, 0, 1 << 24)
    frames = [encode_request(fetch(topic, 0, 12, partition_max_bytes=1 << 24), 12, n, "test") for n in (1, 2)]
    with Broker(threads=1) as served, ExitStack() as opened:
        peers = [opened.enter_context(Peer(served.port, receive_buffer=65_536)) for _ in range(5)]
        drop_cache(log)
        for peer in peers:
            peer.send_all(frames)
        taken = [bytearray() for _ in peers]
        while any(len(frames_in(one)) < len(frames) for one in taken):
            for peer, one in zip(peers, taken, strict=True):
                if len(frames_in(one)) < len(frames):
                    one += peer.socket.recv(300_000)
            time.sleep(pause_s)
        for one in taken:
            for n, frame in zip((1, 2), frames_in(one), strict=True):
                number, answer = decode_response(FetchResponse, frame, 12)
                assert (number, bytes(fetched(answer).records or b"")) == (n, expected)
        assert all(peer.is_silent() for peer in peers)


def test_a_peer_that_goes_amid_cold_pages_leaves_nothing(folder: Path, topic: str) -> None:
    """Its socket and the file are let go of, whoever was sending, and the others are served on."""
    log = cold_log(folder, topic)
    expected = LOGS.read(topic, 0, 0, 1 << 24)
    request = fetch(topic, 0, 12, partition_max_bytes=1 << 24)
    with Broker(threads=1) as served, served.connect() as other:
        assert bytes(fetched(other.ask(request, 12, FetchResponse)).records or b"") == expected
        held = held_open(log)
        for n in range(30):
            drop_cache(log)
            with Peer(served.port, receive_buffer=65_536) as peer:
                peer.send(encode_request(request, 12, 1, "test"))
                if n % 3:
                    peer.socket.recv(n * 10_000)
                if n % 2:
                    peer.reset()
        until(lambda: served.plane.counters()["connections"] == 1, "the end of those that have gone")
        until(lambda: held_open(log) == held, "their sockets to be closed")
        drop_cache(log)
        assert bytes(fetched(other.ask(request, 12, FetchResponse)).records or b"") == expected


def test_a_broker_stops_amid_cold_pages(folder: Path, topic: str) -> None:
    """Peers that take nothing don't keep it."""
    log = cold_log(folder, topic)
    held = held_open(log)
    with ExitStack() as opened:
        with Broker(threads=1) as served:
            drop_cache(log)
            for _ in range(4):
                peer = opened.enter_context(Peer(served.port, receive_buffer=65_536))
                peer.send(encode_request(fetch(topic, 0, 12, partition_max_bytes=1 << 24), 12, 1, "test"))
                assert peer.socket.recv(1)
        assert held_open(log) <= held + 4  # the peers' own


def frames_in(data: bytearray) -> list[bytes]:
    """The whole frames that have come."""
    frames, at = [], 0
    while at + 4 <= len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if at + 4 + size > len(data):
            break
        frames.append(bytes(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return frames


def held_open(log: Path) -> int:
    """How often this process has the log, or any socket, open."""
    held = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            held += str(entry.readlink()).startswith(("socket:", str(log)))
    return held
