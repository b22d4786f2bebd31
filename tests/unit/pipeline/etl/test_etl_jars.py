"""What is said when the jars that Spark lacks can't be fetched or kept, or aren't those of the lock."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.pipeline.etl import maven
from penstock.pipeline.etl.jars import S3A_JARS, SPARK_JARS


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


def copying(folder: Path, names: Iterable[str]) -> str:
    """A search path whose `mvn` fetches files of these names, each with its own name in it."""
    mvn = folder / "mvn"
    files = " ".join(names)
    copy = f'out=${{word#-DoutputDirectory=}}; for file in {files}; do printf %s "$file" > "$out/$file"; done'
    mvn.write_text(f'#!/bin/sh\nfor word; do case "$word" in -DoutputDirectory=*) {copy};; esac; done\n')
    mvn.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def folder_of(cache: Path) -> Path:
    """Where the jars that each load needs are kept."""
    return cache / "penstock" / "jars" / hashlib.sha256(maven.pom(SPARK_JARS).encode()).hexdigest()[:16]


def test_a_fetched_jar_with_other_bytes_is_refused_and_not_kept(tmp_path: Path) -> None:
    hashes = maven.locked(SPARK_JARS)
    first = min(hashes)
    said = fetch(XDG_CACHE_HOME=tmp_path, PATH=copying(tmp_path, hashes))
    assert f"/{first}` has SHA-256 {digest(first)}, `{maven.LOCK}` says {hashes[first]}; it isn't used\nhint: " in said
    assert not folder_of(tmp_path).exists()


@pytest.mark.parametrize("more", [True, False])
def test_a_fetched_set_with_a_jar_more_or_less_is_refused_and_not_kept(tmp_path: Path, more: bool) -> None:
    names = sorted(maven.locked(SPARK_JARS))
    said = fetch(XDG_CACHE_HOME=tmp_path, PATH=copying(tmp_path, ["a.jar", *names] if more else names[1:]))
    assert "/a.jar` isn't among the jars of `" in said if more else f" lacks `{names[0]}`; it isn't used" in said
    assert not folder_of(tmp_path).exists()


def test_a_kept_jar_that_has_changed_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "o'hare field"
    folder = folder_of(cache)
    folder.mkdir(parents=True)
    for name in maven.locked(SPARK_JARS):
        (folder / name).write_text("rot")
    said = fetch(XDG_CACHE_HOME=cache)
    assert f" has SHA-256 {digest('rot')}, `" in said and f"hint: remove {shlex.quote(str(folder))}, " in said


def test_a_set_without_hashes_is_not_fetched() -> None:
    jars = [maven.Jar("org.example:one:1"), maven.Jar("org.example:two:2", transitive=True)]
    with pytest.raises(maven.MavenError) as caught:
        maven.fetch(jars)
    hint = "hint: python -m penstock.pipeline.etl.maven org.example:one:1 org.example:two:2+"
    assert str(caught.value).splitlines()[1:] == [hint]
    assert [maven.Jar.parse(word) for word in hint.split()[-2:]] == jars


@pytest.mark.parametrize("jars", [SPARK_JARS, S3A_JARS], ids=["spark", "s3a"])
def test_the_lock_has_each_jar_of_a_load(jars: list[maven.Jar]) -> None:
    files = {"-".join(jar.coordinates.split(":")[1:]) + ".jar" for jar in jars}
    hashes = maven.locked(jars)
    assert set(hashes) == files and all(len(one) == 64 for one in hashes.values())
