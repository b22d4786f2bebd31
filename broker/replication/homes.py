"""Whether a broker's log folders are those that its cluster knows of its id."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from penstock.broker.store.base import BadValueError, NoNodeError, Store, paths
from penstock.broker.store.values import Fields
from penstock.hints import quoted

READ_AT_ONCE = 500


async def strange_folders(store: Store, broker: int, known: Mapping[str, str], given: Mapping[Path, str]) -> str | None:
    """What is wrong with a broker that has no log, in folders that its cluster doesn't know, though it is to have replicas.
    None: nothing. known: the paths of the folders that it had, by their ids; given: the ids of those that it has now, "" of one
    that has none yet. Raises StoreError.

    It would lead or follow its partitions with empty logs, because of a slip in a path.
    """
    if not known or known.keys() & set(given.values()):
        return None
    count = await count_replicas(store, broker)
    if not count:
        return None
    were, are = (", ".join(f"`{path}`" for path in some) for some in (known.values(), given))
    return (
        f"broker {broker} of this cluster has replicas of {count} partitions, in {were}; {are} has no log: is the path, or "
        f"`broker.id`, right?\nhint: only if what lay there is lost for good, start once with `--forget-log-dir "
        f"{quoted(next(iter(known.values())))}`: its replicas are copied from other brokers then"
    )


async def count_replicas(store: Store, broker: int) -> int:
    """How many partitions are to have a replica on a broker. Raises StoreError."""
    names, count = await store.children(paths.TOPICS), 0
    for at in range(0, len(names), READ_AT_ONCE):
        count += sum(await asyncio.gather(*(_held(store, name, broker) for name in names[at : at + READ_AT_ONCE])))
    return count


async def _held(store: Store, topic: str, broker: int) -> int:
    path = paths.topic(topic)
    try:
        replicas = Fields.read(path, (await store.get(path))[0]).table("partitions")
    except (NoNodeError, BadValueError):  # It is deleted, or the controller says what is wrong with it.
        return 0
    return sum(isinstance(one, list) and broker in one for one in replicas.values())
