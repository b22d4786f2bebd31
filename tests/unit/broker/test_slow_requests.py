"""Requests that take long are said in the log with their phases; what clients name themselves begins no line of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from penstock.pyx.wire.header import encode_request
from support import faultio
from support.asking import create
from support.harness import BrokerProcess, WireConnection
from support.patience import until
from support.scraping import scrape_at
from support.transaction_wire import batch, produce_request

HTTP = {"penstock.http.listen": "127.0.0.1:0"}
LINE = re.compile(r"slow request api=Produce took (\d+) ms: .* client_id='a\\nb' peer=127\.0\.0\.1:\d+ topic='slow'")


def produce_slowly(tmp_path: Path, broker: BrokerProcess, count: int) -> None:
    """Produce in requests whose appends take 100 ms each, one after the other."""
    create(broker, "slow")
    (tmp_path / "control").write_text("write slow100 slow-0\n")
    with WireConnection(broker.bootstrap) as wire:
        for number in range(count):
            records = batch((-1, -1), -1, transactional=False)
            request = produce_request(wire, None, 9, ("slow", 0, records))
            wire.send(encode_request(request, 9, number, "a\nb"))
            wire.receive()
    (tmp_path / "control").write_text("")


def slow_broker(tmp_path: Path, make_broker: Callable[..., BrokerProcess], threshold_ms: int) -> BrokerProcess:
    environment = {"LD_PRELOAD": str(faultio.build(tmp_path)), "FAULT_CTL": str(tmp_path / "control")}
    return make_broker(environment=environment, **HTTP, **{"penstock.slow.request.ms": threshold_ms})


def test_a_slow_request_is_a_line_and_a_count(tmp_path: Path, make_broker: Callable[..., BrokerProcess]) -> None:
    broker = slow_broker(tmp_path, make_broker, 50)
    produce_slowly(tmp_path, broker, 30)
    assert scrape_at(f"http://{broker.http}")("penstock_slow_requests_total", request="Produce") == 30
    until(lambda: LINE.search(broker.log_text()) is not None, "a line", broker.log_text)
    assert broker.stop() == 0
    lines = [line for line in broker.log_text().splitlines() if "slow request api=Produce took" in line]
    assert len(lines) == 1, "those that are alike are counted"
    more = [
        int(found[1])
        for found in re.finditer(r"(\d+) more (?:requests were slow|slow requests api=Produce)", broker.log_text())
    ]
    assert len(lines) + sum(more) == 30
    assert all(int(found[1]) >= 50 for line in lines if (found := LINE.search(line)))


def test_without_a_threshold_none_is_slow(tmp_path: Path, make_broker: Callable[..., BrokerProcess]) -> None:
    broker = slow_broker(tmp_path, make_broker, 0)
    produce_slowly(tmp_path, broker, 2)
    assert broker.stop() == 0
    assert "slow request" not in broker.log_text()
