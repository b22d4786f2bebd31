"""Calls of our clients at a broker that takes connections and answers nothing, and at one that isn't there: each ends with a
sentence once its own timeout is over, however long connections and requests may wait.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import EARLIEST, Admin
from penstock.pipeline.clients.consumer import Consumer
from penstock.pipeline.clients.producer import Producer
from support.harness import BrokerProcess
from support.patience import until

FOR_EVER = 2**31 - 1
PATIENT: dict[str, Any] = {
    "socket.connection.setup.timeout.ms": FOR_EVER,
    "request.timeout.ms": FOR_EVER,
    "reconnect.backoff.ms": 10,
}
SHORT: dict[str, Any] = {**PATIENT, "default.api.timeout.ms": 300}
JOIN_S = 100.0


def ended(call: Callable[[], object]) -> BaseException | None:
    """What a call raised. It runs in a thread of its own, so that one that hangs fails its test and no other."""
    raised: list[BaseException | None] = []

    def work() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - it is the result
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(JOIN_S)
    assert raised, "the call hangs"
    return raised[0]


@pytest.fixture(params=["silent", "absent"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A port that takes connections and says nothing, or that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        bound = f"127.0.0.1:{server.getsockname()[1]}"
        if request.param == "absent":
            server.close()
        yield bound


def in_loop(address: str, ask: Callable[[Admin], Coroutine[Any, Any, object]], **limits: int) -> None:
    async def work() -> None:
        admin = Admin(address, **limits)
        try:
            await ask(admin)
        finally:
            await admin.close()

    asyncio.run(work())


ADMIN_LIMITS = {"socket.connection.setup.timeout.ms": FOR_EVER, "request.timeout.ms": 200, "default.api.timeout.ms": 300}
OPENING: dict[str, Callable[[str], object]] = {
    "consumer": lambda address: Consumer(address, **SHORT),
    "member": lambda address: Consumer(address, **SHORT, group_id="g"),
    "transactional producer": lambda address: Producer(address, **PATIENT, transactional_id="t", max_block_ms=300),
    "send": lambda address: Producer(address, **PATIENT, max_block_ms=300).send("t", b"k", b"v"),
    "admin": lambda address: in_loop(address, lambda admin: admin.start(), **ADMIN_LIMITS),
    "topics": lambda address: in_loop(address, lambda admin: admin.create_topics({"t": 1}), **ADMIN_LIMITS),
    "offsets": lambda address: in_loop(address, lambda admin: admin.list_offsets({("t", 0): EARLIEST}), **ADMIN_LIMITS),
    "committed": lambda address: in_loop(address, lambda admin: admin.committed("g", [("t", 0)]), **ADMIN_LIMITS),
    "groups": lambda address: in_loop(address, lambda admin: admin.list_groups(), **ADMIN_LIMITS),
}


@pytest.mark.parametrize("what", OPENING)
def test_a_client_gives_up_a_cluster_that_does_not_answer(what: str, address: str) -> None:
    error = ended(lambda: OPENING[what](address))
    assert isinstance(error, KafkaError)
    assert error.code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION)
    assert address in str(error)


def test_a_task_that_waits_for_anothers_metadata_has_a_limit_of_its_own(address: str) -> None:
    async def ask(admin: Admin) -> None:
        answers = await asyncio.gather(*(admin.metadata([f"t{i}"]) for i in range(20)), return_exceptions=True)
        assert all(isinstance(answer, KafkaError) for answer in answers), answers

    assert ended(lambda: in_loop(address, ask, **ADMIN_LIMITS)) is None


@pytest.fixture
def consumer(broker: BrokerProcess, new_topic: Callable[[str], str]) -> Iterator[Consumer]:
    """A member of a group that has read a record, and whose broker hangs from then on."""
    topic = new_topic("hangs")
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"k", b"v").result(JOIN_S)
    limits = {"request.timeout.ms": FOR_EVER, "socket.connection.setup.timeout.ms": FOR_EVER}
    reader = Consumer(broker.bootstrap, **limits, **{"auto.offset.reset": "earliest"}, group_id=new_topic("group"))
    try:
        reader.subscribe([topic])
        until(lambda: bool(reader.poll(0.1)), "the record")
        broker.signal(signal.SIGSTOP)
        yield reader
    finally:
        broker.signal(signal.SIGCONT)
        reader.close()


ASKING: dict[str, Callable[[Consumer], object]] = {
    "commit": lambda consumer: consumer.commit(timeout_s=0.3),
    "committed": lambda consumer: consumer.committed(consumer.assignment(), timeout_s=0.3),
    "seek_to": lambda consumer: consumer.seek_to(dict.fromkeys(consumer.assignment(), EARLIEST), timeout_s=0.3),
}


@pytest.mark.parametrize("what", ASKING)
def test_a_consumers_question_ends_with_its_timeout(what: str, consumer: Consumer) -> None:
    error = ended(lambda: ASKING[what](consumer))
    assert isinstance(error, KafkaError) and error.code == ErrorCode.REQUEST_TIMED_OUT
    assert "no answer from the cluster at `127.0.0.1:" in str(error) and "within 300 ms" in str(error)


def test_a_position_that_cannot_be_looked_up_is_an_error(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    reader = Consumer(broker.bootstrap, **{"request.timeout.ms": FOR_EVER}, group_id=new_topic("group"))
    reader.assign([("t", 0)])
    broker.signal(signal.SIGSTOP)
    try:
        error = ended(lambda: reader.position(("t", 0), timeout_s=0.3))
        assert isinstance(error, KafkaError) and error.code == ErrorCode.REQUEST_TIMED_OUT
        assert ended(lambda: reader.close(0.3)) is None
    finally:
        broker.signal(signal.SIGCONT)


def test_close_ends_with_its_timeout_and_tells_of_the_partitions(consumer: Consumer, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the commit, nor the leave, nor what a callback asks for keeps it."""
    told: list[Any] = []

    def revoked(tps: list[tuple[str, int]]) -> None:
        told.append(tps)
        consumer.commit()

    held = consumer.assignment()
    assert consumer._subscription is not None
    consumer._subscription.on_revoked = revoked
    assert ended(lambda: consumer.close(0.3)) is None
    assert told == [held]
    assert "the last commit failed: no answer from the cluster at" in caplog.text


def test_unsubscribe_ends_though_nobody_answers(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic = new_topic("hangs")
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"k", b"v").result(JOIN_S)
    limits = {"request.timeout.ms": FOR_EVER, "default.api.timeout.ms": 5000, "auto.offset.reset": "earliest"}
    reader = Consumer(broker.bootstrap, **limits, group_id=new_topic("group"))
    reader.subscribe([topic])
    until(lambda: bool(reader.poll(0.1)), "the record")
    broker.signal(signal.SIGSTOP)
    try:
        assert ended(reader.unsubscribe) is None
        assert reader.assignment() == []
        assert ended(lambda: reader.close(0.3)) is None
    finally:
        broker.signal(signal.SIGCONT)


def test_a_producers_flush_and_close_end_with_their_timeouts(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic = new_topic("hangs")
    producer = Producer(broker.bootstrap, **PATIENT)
    producer.send(topic, b"k", b"v").result(JOIN_S)
    broker.signal(signal.SIGSTOP)
    try:
        delivery = producer.send(topic, b"k", b"v")
        assert isinstance(ended(lambda: producer.flush(0.3)), TimeoutError)
        assert ended(lambda: producer.close(0.3)) is None
        assert isinstance(ended(lambda: delivery.result(JOIN_S)), KafkaError)
    finally:
        broker.signal(signal.SIGCONT)


def test_a_close_that_has_to_abort_a_transaction_ends_with_its_timeout(
    broker: BrokerProcess, new_topic: Callable[[str], str]
) -> None:
    producer = Producer(broker.bootstrap, **PATIENT, transactional_id="t", delivery_timeout_ms=FOR_EVER)
    try:
        producer.begin()
        producer.send(new_topic("hangs"), b"k", b"v").result(JOIN_S)
        broker.signal(signal.SIGSTOP)
        assert ended(lambda: producer.close(0.3)) is None
    finally:
        broker.signal(signal.SIGCONT)
        producer.close()
