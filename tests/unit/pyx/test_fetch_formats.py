"""Fetch 4 and later: clients of today get batches of magic 2, whatever a log has from before."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.tools.logfiles import read_file
from penstock.errors import ErrorCode
from penstock.pyx.record.rawbatch import Record, marker, records, split
from penstock.pyx.wire.messages import FetchRequest, FetchResponse
from support.dataplane import Broker, Peer, batch, fetch, fetch_topic, fetched, lead, topic_id, transactional
from support.logs import LOGS, NOW_MS, write_earlier_checks
from support.messagesets import GZIP, LOG_APPEND_TIME, LZ4, SNAPPY, Message, pack, pack_set, wrap
from support.pagecache import drop_cache

VERSIONS = [4, 6, 7, 11, 12, 13, 18]
UNKNOWN, NEW, OLD = 0, 1, 2
"""The formats that a `.checks` notes: segment.pxd."""
FORMATS_AT = -9
"""Where it notes them; the base offset of the next segment follows."""

_numbers = itertools.count()


@pytest.fixture
def new_topic(folder: Path) -> Callable[..., str]:
    """A function that makes topics which keep message sets as they are sent."""

    def make(partitions: int = 1, **config: int) -> str:
        name = f"formats{next(_numbers)}"
        lead(folder, name, partitions, **{"message_magic": 0, **config})
        return name

    return make


def put_old(topic: str, magic: int, count: int, codec: int = 0, index: int = 0, size: int = 10) -> None:
    messages = [Message(i, b"k%d" % i, b"v" * size, NOW_MS + i if magic else -1) for i in range(count)]
    data = wrap(magic, messages, codec, count - 1, timestamp_ms=NOW_MS) if codec else pack_set(magic, messages)
    LOGS.append_client(topic, index, data)


def put_new(topic: str, value: bytes = b"new", index: int = 0) -> None:
    LOGS.append_client(topic, index, batch([value], NOW_MS))


def put_all(topic: str) -> list[Record]:
    """Every format and codec, and new batches among them; what a consumer has to see."""
    for magic, codec in itertools.product((0, 1), (0, GZIP, SNAPPY, LZ4)):
        put_old(topic, magic, 3, codec)
        put_new(topic)
    return [record for raw in split(LOGS.read(topic, 0, 0, 1 << 24)) for record in records(raw)]


def seen(one: FetchResponse.PartitionData) -> list[Record]:
    """The records of an answer, which must be of batches of magic 2 that are right."""
    assert one.error_code == 0
    found = []
    for raw in split(bytes(one.records or b"")):
        raw.check()
        assert raw.magic == 2
        found += [] if raw.is_control else records(raw)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_format_is_read_from_every_offset(peer: Peer, new_topic: Callable[..., str], version: int) -> None:
    topic = new_topic()
    wanted = put_all(topic)
    assert [record.offset for record in wanted] == list(range(32))
    for offset in range(32):
        found = seen(fetched(peer.ask(fetch(topic, offset, version), version, FetchResponse)))
        assert found[0].offset <= offset
        assert found == wanted[found[0].offset :]


def test_the_brokers_clock_stays(peer: Peer, new_topic: Callable[..., str]) -> None:
    topic = new_topic(log_append_time=1)
    for codec in (0, GZIP):
        put_old(topic, 1, 2, codec)
    wanted = [record for raw in split(LOGS.read(topic, 0, 0, 1 << 24)) for record in records(raw)]
    one = fetched(peer.ask(fetch(topic, 0, 12), 12, FetchResponse))
    assert seen(one) == wanted
    assert {raw.attributes & LOG_APPEND_TIME for raw in split(bytes(one.records or b""))} == {LOG_APPEND_TIME}


@pytest.mark.parametrize("version", [4, 12])
def test_the_first_batch_comes_whole_and_the_others_when_they_fit(
    peer: Peer, new_topic: Callable[..., str], version: int
) -> None:
    topic = new_topic(3, max_message_bytes=1 << 24)
    for index in range(3):
        put_old(topic, 1, 5, GZIP, index, size=100_000)
        put_new(topic, index=index)
    request = fetch(topic, 0, version, partition_max_bytes=1, max_bytes=1)
    for index in (1, 2):
        request.topics[0].partitions.append(FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1))
    answer = peer.ask(request, version, FetchResponse)
    assert [len(seen(one)) for one in answer.responses[0].partitions] == [5, 0, 0]
    request.max_bytes = 1 << 20
    for one in request.topics[0].partitions:
        one.partition_max_bytes = 1 << 20
    answer = peer.ask(request, version, FetchResponse)
    assert [len(seen(one)) for one in answer.responses[0].partitions] == [6, 6, 6]


def test_what_is_converted_for_one_answer_is_bounded(peer: Peer, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    for _ in range(8):
        for index in range(2):
            put_old(topic, 0, 1, index=index, size=900_000)
    ends = [0, 0]
    while ends != [8, 8]:
        parts = [
            FetchRequest.FetchPartition(partition=index, fetch_offset=ends[index], partition_max_bytes=1 << 30)
            for index in range(2)
        ]
        # More than there is ever asked for: an answer that is cut short comes at once all the same.
        wait_ms = 600_000 if sum(ends) <= 8 else 0
        request = FetchRequest(min_bytes=1 << 30, max_wait_ms=wait_ms, topics=[fetch_topic(topic, 12, parts)])
        answer = peer.ask(request, 12, FetchResponse)
        got = {one.partition_index: seen(one) for one in answer.responses[0].partitions}
        assert 0 < sum(map(len, got.values())) <= 4, "an answer converts at most 4 MiB"
        for index, found in got.items():
            assert [one.offset for one in found] == list(range(ends[index], ends[index] + len(found)))
            ends[index] += len(found)


def test_a_session_hears_of_converted_records_and_goes_round(peer: Peer, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    for index in range(3):
        put_old(topic, 1, 4, SNAPPY, index, size=5000)
    parts = [FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in range(3)]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[fetch_topic(topic, 13, parts)], session_epoch=0)
    request.max_bytes = 1
    first = peer.ask(request, 13, FetchResponse)
    assert [len(seen(one)) for one in first.responses[0].partitions] == [4, 0, 0]
    order = []
    for epoch in range(1, 4):
        again = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, session_id=first.session_id, session_epoch=epoch)
        (told,) = peer.ask(again, 13, FetchResponse).responses
        order += [one.partition_index for one in told.partitions if seen(one)]
    # The full fetch doesn't turn the order; each that gave records is read last the next time.
    assert order == [0, 1, 2]


def test_aborted_transactions_are_listed_beside_what_was_converted(peer: Peer, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    put_old(topic, 0, 2)
    LOGS.append_client(topic, 0, batch([b"lost"], NOW_MS, **transactional(7, 0)))
    LOGS.append(topic, 0, marker(False, 7, 0, 0, NOW_MS))
    put_old(topic, 1, 2, GZIP)
    one = fetched(peer.ask(fetch(topic, 0, 12, isolation_level=1), 12, FetchResponse))
    assert [record.offset for record in seen(one)] == [0, 1, 2, 4, 5]
    assert [(aborted.producer_id, aborted.first_offset) for aborted in one.aborted_transactions or []] == [(7, 2)]
    assert [raw.base_offset for raw in split(bytes(one.records or b"")) if raw.is_control] == [3]


@pytest.mark.parametrize("version", [1, 12])
def test_a_wrapper_that_cannot_be_read_is_an_error_of_its_own_fetch(
    peer: Peer, folder: Path, new_topic: Callable[..., str], version: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    put_old(topic, 1, 2)
    LOGS.flush(topic, 0)
    LOGS.stop(topic, 0)
    path = folder / f"{topic}-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes() + pack(1, Message(2, None, b"no gzip", NOW_MS, GZIP)))
    for beside in (".checks", ".index", ".timeindex"):
        path.with_suffix(beside).unlink(missing_ok=True)
    LOGS.lead(topic, topic_id(topic), 0, 0, str(folder), {}, True)
    assert [record.offset for record in seen(fetched(peer.ask(fetch(topic, 0, 12), 12, FetchResponse)))] == [0, 1]
    for _ in range(3):
        one = fetched(peer.ask(fetch(topic, 2, version), version, FetchResponse))
        assert one.error_code == ErrorCode.CORRUPT_MESSAGE
        LOGS.prove_doubted()  # As the control plane does when it is woken.
    lines = [line for line in caplog.messages if f"{topic}-0: the message at offset 2" in line]
    assert len(lines) == 1, "said once"


def test_cold_pages_are_read_by_the_pool(folder: Path, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    for _ in range(8):
        put_old(topic, 1, 1, size=200_000)
    LOGS.flush(topic, 0)
    drop_cache(folder / f"{topic}-0" / "00000000000000000000.log")
    with Broker() as broker, broker.connect() as peer:
        one = fetched(peer.ask(fetch(topic, 0, 12, partition_max_bytes=1 << 22), 12, FetchResponse))
        assert [record.offset for record in seen(one)] == list(range(8))


# --- which segments have older formats is known, or found out once -----------------------------------------------


def checks(folder: Path, topic: str) -> list[Path]:
    return sorted((folder / f"{topic}-0").glob("*.checks"))


def noted(folder: Path, topic: str) -> list[int]:
    """The formats of the segments of a log, as its `.checks` have them."""
    return [path.read_bytes()[FORMATS_AT] if path.read_bytes()[:2] == b"\0\3" else UNKNOWN for path in checks(folder, topic)]


def told(folder: Path, topic: str) -> list[object]:
    """The same as `penstock log dump` tells it."""
    rows = [row for path in checks(folder, topic) for row in read_file(path)]
    assert not any("damage" in row for row in rows)
    return [row["formats"] for row in rows]


def reopen(folder: Path, topic: str, clean: bool = True) -> None:
    LOGS.lead(topic, topic_id(topic), 0, 0, str(folder), {"message_magic": 0, "segment_bytes": 1000}, clean)


@pytest.mark.parametrize("source", ["noted", "an older Penstock", "Kafka", "a kill"])
def test_a_folder_is_read_right_from_the_first_fetch_on(
    peer: Peer, folder: Path, new_topic: Callable[..., str], source: str
) -> None:
    topic = new_topic(segment_bytes=1000)
    put_new(topic, b"n" * 900)
    put_old(topic, 1, 5, size=150)
    put_new(topic, b"n" * 900)
    LOGS.stop(topic, 0)
    assert noted(folder, topic) == [NEW, OLD, NEW]
    assert told(folder, topic) == ["2", "some of 0 or 1", "2"]
    for path in checks(folder, topic):
        if source == "an older Penstock":
            write_earlier_checks(path, 1)  # which doesn't know of formats
            assert "not known" in told(folder, topic)
        elif source in ("Kafka", "a kill"):
            path.unlink()
    for _ in range(2):
        reopen(folder, topic, clean=source != "a kill")
        offset, values = 0, []
        while offset < 7:
            found = seen(fetched(peer.ask(fetch(topic, offset, 12), 12, FetchResponse)))
            values += [record.value for record in found]
            offset = found[-1].offset + 1
        assert values == [b"n" * 900, *[b"v" * 150] * 5, b"n" * 900]
        # What the control plane does when a fetch has asked: the walk is made once, and noted.
        LOGS.prove_doubted()
        LOGS.flush(topic, 0)
        put_new(topic)
        LOGS.stop(topic, 0)
        assert noted(folder, topic)[:2] == [NEW, OLD]
        assert UNKNOWN not in noted(folder, topic)


def test_a_bent_note_is_not_believed(peer: Peer, folder: Path, new_topic: Callable[..., str]) -> None:
    topic = new_topic(segment_bytes=1000)
    put_old(topic, 1, 5, size=150)
    LOGS.stop(topic, 0)
    (path,) = checks(folder, topic)
    data = bytearray(path.read_bytes())
    assert data[FORMATS_AT] == OLD
    data[FORMATS_AT] = NEW
    path.write_bytes(data)
    reopen(folder, topic)
    assert len(seen(fetched(peer.ask(fetch(topic, 0, 12), 12, FetchResponse)))) == 5
