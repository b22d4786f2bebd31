"""Fetch 0 to 3: clients of 0.8 to 0.11 get messages that they can read, whatever is stored; and zstd."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.record.rawbatch import marker, split
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import FetchRequest, FetchResponse
from support.dataplane import (
    Broker,
    Peer,
    batch,
    fetch,
    fetched,
    lead,
    transactional,
    values,
)
from support.harness import topic_name
from support.logs import LOGS
from support.pagecache import drop_cache


@pytest.fixture
def topic(folder: Path) -> str:
    """An empty topic of this test's own."""
    name = topic_name("fetch")
    lead(folder, name)
    return name


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_versions_get_messages_that_they_can_read(peer: Peer, version: int) -> None:
    answer = peer.ask(fetch("read", 7, version), version, FetchResponse)
    one = fetched(answer)
    assert (one.error_code, one.high_watermark) == (0, 20)
    assert {raw.magic for raw in split(bytes(one.records or b""))} == {0 if version < 2 else 1}
    assert values(one) == [b"%d" % n for n in range(3, 10) for _ in range(2)][1:]


@pytest.mark.parametrize("version", [0, 2])
def test_each_partition_gives_its_first_batch_where_no_limit_is_told(peer: Peer, version: int) -> None:
    request = fetch("large", 0, version, partition_max_bytes=1)
    (topic,) = request.topics
    topic.partitions += [
        FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1) for index in (1, 2)
    ]
    answer = peer.ask(request, version, FetchResponse)
    assert [len(values(one)) for one in answer.responses[0].partitions] == [1, 1, 1]


def test_version_3_has_a_limit_of_the_whole(peer: Peer) -> None:
    request = fetch("large", 0, 3, partition_max_bytes=1, max_bytes=1)
    request.topics[0].partitions.append(FetchRequest.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20))
    answer = peer.ask(request, 3, FetchResponse)
    assert [len(values(one)) for one in answer.responses[0].partitions] == [1, 0]


def test_what_old_clients_get_in_one_answer_is_bounded(peer: Peer, folder: Path, topic: str) -> None:
    for _ in range(12):
        LOGS.append(topic, 0, batch([b"v" * 900_000]))
    got = 0
    while got < 12:
        one = fetched(peer.ask(fetch(topic, got, 2, partition_max_bytes=1 << 30), 2, FetchResponse))
        assert 0 < len(one.records or b"") <= 4 << 20
        got += len(values(one))


@pytest.mark.parametrize("version", [0, 3])
def test_zstd_is_refused_to_old_clients(peer: Peer, topic: str, version: int) -> None:
    LOGS.append(topic, 0, batch([b"plain"]))
    LOGS.append(topic, 0, batch([b"z" * 1000], codec=4))
    first = fetched(peer.ask(fetch(topic, 0, version), version, FetchResponse))
    assert (first.error_code, values(first)) == (0, [b"plain"])
    then = fetched(peer.ask(fetch(topic, 1, version), version, FetchResponse))
    assert then.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("version", [4, 9, 10])
@pytest.mark.parametrize("wanted", [-1, 4])
def test_zstd_is_sent_as_it_lies_from_version_4_on(peer: Peer, folder: Path, version: int, wanted: int) -> None:
    """Clients of Fetch 4 to 9 that know the codec read it from Kafka 4, too, whatever the topic's `compression.type` says."""
    topic = f"zstd-{version}-{wanted}"
    lead(folder, topic, compression_codec=wanted)
    LOGS.append_client(topic, 0, batch([b"z" * 1000], codec=4))
    one = fetched(peer.ask(fetch(topic, 0, version), version, FetchResponse))
    assert (one.error_code, values(one)) == (0, [b"z" * 1000])
    assert [raw.codec for raw in split(bytes(one.records or b""))] == [4]


def test_markers_do_not_hold_up_old_clients(peer: Peer, topic: str) -> None:
    for sequence in range(3):
        LOGS.append(topic, 0, batch([b"t%d" % sequence], **transactional(7, sequence)))
        LOGS.append(topic, 0, marker(True, 7, 0, 0, 0))
    values_seen: list[bytes | None] = []
    offset = 0
    while len(values_seen) < 3:
        one = fetched(peer.ask(fetch(topic, offset, 0, partition_max_bytes=1), 0, FetchResponse))
        values_seen += values(one)
        offset = split(bytes(one.records or b""))[-1].next_offset
    assert values_seen == [b"t0", b"t1", b"t2"]
    # At the last marker there is nothing to give: the fetch waits, and what comes then wakes it.
    peer.send(encode_request(fetch(topic, 5, 0, max_wait_ms=600_000), 0, 1, "test"))
    assert peer.is_silent()
    LOGS.append(topic, 0, batch([b"after"]))
    assert values(fetched(FetchResponse.decode(peer.receive()[4:], 0))) == [b"after"]


@pytest.mark.parametrize("version", [1, 3])
def test_old_clients_wait_for_cold_pages_of_the_pool(folder: Path, topic: str, version: int) -> None:
    for n in range(8):
        LOGS.append(topic, 0, batch([bytes([n]) * 200_000]))
    LOGS.flush(topic, 0)
    drop_cache(folder / f"{topic}-0" / "00000000000000000000.log")
    with Broker() as broker, broker.connect() as peer:
        one = fetched(peer.ask(fetch(topic, 0, version, partition_max_bytes=1 << 22), version, FetchResponse))
        assert [(value or b"")[0] for value in values(one)] == list(range(8))
