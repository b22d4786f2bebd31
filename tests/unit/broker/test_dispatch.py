"""The rim around handlers: what is answered, what closes a connection, and that nothing stops the loop."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker import dispatch, turns
from penstock.broker.api import brokers
from penstock.broker.configs.features import Features
from penstock.broker.context import Call, Context
from penstock.broker.patience import Patience
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.header import REQUESTS, decode_response, encode_request
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import (
    AddPartitionsToTxnRequest,
    AlterReplicaLogDirsRequest,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateAclsRequest,
    CreateTopicsRequest,
    DeleteAclsRequest,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeProducersRequest,
    DescribeQuorumRequest,
    DescribeUserScramCredentialsRequest,
    ElectLeadersRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from penstock.pyx.wire.messages import AlterClientQuotasRequest as Quotas
from penstock.pyx.wire.messages import AlterPartitionReassignmentsRequest as Reassignments
from penstock.pyx.wire.messages import AlterUserScramCredentialsRequest as Scram

BETWEEN_BROKERS = {4: (7, 7), 5: (4, 4), 6: (8, 8), 7: (3, 3), 56: (3, 3)}
"""APIs that one broker asks of another."""


@dataclass
class Frame:
    """A request as the data plane would hand it over."""

    token: int
    api_key: int
    api_version: int
    correlation_id: int
    frame: bytes
    peer: str = "127.0.0.1:1"
    listener: str = "PLAINTEXT"
    handed_over: bool = False


@dataclass
class Answers:
    """Keeps what was answered and closed."""

    answered: dict[int, bytes] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    times: dict[int, tuple[int, int]] = field(default_factory=dict)
    software: dict[int, tuple[str, str]] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self, token: int, frame: bytes, begun_ns: int, local_ns: int) -> None:
        assert token not in self.answered
        self.answered[token] = frame
        self.times[token] = (begun_ns, local_ns)
        self.done.set()

    def name_software(self, token: int, name: str, version: str) -> None:
        self.software[token] = (name, version)

    def close_connection(self, token: int, reason: str = "closed_failed", detail: str = "") -> None:
        self.closed.append(token)
        self.reasons.append(reason)
        self.done.set()

    def is_connected(self, token: int) -> bool:
        return token not in self.gone

    is_sending = is_connected

    async def until(self, count: int) -> None:
        """Wait until so many are answered or closed."""
        while len(self.answered) + len(self.closed) < count:
            self.done.clear()
            await self.done.wait()


def bare(cluster: object = None, between_brokers: str | None = "PLAINTEXT") -> Context:
    """What ApiVersions needs; a handler that needs more fails, which is a case below."""
    parts = {"cluster": cluster, "between_brokers": between_brokers}
    return cast(Context, SimpleNamespace(features=Features(), patience=Patience(), **parts))


def run(*frames: Frame) -> tuple[Answers, dispatch.Dispatch]:
    async def main() -> tuple[Answers, dispatch.Dispatch]:
        answers = Answers()
        rim = dispatch.Dispatch(bare(), cast(Any, answers))
        rim.take(cast(Any, list(frames)))
        for _ in range(50):
            await asyncio.sleep(0)
        await rim.stop()
        return answers, rim

    return asyncio.run(main())


def api_versions(version: int, token: int = 1) -> Frame:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    return Frame(token, 18, version, 7, encode_request(request, version, 7, "me"))


@pytest.mark.parametrize("version", range(6))
def test_api_versions_tells_exactly_what_is_registered(version: int) -> None:
    answers, _ = run(api_versions(version))
    correlation_id, response = decode_response(ApiVersionsResponse, answers.answered[1], version)
    assert correlation_id == 7 and response.error_code == 0
    told = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    assert told == {key: handler.versions for key, handler in dispatch.registry().items()}
    assert {key: handler.versions for key, handler in dispatch.registry(brokers).items()} == BETWEEN_BROKERS
    assert told[0] == (0, 13) and told[1] == (0, 18) and told[3] == (0, 13) and told[18] == (0, 5)


@pytest.mark.parametrize("version", range(6))
def test_the_software_of_a_client_is_handed_on_from_version_3_on(version: int) -> None:
    answers, _ = run(api_versions(version))
    assert answers.software == ({1: ("test", "1")} if version >= 3 else {})


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "a.", "\u00e9", "a" * 99 + "_"])
@pytest.mark.parametrize("first", [True, False])
def test_software_with_a_name_that_kafka_refuses_is_refused(name: str, first: bool) -> None:
    pair = (name, "1-b.2") if first else ("a", name)
    request = ApiVersionsRequest(client_software_name=pair[0], client_software_version=pair[1])
    frame = Frame(1, 18, 3, 7, encode_request(request, 3, 7, "me"))
    answers, _ = run(frame)
    _, response = decode_response(ApiVersionsResponse, answers.answered[1], 3)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert answers.software == {}


def test_an_answer_says_when_its_service_began_and_what_of_it_was_work(monkeypatch: pytest.MonkeyPatch) -> None:
    before_ns = time.monotonic_ns()

    def nap() -> None:
        time.sleep(0.05)

    async def handle(context: Context, request: Any, call: Call) -> ApiVersionsResponse:
        nap()
        loop, waited = asyncio.get_running_loop(), asyncio.Event()
        loop.call_soon(loop.call_later, 0.2, waited.set)  # From the end of this step on, however long that takes.
        await waited.wait()
        nap()
        return ApiVersionsResponse()

    async def main() -> Answers:
        answers = Answers()
        rim = dispatch.Dispatch(bare(), cast(Any, answers))
        rim.take(cast(Any, [api_versions(0)]))
        await answers.until(1)
        await rim.stop()
        return answers

    dispatch.HANDLERS.update(dispatch.registry())
    monkeypatch.setitem(dispatch.HANDLERS, 18, dispatch.Handler(18, (0, 4), handle, "api_versions"))
    begun_ns, local_ns = asyncio.run(main()).times[1]
    after_ns = time.monotonic_ns()
    assert before_ns < begun_ns < after_ns
    assert 100_000_000 <= local_ns <= after_ns - begun_ns - 200_000_000


def test_every_advertised_version_has_a_wire_table() -> None:
    for key, handler in (dispatch.registry() | dispatch.registry(brokers)).items():
        assert REQUESTS[key].MIN_VERSION <= handler.versions[0] <= handler.versions[1] <= REQUESTS[key].MAX_VERSION


def test_an_unknown_version_of_api_versions_is_answered_with_its_range() -> None:
    answers, _ = run(Frame(1, 18, 99, 7, b"\x00\x12\x00\x63\x00\x00\x00\x07whatever"))
    _, response = decode_response(ApiVersionsResponse, answers.answered[1], 0)
    assert response.error_code == 35
    assert [(key.api_key, key.min_version, key.max_version) for key in response.api_keys] == [(18, 0, 5)]


@pytest.mark.parametrize(
    "frame",
    [
        Frame(1, 9999, 0, 7, b"\x27\x0f\x00\x00\x00\x00\x00\x07\xff\xff"),
        Frame(1, 3, 99, 7, b"\x00\x03\x00\x63\x00\x00\x00\x07\xff\xff"),
        Frame(1, 3, 9, 7, b"\x00\x03\x00\x09\x00\x00\x00\x07\xff\xff\x00\xff\xff\xff\xff\x0f"),
        Frame(1, 3, 1, 7, b"\x00\x03"),
        Frame(1, 0, 2, 7, encode_request(ProduceRequest(acks=1, timeout_ms=1), 2, 7, None)),
    ],
    ids=["unknown api", "unknown version", "array longer than the frame", "cut header", "produce 2"],
)
def test_what_is_wrong_closes_its_connection_and_no_other(frame: Frame) -> None:
    answers, rim = run(frame, api_versions(3, token=2))
    assert answers.closed == [1]
    assert list(answers.answered) == [2]
    assert rim.failed == 0


@pytest.mark.parametrize("version", [1, 5, 6])
def test_a_handler_that_fails_is_answered_and_counted(version: int) -> None:
    request = DeleteTopicsRequest(topic_names=["a", "b"])
    if version > 5:
        request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in ("a", "b")])
    answers, rim = run(Frame(1, 20, version, 7, encode_request(request, version, 7, None)), api_versions(3, token=2))
    assert answers.closed == [] and sorted(answers.answered) == [1, 2] and rim.failed == 1
    _, response = decode_response(DeleteTopicsResponse, answers.answered[1], version)
    assert [(one.name, one.error_code) for one in response.responses] == [("a", -1), ("b", -1)]


def test_a_handler_that_fails_closes_a_connection_whose_answer_has_no_place_for_an_error() -> None:
    frame = Frame(1, 3, 12, 7, encode_request(MetadataRequest(topics=None), 12, 7, None))
    answers, rim = run(frame, api_versions(3, token=2))
    assert answers.closed == [1] and list(answers.answered) == [2]
    assert rim.failed == 1


def test_handlers_start_in_the_order_of_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str | None] = []

    async def handle(context: Context, request: Any, call: Call) -> ApiVersionsResponse:
        started.append(call.client_id)
        await asyncio.sleep(0)
        return ApiVersionsResponse()

    dispatch.HANDLERS.update(dispatch.registry())
    monkeypatch.setitem(dispatch.HANDLERS, 18, dispatch.Handler(18, (0, 4), handle, "api_versions"))
    frames = [Frame(n, 18, 0, n, encode_request(ApiVersionsRequest(), 0, n, f"c{n}")) for n in range(50)]
    answers, _ = run(*frames)
    assert started == [f"c{n}" for n in range(50)]
    assert list(answers.answered) == list(range(50))


def large(token: int) -> Frame:
    frame = api_versions(3, token)
    frame.frame += bytes(dispatch.LARGE_BYTES)  # Bytes behind a message are passed over.
    return frame


def test_a_large_request_holds_up_its_own_connection_alone() -> None:
    connection = 1 << dispatch.CONNECTION_SHIFT

    async def main() -> list[int]:
        answers = Answers()
        rim = dispatch.Dispatch(bare(), cast(Any, answers))
        unknown = Frame(connection + 3, 3, 99, 7, b"\x00\x03\x00\x63\x00\x00\x00\x07\xff\xff")
        frames = [large(connection), large(connection + 1), api_versions(3, connection + 2), unknown]
        rim.take(cast(Any, [*frames, api_versions(3, 2 * connection)]))
        await answers.until(5)
        assert answers.closed == [connection + 3]
        rim.take(cast(Any, [api_versions(3, connection + 4)]))
        await answers.until(6)
        await rim.stop()
        return list(answers.answered)

    first, *rest = asyncio.run(main())
    assert first == 2 * connection
    assert sorted(rest) == [connection, connection + 1, connection + 2, connection + 4]


@pytest.mark.parametrize("alone_s", [60, 0], ids=["ends", "doesn't come to its end"])
def test_huge_requests_are_dealt_with_one_after_the_other(monkeypatch: pytest.MonkeyPatch, alone_s: float) -> None:
    begun: list[str] = []
    monkeypatch.setattr(dispatch, "ALONE_S", alone_s)

    async def main() -> list[int]:
        may_end = asyncio.Event()
        answers = Answers()

        async def handle(context: Context, request: DeleteTopicsRequest, call: Call) -> Message:
            begun.extend(request.topic_names)
            if request.topic_names == ["first"]:
                await may_end.wait()
            return DeleteTopicsResponse()

        rim = dispatch.Dispatch(bare(), cast(Any, answers))
        monkeypatch.setitem(dispatch.HANDLERS, 20, dispatch.Handler(20, (0, 6), handle, "delete_topics"))
        frames = []
        for token, name in ((1, "first"), (2, "second")):
            asked = encode_request(DeleteTopicsRequest(topic_names=[name]), 3, 7, None)
            frames.append(Frame(token << dispatch.CONNECTION_SHIFT, 20, 3, 7, asked + bytes(dispatch.HUGE_BYTES)))
        # Large, not huge: the thread would have decoded the second one before it.
        rim.take(cast(Any, [*frames, large(3 << dispatch.CONNECTION_SHIFT)]))
        await answers.until(1 if alone_s else 2)
        assert begun == (["first"] if alone_s else ["first", "second"])
        may_end.set()
        await answers.until(3)
        await rim.stop()
        return [token >> dispatch.CONNECTION_SHIFT for token in answers.answered]

    order = asyncio.run(main())
    assert order == [3, 1, 2] if alone_s else order[-1] == 1


def test_a_stop_closes_the_connections_of_large_requests_that_wait() -> None:
    async def main() -> Answers:
        answers = Answers()
        rim = dispatch.Dispatch(bare(), cast(Any, answers))
        rim.take(cast(Any, [large(1), api_versions(3, 2)]))
        await asyncio.sleep(0)
        await rim.stop()
        return answers

    answers = asyncio.run(main())
    assert sorted([*answers.closed, *answers.answered]) == [1, 2]


Offsets = ListOffsetsRequest


def asked_for(topics: int) -> ListOffsetsRequest:
    asked = [
        Offsets.ListOffsetsTopic(name=f"t{i}", partitions=[Offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)])
        for i in range(topics)
    ]
    return Offsets(replica_id=-1, topics=asked)


def members(count: int) -> LeaveGroupRequest:
    return LeaveGroupRequest(group_id="g", members=[LeaveGroupRequest.MemberIdentity(member_id=str(i)) for i in range(count)])


@pytest.mark.parametrize(
    ("request_", "version", "is_accepted"),
    [(asked_for(50_000), 5, True), (asked_for(60_001), 5, False), (members(10_000), 3, True), (members(10_001), 3, False)],
    ids=["50,000 topics", "60,001 topics", "10,000 members", "10,001 members"],
)
def test_requests_may_name_what_a_large_client_has_and_not_much_more(
    request_: Message, version: int, is_accepted: bool
) -> None:
    async def main() -> list[str]:
        answers = Answers()
        rim = dispatch.Dispatch(cast(Context, SimpleNamespace(patience=Patience())), cast(Any, answers))
        frame = encode_request(request_, version, 7, "me")
        rim.take(cast(Any, [Frame(1, request_.API_KEY, version, 7, frame)]))
        await answers.until(1)  # An accepted one fails in its handler, which has nothing to look into, and is answered so.
        await rim.stop()
        return answers.reasons

    assert asyncio.run(main()) == ([] if is_accepted else ["closed_malformed"])


class NoTopics:
    """What handlers ask of topics, logs and groups, where there are none."""

    producers = None
    isolated: frozenset[str] = frozenset()

    def get(self, name: str) -> None:
        return None

    get_by_id = by_path = get

    async def catch_up(self, name: str) -> None:
        """One node is never behind."""

    def look_up(self, name: str) -> None:
        if name == "refused":
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, name)

    def __iter__(self) -> Iterator[tuple[None, None]]:
        return iter(())

    async def alter(self, changes: object) -> None:
        assert not changes

    @property
    def logs(self) -> "NoTopics":
        return self

    moving = logs

    async def retried(self, work: Callable[[], Awaitable[Any]]) -> Any:
        return await work()

    def check_leader_epoch(self, name: str, index: int, epoch: int) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)

    def partition(self, name: str, index: int) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)

    async def ask(self, name: str, index: int, *work: object) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)


COUNT = 20
ONES = list(range(COUNT))
NAMES = [f"/{i}" for i in ONES]  # which no topic can have


def long_lists() -> Iterator[tuple[Any, int]]:
    """Requests that name so many, with a version."""
    asked = [Offsets.ListOffsetsPartition(partition_index=i) for i in ONES]
    yield Offsets(topics=[Offsets.ListOffsetsTopic(name="t", partitions=asked)]), 5
    yield MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in NAMES]), 9
    commits = [OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=i) for i in ONES]
    yield OffsetCommitRequest(topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=commits)]), 8
    yield OffsetFetchRequest(topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=ONES)]), 7
    fetched = [OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=ONES)]
    yield OffsetFetchRequest(group_id="refused", topics=fetched), 6
    topics = [OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=ONES)]
    yield OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=topics)]), 8
    yield CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name=name) for name in NAMES]), 5
    yield DeleteTopicsRequest(topic_names=NAMES), 3
    epochs = [OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=i) for i in ONES]
    yield OffsetForLeaderEpochRequest(topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(partitions=epochs)]), 3
    asked_of = [DescribeProducersRequest.TopicRequest(name="t", partition_indexes=ONES)]
    yield DescribeProducersRequest(topics=asked_of), 0
    marked = [WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=ONES)]
    yield WriteTxnMarkersRequest(markers=[WriteTxnMarkersRequest.WritableTxnMarker(topics=marked)]), 1
    yield MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=None)] * COUNT), 11
    elected = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=ONES)]
    yield ElectLeadersRequest(topic_partitions=elected), 2
    partitions = [Reassignments.ReassignablePartition(partition_index=i, replicas=[1]) for i in ONES]
    yield Reassignments(topics=[Reassignments.ReassignableTopic(name="t", partitions=partitions)]), 0
    quorums = [DescribeQuorumRequest.PartitionData(partition_index=i) for i in ONES]
    yield DescribeQuorumRequest(topics=[DescribeQuorumRequest.TopicData(topic_name="t", partitions=quorums)]), 1
    entity = [Quotas.EntityData(entity_type="no such type", entity_name="e")]
    yield Quotas(entries=[Quotas.EntryData(entity=entity, ops=[]) for _ in ONES]), 1
    deletions = [Scram.ScramCredentialDeletion(name=name, mechanism=-1) for name in NAMES]
    yield Scram(deletions=deletions), 0
    users = [DescribeUserScramCredentialsRequest.UserName(name=name) for name in NAMES for _ in range(2)]
    yield DescribeUserScramCredentialsRequest(users=[*users, *users]), 0
    rule: dict[str, Any] = {"resource_type": 2, "operation": 3, "permission_type": 3}
    yield CreateAclsRequest(creations=[CreateAclsRequest.AclCreation(**rule, resource_pattern_type=3) for _ in ONES]), 2
    rule = {"resource_type_filter": 2, "operation": 3, "permission_type": 3}
    yield DeleteAclsRequest(filters=[DeleteAclsRequest.DeleteAclsFilter(**rule, pattern_type_filter=3) for _ in ONES]), 2
    moved = [AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="t", partitions=ONES)]
    yield AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path="/", topics=moved)]), 2
    added = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=ONES)]
    yield AddPartitionsToTxnRequest(v3_and_below_transactional_id="x", v3_and_below_topics=added), 3


LONG = list(long_lists())


@pytest.mark.parametrize(("request_", "version"), LONG, ids=[type(one).__name__ + str(version) for one, version in LONG])
def test_a_long_list_lets_others_have_turns(monkeypatch: pytest.MonkeyPatch, request_: Message, version: int) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0)
    none = NoTopics()
    context = SimpleNamespace(
        topics=none, log_manager=none, groups=none, dirs=none, entities=none, patience=Patience(), node_id=1, cluster_id="c",
        brokers_for=lambda name: {1: ("h", 1)}, racks={}, controller_id=1, cluster=None,
        transactions=SimpleNamespace(markers=None),
        config={"auto.create.topics.enable": False, "delete.topic.enable": True, "num.partitions": 1},
    )  # fmt: skip

    async def main() -> int:
        call = Call(version, None, "peer", "PLAINTEXT")
        handling = asyncio.ensure_future(dispatch.registry()[request_.API_KEY].handle(cast(Context, context), request_, call))
        others = 0
        while not handling.done():
            await asyncio.sleep(0)
            others += 1
        await handling
        return others

    assert asyncio.run(main()) > COUNT


def test_many_long_lists_together_have_one_turn_in_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0)
    taken: list[int] = []

    async def walk(order: turns.TurnOrder, who: int) -> None:
        for _ in ONES:
            await turns.Turns(order).take()
            taken.append(who)

    async def main() -> list[int]:
        order = turns.TurnOrder()
        walks = [asyncio.create_task(walk(order, who)) for who in range(10)]
        passes = []
        while not all(one.done() for one in walks):
            before = len(taken)
            await asyncio.sleep(0)
            passes.append(len(taken) - before)
        return passes

    assert max(asyncio.run(main())) == 1
    assert taken[:20] == [*range(10), *range(10)]


def test_a_turn_that_is_cancelled_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0)

    async def main() -> None:
        order = turns.TurnOrder()
        first, second = (asyncio.create_task(turns.Turns(order).take()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second

    asyncio.run(main())


def test_connections_begin_their_requests_in_turn() -> None:
    """One has sent sixty before the other sends its only one."""
    frames = [api_versions(3, (1 << 16) + number) for number in range(60)] + [api_versions(3, 2 << 16)]

    async def main() -> list[int]:
        answers = Answers()
        rim = dispatch.Dispatch(bare(), cast(Any, answers))
        rim.take(cast(Any, frames[:40]))
        rim.take(cast(Any, frames[40:]))
        await answers.until(len(frames))
        await rim.stop()
        return list(answers.answered)

    order = asyncio.run(main())
    assert order.index(2 << 16) <= dispatch.BEGUN_AT_ONCE + 1
    assert [token for token in order if token != 2 << 16] == [frame.token for frame in frames[:-1]]


class Watched(NoTopics):
    """Notes what is looked up, and whether the collector of garbage is at work then."""

    def __init__(self) -> None:
        self.looked_up: list[str] = []
        self.collects: set[bool] = set()

    def get(self, name: str) -> None:
        self.looked_up.append(name)
        self.collects.add(gc.isenabled())


def told_of(topics: Watched, names: int, *, gone: bool) -> Answers:
    """Ask for the metadata of so many topics."""

    async def main() -> Answers:
        answers = Answers(gone={1} if gone else set())
        context = SimpleNamespace(
            topics=topics, patience=Patience(), node_id=1, cluster_id="c", brokers_for=lambda name: {1: ("h", 1)}, racks={},
            controller_id=1, cluster=None, config={"auto.create.topics.enable": False},
        )  # fmt: skip
        rim = dispatch.Dispatch(cast(Context, context), cast(Any, answers))
        topic = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(topics=[topic(name=f"a-name-that-is-longer-{i}") for i in range(names)])
        rim.take(cast(Any, [Frame(1, 3, 9, 7, encode_request(request, 9, 7, "me"))]))
        if gone and names > 10_000:  # Nothing says that it is passed over.
            await asyncio.gather(*rim._tasks)
        else:
            await answers.until(1)
        await rim.stop()
        return answers

    return asyncio.run(main())


def test_what_a_gone_client_asked_for_is_given_up_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0)
    for patience_s, looked_up in ((0, 0), (1000, 30)):
        monkeypatch.setattr(turns, "HALF_CLOSED_S", patience_s)
        answers = told_of(topics := Watched(), 30, gone=True)
        assert len(topics.looked_up) == looked_up
        assert bool(answers.closed) == (looked_up == 0)


def test_a_huge_request_of_a_gone_client_is_not_even_read() -> None:
    answers = told_of(topics := Watched(), 20_000, gone=True)
    assert (topics.looked_up, answers.answered, answers.closed) == ([], {}, [])


@pytest.mark.parametrize(("names", "collects"), [(30, True), (20_000, False)])
def test_the_collector_of_garbage_is_off_while_a_huge_request_is_dealt_with(names: int, collects: bool) -> None:
    assert gc.isenabled()
    told_of(topics := Watched(), names, gone=False)
    assert len(topics.looked_up) == names and topics.collects == {collects}
    assert gc.isenabled()
