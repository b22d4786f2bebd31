"""What a controller reads of the store: nodes that were edited by hand hold up no other topic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.cluster.leaderandisr import NOT_CREATED
from penstock.broker.replication.reading import StoredTopic, read_deleted, read_states, read_topics
from penstock.broker.store.base import Event, paths
from penstock.broker.store.embedded import EmbeddedStore
from support.onloop import on_loop

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
RIGHT: dict[str, Any] = {"version": 3, "topic_id": TOPIC_ID, "partitions": {"0": [1, 2], "1": [2, 3]}}


def unseen(path: str, event: Event) -> None:
    """No watch fires here."""


@pytest.mark.parametrize(
    ("topic", "configs", "words"),
    [
        ({"partitions": {"0": [1, 1]}}, {}, "names a broker twice"),
        ({"partitions": {"1": [1, 2]}}, {}, "without a gap"),
        ({"topic_id": "A" * 22}, {}, "the id of no topic"),
        ({}, {"min.insync.replicas": "99999999999"}, "too large"),
        ({}, {"min.insync.replicas": "two"}, "invalid literal"),
    ],
)
@on_loop
async def test_a_topic_that_no_broker_can_be_told_of_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topic: dict[str, Any], configs: dict[str, str], words: str
) -> None:
    store = await EmbeddedStore.open(tmp_path / "metadata.db")
    try:
        for name, content, own in (("wrong", {**RIGHT, **topic}, configs), ("right", RIGHT, {"min.insync.replicas": "2"})):
            await store.create(paths.topic(name), json.dumps(content).encode(), parents=True)
            node = json.dumps({"version": 1, "config": own}).encode()
            await store.create(paths.topic_config(name), node, parents=True)
        found = await read_topics(store, unseen, ["wrong", "right", "gone"], {})
    finally:
        await store.close()
    assert found == {"right": StoredTopic("right", bytes(range(16)), [(1, 2), (2, 3)], 2, False)}
    assert "the topic `wrong` has no leader" in caplog.text and words in caplog.text


@on_loop
async def test_a_state_of_another_topic_is_replaced_and_exceeded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = await EmbeddedStore.open(tmp_path / "metadata.db")
    topic = StoredTopic("t", bytes(range(16)), [(1, 2)] * 4, 2, False)
    state = {"controller_epoch": 7, "leader": 2, "version": 1, "leader_epoch": 4, "isr": [2], "min_isr": 1}
    states = (
        {**state, "topic_id": "A" * 21 + "Q"},
        {**state, "topic_id": TOPIC_ID},
        state,
        {**state, "isr": [2, 3]},
    )
    try:
        for index, content in enumerate(states):
            await store.create(paths.partition_state("t", index), json.dumps(content).encode(), parents=True)
        images = await read_states(store, [topic], -1)
    finally:
        await store.close()
    others, own, nobodys = (images["t", index].state for index in range(3))
    assert others == replace(NOT_CREATED, min_isr=2, partition_epoch=0) and not others.is_created
    assert images["t", 0].is_state_lost and images["t", 0].told.leader_epoch == 5
    assert f"`{paths.partition_state('t', 0)}` has the state of another topic" in caplog.text
    assert own.leader == nobodys.leader == 2 and own.topic_id == topic.topic_id and nobodys.topic_id == b""
    assert ("t", 3) not in images and "`isr` names [3], which are no replicas of it" in caplog.text


def test_what_is_listed_to_be_deleted_names_topics_only(caplog: pytest.LogCaptureFixture) -> None:
    listed = json.dumps({"version": 1, "topics": ["a", "t/partitions", "..", 7, ""]}).encode()
    assert read_deleted(["b"], listed) == ["7", "a", "b"]
    assert caplog.text.count("what is listed to be deleted is no topic") == 3
