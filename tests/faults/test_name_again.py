"""A topic is deleted and another one made under its name, then kill -9: nothing of the first is applied to the second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from support import asking
from support.harness import BrokerProcess
from support.one_partition import WAIT_S, create, delete, delete_before, offsets, read, write

KILLS = 8
Make = Callable[..., BrokerProcess]


@pytest.mark.parametrize("restart", ["none", "clean", "killed"])
def test_records_of_a_topic_made_again_are_not_below_the_first_ones_log_start(make_broker: Make, restart: str) -> None:
    broker = make_broker()
    for turn in range(KILLS if restart == "none" else 1):
        create(broker.bootstrap, "w")
        write(broker.bootstrap, "w", [f"old {turn} {i}" for i in range(50)])
        delete_before(broker.bootstrap, "w", 45)
        delete(broker.bootstrap, "w")
        if restart == "clean":
            broker.restart()
        elif restart == "killed":
            broker.kill()
            broker.start()
        create(broker.bootstrap, "w")
        values = [f"new {turn} {i}" for i in range(20)]
        write(broker.bootstrap, "w", values)
        broker.kill()
        broker.start()
        assert offsets(broker.bootstrap, "w") == (0, 20), broker.log_text()
        assert read(broker.bootstrap, "w") == values
        delete(broker.bootstrap, "w")


def test_offsets_committed_to_a_topic_are_not_those_of_a_later_one(make_broker: Make) -> None:
    """The broker dies when the topic's logs are gone, and its groups don't know yet."""
    broker = make_broker()
    create(broker.bootstrap, "w")
    write(broker.bootstrap, "w", [f"old {i}" for i in range(50)])
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition("w", 0, 45)], asynchronous=False)
    consumer.close()
    asking.killed_at(broker, "topics.emptied", *asking.delete_topics("w"))
    create(broker.bootstrap, "w")
    write(broker.bootstrap, "w", [f"new {i}" for i in range(50)])
    consumer = Consumer(settings)
    (committed,) = consumer.committed([TopicPartition("w", 0)], WAIT_S)
    consumer.close()
    assert committed.offset == OFFSET_INVALID


def test_a_disk_that_comes_back_says_nothing_of_a_topic_made_meanwhile(make_broker: Make, tmp_path: Path) -> None:
    """The topic is deleted while its log folder is away; the next of its name gets its place in that folder."""
    second, away = tmp_path / "second", tmp_path / "away"
    broker = make_broker(**{"log.dirs": str(second)})
    create(broker.bootstrap, "other")
    create(broker.bootstrap, "w")
    assert (second / "w-0").is_dir()
    write(broker.bootstrap, "w", [f"old {i}" for i in range(50)])
    delete_before(broker.bootstrap, "w", 45)
    broker.stop()
    second.rename(away)
    second.write_text("not a folder")
    broker.start()
    delete(broker.bootstrap, "w")
    broker.kill()
    second.unlink()
    away.rename(second)
    broker.start()
    create(broker.bootstrap, "w")
    values = [f"new {i}" for i in range(20)]
    write(broker.bootstrap, "w", values)
    assert (second / "w-0").is_dir() and list(second.glob("w-0.*-stray"))
    broker.kill()
    broker.start()
    assert offsets(broker.bootstrap, "w") == (0, 20), broker.log_text()
    assert read(broker.bootstrap, "w") == values


def test_deleted_records_stay_deleted_when_a_kill_comes_between_the_files(make_broker: Make) -> None:
    broker = make_broker()
    create(broker.bootstrap, "w")
    write(broker.bootstrap, "w", [f"old {i}" for i in range(50)])
    asking.killed_at(broker, "checkpoints.written", *asking.delete_records("w", 45))
    assert offsets(broker.bootstrap, "w") == (45, 50)
    assert "WARNING" not in broker.log_text()
