"""A data plane inside the test process: real sockets, real logs, and a control plane of a few lines."""

from __future__ import annotations

import hashlib
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.pyx.net.border import DataPlane, Request
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import records, split
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import (
    ApiVersionsRequest,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from support.logs import LOGS

M = TypeVar("M", bound=Message)

TIMEOUT_S = 120.0
CLOSE = object()
"""What a control function gives back to have the connection closed."""


def echo(request: Request) -> bytes:
    """Answer with the correlation id and the rest of the frame."""
    return struct.pack(">i", request.correlation_id) + request.frame[8:]


class Peer:
    """One connection of a client. Every wait is bounded by TIMEOUT_S."""

    def __init__(self, port: int, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, frame: bytes) -> None:
        """Send a frame, its size in front."""
        self.send_all([frame])

    def send_all(self, frames: Sequence[bytes]) -> None:
        """Send frames so that they come together."""
        self.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def receive(self) -> bytes:
        """The next frame. EOFError when the broker has closed."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, n: int) -> bytes:
        got = bytearray()
        while len(got) < n:
            piece = self.socket.recv(min(n - len(got), 1 << 20))
            if not piece:
                raise EOFError(f"closed after {len(got)} of {n} bytes")
            got += piece
        return bytes(got)

    def ask(self, request: Message, version: int, response: type[M], correlation_id: int = 7) -> M:
        """One request and its answer, whose correlation id must be the request's."""
        self.send(encode_request(request, version, correlation_id, "test"))
        got, message = decode_response(response, self.receive(), version)
        assert got == correlation_id
        return message

    def has_ended(self) -> bool:
        """Wait until the broker closes; False if it sends something first."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def end_sending(self) -> None:
        """Shut the sending half down; answers can still be received."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close at once, with a reset in place of the end of the stream: the broker sees that nobody is there."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def is_silent(self, seconds: float = 0.1) -> bool:
        """Whether nothing comes for a while (an answer, or the end)."""
        return not select.select([self.socket], [], [], seconds)[0]


def api_versions(correlation_id: int = 1) -> bytes:
    """A small request that the control plane answers."""
    return encode_request(ApiVersionsRequest(), 0, correlation_id, "test")


class Broker:
    """A DataPlane on a free port with a thread that plays the control plane.

    `control` answers a request with a frame, CLOSE, or None: then `held` has it, and the test answers it by
    `plane.answer`.
    """

    def __init__(self, control: Callable[[Request], object] = echo, threads: int = 2, **settings: int) -> None:
        given = {
            "node_id": 1,
            "max_request_bytes": 64 << 20,
            "max_idle_ms": 600_000,
            "queued_bytes_max": 64 << 20,
            "fetch_max_bytes": 55 << 20,
            **settings,
        }
        self.control = control
        self.held: list[Request] = []
        self.some_held = threading.Condition()
        self.plane = DataPlane(network_threads=threads, logs=LOGS, **given)
        self.port = self.plane.listen("127.0.0.1", 0, "PLAINTEXT")
        self.brokers_port = self.plane.listen("127.0.0.1", 0, "BROKERS", between_brokers=True)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._answer_all)

    def __enter__(self) -> Self:
        self.plane.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.plane.stop()
        self._ended.set()
        self._thread.join()

    def _answer_all(self) -> None:
        poll = select.poll()
        poll.register(self.plane.request_fd, select.POLLIN)
        while not self._ended.is_set():
            if not poll.poll(20):
                continue
            for request in self.plane.take_requests():
                self._answer(request)

    def _answer(self, request: Request) -> None:
        answer = self.control(request)
        if answer is None:
            with self.some_held:
                self.held.append(request)
                self.some_held.notify_all()
        elif answer is CLOSE:
            self.plane.close_connection(request.token)
        else:
            assert isinstance(answer, bytes)
            self.plane.answer(request.token, answer)

    def wait_held(self, count: int) -> list[Request]:
        """Wait until the control function has held back `count` requests."""
        with self.some_held:
            assert self.some_held.wait_for(lambda: len(self.held) >= count, TIMEOUT_S)
            return list(self.held)

    def connect(self, **settings: int) -> Peer:
        return Peer(self.port, **settings)

    def between(self) -> Peer:
        """A connection of another broker."""
        return Peer(self.brokers_port)

    def connect_each(self) -> list[Peer]:
        """One connection to each network thread: sockets go round them in turn."""
        return [self.connect() for _ in range(2)]

    def is_alive(self) -> bool:
        """Whether a new connection is served."""
        with self.connect() as peer:
            peer.send(api_versions(99))
            return peer.receive()[:4] == struct.pack(">i", 99)


def topic_id(name: str) -> bytes:
    """An id that follows from the name, from all of it."""
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def lead(folder: Path, name: str, partitions: int = 1, epoch: int = 0, **config: int) -> None:
    """Make the partitions of a topic; tests' names are unique within the process."""
    for index in range(partitions):
        LOGS.lead(name, topic_id(name), index, epoch, str(folder), config)


def forget_all() -> None:
    """Stop every partition of this process."""
    for name, index in LOGS.partitions():
        LOGS.stop(name, index)


def batch(values: Sequence[bytes], timestamp_ms: int = 1_700_000_000_000, codec: int = 0, **producer: Any) -> bytes:
    """One record batch, as a producer sends it."""
    builder = BatchBuilder(codec, max_bytes=64 << 20)
    for value in values:
        assert builder.append(None, value, timestamp_ms)
    return builder.build(**producer)


def produce(name: str, records: bytes | None, version: int, acks: int = -1, index: int = 0, **more: str) -> ProduceRequest:
    """A produce request for one partition."""
    topic = ProduceRequest.TopicProduceData(
        name=name if version < 13 else "",
        topic_id=topic_id(name) if version >= 13 else bytes(16),
        partition_data=[ProduceRequest.PartitionProduceData(index=index, records=records)],
    )
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic], **more)


def produced(answer: ProduceResponse) -> ProduceResponse.PartitionProduceResponse:
    """The only partition of an answer."""
    ((one,),) = [topic.partition_responses for topic in answer.responses]
    return one


def fetch(
    name: str,
    offset: int,
    version: int,
    *,
    index: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    partition_max_bytes: int = 1 << 20,
    epoch: int = -1,
    **more: Any,
) -> FetchRequest:
    """A fetch request for one partition."""
    one = FetchRequest.FetchPartition(
        partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes, current_leader_epoch=epoch
    )
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=[fetch_topic(name, version, [one])], **more)


def fetch_topic(name: str, version: int, partitions: list[FetchRequest.FetchPartition]) -> FetchRequest.FetchTopic:
    """A topic of a fetch request, by name or by id as the version has it."""
    return FetchRequest.FetchTopic(
        topic=name if version < 13 else "",
        topic_id=topic_id(name) if version >= 13 else bytes(16),
        partitions=partitions,
    )


def fetched(answer: FetchResponse) -> FetchResponse.PartitionData:
    """The only partition of an answer."""
    ((one,),) = [topic.partitions for topic in answer.responses]
    return one


def values(one: FetchResponse.PartitionData) -> list[bytes | None]:
    """Of the records of a fetched partition, whatever their magic."""
    return [record.value for raw in split(bytes(one.records or b"")) for record in records(raw)]


def transactional(producer_id: int, sequence: int) -> dict[str, int]:
    """What a batch of a transaction bears."""
    return {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}


@contextmanager
def serving_samples(folder: Path) -> Iterator[Broker]:
    """A data plane with something to fetch: `read` has 20 small records by twos, `large` 6 of 100 kB a partition."""
    lead(folder, "read", partitions=3)
    for n in range(10):
        LOGS.append("read", 0, batch([b"%d" % n] * 2))
    lead(folder, "large", partitions=3, max_message_bytes=1 << 24)
    for index in range(3):
        for n in range(6):
            LOGS.append("large", index, batch([bytes([n]) * 100_000]))
    with Broker() as made:
        yield made
