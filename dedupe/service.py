"""The dedupe stage as a process: a worker for each input partition of its topics, each on a lane of its own.

Nothing waits for all: a topic that isn't there holds up its own partitions alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from penstock import log
from penstock.config import Config, ConfigError
from penstock.dedupe.figures import DedupeFigures
from penstock.dedupe.ids import IdSource
from penstock.dedupe.settings import Settings
from penstock.dedupe.topics import missing_topic
from penstock.dedupe.worker import DedupeWorker
from penstock.errors import KafkaError
from penstock.hints import quoted
from penstock.metrics import Source
from penstock.pipeline import job
from penstock.pipeline.clients.admin import TOPIC_RESOURCE
from penstock.pipeline.etl.idcolumns import id_fields_missing
from penstock.pipeline.service import Replaced
from penstock.pipeline.stages.failures import TRANSIENT, patiently
from penstock.pipeline.stages.figures import Key, Placed
from penstock.pipeline.stages.noted import Noted
from penstock.pipeline.stages.quarantine import Quarantine
from penstock.pipeline.stages.stage import FETCH_BYTES, Stage
from penstock.pipeline.stages.stagetopics import make_topic


class Dedupe(Stage):
    """All workers of this process. Its target is the cluster that it reads, too."""

    def __init__(self, config: Config) -> None:
        self.topics = job.deduped(config)  # refused before anything waits
        super().__init__("dedupe", config, log.get(__name__, stage=config["penstock.dedupe.name"]))
        self.workers: dict[tuple[str, int], DedupeWorker] = {}
        self.lanes = self._lanes_from(self.target, self._log, max_bytes=max(FETCH_BYTES, config["penstock.dedupe.batch.bytes"]))
        self._begun = {topic: asyncio.Event() for topic in self.topics}
        self._source = IdSource(config["penstock.dedupe.id"])
        for sentence in id_fields_missing(config):
            self._log.warning("%s", sentence)

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
        """Operators' commands move positions. A busy lane is fenced by them; an idle or a stopped one asks nobody by itself."""
        group = job.dedupe_group(self.config)
        while True:
            await asyncio.sleep(self.config["penstock.watch.ms"] / 1000)
            ours = [tp for tp, lane in self.lanes.lanes.items() if lane.resolved.is_set() and not lane.is_lost]
            if not ours:
                continue
            try:
                found = await self.target.committed(group, ours, require_stable=False)
            except TRANSIENT:
                continue  # its lanes say so
            self.lanes.hear({tp: Noted(at[1]).decisions for tp, at in found.items() if at is not None})

    async def _begin(self, topic: str, output: str) -> None:
        """Find a topic, make its output if it is not there, and give each partition a lane; one that is refused is tried
        again and again. Raises FolderError."""
        begun = self._begun[topic]

        async def find() -> tuple[list[int], int, Quarantine]:
            try:
                partitions = await self._partitions(topic)
                limit = await self._output(output, len(partitions))
                quarantine = Quarantine(self.target, limit)
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
                self._refuse(topic, error)
            begun.set()
            await asyncio.sleep(self.config["penstock.watch.ms"] / 1000)  # what it is refused for may be mended

    async def _output(self, topic: str, partitions: int) -> int:
        """Make the output topic if it is not there; the bytes that it allows a batch.

        Its retention goes by bytes: by time it would go by the events' own timestamps, and late ones would be gone at once.
        """
        bound = str(self.config["penstock.dedupe.output.retention.bytes"])
        made = {"retention.ms": "-1", "retention.bytes": bound}
        await make_topic(self.target, topic, partitions, made)
        configs = await self.target.describe_configs(TOPIC_RESOURCE, topic)
        limit_ms = configs.get("retention.ms") or "-1"
        if limit_ms != "-1" and "delete" in (configs.get("cleanup.policy") or "delete"):
            self._log.warning(
                "`%s` was made with a time limit: records go %s ms after their own timestamps, loaded or not, and the store "
                "can't be rebuilt from what is gone; `penstock configs set topic %s retention.ms=-1 retention.bytes=...` "
                "bounds it by bytes alone",
                *(topic, limit_ms, quoted(topic)),
            )
        return int(configs["max.message.bytes"] or 0)

    def _add_workers(
        self, topic: str, output: str, partitions: list[int], max_batch_bytes: int, quarantine: Quarantine
    ) -> None:
        """Folders are locked before anything is fenced: a second start by mistake must not end the first. Where a disk refuses,
        the partition's lane tries again. Raises FolderError."""
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
        added = [DedupeWorker((topic, number), settings, self.target, self._source) for number in partitions]
        for worker in added:
            self.workers[worker.tp] = worker
            with contextlib.suppress(OSError):
                worker.ids.folder.lock("stop it, or give each a `penstock.dedupe.data` of its own")
        for worker in added:
            self.lanes.begin(self.lanes.add(worker.tp, worker))

    async def _partitions(self, topic: str) -> list[int]:
        cluster = await self.target.metadata([topic], refresh=True)
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

    async def _close_own(self) -> None:
        for worker in self.workers.values():
            await worker.close()

    def placed(self) -> Iterator[Placed]:
        """All lanes."""
        return (Placed("", self.lanes, lane) for lane in list(self.lanes.lanes.values()))

    def waiting_topics(self) -> dict[Key, str]:
        """The states of topics that have no lane."""
        have = {topic for topic, _ in self.lanes.lanes}
        return {("", topic, ""): "not begun" for topic in self.topics if topic not in have}

    def figures(self) -> list[Source]:
        """What has figures of the stage."""
        stage, choice = (self.kind, self.name), self.config["penstock.metrics.partitions"]
        max_bytes = self.config["penstock.dedupe.size.max.bytes"]
        return [DedupeFigures(stage, choice, max_bytes, self.workers, self._dropped), *super().figures()]

    def stopped(self) -> dict[str, str]:
        """The topics and partitions that stopped, each with its reason."""
        return {**self._refused, **self.lanes.stopped()}
