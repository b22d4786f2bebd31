"""A broker's report of full log folders, in its registration."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from penstock.broker.cluster.registration import Incarnation, OwnRegistration, Unwritable, incarnation_json, read_registration
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.replication.diskreports import DiskReports
from penstock.broker.store.base import paths
from penstock.pyx.log.logmanager import LogManager
from support.store_homes import EmbeddedHome, Home, play


@pytest.mark.parametrize("letters", [10, 130])
def test_more_names_than_a_node_takes_are_reported_as_all(tmp_path: Path, letters: int) -> None:
    named = Unwritable(partitions=frozenset((f"{number:0{letters}}", 0) for number in range(5_000)))

    async def scenario(home: Home) -> None:
        store = await home.session()
        own = OwnRegistration(7, "run", clean=True)
        await store.create(paths.incarnation(7), incarnation_json(Incarnation("run")), parents=True)
        await store.create(paths.broker(7), b'{"version":5,"endpoints":[],"penstock":{"incarnation":"run"}}', parents=True)
        _, stat = await store.get(paths.broker(7))
        own.epoch = stat.created_zxid
        reports = DiskReports(cast(LogDirs, []), LogManager(), 0, lambda: 0)
        assert await reports._report(store, own, named)
        data, _ = await store.get(paths.broker(7))
        told = read_registration(7, data, own.epoch).unwritable
        assert told == (named if letters == 10 else Unwritable(is_all=True))

    play(EmbeddedHome(tmp_path / "metadata.db"), scenario)
