"""What brokers are told of partitions, and when: a leader hears first that it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from penstock.broker import tasks
from penstock.broker.cluster.controller import Controller, Peer
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import LeaderAndIsrRequest, Partition, PartitionRole, UpdateMetadata
from penstock.broker.cluster.planning import Image
from penstock.broker.cluster.registration import Registration
from penstock.broker.replication import pictures
from penstock.broker.replication.pictures import Pictures

A, B = ("t", 0), ("t", 1)
BROKERS = (1, 2)


class World:
    """Two brokers, and what each was told: the leaders of partitions."""

    def __init__(self) -> None:
        self.controller = Controller(1, 5, 0)
        for partition, leader in ((A, 2), (B, 2)):
            state = LeaderAndIsr(leader, 0, BROKERS, partition_epoch=0)
            self.controller.partitions[partition] = Image(bytes(16), BROKERS, state)
        self.controller.registrations = {broker: Registration(broker, 1, "", True) for broker in BROKERS}
        self.told: dict[int, list[Partition]] = {broker: [] for broker in BROKERS}
        self.running = tasks.Group("pictures")
        self.pictures = Pictures(self.controller, self._send, self.running)
        self.controller.partitions, kept = {}, self.controller.partitions
        self.pictures.on_brokers({}, {})  # The brokers' first pictures are empty.
        self.controller.partitions = kept

    async def _send(self, picture: UpdateMetadata) -> int:
        self.told[picture.broker] += [one.partition for one in picture.partitions]
        return 0

    def ask(self, *partitions: Partition) -> LeaderAndIsrRequest:
        """Broker 2 is told that it leads these, and nobody else yet."""
        states = {one: self.controller.partitions[one].state for one in partitions}
        roles = tuple(PartitionRole(one, bytes(16), BROKERS, state, {}) for one, state in states.items())
        request = LeaderAndIsrRequest(1, 5, 2, 1, roles)
        self.pictures.on_roles(request)
        return request

    async def seen(self) -> list[Partition]:
        """Send, and what all have been told by then."""
        self.pictures.send()
        for _ in range(5):
            await asyncio.sleep(0)
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
