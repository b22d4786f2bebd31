"""The dedupe stage as a process: a worker for each input partition of its topics, each on a lane of its own.

Nothing waits for all: a topic that isn't there holds up its own partitions alone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock import log
from penstock.config import Config, ConfigError
from penstock.dedupe.ids import IdSource
from penstock.dedupe.position import decisions_of
from penstock.dedupe.topics import missing_topic
from penstock.dedupe.worker import Settings, Worker
from penstock.errors import KafkaError
from penstock.pipeline import job
from penstock.pipeline.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.failures import TRANSIENT, patiently
from penstock.pipeline.fetcher import Fetcher
from penstock.pipeline.lanes import Lanes, lanes_of, until_tried
from penstock.pipeline.quarantine import Quarantine
from penstock.pipeline.service import Replaced

# A step that fails is begun again by its lane, which then asks the cluster where it stands; so no single call has to be
# patient, and the steps of a transaction are over before the broker's limit for it (a minute) is.
PATIENCE = {"default.api.timeout.ms": 5_000, "delivery.timeout.ms": 30_000}
FETCH_BYTES = 16 << 20
FETCH_WAIT_MS = 200  # how long a fetch of idle partitions may keep one that was emptied just now waiting


class Dedupe:
    """All workers of this process: `start()` tries every partition once, `run()` reads until cancelled."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.topics = job.deduped(config)  # refused before anything waits
        self.name: str = config["penstock.dedupe.name"]
        client = {"client.id": f"penstock-dedupe-{self.name}", **PATIENCE}
        self.admin = Admin(config["bootstrap.servers"], **client)
        self.workers: dict[tuple[str, int], Worker] = {}
        self.lanes = self._lanes()
        self._refused: dict[str, str] = {}
        self._begun = {topic: asyncio.Event() for topic in self.topics}
        self._work: asyncio.Future[None] | None = None
        self._source = IdSource(config["penstock.dedupe.id"])
        self._log = log.get(__name__, stage=self.name)

    def _lanes(self) -> Lanes:
        turn_bytes = self.config["penstock.dedupe.batch.bytes"]
        fetcher = Fetcher(
            self.admin,
            isolation="read_committed",
            check_crcs=self.config["penstock.check.crcs"],
            partition_max_bytes=turn_bytes,
            max_bytes=max(FETCH_BYTES, turn_bytes),
            max_wait_ms=FETCH_WAIT_MS,
        )
        return lanes_of(self.config, fetcher, log.get(__name__, stage=self.name), turn_bytes)

    async def start(self) -> None:
        """Reach the cluster and set out; back when every partition has been tried once.

        Raises FolderError, Replaced.
        """
        await patiently(self.admin.start, "reach the cluster", self._log)
        self._work = asyncio.ensure_future(self._set_out())
        await until_tried(self._work, self._all_tried())

    async def _all_tried(self) -> None:
        for begun in self._begun.values():
            await begun.wait()
        for lane in list(self.lanes.lanes.values()):
            await lane.tried.wait()

    async def _set_out(self) -> None:
        async with asyncio.TaskGroup() as group:
            topics = [group.create_task(self._begin(topic, output)) for topic, output in self.topics.items()]
            running = group.create_task(self.lanes.run())
            hearing = group.create_task(self._hear())
            for begun in self._begun.values():
                await begun.wait()
            if len(self._refused) == len(self.topics):  # `stopped` says why
                for task in (running, hearing, *topics):
                    task.cancel()
                return
            await running
            raise Replaced(
                f"another dedupe worker of stage `{self.name}` took over every partition of this one; only one may run for a "
                "partition, and that one goes on: leave it, or stop it before this one is started again"
            )

    async def _hear(self) -> None:
        """Operators' commands move positions. A lane that runs is fenced by them; a stopped one asks nobody by itself."""
        group = job.dedupe_group(self.config)
        while True:
            await asyncio.sleep(self.config["penstock.watch.ms"] / 1000)
            stopped = [tp for tp, lane in self.lanes.lanes.items() if lane.stopped and not lane.is_lost]
            if not stopped:
                continue
            try:
                found = await self.admin.committed(group, stopped, require_stable=False)
            except TRANSIENT:
                continue  # its lanes say so
            self.lanes.hear({tp: decisions_of(at[1]) for tp, at in found.items() if at is not None})

    async def _begin(self, topic: str, output: str) -> None:
        """Find a topic, make its output if it is not there, and give each partition a lane; one that is refused is tried
        again and again. Raises FolderError."""
        begun = self._begun[topic]

        async def find() -> tuple[list[int], int, Quarantine]:
            try:
                partitions = await self._partitions(topic)
                limit = await self._output(output, len(partitions))
                quarantine = Quarantine(self.admin, limit)
                if self.config["penstock.dedupe.without.id"] == "quarantine":
                    await quarantine.place(0)
            except TRANSIENT:
                begun.set()  # tried once: the others aren't held up
                raise
            return partitions, limit, quarantine

        while True:
            try:
                partitions, limit, quarantine = await patiently(find, f"find topic `{topic}` and its output", self._log)
                self._add_workers(topic, output, self._chosen(topic, partitions), limit, quarantine)
                self._refused.pop(topic, None)
                begun.set()
                return
            except (KafkaError, ConfigError) as error:
                if self._refused.get(topic) != str(error):
                    self._log.error("%s is STOPPED, the others go on: %s", topic, error)
                self._refused[topic] = str(error)
            begun.set()
            await asyncio.sleep(self.config["penstock.watch.ms"] / 1000)  # what it is refused for may be mended

    async def _output(self, topic: str, partitions: int) -> int:
        """Make the output topic if it is not there; the bytes that it allows a batch.

        Its retention goes by bytes: by time it would go by the events' own timestamps, and late ones would be gone at once.
        """
        bound = str(self.config["penstock.dedupe.output.retention.bytes"])
        made = {"retention.ms": "-1", "retention.bytes": bound}
        await self.admin.create_topics({topic: partitions}, configs=made, exist_ok=True)
        configs = await self.admin.describe_configs(TOPIC_RESOURCE, topic)
        limit_ms = configs.get("retention.ms") or "-1"
        if limit_ms != "-1" and "delete" in (configs.get("cleanup.policy") or "delete"):
            self._log.warning(
                "`%s` was made with a time limit: records go %s ms after their own timestamps, loaded or not, and the store "
                "can't be rebuilt from what is gone; `penstock configs set topic %s retention.ms=-1 retention.bytes=...` "
                "bounds it by bytes alone",
                *(topic, limit_ms, topic),
            )
        return int(configs["max.message.bytes"] or 0)

    def _add_workers(
        self, topic: str, output: str, partitions: list[int], max_batch_bytes: int, quarantine: Quarantine
    ) -> None:
        """Folders are locked before anything is fenced: a second start by mistake must not end the first."""
        settings = Settings(
            stage=self.name,
            group=job.dedupe_group(self.config),
            output_topic=output,
            data=Path(self.config["penstock.dedupe.data"]),
            size_max_bytes=self.config["penstock.dedupe.size.max.bytes"],
            memory_max_ids=self.config["penstock.dedupe.memory.max.ids"],
            turn_bytes=self.config["penstock.dedupe.batch.bytes"],
            max_batch_bytes=max_batch_bytes,
            spill_ms=self.config["penstock.dedupe.spill.ms"],
            without_id=self.config["penstock.dedupe.without.id"],
            quarantine=quarantine,
            misplaced=self.config["penstock.dedupe.misplaced"],
            retention_bytes=self.config["penstock.dedupe.output.retention.bytes"],
        )
        added = [Worker((topic, number), settings, self.admin, self._source) for number in partitions]
        for worker in added:
            self.workers[worker.tp] = worker
            worker.folder.lock()
        for worker in added:
            self.lanes.begin(self.lanes.add(worker.tp, worker))

    async def _partitions(self, topic: str) -> list[int]:
        cluster = await self.admin.metadata([topic], refresh=True)
        if topic not in cluster.topics:
            raise missing_topic(topic)
        return sorted(cluster.topics[topic].partitions)

    def _chosen(self, topic: str, partitions: list[int]) -> list[int]:
        """This process's partitions of a topic. Raises ConfigError for one that the topic doesn't have."""
        wanted = self.config["penstock.dedupe.partitions"]
        unknown = [text for text in wanted if not text.isdigit() or int(text) not in partitions]
        if unknown:
            raise ConfigError(f"`penstock.dedupe.partitions`: `{topic}` has no partition {unknown[0]}")
        return [int(text) for text in wanted] or partitions

    async def run(self) -> None:
        """Dedupe until cancelled. Raises FolderError, Replaced."""
        assert self._work is not None, "start first"
        await self._work

    async def close(self) -> None:
        """End what is under way, close the stores and all connections."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        for worker in self.workers.values():
            await worker.close()
        await self.admin.close()

    def stopped(self) -> dict[str, str]:
        """The topics and partitions that stopped, each with its reason."""
        return {**self._refused, **self.lanes.stopped()}
