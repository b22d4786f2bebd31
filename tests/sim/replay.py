"""Digests of some runs of each world. Another process has to find the same ones, whatever its PYTHONHASHSEED: else a seed that
fails can't be played again. `python -m sim.replay` prints them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim import consumer_world, coordinator_world, moving_world, transaction_world, virtualtime
from sim.cluster_world import ClusterWorld

SEEDS = (3, 6, 20)  # of the cluster's world


class RecordedWorld(ClusterWorld):
    """A cluster whose whole history goes into a digest."""

    def __init__(self, seed: int, **given: Any) -> None:
        self.digest = hashlib.sha256()
        super().__init__(seed, **given)

    def note(self, *what: object) -> None:
        """As ever."""
        self.digest.update(repr((self.now_ms, _plain(what))).encode())
        super().note(*what)


def _plain(value: object) -> object:
    """A value whose text says all of it, and is the same in every process: a set's order is none of its own."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field.name, _plain(getattr(value, field.name))) for field in dataclasses.fields(value)]
        return (type(value).__name__, fields)
    if isinstance(value, set | frozenset):
        return sorted(repr(_plain(one)) for one in value)
    if isinstance(value, Mapping):
        return [(_plain(key), _plain(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _digest(*what: object) -> str:
    return hashlib.sha256(repr(_plain(what)).encode()).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Of some runs, by their names."""
    found = {}
    for seed in SEEDS:
        cluster = RecordedWorld(seed, partitions=1 + seed % 2, remakes=seed % 3 == 0)
        cluster.run()
        found[f"cluster {seed}"] = _digest(cluster.digest.hexdigest(), cluster.counts, cluster.random.getstate())
    coordinators = coordinator_world.World(7, duration_ms=30_000).run()
    written = [log.written for log in coordinators.logs.values()]
    found["coordinators"] = _digest(written, coordinators.counts, coordinators.random.getstate())
    for classic in (False, True):
        groups = consumer_world.World(7, classic=classic).run()
        found[f"consumer groups, {classic=}"] = _digest(groups.log, groups.counts, groups.random.getstate())
    (folder / "moving").mkdir()
    moving = moving_world.World(7, folder / "moving")
    virtualtime.play(moving.run())
    found["moving coordinators"] = _digest(moving.answered, moving.shown, moving.counts, moving.random.getstate())
    (folder / "transactions").mkdir()
    transactions = transaction_world.World(7, folder / "transactions", 15.0)
    virtualtime.play(transactions.run())
    found["transactions"] = _digest(
        transactions.sent, transactions.history, transactions.counts, transactions.random.getstate()
    )
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(digests(Path(folder))))
