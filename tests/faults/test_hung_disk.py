"""A write or fsync that doesn't come back holds up what needs that disk, not the control plane."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import ErrorCode
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import records, split
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import (
    AlterReplicaLogDirsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    HeartbeatRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceResponse,
)
from support import faultio
from support.harness import BrokerProcess, WireConnection
from support.pagecache import drop_cache
from support.patience import until
from support.transaction_wire import batch, init, produce, produce_request

# Each question is asked by a thread while a write to its log hangs; the main thread goes on meanwhile, and ends the hang.
SCRIPT = """
import os, sys, threading
from pathlib import Path
from support.logs import LOGS, Log, batch
from penstock.pyx.compaction.cleaner import Cleaner
from penstock.pyx.compaction.pace import Pace

control = Path(os.environ["FAULT_CTL"])
log = Log(Path(sys.argv[1]))
log.append(batch())
ask = {
    "offsets": lambda: LOGS.offsets(log.topic, 0).log_end,
    "write_checkpoints": LOGS.write_checkpoints,
    "size_bytes": lambda: LOGS.size_bytes(log.topic, 0),
    "segments": lambda: LOGS.segments(log.topic, 0),
    "producers": lambda: LOGS.producers(log.topic, 0),
    "sequences": lambda: LOGS.sequences(log.topic, 0, 7),
    "max_timestamp": lambda: LOGS.max_timestamp(log.topic, 0),
    "offset_for_epoch": lambda: LOGS.offset_for_epoch(log.topic, 0, 0),
    "reconfigure": lambda: LOGS.reconfigure(log.topic, 0, {"segment_bytes": 1000}),
    "compact": lambda: Cleaner(Pace(), 1 << 20).compact(LOGS, log.topic, 0, 0, 1, 0, 1000),
    "longest_write": LOGS.longest_write,
    "append": lambda: LOGS.append(log.topic, 0, batch(), 0),
}[sys.argv[2]]
control.write_text("write hang .log\\n")
writer = threading.Thread(target=log.append, args=(batch(),))
writer.start()
while not Path(f"{control}.hangs").exists():
    pass
asker = threading.Thread(target=ask)
asker.start()
for _ in range(100):
    threading.Event().wait(0.001)   # the asker gets its turns; with the lock of the interpreter it would keep it
control.write_text("")
writer.join()
asker.join()
print(LOGS.offsets(log.topic, 0).log_end)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faultio.build(tmp_path_factory.mktemp("faultio"))


def run(script: str, folder: Path, library: Path, *arguments: str) -> str:
    """What a script prints under the library."""
    answer = faultio.run(script, library, folder / "control", folder, *arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize(
    ("question", "log_end"),
    [
        ("offsets", 2), ("write_checkpoints", 2), ("size_bytes", 2), ("segments", 2), ("producers", 2), ("sequences", 2),
        ("max_timestamp", 2), ("offset_for_epoch", 2), ("reconfigure", 2), ("compact", 2), ("longest_write", 2),
        ("append", 3),
    ],
)  # fmt: skip
def test_nobody_waits_for_a_log_with_the_interpreters_lock(tmp_path: Path, library: Path, question: str, log_end: int) -> None:
    assert run(SCRIPT, tmp_path, library, question).split() == [str(log_end)]


# An append hangs, in its write or in the flush that its topic asks for.
LONG_SCRIPT = """
import os, sys, threading
from pathlib import Path
from support.logs import LOGS, Log, batch

control = Path(os.environ["FAULT_CTL"])
log = Log(Path(sys.argv[1]), flush_messages=1)
log.append(batch())
print(LOGS.longest_write().log_dir)
control.write_text(f"{sys.argv[2]} hang .log\\n")
writer = threading.Thread(target=log.append, args=(batch(),))
writer.start()
while LOGS.longest_write().ms < 50:
    threading.Event().wait(0.001)
print(LOGS.longest_write().log_dir == sys.argv[1])
control.write_text("")
writer.join()
print(LOGS.longest_write().ms)
"""


@pytest.mark.parametrize("call", ["write", "sync"])
def test_the_longest_write_is_known(tmp_path: Path, library: Path, call: str) -> None:
    assert run(LONG_SCRIPT, tmp_path, library, call).split("\n") == ["", "True", "0", ""]


# A flush hangs that began inside of a transaction, and the transaction's marker waits for the next one.
MARKER_SCRIPT = """
import os, sys, threading
from pathlib import Path
from penstock.pyx.record.rawbatch import marker
from support.logs import LOGS, Log, batch

control = Path(os.environ["FAULT_CTL"])
log = Log(Path(sys.argv[1]), flush_messages=2)
log.append(batch(producer=(7, 0, 0), transactional=True))
print(*LOGS.offsets(log.topic, 0)[1:4])
control.write_text("sync hang .log\\n")
flusher = threading.Thread(target=LOGS.flush, args=(log.topic, 0))
flusher.start()
while not Path(f"{control}.hangs").exists():
    pass
committer = threading.Thread(target=log.mark, args=(marker(True, 7, 0, 0, 0),))
committer.start()
while LOGS.offsets(log.topic, 0).log_end < 2:
    pass
print(*LOGS.offsets(log.topic, 0)[1:4])
control.write_text("")
flusher.join()
committer.join()
print(*LOGS.offsets(log.topic, 0)[1:4])
"""


def test_a_commit_is_seen_once_its_marker_is_flushed(tmp_path: Path, library: Path) -> None:
    lines = run(MARKER_SCRIPT, tmp_path, library).splitlines()
    # Last stable offset, high watermark, log end.
    assert lines == ["0 1 1", "0 1 2", "2 2 2"]


class Hanging:
    """A broker with two log folders; calls on files hang as a test says."""

    def __init__(self, root: Path, library: Path) -> None:
        self.control = root / "control"
        self.folders = [root / "first", root / "second"]
        self.broker = BrokerProcess(
            self.folders[0],
            {
                "log.dirs": self.folders[1],
                "num.network.threads": 4,
                "offsets.topic.num.partitions": 1,
                "log.retention.ms": -1,
                "log.cleaner.backoff.ms": 200,
            },
            environment={"LD_PRELOAD": str(library), "FAULT_CTL": str(self.control)},
        ).start()
        self.admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        with WireConnection(self.broker.bootstrap) as wire:
            commit(wire, "hung")  # makes the coordinator's topic, before any fault
        for name in ("hung", "other", "third", "fourth"):
            self.admin.create_topics([NewTopic(name, 1)])[name].result()
        self.wires = [WireConnection(self.broker.bootstrap) for _ in range(16)]
        for wire in self.wires:
            wire.ask(MetadataRequest(topics=[]), 9)

    def topics_of(self, which: int) -> list[str]:
        """Topics that lie in a folder."""
        return sorted(path.name[:-2] for path in self.folders[which].glob("[a-z]*-0"))

    def folders_of(self, topic: str) -> Path:
        """Where its partition lies."""
        return next(path for folder in self.folders if (path := folder / f"{topic}-0").is_dir())

    def hang(self, *rules: str) -> None:
        """Let calls hang, `CALL SUBSTRING` each; none or "" = all go on."""
        Path(f"{self.control}.hangs").unlink(missing_ok=True)
        beside = self.control.with_suffix(".new")
        each = (rule.partition(" ") for rule in rules if rule)
        beside.write_text("".join(f"{call} hang {where}\n" for call, _, where in each))
        beside.replace(self.control)

    def wait(self) -> None:
        """Until a call hangs."""
        until(Path(f"{self.control}.hangs").exists, "a call that hangs", self.broker.log_text)

    def answering(self, count: int) -> list[WireConnection]:
        """Connections whose network threads aren't those that hang."""
        found: list[WireConnection] = []
        waiting = self.wires[1:]
        for wire in waiting:
            wire.send(encode_request(MetadataRequest(topics=[]), 9, 1, "first"))
        while len(found) < count:
            ready = select.select([wire._socket for wire in waiting], [], [], 60)[0]
            assert ready, self.broker.log_text()
            for wire in [one for one in waiting if one._socket in ready]:
                wire.receive()
                waiting.remove(wire)
                found.append(wire)
        return found[:count]


@pytest.fixture
def hanging(tmp_path: Path, library: Path) -> Iterator[Hanging]:
    made = Hanging(tmp_path, library)
    yield made
    made.hang("")
    made.broker.close()


def commit(wire: WireConnection, topic: str) -> int:
    kind = OffsetCommitRequest
    part = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    asked = kind(group_id="g", topics=[kind.OffsetCommitRequestTopic(name=topic, partitions=[part])])
    return int(wire.ask(asked, 8).topics[0].partitions[0].error_code)


def list_offsets(topic: str, timestamp: int) -> ListOffsetsRequest:
    kind = ListOffsetsRequest
    part = kind.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name=topic, partitions=[part])])


def offset_of(wire: WireConnection, topic: str, timestamp: int) -> tuple[int, int]:
    part = wire.ask(list_offsets(topic, timestamp), 7).topics[0].partitions[0]
    return part.error_code, part.offset


def epoch_end(topic: str) -> OffsetForLeaderEpochRequest:
    kind = OffsetForLeaderEpochRequest
    part = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return kind(replica_id=-2, topics=[kind.OffsetForLeaderTopic(topic=topic, partitions=[part])])


def alter(topic: str, segment_bytes: str = "2000000") -> IncrementalAlterConfigsRequest:
    kind = IncrementalAlterConfigsRequest
    config = kind.AlterableConfig(name="internal.segment.bytes", config_operation=0, value=segment_bytes)
    return kind(resources=[kind.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])])


def describe_configs(topic: str) -> DescribeConfigsRequest:
    kind = DescribeConfigsRequest
    return kind(resources=[kind.DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None)])


def describe_producers(topic: str) -> DescribeProducersRequest:
    kind = DescribeProducersRequest
    return kind(topics=[kind.TopicRequest(name=topic, partition_indexes=[0])])


def delete_records(topic: str, offset: int = 0, timeout_ms: int = 60_000) -> DeleteRecordsRequest:
    kind = DeleteRecordsRequest
    part = kind.DeleteRecordsPartition(partition_index=0, offset=offset)
    return kind(topics=[kind.DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=timeout_ms)


def ask_all(wire: WireConnection, topic: str = "other") -> None:
    """Requests of every kind that the control plane answers, of a partition that works."""
    every: list[tuple[Message, int]] = [
        (MetadataRequest(topics=None), 9),
        (FindCoordinatorRequest(key="g"), 2),
        (HeartbeatRequest(group_id="g", generation_id=1, member_id="nobody"), 3),
        (OffsetFetchRequest(group_id="g", topics=None), 5),
        (describe_configs(topic), 2),
        (DescribeLogDirsRequest(topics=None), 2),
        (epoch_end(topic), 3),
        (alter(topic), 1),
        (delete_records(topic), 1),
        (describe_producers(topic), 0),
    ]
    for request, version in every:
        wire.ask(request, version)
    assert commit(wire, topic) == 0
    for timestamp in (-1, -2, -3):
        assert offset_of(wire, topic, timestamp)[0] == 0
    assert produce(wire, None, 9, (topic, 0, batch((-1, -1), -1, transactional=False))) == [0]


# What a client may ask of the partition that hangs, and doesn't need its disk.
ASKED_OF_HUNG: dict[str, Callable[[WireConnection], Any]] = {
    "latest": lambda wire: offset_of(wire, "hung", -1),
    "earliest": lambda wire: offset_of(wire, "hung", -2),
    "old": lambda wire: wire.ask(list_offsets("hung", -1), 0),
    "epoch": lambda wire: wire.ask(epoch_end("hung"), 3),
    "sizes": lambda wire: wire.ask(DescribeLogDirsRequest(topics=None), 2),
    "config": lambda wire: wire.ask(alter("hung"), 1),
    "commit": lambda wire: commit(wire, "hung"),
}


def test_the_control_plane_answers_while_a_write_hangs(hanging: Hanging) -> None:
    with WireConnection(hanging.broker.bootstrap) as first:
        for topic in ("hung", "other"):
            assert produce(first, None, 9, (topic, 0, batch((-1, -1), -1, transactional=False))) == [0]
    writer = hanging.wires[0]
    hanging.hang("write hung-0/0000")
    asked = produce_request(writer, None, 9, ("hung", 0, batch((-1, -1), -1, transactional=False)))
    writer.send(encode_request(asked, 9, 1, "writer"))
    hanging.wait()
    waits, asks, new = hanging.answering(3)
    # What needs that partition's lock waits, each in a thread of its folder, and holds up nobody else.
    waits.send(encode_request(describe_producers("hung"), 0, 1, "waits"))
    for ask in ASKED_OF_HUNG.values():
        ask(asks)
    assert offset_of(asks, "hung", -1) == (0, 1)
    ask_all(new)
    hanging.hang("")
    writer.receive()
    waits.receive()
    assert offset_of(asks, "hung", -1) == (0, 2)


def test_other_folders_are_served_while_checkpoints_hang(hanging: Hanging) -> None:
    wires = iter(hanging.wires)
    first = next(wires)
    one, healthy = hanging.topics_of(1)[0], hanging.topics_of(0)[0]
    for topic in (*hanging.topics_of(1), healthy):
        assert produce(first, None, 9, (topic, 0, batch((-1, -1), -1, transactional=False))) == [0]
    hanging.hang("sync second/penstock-checkpoints")
    waiting = [next(wires) for _ in range(12)]
    # The first is in its fsync; each of the others, too, has a log start to give to that folder's checkpoints.
    for number, wire in enumerate(waiting):
        wire.send(encode_request(delete_records(one, 1), 1, 1, "waits"))
        if not number:
            hanging.wait()
    # A roll is told to the loop, which then asks for the state of all folders.
    assert first.ask(alter(healthy, "100"), 1).responses[0].error_code == 0
    for _ in range(3):
        assert produce(first, None, 9, (healthy, 0, batch((-1, -1), -1, transactional=False))) == [0]
    until(lambda: len(list((hanging.folders[0] / f"{healthy}-0").glob("*.log"))) > 1, "a roll")
    for topic in (healthy, one):
        assert offset_of(first, topic, -1)[0] == 0
    answer = first.ask(delete_records(healthy, 1), 1)
    assert answer.topics[0].partitions[0].low_watermark == 1
    ask_all(next(wires), healthy)
    hanging.hang("")
    for wire in waiting:
        wire.receive()
    assert offset_of(first, one, -2) == (0, 1)


def fetch(topic: str, offset: int, isolation: int, wait_ms: int) -> FetchRequest:
    kind = FetchRequest
    part = kind.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return kind(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        isolation_level=isolation,
        topics=[kind.FetchTopic(topic=topic, partitions=[part])],
    )


def hang_a_flush(hanging: Hanging, asks: WireConnection, writer: WireConnection) -> None:
    """In the topic `flushed` a first record is flushed; the flush of a second one, which `writer` has sent, hangs."""
    hanging.admin.create_topics([NewTopic("flushed", 1, config={"flush.messages": "1"})])["flushed"].result()
    assert produce(asks, None, 9, ("flushed", 0, batch((-1, -1), -1, b"first", transactional=False))) == [0]
    hanging.hang("sync flushed-0/0000")
    asked = produce_request(asks, None, 9, ("flushed", 0, batch((-1, -1), -1, b"second", transactional=False)))
    writer.send(encode_request(asked, 9, 1, "writer"))
    hanging.wait()


@pytest.mark.parametrize("isolation", [0, 1])
def test_nobody_reads_what_flush_messages_has_not_flushed(hanging: Hanging, isolation: int) -> None:
    asks, waits, writer = hanging.wires[:3]
    hang_a_flush(hanging, asks, writer)
    waits.send(encode_request(fetch("flushed", 1, isolation, 60_000), 11, 1, "waits"))
    part = asks.ask(fetch("flushed", 0, isolation, 0), 11).responses[0].partitions[0]
    assert b"first" in bytes(part.records or b"") and b"second" not in bytes(part.records or b"")
    assert (part.high_watermark, part.last_stable_offset) == (1, 1)
    assert asks.ask(fetch("flushed", 1, isolation, 0), 11).responses[0].partitions[0].records == b""
    assert offset_of(asks, "flushed", -1) == (0, 1)
    hanging.hang("")
    writer.receive()
    _, answer = decode_response(FetchResponse, waits.receive(), 11)
    part = answer.responses[0].partitions[0]
    assert b"second" in bytes(part.records or b"") and part.high_watermark == 2
    assert offset_of(asks, "flushed", -1) == (0, 2)


def test_a_flush_that_hangs_holds_up_no_other_folders_flushes(hanging: Hanging) -> None:
    for i in range(4):
        name = f"flushed{i}"
        hanging.admin.create_topics([NewTopic(name, 1, config={"flush.messages": "1"})])[name].result()
    hung, works = (next(name for name in hanging.topics_of(i) if name.startswith("flushed")) for i in (1, 0))
    wires = iter(hanging.wires)
    asks = next(wires)
    hanging.hang("sync second/flushed")
    waiting = [next(wires) for _ in range(6)]
    for wire in waiting:
        asked = produce_request(wire, None, 9, (hung, 0, batch((-1, -1), -1, transactional=False)))
        wire.send(encode_request(asked, 9, 1, "waits"))
    hanging.wait()
    assert produce(asks, None, 9, (works, 0, batch((-1, -1), -1, transactional=False))) == [0]
    hanging.hang("")
    for wire in waiting:
        wire.receive()
    assert offset_of(asks, hung, -1) == (0, 6)


def test_topics_come_and_go_while_a_deletion_hangs(hanging: Hanging) -> None:
    hung, works = hanging.topics_of(1)[0], hanging.topics_of(0)[0]
    asks, waits, again = hanging.wires[:3]
    assert produce(asks, None, 9, (hung, 0, batch((-1, -1), -1, transactional=False))) == [0]
    hanging.hang(f"remove second/{hung}-0.")
    waits.send(encode_request(DeleteTopicsRequest(topic_names=[hung], timeout_ms=60_000), 5, 1, "waits"))
    hanging.wait()
    again.send(encode_request(create_topic(hung), 5, 1, "again"))
    for request, version in ((create_topic("new"), 5), (create_topic("more"), 5)):
        assert asks.ask(request, version).topics[0].error_code == 0
    assert asks.ask(alter(works), 1).responses[0].error_code == 0
    assert asks.ask(DeleteTopicsRequest(topic_names=[works], timeout_ms=60_000), 5).responses[0].error_code == 0
    assert hung not in [topic.name for topic in asks.ask(MetadataRequest(topics=None), 9).topics]
    hanging.hang("")
    _, deleted = decode_response(DeleteTopicsResponse, waits.receive(), 5)
    _, created = decode_response(CreateTopicsResponse, again.receive(), 5)
    assert deleted.responses[0].error_code == created.topics[0].error_code == 0
    assert offset_of(asks, hung, -1) == (0, 0)


def create_topic(name: str, timeout_ms: int = 60_000) -> CreateTopicsRequest:
    kind = CreateTopicsRequest
    return kind(topics=[kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1)], timeout_ms=timeout_ms)


def placed(hanging: Hanging, which: int, **configs: str) -> str:
    """A new topic that lies in one of the folders."""
    for number in range(10):
        name = f"placed{len(hanging.topics_of(0)) + len(hanging.topics_of(1))}x{number}"
        hanging.admin.create_topics([NewTopic(name, 1, config=configs)])[name].result()
        if name in hanging.topics_of(which):
            return name
    raise AssertionError("no topic was placed there")


class Asking(NamedTuple):
    """All threads of a folder that ask logs wait for one that hangs."""

    queued: str  # another topic of that folder, of one record
    elsewhere: str  # one of the other folder
    wires: list[WireConnection]  # that answer


@pytest.fixture
def asking(hanging: Hanging) -> Iterator[Asking]:
    writer, asks = hanging.wires[:2]
    folder = next(which for which in (0, 1) if "hung" in hanging.topics_of(which))
    made = placed(hanging, folder)
    for topic in ("hung", made):
        assert produce(asks, None, 9, (topic, 0, batch((-1, -1), -1, transactional=False))) == [0]
    hanging.hang("write hung-0/0000")
    asked = produce_request(writer, None, 9, ("hung", 0, batch((-1, -1), -1, transactional=False)))
    writer.send(encode_request(asked, 9, 1, "writer"))
    hanging.wait()
    wires = hanging.answering(7)
    for wire in wires[:4]:
        wire.send(encode_request(describe_producers("hung"), 0, 1, "asks"))
    wires[4].ask(MetadataRequest(topics=None), 9)  # answered after the threads have begun
    yield Asking(made, next(name for name in hanging.topics_of(1 - folder) if name != "__consumer_offsets"), wires[4:])
    hanging.hang("")
    for wire in (writer, *wires[:4]):
        wire.receive()


def test_what_waits_is_done_to_no_later_topic_of_the_name(hanging: Hanging, asking: Asking) -> None:
    topic = asking.queued
    late, late_offsets, asks = asking.wires
    timed_out = asks.ask(delete_records(topic, -1, timeout_ms=1), 1)
    assert timed_out.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    late.send(encode_request(delete_records(topic, -1), 1, 1, "late"))
    late_offsets.send(encode_request(list_offsets(topic, -3), 7, 1, "late"))
    ask_all(asks, asking.elsewhere)  # so that both wait by now
    assert asks.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=60_000), 5).responses[0].error_code == 0
    assert asks.ask(create_topic(topic), 5).topics[0].error_code == 0
    for _ in range(20):
        assert produce(asks, None, 9, (topic, 0, batch((-1, -1), -1, transactional=False))) == [0]
    hanging.hang("")
    _, answer = decode_response(DeleteRecordsResponse, late.receive(), 1)
    part = answer.topics[0].partitions[0]
    assert (part.error_code, part.low_watermark) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    _, listed = decode_response(ListOffsetsResponse, late_offsets.receive(), 7)
    assert listed.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (offset_of(asks, topic, -2), offset_of(asks, topic, -1)) == ((0, 0), (0, 20))


def test_the_newest_record_is_found_if_it_came_while_the_request_waited(hanging: Hanging, asking: Asking) -> None:
    waits, asks = asking.wires[:2]
    waits.send(encode_request(list_offsets(asking.queued, -3), 7, 1, "waits"))
    ask_all(asks, asking.elsewhere)  # so that it waits by now
    builder = BatchBuilder()
    builder.append(None, b"newer", 1_700_000_000_001)
    newer = bytes(builder.build(-1, -1, -1, False))
    assert produce(asks, None, 9, (asking.queued, 0, newer)) == [0]
    hanging.hang("")
    _, answer = decode_response(ListOffsetsResponse, waits.receive(), 7)
    part = answer.topics[0].partitions[0]
    assert (part.error_code, part.offset, part.timestamp) == (0, 1, 1_700_000_000_001)


def test_an_append_waits_for_what_lies_in_front_of_it(hanging: Hanging) -> None:
    """flush.messages is removed while a flush hangs."""
    asks, writer = hanging.wires[:2]
    hang_a_flush(hanging, asks, writer)
    kind = IncrementalAlterConfigsRequest
    config = kind.AlterableConfig(name="flush.messages", config_operation=1, value=None)
    removed = kind(resources=[kind.AlterConfigsResource(resource_type=2, resource_name="flushed", configs=[config])])
    assert asks.ask(removed, 1).responses[0].error_code == 0
    other = hanging.wires[2]
    asked = produce_request(asks, None, 9, ("flushed", 0, batch((-1, -1), -1, b"third", transactional=False)))
    other.send(encode_request(asked, 9, 1, "other"))
    until(lambda: b"third" in next(hanging.folders_of("flushed").glob("*.log")).read_bytes(), "an append")
    reader = hanging.answering(1)[0]
    part = reader.ask(fetch("flushed", 0, 0, 0), 11).responses[0].partitions[0]
    assert b"second" not in bytes(part.records or b"") and part.high_watermark == 1
    hanging.hang("")
    writer.receive()
    other.receive()
    assert offset_of(reader, "flushed", -1) == (0, 3)


def test_metadata_is_answered_while_a_deletion_hangs(hanging: Hanging) -> None:
    hung, works = hanging.topics_of(1)[0], hanging.topics_of(0)[0]
    behind = hanging.topics_of(1)[1]
    asks, waits, waits_behind = hanging.wires[:3]
    for topic in (hung, behind):
        assert produce(asks, None, 9, (topic, 0, batch((-1, -1), -1, transactional=False))) == [0]
    hanging.hang(f"remove second/{hung}-0.")
    waits.send(encode_request(DeleteTopicsRequest(topic_names=[hung], timeout_ms=1), 5, 1, "waits"))
    hanging.wait()
    _, deleted = decode_response(DeleteTopicsResponse, waits.receive(), 5)
    assert deleted.responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert asks.ask(create_topic(hung, timeout_ms=1), 5).topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    until(lambda: f"the deletion of topic={hung} waits" in hanging.broker.log_text(), "a line about the deletion")
    kind = MetadataRequest
    both = kind(topics=[kind.MetadataRequestTopic(name=name) for name in (hung, works)], allow_auto_topic_creation=True)
    found = {topic.name: topic.error_code for topic in asks.ask(both, 9).topics}
    assert found == {hung: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, works: 0}
    # One that waits behind it in its folder is gone at once, too: nothing is acknowledged that its deletion takes along.
    waits_behind.send(encode_request(DeleteTopicsRequest(topic_names=[behind], timeout_ms=60_000), 5, 1, "waits"))
    until(lambda: behind not in [one.name for one in asks.ask(MetadataRequest(topics=None), 9).topics], "a deletion")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(asks, None, 9, (behind, 0, batch((-1, -1), -1, transactional=False))) == [unknown]
    assert asks.ask(fetch(behind, 0, 0, 0), 11).responses[0].partitions[0].error_code == unknown
    hanging.hang("")
    _, deleted = decode_response(DeleteTopicsResponse, waits_behind.receive(), 5)
    assert deleted.responses[0].error_code == 0
    until(lambda: hung in [one.name for one in asks.ask(MetadataRequest(topics=None), 9).topics], "the topic again")


def test_a_transactions_first_flush_holds_up_nobody(hanging: Hanging) -> None:
    hung = placed(hanging, 1, **{"flush.messages": "1"})
    wires = iter(hanging.wires)
    writer, asks = next(wires), next(wires)
    until(lambda: init(writer, "t")[0] == 0, "a producer id")
    _, producer_id, epoch = init(writer, "t")
    hanging.hang(f"sync second/{hung}-0/0000")
    asked = produce_request(writer, "t", 12, (hung, 0, batch((producer_id, epoch), 0)))
    writer.send(encode_request(asked, 12, 1, "writer"))
    hanging.wait()
    ask_all(asks, hanging.topics_of(0)[0])
    part = asks.ask(fetch(hung, 0, 0, 0), 11).responses[0].partitions[0]
    assert part.high_watermark == 0
    hanging.hang("")
    _, answer = decode_response(ProduceResponse, writer.receive(), 12)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert asks.ask(fetch(hung, 0, 0, 0), 11).responses[0].partitions[0].high_watermark == 1


def test_cold_reads_of_a_hung_disk_hold_up_no_other_folders(hanging: Hanging) -> None:
    hung, works = hanging.topics_of(1)[0], hanging.topics_of(0)[0]
    asks = hanging.wires[0]
    large = os.urandom(400_000)
    for topic in (hung, works):
        for _ in range(4):
            assert produce(asks, None, 9, (topic, 0, batch((-1, -1), -1, large, transactional=False))) == [0]
    for file in (path for folder in hanging.folders for path in folder.glob("*-0/*.log")):
        if file.stat().st_size:
            until(partial(drop_cache, file), "pages that can be dropped")
    hanging.hang("direct second/", "read second/")
    waiting = hanging.wires[1:5]
    for wire in waiting:
        wire.send(encode_request(fetch(hung, 0, 0, 500), 11, 1, "waits"))
    hanging.wait()
    part = hanging.wires[5].ask(fetch(works, 0, 0, 500), 11).responses[0].partitions[0]
    assert len(part.records or b"") > len(large)
    hanging.hang("")
    for wire in waiting:
        wire.receive()


def is_another(file: Path, inode: int) -> bool:
    """Whether there is a file in the place of one with that number."""
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_ino != inode
    return False


def test_a_disk_that_hangs_holds_up_no_other_folders_compaction(hanging: Hanging) -> None:
    """The backups of the metadata store are kept beside it, too, and its removal is seen."""
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}
    hung, works = placed(hanging, 1, **configs), placed(hanging, 0, **configs)
    asks, alters = hanging.wires[:2]
    hanging.hang("sync second/")

    def fill(topic: str) -> None:
        for number in range(60):
            builder = BatchBuilder()
            builder.append(b"key", b"%d" % number * 50, 1_700_000_000_000)
            assert produce(asks, None, 9, (topic, 0, bytes(builder.build(-1, -1, -1, False)))) == [0]

    fill(hung)
    hanging.wait()
    fill(works)
    log_text = hanging.broker.log_text
    until(lambda: f"compacted topic={works}" in log_text(), "a compaction", log_text)
    backup = hanging.folders[0] / "metadata.db.backup"
    until(backup.exists, "a backup")
    for size in ("3000", "4000"):
        before = backup.stat().st_ino
        assert alters.ask(alter(works, size), 1).responses[0].error_code == 0
        until(partial(is_another, backup, before), "a newer backup", log_text)
    (hanging.folders[0] / "metadata.db").rename(hanging.folders[0] / "metadata.db.away")
    until(lambda: "while the broker runs: from now on" in log_text(), "a word about the store", log_text)
    (hanging.folders[0] / "metadata.db.away").rename(hanging.folders[0] / "metadata.db")
    hanging.hang("")
    until(lambda: f"compacted topic={hung}" in log_text(), "the other compaction", log_text)


def test_a_stop_leaves_a_deletion_that_hangs_to_the_next_start(hanging: Hanging) -> None:
    hung = hanging.topics_of(1)[0]
    asks, waits = hanging.wires[:2]
    assert produce(asks, None, 9, (hung, 0, batch((-1, -1), -1, transactional=False))) == [0]
    hanging.hang(f"remove second/{hung}-0.")
    waits.send(encode_request(DeleteTopicsRequest(topic_names=[hung], timeout_ms=60_000), 5, 1, "waits"))
    hanging.wait()
    assert hanging.broker.stop() == 0
    assert "the stop waits for deletions of topics in" in hanging.broker.log_text()
    hanging.hang("")
    hanging.broker.start()
    assert not list(hanging.folders[1].glob(f"{hung}-0*"))
    with WireConnection(hanging.broker.bootstrap) as wire:
        assert hung not in [topic.name for topic in wire.ask(MetadataRequest(topics=None), 9).topics]


def move(topic: str, to: Path) -> AlterReplicaLogDirsRequest:
    kind = AlterReplicaLogDirsRequest
    return kind(dirs=[kind.AlterReplicaLogDir(path=str(to), topics=[kind.AlterReplicaLogDirTopic(name=topic, partitions=[0])])])


def test_a_move_whose_disk_hangs_refuses_produces_until_it_is_over(hanging: Hanging) -> None:
    """Produces that come while the folders are swapped are held, but not for as long as a disk hangs: then they hear an error
    that clients try again. What was refused goes on in its order, once."""
    asks, writer = hanging.wires[:2]
    here = next(which for which in (0, 1) if "hung" in hanging.topics_of(which))
    others = [topic for which in (0, 1) for topic in hanging.topics_of(which) if topic not in ("hung", "__consumer_offsets")]
    error, producer_id, epoch = init(asks, None)
    assert error == 0

    def send(*sequences: int) -> list[int]:
        for sequence in sequences:
            data = batch((producer_id, epoch), sequence, b"%d" % sequence, transactional=False)
            asked = produce_request(writer, None, 9, ("hung", 0, data))
            writer.send(encode_request(asked, 9, sequence, "writer"))
        answers = [decode_response(ProduceResponse, writer.receive(), 9) for _ in sequences]
        assert [number for number, _ in answers] == list(sequences)
        return [answer.responses[0].partition_responses[0].error_code for _, answer in answers]

    assert send(0, 1) == [0, 0]
    hanging.hang("rename /hung-0.")
    assert asks.ask(move("hung", hanging.folders[1 - here]), 2).results[0].partitions[0].error_code == 0
    hanging.wait()
    for _ in range(2):
        assert set(send(2, 3, 4, 5, 6)) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}, "they were answered while the disk hangs"
        for topic in others:
            assert produce(asks, None, 9, (topic, 0, batch((-1, -1), -1, transactional=False))) == [0]
            assert asks.ask(fetch(topic, 0, 0, 0), 11).responses[0].partitions[0].error_code == 0
    hanging.hang("")
    until(lambda: send(2, 3, 4, 5, 6) == [0] * 5, "a partition that serves again", hanging.broker.log_text)
    assert send(7, 8) == [0, 0]
    assert hanging.folders_of("hung") == hanging.folders[1 - here] / "hung-0"
    part = asks.ask(fetch("hung", 0, 0, 0), 11).responses[0].partitions[0]
    values = [record.value for raw in split(bytes(part.records or b"")) for record in records(raw)]
    assert values == [b"%d" % sequence for sequence in range(9)]
