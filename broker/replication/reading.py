"""What a controller reads of the store: registrations, and the topics with the states of their partitions.

Reads are sent together; the store carries them out in order. Each watch is set by the read that it guards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock import log
from penstock.broker.cluster.leaderandisr import LeaderAndIsr, read_state
from penstock.broker.cluster.planning import PartitionImage, image_of
from penstock.broker.cluster.registration import Incarnation, Registration, read_incarnation, read_registration
from penstock.broker.endpoint import Endpoint
from penstock.broker.replication.brokerid import read_endpoints, read_rack
from penstock.broker.store.base import BadValueError, NoNodeError, Store, Watch, paths
from penstock.broker.store.values import INT_MAX, Fields
from penstock.broker.topic import TRANSACTION_STATE, check_name
from penstock.broker.uuids import uuid_bytes
from penstock.errors import KafkaError
from penstock.pyx.wire.message import NIL_UUID

MIN_ISR, MAY_LOSE = "min.insync.replicas", "unclean.leader.election.enable"

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Brokers:
    """Who is registered, under which incarnation, where they are reached, and in which racks they stand."""

    registrations: dict[int, Registration] = field(default_factory=dict)
    incarnations: dict[int, Incarnation] = field(default_factory=dict)
    endpoints: dict[int, dict[str, Endpoint]] = field(default_factory=dict)
    racks: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic's node, and the configs that elections depend on."""

    name: str
    topic_id: bytes
    replicas: list[tuple[int, ...]]  # by partition
    min_isr: int
    loses: bool

    def may_lose(self, partition: int) -> bool:
        """Whether the configs let a replica lead that may lack what was answered. Never one of transactions: a decision that
        is lost halves one."""
        return self.loses and not self._is_guarded(partition)

    def patience_ms(self, partition: int, configured_ms: int) -> int:
        """How long a partition without a leader waits for all its replicas; -1: for ever."""
        return -1 if self._is_guarded(partition) else configured_ms

    def _is_guarded(self, partition: int) -> bool:
        return self.name == TRANSACTION_STATE and len(self.replicas[partition]) > 1


async def read_brokers(store: Store, changed: Watch) -> Brokers:
    """The registrations, then their incarnations; `changed` is called when a broker comes or goes, or changes its registration.
    A registration that can't be read is said, and counts as none."""
    found = Brokers()
    names = [int(name) for name in await store.children(paths.BROKER_IDS, changed) if name.isascii() and name.isdigit()]
    nodes = await _each(store, [paths.broker(broker) for broker in names], changed)
    for broker, node in zip(names, nodes, strict=True):
        if node is None:
            continue
        try:
            found.registrations[broker] = read_registration(broker, node[0], node[1])
            found.endpoints[broker] = read_endpoints(broker, node[0])
            if (rack := read_rack(broker, node[0])) is not None:
                found.racks[broker] = rack
        except BadValueError as error:
            found.registrations.pop(broker, None)
            _log.error("broker %d doesn't count as registered: %s", broker, error)
    known = list(found.registrations)
    for broker, node in zip(known, await _each(store, [paths.incarnation(broker) for broker in known]), strict=True):
        if node is None:
            continue
        try:
            found.incarnations[broker] = read_incarnation(broker, node[0], node[2])
        except BadValueError as error:
            _log.error("broker %d gets no roles: %s", broker, error)
    return found


async def read_topics(store: Store, changed: Watch, names: Sequence[str], given: Mapping[str, str]) -> dict[str, StoredTopic]:
    """These topics' nodes; `changed` is called when one of them grows or goes. One that can't be read is said and left out.
    given: this broker's configs, which count where the store has none."""
    defaults = await _configs(store, paths.default_broker_config())
    nodes = await _each(store, [paths.topic(name) for name in names], changed)
    configs = await asyncio.gather(*(_configs(store, paths.topic_config(name)) for name in names))
    found = {}
    for name, node, own in zip(names, nodes, configs, strict=True):
        if node is None:
            continue
        try:
            found[name] = _topic(name, node[0], {**given, **defaults, **own})
        except (BadValueError, KafkaError, ValueError) as error:
            _log.error("the topic `%s` has no leader: %s", name, error)
    return found


async def read_one_topic(store: Store, name: str) -> StoredTopic | None:
    """A topic's node, without its configs; None: there is none. Raises BadValueError, StoreError."""
    (node,) = await _each(store, [paths.topic(name)])
    try:
        return None if node is None else _topic(name, node[0], {})
    except (KafkaError, ValueError) as error:
        raise BadValueError(paths.topic(name), str(error)) from None


async def read_states(store: Store, topics: Sequence[StoredTopic], patience_ms: int) -> dict[tuple[str, int], PartitionImage]:
    """What the store has of each partition of these topics. One that can't be read is said and left out: nothing of it is
    decided. patience_ms: `unclean.recovery.timeout.ms`."""
    keys = [(topic, index) for topic in topics for index in range(len(topic.replicas))]
    nodes = await _each(store, [paths.partition_state(topic.name, index) for topic, index in keys])
    found = {}
    for (topic, index), node in zip(keys, nodes, strict=True):
        try:
            found[topic.name, index] = _image(topic, index, node, patience_ms)
        except BadValueError as error:
            _log.error("topic=%s partition=%d stays as it is: %s", topic.name, index, error)
    return found


async def read_one_state(store: Store, partition: tuple[str, int]) -> LeaderAndIsr | None:
    """A partition's state; None: there is no such node."""
    (node,) = await _each(store, [paths.partition_state(*partition)])
    return None if node is None else read_state(paths.partition_state(*partition), node[0], node[2])


def _image(topic: StoredTopic, index: int, node: tuple[bytes, int, int] | None, patience_ms: int) -> PartitionImage:
    path = paths.partition_state(topic.name, index)
    stored = None if node is None else read_state(path, node[0], node[2])
    image = image_of(topic.topic_id, topic.replicas[index], stored, topic.min_isr)
    if strangers := set(image.state.isr) - set(image.replicas):
        raise BadValueError(path, f"`isr` names {sorted(strangers)}, which are no replicas of it")
    if image.is_state_lost:
        _log.warning(
            "topic=%s partition=%d: `%s` has the state of another topic; a leader is elected once all replicas have said where "
            "their logs end", topic.name, index, path,
        )  # fmt: skip
    image.may_lose, image.patience_ms = topic.may_lose(index), topic.patience_ms(index, patience_ms)
    if image.state.min_isr != topic.min_isr:
        image.wanted_min_isr = topic.min_isr
    return image


def _topic(name: str, data: bytes, configs: Mapping[str, str]) -> StoredTopic:
    """Raises BadValueError, KafkaError, ValueError, also for what no broker could be told: one such topic would hold up all."""
    check_name(name)
    node = Fields.read(paths.topic(name), data)
    partitions = node.table("partitions")
    if not partitions or set(partitions) != {str(index) for index in range(len(partitions))}:
        raise node.wrong("`partitions` should have the numbers from 0 on as keys, without a gap")
    replicas = [tuple(node.brokers("partitions", partitions[str(index)])) for index in range(len(partitions))]
    if any(len(set(brokers)) != len(brokers) for brokers in replicas):
        raise node.wrong("`partitions` names a broker twice")
    topic_id = uuid_bytes(node.text("topic_id"))
    if topic_id == NIL_UUID:
        raise node.wrong("`topic_id` is the id of no topic")
    min_isr = max(1, int(configs.get(MIN_ISR, "1")))
    if min_isr > INT_MAX:
        raise ValueError(f"{MIN_ISR}={min_isr} is too large")
    return StoredTopic(name, topic_id, replicas, min_isr, configs.get(MAY_LOSE, "false") == "true")


async def _configs(store: Store, path: str) -> dict[str, str]:
    (node,) = await _each(store, [path])
    try:
        return {} if node is None else Fields.read(path, node[0]).texts("config")
    except BadValueError as error:
        _log.error("configs that can't be read don't count: %s", error)
        return {}


async def _each(store: Store, asked: Sequence[str], changed: Watch | None = None) -> list[tuple[bytes, int, int] | None]:
    """Bytes, zxid of the creation, and version of each node; None where there is none."""

    async def one(path: str) -> tuple[bytes, int, int] | None:
        try:
            data, stat = await store.get(path, changed)
        except NoNodeError:
            return None
        return data, stat.created_zxid, stat.version

    return await asyncio.gather(*(one(path) for path in asked))


def read_deleted(names: Sequence[str], data: bytes) -> list[str]:
    """The topics that are to be deleted: children of `/admin/delete_topics`, as Kafka 3.9 has them, and document B's list in
    the node's own bytes, which a single node writes."""
    try:
        listed = Fields.read(paths.DELETE_TOPICS, data).several("topics") if data else []
    except BadValueError as error:
        _log.error("the list of topics to be deleted doesn't count: %s", error)
        listed = []
    found = set(names)
    for name in listed:
        try:
            check_name(str(name))  # Another one would name other nodes than a topic's.
            found.add(str(name))
        except KafkaError as error:
            _log.error("what is listed to be deleted is no topic: %s", error)
    return sorted(found)


def read_noted(path: str, data: bytes) -> tuple[str, list[int]]:
    """A topic below `/penstock/deleted`, and the brokers that may still hold it. Raises BadValueError."""
    fields = Fields.read(path, data)
    return fields.text("topic"), fields.brokers("brokers")


def read_log_dir_event(path: str, data: bytes) -> int:
    """The broker of which a log folder has failed, by a node below `/log_dir_event_notification`. Raises BadValueError."""
    return Fields.read(path, data).number("broker", 0, INT_MAX)


def read_preferred(data: bytes) -> list[tuple[str, int]]:
    """The partitions that `/admin/preferred_replica_election` names. Raises BadValueError."""
    fields = Fields.read(paths.PREFERRED_ELECTION, data)
    asked = [Fields(fields.path, one) for one in fields.several("partitions")]
    return [(one.text("topic"), one.number("partition", 0, INT_MAX)) for one in asked]


def controller_of(data: bytes) -> int:
    """The broker that `/controller` names. Raises BadValueError."""
    return Fields.read(paths.CONTROLLER, data).number("brokerid", 0, (1 << 31) - 1)
