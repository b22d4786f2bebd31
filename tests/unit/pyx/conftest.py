"""Fixtures of tests that fetch: a folder of logs, and a data plane that serves samples out of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.dataplane import Broker, Peer, forget_all, serving_samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("logs")
    forget_all()


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Broker]:
    with serving_samples(folder) as made:
        yield made


@pytest.fixture
def peer(served: Broker) -> Iterator[Peer]:
    with served.connect() as made:
        yield made
