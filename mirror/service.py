"""The mirror as a process: every partition of every source on a lane of its own.

A source or target that can't be reached is waited for. A newer mirror with the same name ends this one.
"""

from __future__ import annotations

import asyncio

from penstock import log
from penstock.config import Config
from penstock.mirror.worker import Identity, Worker
from penstock.pipeline import job
from penstock.pipeline.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.fetcher import Fetcher
from penstock.pipeline.lanes import TRANSIENT, Lanes, patiently
from penstock.pipeline.metadata import TopicInfo

# A step that fails is begun anew by its lane, which then asks the target where it stands; so no single call has to
# be patient, and the steps of a transaction are over before the target's limit for it (a minute) is.
PATIENCE = {"default.api.timeout.ms": 5_000, "delivery.timeout.ms": 30_000}
FETCH_WAIT_MS = 200  # how long a fetch of idle partitions may keep one that was emptied just now waiting


class Source:
    """One source cluster and its lanes."""

    def __init__(self, name: str, admin: Admin) -> None:
        self.name = name
        self.admin = admin
        self.workers: dict[tuple[str, int], Worker] = {}
        self.lanes: Lanes | None = None
        self.log = log.get("mirror", source=name)


class Mirror:
    """All sources of one mirror: `start()` takes every identity, `run()` copies until cancelled."""

    def __init__(self, config: Config, new_sources: frozenset[str]) -> None:
        self.config = config
        self.name: str = config["penstock.mirror.name"]
        self.new_sources = new_sources
        client = {"client.id": f"penstock-mirror-{self.name}", **PATIENCE}
        self.target = Admin(config["bootstrap.servers"], **client)
        self.sources = [Source(name, Admin(servers, **client)) for name, servers in job.sources(config).items()]
        self._log = log.get("mirror", mirror=self.name)

    async def start(self) -> None:
        """Reach the target and take every identity, before the first batch is copied by any of them.

        The order matters: a source that the target doesn't know is registered only while the target is empty.
        Raises Fenced.
        """
        await patiently(self.target.start, "reach the target", self._log)
        for topic in self.config["topics"]:
            await self._add_workers(topic)
        for source in self.sources:
            turn_bytes = self.config["penstock.mirror.batch.bytes"]
            fetcher = Fetcher(
                source.admin,
                isolation="read_committed",
                check_crcs=self.config["penstock.check.crcs"],
                partition_max_bytes=turn_bytes,
                max_wait_ms=FETCH_WAIT_MS,
            )
            refresh_ms = self.config["penstock.mirror.position.refresh.ms"]
            watch_ms = self.config["penstock.watch.ms"]
            source.lanes = Lanes(fetcher, source.workers, source.log, refresh_ms, watch_ms, turn_bytes)
            await source.lanes.take()

    async def _add_workers(self, topic: str) -> None:
        async def find() -> tuple[TopicInfo, int]:
            found = (await self.target.metadata([topic], refresh=True)).topics.get(topic)
            if found is None:
                found = await self._create_topic(topic)
            configs = await self.target.describe_configs(TOPIC_RESOURCE, topic)
            return found, int(configs["max.message.bytes"] or 0)

        found, limit = await patiently(find, f"find topic {topic} on the target", self._log)
        for source in self.sources:
            group = job.mirror_group(self.config, source.name)
            for partition in found.partitions:
                identity = Identity(self.name, source.name, (topic, partition), group)
                source.workers[topic, partition] = Worker(
                    identity,
                    source.admin,
                    self.target,
                    found,
                    limit,
                    source.name in self.new_sources,
                )

    async def _create_topic(self, topic: str) -> TopicInfo:
        """Create the topic on the target with as many partitions as the first source that has it."""

        async def ask() -> int:
            for source in self.sources:
                try:
                    found = (await source.admin.metadata([topic], refresh=True)).topics.get(topic)
                except TRANSIENT:
                    continue
                if found is not None:
                    return len(found.partitions)
            raise TimeoutError(f"no source that can be reached has topic {topic}")

        partitions = await patiently(ask, f"learn of topic {topic}", self._log)
        await self.target.create_topics({topic: partitions}, exist_ok=True)
        self._log.info(f"created topic {topic} with {partitions} partitions on the target")
        return (await self.target.metadata([topic], refresh=True)).topics[topic]

    async def run(self) -> None:
        """Copy until cancelled. Raises Fenced."""
        async with asyncio.TaskGroup() as group:
            for source in self.sources:
                assert source.lanes is not None, "start first"
                group.create_task(source.lanes.run())

    async def close(self) -> None:
        """Close all connections."""
        for source in self.sources:
            await source.admin.close()
        await self.target.close()

    def stopped(self) -> dict[str, str]:
        """The partitions that stopped, as `source/topic-partition`, each with its reason."""
        return {
            f"{source.name}/{name}": why
            for source in self.sources
            if source.lanes is not None
            for name, why in source.lanes.stopped().items()
        }
