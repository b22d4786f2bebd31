"""What the tests of deploy/ share: machines, where they are asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import machines
from support.fleet_world import Release
from support.packages import build, bundle


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Machines are started where somebody asked for them (`make deploy-test`): they take minutes and need root."""
    lacking = machines.why_not() if os.environ.get("PENSTOCK_DEPLOY_MACHINES") else "`make deploy-test` starts machines"
    for item in items:
        if lacking and item.get_closest_marker("machines"):
            item.add_marker(pytest.mark.skip(reason=lacking))


def make_release(folder: Path, *options: str) -> Release:
    """The packages of this checkout in a bundle; options of `deploy/deb/build.py`."""
    packages = build(folder / "deb", *options)
    return Release(packages[0].name.split("_")[1], bundle(folder / "bundle", packages, folder / "bundle.tar"))


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """What the machines get first."""
    return make_release(tmp_path_factory.mktemp("release"), "--etl")


@pytest.fixture(scope="session")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """What they are upgraded to."""
    return make_release(tmp_path_factory.mktemp("next"), "--etl", "--revision", "2")


@pytest.fixture(scope="session")
def small_release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Without PySpark: a tenth of the bytes, where a test copies them again and again, or to a slow machine."""
    return make_release(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def next_small_release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """What such machines are upgraded to."""
    return make_release(tmp_path_factory.mktemp("next-small"), "--revision", "2")
