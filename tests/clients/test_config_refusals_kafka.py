"""Which values of topic configs are refused: asked of the newest Apache Kafka and of ours."""

from __future__ import annotations

import pytest

from penstock.broker.configs.topicconfig import TOPIC_CONFIGS
from penstock.errors import ErrorCode
from support.config_asking import create, texts
from support.harness import BrokerProcess, WireConnection
from support.kafka_jars import ApacheKafka

pytestmark = pytest.mark.kafka

# tests/compat/FINDINGS.md names these: what Kafka takes and ours refuses.
REFUSED_HERE = {
    *(("segment.index.bytes", text) for text in ("+5", "11")),
    *(("internal.segment.bytes", text) for text in ("0", "-1", "1", "+5", " 12 ", "13", "-0", "-2147483647", "-2147483648")),
    ("min.cleanable.dirty.ratio", "NaN"),
}


def test_ours_refuses_what_kafka_refuses(apache_kafka: ApacheKafka, shared_broker: BrokerProcess) -> None:
    asked = [
        (entry.name, text)
        for entry in TOPIC_CONFIGS.values()
        if not entry.name.startswith("penstock.")
        for text in texts(entry)
    ]
    topics = {f"refusals-{number}": {name: text} for number, (name, text) in enumerate(asked)}
    answers = []
    for server in (apache_kafka, shared_broker):
        with WireConnection(server.bootstrap, 120) as wire:
            answers.append(dict(zip(asked, create(wire, topics, validate_only=True), strict=True)))
    kafkas, ours = answers
    assert {code for code, _ in [*kafkas.values(), *ours.values()]} <= {0, ErrorCode.INVALID_CONFIG}
    assert {case: kafkas[case][1] for case in asked if ours[case][0] == 0 != kafkas[case][0]} == {}
    stricter = {case for case in asked if kafkas[case][0] == 0 != ours[case][0]}
    other_digits = {case for case in asked if not case[1].isascii()}
    assert stricter - other_digits == REFUSED_HERE, {case: ours[case][1] for case in stricter - other_digits ^ REFUSED_HERE}
    assert sum(code == 0 for code, _ in ours.values()) > 100 < sum(code != 0 for code, _ in ours.values())
