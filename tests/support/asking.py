"""What tests ask a real broker again and again, over plain wire requests."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Protocol

import pytest

from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)
from support.harness import BrokerProcess, WireConnection
from support.patience import until


class Serving(Protocol):
    """A broker, in a process of its own or in the test's."""

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        ...


def create(broker: Serving, *names: str, partitions: int = 1, **configs: object) -> CreateTopicsResponse:
    """Create topics, `segment_ms=5` for segment.ms=5; the answer may hold errors."""
    own = CreateTopicsRequest
    given = [own.CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()]
    wanted = [own.CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=given) for name in names]
    with WireConnection(broker.bootstrap) as wire:
        response: CreateTopicsResponse = wire.ask(CreateTopicsRequest(topics=wanted), 7)
    return response


def shrink_segments(broker: Serving, topic: str, segment_bytes: int) -> None:
    """Have a coordinator make its topic, and give that segments smaller than `offsets.topic.segment.bytes` may be."""
    kind = ("__consumer_offsets", "__transaction_state").index(topic)
    own = IncrementalAlterConfigsRequest
    config = own.AlterableConfig(name="internal.segment.bytes", config_operation=0, value=str(segment_bytes))
    resource = own.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])
    with WireConnection(broker.bootstrap) as wire:
        until(lambda: wire.ask(FindCoordinatorRequest(key="any", key_type=kind), 3).error_code == 0, "the coordinator")
        assert wire.ask(own(resources=[resource]), 1).responses[0].error_code == 0


def metadata(broker: Serving, *names: str, create: bool = False) -> MetadataResponse:
    """Ask for topics, for all of them without names."""
    asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in names] if names else None
    with WireConnection(broker.bootstrap) as wire:
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=create)
        response: MetadataResponse = wire.ask(request, 12)
    return response


def names(broker: Serving) -> set[str | None]:
    """The names of all topics."""
    return {topic.name for topic in metadata(broker).topics}


def listening(*arguments: str) -> list[str]:
    """The arguments of a broker, with any free port unless they name one: the default one may be somebody else's."""
    has_one = any(one == "--listen" or one.startswith("listeners=") for one in arguments)
    return [*arguments] if has_one else ["--listen", "127.0.0.1:0", *arguments]


def refused(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a broker that is expected to refuse its start, on any free port unless it has one; returns when it has ended."""
    command = [sys.executable, "-m", "penstock", "broker", *listening(*arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def complaint(text: str, case: str = "") -> str:
    """The one sentence of a command that was refused, from what it said on standard error; case: named if that fails."""
    sentences = [line for line in text.splitlines() if line.startswith("penstock: ")]
    assert len(sentences) == 1 and "Traceback" not in text, f"{case}\n{text}"
    return sentences[0]


def produce(broker: Serving, topic: str, count: int, timestamp_ms: int = 0) -> int:
    """Produce some records, a batch each; returns the first error code."""
    with WireConnection(broker.bootstrap) as wire:
        for _ in range(count):
            builder = BatchBuilder()
            assert builder.append(None, b"x" * 100, timestamp_ms or int(time.time() * 1000))
            data = ProduceRequest.PartitionProduceData(index=0, records=builder.build())
            topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
            response = wire.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), 9)
            error: int = response.responses[0].partition_responses[0].error_code
            if error:
                return error
    return 0


def list_offset(broker: Serving, topic: str, timestamp: int) -> int:
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])
    with WireConnection(broker.bootstrap) as wire:
        answer = wire.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 7).topics[0].partitions[0]
    assert answer.error_code == 0
    offset: int = answer.offset
    return offset


def end_offset(broker: Serving, topic: str) -> int:
    return list_offset(broker, topic, -1)


def start_offset(broker: Serving, topic: str) -> int:
    return list_offset(broker, topic, -2)


def delete_topics(name: str) -> tuple[Message, int]:
    """A request for `killed_at` and its version."""
    topic = DeleteTopicsRequest.DeleteTopicState(name=name)
    return DeleteTopicsRequest(topics=[topic], timeout_ms=60_000), 6


def delete_records(topic: str, before: int) -> tuple[Message, int]:
    """The same for the records of partition 0 below an offset."""
    own = DeleteRecordsRequest
    partition = own.DeleteRecordsPartition(partition_index=0, offset=before)
    return own(topics=[own.DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=60_000), 2


def killed_at(broker: BrokerProcess, failpoint: str, request: Message, version: int) -> None:
    """Start the broker again, let it die at a failpoint that this request takes it to, and start it once more."""
    broker.stop()
    broker.environment["PENSTOCK_FAILPOINTS"] = f"{failpoint}=kill"
    broker.start()
    killed_by(broker, request, version)


def killed_by(broker: BrokerProcess, request: Message, version: int) -> None:
    """Let a broker that was started with a failpoint die of this request, and start it without."""
    with pytest.raises((EOFError, ConnectionError)), WireConnection(broker.bootstrap) as wire:
        wire.ask(request, version)
    until(lambda: not broker.running, "the kill", broker.log_text)
    broker.close()
    del broker.environment["PENSTOCK_FAILPOINTS"]
    broker.start()
