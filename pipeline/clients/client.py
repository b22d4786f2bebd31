"""The asyncio core that every client is made of: connections, metadata, coordinators, and when to try again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, Self, TypeVar

from penstock import log, tasks
from penstock.config import Config, ConfigError, Schema, parse_server
from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.backoff import Backoff
from penstock.pipeline.clients.connection import Connection, ConnectionLost, Piece, RequestTimedOut
from penstock.pipeline.clients.metadata import Broker, Cluster, PartitionInfo
from penstock.pyx.wire.header import RESPONSES, decode_response, encode_request
from penstock.pyx.wire.message import Message, WireError
from penstock.pyx.wire.messages import FindCoordinatorRequest, MetadataRequest, MetadataResponse

T = TypeVar("T")
TopicPartition = tuple[str, int]
CoordinatorKind = Literal["group", "transaction"]
KIND_NUMBERS: dict[str, int] = {"group": 0, "transaction": 1}

ANY_NODE = -1

# Versions above these change what a request means in ways that we don't follow (the API's own versions go
# further).
HIGHEST: dict[int, int] = {
    8: 9,  # OffsetCommit v10 names topics by id alone
    9: 7,  # OffsetFetch v8 asks for several groups at once
    10: 3,  # FindCoordinator v4 asks for several keys at once
    20: 5,  # DeleteTopics v6 names topics by id too
    24: 3,  # AddPartitionsToTxn v4 is for brokers
    26: 4,  # EndTxn v5 is for transactions v2 (KIP-890): the sender asks for it there
    28: 4,  # TxnOffsetCommit v5 too
}
# A broker that is cut off from its cluster goes on answering what it knew: after so many answers the others are asked first.
ANSWERS_IN_A_ROW = 3
# Requests that may wait at the broker travel on connections of their own, so that nothing waits behind them.
PURPOSES: dict[int, str] = {0: "produce", 1: "fetch", 11: "join", 14: "join"}


class Unsure:
    """Whether a change may have been made by a try whose answer was lost: what a later try finds may be its own work."""

    def __init__(self) -> None:
        self.may_be_made = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KafkaError) and error.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT):
            self.may_be_made = True


class _Node:
    """Reconnection state of one broker: no attempt before `not_before` (loop time)."""

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.not_before = 0.0


class Client:
    """A cluster seen by a client. Properties have Kafka's names: `Client("host:9092", **{"client.id": "x"})`.

    `send` is one attempt at one broker; `metadata`, `leader` and `coordinator` try again until
    `default.api.timeout.ms`; `retry` does that for any call. All methods belong to one event loop.
    """

    SCHEMA: Schema = properties.CLIENT

    def __init__(self, bootstrap: str | Iterable[str] = "", **given: object) -> None:
        self._configure(bootstrap, properties.load(self.SCHEMA, given))

    @classmethod
    def from_config(cls, bootstrap: str | Iterable[str], config: Config) -> Self:
        """A client with properties that were checked before, such as a producer's."""
        client = cls.__new__(cls)
        client._configure(bootstrap, config)
        return client

    def _configure(self, bootstrap: str | Iterable[str], config: Config) -> None:
        self.config = config
        addresses = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
        addresses = [word.strip() for word in addresses if word.strip()] or self.config["bootstrap.servers"]
        if not addresses:
            raise ConfigError("`bootstrap.servers` names no broker")
        # Bootstrap addresses are brokers with ids below -1 until metadata has the real ones.
        self._bootstrap = {-2 - i: _address(-2 - i, text) for i, text in enumerate(addresses)}
        self._cluster = Cluster()
        self._topic_times: dict[str, float] = {}
        self._stale: set[str] = set()
        self._connections: dict[tuple[int, str], Connection] = {}
        self._connecting: dict[tuple[int, str], asyncio.Task[Connection]] = {}
        self._nodes: dict[int, _Node] = {}
        self._coordinators: dict[tuple[str, str], int] = {}
        self._answerer, self._answers = ANY_NODE, 0  # the broker that answered for all last, and how often in a row
        self._features: dict[str, int] = {}
        self._features_epoch = -1
        self._metadata_lock = asyncio.Lock()
        self._trouble: KafkaError | None = None  # why the last request got no answer
        self.last_failure: KafkaError | None = None
        """What `retry` has tried again after last: why somebody still waits."""
        self._closed = False
        self._log = log.get(__name__, client_id=self.config["client.id"])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def start(self, timeout_ms: float | None = None) -> None:
        """Reach some broker and learn the cluster. Raises KafkaError when none answers within `timeout_ms`, by default
        `default.api.timeout.ms`."""
        await self.retry(lambda: self._ask_metadata([]), timeout_ms=timeout_ms)

    def no_answer(self, timeout_ms: float) -> RequestTimedOut:
        """The error of a call whose time is over, and no broker's answer says why."""
        names = ",".join(f"{broker.host}:{broker.port}" for broker in self._bootstrap.values())
        why = f" ({self._trouble.what})" if self._trouble is not None else ""
        return RequestTimedOut(f"no answer from the cluster at `{names}` within {timeout_ms:.0f} ms{why}")

    async def close(self) -> None:
        """Close all connections; what waits on them fails with ConnectionLost."""
        self._closed = True
        await tasks.end(*self._connecting.values())
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Connections

    def ready_connection(self, node_id: int, purpose: str) -> Connection | None:
        """The open connection to a broker, or None if it has to be made (`connection` does)."""
        connection = self._connections.get((node_id, purpose))
        return None if connection is None or connection.closed else connection

    async def connection(self, node_id: int, purpose: str = "control") -> Connection:
        """An open connection to a broker; one attempt, after the pause that earlier failures ask for. Raises
        ConnectionLost."""
        connection = self.ready_connection(node_id, purpose)
        if connection is not None:
            return connection
        if self._closed:
            raise ConnectionLost("the client is closed")
        key = (node_id, purpose)
        task = self._connecting.get(key)
        if task is None:
            task = self._connecting[key] = asyncio.create_task(self._connect(node_id, purpose))
            task.add_done_callback(lambda done: self._connected(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise ConnectionLost("the client is closed") from None
            raise

    def _connected(self, key: tuple[int, str], task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, whether or not a task still waits for it

    async def _connect(self, node_id: int, purpose: str) -> Connection:
        loop = asyncio.get_running_loop()
        config = self.config
        node = self._nodes.get(node_id)
        if node is None:
            backoff = Backoff(config["reconnect.backoff.ms"], config["reconnect.backoff.max.ms"])
            node = self._nodes[node_id] = _Node(backoff)
        await asyncio.sleep(node.not_before - loop.time())
        broker = self._cluster.brokers.get(node_id) or self._bootstrap.get(node_id)
        if broker is None:
            self._forget_roles(node_id)
            raise ConnectionLost(f"broker {node_id} is not in the cluster's metadata")
        self._close_idle()
        try:
            connection = await Connection.open(
                broker.host,
                broker.port,
                client_id=config["client.id"],
                timeout_ms=config["socket.connection.setup.timeout.ms"],
                response_bytes_max=config["penstock.max.response.bytes"],
                send_buffer_bytes=config["send.buffer.bytes"],
                receive_buffer_bytes=config["receive.buffer.bytes"],
            )
        except (KafkaError, WireError) as error:
            node.not_before = loop.time() + node.backoff.next_s()
            self._forget_roles(node_id)
            if isinstance(error, WireError):
                self._trouble = ConnectionLost(f"`{broker.host}:{broker.port}`: {error}")
                raise self._trouble from error
            self._trouble = error
            raise
        node.backoff.reset()
        self._connections[node_id, purpose] = connection
        self._learn_features(connection)
        return connection

    def _close_idle(self) -> None:
        idle_ms = self.config["connections.max.idle.ms"]
        now = asyncio.get_running_loop().time()
        for key, connection in list(self._connections.items()):
            idle = not connection.in_flight and now - connection.last_used > idle_ms / 1000
            if connection.closed or (idle_ms >= 0 and idle):
                connection.close()
                del self._connections[key]

    def _forget_roles(self, node_id: int) -> None:
        """A broker gave no answer: others may lead and coordinate by now what it did, and the next use asks who."""
        for key, found in list(self._coordinators.items()):
            if found == node_id:
                del self._coordinators[key]
        for name, topic in self._cluster.topics.items():
            if any(info.leader == node_id for info in topic.partitions.values()):
                self.forget(name)

    # Requests

    async def send(
        self,
        node_id: int,
        request: Message,
        *,
        timeout_ms: float | None = None,
        purpose: str | None = None,
        versions: tuple[int, int] | None = None,
    ) -> Any:
        """One attempt: send a request to a broker (ANY_NODE: whichever answers) and give back its response.

        The version is the highest that both sides speak, within `versions` if they are given. Raises KafkaError:
        ConnectionLost or RequestTimedOut when no answer came (retriable, but whether it was carried out is unknown),
        UNSUPPORTED_VERSION; error codes inside the response are the caller's to read.
        """
        if node_id == ANY_NODE:
            return await self._send_any(request, timeout_ms)
        purpose = purpose if purpose is not None else PURPOSES.get(request.API_KEY, "control")
        connection = await self.connection(node_id, purpose)
        return await self.send_on(connection, node_id, request, timeout_ms=timeout_ms, versions=versions)

    async def send_on(
        self,
        connection: Connection,
        node_id: int,
        request: Message,
        *,
        timeout_ms: float | None = None,
        versions: tuple[int, int] | None = None,
    ) -> Any:
        """As `send`, over this connection to a broker and no other."""
        highest = min(request.MAX_VERSION, HIGHEST.get(request.API_KEY, 99))
        lowest, highest = versions if versions is not None else (request.MIN_VERSION, highest)
        version = connection.version(request.API_KEY, lowest, highest)
        timeout_ms = timeout_ms if timeout_ms is not None else self.config["request.timeout.ms"]

        def encode(correlation_id: int) -> list[Piece]:
            return [encode_request(request, version, correlation_id, connection.client_id)]

        try:
            frame = await connection.request(encode, timeout_ms)
        except (ConnectionLost, RequestTimedOut) as error:
            self._forget_roles(node_id)
            self._trouble = error
            raise
        self._trouble = None
        return self.decode(connection, request.API_KEY, version, frame)

    def decode(self, connection: Connection, api_key: int, version: int, frame: memoryview) -> Any:
        """Read an answer; a malformed one closes its connection and raises ConnectionLost."""
        try:
            return decode_response(RESPONSES[api_key], frame, version)[1]
        except WireError as error:
            connection.close(f"malformed answer: {error}")
            raise ConnectionLost(f"`{connection.name}` sent a malformed answer: {error}") from error

    async def _send_any(self, request: Message, timeout_ms: float | None = None, *, another: bool = False) -> Any:
        """Try open connections first, then the other brokers, then the bootstrap addresses; each of them in turn. With
        `another` the broker that answered last comes after all others."""
        known = list(self._cluster.brokers)
        random.shuffle(known)
        enough = self._answerer if another or self._answers >= ANSWERS_IN_A_ROW else ANY_NODE
        known.sort(
            key=lambda node_id: (
                node_id == enough,
                self.ready_connection(node_id, "control") is None,
                node_id == self._answerer,
            )
        )
        failure: KafkaError = ConnectionLost("no broker is known")
        for node_id in [*known, *self._bootstrap]:
            try:
                answer = await self.send(node_id, request, timeout_ms=timeout_ms, purpose="control")
            except KafkaError as error:
                if not error.retriable:
                    raise
                failure = error
                continue
            self._answers = self._answers + 1 if node_id == self._answerer else 1
            self._answerer = node_id
            return answer
        raise failure

    def feature(self, name: str) -> int:
        """The level of a feature of the cluster (KIP-584) as the newest connection's broker said; 0 if it is off or
        not known yet.
        """
        return self._features.get(name, 0)

    def _learn_features(self, connection: Connection) -> None:
        if connection.features_epoch >= self._features_epoch:
            self._features, self._features_epoch = connection.features, connection.features_epoch

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_ms: float | None = None,
        also: frozenset[int] = frozenset(),
        first_ms: float | None = None,
    ) -> T:
        """Call `attempt` until it does not raise a retriable KafkaError, for `default.api.timeout.ms` at
        most.

        `also` are further codes to try again on, `first_ms` is the first pause if not `retry.backoff.ms`. The
        last error is raised when the time is over. An attempt that is under way then may take `request.timeout.ms` more: a
        broker that answers slowly is heard, and after one that hangs another is asked.
        """
        loop = asyncio.get_running_loop()
        timeout_ms = timeout_ms if timeout_ms is not None else self.config["default.api.timeout.ms"]
        deadline = loop.time() + timeout_ms / 1000
        limit_ms = timeout_ms + self.config["request.timeout.ms"]
        limit_at = deadline + self.config["request.timeout.ms"] / 1000
        failure: KafkaError | None = None
        backoff = self.backoff()
        if first_ms is not None:
            backoff = Backoff(first_ms, self.config["retry.backoff.max.ms"])
        while True:
            try:
                async with asyncio.timeout_at(limit_at) as limit:
                    return await attempt()
            except TimeoutError:
                if not limit.expired():
                    raise
                raise failure or self.no_answer(limit_ms) from None
            except KafkaError as error:
                failure = self.last_failure = error
                pause_s = backoff.next_s()
                lasting = not error.retriable and error.code not in also
                if self._closed or lasting or loop.time() + pause_s > deadline:
                    raise
                self._log.debug("trying again in %.0f ms: %s", pause_s * 1000, error)
            await asyncio.sleep(pause_s)

    def backoff(self) -> Backoff:
        """A new sequence of `retry.backoff.ms` pauses."""
        return Backoff(self.config["retry.backoff.ms"], self.config["retry.backoff.max.ms"])

    # Metadata

    async def metadata(self, topics: list[str] | None, refresh: bool = False) -> Cluster:
        """The cluster with these topics (None: all). What is known and fresh is not asked for again.

        A topic that doesn't exist is missing from `.topics`, its code is in `.errors`.
        """
        wanted = None if topics is None else list(dict.fromkeys(topics))
        if wanted is not None and not refresh and self._fresh(wanted):
            return self._cluster.only(wanted)
        asked_at = asyncio.get_running_loop().time()

        async def attempt() -> None:
            async with self._metadata_lock:
                # Another task may have asked for the same while this one waited for the lock.
                if wanted is None or not wanted or not self._fresh(wanted, since=asked_at):
                    await self._ask_metadata(wanted)

        await self.retry(attempt)
        return self._cluster if wanted is None else self._cluster.only(wanted)

    def _fresh(self, topics: list[str], since: float | None = None) -> bool:
        now = asyncio.get_running_loop().time()
        oldest = since if since is not None else now - self.config["metadata.max.age.ms"] / 1000
        return all(
            name in self._cluster.topics and name not in self._stale and self._topic_times.get(name, 0.0) >= oldest
            for name in topics
        )

    async def _ask_metadata(self, topics: list[str] | None) -> None:
        may_create = self.config["allow.auto.create.topics"] and bool(topics)
        answer = await self._send_any(_metadata_request(topics, may_create))
        raise_for(answer.error_code, "metadata")
        self._learn(answer, topics)
        unknown = [name for name in topics or () if self._cluster.errors.get(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        if unknown and not may_create and len(self._cluster.brokers) > 1:
            # A broker that is cut off, or was paused, doesn't know topics that were made since.
            answer = await self._send_any(_metadata_request(unknown, may_create), another=True)
            raise_for(answer.error_code, "metadata")
            self._learn(answer, unknown)

    def _learn(self, answer: MetadataResponse, topics: list[str] | None) -> None:
        """Take over what a broker said of these topics (None: of all)."""
        self._cluster = self._cluster.merge(answer, topics is None)
        now = asyncio.get_running_loop().time()
        for name in self._cluster.topics if topics is None else topics:
            self._topic_times[name] = now
            self._stale.discard(name)

    def forget(self, topic: str) -> None:
        """Metadata of a topic proved wrong: its next use asks again."""
        self._stale.add(topic)

    def partition_info(self, topic: str, partition: int) -> PartitionInfo | None:
        """What is known now, without asking; None if it is unknown or was forgotten."""
        info = self._cluster.topics.get(topic)
        return None if info is None or topic in self._stale else info.partitions.get(partition)

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The epoch of a partition's known leader, -1 without one."""
        info = self.partition_info(topic, partition)
        return -1 if info is None else info.leader_epoch

    def topic_id(self, topic: str) -> bytes | None:
        """A known topic's id, without asking."""
        info = self._cluster.topics.get(topic)
        return None if info is None else info.topic_id

    async def leader(self, topic: str, partition: int, *, timeout_ms: float | None = None) -> int:
        """The node that leads a partition; waits for one to be elected. Raises KafkaError when the time is
        over.
        """

        async def attempt() -> int:
            cluster = await self.metadata([topic])
            info = cluster.topic(topic).partitions.get(partition)
            if info is None:
                self.forget(topic)
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"`{topic}` partition {partition}")
            if info.leader < 0 or info.leader not in cluster.brokers:
                self.forget(topic)
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"`{topic}` partition {partition}")
            return info.leader

        return await self.retry(attempt, timeout_ms=timeout_ms)

    # Coordinators

    async def coordinator(self, key: str, kind: CoordinatorKind) -> int:
        """The node that coordinates a group or a transactional id; known ones are remembered until they fail."""
        found = self._coordinators.get((kind, key))
        if found is not None:
            return found

        async def attempt() -> int:
            answer = await self.send(ANY_NODE, FindCoordinatorRequest(key=key, key_type=KIND_NUMBERS[kind]))
            raise_for(answer.error_code, f"coordinator of {kind} `{key}`")
            if answer.node_id not in self._cluster.brokers:
                await self._ask_metadata([])
            return int(answer.node_id)

        found = self._coordinators[kind, key] = await self.retry(attempt)
        return found

    def forget_coordinator(self, key: str, kind: CoordinatorKind) -> None:
        """The coordinator proved to be another one: its next use asks again."""
        self._coordinators.pop((kind, key), None)

    async def ask_coordinator(
        self,
        key: str,
        kind: CoordinatorKind,
        request: Message,
        *,
        timeout_ms: float | None = None,
        codes: Callable[[Any], Iterable[int]] = lambda answer: (answer.error_code,),
        accept: frozenset[int] = frozenset(),
        versions: tuple[int, int] | None = None,
    ) -> Any:
        """One attempt at a coordinator. `codes` reads the error codes of its answer; the first that is
        neither 0 nor in `accept` is raised as KafkaError (a coordinator that moved is forgotten first)."""
        try:
            node_id = await self.coordinator(key, kind)
            answer = await self.send(node_id, request, timeout_ms=timeout_ms, versions=versions)
        except KafkaError as error:
            if error.retriable:
                self.forget_coordinator(key, kind)
            raise
        for code in codes(answer):
            if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                self.forget_coordinator(key, kind)
            if code and code not in accept:
                raise KafkaError(code, f"{type(request).__name__.removesuffix('Request')} of {kind} `{key}`")
        return answer


def _metadata_request(topics: list[str] | None, may_create: bool) -> MetadataRequest:
    named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    return MetadataRequest(topics=named, allow_auto_topic_creation=may_create)


def _address(node_id: int, text: str) -> Broker:
    try:
        return Broker(node_id, *parse_server(text))
    except ValueError as error:
        raise ConfigError(f"`{text}` in `bootstrap.servers` {error}") from None
