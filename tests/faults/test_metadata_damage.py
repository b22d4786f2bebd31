"""A metadata store whose bytes, values or disk are bad: the broker starts with everything as it was, or says one sentence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.broker.store.base import CorruptStoreError
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.store.sound import FORMAT, fact_checksum
from penstock.pyx.wire.messages import AlterClientQuotasRequest, InitProducerIdRequest
from support import faultio
from support.asking import complaint, metadata, refused
from support.harness import BrokerProcess, WireConnection
from support.metadata_store import FILE, put_node

WAIT_S = 60.0
PAGE = 4096
PROPERTIES: dict[str, object] = {"penstock.ballast.bytes": 0, "transaction.state.log.num.partitions": 1}


def fill(broker: BrokerProcess) -> None:
    """Something of each kind that a store keeps."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    made = client.create_topics([NewTopic(f"topic-{i}", 3, config={"retention.ms": str(i + 1)}) for i in range(30)])
    for future in made.values():
        future.result(WAIT_S)
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    asked = UserScramCredentialUpsertion("alice", credential, b"pencil", b"salt")
    client.alter_user_scram_credentials([asked])["alice"].result(WAIT_S)
    quota = AlterClientQuotasRequest.EntryData(
        entity=[AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name="c")],
        ops=[AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1000.0)],
    )
    with WireConnection(broker.bootstrap) as wire:
        wire.ask(AlterClientQuotasRequest(entries=[quota]), 1)
        wire.ask(InitProducerIdRequest(transactional_id=None), 4)


def alter(broker: BrokerProcess, kind: ResourceType, name: str, key: str, value: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(WAIT_S)


class Shown(NamedTuple):
    """What a broker shows of a topic. Leader epochs are none of it: each start raises them."""

    topic_id: bytes
    partitions: dict[int, tuple[int, list[int], list[int]]]
    configs: dict[str, str]


def shown(broker: BrokerProcess) -> dict[str, Shown]:
    """Every topic: its id, the leader, replicas and ISR of its partitions, and the configs that are its own."""
    answer = metadata(broker)
    resources = [ConfigResource(ResourceType.TOPIC, str(topic.name)) for topic in answer.topics]
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    described = client.describe_configs(resources)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        resource.name: Shown(
            topic.topic_id,
            {one.partition_index: (one.leader_id, one.replica_nodes, one.isr_nodes) for one in topic.partitions},
            {key: one.value for key, one in described[resource].result(WAIT_S).items() if one.source == own},
        )
        for topic, resource in zip(answer.topics, resources, strict=True)
    }


class Left(NamedTuple):
    """What a broker left behind, and what it showed before."""

    data: Path
    topics: dict[str, Shown]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Killed: a part of the store is in the file, the latest part in the write-ahead log."""
    broker = BrokerProcess(tmp_path_factory.mktemp("killed") / "data", PROPERTIES).start()
    try:
        fill(broker)
        broker.restart()
        for i in range(0, 30, 3):
            alter(broker, ResourceType.TOPIC, f"topic-{i}", "retention.ms", "-1")
        alter(broker, ResourceType.BROKER, "1", "log.cleaner.threads", "2")
        topics = shown(broker)
    finally:
        broker.close()
    assert (broker.data / f"{FILE}-wal").stat().st_size > 10 * PAGE
    assert (broker.data / FILE).stat().st_size > 10 * PAGE
    assert {name: topic.configs for name, topic in topics.items()} == {
        f"topic-{i}": {"retention.ms": "-1" if i % 3 == 0 else str(i + 1)} for i in range(30)
    }
    return Left(broker.data, topics)


@pytest.fixture(scope="module")
def stopped(killed: Left, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """The same, stopped cleanly: all of its store is in one file."""
    data = tmp_path_factory.mktemp("stopped") / "data"
    shutil.copytree(killed.data, data)
    broker = BrokerProcess(data, PROPERTIES).start()
    assert broker.stop() == 0
    return Left(data, killed.topics)


def damage(rng: random.Random, data: Path) -> str:
    """Do one bad thing to one of the store's files; what it was."""
    names = [name for name in (FILE, f"{FILE}-wal", f"{FILE}.changes") if (data / name).exists()]
    file = data / rng.choices(names, [10, 10, 1][: len(names)])[0]
    content = bytearray(file.read_bytes())
    kind = rng.choice(["bit"] * 6 + ["zeros", "noise", "cut", "cut", "gone"])
    at = rng.randrange(len(content))
    page = at // PAGE * PAGE
    end = min(page + PAGE, len(content))
    if kind == "bit":
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        content[page:end] = bytes(end - page)
    elif kind == "noise":
        content[page:end] = rng.randbytes(end - page)
    else:
        del content[at:]
    if kind == "gone":
        file.unlink()
    else:
        file.write_bytes(content)
    return f"{kind} at {at} of {file.name}"


def contents(data: Path) -> dict[str, bytes]:
    """All that lasts in a store."""

    async def work() -> dict[str, bytes]:
        store = await EmbeddedStore.open(data / FILE)
        try:
            return await store.tree("/")
        finally:
            await store.close()

    return asyncio.run(work())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("state", ["killed", "stopped"])
def test_a_damaged_store_is_whole_or_refused(request: pytest.FixtureRequest, tmp_path: Path, state: str, seed: int) -> None:
    """Many damages of a store alone, each opened as a start does."""
    folder = request.getfixturevalue(state).data
    print(f"seed {seed}")
    rng = random.Random(f"{state} {seed}")
    whole: dict[str, bytes] | None = None
    refusals = 0
    for number in range(60):
        data = tmp_path / str(number)
        data.mkdir()
        for name in (FILE, f"{FILE}-wal", f"{FILE}.changes"):
            if (folder / name).exists():
                shutil.copy(folder / name, data / name)
        if whole is None:
            whole = contents(data)
            assert json.loads(whole["config/topics/topic-3"])["config"] == {"retention.ms": "-1"}
            continue
        what = damage(rng, data)
        if not (data / FILE).exists() or (data / FILE).stat().st_size == 0:
            continue  # Seen by the broker: it knows that it had a store.
        files = {file.name: file.read_bytes() for file in data.iterdir()}
        try:
            found = contents(data)
        except CorruptStoreError as error:
            assert str(data / FILE) in str(error) and "\n" not in str(error), what
            after = {name: (data / name).read_bytes() for name in files}
            assert after == files, f"{what}: what is damaged was written to"
            refusals += 1
        else:
            assert found == whole, what
    assert refusals > 10


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("state", ["killed", "stopped"])
def test_a_broker_with_a_damaged_store_serves_all_of_it_or_says_one_sentence(
    request: pytest.FixtureRequest, tmp_path: Path, state: str, seed: int
) -> None:
    data = tmp_path / "data"
    left: Left = request.getfixturevalue(state)
    shutil.copytree(left.data, data)
    print(f"seed {seed}")
    what = damage(random.Random(f"broker {state} {seed}"), data)
    broker = BrokerProcess(data, PROPERTIES)
    try:
        broker.start()
    except AssertionError:
        pass
    else:
        assert_whole(broker, left.topics)
        assert broker.stop() == 0
        return
    finally:
        broker.close()
    said = complaint(broker.log_text(), what)
    assert str(data / FILE) in said, what
    assert "--restore-metadata" in said and f"{FILE}.backup" in said, what
    broker = BrokerProcess(data, PROPERTIES, arguments=["--restore-metadata"])
    try:
        broker.start()
        assert_whole(broker, left.topics)
        assert list(data.glob(f"{FILE}.aside-*")) or "missing" in said, "the damaged file is kept"
    finally:
        broker.close()


def assert_whole(broker: BrokerProcess, before: dict[str, Shown]) -> None:
    """All is as it was; configs may be as they were at the start, after a backup that is not the latest."""
    found = shown(broker)
    for i in range(30):
        configs = found[f"topic-{i}"].configs if f"topic-{i}" in found else {}
        if configs.get("penstock.configs.confirmed") == "false":
            del configs["penstock.configs.confirmed"]
            assert configs["retention.ms"] in (before[f"topic-{i}"].configs["retention.ms"], str(i + 1))
            configs["retention.ms"] = before[f"topic-{i}"].configs["retention.ms"]
    assert found == before


@pytest.mark.parametrize("state", ["killed", "stopped"])
def test_a_store_of_a_newer_format_is_refused_whatever_is_asked(
    request: pytest.FixtureRequest, tmp_path: Path, state: str
) -> None:
    data = tmp_path / "data"
    left: Left = request.getfixturevalue(state)
    shutil.copytree(left.data, data)
    newer_format = str(FORMAT + 1)
    with contextlib.closing(sqlite3.connect(data / FILE)) as database:
        newer = (newer_format, fact_checksum("format", newer_format))
        database.execute("UPDATE about SET value = ?, crc = ? WHERE name = 'format'", newer)
        database.execute("DROP INDEX node_parent")  # What the newer one has done to the rest is its own affair.
        database.execute("ALTER TABLE node RENAME TO tree")
        database.commit()
    before = {file.name: file.read_bytes() for file in data.iterdir() if file.name.startswith(FILE)}
    for way in ((), ("--restore-metadata",), ("--adopt-topics",)):
        done = refused("--data", str(data), "--set", "penstock.ballast.bytes=0", *way)
        said = complaint(done.stderr)
        assert done.returncode == 1 and f"`{data / FILE}`" in said and "a newer Penstock" in said
        assert f"in format {newer_format}" in said and f"up to {FORMAT}" in said and "--restore-metadata" in said
    assert {file.name: file.read_bytes() for file in data.iterdir() if file.name.startswith(FILE)} == before
    (data / FILE).rename(tmp_path / "newer")  # The way back that the sentence names.
    broker = BrokerProcess(data, PROPERTIES, arguments=["--restore-metadata"])
    try:
        broker.start()
        assert_whole(broker, left.topics)
    finally:
        broker.close()


def test_a_disk_that_gives_no_bytes_is_not_called_a_damaged_file(stopped: Left, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(stopped.data, data)
    control = tmp_path / "control"
    control.write_text(f"read 5 {FILE}\n")
    environment = {"LD_PRELOAD": str(faultio.build(tmp_path)), "FAULT_CTL": str(control)}
    broker = BrokerProcess(data, PROPERTIES, environment=environment)
    with pytest.raises(AssertionError, match="exit code 1"):
        broker.start()
    said = complaint(broker.log_text())
    assert "Input/output error" in said and "malformed" not in broker.log_text()
    assert f"the disk gives no bytes of `{data / FILE}" in said
    control.write_text("")
    try:
        broker.start()
        assert_whole(broker, stopped.topics)
    finally:
        broker.close()


STATE = {"controller_epoch": 1, "leader": 1, "version": 1, "leader_epoch": 0, "isr": [1]}
TOPIC = {"version": 3, "topic_id": "AAAAAAAAAAAAAAAAAAAAAg", "partitions": {"0": [1]}}


def entity(**texts: str) -> dict[str, object]:
    return {"version": 1, "config": texts}


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/brokers/topics/topic-1/partitions/0/state", {**STATE, "isr": None}),
        ("/brokers/topics/topic-1/partitions/0/state", {key: value for key, value in STATE.items() if key != "isr"}),
        ("/brokers/topics/topic-1/partitions/0/state", {**STATE, "leader_epoch": -1}),
        ("/brokers/topics/topic-1/partitions/0/state", None),
        ("/brokers/topics/topic-1", {**TOPIC, "topic_id": "short"}),
        ("/brokers/topics/topic-1", {**TOPIC, "topic_id": 7}),
        ("/brokers/topics/topic-1", {**TOPIC, "partitions": {"0": [1], "2": [1]}}),
        ("/brokers/topics/topic-1", {**TOPIC, "partitions": {"0": "one"}}),
        ("/brokers/topics/topic-1", []),
        ("/brokers/topics/what is this", TOPIC),
        ("/config/topics/topic-1", {"version": 1, "config": {"retention.ms": 5}}),
        ("/config/topics/topic-1", None),
        ("/config/brokers/1", entity(**{"log.cleaner.threads": "many"})),
        ("/admin/delete_topics", {"version": 1, "topics": 3}),
        ("/controller_epoch", b"-1"),
        ("/feature", {"version": 2, "features": {"group.version": "new"}}),
        ("/latest_producer_id_block", {"version": 1, "block_end": "-5"}),
        ("/latest_producer_id_block", b"{"),
        ("/config/clients/c", entity(producer_byte_rate="fast")),
        ("/config/clients/c", {"version": 1, "config": {"producer_byte_rate": 5}}),
        ("/config/clients/c", entity(consumer_bite_rate="1")),
        ("/config/users/alice", entity(**{"SCRAM-SHA-256": "salt=,iterations=no"})),
        ("/config/groups/g", entity(**{"consumer.session.timeout.ms": "long"})),
    ],
)
def test_a_value_that_cannot_be_is_one_sentence(stopped: Left, tmp_path: Path, path: str, content: object) -> None:
    """The file is sound; what stands in it isn't what a broker writes."""
    data = tmp_path / "data"
    shutil.copytree(stopped.data, data)
    raw = content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
    put_node(data, path, raw)
    before = folders(data), contents(data)
    said = refused("--data", str(data), "--set", "penstock.ballast.bytes=0")
    assert said.returncode == 1 and said.stdout == ""
    sentence = complaint(said.stderr)
    assert path in sentence and "start once with `--restore-metadata`" in said.stderr
    assert (folders(data), contents(data)) == before, "a start that was refused has changed something"


def test_too_few_descriptors_are_found_before_anything_is_changed(stopped: Left, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(stopped.data, data)
    before = folders(data), contents(data)
    broker = [sys.executable, "-m", "penstock", "broker", "--listen", "127.0.0.1:0", "--data", str(data)]
    command = ["prlimit", "--nofile=64:64", "--", *broker, "--set", "penstock.ballast.bytes=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "may have 64 open files" in complaint(done.stderr)
    assert (folders(data), contents(data)) == before


def folders(data: Path) -> dict[str, bytes]:
    """All that lies in the log folder but for the store, which `contents` reads, and the lock, which names the process."""
    files = (path for path in data.rglob("*") if path.is_file() and not path.name.startswith((FILE, ".lock")))
    return {str(path.relative_to(data)): path.read_bytes() for path in files}
