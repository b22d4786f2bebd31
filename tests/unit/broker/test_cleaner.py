"""Which compacted log is due."""

from __future__ import annotations

import pytest

from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.properties import SCHEMA
from penstock.broker.configs.topicconfig import CONFIRMED, log_config
from penstock.broker.upkeep.logcleaner import Candidate, dirty_ratio, is_due
from penstock.pyx.compaction.cleaner import Cleanable

NOW_MS = 1_000_000


def candidate(min_ratio: float = 0.5, max_lag_ms: int = 1 << 62) -> Candidate:
    return Candidate("t", 0, bytes(16), min_ratio, 0, max_lag_ms, 0)


@pytest.mark.parametrize(
    ("clean_bytes", "cleanable_bytes", "oldest_dirty_ms", "min_ratio", "max_lag_ms", "due"),
    [
        (0, 0, -1, 0.0, 1, False),
        (100, 100, NOW_MS, 0.5, 1 << 62, False),
        (100, 101, NOW_MS, 0.5, 1 << 62, True),
        (100, 1, NOW_MS, 0.0, 1 << 62, True),
        (0, 1, NOW_MS, 1.0, 1 << 62, False),
        (100, 1, NOW_MS - 1001, 0.5, 1000, True),
        (100, 1, NOW_MS - 1000, 0.5, 1000, False),
        (100, 0, NOW_MS - 5000, 0.5, 1000, False),
        (100, 1, -1, 0.5, 1000, False),
    ],
)
def test_a_log_is_due_by_its_dirty_part_or_its_age(
    clean_bytes: int, cleanable_bytes: int, oldest_dirty_ms: int, min_ratio: float, max_lag_ms: int, due: bool
) -> None:
    found = Cleanable(0, 10, clean_bytes, cleanable_bytes, oldest_dirty_ms)
    assert is_due(candidate(min_ratio, max_lag_ms), found, NOW_MS) is due


def test_the_ratio_is_of_what_could_be_compacted() -> None:
    assert dirty_ratio(Cleanable(0, 0, 0, 0, -1)) == 0
    assert dirty_ratio(Cleanable(0, 0, 30, 10, -1)) == 0.25


def test_compacted_segments_are_sealed_within_the_longest_lag() -> None:
    config = BrokerConfig(SCHEMA.parse({}), ())
    lag = {"max.compaction.lag.ms": "5000"}
    assert log_config(config, {"cleanup.policy": "compact", **lag})["segment_ms"] == 5000
    assert log_config(config, {"cleanup.policy": "compact", "segment.ms": "70", **lag})["segment_ms"] == 70
    assert log_config(config, lag)["segment_ms"] == 604_800_000


def test_a_log_knows_what_its_pass_must_keep() -> None:
    config = BrokerConfig(SCHEMA.parse({"log.cleaner.delete.retention.ms": "7000"}), ())
    own = {"cleanup.policy": "compact", "min.compaction.lag.ms": "5000"}
    told = log_config(config, own)
    assert (told["min_compaction_lag_ms"], told["delete_retention_ms"]) == (5000, 7000)
    assert log_config(config, {**own, CONFIRMED: "false"})["min_compaction_lag_ms"] == (1 << 63) - 1
