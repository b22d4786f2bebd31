"""Topics that lie in the folders of a broker without a metadata store: adopted, kept whole, and never without words."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from penstock.broker.logs.folder import META, STORE_ID
from support.asking import end_offset, names, refused, start_offset
from support.harness import BrokerProcess, output
from support.metadata_store import lose_store
from support.patience import until

WAIT_S = 60.0
OLD_MS = 30 * 24 * 3_600_000
CONFIRMED = "penstock.configs.confirmed"
PROPERTIES: dict[str, object] = {
    "log.retention.check.interval.ms": 100,
    "log.initial.task.delay.ms": 0,
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0,
    "log.segment.bytes": 1 << 20,
    "penstock.ballast.bytes": 0,
}


def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def create(broker: BrokerProcess, name: str, **configs: str) -> None:
    given = {key.replace("_", "."): value for key, value in configs.items()}
    client = admin(broker)
    client.create_topics([NewTopic(name, 1, config=given)])[name].result(WAIT_S)


def write(broker: BrokerProcess, topic: str, count: int = 400, keys: int = 1) -> None:
    """Records of a month ago, of few keys."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    old_ms = int(time.time() * 1000) - OLD_MS
    for i in range(count):
        producer.produce(topic, b"v%d" % i, b"k%d" % (i % keys), timestamp=old_ms)
    assert producer.flush(WAIT_S) == 0


def own_configs(broker: BrokerProcess, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    client = admin(broker)
    entries = client.describe_configs([resource])[resource].result(WAIT_S)
    source = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entry.value for name, entry in entries.items() if entry.source == source}


def alter(broker: BrokerProcess, topic: str, **changes: str | None) -> None:
    """Set configs, None = take away, by a plain IncrementalAlterConfigs."""
    entries = [
        ConfigEntry(
            key.replace("_", "."),
            value or "",
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in changes.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client = admin(broker)
    client.incremental_alter_configs([resource])[resource].result(WAIT_S)


def until_retention_has_looked(broker: BrokerProcess, name: str) -> None:
    """Until a topic whose configs let its old records go has lost them."""
    create(broker, name)
    write(broker, name)
    until(lambda: start_offset(broker, name) == 400, "retention", broker.log_text)


def penstock(broker: BrokerProcess, *words: str) -> str:
    return output([*broker.command()[:3], *words, "--bootstrap", broker.bootstrap])


@pytest.fixture
def left(tmp_path: Path) -> Iterable[BrokerProcess]:
    """The stopped broker of a topic that keeps everything, without its store and all that tells of it."""
    broker = BrokerProcess(tmp_path / "data", PROPERTIES).start()
    try:
        create(broker, "kept", retention_ms="-1")
        write(broker, "kept", keys=400)
        assert broker.stop() == 0
        lose_store(broker.data, backups=True, mark=True)
        yield broker
    finally:
        broker.close()


def test_retention_is_paused_until_an_adopted_topics_configs_are_confirmed(left: BrokerProcess) -> None:
    left.start()
    until_retention_has_looked(left, "first")
    assert start_offset(left, "kept") == 0
    assert own_configs(left, "kept") == {CONFIRMED: "false"}
    assert CONFIRMED in penstock(left, "topics", "describe", "kept")
    warned = [line for line in left.log_text().splitlines() if "WARNING" in line and "kept" in line]
    assert len(warned) == 1 and "penstock topics confirm" in warned[0]
    # It is paused after a restart too, and after configs are set one by one: the next one may be what saves the records.
    left.restart()
    alter(left, "kept", segment_bytes="2000000")
    until_retention_has_looked(left, "newer")
    assert start_offset(left, "kept") == 0
    assert "confirmed kept" in penstock(left, "topics", "confirm", "--all")
    assert own_configs(left, "kept") == {"segment.bytes": "2000000"}
    until(lambda: start_offset(left, "kept") == 400, "retention, once the configs are confirmed", left.log_text)
    assert "none of them waited" in penstock(left, "topics", "confirm", "kept")


def test_compaction_is_paused_until_an_adopted_topics_configs_are_confirmed(left: BrokerProcess) -> None:
    left.start()
    alter(left, "kept", cleanup_policy="compact", segment_ms="100", retention_ms="-1")
    create(left, "compacted", cleanup_policy="compact", segment_ms="100")

    def compact(topic: str) -> bool:
        write(left, topic, 10)
        return f"compacted topic={topic} " in left.log_text()

    until(lambda: compact("compacted"), "a compaction", left.log_text)
    write(left, "kept", 10)
    assert "compacted topic=kept " not in left.log_text()
    alter(left, "kept", **{CONFIRMED.replace(".", "_"): "true"})
    until(lambda: compact("kept"), "a compaction, once the configs are confirmed", left.log_text)


def test_configs_that_are_replaced_are_confirmed_only_in_words(left: BrokerProcess) -> None:
    """An old client alters one config by AlterConfigs, which replaces them all."""
    left.start()
    client = admin(left)
    resource = ConfigResource(ResourceType.TOPIC, "kept", set_config={"segment.bytes": "2000000"})
    client.alter_configs([resource])[resource].result(WAIT_S)
    assert own_configs(left, "kept") == {"segment.bytes": "2000000", CONFIRMED: "false"}
    until_retention_has_looked(left, "newer")
    assert start_offset(left, "kept") == 0
    resource = ConfigResource(ResourceType.TOPIC, "kept", set_config={"retention.ms": "-1", CONFIRMED: "true"})
    client.alter_configs([resource])[resource].result(WAIT_S)
    assert own_configs(left, "kept") == {"retention.ms": "-1", CONFIRMED: "true"}
    assert "the configs of topic=kept are confirmed" in left.log_text()


@pytest.mark.parametrize("emptied", [False, True])
def test_a_store_that_was_there_once_is_missed(tmp_path: Path, emptied: bool) -> None:
    broker = BrokerProcess(tmp_path / "data", PROPERTIES).start()
    try:
        create(broker, "kept", retention_ms="-1")
        assert broker.stop() == 0
        meta = (broker.data / META).read_text().splitlines()
        assert "penstock.metadata.store=metadata.db" in meta
        lose_store(broker.data, backups=True)
        if emptied:
            (broker.data / "metadata.db").touch()
        for _ in range(2):
            said = refused(*broker.command()[4:])
            assert said.returncode == 1 and said.stderr.count("\n") == 1 and "Traceback" not in said.stderr
            assert f"is {'empty' if emptied else 'missing'}, but this broker had one" in said.stderr
            assert "--adopt-topics" in said.stderr
        broker.arguments.append("--adopt-topics")
        broker.start()
        assert own_configs(broker, "kept") == {CONFIRMED: "false"}
        assert broker.stop() == 0
        # Left in a service's command line, the option must not do it again.
        said = refused(*broker.command()[4:])
        assert said.returncode == 1 and "start without `--adopt-topics`" in said.stderr
        broker.arguments.clear()
        broker.start()
        # It is another store now, and nothing else in the file is another.
        now = (broker.data / META).read_text().splitlines()
        changed = [(before, after) for before, after in zip(meta, now, strict=True) if before != after]
        assert [pair[0].partition("=")[0] for pair in changed] == [pair[1].partition("=")[0] for pair in changed] == [STORE_ID]
    finally:
        broker.close()


def test_a_copy_under_another_name_is_refused_before_anything_is_stored(left: BrokerProcess) -> None:
    folder, copy = left.data / "kept-0", left.data / "kept.bak-0"
    shutil.copytree(folder, copy)
    for _ in range(2):
        said = refused(*left.command()[4:])
        assert said.returncode == 1 and "Traceback" not in said.stderr
        assert f"`{folder}`" in said.stderr and f"`{copy}`" in said.stderr and "the same topic id" in said.stderr
    shutil.move(copy, left.data.parent)
    left.start()
    assert end_offset(left, "kept") == 400


def test_a_dated_copy_is_no_partition(left: BrokerProcess) -> None:
    copy = left.data / "kept-0-20260501"
    shutil.copytree(left.data / "kept-0", copy)
    left.start()
    assert "kept-0" not in names(left) and end_offset(left, "kept") == 400
    assert f"{copy} isn't adopted" in left.log_text() and list(copy.glob("*.log"))


def test_nothing_is_adopted_while_a_log_folder_is_away(left: BrokerProcess) -> None:
    second = left.data.with_name("second")
    away = [*left.command()[4:], "--set", f"log.dirs={second}"]
    second.write_text("not a folder")
    for arguments in (away, [*away, "--adopt-topics"]):
        said = refused(*arguments)
        assert said.returncode == 1 and f"`{second}` can't be seen" in said.stderr and "Traceback" not in said.stderr
    second.unlink()
    left.start()
    assert end_offset(left, "kept") == 400
