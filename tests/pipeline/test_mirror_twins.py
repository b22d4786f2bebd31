"""Two mirrors that copy the same topic into the same one: each record would be there twice, so one of them is refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.harness import BrokerProcess, output
from support.mirror_world import World
from support.stages import StageProcess, write_properties


@pytest.fixture
def w(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> Iterator[World]:
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"], partitions=1) as made:
        yield made


def other(w: World, source: str = "EWR", **properties: object) -> StageProcess:
    """Another mirror of the world's topic, which calls its source so."""
    changed = {name: value for name, value in w.properties.items() if not name.startswith("source.")}
    changed[f"source.{source}.bootstrap.servers"] = w.sources["EWR"].bootstrap
    changed |= {name.replace("_", "."): value for name, value in properties.items()}
    return StageProcess("mirror", write_properties(w.config.with_name("other.properties"), changed), "other")


@pytest.mark.parametrize("records", [0, 3], ids=["an empty source", "a source with records"])
def test_a_mirror_of_another_name_is_refused(w: World, records: int) -> None:
    """Whichever came first goes on; the other one says which group its positions are in."""
    w.fill(records)
    w.mirror.start()
    w.mirror.wait_for("copies from offset 0")
    w.await_copied()
    second = other(w, penstock_mirror_name=f"{w.topic}-b").start()
    try:
        second.wait_for(f"{w.topic}-0 is STOPPED")
        why = f"group `{w.group('EWR')}` at the target says that another mirror" if not records else "the target has data"
        assert why in second.text()
        w.fill(2)
        w.await_copied()
        assert second.stop() == 1
    finally:
        second.kill()
    w.finish()


def test_one_source_under_two_names(w: World) -> None:
    """A source that was renamed in the file: its positions are still there under its older name."""
    w.mirror.start()
    w.mirror.wait_for("copies from offset 0")
    assert w.mirror.stop() == 0
    second = other(w, "newark").start()
    try:
        second.wait_for(f"{w.topic}-0 is STOPPED")
        (command,) = set(re.findall("`penstock (groups delete [^`]*)`", second.text()))
        output(["penstock", *shlex.split(command), "--yes", "-b", w.target.bootstrap])
        second.stop()
        second.start()
        second.wait_for("copies from offset 0")
    finally:
        second.kill()


def test_an_operator_who_begins_a_second_mirror_is_told(w: World) -> None:
    w.fill(2)
    w.mirror.start()
    w.await_copied()
    said = w.operate(
        *("begin", "EWR", w.topic, "--at", "earliest", "--because", "no reason"),
        *("--set", f"penstock.mirror.name={w.topic}-b"),
        code=1,
    )
    assert f"group `{w.group('EWR')}` at the target says that another mirror" in said
    w.finish()
