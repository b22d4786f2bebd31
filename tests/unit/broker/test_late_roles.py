"""Roles and answers that come after the deletion of their topic, also once another topic has its name.

A large message of roles is overtaken by a small one that deletes; the controller's answer to a proposal is under way for long;
a session ends while the logs of its roles are being opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.broker.cluster.leaderandisr import NOT_CREATED, LeaderAndIsr
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    PartitionRole,
    StoppedReplica,
    StopReplica,
)
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.properties import SCHEMA
from penstock.broker.logs.logdirs import LogDirs, topic_id_in
from penstock.broker.replication.replicas import Replicas
from penstock.broker.store.base import StoreError
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.logmanager import LogManager
from support.dataplane import batch

BROKER_EPOCH, PARTITION = 5, ("t", 0)
FORMER, LATER = bytes([1] * 16), bytes([2] * 16)
WAIT_S = 60.0


class NoFetchers:
    """Nothing is followed here."""

    def add(self, topic: str, topic_id: bytes, partition: int, leader: int) -> None:
        """See FetcherThreads."""

    def remove(self, topic: str, partition: int) -> None:
        """See FetcherThreads."""


async def no_configs(name: str, topic_id: bytes | None) -> dict[str, str]:
    """A topic has none of its own."""
    return {}


async def later(name: str) -> bytes | None:
    """The store has the later topic."""
    return LATER


async def no_controller(controller: int, asks: Sequence[AlterPartition]) -> Sequence[AlterPartitionAnswer]:
    """Nobody answers proposals."""
    raise ConnectionError


def role(topic_id: bytes, *isr: int) -> LeaderAndIsrRequest:
    """Lead a new partition, alone or with others."""
    state = LeaderAndIsr(1, 0, (1, *isr), partition_epoch=0, is_new=True)
    told = PartitionRole(PARTITION, topic_id, state.isr, state, dict.fromkeys(state.isr, BROKER_EPOCH))
    return LeaderAndIsrRequest(1, 1, 1, BROKER_EPOCH, (told,))


def stop(topic_id: bytes) -> StopReplica:
    """Delete the partition of that topic."""
    return StopReplica(1, 1, 1, BROKER_EPOCH, (StoppedReplica(PARTITION, topic_id, delete=True),))


def present() -> int:
    """The session goes on."""
    return BROKER_EPOCH


def ending() -> Callable[[], int]:
    """The session ends while roles are being taken."""
    epochs = iter([BROKER_EPOCH])
    return lambda: next(epochs, -1)


@contextlib.contextmanager
def replicas(
    path: Path,
    alter: Callable[[int, Sequence[AlterPartition]], Awaitable[Sequence[AlterPartitionAnswer]]] = no_controller,
    configs: Callable[[str, bytes | None], Awaitable[dict[str, str]]] = no_configs,
    lag_ms: int = 10_000,
    stored_id: Callable[[str], Awaitable[bytes | None]] = later,
    controller: Callable[[], int] = lambda: 2,
    monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
) -> Iterator[tuple[Replicas, LogManager]]:
    """The replicas of a broker with one log folder, and their logs."""
    dirs, logs = LogDirs.open([path], 1), LogManager()
    dirs.admit({}, {})
    with ThreadPoolExecutor(1) as executor:
        held = Replicas(
            1, BrokerConfig(SCHEMA.parse({"replica.lag.time.max.ms": str(lag_ms)}), ()), dirs, logs, executor, NoFetchers(),
            coordinators=SimpleNamespace(elected=lambda *_: None),
            configs=configs, stored_id=stored_id, controller=controller, alter=alter,
            lease_is_over=lambda: False, isolate=lambda partitions: None, monotonic_ms=monotonic_ms,
        )  # fmt: skip
        try:
            yield held, logs
        finally:
            for partition in logs.partitions():
                logs.stop(*partition)
            dirs.close(clean=False)


def write_log(path: Path, topic_id: bytes) -> None:
    """A log that a run before has left, with five records."""
    logs = LogManager()
    logs.lead("t", topic_id, 0, 0, str(path), {})
    logs.append_client(*PARTITION, batch([b"old"] * 5))
    logs.stop(*PARTITION)
    logs.write_checkpoints()


def test_a_log_is_not_made_again_by_a_role_that_its_deletion_overtook(tmp_path: Path) -> None:
    async def play(held: Replicas) -> list[LeaderAndIsrAnswer]:
        first = await held.take(role(FORMER), present)
        assert (tmp_path / "t-0").is_dir()
        assert (await held.drop(stop(FORMER), present)).errors == {PARTITION: 0}
        late = await held.take(role(FORMER), present)
        assert not (tmp_path / "t-0").exists()
        return [first, late, await held.take(role(LATER), present)]

    with replicas(tmp_path) as (held, _):
        answers = asyncio.run(play(held))
    assert [answer.answers[PARTITION].error for answer in answers] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NONE,
    ]


def test_a_log_without_a_role_is_not_taken_for_the_next_topics(tmp_path: Path) -> None:
    write_log(tmp_path, FORMER)

    async def play(held: Replicas) -> LeaderAndIsrAnswer:
        assert (await held.take(role(FORMER), ending())).error == ErrorCode.STALE_BROKER_EPOCH
        return await held.take(role(LATER), present)

    with replicas(tmp_path) as (held, logs):
        assert (asyncio.run(play(held)).answers[PARTITION].error, logs.partitions()) == (ErrorCode.NONE, [PARTITION])
        assert (logs.topic_id(*PARTITION), logs.offsets(*PARTITION).log_end) == (LATER, 0)
    (aside,) = tmp_path.glob("t-0.*-stray")
    assert topic_id_in(aside) == FORMER and any(file.stat().st_size for file in aside.glob("*.log"))


def test_a_log_without_a_role_goes_with_its_own_topic_alone(tmp_path: Path) -> None:
    write_log(tmp_path, LATER)

    async def play(held: Replicas, logs: LogManager) -> None:
        assert (await held.take(role(LATER), ending())).error == ErrorCode.STALE_BROKER_EPOCH
        assert (await held.drop(stop(FORMER), present)).errors == {PARTITION: 0}
        assert await held.remove(PARTITION[0], FORMER)
        assert logs.offsets(*PARTITION).log_end == 5
        assert (await held.drop(stop(LATER), present)).errors == {PARTITION: 0}

    with replicas(tmp_path) as (held, logs):
        asyncio.run(play(held, logs))
    assert not list(tmp_path.glob("t-0*"))


def test_a_log_that_cannot_be_set_aside_holds_up_its_own_partition_alone(tmp_path: Path) -> None:
    write_log(tmp_path, FORMER)

    async def play(held: Replicas) -> LeaderAndIsrAnswer:
        await held.take(role(FORMER), present)
        (tmp_path / "t-0" / "meta.properties").touch()  # A log folder is never set aside.
        request = role(LATER)
        other = replace(request.roles[0], partition=("other", 0))
        return await held.take(replace(request, roles=(*request.roles, other)), present)

    with replicas(tmp_path) as (held, logs):
        answers = asyncio.run(play(held)).answers
        assert {one: told.error for one, told in answers.items()} == {
            PARTITION: ErrorCode.KAFKA_STORAGE_ERROR,
            ("other", 0): ErrorCode.NONE,
        }
        assert logs.partitions() == [("other", 0)]


def test_a_log_has_the_configs_of_its_own_topic(tmp_path: Path) -> None:
    async def configs(name: str, topic_id: bytes | None) -> dict[str, str]:
        return {} if topic_id == FORMER else {"max.message.bytes": "100"}

    async def play(held: Replicas, logs: LogManager) -> None:
        for topic_id in (FORMER, LATER):
            await held.take(role(topic_id), present)
            if topic_id == FORMER:
                logs.append_client(*PARTITION, batch([bytes(200)]))
        for _ in range(2):
            with pytest.raises(KafkaError) as refused:
                logs.append_client(*PARTITION, batch([bytes(200)]))
            assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
            await held.configs_changed()

    with replicas(tmp_path, configs=configs) as (held, logs):
        asyncio.run(play(held, logs))


def test_where_logs_begin_is_said_of_the_topic_that_was_asked_about(tmp_path: Path) -> None:
    async def play(held: Replicas) -> None:
        await held.take(role(FORMER, 2), present)
        assert await held.log_starts(PARTITION, FORMER) == {2: 0}
        await held.drop(stop(FORMER), present)
        await held.take(role(LATER, 2), present)
        assert await held.log_starts(PARTITION, LATER) == {2: 0}
        with pytest.raises(KafkaError) as refused:
            await held.log_starts(PARTITION, FORMER)
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with replicas(tmp_path) as (held, _):
        asyncio.run(play(held))


def test_an_answer_that_its_topic_has_not_outlived_says_nothing_of_the_next_one(tmp_path: Path) -> None:
    asked: asyncio.Queue[tuple[AlterPartition, asyncio.Future[AlterPartitionAnswer]]] = asyncio.Queue()

    async def alter(controller: int, asks: Sequence[AlterPartition]) -> Sequence[AlterPartitionAnswer]:
        (ask,) = asks
        answer: asyncio.Future[AlterPartitionAnswer] = asyncio.get_running_loop().create_future()
        asked.put_nowait((ask, answer))
        return [await answer]

    async def play(held: Replicas, logs: LogManager) -> None:
        held.start()
        try:
            await held.take(role(FORMER, 2), present)
            ask, answer = await asked.get()
            assert (ask.topic_id, ask.isr) == (FORMER, (1,))
            await held.drop(stop(FORMER), present)
            await held.take(role(LATER, 2), present)
            logs.append_client(*PARTITION, batch([b"new"]))
            answer.set_result(written(ask))
            while ask.topic_id != LATER:  # What was asked for is asked for again.
                ask, answer = await asked.get()
            assert (ask.isr, ask.partition_epoch) == ((1,), 0)
            assert logs.replica_state(*PARTITION).high_watermark == 0  # The other member of the ISR lacks the record.
            answer.set_result(written(ask))
            while not logs.replica_state(*PARTITION).high_watermark:  # noqa: ASYNC110 - nothing tells it but asking
                await asyncio.sleep(0.01)
            assert held.proposals.isr_shrinks == 1
        finally:
            await held.stop()

    def written(ask: AlterPartition) -> AlterPartitionAnswer:
        return AlterPartitionAnswer(ask, ErrorCode.NONE, LeaderAndIsr(1, 0, ask.isr, partition_epoch=1))

    with replicas(tmp_path, alter, lag_ms=100) as (held, logs):
        asyncio.run(asyncio.wait_for(play(held, logs), WAIT_S))


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "not open yet"])
def test_a_role_of_a_topic_that_the_store_has_no_longer_leaves_the_next_ones_log(tmp_path: Path, is_open: bool) -> None:
    """The broker has never heard of the former topic, so it can't know by itself that it was deleted."""

    async def play(held: Replicas, logs: LogManager) -> None:
        if is_open:
            await held.take(role(LATER), present)
            logs.append_client(*PARTITION, batch([b"new"]))
        late = await held.take(role(FORMER), present)
        assert late.answers[PARTITION].error == ErrorCode.UNKNOWN_TOPIC_ID
        await held.take(role(LATER), present)
        assert (logs.topic_id(*PARTITION), logs.offsets(*PARTITION).log_end) == (LATER, 1 if is_open else 5)

    if not is_open:
        write_log(tmp_path, LATER)
    with replicas(tmp_path) as (held, logs):
        asyncio.run(play(held, logs))
    assert not list(tmp_path.glob("*-stray"))


def test_where_the_store_cannot_be_asked_no_log_is_set_aside(tmp_path: Path) -> None:
    answers: list[bytes | None] = [None, LATER]

    async def stored_id(name: str) -> bytes | None:
        found = answers.pop(0)
        if found is None:
            raise StoreError(name, "no connection")
        return found

    async def play(held: Replicas, logs: LogManager) -> None:
        await held.take(role(FORMER), present)
        unknown = await held.take(role(LATER), present)
        assert unknown.answers[PARTITION].error == ErrorCode.UNKNOWN_TOPIC_ID  # The controller tells it again.
        assert logs.topic_id(*PARTITION) == FORMER
        assert (await held.take(role(LATER), present)).answers[PARTITION].error == ErrorCode.NONE
        assert logs.topic_id(*PARTITION) == LATER

    with replicas(tmp_path, stored_id=stored_id) as (held, logs):
        asyncio.run(play(held, logs))


def test_a_new_state_makes_a_log_again_only_where_nothing_is_known_of_its_records(tmp_path: Path) -> None:
    """The store has no state, so the controller says that nobody has led, whatever is known here."""

    def new(topic_id: bytes) -> LeaderAndIsrRequest:
        request = role(topic_id)
        (told,) = request.roles
        return replace(request, roles=(replace(told, state=replace(NOT_CREATED, is_new=True)),))

    async def play(held: Replicas, logs: LogManager) -> None:
        for topic_id, error in ((FORMER, ErrorCode.KAFKA_STORAGE_ERROR), (LATER, ErrorCode.NONE)):
            assert (await held.take(new(topic_id), present)).answers[PARTITION].error == error
        assert (logs.topic_id(*PARTITION), logs.offsets(*PARTITION).log_end) == (LATER, 0)

    write_log(tmp_path, FORMER)
    shutil.rmtree(tmp_path / "t-0")
    with replicas(tmp_path) as (held, logs):
        asyncio.run(play(held, logs))
