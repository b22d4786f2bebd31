"""Log folders: whose they are, which partition goes where, and partitions that move between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Broker
from penstock.broker.logs.adoption import adopted
from penstock.broker.logs.ballast import Ballast
from penstock.broker.logs.folder import FolderError
from penstock.broker.logs.logdirs import LogDirs, Placed, partition_of
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from support.harness import BrokerProcess, WireConnection

WAIT_S = 60.0


def meta(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "meta.properties").write_text(text)
    return folder


def test_new_partitions_go_to_the_folder_with_the_fewest(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    (paths[1] / "old-3").mkdir(parents=True)
    (paths[1] / "old-4").mkdir()
    dirs = LogDirs.open(paths, 1)
    assert not paths[2].exists(), "nothing is made before it is known what was there"
    dirs.admit({}, {})
    placed = [dirs.place(("new", index)) for index in range(5)]
    assert [log_dir.path.name for log_dir in placed] == ["a", "c", "a", "c", "a"]
    found = dirs.of(("old", 3))
    assert found is not None and found.path.name == "b"
    assert dirs.found() >= {("old", 3), ("old", 4)}
    dirs.close(clean=True)
    assert all((path / ".kafka_cleanshutdown").exists() for path in paths)


def test_both_of_kafkas_identities_are_read_and_kept(tmp_path: Path) -> None:
    zookeeper = "version=0\nbroker.id=7\ncluster.id=AAAA\n"
    kraft = "version=1\nnode.id=7\ncluster.id=AAAA\ndirectory.id=BBBB\n"
    paths = [meta(tmp_path / "zk", zookeeper), meta(tmp_path / "kraft", kraft), tmp_path / "new"]
    dirs = LogDirs.open(paths, 7)
    known = dirs.admit({}, {})
    assert {log_dir.folder.cluster_id for log_dir in dirs if log_dir.folder} == {"AAAA"}
    dirs.close(clean=True)
    given = (paths[0] / "meta.properties").read_text().removeprefix(zookeeper)
    assert given == f"directory.id={next(iter(known))}\n"
    assert (paths[1] / "meta.properties").read_text() == kraft
    assert "cluster.id=AAAA" in (paths[2] / "meta.properties").read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("version=1\nnode.id=8\ncluster.id=AAAA\n", "belongs to broker 8"),
        ("version=0\nbroker.id=7\ncluster.id=CCCC\n", "belongs to cluster CCCC"),
        ("version=1\nbroker.id=7\ncluster.id=AAAA\n", "should hold"),
    ],
)
def test_a_folder_of_another_is_refused_and_all_are_let_go(tmp_path: Path, text: str, why: str) -> None:
    first = meta(tmp_path / "first", "version=0\nbroker.id=7\ncluster.id=AAAA\n")
    second = meta(tmp_path / "second", text)
    with pytest.raises(FolderError, match=why):
        LogDirs.open([first, second], 7)
    LogDirs.open([first], 7).close(clean=True)


def test_a_folder_that_can_not_be_used_is_offline_but_for_the_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="can't be used"):
        LogDirs.open([tmp_path / "file", tmp_path / "good"], 1)
    dirs = LogDirs.open([tmp_path / "good", tmp_path / "file"], 1)
    dirs.admit({}, {})
    assert [log_dir.offline for log_dir in dirs] == [False, True]
    dirs.locate({("t", 0): Placed(bytes(15) + b"1", "")}, set())
    assert dirs.of(("t", 0)) is None and ("t", 0) in dirs.missing  # It may lie in the other one.
    assert dirs.place(("t", 1)).path.name == "good"
    next(iter(dirs)).error = "it failed"
    with pytest.raises(KafkaError, match="no log folder works"):
        dirs.place(("t", 2))
    dirs.close(clean=True)
    assert not (tmp_path / "good" / ".kafka_cleanshutdown").exists()


def test_a_partition_in_two_folders_is_kept_once(tmp_path: Path) -> None:
    for name, size in (("a", 10), ("b", 20)):
        (tmp_path / name / "t-0").mkdir(parents=True)
        (tmp_path / name / "t-0" / "00000000000000000000.log").write_bytes(bytes(size))
    (tmp_path / "b" / f"t-0.{'0' * 32}-future").mkdir()
    dirs = LogDirs.open([tmp_path / "a", tmp_path / "b"], 1)
    dirs.admit({}, {})
    dirs.locate({("t", 0): Placed(bytes(15) + b"1", "")}, set())
    kept = dirs.of(("t", 0))
    assert kept is not None and kept.path.name == "b"
    (other,) = (tmp_path / "a").glob("t-0*")
    assert other.name.endswith("-stray") and (other / "00000000000000000000.log").stat().st_size == 10
    assert [path.name for path in (tmp_path / "b").glob("t-0*")] == ["t-0"]
    dirs.close(clean=True)


def test_a_copy_without_an_id_never_beats_one_that_has_it(tmp_path: Path) -> None:
    """Though it is longer, and lies in the folder that the store names: it may be what a deletion has left."""
    for name, size in (("a", 10), ("b", 20)):
        (tmp_path / name / "t-0").mkdir(parents=True)
        (tmp_path / name / "t-0" / "00000000000000000000.log").write_bytes(bytes(size))
    (tmp_path / "a" / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABA\n")
    dirs = LogDirs.open([tmp_path / "a", tmp_path / "b"], 1)
    dirs.admit({}, {})
    home = next(log_dir.id for log_dir in dirs if log_dir.path.name == "b")
    dirs.locate({("t", 0): Placed(bytes(15) + b"\4", home)}, set())
    kept = dirs.of(("t", 0))
    assert kept is not None and kept.path.name == "a"
    (other,) = (tmp_path / "b").glob("t-0*")
    assert other.name.endswith("-stray") and (other / "00000000000000000000.log").stat().st_size == 20
    dirs.close(clean=True)


def test_what_ends_like_a_deleted_partition_and_was_not_made_by_a_broker_stays(tmp_path: Path) -> None:
    """The exact form is `<topic>-<partition>.<32 hex>-delete`, and a folder."""
    data, hexes = tmp_path / "data", "0123456789abcdef" * 2
    others = [
        f"notes.{'to-be-kept-until-the-end-of-year'}-delete",
        f"t-0.{hexes.upper()}-delete",
        f"notes.{hexes}-delete",
    ]
    for name in (*others, f"t-0.{hexes}-delete"):
        (data / name).mkdir(parents=True)
        (data / name / "precious").write_text("x")
    (data / f"t-1.{hexes}-delete").write_text("a file")
    (data / f"t-1.{hexes}-future").write_text("a file")
    with Broker(data):
        pass
    assert all((data / name / "precious").exists() for name in others)
    assert not (data / f"t-0.{hexes}-delete").exists()
    assert (data / f"t-1.{hexes}-delete").exists() and (data / f"t-1.{hexes}-future").exists()


def test_only_folders_with_a_log_are_partitions_of_kafka(tmp_path: Path) -> None:
    """Somebody else's folder may be called like a partition with a very high number."""
    for name in ("backup-20260501", "old-1", "new-0"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "data" / "old-1" / "00000000000000000007.log").write_bytes(b"")
    (tmp_path / "data" / "new-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABA\n")
    dirs = LogDirs.open([tmp_path / "data"], 1)
    assert {name: len(epochs) for name, (_, epochs) in adopted(dirs, 100_000).items()} == {"old": 2, "new": 1}
    dirs.close(clean=True)


@pytest.mark.parametrize("name", ["t", "t-", "-1", "t-01", "t--1x", "a b-1", "t-1.0f-delete", "t-99999999999", ".lock"])
def test_other_names_are_no_partitions(name: str) -> None:
    assert partition_of(name) is None


def test_a_ballast_is_a_small_part_of_its_disk_and_goes_when_asked(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path, 1 << 20)
    assert ballast.take() and (tmp_path / ".ballast").stat().st_size == ballast.held_bytes == 1 << 20
    ballast.release()
    assert not (tmp_path / ".ballast").exists() and not ballast.held_bytes
    greedy = Ballast(tmp_path, 1 << 62)
    greedy.take()
    greedy.release()
    assert not Ballast(tmp_path, 0).take()
    assert not (tmp_path / ".ballast").exists()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    root = tmp_path_factory.mktemp("moving")
    made = BrokerProcess(root / "first", {"log.dirs": root / "second"}).start()
    yield made
    made.stop()


def alter(broker: BrokerProcess, path: Path | str, topic: str, partitions: list[int]) -> list[int]:
    asked = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=topic, partitions=partitions)
    one = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=str(path), topics=[asked])
    with WireConnection(broker.bootstrap) as connection:
        answer = connection.ask(AlterReplicaLogDirsRequest(dirs=[one]), 2)
    return [partition.error_code for result in answer.results for partition in result.partitions]


def where(broker: BrokerProcess, topic: str) -> dict[int, list[tuple[str, bool]]]:
    """By partition: its folders, and whether it is only on its way there."""
    with WireConnection(broker.bootstrap) as connection:
        answer = connection.ask(DescribeLogDirsRequest(topics=None), 4)
    found: dict[int, list[tuple[str, bool]]] = {}
    for result in answer.results:
        assert result.error_code == 0 and 0 < result.usable_bytes <= result.total_bytes
        for described in result.topics:
            for partition in described.partitions if described.name == topic else ():
                place = (Path(result.log_dir).name, partition.is_future_key)
                found.setdefault(partition.partition_index, []).append(place)
    return found


@pytest.mark.parametrize(
    ("topic", "segment_bytes", "size"),
    [("mover", 100_000, 1000), ("grower", 1 << 30, 20_000)],
    ids=["many segments", "room ahead"],
)
def test_a_partition_moves_while_it_is_written_to(broker: BrokerProcess, topic: str, segment_bytes: int, size: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 2, config={"internal.segment.bytes": str(segment_bytes)})])[topic].result()
    first, second = broker.data, broker.data.with_name("second")
    assert where(broker, topic) == {0: [("first", False)], 1: [("second", False)]}
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.size": 20_000}
    )
    stop = threading.Event()
    sent = done = 0
    failed: list[object] = []

    def delivered(error: object, message: Message) -> None:
        nonlocal done
        done += 1
        if error is not None:
            failed.append(error)

    def write() -> None:
        nonlocal sent
        while not stop.is_set():
            producer.produce(topic, b"%d" % sent + bytes(size), partition=0, on_delivery=delivered)
            sent += 1
            producer.poll(0)
            time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for target in (second, first, second):
            end, before = time.monotonic() + WAIT_S, done
            while done < before + 200:
                assert time.monotonic() < end
                time.sleep(0.01)
            assert alter(broker, target, topic, [0]) == [0]
            while where(broker, topic).get(0) != [(target.name, False)]:
                assert time.monotonic() < end, broker.log_text()[-2000:]
                time.sleep(0.05)
    finally:
        stop.set()
        writer.join()
    assert producer.flush(60) == 0
    assert not failed
    assert [path.name for path in first.glob(f"{topic}-0*")] == []
    assert [path.name for path in second.glob(f"{topic}-0*")] == [f"{topic}-0"]
    for _ in range(2):
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.partition.eof": True})
        reader.assign([TopicPartition(topic, 0, 0)])
        values = []
        while (message := reader.poll(WAIT_S)) is not None and not message.error():
            values.append(int((message.value() or b"").rstrip(b"\0")))
        assert message is not None and message.error().code() == ClientError._PARTITION_EOF, message.error()
        reader.close()
        assert values == list(range(sent))
        broker.kill()
        broker.start()


def test_an_idle_log_has_no_more_than_its_batches(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1, "batch.size": 20_000})
    for _ in range(400):
        producer.produce("idle", bytes(10_000))
        producer.poll(0)
    assert producer.flush(60) == 0
    with WireConnection(broker.bootstrap) as connection:
        answer = connection.ask(DescribeLogDirsRequest(topics=None), 4)
    described = sum(
        partition.partition_size
        for result in answer.results
        for topic in result.topics
        for partition in topic.partitions
        if topic.name == "idle"
    )
    assert described > 4_000_000
    end = time.monotonic() + WAIT_S
    while sum(path.stat().st_size for path in broker.data.parent.glob("*/idle-*/*.log")) != described:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_what_can_not_be_moved_is_said(broker: BrokerProcess, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("stays", 1)])["stays"].result()
    place = where(broker, "stays")[0]
    assert alter(broker, tmp_path, "stays", [0]) == [ErrorCode.LOG_DIR_NOT_FOUND]
    assert alter(broker, broker.data, "stays", [7]) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    assert alter(broker, broker.data, "nobody", [0]) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    assert alter(broker, broker.data.with_name(place[0][0]), "stays", [0]) == [0]
    assert where(broker, "stays")[0] == place
