"""What a worker says of its work while it works."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from penstock.dedupe.ids import IdSource
from penstock.dedupe.position import DedupePosition
from penstock.dedupe.sift import Sifted
from penstock.log import Fields

REPORT_S = 10.0  # how often a busy worker says where it is
MISPLACED_S = 60.0  # how often it says that ids are in the wrong partition


class Progress:
    """The lines of one partition. `moved`: by way of which topic misplaced ids go; None where they pass. `source`: where the id
    is."""

    def __init__(self, logger: Fields, moved: str | None, source: IdSource) -> None:
        self._log = logger
        self._moved = moved
        self._source = source
        self._lacking_said = False
        self._reported = time.monotonic()
        self._misplaced_again = 0.0

    def misplaced(self, sifted: Sifted, at: DedupePosition) -> None:
        """Say that ids belong elsewhere: once where such ids move, once a minute where they pass."""
        if not sifted.misplaced or time.monotonic() < self._misplaced_again:
            return
        passes = self._moved is None
        self._misplaced_again = time.monotonic() + MISPLACED_S if passes else math.inf
        what = "repeats of them in other partitions aren't seen" if passes else f"they go there by way of `{self._moved}`"
        if self._source.is_key:
            what += "; where the producers use it (librdkafka: partitioner=murmur2_random) there are none"
        say = self._log.warning if passes else self._log.info
        say(
            "%d of %d ids just read (the first at offset %d; %d of %d since the stage began) belong into another partition by "
            "Kafka's murmur2: %s",
            *(sifted.misplaced, sifted.read, sifted.misplaced_at, at.misplaced, at.read, what),
        )

    def lacking(self, at: DedupePosition) -> None:
        """Say once that most records have no id, and once that it is over."""
        if at.lacks_ids == self._lacking_said:
            return
        self._lacking_said = at.lacks_ids
        if at.lacks_ids:
            self._log.warning(
                "most records have no id (%s), so that their repeats aren't seen: %d of the last %d; is `penstock.dedupe.id` "
                "right?",
                *(self._source, at.recent_without_id, at.recent_read),
            )
        else:
            self._log.info("most records have an id again")

    def report(self, behind: int, at: DedupePosition, stats: Mapping[str, int] | None) -> None:
        """Say now and then what was done so far. `behind`: offsets that wait in what was read just now."""
        if stats is None or time.monotonic() - self._reported < REPORT_S:
            return
        self._reported = time.monotonic()
        self._log.info(
            "read %d, dropped %d, without id %d, misplaced %d, quarantined %d, behind %d; ids %d, database %d bytes in %d "
            "files, window %d s",
            *(at.read, at.dropped, at.without_id, at.misplaced, at.quarantined, max(0, behind)),
            *(stats["ids_in_memory"] + stats["ids_in_files"], stats["size_bytes"], stats["files"], window_s(stats)),
        )


def window_s(stats: Mapping[str, int]) -> int:
    """The age of the oldest id in a store's files, by its `stats`; 0: there is none."""
    oldest_ms = stats["oldest_ms"]
    return max(0, time.time_ns() // 1_000_000 - oldest_ms) // 1000 if oldest_ms else 0
