"""What a broker process writes can be read by its own user alone; a folder that others can read is named."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.broker.process import BrokerProcess
from support.asking import create

TIMEOUT_S = 120


@pytest.fixture
def permissive_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}


@pytest.mark.usefixtures("permissive_umask")
def test_all_that_a_broker_makes_is_its_users_alone(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", {"penstock.ballast.bytes": 1 << 20}).start()
    try:
        create(broker, "t", internal_segment_bytes=2000)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        for _ in range(8):
            producer.produce("t", b"x" * 900)
            assert producer.flush(TIMEOUT_S) == 0
        broker.restart()
        assert len(list((tmp_path / "data" / "t-0").glob("*.log"))) > 1
    finally:
        broker.stop()
    assert {path: oct(mode) for path, mode in modes(broker.data).items() if mode & 0o077} == {}
    assert "can read" not in broker.log_text()


def test_a_folder_that_others_can_read_stays_so_and_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    folder.chmod(0o755)
    broker = BrokerProcess(folder, {"penstock.ballast.bytes": 1 << 20}).start()
    broker.stop()
    assert f"other users of this machine can read `{folder}` (mode 0755): `chmod 700 '{folder}'`" in broker.log_text()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
