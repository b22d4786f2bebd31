"""A look at a broker while nobody works: everything that `World.judge` needs, over single requests."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.connection import Connection
from penstock.pyx.record.rawbatch import marker_type, records, split
from penstock.pyx.wire import messages as m
from penstock.pyx.wire.header import RESPONSES, decode_response, encode_request
from penstock.pyx.wire.message import Message
from support.admin_world import Seen, SeenPartition, SeenTopic, World
from support.history import decode

ANSWER_MS = 20_000
REST_S = 30.0
"""How long a look waits for moves to end, for transactions to be ended and for partitions to be served."""
FETCH_BYTES = 4 << 20
TOPIC_SOURCE = 1  # of a config in DescribeConfigs
DELETED_ASKED_MAX = 50  # so many deleted topics are asked for by id
_FOLDER = re.compile(r"(.+)-(\d+)\Z")
_PASSING = re.compile(r".*\.[0-9a-f]{32}-(future|stray)\Z")


class Wire:
    """A connection that speaks the versions it is told to."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @classmethod
    async def open(cls, port: int) -> Wire:
        """Connect to a broker here. Raises KafkaError."""
        return cls(await Connection.open("127.0.0.1", port, client_id="admin-run"))

    async def ask(self, request: Message, version: int) -> Any:
        """The answer. Raises ConnectionLost, RequestTimedOut: whether it was carried out nobody knows."""
        frame = await self.connection.request(lambda number: [encode_request(request, version, number, "admin-run")], ANSWER_MS)
        return decode_response(RESPONSES[request.API_KEY], frame, version)[1]

    def close(self) -> None:
        """Close it; what is awaited fails."""
        self.connection.close()


async def look(wire: Wire, world: World, dirs: Sequence[Path], groups: Iterable[str]) -> Seen:
    """See everything once it has come to rest; what doesn't come to rest is seen as it is then."""
    deadline = time.monotonic() + REST_S
    while True:
        seen, at_rest = await _glance(wire, {topic.name for topic in world.topics.values() if topic.spoiled})
        if at_rest or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.05)
    for name, topic in seen.topics.items():
        own = world.topics.get(name)
        if own is None or not own.spoiled:
            for index in range(len(topic.partitions)):
                await _read(wire, name, topic, index)
    seen.groups = await _committed(wire, groups)
    last = list(world.deleted)[-DELETED_ASKED_MAX:]
    asked = [m.MetadataRequest.MetadataRequestTopic(topic_id=one, name=None) for one in last]
    answer = await wire.ask(m.MetadataRequest(topics=asked, allow_auto_topic_creation=False), 12)
    seen.alive = {bytes(one.topic_id) for one in answer.topics if one.error_code != ErrorCode.UNKNOWN_TOPIC_ID}
    seen.leftovers = _leftovers(seen, dirs)
    seen.now_ms = time.time() * 1000
    return seen


async def _glance(wire: Wire, spoiled: set[str]) -> tuple[Seen, bool]:
    """What there is, without records; and whether all of it, but for spoiled topics, is at rest."""
    seen = Seen(time.time() * 1000)
    listed = await wire.ask(m.MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
    at_rest = True
    for topic in listed.topics:
        if topic.is_internal:
            continue
        partitions = [SeenPartition() for _ in topic.partitions]
        for one in topic.partitions:
            if one.leader_id < 0 or one.error_code or one.offline_replicas:
                error = f"leader {one.leader_id}, {error_name(one.error_code)}, offline {list(one.offline_replicas)}"
                partitions[one.partition_index].error = f"Metadata says {error}"
        seen.topics[topic.name] = SeenTopic(bytes(topic.topic_id), partitions, {})
    for name, topic in seen.topics.items():
        topic.configs = await _configs(wire, name)
    moving = await _places(wire, seen)
    for name, topic in seen.topics.items():
        served = await _ends(wire, name, topic.partitions)
        placed = all(len(one.dirs) == 1 for one in topic.partitions)
        at_rest = at_rest and (name in spoiled or (served and placed))
    return seen, at_rest and not moving


async def _configs(wire: Wire, name: str) -> dict[str, str]:
    kind = m.DescribeConfigsRequest
    asked = kind.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
    (result,) = (await wire.ask(kind(resources=[asked]), 4)).results
    return {one.name: one.value for one in result.configs if one.config_source == TOPIC_SOURCE}


async def _places(wire: Wire, seen: Seen) -> bool:
    """Write down in which log folders partitions lie; whether any of them moves."""
    moving = False
    for log_dir in (await wire.ask(m.DescribeLogDirsRequest(topics=None), 4)).results:
        for topic in log_dir.topics:
            for one in topic.partitions:
                moving = moving or one.is_future_key
                known = seen.topics.get(topic.name)
                if known is not None and not one.is_future_key and one.partition_index < len(known.partitions):
                    known.partitions[one.partition_index].dirs.append(log_dir.log_dir)
    return moving


async def _ends(wire: Wire, name: str, partitions: list[SeenPartition]) -> bool:
    """Ask where partitions begin and end; False while one isn't served or has a transaction that isn't ended."""
    kind = m.ListOffsetsRequest
    found: list[list[Any]] = []
    for timestamp, isolation in ((-2, 0), (-1, 0), (-1, 1)):
        asked = [kind.ListOffsetsPartition(partition_index=i, timestamp=timestamp) for i in range(len(partitions))]
        topic = kind.ListOffsetsTopic(name=name, partitions=asked)
        answer = await wire.ask(kind(replica_id=-1, isolation_level=isolation, topics=[topic]), 7)
        found.append(sorted(answer.topics[0].partitions, key=lambda one: one.partition_index))
    at_rest = True
    for partition, start, end, stable in zip(partitions, *found, strict=True):
        code = start.error_code or end.error_code or stable.error_code
        if code:
            partition.error = partition.error or f"ListOffsets says {error_name(code)}"
        partition.log_start, partition.end, partition.stable_end = start.offset, end.offset, stable.offset
        at_rest = at_rest and not partition.error and end.offset == stable.offset
    return at_rest


async def _read(wire: Wire, name: str, topic: SeenTopic, index: int) -> None:
    """Read a partition from its start to its end: all records, and which of them a reader of committed ones is shown."""
    partitions = topic.partitions
    partition = partitions[index]
    if partition.error:
        return
    offset = partition.log_start
    waiting = partition.stable_end < partition.end
    kind = m.FetchRequest
    while offset < partition.end:
        wanted = kind.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = kind(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES,
            isolation_level=0 if waiting else 1,
            topics=[kind.FetchTopic(topic_id=topic.topic_id, partitions=[wanted])],
        )
        answer = (await wire.ask(request, 13)).responses[0].partitions[0]
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await _ends(wire, name, partitions)
            if partition.log_start > offset:  # Retention was quicker.
                offset = partition.log_start
                partition.records, partition.committed = [], set()
                continue
        if answer.error_code:
            partition.error = f"Fetch at {offset} says {error_name(answer.error_code)}"
            return
        after = _take(partition, offset, bytes(answer.records or b""), answer.aborted_transactions or ())
        if after == offset:
            if not waiting and answer.last_stable_offset < partition.end:
                waiting = True
                continue
            partition.error = f"Fetch at {offset} of {partition.end} gives nothing"
            return
        offset = after


def _take(partition: SeenPartition, offset: int, data: bytes, aborted: Sequence[Any]) -> int:
    """Add what a fetch brought; where to go on."""
    begun = sorted((one.first_offset, one.producer_id) for one in aborted)
    aborting: set[int] = set()
    for raw in split(data):
        raw.check()
        while begun and begun[0][0] <= raw.last_offset:
            aborting.add(begun.pop(0)[1])
        if raw.is_control:
            if marker_type(raw) == "abort":
                aborting.discard(raw.producer_id)
        else:
            shown = not (raw.is_transactional and raw.producer_id in aborting)
            for record in records(raw):
                if record.offset >= offset:
                    partition.records.append((record.offset, record.key, decode(record.value)))
                    if shown:
                        partition.committed.add(record.offset)
        offset = max(offset, raw.next_offset)
    return offset


async def _committed(wire: Wire, groups: Iterable[str]) -> dict[tuple[str, str, int], tuple[int, str]]:
    found = {}
    for group in groups:
        answer = await wire.ask(m.OffsetFetchRequest(group_id=group, topics=None), 7)
        if answer.error_code:
            raise KafkaError(answer.error_code, f"OffsetFetch of {group}")
        for topic in answer.topics:
            for one in topic.partitions:
                if one.committed_offset >= 0:
                    found[group, topic.name, one.partition_index] = (one.committed_offset, one.metadata)
    return found


def consumed(bootstrap: str, topic: str, ends: Sequence[int]) -> set[tuple[int, int, str]]:
    """(partition, offset, value) of all that librdkafka hands to a reader of committed records, up to the ends. Slow."""
    settings = {"isolation.level": "read_committed", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "admin-run-reader", **settings})
    found: set[tuple[int, int, str]] = set()
    deadline = time.monotonic() + REST_S
    for partition, end in enumerate(ends):
        where = TopicPartition(topic, partition, OFFSET_BEGINNING)
        consumer.assign([where])
        # The position also passes control and aborted records, which are never shown.
        while end > 0 and consumer.position([where])[0].offset < end and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    found.add((partition, message.offset(), decode(message.value())))
    consumer.close()
    return found


def _leftovers(seen: Seen, dirs: Sequence[Path]) -> list[str]:
    """Folders of partitions that there aren't, and of moves, though none is under way."""
    left = []
    there: dict[str, int] = defaultdict(int, {name: len(topic.partitions) for name, topic in seen.topics.items()})
    for path in (path for log_dir in dirs for path in sorted(log_dir.iterdir()) if path.is_dir()):
        folder = _FOLDER.match(path.name)
        if _PASSING.match(path.name) or (folder and not folder[1].startswith("__") and int(folder[2]) >= there[folder[1]]):
            left.append(f"the folder {path.parent.name}/{path.name} belongs to nothing")
    return left


def error_name(code: int) -> str:
    """As Kafka calls the error."""
    return KafkaError(code).name
