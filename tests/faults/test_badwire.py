"""Hostile frames of every API and version: each is an answer or a closed connection, and good clients are served meanwhile."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.api import brokers
from penstock.broker.dispatch import registry
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire.messages import ApiVersionsRequest, MetadataRequest, ProduceRequest
from penstock.pyx.wire.requests import create_topic
from support.harness import BrokerProcess, WireConnection
from support.hostile_frames import framed, header, hostile, requests, strangers
from support.patience import LIMIT_S

GROWTH_MAX_BYTES = 32 << 20
# How long a frame may wait for an answer that it need not have (a group that gathers, a size that was a lie).
ANSWER_S = 0.05
# Frames are cut at each byte of an API's oldest and newest version, and at every seventh of the ones between.
COARSE = 7
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of this file alone, whose memory and log are looked at."""
    properties = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    broker = BrokerProcess(tmp_path_factory.mktemp("badwire") / "broker", properties).start()
    yield broker
    broker.close()


def resident_bytes(broker: BrokerProcess) -> int:
    """The process's resident memory."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{broker.pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def growth(broker: BrokerProcess, before: int) -> int:
    """By how much it has grown for good: the last refused frame may be freed a moment after its connection's end."""
    grown = resident_bytes(broker) - before
    until = time.monotonic() + 60
    while grown >= GROWTH_MAX_BYTES and time.monotonic() < until:
        time.sleep(0.05)
        grown = resident_bytes(broker) - before
    return grown


def throw(broker: BrokerProcess, frame: bytes) -> str:
    """Send a frame on a connection of its own; answers what became of it."""
    with socket.create_connection(("127.0.0.1", broker.port), 10) as thrown:
        # No TIME_WAIT: tens of thousands of connections would use up the ports.
        thrown.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        thrown.settimeout(ANSWER_S)
        try:
            thrown.sendall(frame)
            return "answered" if thrown.recv(4096) else "closed"
        except TimeoutError:
            return "held"
        except OSError:
            return "closed"


class GoodClient(threading.Thread):
    """Produces and asks for metadata over and over until it is stopped."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        self.served = 0
        self.failure: BaseException | None = None
        self._broker = broker
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Work until stopped; keeps the first failure."""
        try:
            create_topic(self._broker.bootstrap, "good", 1)
            with WireConnection(self._broker.bootstrap) as wire:
                while not self._stop_asked.wait(0.02):
                    self._turn(wire)
                    self.served += 1
        except BaseException as failure:  # noqa: BLE001 - handed to the test
            self.failure = failure

    def _turn(self, wire: WireConnection) -> None:
        asked = [MetadataRequest.MetadataRequestTopic(name="good")]
        assert wire.ask(MetadataRequest(topics=asked), 12).topics[0].error_code == 0
        builder = BatchBuilder()
        builder.append(b"key", b"value", 1)
        data = ProduceRequest.PartitionProduceData(index=0, records=builder.build())
        topics = [ProduceRequest.TopicProduceData(name="good", partition_data=[data])]
        answer = wire.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def stop(self) -> None:
        """End it."""
        self._stop_asked.set()
        self.join()


def test_no_frame_stops_the_broker(target: BrokerProcess) -> None:
    client = GoodClient(target)
    client.start()
    known = registry() | registry(brokers)
    outcomes = {"answered": 0, "closed": 0, "held": 0}
    try:
        for key, handler in known.items():
            low, high = handler.versions
            for version in range(low, high + 1):
                # One of each first, so that what is made once (topics, caches) doesn't count as growth.
                throw(target, next(hostile(key, version, COARSE)))
        before = resident_bytes(target)
        for frame in strangers():
            outcomes[throw(target, frame)] += 1
        for key, handler in known.items():
            low, high = handler.versions
            for version in range(low, high + 1):
                for frame in hostile(key, version, 1 if version in (low, high) else COARSE):
                    outcomes[throw(target, frame)] += 1
        grown = growth(target, before)
    finally:
        client.stop()
    assert client.failure is None and client.served > 0
    assert outcomes["answered"] > 0 and outcomes["closed"] > 0
    assert grown < GROWTH_MAX_BYTES, f"grew by {grown >> 20} MiB over {outcomes}"
    with WireConnection(target.bootstrap) as wire:
        assert wire.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3).error_code == 0
    failed = re.findall(r"api=\w+ version=\d+ failed.*(?:\n(?!20\d\d-).*)*", target.log_text())
    assert not failed, f"{len(failed)}: {failed[0]}"


def test_idle_and_slow_connections_hold_nobody_up(target: BrokerProcess) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", target.port), LIMIT_S))
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", target.port), LIMIT_S))
        request = struct.pack(">ihhih", 12, 18, 0, 1, 2) + b"ok"
        for byte in request:
            slow.sendall(bytes([byte]))
        assert slow.recv(4096)
        pipelined = stack.enter_context(socket.create_connection(("127.0.0.1", target.port), LIMIT_S))
        pipelined.sendall(request * 50)
        with WireConnection(target.bootstrap) as wire:
            assert wire.ask(MetadataRequest(topics=None), 12).controller_id == 1


def huge(version: int, size: int) -> bytes:
    """DeleteTopics with as many one-byte names as fit into a frame of that size."""
    head = header(requests()[20], version)
    count = size - len(head) - 10
    varint = b"".join(bytes([0x80 | (count + 1 >> shift & 0x7F)]) for shift in (0, 7, 14, 21)) + b"\x00"
    return framed(head + varint + b"\x01" * count + b"\x00\x00\x00\x01\x00")


def test_huge_arrays_are_refused_before_they_cost_memory(target: BrokerProcess) -> None:
    before = resident_bytes(target)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", target.port), LIMIT_S) as thrown:
            thrown.sendall(huge(5, 50 << 20))
            with contextlib.suppress(ConnectionError):
                assert thrown.recv(4096) == b""
    with WireConnection(target.bootstrap) as wire:
        assert wire.ask(MetadataRequest(topics=None), 12).controller_id == 1
    grown = growth(target, before)
    assert grown < GROWTH_MAX_BYTES, f"grew by {grown >> 20} MiB"
