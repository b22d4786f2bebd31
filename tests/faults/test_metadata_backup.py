"""Backups of the metadata store: taken, kept, and put back, with what an older one doesn't know."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from penstock import failpoints
from penstock.broker import backups, metadata
from penstock.broker.coordination.producerids import BLOCK_SIZE
from penstock.broker.logs.folder import CLEAN_SHUTDOWN, META, STORE_ID
from penstock.broker.store.base import StoreError
from penstock.broker.store.sound import FORMAT, check, fact_checksum
from penstock.config import parse_properties
from penstock.pyx.wire.messages import InitProducerIdRequest
from support import faultio
from support.asking import complaint, end_offset, names, produce, refused
from support.harness import BrokerProcess, WireConnection
from support.metadata_store import FILE, lose_store, put_node
from support.patience import until

WAIT_S = 60.0
PROPERTIES: dict[str, object] = {
    "penstock.ballast.bytes": 0,
    "transaction.state.log.num.partitions": 1,
    "log.retention.check.interval.ms": 100,
    "log.initial.task.delay.ms": 0,
}
NEWEST, OLDER = f"{FILE}.backup", f"{FILE}.backup.1"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path / "data", PROPERTIES).start()
    yield made
    made.close()


def create(broker: BrokerProcess, *topics: str, **configs: str) -> None:
    given = {key.replace("_", "."): value for key, value in configs.items()}
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in client.create_topics([NewTopic(topic, 1, config=given) for topic in topics]).values():
        future.result(WAIT_S)


def delete(broker: BrokerProcess, topic: str, timeout_s: float = WAIT_S) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.delete_topics([topic], request_timeout=timeout_s)[topic].result(WAIT_S)


def alter(broker: BrokerProcess, topic: str, key: str, value: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(WAIT_S)


def own_configs(broker: BrokerProcess, topic: str) -> dict[str, str]:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = client.describe_configs([resource])[resource].result(WAIT_S)
    source = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entry.value for name, entry in entries.items() if entry.source == source}


def producer_id(broker: BrokerProcess) -> int:
    with WireConnection(broker.bootstrap) as wire:
        given: int = wire.ask(InitProducerIdRequest(transactional_id=None), 4).producer_id
    return given


def changes_of(data: Path) -> int:
    return int((data / f"{FILE}.changes").read_text().split()[0])


def until_backed_up(broker: BrokerProcess, folder: Path | None = None) -> None:
    """Until the newest backup has all that was changed."""
    newest = (folder or broker.data) / NEWEST

    def latest() -> bool:
        return newest.exists() and check(newest).changes == changes_of(broker.data)

    until(latest, "a backup", broker.log_text)


def break_store(broker: BrokerProcess) -> None:
    """A page of zeros in the middle of what the broker has left, which no write-ahead log puts right."""
    (broker.data / f"{FILE}-wal").unlink(missing_ok=True)
    with (broker.data / FILE).open("r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))


def refusal(broker: BrokerProcess, code: int = 1) -> str:
    said = refused(*broker.command()[4:])
    assert said.returncode == code, said.stderr
    return complaint(said.stderr)


def restore(broker: BrokerProcess) -> None:
    broker.arguments = ["--restore-metadata"]
    broker.start()
    broker.arguments = []


def test_the_backup_of_the_last_state_brings_all_of_it_back(broker: BrokerProcess) -> None:
    create(broker, "kept", retention_ms="12345678")
    assert produce(broker, "kept", 10) == 0
    assert broker.stop() == 0
    break_store(broker)
    said = refusal(broker)
    assert (broker.data / CLEAN_SHUTDOWN).exists(), "what is refused leaves the folder as clean as it was"
    assert "it is damaged" in said and str(broker.data / NEWEST) in said and "it lacks nothing" in said
    damaged = (broker.data / FILE).read_bytes()
    restore(broker)
    assert own_configs(broker, "kept") == {"retention.ms": "12345678"}
    assert end_offset(broker, "kept") == 10
    assert any(file.read_bytes() == damaged for file in broker.data.glob(f"{FILE}.aside-*")), "it is set aside"
    broker.restart()
    assert own_configs(broker, "kept") == {"retention.ms": "12345678"}


def test_a_store_that_its_own_backup_is_ahead_of_is_refused(broker: BrokerProcess) -> None:
    create(broker, "early")
    assert broker.stop() == 0
    older = contents(broker.data)
    broker.start()
    create(broker, "later")
    assert produce(broker, "later", 10) == 0
    until_backed_up(broker)
    broker.kill()
    for suffix in ("-wal", ".changes"):
        (broker.data / f"{FILE}{suffix}").unlink()
    (broker.data / FILE).write_bytes(older[broker.data / FILE])
    before = contents(broker.data)
    said = refusal(broker)
    assert "has lost its last" in said and "`--restore-metadata`" in said and "`--adopt-topics`" in said
    assert contents(broker.data) == before
    restore(broker)
    assert end_offset(broker, "later") == 10
    assert names(broker) == {"early", "later"}


def test_a_backup_that_is_behind_or_of_another_store_or_damaged_is_no_reason_to_refuse(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    other = BrokerProcess(tmp_path / "other", PROPERTIES).start()
    try:
        for number in range(9):
            create(other, f"topic-{number}")
        assert other.stop() == 0
    finally:
        other.close()
    create(broker, "kept")
    until_backed_up(broker)
    broker.kill()
    assert check(other.data / NEWEST).changes > check(broker.data / FILE).changes
    shutil.copy(other.data / NEWEST, broker.data / OLDER)
    broker.start()
    assert names(broker) == {"kept"}
    assert broker.stop() == 0
    ahead = bytearray((other.data / NEWEST).read_bytes())
    ahead[4096:8192] = bytes(4096)
    (broker.data / NEWEST).write_bytes(ahead)
    broker.start()
    assert names(broker) == {"kept"}


def test_two_generations_lie_in_two_folders(tmp_path: Path) -> None:
    other = tmp_path / "other"
    broker = BrokerProcess(tmp_path / "data", {**PROPERTIES, "log.dirs": str(other)}).start()
    try:
        create(broker, "first")
        until_backed_up(broker, other)
        create(broker, "second")
        until_backed_up(broker, other)
        assert broker.stop() == 0
        for folder in (broker.data, other):
            assert check(folder / NEWEST).changes == changes_of(broker.data) > check(folder / OLDER).changes > 0
        # The first folder is lost but for its identity, the second has enough of a store.
        lose_store(broker.data, backups=True)
        (other / NEWEST).write_bytes(b"corrupt" * 1000)
        assert str(other / OLDER) in refusal(broker)
        restore(broker)
        assert "first" in names(broker)
    finally:
        broker.close()


def test_a_backup_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", PROPERTIES)
    broker.data.mkdir()
    obstacle = broker.data / f"{NEWEST}.tmp"
    obstacle.mkdir()
    try:
        broker.start()
        create(broker, "t")
        until(lambda: "can't be written" in broker.log_text(), "a warning", broker.log_text)
        obstacle.rmdir()
        create(broker, "u")
        until_backed_up(broker)
        assert broker.log_text().count("can't be written") == 1 and "ERROR" not in broker.log_text()
        assert broker.stop() == 0
    finally:
        broker.close()


def test_an_older_backup_deletes_nothing_and_repeats_nothing(broker: BrokerProcess, tmp_path: Path) -> None:
    """Since it was taken a topic was created, one deleted, one recreated, one altered, and producer ids were given."""
    create(broker, "altered", "deleted", "again", retention_ms="60000")
    for topic in ("altered", "deleted", "again"):
        assert produce(broker, topic, 1) == 0
    until_backed_up(broker)
    shutil.copy(broker.data / NEWEST, tmp_path / "old")
    alter(broker, "altered", "retention.ms", "-1")
    create(broker, "created", retention_ms="-1")
    delete(broker, "deleted")
    delete(broker, "again")
    create(broker, "again", retention_ms="-1")
    month_ago_ms = int((time.time() - 30 * 24 * 3600) * 1000)
    for topic in ("altered", "created", "again"):
        assert produce(broker, topic, 5, month_ago_ms) == 0
    given = producer_id(broker)
    for _ in range(3):  # Each start raises the epochs of leaders.
        broker.restart()
    assert broker.stop() == 0
    epoch_before = (broker.data / "altered-0" / "leader-epoch-checkpoint").read_text()
    for name in (NEWEST, OLDER):
        shutil.copy(tmp_path / "old", broker.data / name)
    break_store(broker)
    lacked = changes_of(broker.data) - check(tmp_path / "old").changes
    assert f"it lacks the last {lacked} changes" in refusal(broker)
    restore(broker)
    said = broker.log_text()
    # What was created since is left where it is.
    assert names(broker) >= {"altered", "deleted", "again"} and "created" not in names(broker)
    assert f"the folder {broker.data / 'created-0'} belongs to no topic; it is left alone" in said
    assert list((broker.data / "created-0").glob("*.log"))
    # What was deleted since comes back without its records: it is offline, with words, until it is deleted again.
    assert f"1 partitions lay in {broker.data}, and no log folder holds them now" in said and "(deleted-0)" in said
    # The records of the new topic of an old name are not taken for the old one's.
    assert "topic=again partition=0 can't be opened" in said and "belongs to a topic with the id" in said
    assert sum(file.stat().st_size for file in (broker.data / "again-0").glob("*.log")) > 0
    # Configs may be older than the records: nothing is deleted by them.
    assert own_configs(broker, "altered") == {"retention.ms": "60000", "penstock.configs.confirmed": "false"}
    create(broker, "short", retention_ms="60000")
    assert produce(broker, "short", 5, month_ago_ms) == 0

    def gone() -> bool:
        return "deleted 1 segments" in broker.log_text() and "topic=short" in broker.log_text().split("deleted 1 seg")[-1]

    until(gone, "retention", broker.log_text)
    assert end_offset(broker, "altered") == 6
    assert "topic=altered" not in "".join(line for line in broker.log_text().splitlines() if "deleted 1 seg" in line)
    # Neither a producer id nor a leader epoch is given twice.
    assert producer_id(broker) > given + BLOCK_SIZE
    assert produce(broker, "altered", 1) == 0
    epochs = (broker.data / "altered-0" / "leader-epoch-checkpoint").read_text().split()
    assert epochs[:2] == ["0", str(int(epoch_before.split()[1]) + 1)] and int(epochs[-2]) > int(epoch_before.split()[-2])
    broker.restart()
    assert own_configs(broker, "altered")["penstock.configs.confirmed"] == "false"


def test_a_partition_that_an_older_store_lacks_goes_on_when_its_topic_grows(broker: BrokerProcess, tmp_path: Path) -> None:
    create(broker, "t")
    until_backed_up(broker)
    shutil.copy(broker.data / NEWEST, tmp_path / "old")
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_partitions([NewPartitions("t", 2)])["t"].result(WAIT_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(300):
        producer.produce("t", b"x", partition=1)
    assert producer.flush(WAIT_S) == 0
    broker.restart()  # A start raises the epochs of leaders.
    assert broker.stop() == 0
    for name in (NEWEST, OLDER):
        shutil.copy(tmp_path / "old", broker.data / name)
    break_store(broker)
    restore(broker)
    folder = broker.data / "t-1"
    assert f"the folder {folder} has the id of topic=t, of which the store knows 1 partitions" in broker.log_text()
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_partitions([NewPartitions("t", 2)])["t"].result(WAIT_S)
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "r"})
    assert reader.get_watermark_offsets(TopicPartition("t", 1), WAIT_S) == (0, 300)
    reader.close()
    assert not list(broker.data.glob("t-1*-stray"))
    assert f"partition=1 lay in {folder} already" in broker.log_text()


def test_a_deletion_that_an_older_store_knows_of_spares_a_later_topic(broker: BrokerProcess) -> None:
    create(broker, "t")
    broker.kill()
    put_node(broker.data, "/admin/delete_topics", b'{"version":1,"topics":["t"]}')
    metadata_file = broker.data / "t-0" / "partition.metadata"
    metadata_file.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
    broker.start()
    assert "t" not in names(broker) and metadata_file.exists()
    assert "belongs to another topic of this name; it is left alone" in broker.log_text()


def test_committed_offsets_of_a_topic_whose_deletion_was_cut_short_are_gone(broker: BrokerProcess) -> None:
    """A later topic of its name must not begin where a group was in the former one."""
    create(broker, "t")
    assert produce(broker, "t", 3) == 0
    committed = TopicPartition("t", 0, 3)
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    group.commit(offsets=[committed], asynchronous=False)
    group.close()
    assert broker.stop() == 0
    broker.environment["PENSTOCK_FAILPOINTS"] = "topics.emptied=kill"
    broker.start()
    with pytest.raises(KafkaException), ThreadPoolExecutor(1) as thread:
        deleting = thread.submit(delete, broker, "t", timeout_s=2)
        until(lambda: not broker.running, "the kill", broker.log_text)
        deleting.result(WAIT_S)
    broker.close()
    broker.environment.clear()
    broker.start()
    create(broker, "t")
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    assert [place.offset for place in group.committed([TopicPartition("t", 0)], timeout=WAIT_S)] == [OFFSET_INVALID]
    group.close()


DECLARED = [*failpoints.declared("metadata."), *failpoints.declared("backups.")]


def test_there_are_failpoints() -> None:
    restoring = {metadata.COPIED, metadata.SET_ASIDE, metadata.RESTORED}
    assert {*restoring, metadata.BEGUN, backups.WRITTEN, backups.MOVED} == set(DECLARED)


@pytest.mark.parametrize("point", [point for point in DECLARED if point != metadata.BEGUN])
def test_a_kill_at_each_step_leaves_a_store_or_a_backup(broker: BrokerProcess, point: str) -> None:
    create(broker, "kept", retention_ms="12345678")
    until_backed_up(broker)
    assert broker.stop() == 0
    if point.startswith("metadata."):
        break_store(broker)
        broker.arguments = ["--restore-metadata"]
    broker.environment["PENSTOCK_FAILPOINTS"] = f"{point}=kill"
    try:
        broker.start()
    except AssertionError:
        pass
    else:
        until(lambda: not broker.running, "the kill", broker.log_text)
    broker.close()
    broker.environment.clear()
    broker.arguments = []
    if point.startswith("metadata.") and point != metadata.RESTORED:
        assert "--restore-metadata" in refusal(broker)
        restore(broker)
    else:
        broker.start()
    assert own_configs(broker, "kept")["retention.ms"] == "12345678"
    assert backups.found([broker.data])


def test_a_kill_while_a_store_begins_again_leaves_one_that_is_missed(broker: BrokerProcess) -> None:
    create(broker, "kept", retention_ms="12345678")
    assert broker.stop() == 0
    break_store(broker)
    broker.environment["PENSTOCK_FAILPOINTS"] = f"{metadata.BEGUN}=kill"
    broker.arguments = ["--adopt-topics"]
    with pytest.raises(AssertionError):
        broker.start()
    broker.close()
    broker.environment.clear()
    broker.arguments = []
    assert "is missing" in refusal(broker)
    broker.arguments = ["--adopt-topics"]
    broker.start()
    broker.arguments = []
    assert "kept" in names(broker)
    broker.restart()
    assert store_id(broker.data) == check(broker.data / FILE).store_id


def store_id(folder: Path) -> str:
    """The id of the store that meta.properties names."""
    return parse_properties((folder / META).read_text()).get(STORE_ID, "")


def other_store(broker: BrokerProcess, other: Path) -> Path:
    """Adopt the topics while the other log folder is away; its backups then know more changes than there ever were."""
    create(broker, "kept", retention_ms="12345678")
    for number in range(30):
        alter(broker, "kept", "segment.ms", str(10_000 + number))
    assert broker.stop() == 0
    assert check(other / NEWEST).changes == changes_of(broker.data) and not list(other.glob("*-[0-9]"))
    away = other.rename(other.with_name("away"))
    lose_store(broker.data, backups=True)
    del broker.properties["log.dirs"]
    broker.arguments = ["--adopt-topics"]
    broker.start()
    broker.arguments = []
    alter(broker, "kept", "retention.ms", "-1")
    assert broker.stop() == 0
    broker.properties["log.dirs"] = str(other)
    return away.rename(other)


@pytest.fixture
def adopted(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Path]]:
    """A stopped broker whose other log folder was away at an adoption, and that folder."""
    other = tmp_path / "other"
    broker = BrokerProcess(tmp_path / "data", {**PROPERTIES, "log.dirs": str(other)}).start()
    yield broker, other_store(broker, other)
    broker.close()


def test_a_backup_of_before_an_adoption_does_not_outrank_the_stores_own(adopted: tuple[BrokerProcess, Path]) -> None:
    broker, other = adopted
    assert "" != store_id(other) != store_id(broker.data) != ""
    assert check(other / NEWEST).changes > check(broker.data / NEWEST).changes
    break_store(broker)
    said = refusal(broker)
    assert f"there is the backup `{broker.data / NEWEST}`" in said
    assert f"another store than {store_id(broker.data)}: `{other / NEWEST}`" in said and store_id(other) in said
    restore(broker)
    assert own_configs(broker, "kept")["retention.ms"] == "-1" and "segment.ms" not in own_configs(broker, "kept")
    assert store_id(other) == store_id(broker.data) == check(broker.data / FILE).store_id


def test_a_backup_of_another_store_is_taken_only_after_an_operators_word(adopted: tuple[BrokerProcess, Path]) -> None:
    broker, other = adopted
    named = store_id(broker.data)
    lose_store(broker.data, backups=True)
    before = contents(broker.data, other)
    for way in ([], ["--restore-metadata"]):
        broker.arguments = way
        said = refusal(broker)
        assert "there is no sound backup" in said and f"`{other / NEWEST}`" in said
        assert f"take the line `{STORE_ID}={named}` out of `{broker.data / META}`" in said
    assert contents(broker.data, other) == before
    meta = broker.data / META
    meta.write_text(meta.read_text().replace(f"{STORE_ID}={named}\n", ""))
    restore(broker)
    assert own_configs(broker, "kept")["retention.ms"] == "12345678"


def test_of_backups_of_several_stores_none_is_taken_where_no_folder_says_which(
    adopted: tuple[BrokerProcess, Path],
) -> None:
    broker, other = adopted
    for folder in (broker.data, other):
        meta = folder / META
        meta.write_text(meta.read_text().replace(f"{STORE_ID}={store_id(folder)}\n", ""))
    break_store(broker)
    broker.arguments = ["--restore-metadata"]
    said = refusal(broker)
    assert "backups of several" in said and f"`{other / NEWEST}`" in said and f"`{broker.data / NEWEST}`" in said
    for name in (NEWEST, OLDER):
        (other / name).unlink(missing_ok=True)
    restore(broker)
    assert own_configs(broker, "kept")["retention.ms"] == "-1"


def test_a_store_of_before_an_adoption_is_not_opened_in_place_of_the_broker_s_own(
    adopted: tuple[BrokerProcess, Path],
) -> None:
    """Put there by hand: it has seen more changes than the right one, so only its id tells."""
    broker, other = adopted
    shutil.copy(other / NEWEST, broker.data / FILE)
    before = contents(broker.data, other)
    said = refusal(broker)
    assert contents(broker.data, other) == before
    assert f"({store_id(other)}) isn't the one that this broker had ({store_id(broker.data)})" in said
    assert f"there is the backup `{broker.data / NEWEST}`" in said
    restore(broker)
    assert own_configs(broker, "kept")["retention.ms"] == "-1"


def test_a_store_without_an_id_gets_one_that_stays(broker: BrokerProcess) -> None:
    create(broker, "kept", retention_ms="12345678")
    assert broker.stop() == 0
    with sqlite3.connect(broker.data / FILE) as database:
        database.execute("DROP TABLE about")
    meta = broker.data / META
    meta.write_text(meta.read_text().replace(f"{STORE_ID}={store_id(broker.data)}\n", ""))
    broker.start()
    given = store_id(broker.data)
    assert given and own_configs(broker, "kept") == {"retention.ms": "12345678"}
    until_backed_up(broker)
    assert check(broker.data / NEWEST).store_id == given
    broker.restart()
    assert broker.stop() == 0
    assert store_id(broker.data) == check(broker.data / FILE).store_id == given


@pytest.mark.parametrize("how", ["removed", "removed with all beside it", "replaced"])
def test_a_store_that_is_taken_away_under_a_running_broker_goes_on_in_its_backups(
    broker: BrokerProcess, tmp_path: Path, how: str
) -> None:
    create(broker, "kept", retention_ms="12345678")
    until_backed_up(broker)
    if how == "replaced":
        shutil.copy(broker.data / NEWEST, tmp_path / "put")
        (tmp_path / "put").rename(broker.data / FILE)
    else:
        for file in broker.data.glob(f"{FILE}*" if "all" in how else FILE):
            file.unlink()
    word = "was replaced" if how == "replaced" else "was removed"
    until(lambda: f"{FILE} {word}" in broker.log_text(), "an ERROR", broker.log_text)
    until((broker.data / NEWEST).exists, "a backup at once", broker.log_text)
    for number in range(3):
        seen = check(broker.data / NEWEST).changes
        alter(broker, "kept", "segment.ms", str(10_000 + number))
        until(partial(backed_up_since, broker.data, seen), "a backup", broker.log_text)
    errors = [line for line in broker.log_text().splitlines() if " ERROR " in line]
    assert len(errors) == 1 and str(broker.data / FILE) in errors[0] and "--restore-metadata" in errors[0]
    broker.kill()
    if how == "replaced":
        (broker.data / FILE).rename(tmp_path / "put")
    assert "--restore-metadata" in refusal(broker)
    restore(broker)
    configs = own_configs(broker, "kept")
    assert configs["segment.ms"] == "10002" and configs["retention.ms"] == "12345678"


def backed_up_since(folder: Path, seen: int) -> bool:
    """Whether the newest backup has more changes than `seen`; there is none in the moment in which it has no name."""
    try:
        return check(folder / NEWEST).changes > seen
    except StoreError:
        return False


def test_a_store_that_was_taken_away_is_in_the_backup_of_a_clean_stop(broker: BrokerProcess) -> None:
    create(broker, "kept")
    for file in broker.data.glob(f"{FILE}*"):
        file.unlink()
    alter(broker, "kept", "segment.ms", "10000")
    assert broker.stop() == 0
    restore(broker)
    assert own_configs(broker, "kept")["segment.ms"] == "10000"


def contents(*folders: Path) -> dict[Path, bytes]:
    """All files but the lock, and the write-ahead log's index, which each reader of the log makes again."""
    return {
        path: path.read_bytes()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", f"{FILE}-shm")
    }


REFUSED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "both": ("sound", ("--restore-metadata", "--adopt-topics"), "give one of them"),
    "both, damaged": ("damaged", ("--adopt-topics", "--restore-metadata"), "give one of them"),
    "damaged": ("damaged", (), "there is the backup"),
    "missing": ("missing", (), "there is the backup"),
    "empty": ("empty", (), "there is the backup"),
    "adopted, but sound": ("sound", ("--adopt-topics",), "start without `--adopt-topics`"),
    "restored, but sound": ("sound", ("--restore-metadata",), "start without `--restore-metadata`"),
    "adopted, but sound and killed": ("killed", ("--adopt-topics",), "start without `--adopt-topics`"),
    "restored, but sound and killed": ("killed", ("--restore-metadata",), "start without `--restore-metadata`"),
    "nothing to restore": ("no backup", ("--restore-metadata",), "there is no sound backup"),
    "a copy of a topic": ("copied", ("--adopt-topics",), "have the same topic id"),
    "garbled": ("garbled", (), "meta.properties` is damaged"),
    "garbled, restored": ("garbled", ("--restore-metadata",), "meta.properties` is damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_start_writes_nothing(broker: BrokerProcess, case: str) -> None:
    state, ways, sentence = REFUSED[case]
    create(broker, "kept", retention_ms="12345678")
    until_backed_up(broker)
    if state == "killed":
        broker.kill()
    else:
        assert broker.stop() == 0
    if state in ("damaged", "no backup", "copied"):
        break_store(broker)
    if state in ("missing", "empty"):
        (broker.data / FILE).unlink()
    if state == "empty":
        (broker.data / FILE).touch()
    if state == "no backup":
        for name in (NEWEST, OLDER):
            (broker.data / name).unlink(missing_ok=True)
    if state == "copied":
        shutil.copytree(broker.data / "kept-0", broker.data / "kept.bak-0")
    if state == "garbled":
        (broker.data / META).write_bytes(bytes(100))
    before = contents(broker.data)
    broker.arguments = list(ways)
    assert sentence in refusal(broker, code=2 if len(ways) > 1 else 1)
    assert contents(broker.data) == before


def test_a_store_of_an_earlier_version_gets_checksums(broker: BrokerProcess) -> None:
    create(broker, "kept", retention_ms="12345678")
    assert broker.stop() == 0
    lose = [file for file in broker.data.iterdir() if file.name.startswith(f"{FILE}.")]
    for file in lose:
        file.unlink()
    with sqlite3.connect(broker.data / FILE) as database:
        database.execute("ALTER TABLE node DROP COLUMN crc")
        database.execute("DELETE FROM counter WHERE name = 'digest'")
        database.execute("UPDATE about SET value = '1', crc = ? WHERE name = 'format'", (fact_checksum("format", "1"),))
    broker.start()
    assert own_configs(broker, "kept") == {"retention.ms": "12345678"}
    assert broker.stop() == 0
    with sqlite3.connect(broker.data / FILE) as database:
        assert database.execute("SELECT value FROM about WHERE name = 'format'").fetchone() == (str(FORMAT),)
        database.execute("UPDATE node SET data = x'00' WHERE path = '/config/topics/kept'")
    assert "the checksum of the node `/config/topics/kept` is wrong" in refusal(broker)


def test_a_recreated_topic_has_its_own_configs_only(broker: BrokerProcess) -> None:
    """Created, altered, deleted and recreated, with kills in between: no node of an earlier topic holds for a later one."""
    for number in range(4):
        configs = {"retention_ms": str(1000 + number)} if number % 2 else {}
        create(broker, "t", **configs)
        assert own_configs(broker, "t") == {key.replace("_", "."): value for key, value in configs.items()}
        alter(broker, "t", "segment.ms", "77777")
        broker.kill()
        broker.start()
        assert own_configs(broker, "t")["segment.ms"] == "77777"
        delete(broker, "t")
        if number == 2:
            broker.kill()
            broker.start()
    assert "t" not in names(broker)


def test_a_deletion_that_the_store_refuses_to_end_is_not_in_the_way_of_a_new_topic(tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.touch()
    environment = {
        "LD_PRELOAD": str(faultio.build(tmp_path)),
        "FAULT_CTL": str(control),
        "PENSTOCK_FAILPOINTS": "topics.emptied=delay:3000",
    }
    broker = BrokerProcess(tmp_path / "data", PROPERTIES, environment=environment).start()
    try:
        create(broker, "t", retention_ms="12345678")
        with ThreadPoolExecutor(1) as thread:
            deleting = thread.submit(delete, broker, "t")
            until(lambda: not (broker.data / "t-0").exists(), "the log's end", broker.log_text)
            control.write_text(f"write {errno.ENOSPC} {FILE}\n")
            with pytest.raises(KafkaException, match=r"KAFKA_STORAGE_ERROR|Disk error"):
                deleting.result(WAIT_S)
        control.write_text("")
        create(broker, "t")
        assert own_configs(broker, "t") == {}
        broker.kill()
        broker.start()
        assert own_configs(broker, "t") == {}
    finally:
        broker.close()
