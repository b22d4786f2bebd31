"""Rotten batches kept aside: right by header and CRC, but they can't be opened."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.pyx.record.rawbatch import RawBatch


def keep_aside(folder: Path, topic: str, partition: int, batch: RawBatch) -> Path:
    """Write a batch's bytes to `folder/TOPIC-PARTITION-OFFSET.batch`, durably; the same batch is the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{topic}-{partition}-{batch.base_offset:020}.batch"
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(memoryview(batch))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path
