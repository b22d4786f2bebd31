"""Nodes below `/config/changes`: each is followed once, and removed when it is old."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from penstock.broker.configs.confignodes import notification
from penstock.broker.configs.entities import Entity
from penstock.broker.replication.configchanges import KEPT_MS, ConfigChanges
from penstock.broker.store.base import Stat, Store, Watch, paths
from penstock.broker.store.embedded import EmbeddedStore
from support.store_homes import WAIT_S, EmbeddedHome, play


class AgedStore(EmbeddedStore):
    """A store of which the nodes of changes were made ten minutes one after the other."""

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        data, stat = await super().get(path, watch)
        if path.startswith(f"{paths.CHANGES}/"):
            stat = replace(stat, created_ms=int(path[-10:]) * (KEPT_MS * 2 // 3))
        return data, stat


class Taken:
    """What was to be read, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def topic(self, name: str) -> None:
        """A topic's configs."""
        self.names.append(f"topic {name}")

    async def broker(self, name: str) -> None:
        """A broker's configs."""
        self.names.append(f"broker {name}")

    async def entity(self, entity: Entity, path: str) -> None:
        """Another entity's configs."""
        self.names.append(f"{dict(entity._asdict())} {path}")

    async def everything(self) -> None:
        """All configs."""
        self.names.append("everything")


def test_changes_are_followed_once_and_removed_when_they_are_old(tmp_path: Path) -> None:
    home = EmbeddedHome(tmp_path / "metadata.db")

    async def tell(store: Store, *entity_paths: str) -> None:
        for path in entity_paths:
            await store.multi([notification(f"{paths.CONFIGS}/{path}")])

    async def scenario(_: object) -> None:
        other = await home.session()
        await other.create(paths.CHANGES, parents=True)
        await tell(other, "topics/before", "topics/before")
        store, taken = await AgedStore.begin(other.shared), Taken()
        changes = ConfigChanges(store, topic=taken.topic, broker=taken.broker, entity=taken.entity, everything=taken.everything)
        running = asyncio.create_task(changes.run())
        expected = ["everything"]
        for path, name in (
            ("topics/a", "topic a"),
            ("brokers/<default>", "broker <default>"),
            ("users/a%2F/clients/<default>", "{'user': 'a/', 'client_id': <default>, 'ip': None, 'group': None}"),
        ):
            while len(taken.names) < len(expected):  # noqa: ASYNC110 - nothing tells it but asking
                await asyncio.sleep(0.01)
            await tell(other, path)
            expected.append(name)
        async with asyncio.timeout(WAIT_S):
            young = ["config_change_0000000003", "config_change_0000000004"]
            while await other.children(paths.CHANGES) != young:  # noqa: ASYNC110 - nothing tells it but asking
                await asyncio.sleep(0.01)
        assert [found.split(" /")[0] for found in taken.names] == expected
        assert taken.names[-1].endswith("/config/users/a%2F/clients/<default>")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await store.close()

    play(home, scenario)
