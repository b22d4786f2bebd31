"""Fetch sessions (KIP-227) over the wire, beside a model of Kafka's rules that keeps them in plain dicts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ErrorCode
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import FetchRequest, FetchResponse
from support.dataplane import Broker, Peer, batch, fetch_topic, forget_all, lead, topic_id
from support.logs import LOGS, delete_records
from support.patience import until

Place = tuple[str, int]
TOPICS = ("one", "two", "three")
PARTITIONS = 3
PLACES = [(name, index) for name in TOPICS for index in range(PARTITIONS)]
NOWHERE = ("nowhere", 0)
VERSION = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("sessions")
    for name in TOPICS:
        lead(path, name, partitions=PARTITIONS)
    yield path
    forget_all()


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Broker]:
    with Broker() as made:
        yield made


def request(
    asked: dict[Place, int],
    session: int,
    epoch: int,
    forgotten: list[Place] | None = None,
    version: int = VERSION,
    **more: Any,
) -> FetchRequest:
    """A request for partitions at offsets, each a topic entry of its own so that the order is told."""
    topics = [
        fetch_topic(
            name,
            version,
            [FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)],
        )
        for (name, index), offset in asked.items()
    ]
    gone = [
        FetchRequest.ForgottenTopic(
            topic=name if version < 13 else "",
            topic_id=topic_id(name) if version >= 13 else bytes(16),
            partitions=[index],
        )
        for name, index in forgotten or []
    ]
    return FetchRequest(
        min_bytes=1,
        session_id=session,
        session_epoch=epoch,
        topics=topics,
        forgotten_topics_data=gone,
        **more,
    )


def answered(answer: FetchResponse, version: int = VERSION) -> list[tuple[Place, int, int]]:
    """(partition, error, bytes of records) in the answer's order."""
    names = {topic_id(name): name for name in (*TOPICS, "nowhere")}
    return [
        (
            (topic.topic if version < 13 else names[bytes(topic.topic_id)], one.partition_index),
            one.error_code,
            len(one.records or b""),
        )
        for topic in answer.responses
        for one in topic.partitions
    ]


def ends() -> dict[Place, int]:
    return {place: LOGS.offsets(*place).log_end for place in PLACES}


def opened(peer: Peer, asked: dict[Place, int], version: int = VERSION) -> int:
    answer = peer.ask(request(asked, 0, 0, version=version), version, FetchResponse)
    assert answer.error_code == 0
    assert answer.session_id > 0
    assert [place for place, _, _ in answered(answer, version)] == list(asked)
    return answer.session_id


@pytest.mark.parametrize("version", [7, 11, 12, 13, 17, 18])
def test_only_news_are_told(served: Broker, version: int) -> None:
    with served.connect() as peer:
        session = opened(peer, ends(), version)
        answer = peer.ask(request({}, session, 1, version=version), version, FetchResponse)
        assert (answer.error_code, answer.session_id, answer.responses) == (0, session, [])
        LOGS.append("two", 1, batch([b"x"]))
        answer = peer.ask(request({}, session, 2, version=version), version, FetchResponse)
        assert [(place, error) for place, error, size in answered(answer, version) if size] == [(("two", 1), 0)]
        # The offset of a session stays until the client says another one.
        answer = peer.ask(request({}, session, 3, version=version), version, FetchResponse)
        assert [place for place, _, size in answered(answer, version) if size] == [("two", 1)]
        answer = peer.ask(request({("two", 1): ends()["two", 1]}, session, 4, version=version), version, FetchResponse)
        assert answered(answer, version) == []


def test_a_moved_log_start_is_news(served: Broker) -> None:
    with served.connect() as peer:
        LOGS.append("one", 0, batch([b"x", b"y"]))
        session = opened(peer, ends())
        delete_records("one", -1, topic_id=topic_id("one"))
        answer = peer.ask(request({}, session, 1), VERSION, FetchResponse)
        ((place, error, size),) = answered(answer)
        assert (place, error, size) == (("one", 0), 0, 0)
        assert answer.responses[0].partitions[0].log_start_offset == ends()["one", 0]
        assert peer.ask(request({}, session, 2), VERSION, FetchResponse).responses == []


def test_errors_are_told_each_time_and_their_end_too(served: Broker, folder: Path) -> None:
    with served.connect() as peer:
        session = opened(peer, {("one", 0): ends()["one", 0], ("late", 0): 0})
        for epoch in (1, 2):
            answer = peer.ask(request({}, session, epoch, max_wait_ms=20_000), VERSION, FetchResponse)
            assert answered(answer) == [(("late", 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]
        lead(folder, "late")
        answer = peer.ask(request({}, session, 3), VERSION, FetchResponse)
        assert answered(answer) == [(("late", 0), 0, 0)]
        assert peer.ask(request({}, session, 4), VERSION, FetchResponse).responses == []
        # A partition that is stopped and led again is found again.
        LOGS.stop("late", 0)
        stopped = peer.ask(request({}, session, 5), VERSION, FetchResponse)
        assert [(place, size) for place, _, size in answered(stopped)] == [(("late", 0), 0)]
        assert stopped.responses[0].partitions[0].error_code != 0
        lead(folder, "late")
        assert answered(peer.ask(request({}, session, 6), VERSION, FetchResponse)) == [(("late", 0), 0, 0)]


def test_partitions_that_gave_records_are_read_last(served: Broker) -> None:
    with served.connect() as peer:
        asked = {place: offset for place, offset in ends().items() if place[0] == "three"}
        for place in asked:
            LOGS.append(*place, batch([b"v" * 50_000]))
        session = opened(peer, {place: offset + 1 for place, offset in asked.items()})
        firsts = []
        for epoch in range(1, 5):
            # Room for one batch only: without turns the first partition would starve the others.
            back = asked if epoch == 1 else {}
            answer = peer.ask(request(back, session, epoch, max_bytes=1000), VERSION, FetchResponse)
            firsts.append([place for place, _, size in answered(answer) if size])
        assert firsts == [[("three", 0)], [("three", 1)], [("three", 2)], [("three", 0)]]


def test_ids_and_epochs(served: Broker) -> None:
    start = ends()
    with served.connect() as peer:
        session = opened(peer, start)

        def error(asked: FetchRequest, version: int = VERSION) -> tuple[int, int, int]:
            answer = peer.ask(asked, version, FetchResponse)
            return answer.error_code, answer.session_id, len(answer.responses)

        assert error(request({}, session, 2)) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, 0)
        assert error(request({}, session + 1, 1)) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, 0)
        assert error(request({}, session, 1, version=13), 13) == (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0, 0)
        # None of these has moved the epoch.
        assert error(request({}, session, 1)) == (0, session, 0)
        assert error(request({}, session, 1)) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, 0)
        # A whole request without a wish for one closes the session that it names.
        assert error(request(start, session, -1))[:2] == (0, 0)
        assert error(request({}, session, 2)) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, 0)
        by_id = opened(peer, start, 13)
        assert error(request({}, by_id, 1)) == (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0, 0)
        # And one with a wish gets another.
        answer = peer.ask(request(start, by_id, 0, version=13), 13, FetchResponse)
        assert answer.session_id not in (0, by_id)
        assert error(request({}, by_id, 1, version=13), 13) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, 0)


def send_and_wait(broker: Broker, peer: Peer, session: int) -> None:
    """Sends the first request of a session that has nothing to give; returns once the broker has it wait for that."""
    before = broker.plane.counters()["fetch_waits"]
    peer.send(_frame(request({}, session, 1, max_wait_ms=600_000)))
    until(lambda: broker.plane.counters()["fetch_waits"] > before, "a fetch that waits")


def test_a_session_goes_with_its_client_to_another_connection(served: Broker) -> None:
    with served.connect() as first, served.connect() as second, served.connect() as third:
        session = opened(first, ends())
        for epoch, peer in enumerate((second, third, first, second), 1):
            assert peer.ask(request({}, session, epoch), VERSION, FetchResponse).session_id == session


def test_a_connection_that_ends_gives_its_session_back(served: Broker) -> None:
    with served.connect() as first:
        session = opened(first, ends())
        send_and_wait(served, first, session)
        first.reset()
    with served.connect() as second:
        # The request that waited has used its epoch; the client may go on behind it once the broker saw the end.
        code: int = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        while code == ErrorCode.INVALID_FETCH_SESSION_EPOCH:
            code = second.ask(request({}, session, 2), VERSION, FetchResponse).error_code
        assert code == 0


def test_a_session_that_is_closed_while_it_waits_is_answered_all_the_same(served: Broker) -> None:
    with served.connect() as first, served.connect() as second:
        session = opened(first, ends())
        send_and_wait(served, first, session)
        second.ask(request({}, session, -1), VERSION, FetchResponse)
        LOGS.append("one", 1, batch([b"x"]))
        answer = FetchResponse.decode(first.receive()[5:], VERSION)
        assert (answer.session_id, [place for place, _, _ in answered(answer)]) == (session, [("one", 1)])
        after = second.ask(request({}, session, 2), VERSION, FetchResponse)
        assert after.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_of_nothing_ends(served: Broker) -> None:
    with served.connect() as peer:
        session = opened(peer, {("one", 0): 0})
        answer = peer.ask(request({}, session, 1, [("one", 0)]), VERSION, FetchResponse)
        assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, [])
        answer = peer.ask(request({}, session, 2), VERSION, FetchResponse)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_waiting_sessions_are_woken(served: Broker) -> None:
    with served.connect() as peer:
        session = opened(peer, ends())
        send_and_wait(served, peer, session)
        assert peer.is_silent()
        LOGS.append("two", 2, batch([b"x"]))
        answer = FetchResponse.decode(peer.receive()[5:], VERSION)
        assert [place for place, _, _ in answered(answer)] == [("two", 2)]


# --- eviction -------------------------------------------------------------------------------------------------------
def sized(count: int) -> dict[Place, int]:
    return dict.fromkeys(PLACES[:count], 0)


def open_one(peer: Peer, count: int, replica: int = -1) -> int:
    return peer.ask(request(sized(count), 0, 0, replica_id=replica), VERSION, FetchResponse).session_id


def lives(peer: Peer, session: int, epoch: int) -> bool:
    return peer.ask(request({}, session, epoch, max_bytes=0), VERSION, FetchResponse).error_code == 0


def test_slots_are_bounded_and_young_sessions_stay(folder: Path) -> None:
    with Broker(fetch_sessions=2) as broker, broker.connect() as peer:
        first, second = open_one(peer, 1), open_one(peer, 2)
        assert open_one(peer, 9) == 0
        assert lives(peer, first, 1)
        assert lives(peer, second, 1)
        # A follower's session takes the place of the smallest consumer's, however young, and stays.
        follower = open_one(peer, 1, replica=2)
        assert follower > 0
        assert [lives(peer, first, 2), lives(peer, second, 2)] == [False, True]
        assert open_one(peer, 9) == 0
        assert lives(peer, follower, 1)
        assert broker.plane.counters()["fetch_session_evictions"] == 1


def test_without_slots_nobody_has_a_session(folder: Path) -> None:
    with Broker(fetch_sessions=0) as broker, broker.connect() as peer:
        assert open_one(peer, 9) == 0


def test_unused_sessions_give_way(folder: Path) -> None:
    with Broker(fetch_sessions=2, fetch_session_eviction_ms=-1) as broker, broker.connect() as peer:
        # Every session has gone unused for longer than -1 ms: the one that was longest unused goes.
        # Uses are told apart by the millisecond.
        first = open_one(peer, 9)
        time.sleep(0.02)
        second = open_one(peer, 8)
        third = open_one(peer, 1)
        assert min(first, second, third) > 0
        assert [lives(peer, first, 1), lives(peer, second, 1), lives(peer, third, 1)] == [False, True, True]
        counters = broker.plane.counters()
        assert (counters["fetch_sessions"], counters["fetch_session_partitions"]) == (2, 9)


def test_memory_of_sessions_is_bounded(folder: Path) -> None:
    with Broker(fetch_sessions_bytes=4000) as broker, broker.connect() as peer:
        sessions = [open_one(peer, 3) for _ in range(10)]
        assert sessions[0] > 0
        assert sessions[-1] == 0
        # A session that grows beyond the bound is answered and then gone.
        epochs = dict.fromkeys([one for one in sessions if one], 1)
        grown = {("one", index): 0 for index in range(200)}
        answer = peer.ask(request(grown, sessions[0], 1), VERSION, FetchResponse)
        assert answer.error_code == 0
        assert len(answered(answer)) >= 190
        assert not lives(peer, sessions[0], 2)
        assert all(lives(peer, one, epoch) for one, epoch in epochs.items() if one != sessions[0])
        assert 0 < broker.plane.counters()["fetch_session_bytes"] <= 4000


def test_memory_that_a_waiting_request_holds_stays_counted(folder: Path) -> None:
    lead(folder, "quiet", partitions=9)
    quiet = {("quiet", index): 0 for index in range(9)}
    with (
        Broker(fetch_sessions_bytes=4000, fetch_session_eviction_ms=-1) as broker,
        broker.connect() as waiting,
        broker.connect() as peer,
    ):
        session = opened(waiting, quiet)
        send_and_wait(broker, waiting, session)
        held = broker.plane.counters()["fetch_session_bytes"]
        # Every session but the one that is in use may go at once, by -1 ms; that one's memory isn't free when it goes.
        for _ in range(10):
            assert open_one(peer, 9) > 0
            time.sleep(0.002)
            assert held < broker.plane.counters()["fetch_session_bytes"] <= 4000
        LOGS.append("quiet", 0, batch([b"x"]))
        answer = FetchResponse.decode(waiting.receive()[5:], VERSION)
        assert [place for place, _, _ in answered(answer)] == [("quiet", 0)]
        assert lives(waiting, session, 2)


def test_a_session_that_goes_while_it_is_used_counts_until_then(folder: Path) -> None:
    lead(folder, "still", partitions=9)
    with Broker(fetch_sessions=1) as broker, broker.connect() as waiting, broker.connect() as peer:
        session = opened(waiting, {("still", index): 0 for index in range(9)})
        held = broker.plane.counters()["fetch_session_bytes"]
        send_and_wait(broker, waiting, session)
        assert open_one(peer, 1, replica=2) > 0  # a follower's takes its place
        assert broker.plane.counters()["fetch_session_bytes"] > held
        LOGS.append("still", 0, batch([b"x"]))
        assert waiting.receive()
        while broker.plane.counters()["fetch_session_bytes"] >= held:
            time.sleep(0.001)
        assert not lives(waiting, session, 2)


def test_an_unused_session_keeps_no_deleted_log_open(folder: Path) -> None:
    lead(folder, "goes", partitions=2)
    for index in range(2):
        LOGS.append("goes", index, batch([b"x"]))

    def open_files() -> list[str]:
        found = []
        for fd in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(str(fd.readlink()))
        return [path for path in found if "/goes-" in path]

    with Broker(fetch_session_eviction_ms=50) as broker, broker.connect() as peer:
        session = opened(peer, {("goes", 0): 0, ("goes", 1): 0})
        for index in range(2):
            LOGS.delete("goes", index)
        end = time.monotonic() + 120
        while open_files():
            assert time.monotonic() < end
            time.sleep(0.01)
        # The session itself is there, and finds the topic again if it comes back.
        lead(folder, "goes", partitions=2)
        answer = peer.ask(request({}, session, 1), VERSION, FetchResponse)
        assert [(place, error) for place, error, _ in answered(answer)] == [(("goes", 0), 0), (("goes", 1), 0)]


# --- the model ------------------------------------------------------------------------------------------------------
class Model:
    """What Kafka's broker keeps of one session, and what it answers."""

    def __init__(self) -> None:
        self.session = 0
        self.epoch = 0
        self.offsets: dict[Place, int] = {}
        self.told: dict[Place, tuple[int, int]] = {}

    def open(self, session: int, asked: dict[Place, int]) -> None:
        self.session, self.epoch = session, 1
        self.offsets, self.told = dict(asked), {}
        for place in asked:
            self._tell(place)

    def ask(self, asked: dict[Place, int], forgotten: list[Place]) -> list[Place]:
        """The partitions of an answer, in their order."""
        self.epoch += 1
        self.offsets.update(asked)
        for place in forgotten:
            self.offsets.pop(place, None)
            self.told.pop(place, None)
        if not self.offsets:
            self.session = 0
            return []
        news = [place for place in self.offsets if self._tell(place)]
        for place in news:
            if self._has_records(place):
                self.offsets[place] = self.offsets.pop(place)
        return news

    def _is_out_of_range(self, place: Place) -> bool:
        # Another test has moved a log's start.
        return not LOGS.offsets(*place).log_start <= self.offsets[place] <= LOGS.offsets(*place).log_end

    def _has_records(self, place: Place) -> bool:
        return place != NOWHERE and not self._is_out_of_range(place) and self.offsets[place] < LOGS.offsets(*place).log_end

    def _tell(self, place: Place) -> bool:
        if place == NOWHERE or self._is_out_of_range(place):
            self.told[place] = (-1, -1)
            return True
        now = LOGS.offsets(*place).high_watermark, LOGS.offsets(*place).log_start
        is_news = self._has_records(place) or self.told.get(place) != now
        self.told[place] = now
        return is_news


ASKED = st.dictionaries(st.sampled_from([*PLACES, NOWHERE]), st.integers(0, 3), max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), ASKED),
        st.tuples(st.just("ask"), ASKED, st.lists(st.sampled_from(PLACES), max_size=3)),
        st.tuples(st.just("append"), st.sampled_from(PLACES)),
        st.tuples(st.just("wrong epoch"), st.integers(1, 5)),
        st.tuples(st.just("close")),
    ),
    max_size=25,
)


@given(STEPS, st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_session_does_what_the_model_does(served: Broker, steps: list[tuple[Any, ...]], two: bool) -> None:
    model = Model()
    with served.connect() as first, served.connect() as second:
        for number, step in enumerate(steps):
            peer = second if two and number % 2 else first
            _one(peer, model, step)


def _one(peer: Peer, model: Model, step: tuple[Any, ...]) -> None:
    base = {place: max(0, end - 2) for place, end in ends().items()}

    def offsets(asked: dict[Place, int]) -> dict[Place, int]:
        return {place: base.get(place, 0) + more for place, more in asked.items()}

    if step[0] == "append":
        topic, index = step[1]
        LOGS.append(topic, index, batch([b"v"]))
    elif step[0] == "open":
        asked = offsets(step[1])
        answer = peer.ask(request(asked, model.session, 0), VERSION, FetchResponse)
        assert answer.session_id not in (0, model.session)
        assert [place for place, _, _ in answered(answer)] == list(asked)
        model.open(answer.session_id, asked)
    elif step[0] == "close" and model.session:
        peer.ask(request({}, model.session, -1), VERSION, FetchResponse)
        answer = peer.ask(request({}, model.session, model.epoch), VERSION, FetchResponse)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        model.session = 0
    elif step[0] == "wrong epoch" and model.session:
        answer = peer.ask(request({}, model.session, model.epoch + step[1]), VERSION, FetchResponse)
        assert (answer.error_code, answer.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    elif step[0] == "ask" and model.session:
        asked, before = offsets(step[1]), model.session
        forgotten = [place for place in step[2] if place not in asked]
        answer = peer.ask(request(asked, before, model.epoch, forgotten), VERSION, FetchResponse)
        expected = model.ask(asked, forgotten)
        assert answer.error_code == 0
        assert answer.session_id == model.session
        if model.session:
            assert [place for place, _, _ in answered(answer)] == expected


def _frame(message: FetchRequest) -> bytes:
    return encode_request(message, VERSION, 1, "test")
