"""How much one request may make a network thread inflate: a small request of batches that are nearly nothing compressed
would otherwise keep everybody else on its thread waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.log.logmanager import SEARCH_INFLATED_BYTES
from penstock.pyx.record.convert import OPENED_ENOUGH_BYTES
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import split
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import FetchResponse, ProduceRequest, ProduceResponse
from support.dataplane import Broker, batch, fetch, forget_all, lead, produced, topic_id
from support.logs import LOGS, NOW_MS, Log

GZIP, ZSTD = 1, 4
LARGE = b"\0" * (40 << 20)
"""Of zeros: a few KiB when compressed."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("inflated")
    with Broker() as made:
        lead(folder, "opened", 4, validate_records=2)
        lead(folder, "packed")
        lead(folder, "unpacked", compression_codec=0, max_message_bytes=64 << 20)
        yield made
    forget_all()


def asked_of_each(version: int, *records: bytes) -> ProduceRequest:
    """A request with records for as many partitions of the topic whose batches are opened."""
    topic = ProduceRequest.TopicProduceData(
        name="opened",
        topic_id=topic_id("opened") if version >= 13 else bytes(16),
        partition_data=[ProduceRequest.PartitionProduceData(index=index, records=one) for index, one in enumerate(records)],
    )
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


def test_what_a_request_makes_inflate_is_bounded(served: Broker) -> None:
    large = batch([LARGE], NOW_MS, ZSTD)
    small = batch([b"x" * 100], NOW_MS, ZSTD)
    plain = batch([b"plain"], NOW_MS)
    with served.connect() as peer:
        answer = peer.ask(asked_of_each(9, large, large, plain, small), 9, ProduceResponse)
        (topic,) = answer.responses
        codes = [one.error_code for one in topic.partition_responses]
        assert codes == [0, ErrorCode.MESSAGE_TOO_LARGE, 0, ErrorCode.MESSAGE_TOO_LARGE]
        # Alone, what was refused is taken: it is for the producer to send less at once.
        again = peer.ask(asked_of_each(9, plain, large), 9, ProduceResponse)
        assert [one.error_code for one in again.responses[0].partition_responses] == [0, 0]


def test_corrupt_payloads_count(served: Broker) -> None:
    large = bytearray(batch([LARGE], NOW_MS, GZIP))
    large[-6] ^= 0xFF  # gzip's own checksum, at the end of the payload
    corrupt = _with_checksum(large)
    good = batch([LARGE], NOW_MS, ZSTD)
    with served.connect() as peer:
        answer = peer.ask(asked_of_each(9, corrupt, good), 9, ProduceResponse)
    codes = [one.error_code for one in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE]


def test_what_comes_together_is_not_held_together_when_it_was_inflated(served: Broker) -> None:
    """Small requests whose batches are stored uncompressed: the broker holds few of them at a time."""
    number, large = 24, batch([LARGE], NOW_MS, ZSTD)
    topic = ProduceRequest.TopicProduceData(
        name="unpacked", partition_data=[ProduceRequest.PartitionProduceData(index=0, records=large)]
    )
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
    frames = [encode_request(request, 7, n, "c") for n in range(number)]
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the memory in use counts from now
    before = memory("VmRSS")
    with served.connect() as peer:
        peer.send_all(frames)
        answers = [ProduceResponse.decode(peer.receive()[4:], 7) for _ in frames]
    assert [produced(one).base_offset for one in answers] == list(range(number))
    assert memory("VmHWM") - before < 4 * len(LARGE)


def memory(what: str) -> int:
    """Bytes of this process, by a line of its status."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what)]
    return int(line.split()[1]) << 10


def _with_checksum(raw: bytearray) -> bytes:
    raw[17:21] = crc32c(bytes(raw[21:])).to_bytes(4, "big")
    return bytes(raw)


def test_an_answer_to_an_old_client_is_converted_up_to_a_bound(served: Broker) -> None:
    count = 4
    size = OPENED_ENOUGH_BYTES // 2 + 1
    with served.connect() as peer:
        for _ in range(count):
            topic = ProduceRequest.TopicProduceData(
                name="packed",
                partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch([b"\0" * size], NOW_MS, GZIP))],
            )
            made = peer.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 8, ProduceResponse)
            assert made.responses[0].partition_responses[0].error_code == 0
        offset, answers = 0, []
        while offset < count:
            answer = peer.ask(fetch("packed", offset, 3, partition_max_bytes=4 << 20), 3, FetchResponse)
            (one,) = answer.responses[0].partitions
            given = list(split(one.records or b""))
            assert given
            answers.append(len(given))
            offset = given[-1].last_offset + 1
    assert answers == [2, 2]


def test_a_search_by_time_opens_up_to_a_bound(tmp_path: Path) -> None:
    wanted = NOW_MS + 1000
    liar = bytearray(batch([LARGE], NOW_MS, ZSTD))
    liar[35:43] = wanted.to_bytes(8, "big")  # max_timestamp: no record has it
    log = Log(tmp_path, validate_records=1)  # of batches that stay closed nobody sees that they lie
    for _ in range(4):
        log.append(_with_checksum(liar))
    # Few are opened, as ever.
    assert LOGS.offset_for_timestamp(log.topic, 0, wanted) is None
    for _ in range(20):
        log.append(_with_checksum(liar))
    # Of many, one is believed at last: it may hold the record, those behind it begin later.
    found = LOGS.offset_for_timestamp(log.topic, 0, wanted)
    assert found == (SEARCH_INFLATED_BYTES // len(LARGE), wanted)
    log.drop()
