"""The figures of a dedupe stage beside those of its lanes: repeats, and the stores of ids."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.dedupe.progress import window_s
from penstock.dedupe.worker import DedupeWorker
from penstock.metrics import Family, Page
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages.figures import LANES_A_STEP, STAGE, Growth, Numbers, Table, by_partition, pieces

LABELS = (*STAGE, "source", "topic", "partition")
DUPLICATES = Family("penstock_dedupe_duplicates", "counter", "Records dropped as repeats, by this process.", LABELS)
WITHOUT_ID = Family(
    "penstock_dedupe_without_id", "counter", "Records without an id, passed or set aside by this process.", LABELS
)
MOVED = Family("penstock_dedupe_moved", "counter", "Records sent towards the partition of their id, by this process.", LABELS)
IDS = Family("penstock_dedupe_ids", "gauge", "Ids that are known, in files and in memory.", LABELS)
WINDOW = Family(
    "penstock_dedupe_window_seconds", "gauge", "Time since the oldest id that files keep was added; 0: they keep none.", LABELS
)
DATABASE = Family("penstock_dedupe_database_bytes", "gauge", "Bytes of the live files, by RocksDB.", LABELS)
DATABASE_MAX = Family(
    "penstock_dedupe_database_max_bytes",
    "gauge",
    "The bound of these, penstock.dedupe.size.max.bytes: at it the oldest ids go.",
    LABELS,
)
MEMORY = Family("penstock_dedupe_memory_bytes", "gauge", "Memory of the ids that no file has yet.", LABELS)
FAMILIES = (DUPLICATES, WITHOUT_ID, MOVED, IDS, WINDOW, DATABASE, DATABASE_MAX, MEMORY)


class DedupeFigures:
    """A Source. Figures of a store are those after the worker's last transaction: a scrape waits for no thread."""

    def __init__(
        self,
        stage: tuple[str, str],
        choice: str,
        max_bytes: int,
        workers: Mapping[TopicPartition, DedupeWorker],
        dropped: dict[str, int],
    ) -> None:
        """`choice` is `penstock.metrics.partitions`, `max_bytes` the bound of a database; `dropped`: see `Table.write`."""
        self._stage = stage
        self._choice = choice
        self._max_bytes = max_bytes
        self._workers = workers
        self._growth = Growth(FAMILIES)
        self._dropped = {} if choice == "false" else dropped

    async def metrics(self, page: Page) -> None:
        """See Source."""
        table = Table(self._stage, by_partition(self._choice, len(self._workers)), {WINDOW: min}, self._growth)
        workers = {("", topic, str(partition)): worker for (topic, partition), worker in self._workers.items()}
        for some in pieces(workers, LANES_A_STEP):
            for key in some:
                table.add(key, self._numbers(workers[key]))
            await asyncio.sleep(0)
        await table.write(page, FAMILIES, IDS, self._dropped)

    def _numbers(self, worker: DedupeWorker) -> Numbers:
        counts, stats = worker.counts, worker.ids.known_stats
        numbers: dict[Family, float] = {
            DUPLICATES: counts.duplicates,
            WITHOUT_ID: counts.without_id,
            MOVED: counts.moved,
            DATABASE_MAX: self._max_bytes,
        }
        if stats is not None:
            numbers[IDS] = stats["ids_in_memory"] + stats["ids_in_files"]
            numbers[WINDOW] = window_s(stats)
            numbers[DATABASE], numbers[MEMORY] = stats["size_bytes"], stats["memory_bytes"]
        return numbers
