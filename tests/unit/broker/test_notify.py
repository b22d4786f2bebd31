"""What a broker tells systemd: ready when its logs are open, that its loop turns, and that it stops."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock import notify
from penstock.broker.process import BrokerProcess
from support import faultio

TIMEOUT_S = 120


def listen(path: Path) -> socket.socket:
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(str(path))
    heard.settimeout(TIMEOUT_S)
    return heard


def test_ready_then_alive_then_stopping(tmp_path: Path) -> None:
    with listen(tmp_path / "n") as heard:
        environment = {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "200000"}
        broker = BrokerProcess(tmp_path / "data", environment=environment).start()
        try:
            first = heard.recv(4096).decode()
            assert first == f"READY=1\nSTATUS=serving on {broker.bootstrap}"
            assert [heard.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            producer.produce("t", b"x")
            assert producer.flush(TIMEOUT_S) == 0
        finally:
            broker.stop()
        heard.setblocking(False)
        told: list[str] = []
        while not told or not told[-1].startswith("STOPPING=1"):
            told.append(heard.recv(4096).decode())
        flushed, *closed = [heard.recv(4096).decode() for _ in range(3)]
    assert flushed == "STATUS=stopping: 1 logs are flushed\nEXTEND_TIMEOUT_USEC=300000000"
    assert closed == [
        f"STATUS=stopping: `{tmp_path / 'data'}` is flushed\nEXTEND_TIMEOUT_USEC=300000000",
        "STATUS=stopping: 1 of 1 logs are closed\nEXTEND_TIMEOUT_USEC=300000000",
    ]


def test_systemd_hears_nothing_of_a_service_that_does_not_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = iter([True, False, False, True])
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    with listen(tmp_path / "n") as heard:
        with pytest.raises(RuntimeError):  # asked a fifth time
            asyncio.run(notify.keep_watchdog(lambda: next(alive)))
        heard.setblocking(False)
        told = [heard.recv(100), heard.recv(100)]
        with pytest.raises(BlockingIOError):
            heard.recv(100)
    assert told == [b"WATCHDOG=1"] * 2


def test_recovery_within_one_large_log_is_progress(tmp_path: Path) -> None:
    """One log, on a disk that needs 0.1 s for each read of a MiB: whoever waits sees it move, and systemd gives it time."""
    control = tmp_path / "control"
    control.touch()
    environment = {"LD_PRELOAD": str(faultio.build(tmp_path)), "FAULT_CTL": str(control)}
    broker = BrokerProcess(tmp_path / "data", environment=environment).start()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 1_000_000})
    for _ in range(40):
        producer.produce("large", b"x" * 900_000)
    assert producer.flush(TIMEOUT_S) == 0
    broker.kill()
    control.write_text("read slow100 large-0/00000000000000000000.log$\n")
    with listen(tmp_path / "n") as heard:
        broker.environment["NOTIFY_SOCKET"] = str(tmp_path / "n")
        broker.start()
        told: list[str] = []
        while not told or not told[-1].startswith("READY=1"):
            told.append(heard.recv(4096).decode())
        broker.stop()
    moved = [one for one in told if one.startswith("STATUS=recovering 0 of 1 logs, ") and "\nEXTEND_TIMEOUT_USEC=" in one]
    assert len(set(moved)) >= 2, told


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    notify.ready("text")


def test_a_line_stays_a_line_and_progress_gets_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(tmp_path / "n") as heard:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        notify.progress("1 of 2\nREADY=1")
        assert heard.recv(4096) == b"STATUS=1 of 2 READY=1\nEXTEND_TIMEOUT_USEC=300000000"
