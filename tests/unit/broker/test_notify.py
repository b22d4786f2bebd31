"""What a broker tells systemd: ready when its logs are open, that its loop turns, and that it stops."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock import notify
from penstock.broker.process import BrokerProcess

TIMEOUT_S = 60


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
        finally:
            broker.stop()
        heard.setblocking(False)
        told: list[str] = []
        while not told or not told[-1].startswith("STOPPING=1"):
            told.append(heard.recv(4096).decode())


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    notify.ready("text")


def test_a_line_stays_a_line_and_progress_gets_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(tmp_path / "n") as heard:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        notify.progress("1 of 2\nREADY=1")
        assert heard.recv(4096) == b"STATUS=1 of 2 READY=1\nEXTEND_TIMEOUT_USEC=60000000"
