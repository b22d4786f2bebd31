"""The metadata store of a broker that is stopped: its nodes, changed as by a broker, or with bytes of one's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.broker.store.embedded import EmbeddedStore

FILE = "metadata.db"


def put_node(data: Path, path: str, content: bytes | None) -> None:
    """Make this a node's content, with right checksums; None = remove the node."""

    async def work() -> None:
        store = await EmbeddedStore.open(data / FILE)
        if content is None:
            await store.delete(path, recursive=True)
        elif await store.exists(path) is None:
            await store.create(path, content, parents=True)
        else:
            await store.set(path, content)
        await store.close()

    asyncio.run(work())


def lose_store(data: Path, *, backups: bool = False, mark: bool = False) -> None:
    """Remove the store's files; also its backups, and what says in meta.properties that there was one."""
    for file in list(data.iterdir()):
        if file.name.startswith(FILE) and (backups or ".backup" not in file.name):
            file.unlink()
    if mark:
        meta = data / "meta.properties"
        lines = [line for line in meta.read_text().splitlines(keepends=True) if not line.startswith("penstock.")]
        meta.write_text("".join(lines))
