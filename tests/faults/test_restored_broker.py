"""Log folders that were put back from a copy, metadata and all: no number that was given since the copy is given again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.broker.epochs import EPOCH_BELIEVED, SINCE_MS, next_epoch
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import DescribeQuorumRequest
from support import transaction_wire as tx
from support.asking import create, metadata
from support.clock import Clock
from support.harness import BrokerProcess, WireConnection
from support.patience import until

Make = Callable[..., BrokerProcess]
WAIT_S, YEAR_S, STARTS = 30.0, 365 * 24 * 3600, 4


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@dataclass
class History:
    """Numbers that a broker gave in some starts, in their order."""

    leader_epochs: list[int] = field(default_factory=list)
    epochs_of_added: list[int] = field(default_factory=list)
    """Of a partition that the topic got since the copy."""
    controller_epochs: list[int] = field(default_factory=list)
    producer_ids: list[int] = field(default_factory=list)

    def note(self, broker: BrokerProcess) -> None:
        """What the broker gives now."""
        states = metadata(broker, "t").topics[0].partitions
        self.leader_epochs.append(states[0].leader_epoch)
        self.epochs_of_added += [state.leader_epoch for state in states[1:]]
        kind = DescribeQuorumRequest
        asked = kind.TopicData(topic_name="__cluster_metadata", partitions=[kind.PartitionData(partition_index=0)])
        with WireConnection(broker.bootstrap) as wire:
            self.controller_epochs.append(wire.ask(kind(topics=[asked]), 1).topics[0].partitions[0].leader_epoch)
            for name in (None, f"n{len(self.producer_ids)}"):
                error, producer_id, _ = tx.init(wire, name)
                assert error == ErrorCode.NONE
                self.producer_ids.append(producer_id)


def go_on(broker: BrokerProcess) -> History:
    """Start the broker that was stopped several times, let its topic grow, stop it: what it gave."""
    history = History()
    for number in range(STARTS):
        until_next_second()
        broker.start()
        if number == 0:
            client = AdminClient({"bootstrap.servers": broker.bootstrap})
            client.create_partitions([NewPartitions("t", 2)])["t"].result(WAIT_S)
        history.note(broker)
        assert broker.stop() == 0
    return history


def until_next_second() -> None:
    """No two starts come in one second: where they do the second takes a random step."""
    now_s = int(time.time())
    until(lambda: int(time.time()) > now_s, "the next second")


@pytest.mark.parametrize("behind_s", [0, YEAR_S])
def test_what_was_given_since_the_copy_is_not_given_again(
    make_broker: Make, clock: Clock, tmp_path: Path, behind_s: int
) -> None:
    """By a clock that is right; and by chance if it is behind that of the copy."""
    broker = make_broker(environment=clock.environment)
    create(broker, "t")
    with WireConnection(broker.bootstrap) as wire:
        assert tx.init(wire, "first")[0] == ErrorCode.NONE
    assert broker.stop() == 0
    shutil.copytree(broker.data, tmp_path / "copy")
    clock.set_ahead(-behind_s)
    lost = go_on(broker)
    shutil.rmtree(broker.data)
    shutil.copytree(tmp_path / "copy", broker.data)
    again = go_on(broker)
    for name, given in vars(lost).items():
        later = getattr(again, name)
        assert given and len(given) == len(later) and min(given) >= 0, name
        assert sorted(given) == given and sorted(later) == later, name
        if behind_s:
            assert given != later, name
        else:
            assert not {*given} & {*later}, name
            assert max(given) < min(later), name


def test_a_clock_that_is_ahead_by_a_century_uses_no_epochs_up(make_broker: Make, clock: Clock) -> None:
    """Kafka's epochs have 31 bits."""
    clock.set_ahead(100 * YEAR_S)
    broker = make_broker(environment=clock.environment)
    create(broker, "t")
    history = History()
    for ahead_s in (100 * YEAR_S, 30 * YEAR_S, 0, 0):
        clock.set_ahead(ahead_s)
        broker.restart()
        history.note(broker)
    assert "ahead of the wall clock" in broker.log_text()
    for epochs in (history.leader_epochs, history.controller_epochs):
        assert epochs == sorted({*epochs}) and epochs[-1] < EPOCH_BELIEVED


def test_epochs_only_grow_and_follow_the_clock() -> None:
    def at(second: int) -> int:
        return SINCE_MS + second * 1000 + 999

    assert next_epoch(0, at(60_000_000)) == next_epoch(59_999_999, at(60_000_000)) == 60_000_000
    assert len({next_epoch(60_000_000, at(60_000_000)) for _ in range(50)}) > 1
    for last in (0, 60_000_000, EPOCH_BELIEVED - 2, EPOCH_BELIEVED, (1 << 31) - 2):
        for now_ms in (0, at(-1), at(60_000_000), at(EPOCH_BELIEVED - 1), at(EPOCH_BELIEVED), at(1 << 31), 1 << 62):
            assert last < next_epoch(last, now_ms) < 1 << 31
    # Near the end of what there is, a clock that is wrong takes no more than one.
    assert {next_epoch(EPOCH_BELIEVED, 0) for _ in range(50)} == {EPOCH_BELIEVED + 1}
