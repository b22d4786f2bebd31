"""A metadata store that is older than the logs (yesterday's copy): no producer id and no leader epoch is used twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.logs.folder import STORE
from penstock.errors import ErrorCode
from penstock.pyx.record.rawbatch import split
from penstock.pyx.wire.messages import (
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    WriteTxnMarkersRequest,
)
from support import transaction_wire as tx
from support.asking import create
from support.harness import BrokerProcess, WireConnection
from support.patience import until

Make = Callable[..., BrokerProcess]


class Yesterday:
    """A broker with `t` and the transaction coordinator's topic, whose store was copied before the first producer id."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        create(broker, "t")
        with WireConnection(broker.bootstrap) as wire:  # which makes the coordinator's topic
            asked = FindCoordinatorRequest(key_type=1, coordinator_keys=["a"])
            assert wire.ask(asked, 4).coordinators[0].error_code == ErrorCode.NONE
        assert broker.stop() == 0
        self._copy = folder / "yesterday"
        self._copy.mkdir()
        for file in broker.data.glob(f"{STORE}*"):
            if ".backup" not in file.name:
                shutil.copy(file, self._copy)
        broker.start()

    def come_back(self) -> None:
        """The broker starts again with the old store and the number of changes that it had. Backups, which know more, would
        keep it from that: they are away, as when the whole of the disk is yesterday's."""
        assert self.broker.stop() == 0
        for file in self.broker.data.glob(f"{STORE}[-.]*"):
            file.unlink()
        for file in self._copy.iterdir():
            shutil.copy(file, self.broker.data)
        self.broker.start()

    def batches(self) -> list[tuple[int, int, int]]:
        """Of the topic's log: producer id, leader epoch, number of records."""
        (log,) = sorted((self.broker.data / "t-0").glob("*.log"))
        found = split(log.read_bytes())
        return [(raw.producer_id, raw.leader_epoch, raw.next_offset - raw.base_offset) for raw in found]


@pytest.fixture
def yesterday(make_broker: Make, tmp_path: Path) -> Yesterday:
    return Yesterday(make_broker(), tmp_path)


def test_a_new_producer_is_not_taken_for_one_whose_id_the_store_has_forgotten(yesterday: Yesterday) -> None:
    """Its first batch looks like a repeat of the other's first: it would be acknowledged and not written."""
    with WireConnection(yesterday.broker.bootstrap) as wire:
        error, old, _ = tx.init(wire, None)
        assert error == ErrorCode.NONE
        assert tx.produce(wire, None, 8, ("t", 0, tx.batch((old, 0), 0, b"old", transactional=False))) == [0]
    yesterday.come_back()
    with WireConnection(yesterday.broker.bootstrap) as wire:
        error, new, _ = tx.init(wire, None)
        assert error == ErrorCode.NONE
        assert tx.produce(wire, None, 8, ("t", 0, tx.batch((new, 0), 0, b"new", transactional=False))) == [0]
    assert yesterday.broker.stop() == 0
    assert new != old
    assert [producer_id for producer_id, _, _ in yesterday.batches()] == [old, new]
    assert "lost or is an old copy" in yesterday.broker.log_text()


def test_two_transactional_ids_do_not_share_a_producer_id(yesterday: Yesterday) -> None:
    """One that has written nothing yet is known to its coordinator alone."""
    with WireConnection(yesterday.broker.bootstrap) as wire:
        assert tx.init(wire, "a")[0] == ErrorCode.NONE
    yesterday.come_back()
    with WireConnection(yesterday.broker.bootstrap) as wire:
        found = {name: tx.init(wire, name) for name in ("a", "b")}
    assert [error for error, _, _ in found.values()] == [0, 0]
    assert found["b"][1] != found["a"][1]


def test_an_id_that_a_client_has_made_up_leaves_others_some(broker: BrokerProcess) -> None:
    create(broker, "t")
    made_up = (1 << 63) - 1
    with WireConnection(broker.bootstrap) as wire:
        assert tx.produce(wire, None, 8, ("t", 0, tx.batch((made_up, 0), 0, transactional=False))) == [0]
        assert tx.init(wire, None)[0] == ErrorCode.NONE
    broker.restart()
    with WireConnection(broker.bootstrap) as wire:
        assert tx.init(wire, None)[0] == ErrorCode.NONE


def test_leader_epochs_go_on_where_the_logs_are(yesterday: Yesterday) -> None:
    for _ in range(2):
        yesterday.broker.restart()
    with WireConnection(yesterday.broker.bootstrap) as wire:
        assert tx.produce(wire, None, 8, ("t", 0, tx.batch((-1, -1), -1, b"old", transactional=False))) == [0]
    yesterday.come_back()
    with WireConnection(yesterday.broker.bootstrap) as wire:
        assert tx.produce(wire, None, 8, ("t", 0, tx.batch((-1, -1), -1, b"new", transactional=False))) == [0]
    assert yesterday.broker.stop() == 0
    old, new = [epoch for _, epoch, _ in yesterday.batches()]
    assert new > old
    assert "the metadata store is older than the logs" in yesterday.broker.log_text()


def test_a_transaction_is_not_complete_while_its_producer_id_has_an_open_one(make_broker: Make) -> None:
    """A marker that a partition refuses because of the epoch decides nothing there."""
    broker = make_broker(**{"transaction.partition.verification.enable": False})
    create(broker, "t")
    with WireConnection(broker.bootstrap) as wire:
        _, producer_id, epoch = tx.init(wire, "a")
        mine, other = (producer_id, epoch), (producer_id, epoch + 1)
        assert tx.add(wire, "a", mine, 3, ("t", 0)) == [0]
        assert tx.produce(wire, "a", 8, ("t", 0, tx.batch(mine, 0))) == [0]
        assert tx.produce(wire, "b", 8, ("t", 0, tx.batch(other, 0))) == [0]
        assert tx.end(wire, "a", mine, True, 3) == ErrorCode.NONE
        assert state(wire, "a") == "PrepareCommit"
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch + 1,
            transaction_result=False,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        )
        wire.ask(WriteTxnMarkersRequest(markers=[marker]), 1)
        until(lambda: state(wire, "a") == "CompleteCommit", "the end of the transaction", broker.log_text)


def state(wire: WireConnection, name: str) -> str:
    """Of a transactional id."""
    (found,) = wire.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states
    return str(found.transaction_state)
