"""The suites that need no more than `make test` has, a part of them: kcat, releases of confluent-kafka, Kafka's programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("run.py")

pytestmark = pytest.mark.timeout(900)  # a suite in one test: JVM after JVM


def compat(cache: Path, suite: str, only: str = "", brokers: int = 1) -> None:
    """A suite against brokers of its own; every test of its list must pass."""
    done = subprocess.run(
        [sys.executable, str(RUNNER), suite, "--only", only, "--brokers", str(brokers), "--runs", str(cache)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_kcat(tmp_path: Path) -> None:
    compat(tmp_path, "kcat")


def test_record_formats(tmp_path: Path) -> None:
    compat(tmp_path, "record_formats", "^confluent_")


# The rest of this one and these two, and the other suites, are run by `make compat`.
@pytest.mark.kafka
def test_java_tools(tmp_path: Path) -> None:
    compat(tmp_path, "java_tools", "^(transactions|verifiable_clients_consumer|dumps_segments_zstd)$")


@pytest.mark.kafka
def test_old_java(tmp_path: Path) -> None:
    compat(tmp_path, "old_java", "^round_trip_(0.10.2.2_gzip|1.1.1_snappy)$")


# ZooKeeper comes with Kafka's jars.
@pytest.mark.kafka
def test_kcat_with_three_brokers(tmp_path: Path) -> None:
    compat(tmp_path, "kcat", brokers=3)
