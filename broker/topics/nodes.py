"""A topic as the store has it: its nodes below `/brokers/topics` and `/config/topics`, made and read.

Nodes, as Kafka has them in ZooKeeper: topic `{"version":3,"topic_id":"...","partitions":{"0":[1]},...}`, its partition states
`{"version":1,"leader":1,"leader_epoch":0,"isr":[1],"controller_epoch":1,"directories":["..."]}`, configs
`{"version":1,"config":{}}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.broker.configs.confignodes import config_json
from penstock.broker.store.base import BadValueError, Create, Operation, paths
from penstock.broker.store.values import INT_MAX, Fields, to_json
from penstock.broker.topic import PartitionState, Topic, check_name
from penstock.broker.uuids import uuid_bytes, uuid_text
from penstock.errors import KafkaError


def topic_json(topic: Topic) -> bytes:
    """Id and assignment."""
    return to_json(
        version=3,
        topic_id=uuid_text(topic.topic_id),
        partitions={str(state.index): state.replicas for state in topic.partitions},
        adding_replicas={},
        removing_replicas={},
    )


def state_json(controller_epoch: int, state: PartitionState) -> bytes:
    """The state of a partition."""
    return to_json(
        controller_epoch=controller_epoch,
        leader=state.leader,
        version=1,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        directories=[state.directory],
    )


def topic_nodes(controller_epoch: int, topic: Topic) -> list[Operation]:
    """What makes all nodes of a topic."""
    return [
        Create(paths.topic(topic.name), topic_json(topic), parents=True),
        Create(paths.topic_config(topic.name), config_json(topic.configs), parents=True),
        *state_nodes(controller_epoch, topic, topic.partitions),
    ]


def state_nodes(controller_epoch: int, topic: Topic, states: Sequence[PartitionState]) -> list[Create]:
    """What makes the nodes of some of its partitions."""
    return [
        Create(paths.partition_state(topic.name, state.index), state_json(controller_epoch, state), parents=True)
        for state in states
    ]


def read_topic(name: str, nodes: Mapping[str, bytes], configs: Mapping[str, bytes]) -> Topic:
    """A topic from the nodes below `/brokers/topics` and `/config/topics`, by path relative to these; its configs' values
    aren't checked yet.

    Raises BadValueError.
    """
    node = Fields.read(paths.topic(name), nodes[name])
    partitions = node.table("partitions")
    if not partitions or set(partitions) != {str(index) for index in range(len(partitions))}:
        raise node.wrong("`partitions` should have the numbers from 0 on as keys, without a gap")
    states = []
    for index in range(len(partitions)):
        replicas = node.brokers("partitions", partitions[str(index)])
        state = Fields.read(paths.partition_state(name, index), nodes.get(f"{name}/partitions/{index}/state"))
        leader, epoch = state.number("leader", -1, INT_MAX), state.number("leader_epoch", 0, INT_MAX - 1)
        directory = state.text_of_one("directories")
        states.append(PartitionState(index, leader, epoch, replicas, state.brokers("isr"), directory=directory))
    texts = Fields.read(paths.topic_config(name), configs.get(name)).texts("config")
    try:
        check_name(name)
        topic_id = uuid_bytes(node.text("topic_id"))
        if not any(topic_id) or uuid_text(topic_id) != node.text("topic_id"):
            raise node.wrong("`topic_id` should be an id as Kafka writes it")
    except (ValueError, KafkaError) as error:
        raise node.wrong(str(error)) from None
    return Topic(name, topic_id, states, texts)


def check_topic_ids(topics: Iterable[Topic]) -> None:
    """Raises BadValueError if two topics have the same id."""
    by_id: dict[bytes, str] = {}
    for topic in topics:
        other = by_id.setdefault(topic.topic_id, topic.name)
        if other != topic.name:
            raise BadValueError(paths.topic(topic.name), f"its topic id is that of `{other}`, too")
