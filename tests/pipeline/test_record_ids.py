"""Ids given at the edge: what an application sends again, since it can't know what became of it, comes out of dedupe once."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import KafkaError
from penstock.pipeline import new_record_id
from penstock.pipeline.clients.producer import Producer
from support.dedupe_world import LIMIT_S, World
from support.harness import BrokerProcess

COUNT = 30


@pytest.mark.parametrize("where", ["key", "header:id"])
def test_sent_again_after_a_failure_and_after_a_restart(tmp_path: Path, broker: BrokerProcess, where: str) -> None:
    properties = {"penstock_dedupe_id": where, "penstock_dedupe_misplaced": "move"}
    with World(tmp_path, broker, partitions=3, **properties) as w:
        w.stage.start()
        key = None if where == "key" else b"one key for all"
        noted = [new_record_id() for _ in range(COUNT)]  # by an application, before it sends

        def send(producer: Producer, word: bytes, value: bytes) -> None:
            if where == "key":
                producer.send(w.topic, word, value)
            else:
                producer.send(w.topic, key, value, headers=[("id", word)])

        with Producer(broker.bootstrap, record_id=where, delivery_timeout_ms=3000, request_timeout_ms=15_000) as producer:
            for partition in range(3):
                producer.send(w.topic, key, b"warm %d" % partition, partition=partition).result(LIMIT_S)
            broker.signal(signal.SIGSTOP)
            values = [b"single %d" % n for n in range(COUNT)]
            singles = [(value, producer.send(w.topic, key, value)) for value in values]
            bulk = producer.send_many(w.topic, values=[b"many %d" % n for n in range(COUNT)])
            for n, word in enumerate(noted):
                send(producer, word, b"noted %d" % n)
            assert all(delivery.exception(LIMIT_S) is not None for _, delivery in singles)
            with pytest.raises(KafkaError):
                bulk.result(LIMIT_S)
            broker.signal(signal.SIGCONT)  # and now it reads what it was sent all the same
        with Producer(broker.bootstrap, record_id=where) as producer:
            for value, delivery in singles:
                assert delivery.record_id is not None
                send(producer, delivery.record_id, value)
            assert bulk.columns is not None
            assert producer.send_many(w.topic, columns=bulk.columns).result(LIMIT_S) == COUNT
            for n, word in enumerate(noted):
                send(producer, word, b"noted %d" % n)
        w.await_done()
        assert w.stage.stop() == 0
        found = Counter(bytes(record.value or b"") for p in range(3) for record in w.records(p))
        wanted = [b"warm %d" % n for n in range(3)]
        wanted += [b"%s %d" % (word, n) for word in (b"single", b"many", b"noted") for n in range(COUNT)]
        assert found == Counter(wanted)
        assert sum(w.end(w.topic, p) for p in range(3)) > len(wanted)  # some of it did come twice
