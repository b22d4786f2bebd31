"""Several topics in one dedupe process: each on its own, exact, and none waits for another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.dedupe_world import World
from support.harness import BrokerProcess, topic_name
from support.patience import until


def test_several_topics_are_deduplicated_by_one_process(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    name, later = topic_name("stage"), topic_name("later")
    with (
        World(tmp_path / "a", shared_broker, partitions=2, penstock_dedupe_name=name) as a,
        World(tmp_path / "b", shared_broker, penstock_dedupe_name=name) as b,
    ):
        a.stage = stage = a.other("all", topics=f"{a.topic},{later},{b.topic}")
        for _ in range(2):
            for w in (a, b):
                w.fill()
            stage.start()
            for w in (a, b):
                w.await_done(stage=stage)
            stage.wait_for(f"waits to find topic `{later}`")
            stage.kill()
        config = tmp_path / "a" / "all.properties"

        def rows() -> list[tuple[str, int | None, str]]:
            done = a.ask("status", "--json", config=config)
            assert done.returncode == (1 if "not begun" in done.stdout else 0)  # as of one topic that isn't there
            return [(row["topic"], row["partition"], row["state"]) for row in json.loads(done.stdout or "[]")]

        assert (later, None, "not begun") in rows()
        for w in (a, b):
            w.fill()
        stage.start()
        a.admin(lambda admin: admin.create_topics({later: 1}))
        for w in (a, b):
            w.await_done(stage=stage)
            w.check()
        wanted = [(topic, number, "reading") for topic, number in ((a.topic, 0), (a.topic, 1), (later, 0), (b.topic, 0))]
        until(lambda: rows() == wanted, "a topic that came later", stage.text)
        refused = a.ask("accept", "0", config=config)
        assert refused.returncode == 2 and "names no partition (TOPIC:P" in refused.stderr
        assert f"{b.topic}-0 has not stopped" in a.ask("accept", f"{b.topic}:0", config=config).stderr
        assert stage.stop() == 0


def test_a_refused_topic_is_read_once_what_it_was_refused_for_is_mended(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    name = topic_name("stage")
    properties: dict[str, Any] = {"penstock_dedupe_name": name, "penstock_dedupe_partitions": "1"}
    with (
        World(tmp_path / "a", shared_broker, partitions=2, **properties) as a,
        World(tmp_path / "b", shared_broker, **properties) as b,
    ):
        a.stage = b.stage = a.other("all", topics=f"{a.topic},{b.topic}")
        a.fill()
        a.stage.start()
        a.await_done([1])
        a.stage.wait_for(f"{b.topic} is STOPPED, the others go on")
        assert f"`{b.topic}` has no partition 1" in a.stage.text()
        for topic in (b.output, b.topic):
            b.admin(lambda admin, grown={topic: 2}: admin.create_partitions(grown))  # type: ignore[misc]
        b.partitions = 2
        b.fill()
        b.await_done([1])
        assert a.stage.text().count("is STOPPED") == 1
        assert a.stage.stop() == 0, a.stage.text()
        a.check([1])
        b.check([1])


def test_a_stage_whose_every_topic_is_refused_ends(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, penstock_dedupe_partitions="7") as w:
        w.stage.start(await_started=False)
        assert w.stage.wait() == 1
        assert f"`{w.topic}` has no partition 7" in w.stage.text()
