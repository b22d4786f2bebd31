"""A topic on the target, as the lanes that write to it need it: its id, its partitions, what it takes."""

from __future__ import annotations

import asyncio

from penstock.pipeline.clients.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.clients.metadata import TopicInfo


class Into:
    """One topic of the target. `learn` looks at it again: its limits may have been raised, or it is another topic now."""

    def __init__(self, admin: Admin, name: str) -> None:
        self.name = name
        self.topic_id = b""
        self.partitions = 0
        self.max_message_bytes = 0
        self.has_append_time = False  # it gives all records its own append time
        self._admin = admin
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")

    async def learn(self) -> None:
        """Look at the topic and its configs; lanes that ask at the same time share the requests. Raises KafkaError."""
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        async with self._looking:
            if self._looked_at >= asked_at:
                return
            now = clock()
            found = await topic_of(self._admin, self.name, "target")
            configs = await self._admin.describe_configs(TOPIC_RESOURCE, self.name)
            self.topic_id, self.partitions = found.topic_id, len(found.partitions)
            self.max_message_bytes = int(configs["max.message.bytes"] or 0)
            self.has_append_time = configs.get("message.timestamp.type") == "LogAppendTime"
            self._looked_at = now


async def topic_of(cluster: Admin, topic: str, where: str, refresh: bool = True) -> TopicInfo:
    """A topic as a cluster has it now, or (without `refresh`) had it when it was last asked. Raises KafkaError."""
    return (await cluster.metadata([topic], refresh=refresh)).topic(topic, f"`{topic}` at the {where}")
