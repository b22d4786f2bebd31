"""The output's beginning expires, as it does every day: ids that the store had are known all the same."""

from __future__ import annotations

from pathlib import Path

from penstock.pipeline.clients.admin import TOPIC_RESOURCE
from support.dedupe_world import World
from support.harness import BrokerProcess


def send_again(w: World) -> None:
    """A restart, then every id once more, and nothing but a restart's own repair to know them by."""
    w.send(0, [w.batch(0, [word for word, _ in w.sent[0]], 3)])
    w.stage.start()
    w.await_done()
    assert w.stage.stop() == 0, w.stage.text()
    w.check_counters()


def test_ids_become_a_file_after_a_while(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, penstock_dedupe_spill_ms=300) as w:
        w.fill()
        w.stage.start()
        w.await_done()
        w.await_file()  # with nothing more to read
        w.stage.kill()
        w.expire_output()
        send_again(w)


def test_ids_become_a_file_at_a_clean_stop(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.run_once()
        w.expire_output()
        send_again(w)


def test_ids_become_a_file_when_their_output_is_about_to_go(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.stage.start()
        w.await_done()
        assert not list((w.database / "ids").glob("*.sst"))
        w.expire_output(before=1)
        w.await_file()
        w.stage.kill()
        w.expire_output()
        send_again(w)


def test_the_output_is_made_without_a_limit_by_time(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, penstock_dedupe_output_retention_bytes=123_456_789) as w:
        w.stage.start()
        assert w.stage.stop() == 0
        configs = w.admin(lambda admin: admin.describe_configs(TOPIC_RESOURCE, w.output))
        assert (configs["retention.ms"], configs["retention.bytes"]) == ("-1", "123456789")
        assert "time limit" not in w.stage.text()


def test_an_output_with_a_limit_by_time_is_named(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2) as w:
        w.admin(lambda admin: admin.create_topics({w.output: 2}, configs={"retention.ms": "3600000"}))
        w.stage.start()
        assert w.stage.stop() == 0
        assert w.stage.text().count(f"`{w.output}` was made with a time limit: records go 3600000 ms") == 1
