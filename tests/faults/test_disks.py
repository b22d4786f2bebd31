"""Disks that fail and disks that are full, under a real broker: what is hit says so, everything else serves."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from penstock.errors import ErrorCode
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import (
    AlterClientQuotasRequest,
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    ProduceResponse,
)
from support import faultio
from support.dataplane import Peer, batch, produce, produced
from support.harness import BrokerProcess, WireConnection
from support.pagecache import drop_cache_or_skip
from support.patience import until

TOPIC = "spread"
PARTITIONS = 4
WAIT_S = 60.0
SMALL = {"internal.segment.bytes": "1000"}


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes calls fail."""
    return faultio.build(tmp_path_factory.mktemp("faultio"))


class Disks:
    """A broker with two log folders whose calls can be made to fail."""

    def __init__(self, root: Path, shim: Path, topic: dict[str, str] | None = None, **properties: object) -> None:
        self.control = root / "control"
        self.folders = [root / "first", root / "second"]
        settings = {
            "log.dirs": self.folders[1],
            "log.flush.interval.ms": 100,
            "log.flush.scheduler.interval.ms": 100,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        environment = {"LD_PRELOAD": str(shim), "FAULT_CTL": str(self.control)}
        self.broker = BrokerProcess(self.folders[0], settings, environment=environment).start()
        self.admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        self.admin.create_topics([NewTopic(TOPIC, PARTITIONS, config=topic or {})])[TOPIC].result()
        # Closing a reader waits for its group's coordinator, whose topic is made at its first use: before any fault.
        self.values(0)

    def plant(self, *rules: str) -> None:
        """Replace the rules; none = all works."""
        beside = self.control.with_suffix(".new")
        beside.write_text("".join(f"{rule}\n" for rule in rules))
        beside.replace(self.control)

    def in_folder(self, which: int) -> list[int]:
        """The partitions that lie in a folder."""
        return sorted(int(path.name.rpartition("-")[2]) for path in self.folders[which].glob(f"{TOPIC}-*"))

    def produce(self, partition: int, value: bytes | None = b"x", timeout_ms: int = 30_000) -> KafkaError | None:
        """Produce one record; the error that it ended with, None = acknowledged. Retries as clients do."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "message.timeout.ms": timeout_ms, "linger.ms": 0})
        ended: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            ended.append(error)

        producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)
        producer.flush(WAIT_S)
        return ended[0]

    def values(self, partition: int) -> list[bytes | None]:
        """Every record of a partition."""
        reader = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "none", "enable.partition.eof": True})
        reader.assign([TopicPartition(TOPIC, partition, 0)])
        found: list[bytes | None] = []
        while (message := reader.poll(WAIT_S)) is not None and not message.error():
            found.append(message.value())
        assert message is not None and message.error().code() == KafkaError._PARTITION_EOF
        reader.close()
        return found

    def describe(self) -> dict[str, int]:
        """Error codes of the log folders."""
        with WireConnection(self.broker.bootstrap) as connection:
            answer = connection.ask(DescribeLogDirsRequest(topics=None), 4)
        return {Path(result.log_dir).name: result.error_code for result in answer.results}

    def until(self, text: str) -> None:
        """Wait until the broker's log has a text."""
        until(lambda: text in self.broker.log_text(), f"`{text}` in the log", lambda: self.broker.log_text()[-2000:])


@pytest.fixture
def disks(tmp_path: Path, shim: Path) -> Iterator[Disks]:
    made = Disks(tmp_path, shim)
    yield made
    made.broker.kill()


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_folder_that_fails_takes_only_its_partitions_along(disks: Disks, call: str) -> None:
    assert len(disks.in_folder(0)) == len(disks.in_folder(1)) == PARTITIONS // 2
    for partition in range(PARTITIONS):
        assert disks.produce(partition, b"before") is None
    disks.plant(f"{call} {errno.EIO} {disks.folders[1]}/{TOPIC}")
    broken, other = disks.in_folder(1)
    disks.produce(broken, b"lost or kept", timeout_ms=1000)
    disks.until("failed and is offline until the next start")
    disks.plant()  # Nothing is tried again, also when it would go well.
    for partition in (broken, other):
        assert disks.produce(partition, timeout_ms=1000) is not None
    for partition in disks.in_folder(0):
        assert disks.produce(partition, b"after") is None
        assert disks.values(partition) == [b"before", b"after"]
    assert disks.describe() == {"first": 0, "second": ErrorCode.KAFKA_STORAGE_ERROR}
    metadata = disks.admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions
    assert {index: found.leader for index, found in metadata.items()} == {
        index: -1 if index in disks.in_folder(1) else 1 for index in range(PARTITIONS)
    }
    assert disks.broker.log_text().count("failed and is offline") == 1
    disks.broker.stop()
    # The folder comes back: what was acknowledged is all there.
    disks.broker.start()
    assert disks.values(broken)[0] == b"before"
    assert disks.produce(other, b"again") is None
    assert disks.values(other) == [b"before", b"again"]


def test_a_move_to_a_disk_that_fails_leaves_the_partition_where_it_is(disks: Disks) -> None:
    moved = disks.in_folder(0)[0]
    assert disks.produce(moved, b"before") is None
    disks.plant(f"sync {errno.EIO} {disks.folders[1]}/{TOPIC}-{moved}.")
    own = AlterReplicaLogDirsRequest
    asked = own.AlterReplicaLogDirTopic(name=TOPIC, partitions=[moved])
    with WireConnection(disks.broker.bootstrap) as connection:
        connection.ask(own(dirs=[own.AlterReplicaLogDir(path=str(disks.folders[1]), topics=[asked])]), 2)
    disks.until(f"its move to {disks.folders[1]} failed while copying its files: [Errno {errno.EIO}]")
    disks.until(f"it lies in {disks.folders[0]}: mend what is wrong")
    assert disks.produce(moved, b"after") is None
    assert disks.values(moved) == [b"before", b"after"]
    until(lambda: not list(disks.folders[1].glob("*-future")), "the copy's removal")


def test_reading_a_broken_file_takes_its_folder_offline(disks: Disks) -> None:
    broken, healthy = disks.in_folder(1)[0], disks.in_folder(0)[0]
    for value in (b"1", b"2", b"3"):
        assert disks.produce(broken, value) is None
    assert disks.produce(healthy, b"1") is None
    disks.plant(f"read {errno.EIO} {disks.folders[1]}/{TOPIC}")
    reader = Consumer({"bootstrap.servers": disks.broker.bootstrap, "group.id": "none"})
    reader.assign([TopicPartition(TOPIC, broken, 1)])  # Not the tail, whose place is known: it has to be looked for.
    reader.poll(1)
    disks.until("failed and is offline until the next start")
    reader.close()
    assert disks.values(healthy) == [b"1"]


def test_a_disk_that_refuses_direct_reads_is_read_through_the_page_cache(disks: Disks) -> None:
    partition = disks.in_folder(1)[0]
    values = [bytes([n]) * 900_000 for n in range(5)]
    for value in values:
        assert disks.produce(partition, value) is None
    folder = disks.folders[1] / f"{TOPIC}-{partition}"
    (log,) = folder.glob("*.log")
    drop_cache_or_skip(log)
    disks.plant(f"direct hang {folder}")
    with ThreadPoolExecutor(1) as reader:
        found = reader.submit(disks.values, partition)
        until(Path(f"{disks.control}.hangs").exists, "a read past the page cache")
        disks.plant(f"direct {errno.EINVAL} {folder}")
        assert found.result() == values


def test_when_the_last_folder_fails_the_broker_stops(disks: Disks) -> None:
    disks.plant(*(f"write {errno.EIO} {folder}/{TOPIC}" for folder in disks.folders))
    for which in range(2):
        disks.produce(disks.in_folder(which)[0], timeout_ms=1000)
    disks.until("no log folder works: the broker stops")
    until(lambda: not disks.broker.running, "the end of a broker without a disk")


def test_a_folder_that_can_not_be_opened_leaves_the_others_serving(tmp_path: Path, shim: Path) -> None:
    disks = Disks(tmp_path, shim)
    try:
        for partition in range(PARTITIONS):
            assert disks.produce(partition, b"before") is None
        disks.broker.kill()
        held = disks.in_folder(1)
        disks.folders[1].rename(tmp_path / "away")
        disks.folders[1].write_text("not a folder")
        disks.broker.start()
        for partition in disks.in_folder(0):
            assert disks.values(partition) == [b"before"]
        assert disks.produce(held[0], timeout_ms=1000) is not None
        # Of a partition that isn't to be seen nothing new is made elsewhere.
        assert disks.in_folder(0) == sorted(set(range(PARTITIONS)) - set(held))
        disks.broker.stop()
        disks.folders[1].unlink()
        (tmp_path / "away").rename(disks.folders[1])
        disks.broker.start()
        assert disks.values(held[0]) == [b"before"]
    finally:
        disks.broker.kill()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_and_recovers_by_itself(disks: Disks, number: int) -> None:
    full, other = disks.in_folder(1)[0], disks.in_folder(0)[0]
    assert (disks.folders[1] / ".ballast").stat().st_size > 0
    assert disks.produce(full, b"before") is None
    disks.plant(f"write {number} {disks.folders[1]}")
    error = disks.produce(full, b"refused", timeout_ms=1000)
    assert error is not None
    disks.until("is full")
    assert disks.values(full) == [b"before"]
    assert disks.produce(other, b"elsewhere") is None
    disks.plant()
    assert disks.produce(full, b"after", timeout_ms=int(WAIT_S * 1000)) is None
    assert disks.values(full) == [b"before", b"after"]
    disks.until("has room again")
    assert "offline" not in disks.broker.log_text()
    disks.broker.kill()
    disks.broker.start()
    assert disks.values(full) == [b"before", b"after"]


def refused(disks: Disks, partition: int, version: int) -> tuple[int, str | None]:
    """What the answer to a produce says: its error and its words."""
    frame = encode_request(produce(TOPIC, batch([b"x"]), version, index=partition), version, 1, "refused")
    with Peer(disks.broker.port) as peer:
        peer.send_all([frame])
        answer = produced(decode_response(ProduceResponse, peer.receive(), version)[1])
    return answer.error_code, answer.error_message


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EIO, "the partition is offline: its disk failed"),
        (errno.ENFILE, "the broker is short of memory or file descriptors"),
    ],
)
def test_a_produce_is_told_why_the_disk_refuses_it(disks: Disks, number: int, words: str) -> None:
    partition = disks.in_folder(1)[0]
    disks.plant(f"write {number} {disks.folders[1]}")
    for version in (8, 9):
        code, said = refused(disks, partition, version)
        assert code == ErrorCode.KAFKA_STORAGE_ERROR and (said or "").startswith(words)
    assert refused(disks, partition, 7) == (ErrorCode.KAFKA_STORAGE_ERROR, None)  # It has no place for words.
    disks.plant()
    if number != errno.EIO:
        until(lambda: refused(disks, partition, 9) == (0, None), "the same records to be taken", disks.broker.log_text)


def test_an_admin_is_told_why_the_store_refuses_a_change(disks: Disks) -> None:
    disks.plant(f"write {errno.ENOSPC} {disks.folders[0]}/metadata")
    entity = AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="somebody")
    value = AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1000.0)
    asked = AlterClientQuotasRequest(entries=[AlterClientQuotasRequest.EntryData(entity=[entity], ops=[value])])
    with WireConnection(disks.broker.bootstrap) as connection:
        (entry,) = connection.ask(asked, 1).entries
    assert entry.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert f"the disk of `{disks.folders[0]}/metadata.db` refuses it: database or disk is full" in (entry.error_message or "")


def test_a_disk_that_hangs_holds_up_no_other_folders_upkeep(tmp_path: Path, shim: Path) -> None:
    settings = {"log_retention_check_interval_ms": 100, "log_initial_task_delay_ms": 0}
    disks = Disks(tmp_path, shim, SMALL, **settings, penstock_ballast_bytes=0)
    try:
        hung, other = disks.in_folder(1)[0], disks.in_folder(0)[0]
        disks.plant(f"sync hang {disks.folders[1]}/")
        assert disks.produce(hung, b"is flushed in vain") is None
        until(Path(f"{disks.control}.hangs").exists, "a flush that hangs", disks.broker.log_text)
        for value in (b"old" * 300, b"new" * 300):
            assert disks.produce(other, value) is None
        less = ConfigEntry("retention.bytes", "500", incremental_operation=AlterConfigOpType.SET)
        disks.admin.incremental_alter_configs(
            [resource := ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[less])]
        )[resource].result(WAIT_S)
        until(lambda: f"topic={TOPIC} partition={other}" in disks.broker.log_text(), "retention", disks.broker.log_text)
        assert disks.values(hung) == [b"is flushed in vain"]
        disks.plant()
        assert disks.broker.stop() == 0
    finally:
        disks.broker.close()


def test_the_room_of_a_ballast_that_a_kill_has_left_is_there_for_the_store(tmp_path: Path, shim: Path) -> None:
    disks = Disks(tmp_path, shim, penstock_ballast_bytes=1 << 20)
    ballasts = [folder / ".ballast" for folder in disks.folders]
    try:
        assert all(path.exists() for path in ballasts)
        disks.broker.kill()
        assert all(path.exists() for path in ballasts)
        disks.plant("write hang metadata.db")
        disks.broker.launch()
        until(Path(f"{disks.control}.hangs").exists, "the store's first write", disks.broker.log_text)
        assert not any(path.exists() for path in ballasts)
        disks.plant()
        until(lambda: all(path.exists() for path in ballasts), "the ballasts, taken again", disks.broker.log_text)
    finally:
        disks.broker.close()


def test_a_full_disk_stops_no_roll_for_good(tmp_path: Path, shim: Path) -> None:
    disks = Disks(tmp_path, shim, SMALL, penstock_ballast_bytes=0)
    try:
        partition = disks.in_folder(0)[0]
        kept = [b"%d" % i * 300 for i in range(3)]
        for value in kept:
            assert disks.produce(partition, value) is None
        # No new file can be made: no segment, no snapshot, no index.
        disks.plant(f"write {errno.ENOSPC} {disks.folders[0]}/")
        assert disks.produce(partition, b"4" * 300, timeout_ms=1000) is not None
        assert disks.values(partition) == kept
        disks.plant()
        kept.append(b"5" * 900)
        assert disks.produce(partition, kept[-1], timeout_ms=int(WAIT_S * 1000)) is None
        assert disks.values(partition) == kept
        disks.broker.stop()
        disks.broker.start()
        assert disks.values(partition) == kept
    finally:
        disks.broker.kill()


def test_retention_makes_room_on_a_full_disk_that_no_index_can_be_written_to(tmp_path: Path, shim: Path) -> None:
    """Each round of upkeep fails at the flush of a sealed segment, after retention has let older segments go."""
    often = {"log_retention_check_interval_ms": 100, "log_initial_task_delay_ms": 0, "penstock_ballast_bytes": 0}
    disks = Disks(tmp_path, shim, SMALL, **often, log_segment_delete_delay_ms=0)
    try:
        partition = disks.in_folder(1)[0]
        folder = disks.folders[1] / f"{TOPIC}-{partition}"
        for number in range(5):
            assert disks.produce(partition, b"%d" % number * 700) is None
        first = min(folder.glob("*.log"))
        disks.plant(f"write {errno.ENOSPC} {disks.folders[1]}/")
        disks.until(f"upkeep failed topic={TOPIC} partition={partition}")
        less = ConfigEntry("retention.bytes", "1500", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[less])
        disks.admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
        until(lambda: not first.exists(), "the oldest segment's file to go", disks.broker.log_text)
        disks.until(f"topic={TOPIC} partition={partition}: 3 by retention.bytes; ")
        disks.plant()
        assert disks.produce(partition, b"after", timeout_ms=int(WAIT_S * 1000)) is None
    finally:
        disks.broker.close()


def test_short_writes_are_finished(disks: Disks) -> None:
    partition = disks.in_folder(0)[0]
    disks.plant(f"write short {disks.folders[0]}/{TOPIC}")
    assert disks.produce(partition, b"v" * 1000) is None
    assert disks.values(partition) == [b"v" * 1000]


def together(disks: Disks, partition: int, values: list[bytes]) -> list[tuple[int, int]]:
    """Produce a batch for each value in one go, numbered by an idempotent producer: (error code, offset) of each."""
    frames = []
    for number, value in enumerate(values):
        records = batch([value], producer_id=77, producer_epoch=0, base_sequence=number)
        frames.append(encode_request(produce(TOPIC, records, 9, index=partition), 9, number, "together"))
    with Peer(disks.broker.port) as peer:
        peer.send_all(frames)
        answers = [produced(decode_response(ProduceResponse, peer.receive(), 9)[1]) for _ in values]
    return [(one.error_code, one.base_offset) for one in answers]


def test_batches_that_are_written_together_are_refused_together(disks: Disks) -> None:
    partition, values = disks.in_folder(1)[0], [b"%d" % number * 1000 for number in range(20)]
    assert disks.produce(partition, b"before") is None
    disks.plant(f"write {errno.ENOSPC} {disks.folders[1]}")
    # The first write fails for all that are in it, and as the disk is full now there is no second one.
    refused = together(disks, partition, values)
    assert refused[0] == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert {code for code, _ in refused} <= {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert disks.values(partition) == [b"before"]
    disks.plant()
    disks.until("has room again")
    done = [(0, 1 + number) for number in range(len(values))]
    assert together(disks, partition, values) == done
    # Five batches are remembered of a producer: those get their offsets again, and none is there twice.
    assert together(disks, partition, values)[-5:] == done[-5:]
    disks.broker.kill()
    disks.broker.start()
    assert disks.values(partition) == [b"before", *values]


def test_short_writes_of_batches_together_are_finished(disks: Disks) -> None:
    partition, values = disks.in_folder(0)[0], [b"%d" % number * 100 for number in range(20)]
    disks.plant(f"write short {disks.folders[0]}/{TOPIC}")
    assert together(disks, partition, values) == [(0, number) for number in range(len(values))]
    assert disks.values(partition) == values


def test_a_disk_that_runs_full_under_a_log_with_room_ahead_loses_nothing(disks: Disks) -> None:
    partition = disks.in_folder(1)[0]
    values: list[bytes | None] = [b"%d" % number * 10_000 for number in range(100, 200)]
    for value in values:
        assert disks.produce(partition, value) is None
    disks.plant(f"write {errno.ENOSPC} {disks.folders[1]}")
    assert disks.produce(partition, b"refused", timeout_ms=1000) is not None
    assert disks.values(partition) == values
    disks.plant(f"write short {disks.folders[1]}/{TOPIC}")
    disks.until("has room again")
    assert disks.produce(partition, b"after") is None
    disks.broker.kill()
    disks.broker.start()
    assert disks.values(partition) == [*values, b"after"]
    assert "of no whole batch" not in disks.broker.log_text()


def test_flush_messages_answers_after_the_sync(tmp_path: Path, shim: Path) -> None:
    disks = Disks(tmp_path, shim, log_flush_interval_messages=1, log_flush_interval_ms=600_000)
    try:
        partition = disks.in_folder(1)[0]
        assert disks.produce(partition, b"synced") is None
        disks.plant(f"sync {errno.EIO} {disks.folders[1]}/{TOPIC}")
        assert disks.produce(partition, b"not synced", timeout_ms=1000) is not None
        disks.until("failed and is offline until the next start")
    finally:
        disks.broker.kill()


def test_a_full_disk_hits_the_store_and_the_coordinators_for_a_while_only(disks: Disks) -> None:
    bootstrap = {"bootstrap.servers": disks.broker.bootstrap}
    group = Consumer({**bootstrap, "group.id": "full"})
    place = TopicPartition(TOPIC, 0, 1)
    assert disks.produce(0) is None
    group.commit(offsets=[place], asynchronous=False)
    disks.plant(*(f"write {errno.ENOSPC} {folder}" for folder in disks.folders))
    with pytest.raises(KafkaException) as refused:
        disks.admin.create_topics([NewTopic("later", 1)], request_timeout=WAIT_S)["later"].result()
    assert refused.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaException):
        group.commit(offsets=[TopicPartition(TOPIC, 0, 2)], asynchronous=False)
    assert disks.values(0) == [b"x"]
    disks.plant()
    disks.admin.create_topics([NewTopic("later", 1)], request_timeout=WAIT_S)["later"].result()

    def committed() -> bool:
        with suppress(KafkaException):
            group.commit(offsets=[TopicPartition(TOPIC, 0, 3)], asynchronous=False)
            return True
        return False

    until(committed, "a commit that succeeds")
    assert group.committed([place], timeout=WAIT_S)[0].offset == 3
    group.close()
    disks.broker.stop()
    disks.broker.start()
    group = Consumer({**bootstrap, "group.id": "full"})
    assert group.committed([place], timeout=WAIT_S)[0].offset == 3
    group.close()
    assert "later" in disks.admin.list_topics(timeout=WAIT_S).topics
