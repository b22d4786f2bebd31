"""The fuzz targets: every parser of bytes that come from a socket or a disk. Run by `run.py`.

A target takes bytes, feeds them to the real code and catches only the errors that its door promises; anything else - another
exception, a sanitizer's report, a wrong result, a hang - is a finding. Checksums are repaired first where one would keep
the fuzzer out, for half of the inputs.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import struct
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import atheris

# The wire messages are Python: their coverage is counted there. Not for the other targets, it takes seconds. First of
# all, since the network threads' module imports them, too.
with (
    atheris.instrument_imports(["penstock.pyx.wire", "penstock.broker.replication.wire"])
    if sys.argv[1:2] in (["wire"], ["between_brokers"])
    else contextlib.nullcontext()
):
    from penstock.broker.replication import wire as replication
    from penstock.pyx.wire.header import REQUESTS, RESPONSES
    from penstock.pyx.wire.message import Message, WireError

from penstock.broker.cluster import messages as values
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.errors import KafkaError
from penstock.pyx.compaction.cleaner import Cleaner, UncleanableError
from penstock.pyx.compaction.pace import Pace
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.logtable import CorruptLogError
from penstock.pyx.net import fetchreply
from penstock.pyx.net.border import DataPlane
from penstock.pyx.record import codec, columns, convert, crc, rawbatch, upconvert
from penstock.pyx.record.builder import BatchBuilder
from support import crafted

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 1 << 20
TOPIC_ID = bytes(range(16))
PACE = Pace()
TARGETS: dict[str, Callable[[bytes], None]] = {}
SEEDS: dict[str, Callable[[], list[bytes]]] = {}


def target(seeds: Callable[[], list[bytes]]) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Register a function as the target of its name, with first inputs."""

    def register(function: Callable[[bytes], None]) -> Callable[[bytes], None]:
        TARGETS[function.__name__] = function
        SEEDS[function.__name__] = seeds
        return function

    return register


# --- bytes to begin with --------------------------------------------------------------------------------------


def made_batches() -> list[bytes]:
    """Batches of every codec, plain, transactional and control ones."""
    made = [rawbatch.marker(True, 7, 1, 0, 1000)]
    for number in range(5):
        builder = BatchBuilder(number)
        for index in range(4):
            builder.append(b"key%d" % index, b"value" * index, 1000 + index, [("header", b"x")])
        made.append(bytes(builder.build()))
    builder = BatchBuilder(0)
    builder.append(None, b"value", 1000)
    made.append(bytes(builder.build(7, 1, 0, True)))
    return made


def made_messages() -> list[bytes]:
    """The same as message sets of magic 0 and 1, wrapped ones included."""
    return [converted for stored in made_batches()[1:5] for magic in (0, 1) if (converted := convert.down(stored, magic))]


def stored_seeds() -> list[bytes]:
    """A repair mark, then stored bytes."""
    return [b"\x01" + stored for stored in made_batches() + made_messages()]


def repaired(data: bytes) -> bytes:
    """The stored bytes after the first one, which says whether lengths and checksums are put right."""
    if len(data) < 1 + 26 or not data[0] & 1:
        return data[1:]
    stored = bytearray(data[1:])
    struct.pack_into(">i", stored, 8, len(stored) - 12)
    if stored[16] == 2 and len(stored) >= 61:
        struct.pack_into(">I", stored, 17, crc.crc32c(bytes(stored[21:])))
    elif stored[16] < 2:
        struct.pack_into(">I", stored, 12, zlib.crc32(bytes(stored[16:])))
    return bytes(stored)


# --- targets --------------------------------------------------------------------------------------------------


@target(stored_seeds)
def batches(data: bytes) -> None:
    """Record batches and message sets: cut, checked, opened as records and as columns, rebuilt."""
    try:
        cut = rawbatch.split(repaired(data))
    except rawbatch.BatchError:
        return
    for raw in cut:
        try:
            raw.check()
            found = rawbatch.records(raw, LIMIT_BYTES)
            if raw.magic < 2:
                assert rawbatch.count_records(raw, LIMIT_BYTES) == len(found)
            opened = columns.decode([raw], LIMIT_BYTES)
            assert raw.is_control or len(opened.offsets) == len(found)
        except rawbatch.BatchError:
            continue


@target(lambda: [bytes([magic]) + seed for magic in (0, 1) for seed in stored_seeds()])
def conversion(data: bytes) -> None:
    """Stored batches for clients that only read old message sets: what comes out must be readable."""
    if not data:
        return
    magic = data[0] & 1
    try:
        stored = rawbatch.split(repaired(data[1:]))
        converted = convert.down(repaired(data[1:]), magic, data[0] >> 1)
    except rawbatch.BatchError:
        return
    for raw in rawbatch.split(converted):
        assert raw.magic <= magic
        # What the client can read is given as it is stored, be it corrupt.
        if all(one.magic > magic for one in stored):
            rawbatch.records(raw)


@target(stored_seeds)
def upconversion(data: bytes) -> None:
    """Stored message sets for today's clients: what comes out must be readable, with the same records."""
    try:
        stored = rawbatch.split(repaired(data))
        converted = rawbatch.split(upconvert.up(repaired(data)))
        wanted = [one for raw in stored if raw.magic < 2 for one in rawbatch.records(raw)]
    except rawbatch.BatchError:
        return
    assert all(raw.magic == 2 for raw in converted)
    if all(raw.magic < 2 for raw in stored):
        assert [one for raw in converted for one in rawbatch.records(raw)] == wanted


@target(lambda: [bytes([kind]) + codec.compress(kind, b"some text, some text, some text") for kind in range(1, 5)])
def codecs(data: bytes) -> None:
    """Decompression, bounded."""
    if not data:
        return
    with contextlib.suppress(codec.CodecError):
        assert len(codec.decompress(data[0] % 5, data[1:], LIMIT_BYTES)) <= LIMIT_BYTES


@cache
def work() -> Path:
    """A folder of this run, removed by whoever started it."""
    return Path(os.environ["PENSTOCK_FUZZ_WORK"])


@cache
def a_log(name: str, **config: int) -> LogManager:
    """Logs with one partition."""
    logs = LogManager()
    logs.lead(name, TOPIC_ID, 0, 0, str(work()), {"max_message_bytes": LIMIT_BYTES, **config})
    return logs


@target(stored_seeds)
def append(data: bytes) -> None:
    """A producer's records, into a log as it is by default: what is taken can be read back, all of it."""
    logs = a_log("append")
    try:
        done = logs.append_client("append", 0, repaired(data))
    except KafkaError:
        return
    stored = logs.read("append", 0, done.base_offset, 1 << 20)
    for raw in rawbatch.split(stored):
        raw.check()
        rawbatch.records(raw, LIMIT_BYTES)
    assert logs.offsets("append", 0).log_end > done.base_offset
    if logs.size_bytes("append", 0) > 4 << 20:
        logs.delete("append", 0)
        a_log.cache_clear()


@target(lambda: [bytes([kind, 3]) + crafted.plain(3) for kind in range(5)])
def records(data: bytes) -> None:
    """A payload behind a codec and a count: the log takes those that a plain decoder reads, and no others."""
    if len(data) < 2 or not 0 < data[1] < 0x80:
        return
    kind, count, payload = data[0] % 5, data[1], data[2:]
    found = crafted.decoded(payload, count)
    logs = a_log("records", timestamp_after_max_ms=2**62)
    try:
        logs.append_client("records", 0, crafted.batch(crafted.packed(kind, payload), count, codec=kind, base_ms=0))
    except KafkaError:
        # A delta may lead further into the future than any log allows.
        assert found is None or max(record.timestamp_delta for record in found) > 2**61
        return
    assert found is not None
    if logs.size_bytes("records", 0) > 4 << 20:
        logs.delete("records", 0)
        a_log.cache_clear()


def damaged_seeds() -> list[bytes]:
    """A log of some batches and its other files, each with its length in front."""
    stored = b"".join(made_batches()[:4])
    return [struct.pack(">H", len(part)) + part for part in (stored,)] + [
        struct.pack(">H", len(stored)) + stored + struct.pack(">H", 16) + bytes(16) + struct.pack(">H", 24) + bytes(24)
    ]


FILES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


@target(damaged_seeds)
def recovery(data: bytes) -> None:
    """A partition's folder with any bytes in its files: it opens, serves what is whole, and takes records again."""
    folder = work() / "damaged-0"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for suffix in FILES:
        if len(data) < 2:
            break
        (length,) = struct.unpack_from(">H", data)
        (folder / f"{0:020d}{suffix}").write_bytes(data[2 : 2 + length])
        data = data[2 + length :]
    (folder / "leader-epoch-checkpoint").write_bytes(data)
    logs = LogManager()
    try:
        logs.lead("damaged", TOPIC_ID, 0, 0, str(work()), {})
    except (OSError, CorruptLogError):
        return
    where = logs.offsets("damaged", 0)
    at = where.log_start
    while at < where.log_end:
        stored = logs.read("damaged", 0, at, 1 << 20)
        for raw in rawbatch.split(stored):
            raw.check()
            at = raw.last_offset + 1
    logs.offset_for_timestamp("damaged", 0, 1001)
    logs.aborted("damaged", 0, 0, where.log_end)
    assert logs.append("damaged", 0, made_batches()[1]).base_offset == where.log_end
    logs.delete("damaged", 0)


def compaction_seeds() -> list[bytes]:
    """A segment of batches and message sets, each with its length in front."""
    stored = made_batches() + made_messages()
    parts = [struct.pack(">H", len(part) + 1) + b"\x01" + part for part in stored]
    return [b"".join(parts), b"".join(parts[:3]), *parts]


@target(compaction_seeds)
def compaction(data: bytes) -> None:
    """A sealed segment of any batches: two passes over it leave it alone or right, and nothing new comes out of it."""
    segment, end = bytearray(), 0
    while len(data) > 2:
        (length,) = struct.unpack_from(">H", data)
        stored = bytearray(repaired(data[2 : 2 + length]))
        data = data[2 + length :]
        if len(stored) < 61 and (len(stored) < 26 or stored[16] > 1):
            continue
        delta = struct.unpack_from(">i", stored, 23)[0] if stored[16] == 2 else 0
        struct.pack_into(">q", stored, 0, end)
        end += max(0, delta) + 1
        segment += stored
    folder = work() / "compacted-0"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(segment)
    (folder / f"{max(end, 1):020d}.log").write_bytes(b"")
    logs = LogManager()
    try:
        logs.lead("compacted", TOPIC_ID, 0, 0, str(work()), {"cleanup_compact": 1}, True)
    except (OSError, CorruptLogError):
        return
    before = _records_of(logs)
    with contextlib.suppress(UncleanableError):
        for now_ms in (10_000, 20_000):
            Cleaner(PACE, 1 << 10, 0.9, LIMIT_BYTES).compact(logs, "compacted", 0, -1, now_ms, 0, 5000)
            assert not _records_of(logs) - before
    logs.delete("compacted", 0)


def _records_of(logs: LogManager) -> set[tuple[int, int, bytes | None, bytes | None]]:
    """Every record of the log that can be opened."""
    found = set()
    where = logs.offsets("compacted", 0)
    at = where.log_start
    with contextlib.suppress(KafkaError, rawbatch.BatchError):  # garbage where a batch should be
        while at < where.log_end and (stored := logs.read("compacted", 0, at, 1 << 20)):
            for raw in rawbatch.split(stored):
                at = max(at, raw.last_offset) + 1
                with contextlib.suppress(rawbatch.BatchError):
                    found |= {(r.offset, r.timestamp_ms, r.key, r.value) for r in rawbatch.records(raw, LIMIT_BYTES)}
    return found


FRAME_IDLE_MS = 100
"""A frame may be a fetch that asks to wait for days; a peer that has ended its sending side waits no longer than this."""


@cache
def a_plane() -> tuple[DataPlane, int]:
    """Network threads over a log, without a control plane behind them."""
    logs = a_log("frames")
    plane = DataPlane(
        network_threads=1, node_id=1, max_request_bytes=1 << 20, max_idle_ms=FRAME_IDLE_MS, queued_bytes_max=1 << 20,
        fetch_max_bytes=1 << 20, logs=logs,
    )  # fmt: skip
    port = plane.listen("127.0.0.1", 0, "PLAINTEXT")
    plane.start()
    return plane, port


def frame_seeds() -> list[bytes]:
    """Produce and Fetch of every version."""
    from penstock.pyx.wire.header import encode_request
    from penstock.pyx.wire.messages import FetchRequest, ProduceRequest

    seeds = []
    for version in range(ProduceRequest.MAX_VERSION + 1):
        data = ProduceRequest.PartitionProduceData(index=0, records=made_batches()[1])
        topic = ProduceRequest.TopicProduceData(
            **({"name": "frames"} if version < 13 else {"topic_id": TOPIC_ID}), partition_data=[data]
        )
        seeds.append(encode_request(ProduceRequest(acks=1, topic_data=[topic]), version, 1, "fuzz"))
    for version in range(FetchRequest.MAX_VERSION + 1):
        part = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1000)
        asked = FetchRequest.FetchTopic(**({"topic": "frames"} if version < 13 else {"topic_id": TOPIC_ID}), partitions=[part])
        seeds.append(encode_request(FetchRequest(topics=[asked]), version, 1, "fuzz"))
    return seeds


@target(frame_seeds)
def frames(data: bytes) -> None:
    """A frame for the network threads: an answer, or the connection's end, and the next frame is served."""
    if len(data) < 10 or data[0] != 0 or data[1] > 1:
        return
    plane, port = a_plane()
    with socket.create_connection(("127.0.0.1", port), 10) as peer:
        peer.sendall(struct.pack(">i", len(data)) + data)
        with contextlib.suppress(OSError):  # it may have been refused and reset by now
            peer.shutdown(socket.SHUT_WR)
        while select.select([peer.fileno(), plane.request_fd], [], [], 10)[0]:
            for request in plane.take_requests():
                plane.close_connection(request.token)
            if select.select([peer], [], [], 0)[0] and _has_ended(peer):
                return
    raise AssertionError("neither an answer nor an end in 10 seconds")


def _has_ended(peer: socket.socket) -> bool:
    try:
        return not peer.recv(1 << 16)
    except ConnectionResetError:
        return True


def reply_seeds() -> list[bytes]:
    """Answers to a follower's fetch, without their size."""
    from penstock.pyx.wire.header import encode_response
    from penstock.pyx.wire.messages import FetchResponse

    parts = [
        FetchResponse.PartitionData(partition_index=0, records=made_batches()[1]),
        FetchResponse.PartitionData(diverging_epoch=FetchResponse.EpochEndOffset(epoch=1, end_offset=2)),
        FetchResponse.PartitionData(aborted_transactions=[FetchResponse.AbortedTransaction(producer_id=1)], error_code=1),
    ]
    topics = [FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=parts[:n]) for n in range(4)]
    return [bytes([n]) + encode_response(FetchResponse(session_id=7, responses=topics[:n]), 17, 5) for n in range(5)]


@target(reply_seeds)
def replies(data: bytes) -> None:
    """A leader's answer that comes in pieces: read, or refused; how it is cut changes nothing."""
    if not data:
        return
    answer = struct.pack(">i", len(data) - 1) + data[1:]
    results: list[object] = []
    for piece_bytes in (1 + data[0], len(answer)):
        try:
            results.append(fetchreply.read_answer(answer, piece_bytes=piece_bytes, records_max=LIMIT_BYTES))
        except (EOFError, ValueError) as error:
            results.append(type(error))
    assert results[0] == results[1]


def wire_seeds() -> list[bytes]:
    """A message of every API and version, as this side writes it."""
    return [
        bytes([kind, key, version]) + message().encode(version)
        for kind, table in enumerate((REQUESTS, RESPONSES))
        for key, message in table.items()
        for version in (message.MIN_VERSION, message.MAX_VERSION)
        if _encodes(message, version)
    ]


def _encodes(message: Any, version: int) -> bool:
    try:
        message().encode(version)
    except WireError:
        return False
    return True


@target(wire_seeds)
def wire(data: bytes) -> None:
    """Every message of the wire tables: decoded, and what was decoded survives being written and read again."""
    if len(data) < 3:
        return
    table = (REQUESTS, RESPONSES)[data[0] & 1]
    message = table.get(data[1])
    if message is None or not message.MIN_VERSION <= data[2] <= message.MAX_VERSION:
        return
    try:
        found = message.decode(data[3:], data[2])
        again = found.encode(data[2])
    except WireError:
        return
    assert message.decode(again, data[2]).encode(data[2]) == again


STATE = LeaderAndIsr(1, 5, (1, 2), (3,), (4,), 4, 2, 7, 1, 6)
PARTITION = ("t", 3)
ROLES = values.LeaderAndIsrRequest(1, 9, 2, 12, (values.PartitionRole(PARTITION, TOPIC_ID, (1, 2, 3), STATE, {1: 11, 2: 12}),))
STOPS = values.StopReplica(1, 9, 2, 12, (values.StoppedReplica(PARTITION, TOPIC_ID, -2, True),))
PICTURE = values.UpdateMetadata(
    1, 9, 2, 12, (values.LiveBroker(1, (values.BrokerEndpoint("A", "h", 1),), "r"),),
    (values.PartitionMetadata(PARTITION, TOPIC_ID, (1, 2, 3), STATE, (3,)),),
)  # fmt: skip
ASKS = (values.AlterPartition(PARTITION, TOPIC_ID, 1, 11, 5, 6, (1, 2, 3), {3: 13}),)
NAMES = {TOPIC_ID: PARTITION[0]}
PROPOSALS = replication.Proposals(ASKS)
# A message, how it is read, and how what was read is written again (None: it isn't a value by itself).
BETWEEN_BROKERS: list[tuple[Message, Callable[[Any], Any], Callable[[Any], Message] | None]] = [
    (replication.write_roles(ROLES), replication.read_roles, replication.write_roles),
    (replication.write_stops(STOPS), replication.read_stops, replication.write_stops),
    (replication.write_metadata(PICTURE), replication.read_metadata, replication.write_metadata),
    (replication.write_proposals(ASKS), lambda message: replication.read_proposals(message, NAMES), None),
    (REQUESTS[7](), replication.read_stopping, None),
    (
        replication.write_role_answers(values.LeaderAndIsrAnswer(2, 12, 0, 9, {PARTITION: values.RoleAnswer(6, 4, 9)}), ROLES),
        lambda message: replication.read_role_answers(message, ROLES),
        lambda value: replication.write_role_answers(value, ROLES),
    ),
    (
        replication.write_stop_answers(values.StopReplicaAnswer(2, 12, 0, 9, {PARTITION: 6})),
        lambda message: replication.read_stop_answers(message, STOPS),
        replication.write_stop_answers,
    ),
    (
        replication.write_proposal_answers([values.AlterPartitionAnswer(ASKS[0], 0, STATE)], PROPOSALS),
        lambda message: replication.read_proposal_answers(message, ASKS),
        lambda value: replication.write_proposal_answers(value, PROPOSALS),
    ),
    (
        replication.write_remaining(0, [PARTITION]),
        replication.read_remaining,
        lambda value: replication.write_remaining(*value),
    ),
]


def between_brokers_seeds() -> list[bytes]:
    """What brokers say to each other, one of each kind."""
    return [bytes([at]) + one.encode(one.MAX_VERSION) for at, (one, _, _) in enumerate(BETWEEN_BROKERS)]


@target(between_brokers_seeds)
def between_brokers(data: bytes) -> None:
    """What brokers say to each other: refused as bytes, or read as a value that survives being written and read again."""
    if not data:
        return
    one, read, write = BETWEEN_BROKERS[data[0] % len(BETWEEN_BROKERS)]
    kind, version = type(one), one.MAX_VERSION
    try:
        value = read(kind.decode(data[1:], version, elements_max=10_000))
    except WireError:
        return
    if write is not None:
        assert read(kind.decode(write(value).encode(version), version)) == value


def main() -> None:
    """`targets.py TARGET [libFuzzer's arguments]`, or `--list`."""
    if sys.argv[1:] == ["--list"]:
        print("\n".join(TARGETS))
        return
    name = sys.argv[1]
    if not rawbatch.__file__.startswith(os.environ["PYTHONPATH"].split(os.pathsep)[0]):
        sys.exit(f"{rawbatch.__file__} is not the sanitized module")
    folders = [Path(argument) for argument in sys.argv[2:] if not argument.startswith("-")]
    if folders and folders[0].is_dir():
        for number, seed in enumerate(SEEDS[name]()):
            (folders[0] / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
