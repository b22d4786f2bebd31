"""Whether a partition's log begins and ends where its log folder's checkpoints say, and whether its segments follow each
other: what a start looks at, for `penstock log verify` and `repair`. Nothing here writes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from penstock.broker.logs.folder import CLEAN_SHUTDOWN
from penstock.broker.logs.lock import UNKNOWN, last_run
from penstock.broker.logs.logdirs import partition_of, topic_id_in
from penstock.broker.tools.logfiles import SEGMENT, Row, read_file
from penstock.durable import boot_id
from penstock.pyx.log.amendment import read_amendment
from penstock.pyx.log.checkpoint import Checkpoints, Offsets
from penstock.pyx.log.damage import corrupt_ranges


def segments(folder: Path) -> list[Path]:
    """The segments of a partition's folder, oldest first."""
    return sorted(path for path in folder.glob("*.log") if SEGMENT.fullmatch(path.name))


def missing(folder: Path, ends: Mapping[Path, int], checkpoints: Checkpoints) -> list[Row]:
    """A row for a beginning, an end, and each range between segments that a partition's folder lacks. ends: where those of its
    segments end that have batches. Raises OSError."""
    key, data = partition_of(folder.absolute().name), folder.absolute().parent
    if key is None:
        return []
    known = checkpoints.of(key, topic_id_in(folder) or bytes(16), read_amendment(str(folder)))
    there = segments(folder)
    # What wasn't flushed a power cut may have taken.
    clean = (data / CLEAN_SHUTDOWN).exists()
    cut = not clean and last_run(data).boot_id not in (UNKNOWN, boot_id())
    wanted = known.flushed_end if cut else known.log_end
    rows: list[Row] = []
    if not there:
        begun = max(known.begin, known.log_start)
        if begun < wanted:
            text = f"offsets {begun} to {wanted - 1} are missing: the log has no segment"
            rows.append({"file": str(folder / f"{begun:020d}.log"), "position": 0, "damage": text})
        return rows
    first = int(there[0].stem)
    if 0 <= known.begin < first:
        text = f"offsets {known.begin} to {first - 1} are missing at the log's beginning"
        rows.append({"file": str(folder / f"{known.begin:020d}.log"), "position": 0, "damage": text})
    for path, after in pairwise(there):
        end, following = ends.get(path, int(path.stem)), int(after.stem)
        if known.first_dirty >= 0:
            end = missing_from(path, end, following, known, clean=clean)
        if end < following:
            text = f"offsets {end} to {following - 1} are missing behind this segment"
            rows.append({"file": str(path), "position": path.stat().st_size, "damage": text})
    _, end, _, position = corrupt_ranges(str(there[-1]), int(there[-1].stem), known.first_dirty < 0)
    if end < wanted and known.begin < wanted:
        text = f"offsets {end} to {wanted - 1} are missing at the log's end"
        rows.append({"file": str(there[-1]), "position": position, "damage": text})
    return rows


def missing_from(path: Path, end: int, following: int, known: Offsets, *, clean: bool) -> int:
    """The first offset that a log with holes lacks between a segment's last batch and the next segment, as a start finds it
    (`_validate_chain` in recovery.pyx); `following` if nothing is known to be missing. end: where the segment's batches end.
    clean: the last stop was. Raises OSError.

    A segment that a compaction was putting others into tells nothing: the next start ends the swap, and looks then."""
    if any(path.parent.glob(f"{path.stem}.*.swap")):
        return following
    checks = path.with_suffix(".checks")
    row = next(iter(read_file(checks)), {}) if checks.exists() else {}
    noted = row.get("following", -1)
    if noted < 0 or row["base_offset"] != int(path.stem) or known.first_segment < 0 or following <= known.begin:
        return following
    if not clean and noted > known.recovery_point:
        return following
    size = path.stat().st_size
    if size < row["log_bytes"]:
        return end
    return min(noted, following) if size == row["log_bytes"] else following
