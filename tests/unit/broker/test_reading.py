"""What a controller reads of the store: nodes that were edited by hand hold up no other topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.replication.reading import StoredTopic, read_topics
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
