"""What the tests of deploy/ share: machines, where they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support import machines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Machines are started where somebody asked for them (`make deploy-test`): they take minutes and need root."""
    lacking = machines.why_not() if os.environ.get("PENSTOCK_DEPLOY_MACHINES") else "`make deploy-test` starts machines"
    for item in items:
        if lacking and item.get_closest_marker("machines"):
            item.add_marker(pytest.mark.skip(reason=lacking))


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[machines.Fleet]:
    """A hub without machines."""
    with machines.fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made
