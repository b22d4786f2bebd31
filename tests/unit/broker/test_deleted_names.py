"""Topics made by asking for them; one that was deleted a moment ago isn't."""

from __future__ import annotations

import pytest

from penstock.broker import Broker
from penstock.broker.topics import changes
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import DeleteTopicsRequest, MetadataRequest
from support.harness import WireConnection


def test_asking_for_a_deleted_topic(penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")], allow_auto_topic_creation=True)
    delete = DeleteTopicsRequest(topic_names=["t"], timeout_ms=60_000)
    with WireConnection(penstock_broker.bootstrap) as wire:
        for version in (1, 6, 7, 12):
            monkeypatch.setattr(changes, "DELETED_RECENTLY_S", 0.0)
            # Old clients have it at once; the others are told that there was none, and ask again.
            first = wire.ask(asked, version).topics[0].error_code
            assert first == (0 if version < 7 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert wire.ask(asked, version).topics[0].error_code == 0
            monkeypatch.setattr(changes, "DELETED_RECENTLY_S", 1e9)
            assert wire.ask(delete, 5).responses[0].error_code == 0
            for _ in range(2):
                assert wire.ask(asked, version).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
