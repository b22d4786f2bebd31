"""Whether a broker lives, serves and recovers, as it tells a probe."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import Broker
from penstock.broker.logs import opening
from penstock.ports import hold_ports
from support.asking import complaint, create, produce, refused
from support.harness import BrokerProcess
from support.patience import until
from support.scraping import get, get_json, scrape_at

HTTP = {"penstock.http.listen": "127.0.0.1:0"}
LIVE, READY = "/health/live", "/health/ready"
WAIT_S = 60.0


def answers(address: str) -> bool:
    """Whether anything is served there."""
    try:
        return get(f"http://{address}{LIVE}")[0] == 200
    except OSError:
        return False


def test_a_broker_that_serves_is_live_and_ready(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker(**HTTP)
    assert get_json(f"http://{broker.http}{READY}") == (200, {"ready": True, "state": "serving"})
    assert get_json(f"http://{broker.http}{LIVE}") == (200, {"live": True, "state": "serving"})
    assert scrape_at(f"http://{broker.http}")("penstock_broker_ready") == 1


def test_a_broker_that_recovers_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From before its logs are opened on: those who wait for it see that it moves."""
    address = f"127.0.0.1:{hold_ports(1)[0]}"
    properties = {"penstock.http.listen": address, "num.recovery.threads.per.data.dir": 4}
    with Broker(tmp_path, properties=properties) as broker:
        create(broker, "slow", partitions=3)
        assert produce(broker, "slow", 1) == 0
    (tmp_path / ".kafka_cleanshutdown").unlink()  # as after a crash
    go_on, lead = threading.Event(), opening.lead

    def slowly(logs: Any, job: opening.Job, *rest: Any) -> None:
        assert job.state.index == 0 or go_on.wait(WAIT_S)
        lead(logs, job, *rest)

    monkeypatch.setattr(opening, "lead", slowly)
    monkeypatch.setattr(opening, "CHUNK", 1)
    broker = Broker(tmp_path, properties=properties)
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        until(
            lambda: answers(address) and get_json(f"http://{address}{READY}")[1].get("recovering") == [1, 3],
            "one of three logs",
        )
        status, said = get_json(f"http://{address}{READY}")
        assert (status, said["ready"], said["state"]) == (503, False, "recovering")
        assert get_json(f"http://{address}{LIVE}")[0] == 200
        found = scrape_at(f"http://{address}")
        assert (found("penstock_broker_ready"), found("penstock_broker_recovering_partitions")) == (0, 2)
        go_on.set()
        starting.join(WAIT_S)
        until(
            lambda: get_json(f"http://{address}{READY}") == (200, {"ready": True, "state": "serving"}), "a broker that is ready"
        )
        assert scrape_at(f"http://{address}")("penstock_broker_recovering_partitions") == 0
    finally:
        go_on.set()
        starting.join(WAIT_S)
        broker.stop()


def test_a_stop_does_not_wait_for_slow_peers(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker(**HTTP)
    host, port = broker.http.split(":")
    peers = [socket.create_connection((host, int(port))) for _ in range(20)]
    for number, peer in enumerate(peers):
        peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + b"\r\n" * (number % 2))
    assert broker.stop() == 0  # which fails after a while
    for peer in peers:
        peer.close()


@pytest.mark.parametrize(
    ("listen", "code", "words"),
    [
        ("0.0.0.0:0", 2, "is reached from other machines"),
        (":9404", 2, "is reached from other machines"),
        ("127.0.0.1", 2, "is not HOST:PORT"),
        ("taken", 1, "choose another `penstock.http.listen`"),
    ],
)
@pytest.mark.parametrize("option", [[], ["--check"]])
def test_an_address_that_can_not_be_is_refused(tmp_path: Path, listen: str, code: int, words: str, option: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}" if listen == "taken" else listen
        given = ["--data", str(tmp_path), "--listen", "127.0.0.1:0", "--set", f"penstock.http.listen={address}"]
        done = refused(*given, *option)
    assert done.returncode == code
    assert words in complaint(done.stderr) and "penstock.http.listen" in done.stderr


def test_others_reach_it_where_that_is_said(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker(**{"penstock.http.listen": "0.0.0.0:0", "penstock.http.public": True})
    assert re.fullmatch(r"0\.0\.0\.0:\d+", broker.http)
    assert get(f"http://{broker.http.replace('0.0.0.0', '127.0.0.1')}{READY}")[0] == 200


def test_lines_of_a_broker_name_it_and_may_be_json(make_broker: Callable[..., BrokerProcess]) -> None:
    import json

    text = make_broker("text", **{"broker.id": 7, "penstock.http.listen": "127.0.0.1:0"})
    lines = text.log_text().splitlines()
    assert lines and all(" broker-7 penstock." in line for line in lines)
    broker = make_broker("json", **{"broker.id": 8, "penstock.log.format": "json", "penstock.http.listen": "127.0.0.1:0"})
    found = [json.loads(line) for line in broker.log_text().splitlines()]
    assert found and {line["process"] for line in found} == {"broker-8"}
