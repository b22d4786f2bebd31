"""What an installed wheel must do, with nothing but itself and pytest in its environment; run by `run.py`."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

import penstock
from penstock.broker import Broker

COMMAND = Path(sys.executable).with_name("penstock")


def penstock_says(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run([COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_is_the_installed_one() -> None:
    assert Path(sys.prefix) in Path(penstock.__file__).parents
    assert version("penstock") in penstock_says("--version")


def test_the_licence_comes_along() -> None:
    installed = distribution("penstock")
    assert installed.metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License" in (installed.read_text("licenses/LICENSE") or "")


def test_nothing_but_penstock_is_installed_at_the_top() -> None:
    site = Path(penstock.__file__).parents[1]
    assert [name for name in ("broker", "mirror", "dedupe", "pipeline", "pyx", "bench") if (site / name).exists()] == []


def test_libraries_in_the_wheel_are_those_that_are_loaded() -> None:
    """A wheel for other machines finds no RocksDB there, and must not take one of another version where there is one."""
    site = Path(penstock.__file__).parents[1]
    if not (site / "penstock.libs").is_dir():
        pytest.skip("this wheel was built for its own machine and takes that one's libraries")
    program = "import penstock.pyx.ids.store, penstock.pyx.record.codec; print(open('/proc/self/maps').read())"
    mapped = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    libraries = {Path(path) for path in re.findall(r"(/.*/lib(?:rocksdb|snappy|lz4|zstd)[^/\n]*)$", mapped, re.M)}
    assert len(libraries) == 4
    assert [path for path in libraries if path.parent != site / "penstock.libs"] == []


def test_a_broker_process_serves_the_daily_commands(tmp_path: Path) -> None:
    broker = subprocess.Popen(
        [COMMAND, "broker", "--listen", "127.0.0.1:0", "--data", tmp_path / "data"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert broker.stdout is not None
        started = re.search(r"started on (\S+:\d+)", broker.stdout.readline())
        assert started is not None
        bootstrap = started[1]
        penstock_says("topics", "create", "orders", "-p", "2", "-b", bootstrap)
        penstock_says("produce", "orders", "-b", bootstrap, stdin="one\ntwo\nthree\n")
        read = penstock_says("consume", "orders", "--from", "earliest", "-b", bootstrap)
        assert sorted(read.split()) == ["one", "three", "two"]
    finally:
        broker.terminate()
        assert broker.wait(60) == 0


def test_a_broker_lives_in_the_process() -> None:
    with Broker() as broker:
        assert "orders" not in penstock_says("topics", "list", "-b", broker.bootstrap)


def test_pytest_finds_the_fixture(penstock_broker: Broker) -> None:
    penstock_says("topics", "create", "orders", "-b", penstock_broker.bootstrap)
    assert "orders" in penstock_says("topics", "list", "-b", penstock_broker.bootstrap)
