"""A leader and a follower inside the test process: network threads on one side, fetcher threads on the other."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.replicatable import Replica
from penstock.pyx.net.fetcher import Fetchers
from penstock.pyx.record.rawbatch import RawBatch, split
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import FetchRequest, FetchResponse, ProduceResponse
from support.dataplane import Broker, Peer, batch, echo, produce, produced, topic_id
from support.harness import topic_name
from support.logs import LOGS, delete_records
from support.patience import until

LEADER, FOLLOWER = 1, 2
LEADER_BROKER_EPOCH, BROKER_EPOCH = 50, 60
EPOCH = 3
VERSION = 9


class Pair:
    """A topic of one partition: `LOGS` leads it, `logs` follow."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.name = topic_name("pair")
        self.broker = broker
        self.logs = LogManager()
        self.fetchers = Fetchers(self.logs, FOLLOWER, 1)
        self._ended = threading.Event()
        self._dialled: list[socket.socket] = []
        self._dialler = threading.Thread(target=self._dial)
        for logs, kind in ((LOGS, "leader"), (self.logs, "follower")):
            (folder / kind).mkdir()
            logs.open_replica(self.name, topic_id(self.name), 0, str(folder / kind), {"segment_bytes": 1 << 16})

    def lead(self, epoch: int = EPOCH) -> None:
        replicas = [Replica(FOLLOWER, True, True, BROKER_EPOCH)]
        assert LOGS.set_leader(
            self.name,
            0,
            broker_epoch=LEADER_BROKER_EPOCH,
            leader_epoch=epoch,
            partition_epoch=epoch,
            replicas=replicas,
            enough=2,
        )

    def follow(self, epoch: int = EPOCH) -> None:
        self.fetchers.remove(self.name, 0)
        assert self.logs.set_follower(
            self.name, 0, broker_epoch=BROKER_EPOCH, leader=LEADER, leader_epoch=epoch, partition_epoch=epoch, unclean_epoch=-1
        )
        self.fetchers.add(self.name, topic_id(self.name), 0, LEADER)

    def _dial(self) -> None:
        """What the control plane does about news."""
        while not self._ended.is_set():
            if select.select([self.fetchers.news_fd], [], [], 0.02)[0]:
                for one in self.fetchers.take_news():
                    if one.kind in ("wanted", "disconnected"):
                        made = socket.create_connection(("127.0.0.1", self.broker.brokers_port))
                        self._dialled.append(made.dup())
                        self.fetchers.connect(one.leader, one.thread, made.detach())

    def start(self) -> None:
        self.fetchers.set_broker_epoch(BROKER_EPOCH)
        self.fetchers.start()
        self._dialler.start()

    def cut(self) -> None:
        with suppress(OSError, IndexError):
            self._dialled[-1].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._ended.set()
        if self._dialler.ident is not None:
            self._dialler.join()
        assert self.fetchers.stop() == []
        for one in self._dialled:
            one.close()
        self.logs.delete(self.name, 0)
        LOGS.delete(self.name, 0)

    def batches(self, logs: LogManager) -> list[bytes]:
        found: list[RawBatch] = []
        where = logs.offsets(self.name, 0)
        at = where.log_start
        while at < where.log_end:
            found += split(logs.read(self.name, 0, at, 1 << 20))
            at = found[-1].next_offset
        return [bytes(raw) for raw in found]


@contextmanager
def made_pair(folder: Path) -> Iterator[Pair]:
    with Broker(echo) as broker:
        pair = Pair(folder, broker)
        try:
            yield pair
        finally:
            pair.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with made_pair(tmp_path) as made:
        yield made


def put(peer: Peer, name: str, value: bytes, number: int) -> None:
    request = produce(name, batch([value]), VERSION, -1)
    request.timeout_ms = 120_000
    peer.send(encode_request(request, VERSION, number, "test"))


def outcome(peer: Peer) -> tuple[int, int, int]:
    number, answer = decode_response(ProduceResponse, peer.receive(), VERSION)
    one = produced(answer)
    return number, one.error_code, one.base_offset


def test_acks_come_once_the_follower_has_fetched_through_connections_that_are_cut(pair: Pair) -> None:
    pair.lead()
    pair.follow()
    with pair.broker.connect() as peer:
        put(peer, pair.name, b"first", 0)
        assert peer.is_silent()
        pair.start()
        assert outcome(peer) == (0, 0, 0)
        assert pair.logs.offsets(pair.name, 0).log_end == 1
        for first in range(1, 1001, 20):
            for number in range(first, first + 20):
                put(peer, pair.name, struct.pack(">i", number) * 100, number)
            if first % 100 == 1:
                pair.cut()
            # What was acknowledged is in the follower's log, too.
            assert [outcome(peer) for _ in range(20)] == [(n, 0, n) for n in range(first, first + 20)]
            assert pair.logs.offsets(pair.name, 0).log_end == first + 20
    until(lambda: pair.logs.offsets(pair.name, 0).high_watermark == 1001, "the follower's high watermark")
    assert pair.batches(pair.logs) == pair.batches(LOGS)
    (mark,) = LOGS.marks(pair.name, 0)
    assert (mark.broker, mark.broker_epoch, mark.end) == (FOLLOWER, BROKER_EPOCH, 1001)
    assert pair.fetchers.counters()["errors"] == 0


def test_a_follower_cuts_what_its_new_leader_lacks(pair: Pair) -> None:
    """The follower has records of an epoch that this leader never saw; the leader has others at their offsets."""
    pair.lead()
    for number in range(5):
        LOGS.append(pair.name, 0, batch([b"both %d" % number]))
    pair.follow()
    pair.start()
    until(lambda: pair.logs.offsets(pair.name, 0).high_watermark == 5, "the follower's high watermark")
    pair.fetchers.remove(pair.name, 0)
    assert pair.logs.set_leader(
        pair.name, 0, broker_epoch=BROKER_EPOCH, leader_epoch=4, partition_epoch=4, enough=1,
        replicas=[Replica(LEADER, True, True, LEADER_BROKER_EPOCH)],
    )  # fmt: skip
    for number in range(3):
        pair.logs.append(pair.name, 0, batch([b"lost %d" % number]))
    pair.lead(epoch=5)
    for number in range(4):
        LOGS.append(pair.name, 0, batch([b"kept %d" % number]))
    assert pair.logs.offsets(pair.name, 0).log_end == 8
    pair.follow(epoch=5)
    until(lambda: pair.logs.offsets(pair.name, 0).high_watermark == 9, "the follower's high watermark")
    assert pair.batches(pair.logs) == pair.batches(LOGS)


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1])
def test_a_follower_whose_log_ends_below_its_leaders_start_begins_there(pair: Pair, epoch: int) -> None:
    """Also if the leader's log has no record of the follower's last epoch any more."""
    pair.lead()
    for number in range(5):
        LOGS.append(pair.name, 0, batch([b"%d" % number]))
    pair.follow()
    pair.start()
    until(lambda: pair.logs.offsets(pair.name, 0).high_watermark == 5, "the follower's high watermark")
    pair.fetchers.remove(pair.name, 0)
    if epoch != EPOCH:
        pair.lead(epoch)
    for number in range(5, 20):
        LOGS.append(pair.name, 0, batch([b"%d" % number]))
    with pair.broker.between() as peer:
        # The high watermark, at which a deletion ends, follows the follower.
        peer.ask(fetch_of(pair.name, 20, epoch), 17, FetchResponse)
    assert delete_records(pair.name, 12, topic_id=topic_id(pair.name)) == 12
    pair.follow(epoch)
    until(lambda: pair.logs.offsets(pair.name, 0).high_watermark == 20, "the follower's high watermark")
    assert pair.logs.offsets(pair.name, 0).log_start == 12
    assert pair.batches(pair.logs) == pair.batches(LOGS)


def await_next_fetch(pair: Pair) -> None:
    """Return when the follower has sent another fetch, which the leader lets wait."""
    fetches = pair.fetchers.counters()["fetches"]
    until(lambda: pair.fetchers.counters()["fetches"] > fetches, "another fetch")


def test_a_follower_hears_again_what_it_has_dropped_while_its_role_changed(pair: Pair) -> None:
    """The answer comes once its role is another one. The leader's session believes it told."""
    pair.lead()
    for number in range(5):
        LOGS.append(pair.name, 0, batch([b"%d" % number]))
    pair.follow()
    pair.start()
    until(lambda: pair.logs.offsets(pair.name, 0).high_watermark == 5, "the follower's high watermark")
    await_next_fetch(pair)
    assert delete_records(pair.name, 3, topic_id=topic_id(pair.name)) == 3
    pair.follow()
    until(lambda: pair.logs.offsets(pair.name, 0).log_start == 3, "the follower's log start")
    LOGS.append(pair.name, 0, batch([b"5"]))
    until(lambda: LOGS.offsets(pair.name, 0).high_watermark == 6, "the leader's high watermark")
    pair.follow()  # The answer to the fetch that moved it has the high watermark, and no record.
    until(lambda: pair.logs.offsets(pair.name, 0).high_watermark == 6, "the follower's high watermark")


def test_a_session_tells_a_follower_again_of_a_partition_that_it_names(pair: Pair) -> None:
    pair.lead()
    session = 0
    with pair.broker.between() as peer:
        for epoch, is_named, told in ((0, True, 1), (1, False, 0), (2, True, 1), (3, False, 0)):
            request = fetch_of(pair.name, 0, EPOCH)
            request.session_id, request.session_epoch = session, epoch
            if not is_named:
                request.topics = []
            answer = peer.ask(request, 17, FetchResponse)
            assert (answer.error_code, len(answer.responses)) == (0, told)
            session = answer.session_id


def fetch_of(name: str, offset: int, epoch: int) -> FetchRequest:
    """As the follower would fetch if it had all of it."""
    one = FetchRequest.FetchPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=offset, last_fetched_epoch=epoch, log_start_offset=0,
        partition_max_bytes=1 << 20,
    )  # fmt: skip
    state = FetchRequest.ReplicaState(replica_id=FOLLOWER, replica_epoch=BROKER_EPOCH)
    topic = FetchRequest.FetchTopic(topic_id=topic_id(name), partitions=[one])
    return FetchRequest(replica_state=state, topics=[topic], max_wait_ms=0)
