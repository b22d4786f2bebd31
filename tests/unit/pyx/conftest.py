"""Fixtures of tests of logs: one, or a folder of them, and a data plane that serves samples out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.dataplane import Broker, Peer, forget_all, serving_samples
from support.logs import Log


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


@pytest.fixture
def make_log(tmp_path: Path) -> Iterator[Callable[..., Log]]:
    """A function that makes logs: `make_log(segment_bytes=1000)`."""
    made: list[Log] = []

    def make(**config: Any) -> Log:
        made.append(Log(tmp_path, **config))
        return made[-1]

    yield make
    for log in made:
        log.drop()
