"""Log folders that were there: unmounted, left out of `log.dirs`, lost; and partitions that their folder holds no more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import KafkaError as ClientError

from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import DescribeLogDirsRequest
from support.asking import create, produce, refused, start_offset
from support.harness import BrokerProcess, WireConnection
from support.metadata_store import put_node

WAIT_S = 60.0


def count(broker: BrokerProcess, topic: str) -> int:
    """Records of a topic's only partition, from the first to the last."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.partition.eof": True})
    reader.assign([TopicPartition(topic, 0, 0)])
    found = 0
    while (message := reader.poll(WAIT_S)) is not None and not message.error():
        found += 1
    assert message is not None and message.error().code() == ClientError._PARTITION_EOF
    reader.close()
    return found


def errors(broker: BrokerProcess, of_start: int) -> list[str]:
    """The ERROR lines of its log from a position on."""
    return [line for line in broker.log_text()[of_start:].splitlines() if " ERROR " in line]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Stopped; `first` holds the topic `other`, `second` holds `kept` with 5 records."""
    made = BrokerProcess(tmp_path / "first", {"log.dirs": tmp_path / "second", "penstock.ballast.bytes": 0}).start()
    try:
        for name in ("other", "kept"):
            assert not create(made, name).topics[0].error_code
            assert produce(made, name, 5) == 0
        assert (tmp_path / "second" / "kept-0").is_dir()
        assert made.stop() == 0
        yield made
    finally:
        made.close()


def take_away(second: Path, how: str) -> None:
    if how != "left out":
        second.rename(second.with_name("away"))
    if how == "empty" or how == "another":
        second.mkdir()
    if how == "another":
        text = (second.with_name("away") / "meta.properties").read_text()
        lines = [line for line in text.splitlines(keepends=True) if not line.startswith("directory.id=")]
        (second / "meta.properties").write_text("".join(lines))


@pytest.mark.parametrize("how", ["empty", "missing", "another", "left out"])
def test_a_folder_that_is_away_takes_its_partitions_offline_and_brings_them_back(broker: BrokerProcess, how: str) -> None:
    second = broker.data.with_name("second")
    take_away(second, how)
    if how == "left out":
        del broker.properties["log.dirs"]
    at = len(broker.log_text())
    broker.start()
    assert produce(broker, "kept", 1) == ErrorCode.KAFKA_STORAGE_ERROR
    assert produce(broker, "other", 1) == 0
    (said,) = errors(broker, at)
    assert f"log_dir={second} is offline: it was there before and is" in said
    assert f"--forget-log-dir {second}" in said
    with WireConnection(broker.bootstrap) as wire:
        answer = wire.ask(DescribeLogDirsRequest(topics=None), 4)
    codes = {result.log_dir: result.error_code for result in answer.results}
    assert codes == {str(broker.data): 0, str(second): ErrorCode.KAFKA_STORAGE_ERROR}
    # A topic made meanwhile goes to the folder that works.
    assert not create(broker, "newer").topics[0].error_code
    assert produce(broker, "newer", 1) == 0
    assert broker.stop() == 0
    assert not list(broker.data.parent.glob("first/kept-*"))
    assert how == "left out" or not list(second.glob("*-0"))
    if how != "left out":
        shutil.rmtree(second, ignore_errors=True)
        second.with_name("away").rename(second)
    broker.properties["log.dirs"] = second
    broker.start()
    assert (count(broker, "kept"), count(broker, "other"), count(broker, "newer")) == (5, 6, 1)
    assert produce(broker, "kept", 1) == 0


@pytest.mark.parametrize("way", ["id", "forget"])
@pytest.mark.parametrize("path", ["renamed", "second"])
def test_a_folder_that_lost_its_id_loses_no_records_by_either_way_on(broker: BrokerProcess, path: str, way: str) -> None:
    """Under another path or its own: the sentence names the folder, and doesn't say that it begins again, empty."""
    second = broker.data.with_name("second")
    here = second.with_name(path)
    second.rename(here)
    meta = here / "meta.properties"
    identity = next(line for line in meta.read_text().splitlines(keepends=True) if line.startswith("directory.id="))
    meta.write_text(meta.read_text().replace(identity, ""))
    broker.properties["log.dirs"] = here
    at = len(broker.log_text())
    broker.start()
    (said,) = errors(broker, at)
    assert f"log_dir={second} is offline" in said and f"Partitions lie in `{here}` (1)" in said
    assert f"put `{identity.strip()}` into its meta.properties" in said and "those that lie there go on" in said
    assert broker.stop() == 0
    if way == "id":
        kept = [line for line in meta.read_text().splitlines(keepends=True) if not line.startswith("directory.id=")]
        meta.write_text("".join([*kept, identity]))
    else:
        broker.arguments = ["--forget-log-dir", str(second)]
    broker.start()
    assert count(broker, "kept") == 5


def test_a_folder_that_holds_nothing_may_be_left_out(broker: BrokerProcess) -> None:
    third = broker.data.with_name("third")
    broker.properties["log.dirs"] = f"{broker.properties['log.dirs']},{third}"
    broker.start()
    assert broker.stop() == 0
    assert "directory.id=" in (third / "meta.properties").read_text()
    broker.properties["log.dirs"] = broker.data.with_name("second")
    at = len(broker.log_text())
    broker.start()
    assert not errors(broker, at)
    assert count(broker, "kept") == 5


def test_a_folder_may_have_another_path(broker: BrokerProcess) -> None:
    second = broker.data.with_name("second")
    broker.properties["log.dirs"] = second.rename(second.with_name("renamed"))
    broker.start()
    assert count(broker, "kept") == 5
    assert not second.exists()


@pytest.mark.parametrize("stopped", ["cleanly", "killed"])
def test_a_partition_that_is_not_found_is_offline(broker: BrokerProcess, tmp_path: Path, stopped: str) -> None:
    second = broker.data.with_name("second")
    if stopped == "killed":
        broker.start()
        assert produce(broker, "kept", 1) == 0
        broker.kill()
    (second / "kept-0").rename(tmp_path / "kept")
    at = len(broker.log_text())
    broker.start()
    assert produce(broker, "kept", 1) == ErrorCode.KAFKA_STORAGE_ERROR
    assert produce(broker, "other", 1) == 0
    (said,) = errors(broker, at)
    assert f"1 partitions lay in {second}" in said and "kept-0" in said
    assert not (second / "kept-0").exists()
    assert broker.stop() == 0
    (tmp_path / "kept").rename(second / "kept-0")
    broker.start()
    assert count(broker, "kept") == (5 if stopped == "cleanly" else 6)


def test_a_lost_folder_is_given_up_once(broker: BrokerProcess) -> None:
    second = broker.data.with_name("second")
    take_away(second, "empty")
    broker.start()
    assert broker.stop() == 0
    broker.arguments = ["--forget-log-dir", str(second)]
    assert refused(*broker.command()[4:], "--check").returncode == 0
    at = len(broker.log_text())
    broker.start()
    assert produce(broker, "kept", 2) == 0
    assert count(broker, "kept") == 2 and start_offset(broker, "kept") == 0
    said = broker.log_text()[at:]
    assert "given up: 1 partitions begin again, empty (kept-0)" in said
    assert broker.stop() == 0
    # Left in a service's command line, the option must not do it again.
    answer = refused(*broker.command()[4:])
    assert answer.returncode == 1 and "start without `--forget-log-dir`" in answer.stderr
    broker.arguments = ["--forget-log-dir", str(second.with_name("never"))]
    answer = refused(*broker.command()[4:])
    assert answer.returncode == 1 and "has no log folder" in answer.stderr and str(second) in answer.stderr
    checked = refused(*broker.command()[4:], "--check")
    assert checked.returncode == 1 and "has no log folder" in checked.stderr and str(second) in checked.stderr
    # The lost folder is found again: nothing in it is deleted, nor served in the place of what was written since.
    broker.arguments = []
    away = second.with_name("away")
    broker.properties["log.dirs"] = f"{second},{away}"
    at = len(broker.log_text())
    broker.start()
    assert count(broker, "kept") == 2
    (stray,) = away.glob("kept-0*")
    assert stray.name.endswith("-stray") and (stray / f"{0:020}.log").stat().st_size > 0
    assert str(stray) in broker.log_text()[at:] and " WARNING " in broker.log_text()[at:]


def test_a_folder_that_was_given_up_does_not_take_a_copy_that_is_there(broker: BrokerProcess) -> None:
    """What lies in a folder that works is served, even if the store still thought that it lay in the lost one."""
    second, third = broker.data.with_name("second"), broker.data.with_name("third")
    shutil.copytree(second / "kept-0", broker.data / "kept-0")
    take_away(second, "missing")
    broker.start()
    assert produce(broker, "kept", 1) == ErrorCode.KAFKA_STORAGE_ERROR  # It may lack what the folder that is away has.
    assert broker.stop() == 0
    broker.properties["log.dirs"] = third
    broker.arguments = ["--forget-log-dir", str(second)]
    broker.start()
    assert count(broker, "kept") == 5


@pytest.mark.parametrize("first_has_more", [True, False])
def test_of_two_copies_none_is_deleted(broker: BrokerProcess, first_has_more: bool) -> None:
    """The store knows which one is served, whichever is larger."""
    second = broker.data.with_name("second")
    copy = broker.data / "kept-0"
    if first_has_more:
        shutil.copytree(second / "kept-0", copy)
    broker.start()
    if not first_has_more:
        assert broker.stop() == 0
        shutil.copytree(second / "kept-0", copy)
        broker.start()
    assert count(broker, "kept") == 5
    (stray,) = broker.data.glob("kept-0*")
    assert stray.name.endswith("-stray")
    assert {path.name for path in stray.iterdir()} >= {f"{0:020}.log", "partition.metadata"}
    assert f"the other copy is now {stray}" in broker.log_text()


def test_a_folder_without_an_id_gets_one_and_its_partitions_are_known_from_then_on(broker: BrokerProcess) -> None:
    """As an earlier version leaves it."""
    second = broker.data.with_name("second")
    for folder in (broker.data, second):
        meta = folder / "meta.properties"
        lines = [line for line in meta.read_text().splitlines(keepends=True) if not line.startswith("directory.id=")]
        meta.write_text("".join(lines))
    put_node(broker.data, "/penstock/log_dirs", None)
    for topic in ("kept", "other"):
        state = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":3,"isr":[1]}'
        put_node(broker.data, f"/brokers/topics/{topic}/partitions/0/state", state)
    broker.start()
    assert count(broker, "kept") == 5
    assert broker.stop() == 0
    assert all("directory.id=" in (folder / "meta.properties").read_text() for folder in (broker.data, second))
    take_away(second, "empty")
    broker.start()
    assert produce(broker, "kept", 1) == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("first", ["has one too", "has none"])
def test_a_metadata_store_in_another_folder_is_not_left_unread(broker: BrokerProcess, first: str) -> None:
    """`--data` and `log.dirs` may have changed places: the store that lies first isn't the one that was served."""
    second = broker.data.with_name("second")
    shutil.copy(broker.data / "metadata.db", second)
    if first == "has none":
        (broker.data / "metadata.db").unlink()
    for way in ((), ("--adopt-topics",)):
        answer = refused(*broker.command()[4:], *way)
        assert answer.returncode == 1 and answer.stderr.count("\n") == 1
        assert f"`{second}` holds a metadata store" in answer.stderr and f"put `{second}` first" in answer.stderr
    assert (second / "metadata.db").exists()


def test_a_copy_of_a_whole_folder_is_refused_beside_it(broker: BrokerProcess) -> None:
    second, copy = broker.data.with_name("second"), broker.data.with_name("copy")
    shutil.copytree(second, copy)
    broker.properties["log.dirs"] = f"{second},{copy}"
    answer = refused(*broker.command()[4:])
    assert answer.returncode == 1 and "have the same directory.id" in answer.stderr
