"""A disk that hangs is seen by whoever watches a broker, and is no reason to restart it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.pyx.wire.header import encode_request
from support import faultio
from support.asking import create
from support.harness import BrokerProcess, WireConnection
from support.patience import until
from support.scraping import get_json, scrape_at
from support.transaction_wire import batch, produce_request

LIVE, READY = "/health/live", "/health/ready"


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """The file that says which calls hang."""
    return tmp_path / "control"


@pytest.fixture
def broker(tmp_path: Path, control: Path, make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    environment = {"LD_PRELOAD": str(faultio.build(tmp_path)), "FAULT_CTL": str(control)}
    return make_broker(environment=environment, **{"penstock.http.listen": "127.0.0.1:0", "num.network.threads": 2})


def hang(broker: BrokerProcess, control: Path, rule: str, begin: Callable[[], None]) -> None:
    """Let a call hang, which `begin` makes the broker do."""
    control.write_text(f"{rule}\n")
    begin()
    until(Path(f"{control}.hangs").exists, "a call that hangs", broker.log_text)


def test_an_append_that_hangs_leaves_figures_and_health(broker: BrokerProcess, control: Path) -> None:
    create(broker, "hung", "other")
    with WireConnection(broker.bootstrap) as wire:
        records = batch((-1, -1), -1, transactional=False)
        request = encode_request(produce_request(wire, None, 9, ("hung", 0, records)), 9, 1, "client")
        hang(broker, control, "write hang hung-0", lambda: wire.send(request))
        until(lambda: "held" in get_json(f"http://{broker.http}{LIVE}")[1], "a thread that is held", broker.log_text)
        status, said = get_json(f"http://{broker.http}{LIVE}")
        assert status == 200 and said["live"] and len(said["held"]) == 1
        assert get_json(f"http://{broker.http}{READY}")[0] == 200
        assert scrape_at(f"http://{broker.http}")("penstock_broker_ready") == 1
        control.write_text("")
        wire.receive()
    until(lambda: "held" not in get_json(f"http://{broker.http}{LIVE}")[1], "a thread that goes on", broker.log_text)


def test_a_metadata_store_that_hangs_makes_a_broker_unready(broker: BrokerProcess, control: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    hang(broker, control, "write hang metadata.db", lambda: admin.create_topics([NewTopic("new", 1)]) and None)
    until(lambda: get_json(f"http://{broker.http}{READY}")[0] == 503, "a broker that is not ready", broker.log_text)
    assert get_json(f"http://{broker.http}{READY}")[1]["store"] == "does not answer"
    assert get_json(f"http://{broker.http}{LIVE}")[0] == 200
    assert scrape_at(f"http://{broker.http}")("penstock_broker_ready") == 0
    control.write_text("")
    until(lambda: get_json(f"http://{broker.http}{READY}")[0] == 200, "a broker that is ready again", broker.log_text)
