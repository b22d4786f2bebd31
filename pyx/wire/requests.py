"""Single requests that programs and tests make of a broker: topics made and deleted, a batch written, a partition read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pyx.wire import messages
from penstock.pyx.wire.connection import WireConnection

T = TypeVar("T")

# Versions without tagged fields, so that error codes stand at fixed places; both brokers speak them.
PRODUCE_VERSION = 7  # the first that takes zstd
FETCH_VERSION = 4
METADATA_VERSION = 8
QUORUM_VERSION = 0
CREATE_TOPICS_VERSION = 4
DELETE_TOPICS_VERSION = 3
OFFSET_COMMIT_VERSION = 7


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int,
    configs: dict[str, str] | None = None,
    timeout_s: float = 120.0,
    factor: int = 1,
    replicas: Sequence[int] = (),
) -> None:
    """Create a topic and wait until each partition has its leader. A topic that is there already is left as it is.

    `replicas`: the brokers that hold each partition, the first one as its leader; otherwise the cluster chooses so many as
    `factor` says.
    Raises KafkaError, or TimeoutError when leaders are missing.
    """
    own = messages.CreateTopicsRequest
    topic = own.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
    topic.configs = [own.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
    if replicas:
        topic.num_partitions = topic.replication_factor = -1
        placed, assigned = own.CreatableReplicaAssignment, list(replicas)
        topic.assignments = [placed(partition_index=number, broker_ids=assigned) for number in range(partitions)]
    with WireConnection(bootstrap, timeout_s) as connection:
        answer = connection.ask(own(topics=[topic], timeout_ms=int(timeout_s * 1000)), CREATE_TOPICS_VERSION)
        if answer.topics[0].error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise_for(answer.topics[0].error_code, answer.topics[0].error_message or name)
        deadline = time.monotonic() + timeout_s
        while not is_led(connection, name, partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"`{name}` has no leaders")
            time.sleep(0.02)


def is_led(connection: WireConnection, name: str, partitions: int, without: int = -1) -> bool:
    """Whether Metadata names a leader of each partition, no one `without`, and the leaders also know that they lead: Kafka
    answers the former somewhat earlier. Raises OSError, EOFError."""
    answer = connection.ask(metadata_request(name), METADATA_VERSION)
    topic = answer.topics[0]
    if topic.error_code or len(topic.partitions) != partitions:
        return False
    led: dict[int, list[int]] = {}
    for one in topic.partitions:
        led.setdefault(one.leader_id, []).append(one.partition_index)
    addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
    if without in led or not led.keys() <= addresses.keys():
        return False
    if len(addresses) == 1:  # The one that was asked.
        return _knows(connection, name, list(range(partitions)))
    for leader, numbers in led.items():
        with WireConnection(addresses[leader]) as asked:
            if not _knows(asked, name, numbers):
                return False
    return True


def _knows(connection: WireConnection, name: str, partitions: Sequence[int]) -> bool:
    """Whether a broker knows that it leads these partitions."""
    own = messages.FetchRequest
    wanted = [own.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1) for number in partitions]
    request = own(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=[own.FetchTopic(topic=name, partitions=wanted)])
    answer = connection.ask(request, FETCH_VERSION)
    return all(partition.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER for partition in answer.responses[0].partitions)


def metadata_request(*names: str) -> messages.MetadataRequest:
    """Asks for these topics, or for all when none is given."""
    wanted = [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return messages.MetadataRequest(topics=wanted if names else None, allow_auto_topic_creation=False)


def quorum_request() -> messages.DescribeQuorumRequest:
    """Asks who leads the controllers of a KRaft cluster."""
    own = messages.DescribeQuorumRequest
    return own(topics=[own.TopicData(topic_name="__cluster_metadata", partitions=[own.PartitionData(partition_index=0)])])


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic; one that is gone is no error. Raises KafkaError."""
    with WireConnection(bootstrap) as connection:
        request = messages.DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000)
        answer = connection.ask(request, DELETE_TOPICS_VERSION)
        if answer.responses[0].error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise_for(answer.responses[0].error_code, name)


def produce_request(topic: str, batches: dict[int, bytes], acks: int = 1) -> messages.ProduceRequest:
    """One batch for each partition."""
    own = messages.ProduceRequest
    data = [own.PartitionProduceData(index=index, records=records) for index, records in batches.items()]
    return own(acks=acks, timeout_ms=30_000, topic_data=[own.TopicProduceData(name=topic, partition_data=data)])


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int, wait_ms: int = 500) -> messages.FetchRequest:
    """For one partition; answered as soon as there is a byte."""
    own = messages.FetchRequest
    wanted = own.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = [own.FetchTopic(topic=topic, partitions=[wanted])]
    return own(max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, isolation_level=0, topics=topics)


def produce(connection: WireConnection, topic: str, batches: dict[int, bytes]) -> None:
    """Produce and wait for the acknowledgement of each partition. Raises KafkaError."""
    answer = connection.ask(produce_request(topic, batches), PRODUCE_VERSION)
    for partition in answer.responses[0].partition_responses:
        raise_for(partition.error_code, f"{topic}-{partition.index}")


def patiently(attempt: Callable[[], T], timeout_s: float = 120.0) -> T:
    """Try at once, and every 2 ms again while the broker can't be reached or isn't ready. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return attempt()
        except (OSError, EOFError, KafkaError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broker did not get ready: {error}") from error
            time.sleep(0.002)
