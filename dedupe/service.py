"""The dedupe stage as a process: a worker for each input partition, each on a lane of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from penstock import log
from penstock.config import Config, ConfigError
from penstock.dedupe.ids import IdSource
from penstock.dedupe.repair import missing_topic
from penstock.dedupe.worker import Settings, Worker
from penstock.pipeline import job
from penstock.pipeline.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.fetcher import Fetcher
from penstock.pipeline.lanes import Lanes, patiently
from penstock.pipeline.quarantine import TOPIC as QUARANTINE
from penstock.pipeline.quarantine import Quarantine
from penstock.pipeline.service import Replaced

# A step that fails is begun again by its lane, which then asks the cluster where it stands; so no single call has to be
# patient, and the steps of a transaction are over before the broker's limit for it (a minute) is.
PATIENCE = {"default.api.timeout.ms": 5_000, "delivery.timeout.ms": 30_000}
FETCH_BYTES = 16 << 20
FETCH_WAIT_MS = 200  # how long a fetch of idle partitions may keep one that was emptied just now waiting


class Dedupe:
    """All workers of this process: `start()` fences, repairs and takes positions, `run()` reads until cancelled."""

    def __init__(self, config: Config) -> None:
        self.config = config
        job.input_topic(config)  # refused before anything waits
        self.name: str = config["penstock.dedupe.name"]
        client = {"client.id": f"penstock-dedupe-{self.name}", **PATIENCE}
        self.admin = Admin(config["bootstrap.servers"], **client)
        self.workers: dict[tuple[str, int], Worker] = {}
        self.lanes: Lanes | None = None
        self._source = IdSource(config["penstock.dedupe.id"])
        self._log = log.get(__name__, stage=self.name)

    async def start(self) -> None:
        """Reach the cluster, make the output topic if it is not there, and start every worker.

        Raises ConfigError, FolderError.
        """
        await patiently(self.admin.start, "reach the cluster", self._log)
        partitions = await patiently(self._partitions, "find the input topic", self._log)
        output = job.output_topic(self.config)
        limit = await patiently(lambda: self._output(output, len(partitions)), "find the output topic", self._log)
        quarantine = Quarantine(self.admin, limit)
        if self.config["penstock.dedupe.without.id"] == "quarantine":
            await patiently(partial(quarantine.place, 0), f"find `{QUARANTINE}`", self._log)
        self._add_workers(output, partitions, limit, quarantine)
        turn_bytes = self.config["penstock.dedupe.batch.bytes"]
        fetcher = Fetcher(
            self.admin,
            isolation="read_committed",
            check_crcs=self.config["penstock.check.crcs"],
            partition_max_bytes=turn_bytes,
            max_bytes=max(FETCH_BYTES, turn_bytes),
            max_wait_ms=FETCH_WAIT_MS,
        )
        refresh_ms = self.config["penstock.mirror.position.refresh.ms"]
        watch_ms = self.config["penstock.watch.ms"]
        session_ms, stalled_ms = self.config["session.timeout.ms"], self.config["penstock.stalled.after.ms"]
        self.lanes = Lanes(fetcher, self.workers, self._log, refresh_ms, watch_ms, turn_bytes, session_ms, stalled_ms)
        await self.lanes.take()

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
        self, output: str, partitions: list[int], max_batch_bytes: int, quarantine: Quarantine
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
        )
        for tp in self._chosen(partitions):
            self.workers[tp] = Worker(tp, settings, self.admin, self._source)
            self.workers[tp].folder.lock()

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
        """Dedupe until cancelled. Raises Replaced."""
        assert self.lanes is not None, "start first"
        await self.lanes.run()
        raise Replaced(
            f"another dedupe worker of stage `{self.name}` took over every partition of this one; only one may run for a "
            "partition, and that one goes on: leave it, or stop it before this one is started again"
        )

    async def close(self) -> None:
        """Close the stores and all connections."""
        for worker in self.workers.values():
            await worker.close()
        await self.admin.close()

    def stopped(self) -> dict[str, str]:
        """The partitions that stopped, each with its reason."""
        return {} if self.lanes is None else self.lanes.stopped()
