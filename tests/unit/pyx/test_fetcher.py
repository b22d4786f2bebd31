"""Fetcher threads against a leader that the test plays: sessions, delays, lies, removals, connections that end."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.net.fetcher import Fetchers, News
from penstock.pyx.record.rawbatch import RawBatch, split
from penstock.pyx.wire.header import decode_request, encode_response
from penstock.pyx.wire.messages import FetchRequest, FetchResponse
from support.followed import placed
from support.logs import LOGS, batch
from support.replicas import BROKER_EPOCH, LEADER, follow, set_role, topic_id

NODE = 3
VERSION = 17
WAIT_S = 60.0
SESSION = 77


def stored(offset: int, count: int = 1, size: int = 10, epoch: int = 0) -> bytes:
    """A batch as a leader has it in its log."""
    return placed(batch(count, size=size), offset, epoch)


class Leader:
    """The other end of a connection: what comes is read, answers are what the test makes them."""

    def __init__(self) -> None:
        self.near, far = socket.socketpair()
        self.near.settimeout(WAIT_S)
        self.fd = far.detach()
        self.correlation_id = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.near.close()

    def _exactly(self, n: int) -> bytes:
        got = b""
        while len(got) < n:
            piece = self.near.recv(n - len(got))
            if not piece:
                raise EOFError("the fetcher has closed the connection")
            got += piece
        return got

    def take(self) -> FetchRequest:
        """The next request."""
        frame = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        header, request = decode_request(frame)
        assert isinstance(request, FetchRequest)
        assert header.api_version == VERSION and header.client_id == f"broker-{NODE}-fetcher-0"
        assert request.encode(VERSION) == frame[header.body_start :]
        assert request.replica_state == FetchRequest.ReplicaState(replica_id=NODE, replica_epoch=BROKER_EPOCH)
        self.correlation_id = header.correlation_id
        return request

    def frame(self, *topics: FetchResponse.FetchableTopicResponse, session: int = SESSION, error: int = 0) -> bytes:
        """The answer to the last request, its size in front."""
        answer = FetchResponse(session_id=session, error_code=error, responses=list(topics))
        frame = encode_response(answer, VERSION, self.correlation_id)
        return struct.pack(">i", len(frame)) + frame

    def answer(self, *topics: FetchResponse.FetchableTopicResponse, session: int = SESSION, error: int = 0) -> None:
        self.near.sendall(self.frame(*topics, session=session, error=error))

    def is_silent(self, seconds: float = 0.2) -> bool:
        return not select.select([self.near], [], [], seconds)[0]

    def has_ended(self) -> bool:
        """Whether the other end closes, whatever it has sent before."""
        try:
            while self.near.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True


def part(
    topic: str, records: bytes = b"", *, index: int = 0, error: int = 0, end: int = 0, start: int = 0
) -> FetchResponse.FetchableTopicResponse:
    """One partition of an answer."""
    one = FetchResponse.PartitionData(
        partition_index=index, error_code=error, high_watermark=end, log_start_offset=start, records=records
    )
    return FetchResponse.FetchableTopicResponse(topic_id=topic_id(topic), partitions=[one])


def diverging(topic: str, epoch: int, end: int) -> FetchResponse.FetchableTopicResponse:
    """The leader's largest epoch up to the follower's last, and where it ends."""
    made = part(topic)
    made.partitions[0].diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end)
    return made


def named(request: FetchRequest) -> dict[tuple[bytes, int], int]:
    """Which partitions a request names, with their offsets."""
    return {(topic.topic_id, one.partition): one.fetch_offset for topic in request.topics for one in topic.partitions}


def forgotten(request: FetchRequest) -> list[tuple[bytes, int]]:
    return [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions]


@contextmanager
def fetching(**settings: int) -> Iterator[Fetchers]:
    fetchers = Fetchers(LOGS, NODE, 1, **settings)
    fetchers.set_broker_epoch(BROKER_EPOCH)
    fetchers.start()
    try:
        yield fetchers
    finally:
        assert fetchers.stop() == []


def connected(fetchers: Fetchers) -> Leader:
    leader = Leader()
    fetchers.connect(LEADER, 0, leader.fd)
    return leader


def news(fetchers: Fetchers) -> News:
    """The next one; only one is there."""
    assert select.select([fetchers.news_fd], [], [], WAIT_S)[0]
    (one,) = fetchers.take_news()
    return one


def no_news(fetchers: Fetchers) -> bool:
    return fetchers.take_news() == []


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def log_end(topic: str, index: int = 0) -> int:
    return LOGS.offsets(topic, index).log_end


def contents(topic: str, index: int = 0) -> list[RawBatch]:
    found: list[RawBatch] = []
    at, end = LOGS.offsets(topic, index).log_start, log_end(topic, index)
    while at < end:
        found += split(LOGS.read(topic, index, at, 1 << 24))
        at = found[-1].next_offset
    return found


@pytest.fixture
def topic(tmp_path: Path) -> str:
    return follow(tmp_path)


def test_a_session_names_what_has_changed(tmp_path: Path) -> None:
    topic = follow(tmp_path, partitions=3)
    with fetching() as fetchers:
        for index in range(3):
            fetchers.add(topic, topic_id(topic), index, LEADER)
        assert news(fetchers) == News("wanted", LEADER, "", -1, 0, 0)
        with connected(fetchers) as leader:
            first = leader.take()
            id = topic_id(topic)
            assert (first.session_id, first.session_epoch) == (0, 0)
            assert (first.max_wait_ms, first.min_bytes, first.max_bytes) == (500, 1, 10 << 20)
            assert len(first.topics) == 1 and named(first) == {(id, 0): 0, (id, 1): 0, (id, 2): 0}
            (one,) = [one for one in first.topics[0].partitions if one.partition == 0]
            assert (one.current_leader_epoch, one.last_fetched_epoch, one.partition_max_bytes) == (0, -1, 1 << 20)
            leader.answer(part(topic, stored(0, 5)), part(topic, index=1), part(topic, index=2))
            second = leader.take()
            assert (second.session_id, second.session_epoch) == (SESSION, 1)
            assert named(second) == {(id, 0): 5}
            assert second.topics[0].partitions[0].last_fetched_epoch == 0
            leader.answer()
            third = leader.take()
            assert (third.session_epoch, named(third), forgotten(third)) == (2, {}, [])
            leader.answer(part(topic, stored(0, 2) + stored(2), index=2), part(topic, stored(5)))
            assert named(leader.take()) == {(id, 2): 3, (id, 0): 6}
        assert [log_end(topic, index) for index in range(3)] == [6, 0, 3]
        assert [bytes(raw) for raw in contents(topic)] == [stored(0, 5), stored(5)]
        counted = fetchers.counters()
        assert (counted["records"], counted["partitions"], counted["unasked"], counted["errors"]) == (9, 3, 0, 0)


def test_a_leader_without_room_for_a_session_is_asked_for_all_each_time(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        for offset in range(3):
            request = leader.take()
            assert (request.session_id, request.session_epoch, named(request)) == (0, 0, {(topic_id(topic), 0): offset})
            leader.answer(part(topic, stored(offset)), session=0)
        leader.take()
        assert log_end(topic) == 3


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_session_that_is_gone_begins_again(topic: str, error: ErrorCode) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        leader.answer(part(topic, stored(0)))
        assert leader.take().session_epoch == 1
        leader.answer(session=0, error=error)
        again = leader.take()
        assert (again.session_id, again.session_epoch, named(again)) == (SESSION, 0, {(topic_id(topic), 0): 1})
        leader.answer(part(topic, stored(1)), session=SESSION + 1)
        after = leader.take()
        assert (after.session_id, after.session_epoch) == (SESSION + 1, 1)
        assert log_end(topic) == 2
        assert [one for one in fetchers.take_news() if one.kind != "wanted"] == []


def test_an_answer_that_is_an_error_is_told_and_asked_for_later(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        fetchers.take_news()
        leader.answer(session=0, error=ErrorCode.UNKNOWN_SERVER_ERROR)
        assert news(fetchers) == News("error", LEADER, "", -1, ErrorCode.UNKNOWN_SERVER_ERROR, 0)
        leader.take()
        leader.answer(part(topic, stored(0)))
        leader.take()
        assert log_end(topic) == 1


def test_a_partition_in_error_leaves_the_session_until_its_delay_is_over(tmp_path: Path) -> None:
    topic = follow(tmp_path, partitions=2)
    id = topic_id(topic)
    with fetching() as fetchers, connected(fetchers) as leader:
        for index in range(2):
            fetchers.add(topic, id, index, LEADER)
        while len(named(leader.take())) < 2:
            leader.answer(part(topic), session=0)
        fetchers.take_news()
        leader.answer(part(topic, error=ErrorCode.NOT_LEADER_OR_FOLLOWER), part(topic, index=1))
        assert news(fetchers) == News("error", LEADER, topic, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
        seen, was_forgotten, times = 0, False, 0
        while seen < 3:
            request = leader.take()
            was_forgotten = was_forgotten or forgotten(request) == [(id, 0)]
            assert request.max_wait_ms <= 500
            if (id, 0) in named(request):
                seen += 1
                leader.answer(part(topic, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
            else:
                leader.answer(part(topic, stored(times), index=1))  # the other one goes on
                times += 1
        while (id, 0) not in named(leader.take()):
            leader.answer()
        assert was_forgotten and times > 0 and no_news(fetchers)
        assert fetchers.counters()["errors"] == 4
        leader.answer(part(topic, stored(0)))
        while named(leader.take()).get((id, 0)) != 1:
            leader.answer()
        assert log_end(topic) == 1 and log_end(topic, 1) == times


def test_a_partition_that_a_whole_answer_lacks_is_asked_for_again(tmp_path: Path) -> None:
    topic = follow(tmp_path, partitions=2)
    id = topic_id(topic)
    with fetching() as fetchers:
        for index in range(2):
            fetchers.add(topic, id, index, LEADER)
        with connected(fetchers) as leader:
            assert len(named(leader.take())) == 2
            leader.answer(part(topic, index=1))
            while (id, 0) not in named(leader.take()):
                leader.answer()


def test_what_was_not_asked_for_is_left_out(topic: str) -> None:
    """Another topic's, another partition, the same one twice: none of it is appended, and the rest of the answer is."""
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        strange = FetchResponse.FetchableTopicResponse(
            topic_id=bytes(range(16)), partitions=[FetchResponse.PartitionData(partition_index=0, records=stored(0))]
        )
        leader.answer(strange, part(topic, stored(0), index=9), part(topic, stored(0)), part(topic, stored(1)))
        assert named(leader.take()) == {(topic_id(topic), 0): 1}
        assert fetchers.counters()["unasked"] == 3
        assert [raw.base_offset for raw in contents(topic)] == [0]


def test_answers_come_in_pieces(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        frame = leader.frame(part(topic, stored(0, 3)))
        for at in range(len(frame)):
            leader.near.sendall(frame[at : at + 1])
        leader.take()
        assert log_end(topic) == 3


def test_a_batch_larger_than_what_was_asked_for_is_taken(topic: str) -> None:
    large = stored(0, size=5 << 20)
    with fetching(partition_bytes=1 << 16) as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        leader.answer(part(topic, large))
        assert named(leader.take()) == {(topic_id(topic), 0): 1}
        assert [bytes(raw) for raw in contents(topic)] == [large]


def test_a_range_that_ends_within_a_batch_is_taken_up_to_there(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        leader.answer(part(topic, stored(0, 3) + stored(3, 3)[:-1]))
        assert named(leader.take()) == {(topic_id(topic), 0): 3}
        assert [one.kind for one in fetchers.take_news() if one.kind != "wanted"] == []


def test_records_of_an_epoch_above_the_asked_one_are_not_taken_and_come_no_faster(topic: str) -> None:
    """As of a leader that was cut and has grown again while it sent an old range."""
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        fetchers.take_news()
        leader.answer(part(topic, stored(0, epoch=0) + stored(1, epoch=5)))
        assert named(leader.take()) == {(topic_id(topic), 0): 1}
        leader.answer(part(topic, stored(1, epoch=5)))
        assert news(fetchers) == News("rotten", LEADER, topic, 0, ErrorCode.CORRUPT_MESSAGE, 0)
        assert leader.is_silent()
        assert named(leader.take()) == {(topic_id(topic), 0): 1}
        leader.answer(part(topic, stored(1)))
        leader.take()
        assert [raw.base_offset for raw in contents(topic)] == [0, 1]


@pytest.mark.parametrize("fault", ["a bit", "the first batch alone, and not whole", "a hole"])
def test_rotten_records_are_told_and_fetched_again(topic: str, fault: str) -> None:
    good = stored(0, 3)
    rotten = {
        "a bit": good[:-1] + bytes([good[-1] ^ 1]),
        "the first batch alone, and not whole": good[:-1],
        "a hole": stored(5, 3),
    }[fault]
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        fetchers.take_news()
        leader.answer(part(topic, rotten, end=3))
        assert news(fetchers) == News("rotten", LEADER, topic, 0, ErrorCode.CORRUPT_MESSAGE, 0)
        assert leader.is_silent() and log_end(topic) == 0
        request = leader.take()
        assert named(request) == {(topic_id(topic), 0): 0}
        leader.answer(part(topic, good, end=3))
        assert named(leader.take()) == {(topic_id(topic), 0): 3}
        assert no_news(fetchers)


def test_a_log_that_has_left_its_leaders_is_cut_until_it_fits(topic: str) -> None:
    id = topic_id(topic)
    set_role(topic, 0, 4)
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, id, 0, LEADER)
        leader.take()
        leader.answer(part(topic, stored(0, 2, epoch=0) + stored(2, 2, epoch=3) + stored(4, epoch=3)))
        request = leader.take()
        (one,) = request.topics[0].partitions
        assert (one.fetch_offset, one.last_fetched_epoch, one.current_leader_epoch) == (5, 3, 4)
        leader.answer(diverging(topic, 2, 3))  # of epoch 2 and less the follower has offsets up to 2
        request = leader.take()
        (one,) = request.topics[0].partitions
        assert (one.fetch_offset, one.last_fetched_epoch) == (2, 0)
        leader.answer(part(topic, stored(2, epoch=4)))
        assert named(leader.take()) == {(id, 0): 3}
        assert [(raw.base_offset, raw.leader_epoch) for raw in contents(topic)] == [(0, 0), (2, 4)]
        assert [one.kind for one in fetchers.take_news() if one.kind != "wanted"] == []


def test_a_cut_below_the_high_watermark_is_refused_and_told(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        fetchers.take_news()
        leader.answer(part(topic, stored(0, 5), end=5))
        leader.take()
        leader.answer(diverging(topic, 0, 2))
        assert news(fetchers).kind == "refused"
        assert leader.is_silent()
        assert (log_end(topic), LOGS.replica_state(topic, 0).role) == (5, "offline")


def test_a_log_that_ends_below_its_leaders_start_begins_there(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        leader.answer(part(topic, stored(0, 5), end=5))
        leader.take()
        leader.answer(part(topic, error=ErrorCode.OFFSET_OUT_OF_RANGE, start=100, end=-1))
        assert named(leader.take()) == {(topic_id(topic), 0): 100}
        leader.answer(part(topic, stored(100, 2), end=102, start=100))
        assert named(leader.take()) == {(topic_id(topic), 0): 102}
        where = LOGS.offsets(topic, 0)
        assert (where.log_start, where.high_watermark, where.log_end) == (100, 102, 102)


def test_an_offset_above_the_leaders_end_takes_nothing_away(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        fetchers.take_news()
        leader.answer(part(topic, stored(0, 5), end=5))
        leader.take()
        leader.answer(part(topic, error=ErrorCode.OFFSET_OUT_OF_RANGE, start=3, end=-1))
        assert news(fetchers) == News("error", LEADER, topic, 0, ErrorCode.OFFSET_OUT_OF_RANGE, 0)
        assert log_end(topic) == 5


def virtual_bytes() -> int:
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmSize:")[2].split()[0])


def test_memory_grows_as_bytes_come_whatever_was_announced(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        leader.answer(part(topic, stored(0)))
        leader.take()
        before, received = virtual_bytes(), fetchers.counters()["bytes"]
        head = leader.frame(part(topic))[4:-4]
        sent = struct.pack(">i", 90 << 20) + head + b"\x80\x80\x80\x28" + bytes(100_000)  # records of 80 MiB
        leader.near.sendall(sent)
        until(lambda: fetchers.counters()["bytes"] == received + len(sent))
        assert virtual_bytes() - before < 40 << 20
        assert fetchers.counters()["errors"] == 0
    assert log_end(topic) == 1


def test_a_partition_that_is_held_is_asked_for_again(topic: str) -> None:
    """While its folder moves nothing is appended."""
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        LOGS.hold(topic, 0)
        leader.answer(part(topic, stored(0)))
        request = leader.take()
        assert named(request) == {(topic_id(topic), 0): 0} and not LOGS.held_appends(topic, 0)
        LOGS.release(topic, 0)
        leader.answer(part(topic, stored(0)), session=0)
        assert named(leader.take()) == {(topic_id(topic), 0): 1}


LIES: dict[str, Callable[[bytes], bytes]] = {
    "another correlation id": lambda frame: frame[:4] + struct.pack(">i", 999_999) + frame[8:],
    "a size below a head's": lambda frame: struct.pack(">i", 3) + frame[4:],
    "a negative size": lambda frame: struct.pack(">i", -1) + frame[4:],
    "bytes after the end": lambda frame: frame + b"\x00",
    "a size that is too large": lambda frame: struct.pack(">i", len(frame) - 3) + frame[4:] + b"\x00",
    "a size that is too small": lambda frame: struct.pack(">i", len(frame) - 5) + frame[4:-1],
    "garbage": lambda frame: frame[:4] + b"\xff" * (len(frame) - 4),
    "too many records": lambda frame: struct.pack(">i", 1 << 30) + frame[4:-4] + b"\xff\xff\xff\xff\x03",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_leader_that_lies_loses_its_connection(topic: str, lie: str) -> None:
    with fetching() as fetchers:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        assert news(fetchers).kind == "wanted"
        with connected(fetchers) as leader:
            leader.take()
            leader.near.sendall(LIES[lie](leader.frame(part(topic))))
            assert leader.has_ended()
        assert news(fetchers) == News("disconnected", LEADER, "", -1, ErrorCode.CORRUPT_MESSAGE, 0)
        with connected(fetchers) as leader:
            request = leader.take()
            assert request.session_epoch == 0
            leader.answer(part(topic, stored(log_end(topic))))
            leader.take()


def test_bytes_that_nobody_asked_for_end_the_connection(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        leader.near.sendall(b"hello")
        assert leader.has_ended()
        assert no_news(fetchers)  # no partition needs it
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        assert news(fetchers).kind == "wanted"


def test_another_session_in_an_answer_ends_the_connection(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        leader.answer(part(topic))
        leader.take()
        leader.answer(session=SESSION + 5)
        assert leader.has_ended()


def test_a_connection_that_ends_is_told_and_another_one_goes_on(topic: str) -> None:
    with fetching() as fetchers:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        assert news(fetchers).kind == "wanted"
        for offset in range(4):
            with connected(fetchers) as leader:
                request = leader.take()
                assert request.session_epoch == 0 and named(request) == {(topic_id(topic), 0): offset}
                frame = leader.frame(part(topic, stored(offset)))
                leader.near.sendall(frame)
                assert named(leader.take()) == {(topic_id(topic), 0): offset + 1}
                # The next answer ends in the middle of its records.
                leader.near.sendall(leader.frame(part(topic, stored(offset + 1)))[:-10])
            assert news(fetchers) == News("disconnected", LEADER, "", -1, ErrorCode.NETWORK_EXCEPTION, 0)
        assert [raw.base_offset for raw in contents(topic)] == [0, 1, 2, 3]


def test_a_leader_that_is_silent_loses_its_connection(topic: str) -> None:
    with fetching(wait_ms=10, answer_ms=50) as fetchers:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        assert news(fetchers).kind == "wanted"
        with connected(fetchers) as leader:
            leader.take()
            assert leader.has_ended()
        assert news(fetchers) == News("disconnected", LEADER, "", -1, ErrorCode.REQUEST_TIMED_OUT, 0)


def test_a_connection_takes_the_place_of_another_one_without_news(topic: str) -> None:
    with fetching() as fetchers:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        assert news(fetchers).kind == "wanted"
        with connected(fetchers) as old:
            old.take()
            with connected(fetchers) as leader:
                assert old.has_ended()
                leader.take()
                fetchers.disconnect(LEADER)
                assert leader.has_ended()
        with connected(fetchers) as leader:
            assert leader.take().session_epoch == 0
        assert news(fetchers).kind == "disconnected"


def test_what_was_removed_is_not_appended(tmp_path: Path) -> None:
    topic = follow(tmp_path, partitions=2)
    id = topic_id(topic)
    with fetching() as fetchers:
        for index in range(2):
            fetchers.add(topic, id, index, LEADER)
        with connected(fetchers) as leader:
            leader.take()
            fetchers.remove(topic, 0)
            fetchers.remove(topic, 0)
            leader.answer(part(topic, stored(0)), part(topic, stored(0), index=1))
            request = leader.take()
            assert named(request) == {(id, 1): 1} and forgotten(request) == [(id, 0)]
            assert log_end(topic) == 0
            # It comes back, and goes and comes back while a request is out: the session has it as it is now.
            fetchers.add(topic, id, 0, LEADER)
            leader.answer()
            request = leader.take()
            assert named(request) == {(id, 0): 0} and forgotten(request) == []
            fetchers.add(topic, id, 0, LEADER)
            leader.answer(part(topic, stored(0)))
            request = leader.take()
            assert (id, 0) in named(request) and forgotten(request) == []
            fetchers.remove(topic, 0)
            fetchers.remove(topic, 1)
            leader.answer()
            until(lambda: fetchers.counters()["partitions"] == 0)
            assert leader.is_silent()
            fetchers.add(topic, id, 1, LEADER)
            assert named(leader.take()) == {(id, 1): 1}


def test_partitions_of_different_leaders_have_their_connections(tmp_path: Path) -> None:
    topic = follow(tmp_path)
    with fetching() as fetchers:
        fetchers.add(topic, topic_id(topic), 0, LEADER + 1)
        assert news(fetchers) == News("wanted", LEADER + 1, "", -1, 0, 0)
        with connected(fetchers) as leader:
            # The log's role names another leader than the one that was added: nothing is asked of either.
            assert leader.is_silent()
            fetchers.add(topic, topic_id(topic), 0, LEADER)
            leader.take()
            leader.answer(part(topic, stored(0)))
            leader.take()
        assert log_end(topic) == 1


def test_another_registration_begins_another_session(topic: str) -> None:
    with fetching() as fetchers, connected(fetchers) as leader:
        fetchers.add(topic, topic_id(topic), 0, LEADER)
        leader.take()
        leader.answer(part(topic))
        leader.take()
        fetchers.set_broker_epoch(BROKER_EPOCH + 1)
        leader.answer(part(topic, stored(0)))
        assert leader.is_silent()  # its role was told to the registration before
        fetchers.set_broker_epoch(BROKER_EPOCH)
        request = leader.take()
        assert request.session_epoch == 0
        leader.answer(part(topic, stored(1)))
        assert leader.take().session_epoch == 1


def test_a_connection_is_wanted_again_by_the_next_partition(topic: str) -> None:
    """The control plane may have given up to dial for the one that was removed."""
    with fetching() as fetchers:
        for _ in range(2):
            fetchers.add(topic, topic_id(topic), 0, LEADER)
            assert news(fetchers).kind == "wanted"
            fetchers.remove(topic, 0)
        with connected(fetchers) as leader:
            assert leader.is_silent()


def test_stops_in_the_middle_of_an_answer(topic: str) -> None:
    fetchers = Fetchers(LOGS, NODE, 2)
    fetchers.set_broker_epoch(BROKER_EPOCH)
    fetchers.start()
    fetchers.add(topic, topic_id(topic), 0, LEADER)
    with connected(fetchers) as leader:
        leader.take()
        leader.near.sendall(leader.frame(part(topic, stored(0, 9)))[:-20])
        assert fetchers.stop() == []
        assert fetchers.stop() == []
        assert leader.has_ended()
    fetchers.remove(topic, 0)
    with pytest.raises(RuntimeError):
        fetchers.add(topic, topic_id(topic), 0, LEADER)
    assert log_end(topic) == 0
    mine, given = socket.socketpair()
    with mine:
        fetchers.connect(LEADER, 0, given.detach())
        assert mine.recv(1) == b""


def test_what_cannot_be_followed_is_refused(topic: str) -> None:
    with fetching() as fetchers:
        with pytest.raises(KafkaError) as refused:
            fetchers.add(topic, bytes(16), 0, LEADER)
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(ValueError, match="16 bytes"):
            fetchers.add(topic, b"short", 0, LEADER)
        with pytest.raises(ValueError, match="no thread 1"):
            fetchers.connect(LEADER, 1, 0)
    for wrong in ({"threads": 0}, {"threads": 65}, {"threads": 1, "wait_ms": -1}, {"threads": 1, "batch_bytes": 0}):
        with pytest.raises(ValueError):
            Fetchers(LOGS, NODE, **wrong)


def test_a_thread_serves_many_partitions_and_leaders_that_come_and_go(tmp_path: Path) -> None:
    """Random adds, removals, connections, answers and lies; at the end each log holds what it was told, in order."""
    import random

    dice = random.Random(7)
    topic = follow(tmp_path, partitions=8)
    id = topic_id(topic)
    followed: set[int] = set()
    with fetching(wait_ms=20) as fetchers:
        leader = connected(fetchers)
        for _ in range(400):
            index = dice.randrange(8)
            what = dice.random()
            if what < 0.15:
                fetchers.add(topic, id, index, LEADER)
                followed.add(index)
            elif what < 0.25:
                fetchers.remove(topic, index)
                followed.discard(index)
            elif what < 0.3:
                leader.near.close()
                leader = connected(fetchers)
            elif not leader.is_silent(0.05):
                with suppress(EOFError, ConnectionError):
                    request = leader.take()
                    asked = {one for one in range(8) if dice.random() < 0.5}
                    leader.answer(
                        *(part(topic, stored(log_end(topic, one)), index=one) for one in sorted(asked)),
                        session=SESSION if request.session_epoch else dice.choice([0, SESSION]),
                    )
        leader.near.close()
        for index in range(8):
            fetchers.remove(topic, index)
    for index in range(8):
        assert [raw.base_offset for raw in contents(topic, index)] == list(range(log_end(topic, index)))
    assert sum(log_end(topic, index) for index in range(8)) > 0
