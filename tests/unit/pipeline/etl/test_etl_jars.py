"""What is said when the jars that Spark lacks can't be fetched or kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipeline.etl import maven


def fetch(**environment: object) -> str:
    """What the command that fetches them says; it fails."""
    if any(maven.installed_folder().glob("*")):
        pytest.skip("they are installed here")
    env = os.environ | {name: str(value) for name, value in environment.items()}
    command = [sys.executable, "-m", "penstock.pipeline.etl.jars"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_a_folder_that_can_not_be_written_is_said_to_be_that_of_the_jars(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = fetch(XDG_CACHE_HOME=tmp_path / "file")
    assert said.startswith(f"penstock: jars can't be kept in `{tmp_path}/file/penstock/jars` (")
    assert "let XDG_CACHE_HOME name a folder" in said


def test_jars_that_can_not_be_fetched_are_named_with_their_place(tmp_path: Path) -> None:
    mvn = tmp_path / "mvn"
    mvn.write_text("#!/bin/sh\necho no network\nexit 1\n")
    mvn.chmod(0o755)
    said = fetch(XDG_CACHE_HOME=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert said.startswith("penstock: Maven could not fetch spark-sql-kafka-0-10_2.13, ") and "delta-spark_4.1_2.13" in said
    assert f" into `{tmp_path}/penstock/jars/" in said and said.endswith(": no network\n")
