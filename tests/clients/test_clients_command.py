"""`penstock clients`: who is connected to a broker, and how busy each client is."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from penstock.cli import root
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import ApiVersionsRequest, MetadataRequest
from support.asking import produce
from support.harness import BrokerProcess, WireConnection
from support.one_partition import create
from support.scraping import scrape_at

HTTP = {"penstock.http.listen": "127.0.0.1:0"}
HOSTILE = 'a"b\n\x1b[2J[red]é'


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(root, ["clients", "--interval", "0.1", *words])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output if code == 0 else f"{result.output}{result.exception}"


def listed(*words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("--json", *words))
    return found


def ask_as(wire: WireConnection, client_id: str, request: Message, version: int) -> None:
    """Ask with a client id of one's own."""
    wire.send(encode_request(request, version, 1, client_id))
    wire.receive()


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return make_broker(**HTTP)


@pytest.fixture
def named(broker: BrokerProcess) -> Iterator[WireConnection]:
    """A connection whose client has said what it is."""
    with WireConnection(broker.bootstrap) as wire:
        request = ApiVersionsRequest(client_software_name="a-library", client_software_version="1.2.3")
        ask_as(wire, HOSTILE, request, 3)
        yield wire


def test_clients_are_listed_with_what_they_said(broker: BrokerProcess, named: WireConnection) -> None:
    create(broker.bootstrap, "busy")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "a-producer"})
    producer.produce("busy", b"v")
    assert producer.flush(30) == 0
    rows = listed("--http", broker.http)
    (one,) = (row for row in rows if row["client_id"] == HOSTILE)
    assert (one["software"], one["version"], one["listener"]) == ("a-library", "1.2.3", "PLAINTEXT")
    assert any(row["client_id"] == "a-producer" and row["software"] == "confluent-kafka-python" for row in rows)
    found = scrape_at(f"http://{broker.http}")
    assert found("penstock_clients", software="a-library", version="1.2.3") == 1
    assert HOSTILE not in {text for labels in found.samples for _, text in labels[1]}
    # For people: nothing that moves a cursor, and no markup.
    table = run("--http", broker.http)
    assert "\x1b" not in table and r"a\"b" not in table and r'a"b\n\x1b[2J[red]é' in table


def test_who_does_most_is_first(broker: BrokerProcess, named: WireConnection) -> None:
    create(broker.bootstrap, "busy")
    ended = threading.Event()

    def work() -> None:
        with WireConnection(broker.bootstrap) as wire:
            while not ended.is_set():
                ask_as(wire, "busy-one", MetadataRequest(topics=[]), 9)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        rows = listed("--http", broker.http, "--interval", "0.5")
    finally:
        ended.set()
        worker.join()
    assert rows[0]["client_id"] == "busy-one"
    assert rows[0]["requests_per_s"] > 0 and rows[0]["bytes_in_per_s"] > 0 and rows[0]["bytes_out_per_s"] > 0
    assert next(row for row in rows if row["client_id"] == HOSTILE)["requests_per_s"] == 0


def test_the_brokers_file_says_where_it_is(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"broker.id=1\npenstock.http.listen={broker.http}\n")
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(WireConnection(broker.bootstrap)).ask(MetadataRequest(topics=[]), 9)
        assert len(listed("--config", str(file))) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("broker.id=1\n", "lacks `penstock.http.listen`\nhint: echo penstock.http.listen=127.0.0.1:9404 >> "),
        ("penstock.http.listen=127.0.0.1:0\n", "is any free port"),
    ],
)
def test_a_file_that_does_not_say_it_is_refused(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "server.properties"
    file.write_text(content)
    assert words in run("--config", str(file), code=1)


class NoBroker(http.server.BaseHTTPRequestHandler):
    """Answers everything with something else."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *given: object) -> None:
        pass


def test_what_is_no_broker_is_said(broker: BrokerProcess) -> None:
    assert "\nhint: penstock broker --config FILE --set " in run("--http", "127.0.0.1:1", code=1)
    assert "is not HOST:PORT" in run("--http", "nowhere", code=1)
    with http.server.HTTPServer(("127.0.0.1", 0), NoBroker) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        assert "is no broker" in run("--http", f"127.0.0.1:{other.server_port}", code=1)
        other.shutdown()
    assert produce(broker, "unknown", 1) != 0  # The broker goes on.
