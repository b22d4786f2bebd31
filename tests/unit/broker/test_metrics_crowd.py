"""A real broker with more topics, groups and client ids than a page shows: it is as small as any, and all goes on.

`make monitoring-test` has 10,000 of each, which take a minute to be made.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

import pytest

from penstock.broker.metrics.bounds import PAGE_BYTES, ROWS_MAX
from penstock.metrics import REST
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import CreateTopicsRequest, MetadataRequest, OffsetCommitRequest
from support.harness import BrokerProcess, WireConnection
from support.patience import until
from support.scraping import Scrape, get_json, page_at

MakeBroker = Callable[..., BrokerProcess]

MANY, AT_ONCE = int(os.environ.get("CROWD", "2500")), 500
MESSAGES_IN = "kafka_server_brokertopicmetrics_messagesin_total"


def send_each(broker: BrokerProcess, requests: list[tuple[Message, int, str]]) -> None:
    """Requests, each with its version and its client's id, over one connection, so many at a time."""
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 120) as wire, wire.makefile("rb") as answers:
        for at in range(0, len(requests), AT_ONCE):
            some = [encode_request(message, version, 1, client) for message, version, client in requests[at : at + AT_ONCE]]
            wire.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in some))
            for _ in some:
                (size,) = struct.unpack(">i", answers.read(4))
                assert len(answers.read(size)) == size


def topics(names: list[str]) -> CreateTopicsRequest:
    own = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        timeout_ms=120_000, topics=[own(name=name, num_partitions=1, replication_factor=1) for name in names]
    )


def position(group: str, topic: str) -> OffsetCommitRequest:
    own = OffsetCommitRequest
    part = own.OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
    return own(group_id=group, topics=[own.OffsetCommitRequestTopic(name=topic, partitions=[part])])


@pytest.mark.timeout(900)
def test_more_topics_groups_and_clients_than_a_page_shows(make_broker: MakeBroker) -> None:
    broker = make_broker(**{"penstock.http.listen": "127.0.0.1:0", "offsets.topic.num.partitions": 1})
    names = [f"topic-{number:05}" for number in range(MANY)]
    with WireConnection(broker.bootstrap, 300) as wire:
        for at in range(0, MANY, AT_ONCE):
            answer = wire.ask(topics(names[at : at + AT_ONCE]), 5)
            assert {topic.error_code for topic in answer.topics} == {0}
        until(lambda: wire.ask(position("first", names[0]), 8).topics[0].partitions[0].error_code == 0, "a coordinator")
    send_each(broker, [(position(f"group {number}\n", name), 8, f'client "{number}"') for number, name in enumerate(names)])
    where = f"http://{broker.http}"
    pages = [page_at(where) for _ in range(2)]
    for page in pages:
        assert len(page) < PAGE_BYTES
        found = Scrape(page)
        shown = [labels.get("topic") for labels, _ in found.rows(MESSAGES_IN)]
        assert REST in shown and 500 < len(shown) <= ROWS_MAX + 2
        assert found("kafka_controller_kafkacontroller_globaltopiccount") > MANY
        groups = {labels["consumergroup"] for labels, _ in found.rows("kafka_consumergroup_members")}
        assert REST in groups and len(groups) <= ROWS_MAX + 1
        for family in ("kafka_consumergroup_members", MESSAGES_IN.removesuffix("_total"), "kafka_log_log_size"):
            assert found("penstock_metrics_dropped_series", family=family) >= MANY - ROWS_MAX
    # Clients choose their ids: each connection is one row, whatever ids it has had.
    status, said = get_json(f"{where}/clients")
    assert status == 200 and len(said) < 100
    with WireConnection(broker.bootstrap) as wire:
        assert len(wire.ask(MetadataRequest(topics=None), 9).topics) > MANY
