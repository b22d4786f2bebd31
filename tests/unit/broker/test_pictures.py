"""What brokers are told of partitions, and when: a leader hears first that it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace

import pytest

from penstock.broker import tasks
from penstock.broker.cluster.controller import Controller, Peer
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import BEING_DELETED, LeaderAndIsrRequest, Partition, PartitionRole, UpdateMetadata
from penstock.broker.cluster.planning import PartitionImage
from penstock.broker.cluster.registration import Registration
from penstock.broker.replication import pictures
from penstock.broker.replication.pictures import Pictures
from penstock.errors import ErrorCode

A, B = ("t", 0), ("t", 1)
FORMER, LATER = bytes(16), b"l" * 16
BROKERS = (1, 2)


class World:
    """Two brokers, and what each was told: the leaders of partitions."""

    def __init__(self, partition_epoch: int = 1) -> None:
        self.controller = Controller(1, 5, 0)
        for partition, leader in ((A, 2), (B, 2)):
            state = LeaderAndIsr(leader, 0, BROKERS, partition_epoch=partition_epoch)
            self.controller.partitions[partition] = PartitionImage(bytes(16), BROKERS, state)
        self.controller.registrations = {broker: Registration(broker, 1, "", True) for broker in BROKERS}
        self.told: dict[int, list[Partition]] = {broker: [] for broker in BROKERS}
        self.sent: list[UpdateMetadata] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.error = 0
        self.running = tasks.Group("pictures")
        self.pictures = Pictures(self.controller, self._send, self.running)
        self.controller.partitions, kept = {}, self.controller.partitions
        self.pictures.on_brokers({}, {})  # The brokers' first pictures are empty.
        self.controller.partitions = kept

    async def _send(self, picture: UpdateMetadata) -> int:
        self.told[picture.broker] += [one.partition for one in picture.partitions]
        self.sent.append(picture)
        await self.answering.wait()
        return self.error

    def ask(self, *partitions: Partition) -> LeaderAndIsrRequest:
        """Broker 2 is told that it leads these, and nobody else yet."""
        states = {one: self.controller.partitions[one].state for one in partitions}
        roles = tuple(PartitionRole(one, bytes(16), BROKERS, state, {}) for one, state in states.items())
        request = LeaderAndIsrRequest(1, 5, 2, 1, roles)
        self.pictures.on_roles(request)
        return request

    def delete(self, topic_id: bytes) -> None:
        """Delete the topic, and all at once: before a broker that hasn't answered can be told, nothing of it is left."""
        self.pictures.on_deleted({"t": topic_id})
        self.controller.partitions.clear()

    def create(self, topic_id: bytes) -> None:
        """Create a topic of the same name."""
        state = LeaderAndIsr(1, 0, BROKERS, partition_epoch=0)
        self.controller.partitions = {A: PartitionImage(topic_id, BROKERS, state)}
        self.pictures.on_states([A])

    async def send(self) -> None:
        """Send, and let what can be sent be sent."""
        self.pictures.send()
        for _ in range(5):
            await asyncio.sleep(0)

    def to(self, broker: int) -> list[list[tuple[bytes, int]]]:
        """What a broker was sent: ids of topics and leaders."""
        return [[(one.topic_id, one.state.leader) for one in sent.partitions] for sent in self.sent if sent.broker == broker]

    async def seen(self) -> list[Partition]:
        """Send, and what all have been told by then."""
        await self.send()
        assert sorted(self.told[1]) == sorted(self.told[2])
        return sorted(self.told[1])


def play(story: Coroutine[None, None, None]) -> None:
    asyncio.run(story)


def test_all_hear_of_a_leader_once_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "HOLD_S", 1e9)

    async def story() -> None:
        world = World()
        request = world.ask(A)
        world.pictures.on_states([A, B])
        assert await world.seen() == [B]
        world.pictures.on_answered(request)
        assert await world.seen() == [A, B]
        await world.running.stop()

    play(story())


def test_what_a_leader_is_told_next_is_held_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "HOLD_S", 1e9)

    async def story() -> None:
        world = World()
        first = world.ask(A)
        world.controller.peers[2] = Peer(pending={B})
        world.pictures.on_states([A, B])
        assert await world.seen() == []
        world.pictures.on_answered(first)
        world.controller.peers[2].pending.clear()
        second = world.ask(B)
        assert await world.seen() == [A]
        world.pictures.on_answered(first)  # Again, and late.
        assert await world.seen() == [A]
        world.pictures.on_answered(second)
        assert await world.seen() == [A, B]
        await world.running.stop()

    play(story())


def test_a_leader_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "HOLD_S", 0.0)

    async def story() -> None:
        world = World()
        world.ask(A)
        world.pictures.on_states([A])
        for _ in range(5):
            await asyncio.sleep(0)  # Nobody calls `send`.
        assert world.told == {1: [A], 2: [A]}
        await world.running.stop()

    play(story())


def test_the_first_leader_of_a_partition_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "HOLD_S", 0.0)

    async def story() -> None:
        world = World(partition_epoch=0)
        first = world.ask(A)
        world.controller.peers[2] = Peer(pending={B})
        world.pictures.on_states([A])
        for _ in range(5):
            await asyncio.sleep(0)
        world.pictures.on_states([B])
        assert await world.seen() == []
        world.controller.partitions[A].state = replace(world.controller.partitions[A].state, partition_epoch=1)
        world.pictures.on_states([A])  # It is no longer new.
        assert await world.seen() == [A]
        world.pictures.on_answered(first)
        world.controller.peers[2].pending.clear()
        second = world.ask(B)
        assert await world.seen() == [A]
        world.pictures.on_answered(second)
        assert await world.seen() == [A, B]
        await world.running.stop()

    play(story())


def test_a_broker_that_has_not_answered_yet_hears_of_a_deletion_once_it_has() -> None:
    async def story() -> None:
        world = World()
        world.answering.clear()
        world.pictures.on_states([A])
        await world.send()
        world.pictures.on_states([B])
        world.delete(FORMER)
        await world.send()
        world.answering.set()
        await world.send()
        for broker in BROKERS:
            assert world.to(broker) == [[(FORMER, 2)], [(FORMER, BEING_DELETED)]]
        assert [one.is_whole for one in world.sent] == [True] * 4
        await world.running.stop()

    play(story())


def test_a_broker_that_could_not_be_told_of_a_deletion_is_told_again() -> None:
    async def story() -> None:
        world = World()
        await world.send()
        world.sent.clear()
        world.error = int(ErrorCode.KAFKA_STORAGE_ERROR)
        world.delete(FORMER)
        await world.send()
        world.error = 0
        await world.send()
        await world.send()
        for broker in BROKERS:
            assert world.to(broker) == [[(FORMER, BEING_DELETED)]] * 2
        await world.running.stop()

    play(story())


def test_a_deletion_is_not_told_after_a_topic_of_the_name_was_made_again() -> None:
    """Else it would hide that one."""

    async def story() -> None:
        world = World()
        await world.send()
        world.sent.clear()
        world.error = int(ErrorCode.KAFKA_STORAGE_ERROR)
        world.delete(FORMER)
        await world.send()
        world.create(LATER)
        world.error = 0
        await world.send()
        for broker in BROKERS:
            assert world.to(broker) == [[(FORMER, BEING_DELETED)], [(LATER, 1)]]
        await world.running.stop()

    play(story())


def test_a_broker_that_registers_during_a_deletion_hears_of_it() -> None:
    async def story() -> None:
        world = World()
        world.controller.deleting |= {A, B}
        world.controller.registrations[2] = Registration(2, 9, "", True)
        world.pictures.on_brokers({}, {})
        world.controller.partitions.clear()
        world.controller.deleting.clear()
        await world.send()
        assert world.to(2) == [[(FORMER, BEING_DELETED)]]
        await world.running.stop()

    play(story())


def test_each_picture_of_a_broker_has_a_higher_number_than_the_one_before() -> None:
    async def story() -> None:
        world = World()
        for partition in (A, B):
            world.pictures.on_states([partition])
            await world.send()
        for broker in BROKERS:
            first, second = (one.number for one in world.sent if one.broker == broker)
            assert 0 < first < second
        await world.running.stop()

    play(story())
