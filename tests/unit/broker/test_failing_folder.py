"""A log folder that fails in the moment in which partitions are made, or opened, in it."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import Broker
from penstock.broker.logs import opening, topiclogs
from penstock.broker.logs.logdirs import LogDirs
from penstock.errors import ErrorCode
from penstock.pyx.wire import messages
from support.harness import WireConnection

WAIT_S = 120.0


class Failing:
    """Fails a broker's second folder and waits until the broker knows."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.dirs: LogDirs | None = None
        opened = LogDirs.open

        def remember(*given: Any) -> LogDirs:
            self.dirs = opened(*given)
            return self.dirs

        monkeypatch.setattr(LogDirs, "open", remember)

    def fail(self, logs: Any) -> None:
        assert self.dirs is not None
        log_dir = self.dirs.by_path(str(self.folder))
        assert log_dir is not None
        logs.fail_folder(str(self.folder), errno.EIO)
        until = time.monotonic() + WAIT_S
        while not log_dir.offline and time.monotonic() < until:
            time.sleep(0.01)


def leaders(broker: Broker) -> list[tuple[int, int, bool]]:
    """Error, leader and whether it is offline, of both partitions of the topic `t`; the offline one last."""
    with WireConnection(broker.bootstrap) as connection:
        (topic,) = connection.ask(messages.MetadataRequest(topics=None), 9).topics
    found = [(part.error_code, part.leader_id, bool(part.offline_replicas)) for part in topic.partitions]
    return sorted(found, key=lambda one: one[2])


def create(broker: Broker) -> None:
    topic = messages.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
    with WireConnection(broker.bootstrap) as connection:
        connection.ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)


ONE_OFFLINE = [(0, 1, False), (ErrorCode.LEADER_NOT_AVAILABLE, -1, True)]


def test_while_a_topic_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(tmp_path / "second", monkeypatch)
    broker = Broker(tmp_path / "first", properties={"log.dirs": str(tmp_path / "second")})

    def sync_folder(path: Path) -> None:
        if path == failing.folder:
            assert broker._server is not None
            failing.fail(broker._server._logs)

    monkeypatch.setattr(topiclogs, "sync_folder", sync_folder)
    with broker:
        create(broker)
        assert leaders(broker) == ONE_OFFLINE


def test_while_a_log_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(tmp_path / "second", monkeypatch)
    broker = Broker(tmp_path / "first", properties={"log.dirs": str(tmp_path / "second")})
    with broker:
        create(broker)
        broker.stop()
        lead = opening.lead

        def then_fail(logs: Any, job: opening.Job, *rest: Any) -> None:
            lead(logs, job, *rest)
            if job.log_dir.path == failing.folder:
                failing.fail(logs)

        monkeypatch.setattr(opening, "lead", then_fail)
        broker.start()
        assert leaders(broker) == ONE_OFFLINE
