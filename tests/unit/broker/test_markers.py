"""Transaction markers in a cluster: appended by the leaders of their partitions, answered after the commit, sent until then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.api import write_txn_markers
from penstock.broker.context import Call
from penstock.broker.coordination.delivery import Delivery
from penstock.broker.coordination.markers import Markers
from penstock.broker.replication.commits import Commits
from penstock.broker.replication.transactionwire import read_marker_answers, write_markers
from penstock.broker.topic import GROUP_OFFSETS
from penstock.broker.transactionmessages import Marker, MarkerAnswer, MarkerWrite, TopicIds
from penstock.errors import ErrorCode as E
from penstock.pyx.log.replicatable import Replica
from penstock.pyx.record.rawbatch import marker as marker_batch
from penstock.pyx.wire.message import WireError
from penstock.pyx.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from support.dataplane import batch, topic_id
from support.harness import topic_name
from support.logs import LOGS, NOW_MS

Partition = tuple[str, int]
EPOCH = 5
COMMIT = Marker(1, 0, True, 3)
FORMER, LATER = bytes([1] * 16), bytes([2] * 16)


def lead(name: str, epoch: int = EPOCH, version: int = 1) -> None:
    """This broker leads; broker 2 is in sync."""
    replicas = [Replica(2, True, True, 102)]
    assert LOGS.set_leader(name, 0, broker_epoch=1, leader_epoch=epoch, partition_epoch=version, replicas=replicas, enough=1)


def fetched(name: str, offset: int) -> None:
    """Broker 2 has all below that offset."""
    LOGS.replica_fetched(
        name, 0, replica=2, broker_epoch=102, leader_epoch=EPOCH, offset=offset, last_epoch=EPOCH if offset else -1,
        now_ms=NOW_MS,
    )  # fmt: skip


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    made = topic_name("marked")
    LOGS.open_replica(made, topic_id(made), 0, str(tmp_path), {"verify_transactions": 0})
    lead(made)
    yield made
    LOGS.delete(made, 0)


def begin(name: str, epoch: int = 0, sequence: int = 0) -> None:
    """A producer's transaction begins."""
    records = batch([b"x"], producer_id=1, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    LOGS.append_client(name, 0, records)


class Leader:
    """A broker's markers over real logs."""

    def __init__(self, name: str = "") -> None:
        self.told: list[tuple[int, int, bool]] = []
        self.commits = Commits(LOGS)
        self.parts = SimpleNamespace(log_manager=LOGS, commits=self.commits, now_ms=lambda: NOW_MS, node_id=1, topics={})
        groups = SimpleNamespace(marker_written=lambda *given: self.told.append(given))
        self.markers = Markers(cast(Any, self.parts), cast(Any, groups))

    def run(self, steps: Callable[[], Awaitable[None]]) -> None:
        async def work() -> None:
            self.commits.start()
            try:
                await steps()
            finally:
                await self.commits.stop()

        asyncio.run(work())


def is_open(name: str) -> bool:
    return any(one.txn_first_offset >= 0 for one in LOGS.producers(name, 0))


def test_a_marker_is_answered_once_it_is_committed(name: str) -> None:
    leader = Leader()

    async def steps() -> None:
        begin(name)
        writing = asyncio.create_task(leader.markers.write_committed((name, 0), COMMIT, EPOCH))
        await asyncio.sleep(0)
        assert LOGS.offsets(name, 0).log_end == 2, "appended at once"
        fetched(name, 1)
        await asyncio.sleep(0.01)
        assert not writing.done()
        fetched(name, 2)
        assert await writing == MarkerAnswer(E.NONE)
        assert not is_open(name)

    leader.run(steps)


def test_a_marker_whose_leader_is_gone_before_the_commit_is_not_written(name: str) -> None:
    leader = Leader()

    async def steps() -> None:
        begin(name)
        writing = asyncio.create_task(leader.markers.write_committed((name, 0), COMMIT, EPOCH))
        await asyncio.sleep(0)
        LOGS.fence(name, 0)
        lead(name, EPOCH + 1, 2)
        assert (await writing).error == E.NOT_LEADER_OR_FOLLOWER

    leader.run(steps)


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
def test_a_marker_for_another_lead_is_refused(name: str, epoch: int) -> None:
    leader = Leader()

    async def steps() -> None:
        begin(name)
        assert await leader.markers.write_committed((name, 0), COMMIT, epoch) == MarkerAnswer(E.NOT_LEADER_OR_FOLLOWER)
        assert await leader.markers.write_committed(("nowhere", 0), COMMIT, epoch) == MarkerAnswer(E.UNKNOWN_TOPIC_OR_PARTITION)
        assert is_open(name)

    leader.run(steps)


def test_a_late_marker_of_an_older_coordinator_ends_nothing(name: str) -> None:
    leader = Leader()

    async def steps() -> None:
        begin(name)
        LOGS.append(name, 0, marker_batch(True, 1, 0, 4, NOW_MS))  # of the coordinator that came next
        begin(name, sequence=1)
        answer = await leader.markers.write_committed((name, 0), COMMIT, EPOCH)
        assert answer == MarkerAnswer(E.TRANSACTION_COORDINATOR_FENCED, is_open=True)
        assert is_open(name)

    leader.run(steps)


def test_a_refused_marker_counts_once_the_one_before_it_is_committed(name: str) -> None:
    leader = Leader()

    async def steps() -> None:
        begin(name)
        LOGS.append(name, 0, marker_batch(True, 1, 0, 4, NOW_MS))
        writing = asyncio.create_task(leader.markers.write_committed((name, 0), COMMIT, EPOCH))
        fetched(name, 1)
        await asyncio.sleep(0.01)
        assert not writing.done(), "this leader may be the only one to have it"
        fetched(name, 2)
        assert await writing == MarkerAnswer(E.TRANSACTION_COORDINATOR_FENCED, is_open=False)

    leader.run(steps)


def test_of_transactions_v2_a_later_transaction_is_none_of_a_markers(name: str) -> None:
    leader = Leader()

    async def steps() -> None:
        begin(name, epoch=2)
        fetched(name, 1)
        late = Marker(1, 2, True, 3, version=2)
        assert await leader.markers.write_committed((name, 0), late, EPOCH) == MarkerAnswer(E.INVALID_PRODUCER_EPOCH)
        assert is_open(name)

    leader.run(steps)


def test_groups_hear_of_a_marker_after_its_commit(tmp_path: Path) -> None:
    leader = Leader()
    LOGS.open_replica(GROUP_OFFSETS, topic_id(GROUP_OFFSETS), 0, str(tmp_path), {})
    lead(GROUP_OFFSETS)

    async def steps() -> None:
        writing = asyncio.create_task(leader.markers.write_committed((GROUP_OFFSETS, 0), COMMIT, EPOCH))
        await asyncio.sleep(0)
        assert leader.told == []
        fetched(GROUP_OFFSETS, 1)
        await writing
        assert leader.told == [(0, 1, True)]

    try:
        leader.run(steps)
    finally:
        LOGS.delete(GROUP_OFFSETS, 0)


class Cluster:
    """Other brokers, as a coordinator sees them: each answer is the next one of a list, None if nobody answers."""

    def __init__(self, answers: list[Mapping[Partition, MarkerAnswer] | None], gone: set[Partition] = frozenset()) -> None:  # type: ignore[assignment]
        self.answers = answers
        self.gone = gone
        self.gone_ids: set[bytes] = set()
        self.sent: list[tuple[int, MarkerWrite]] = []
        self.pictures: list[Callable[[], None]] = []

    async def write_markers(self, broker: int, write: MarkerWrite) -> Mapping[Partition, MarkerAnswer]:
        self.sent.append((broker, write))
        answer = self.answers.pop(0)
        if answer is None:
            raise ConnectionError("it is away")
        return answer

    async def is_gone(self, partition: Partition, topic_id: bytes = b"") -> bool:
        return partition in self.gone or topic_id in self.gone_ids

    async def next_picture(self, timeout_s: float) -> None:
        if self.pictures:
            self.pictures.pop(0)()


def topic(*leads: tuple[int, int], topic_id: bytes = FORMER) -> Any:
    """A topic as the picture of the cluster has it: leader and leader epoch of each partition."""
    states = [SimpleNamespace(leader=leader, leader_epoch=epoch) for leader, epoch in leads]
    return SimpleNamespace(partitions=states, topic_id=topic_id)


def deliver(
    leader: Leader,
    cluster: Cluster,
    *partitions: Partition,
    wanted: Callable[[], bool] = lambda: True,
    topic_ids: TopicIds = frozenset(),
) -> bool:
    delivery = Delivery(cast(Any, leader.parts), leader.markers)
    found: list[bool] = []

    async def steps() -> None:
        found.append(await delivery.deliver(cast(Any, cluster), COMMIT, partitions, wanted, topic_ids))

    leader.run(steps)
    return found[0]


def test_markers_are_sent_to_each_leader_until_all_are_committed() -> None:
    leader, done, away = Leader(), MarkerAnswer(E.NONE), ("t", 0)
    leader.parts.topics["t"] = topic((2, 7), (2, 8), (3, 9))
    cluster = Cluster([{away: MarkerAnswer(E.NOT_LEADER_OR_FOLLOWER), ("t", 1): done}, None, {away: done}, {("t", 2): done}])
    cluster.pictures.append(lambda: leader.parts.topics.update(t=topic((3, 10), (2, 8), (2, 11))))
    assert deliver(leader, cluster, *(("t", index) for index in range(3)))
    sent = {(broker, *one.leader_epochs.items()) for broker, one in cluster.sent}
    assert sent == {
        (2, (("t", 0), 7), (("t", 1), 8)),
        (3, (("t", 2), 9)),
        (3, (("t", 0), 10)),
        (2, (("t", 2), 11)),
    }
    assert all(one.marker == COMMIT for _, one in cluster.sent)


def test_a_partition_that_is_not_known_waits_until_its_deletion_is() -> None:
    leader, cluster = Leader(), Cluster([])
    waited: list[int] = []

    def nothing() -> None:
        waited.append(1)
        assert cluster.sent == []

    cluster.pictures += [nothing, nothing, lambda: setattr(cluster, "gone", {("t", 0)})]
    assert deliver(leader, cluster, ("t", 0))
    assert len(waited) == 2


def test_a_partition_without_a_leader_waits_for_one() -> None:
    leader, cluster = Leader(), Cluster([{("t", 0): MarkerAnswer(E.NONE)}], gone={("t", 0)})
    leader.parts.topics["t"] = topic((-1, 7))
    cluster.pictures.append(lambda: leader.parts.topics.update(t=topic((2, 8))))
    assert deliver(leader, cluster, ("t", 0))
    assert [broker for broker, _ in cluster.sent] == [2]


def test_a_refused_marker_is_sent_until_nothing_of_it_is_open() -> None:
    leader, partition = Leader(), ("t", 0)
    leader.parts.topics["t"] = topic((2, 7))
    fenced = MarkerAnswer(E.INVALID_PRODUCER_EPOCH, is_open=True)
    cluster = Cluster([{partition: fenced}, {partition: fenced}, {partition: MarkerAnswer(E.INVALID_PRODUCER_EPOCH)}])
    assert deliver(leader, cluster, partition)
    assert len(cluster.sent) == 3


def test_a_coordinator_that_has_resigned_sends_nothing_more() -> None:
    leader, cluster = Leader(), Cluster([None, None])
    leader.parts.topics["t"] = topic((2, 7))
    assert not deliver(leader, cluster, ("t", 0), wanted=lambda: len(cluster.sent) < 2)


def test_own_partitions_are_marked_without_a_request(name: str) -> None:
    leader, cluster = Leader(), Cluster([])
    leader.parts.topics[name] = topic((1, EPOCH))
    begin(name)
    LOGS.set_leader(name, 0, broker_epoch=1, leader_epoch=EPOCH, partition_epoch=2, replicas=[], enough=1)
    assert deliver(leader, cluster, (name, 0))
    assert not is_open(name) and cluster.sent == []


def test_a_marker_of_a_topic_that_is_gone_goes_to_no_later_one() -> None:
    leader, cluster = Leader(), Cluster([])
    leader.parts.topics["t"] = topic((2, 7), topic_id=LATER)
    cluster.pictures.append(lambda: cluster.gone_ids.add(FORMER))
    assert deliver(leader, cluster, ("t", 0), topic_ids=frozenset({("t", FORMER)}))
    assert cluster.sent == [] and not cluster.pictures, "until then the picture may be the one that is old"


def test_a_leader_that_holds_another_topic_says_nothing_of_this_one() -> None:
    """It may not have heard yet that its topic was made again: the store decides."""
    leader, other = Leader(), {("t", 0): MarkerAnswer(E.UNKNOWN_TOPIC_ID)}
    leader.parts.topics["t"] = topic((2, 7), topic_id=LATER)
    cluster = Cluster([other, other, {("t", 0): MarkerAnswer(E.NONE)}])
    assert deliver(leader, cluster, ("t", 0), topic_ids=frozenset({("t", LATER)}))
    assert [(broker, one.topic_ids) for broker, one in cluster.sent] == [(2, {"t": LATER})] * 3

    cluster = Cluster([other, other])
    cluster.pictures.append(lambda: cluster.gone_ids.add(LATER))
    assert deliver(leader, cluster, ("t", 0), topic_ids=frozenset({("t", LATER)}))


def test_of_two_topics_that_a_transaction_knew_under_a_name_each_gets_its_marker() -> None:
    """A coordinator whose picture was old has added the former one, a leader the later one."""
    leader, done = Leader(), {("t", 0): MarkerAnswer(E.NONE)}
    leader.parts.topics |= {"t": topic((2, 7), topic_id=LATER), "u": topic((2, 7))}
    cluster = Cluster([done | {("u", 0): MarkerAnswer(E.NONE)}])
    cluster.gone_ids.add(FORMER)
    assert deliver(leader, cluster, ("t", 0), ("u", 0), topic_ids=frozenset({("t", FORMER), ("t", LATER)}))
    assert [(broker, one.topic_ids) for broker, one in cluster.sent] == [(2, {"t": LATER})], "of the other no id is known"


# What goes over the wire


def asked(
    number: int, name: str, *, sender: int = 2, epoch: int = EPOCH, topic_ids: Mapping[str, bytes] | None = None
) -> WriteTxnMarkersRequest:
    made = write_markers([MarkerWrite(COMMIT, {(name, 0): epoch}, topic_ids or {})], sender, 40, number)
    return WriteTxnMarkersRequest.decode(made.encode(2), 2)


def handled(leader: Leader, request: WriteTxnMarkersRequest, listener: str = "BROKERS") -> MarkerAnswer:
    context: Any = SimpleNamespace(
        transactions=SimpleNamespace(markers=leader.markers), between_brokers="BROKERS",
        cluster=SimpleNamespace(brokers_for=lambda _: {2: None}),
    )  # fmt: skip
    answers: list[Mapping[Partition, MarkerAnswer]] = []

    async def steps() -> None:
        response = await write_txn_markers.handle(context, request, Call(2, None, "", listener))
        read = WriteTxnMarkersResponse.decode(response.encode(2), 2)
        (write,) = request.markers
        partition = (write.topics[0].name, 0)
        answers.extend(read_marker_answers(read, [MarkerWrite(COMMIT, {partition: 0})]))

    leader.run(steps)
    return next(iter(answers[0].values()))


@pytest.fixture
def alone(name: str) -> str:
    """A partition with one replica."""
    LOGS.set_leader(name, 0, broker_epoch=1, leader_epoch=EPOCH, partition_epoch=2, replicas=[], enough=1)
    return name


def test_a_marker_for_a_former_topic_ends_no_transaction_in_the_next_one(alone: str) -> None:
    """It comes from another coordinator, in no order with this one's; leader epochs and coordinator epochs begin again."""
    leader = Leader()
    begin(alone)
    assert handled(leader, asked(1, alone, topic_ids={alone: FORMER})).error == E.UNKNOWN_TOPIC_ID
    assert is_open(alone) and LOGS.offsets(alone, 0).log_end == 1
    assert handled(leader, asked(2, alone, topic_ids={alone: topic_id(alone)})).error == E.NONE
    assert not is_open(alone)
    begin(alone, sequence=1)
    assert handled(leader, asked(3, alone)).error == E.NONE, "a broker of an earlier version, or a tool"


def test_a_request_that_hung_in_a_connection_ends_no_later_transaction(alone: str) -> None:
    leader = Leader()
    begin(alone)
    assert handled(leader, asked(2, alone)).error == E.NONE
    begin(alone, sequence=1)
    assert handled(leader, asked(1, alone)).error == E.STALE_BROKER_EPOCH
    assert is_open(alone)
    assert handled(leader, asked(3, alone)).error == E.NONE
    assert not is_open(alone)


def test_only_brokers_that_live_send_markers_and_on_their_listener_alone(alone: str) -> None:
    leader = Leader()
    begin(alone)
    assert handled(leader, asked(1, alone), "CLIENTS").error == E.CLUSTER_AUTHORIZATION_FAILED
    assert handled(leader, asked(1, alone, sender=9)).error == E.STALE_BROKER_EPOCH
    assert handled(leader, asked(1, alone, epoch=EPOCH - 1)).error == E.NOT_LEADER_OR_FOLLOWER
    assert is_open(alone)
    tool = WriteTxnMarkersRequest(markers=asked(0, alone, epoch=-1).markers)
    assert handled(leader, tool).error == E.NONE


def test_whether_a_refused_markers_transaction_is_open_comes_with_the_answer(alone: str) -> None:
    begin(alone, epoch=1)
    assert handled(Leader(), asked(1, alone)) == MarkerAnswer(E.INVALID_PRODUCER_EPOCH, is_open=True)


def test_answers_to_other_markers_are_none() -> None:
    result = WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=8)
    with pytest.raises(WireError):
        read_marker_answers(WriteTxnMarkersResponse(markers=[result]), [MarkerWrite(COMMIT, {})])
    with pytest.raises(WireError):
        read_marker_answers(WriteTxnMarkersResponse(), [MarkerWrite(COMMIT, {})])
