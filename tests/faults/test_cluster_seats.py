"""Who may lead after which loss: folders put back, away or repaired, logs damaged, machines without power.

Brokers are processes around a real ZooKeeper. A power cut is a kill, a `.lock` that another start of the machine has left, and
a log without its end.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from penstock.broker.process import PROGRAM, BrokerProcess
from support.cluster_clients import Writer, check, check_answered, write
from support.cluster_world import ClusterProcesses, cluster, cut_power
from support.harness import output
from support.lossy_disk import LossyDisk, flush_file, forget_start
from support.patience import until
from support.zookeeper import ZooKeeper, connected

pytestmark = pytest.mark.kafka

BATCH_HEAD_BYTES = 12  # base offset and length
OTHERS_LOG = "isn't as the last run of this broker left it"


@pytest.fixture
def pair(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Two brokers."""
    with cluster(zookeeper, tmp_path, 2) as made:
        yield made


def until_said(world: ClusterProcesses, number: int, words: str, times: int = 1) -> None:
    """Wait until a broker has logged this so many times."""
    until(lambda: world.brokers[number].log_text().count(words) >= times, f"{words!r} from broker {number}", world.log_text)


def leave_alone(world: ClusterProcesses, number: int, topic: str = "t") -> Writer:
    """Kill all others, and have this broker answer for records that it alone has."""
    for other in set(world.brokers) - {number}:
        world.brokers[other].kill()
    world.until_led(topic, by={number}, isr={number})
    return write(world, topic)


def test_a_start_under_an_id_that_is_taken_parts_no_broker_from_its_folders(pair: ClusterProcesses, tmp_path: Path) -> None:
    pair.create("t", 1, 2)
    pair.until_led("t", by={1, 2}, isr={1, 2})
    for number, broker in pair.brokers.items():
        data = str(tmp_path / f"empty-{number}")
        words = ["broker", "--zookeeper", pair.servers, "--id", str(number), "--listen", "127.0.0.1:0", "--data", data]
        refused = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=150, check=False)
        assert refused.returncode != 0 and f"another broker has the id {number}: it is at {broker.bootstrap}" in refused.stderr
    for broker in pair.brokers.values():
        assert broker.stop() == 0
    for broker in pair.brokers.values():
        broker.start()
    pair.until_led("t", by={1, 2}, isr={1, 2})
    assert "isn't in `log.dirs` any more" not in pair.log_text()
    assert "unclean election" not in pair.log_text()


def test_a_start_with_another_folder_needs_the_word_that_the_first_is_lost(pair: ClusterProcesses, tmp_path: Path) -> None:
    pair.create("t", 1, 2)
    pair.until_led("t", by={1, 2}, isr={1, 2})
    writer = write(pair, "t")
    broker = pair.brokers[2]
    right = broker.data
    assert broker.stop() == 0
    broker.data = tmp_path / "typo"
    with pytest.raises(AssertionError, match="has no log: is the path, or"):
        broker.start()
    broker.arguments += ["--forget-log-dir", str(right)]
    broker.start()
    pair.until_led("t", by={1}, isr={1, 2})
    check(pair, "t", writer)


@pytest.mark.parametrize("runs", [False, True], ids=["of a stopped broker", "of a running broker"])
def test_a_folder_that_was_put_back_from_a_copy_has_no_seat(pair: ClusterProcesses, tmp_path: Path, runs: bool) -> None:
    pair.create("t", 1, 2)
    pair.until_led("t", by={1, 2}, isr={1, 2})
    write(pair, "t")
    broker, copy = pair.brokers[2], tmp_path / "copy"
    if not runs:
        assert broker.stop() == 0
    shutil.copytree(broker.data, copy)
    if not runs:
        broker.start()
        pair.until_led("t", by={1, 2}, isr={1, 2})
    leave_alone(pair, 2)
    broker.kill()
    shutil.rmtree(broker.data)
    shutil.copytree(copy, broker.data)
    for _ in range(2):
        broker.start()
        until_said(pair, 2, OTHERS_LOG)
        pair.until_stored("t", leader=-1, isr=[2], unclean=[2])
        broker.kill()
    broker.start()
    pair.brokers[1].start()
    pair.until_led("t", by={1, 2}, isr={1, 2})
    assert pair.state("t")["unclean_epoch"] >= 0


def test_a_folder_that_was_moved_after_a_clean_stop_keeps_its_seats(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, 1) as world:
        world.create("t", 1, 1)
        writer = write(world, "t")
        broker = world.brokers[1]
        for _ in range(2):
            assert broker.stop() == 0
            moved = broker.data.with_name(broker.data.name + "-moved")
            shutil.copytree(broker.data, moved)
            shutil.rmtree(broker.data)
            broker.data = moved
            broker.start()
            world.until_led("t", by={1})
            broker.kill()
            broker.start()
            world.until_led("t", by={1})
        assert (world.state("t")["unclean"], world.state("t")["unclean_epoch"]) == ([], -1)
        assert OTHERS_LOG not in broker.log_text()
        check(world, "t", writer)


def test_of_two_copies_in_a_broker_the_one_of_its_last_run_is_taken(pair: ClusterProcesses, tmp_path: Path) -> None:
    broker = pair.brokers[2]
    assert broker.stop() == 0
    away, other = tmp_path / "away", tmp_path / "other"
    broker.properties["log.dirs"] = f"{away},{other}"
    broker.start()
    pair.until_known({1, 2})
    pair.create("first", 1, 2)
    pair.create("t", 1, 2)
    pair.until_led("t", by={1, 2}, isr={1, 2})
    assert (away / "t-0").is_dir()
    write(pair, "t")
    broker.kill()
    away.rename(tmp_path / "gone")
    broker.start()
    until(lambda: (other / "t-0").is_dir(), "another copy", pair.log_text)
    pair.until_led("t", by={1}, isr={1, 2})
    writer = leave_alone(pair, 2)
    broker.kill()
    shutil.rmtree(away, ignore_errors=True)
    (tmp_path / "gone").rename(away)
    broker.start()
    until_said(pair, 2, f"log_dir={away} {OTHERS_LOG}")
    pair.until_stored("t", leader=-1, isr=[2], unclean=[2])
    pair.brokers[1].start()
    pair.until_led("t", by={2})
    until_said(pair, 2, "lay in two log folders")
    assert not (away / "t-0").exists() and list(away.glob("t-0.*-stray"))
    check_answered(pair, "t", writer)


def damage(broker: BrokerProcess, topic: str) -> Path:
    """Change a byte of a batch in the middle of a stopped broker's log, and not of the last one, which would be a lost end; its
    folder."""
    folder = broker.data / f"{topic}-0"
    (segment,) = folder.glob("*.log")
    data = bytearray(segment.read_bytes().rstrip(b"\0"))
    begins = [0]
    while begins[-1] < len(data) - BATCH_HEAD_BYTES:
        begins.append(begins[-1] + BATCH_HEAD_BYTES + int.from_bytes(data[begins[-1] + 8 : begins[-1] + BATCH_HEAD_BYTES]))
    middle = (len(begins) - 2) // 2  # The last one is where the log ends.
    assert middle < len(begins) - 2, "a log of one batch has no middle"
    data[(begins[middle] + begins[middle + 1]) // 2] ^= 0xFF
    segment.write_bytes(data)
    return folder


def test_a_log_that_was_repaired_has_no_seat(pair: ClusterProcesses) -> None:
    pair.create("t", 1, 2)
    pair.until_led("t", by={1, 2}, isr={1, 2})
    write(pair, "t")
    leave_alone(pair, 2)
    broker = pair.brokers[2]
    broker.kill()
    folder = damage(broker, "t")
    broker.start()
    until_said(pair, 2, "is damaged")
    pair.until_stored("t", leader=-1, isr=[2], unclean=[2])
    broker.kill()
    output([*PROGRAM, "log", "repair", str(folder)])
    broker.start()
    until_said(pair, 2, OTHERS_LOG)
    pair.until_stored("t", leader=-1, isr=[2], unclean=[2])
    pair.brokers[1].start()
    pair.until_led("t", by={1, 2}, isr={1, 2})
    assert pair.state("t")["unclean_epoch"] >= 0


def tree(client: KazooClient, path: str) -> dict[str, bytes]:
    """All nodes from a path on that stay when sessions end."""
    data, stat = client.get(path)
    found = {} if stat.ephemeralOwner else {path: data}
    for name in client.get_children(path):
        found.update(tree(client, f"{path.rstrip('/')}/{name}"))
    return found


def test_a_store_that_was_put_back_under_running_brokers_gives_leaders_again(pair: ClusterProcesses) -> None:
    pair.create("t", 1, 2)
    pair.until_led("t", by={1, 2}, isr={1, 2})
    writers = [write(pair, "t")]
    with connected(pair.servers) as client:
        copy = tree(client, "/")
        for number in (1, 2, 1):
            pair.brokers[number].restart()
            pair.until_led("t", by={1, 2}, isr={1, 2})
            writers.append(write(pair, "t"))
        before = pair.state("t")["leader_epoch"]
        for number in (1, 2):
            pair.pause(number)
        for name in set(client.get_children("/")) - {"zookeeper"}:
            client.delete(f"/{name}", recursive=True)
        for path, data in copy.items():
            if path != "/" and not path.startswith("/zookeeper"):
                client.create(path, data)
    for number in (1, 2):
        pair.resume(number)
    pair.until_led("t", by={1, 2}, isr={1, 2})
    check_answered(pair, "t", *writers, write(pair, "t"))
    assert pair.state("t")["leader_epoch"] > before


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_log_that_was_just_made_is_known_after_a_power_cut(zookeeper: ZooKeeper, tmp_path: Path, kind: str) -> None:
    """What its folder says of its topic is on the disk before a record is."""
    with LossyDisk(tmp_path, kind) as disk:
        world = ClusterProcesses(zookeeper, folder=tmp_path, count=1)
        broker = world.brokers[1]
        broker.data = disk.path / "data"
        try:
            world.start()
            world.create("t", 1, 1)
            writer = write(world, "t")
            (segment,) = (broker.data / "t-0").glob("*.log")
            flush_file(segment)
            broker.kill()
            disk.cut()
            disk.unmount()
            disk.mount()
            forget_start(broker.data)
            broker.start()
            world.until_led("t", by={1}, isr={1})
            assert world.state("t")["unclean_epoch"] >= 0
            check(world, "t", writer)
        finally:
            world.close()


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3)))[::2])
def test_when_everyone_lost_power_the_longest_log_leads(
    zookeeper: ZooKeeper, tmp_path: Path, order: tuple[int, int, int]
) -> None:
    with cluster(zookeeper, tmp_path, 3, log_flush_interval_messages=1_000_000) as world:
        world.create("t", 1, 3, min_insync_replicas="2")
        world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
        for _ in range(8):
            write(world, "t", 5)
        kept = {1: 3, 2: 6, 3: 4}
        for number in world.brokers:
            cut_power(world.brokers[number], "t", kept[number])
        for number in order[:2]:
            world.brokers[number].start()
            world.until_stored("t", leader=-1)
        world.brokers[order[2]].start()
        world.until_led("t", by={2}, isr={1, 2, 3})
        state = world.state("t")
        assert state["unclean_epoch"] == state["leader_epoch"] and state["unclean"] == []
        check_answered(world, "t", write(world, "t"))
        assert all("its newest records may be gone" in broker.log_text() for broker in world.brokers.values())
        until_said(world, 2, f"an unclean election in epoch {state['unclean_epoch']}: this broker leads with a log that ends")
