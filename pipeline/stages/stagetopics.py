"""Topics that stages make. What the topic before took they take, too: records of any time."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin

ANY_TIME = str((1 << 63) - 1)
WIDE = {"message.timestamp.before.max.ms": ANY_TIME, "message.timestamp.after.max.ms": ANY_TIME}


async def find_moved_topic(admin: Admin, group: str, stage: str, topic: str) -> str:
    """Where a dedupe stage puts the records of a topic that belong into other partitions: its own topic, or that of earlier
    versions where the stage, whose group is given, has a position. Raises KafkaError."""
    shared = job.shared_moved_topic(topic)
    positions = await admin.all_committed(group, require_stable=False)
    return shared if any(name == shared for name, _ in positions) else job.moved_topic(topic, stage)


async def make_topic(admin: Admin, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
    """Make a topic with these configs, unless it is there: that is asked first, since the right to make it may be missing.
    Raises KafkaError."""
    if topic in (await admin.metadata([topic], refresh=True)).topics:
        return
    try:
        await admin.create_topics({topic: partitions}, configs={**configs, **WIDE}, exist_ok=True)
    except KafkaError as error:
        if error.code != ErrorCode.INVALID_CONFIG:
            raise
        await admin.create_topics({topic: partitions}, configs=configs, exist_ok=True)  # brokers before Kafka 3.6
