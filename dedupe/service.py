"""The dedupe stage as a process: a worker for each input partition, each on a lane of its own."""

from __future__ import annotations

from pathlib import Path

from penstock import log
from penstock.config import Config, ConfigError
from penstock.dedupe.ids import IdSource
from penstock.dedupe.repair import missing_topic
from penstock.dedupe.worker import Worker
from penstock.pipeline import job
from penstock.pipeline.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.fetcher import Fetcher
from penstock.pipeline.lanes import Lanes, patiently


class Dedupe:
    """All workers of this process: `start()` fences, repairs and takes positions, `run()` reads until cancelled."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.name: str = config["penstock.dedupe.name"]
        self.admin = Admin(config["bootstrap.servers"], **{"client.id": f"penstock-dedupe-{self.name}"})
        self.workers: dict[tuple[str, int], Worker] = {}
        self.lanes: Lanes | None = None
        self._source = IdSource(config["penstock.dedupe.id"])
        self._log = log.get("dedupe", stage=self.name)

    async def start(self) -> None:
        """Reach the cluster, make the output topic if it is not there, and start every worker. Raises Fenced."""
        await patiently(self.admin.start, "reach the cluster", self._log)
        partitions = await patiently(self._partitions, "find the input topic", self._log)
        output = job.output_topic(self.config)
        await self.admin.create_topics({output: len(partitions)}, exist_ok=True)
        limit = int((await self.admin.describe_configs(TOPIC_RESOURCE, output))["max.message.bytes"] or 0)
        for tp in self._chosen(partitions):
            self.workers[tp] = Worker(
                self.name,
                job.dedupe_group(self.config),
                tp,
                (output, tp[1]),
                self.admin,
                self._source,
                Path(self.config["penstock.dedupe.data"]),
                self.config["penstock.dedupe.size.max.bytes"],
                self.config["penstock.dedupe.memory.max.ids"],
                limit,
            )
        fetcher = Fetcher(self.admin, isolation="read_committed", check_crcs=self.config["penstock.check.crcs"])
        self.lanes = Lanes(fetcher, self.workers, self._log, self.config["penstock.mirror.position.refresh.ms"])
        await self.lanes.take()

    async def _partitions(self) -> list[int]:
        topic = job.input_topic(self.config)
        cluster = await self.admin.metadata([topic], refresh=True)
        if topic not in cluster.topics:
            raise missing_topic(topic)
        return sorted(cluster.topics[topic].partitions)

    def _chosen(self, partitions: list[int]) -> list[tuple[str, int]]:
        """This process's partitions. Raises ConfigError for one that the input doesn't have."""
        topic, wanted = job.input_topic(self.config), self.config["penstock.dedupe.partitions"]
        if not wanted:
            return [(topic, number) for number in partitions]
        unknown = [text for text in wanted if not text.isdigit() or int(text) not in partitions]
        if unknown:
            raise ConfigError(f"`penstock.dedupe.partitions`: `{topic}` has no partition {unknown[0]}")
        return [(topic, int(text)) for text in wanted]

    async def run(self) -> None:
        """Dedupe until cancelled. Raises Fenced."""
        assert self.lanes is not None, "start first"
        await self.lanes.run()

    async def close(self) -> None:
        """Close the stores and all connections."""
        for worker in self.workers.values():
            await worker.close()
        await self.admin.close()

    def stopped(self) -> dict[str, str]:
        """The partitions that stopped, each with its reason."""
        return {} if self.lanes is None else self.lanes.stopped()
