"""What one input partition sets aside, as batches for `penstock.quarantine`.

Batches that are right by header and CRC and can't be opened go there as their bytes; records without an id go there as they
are, if they are not to go on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages.quarantine import came, chunks, encoded
from penstock.pipeline.stages.recordcount import records_of
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.columns import Columns
from penstock.pyx.record.rawbatch import RawBatch

ZSTD = 4
BATCH_BYTES = 512 << 10  # a batch of records is built when it has so much


def corrupt_batch(batch: RawBatch, tp: TopicPartition) -> Iterator[RawBatch]:
    """The bytes of a batch that can't be opened."""
    reason = f"a batch of {records_of(batch)} records that can't be opened"
    return chunks(bytes(batch), came(tp, batch.base_offset, reason))


def records_aside(records: Columns, chosen: npt.NDArray[np.int64], tp: TopicPartition, reason: str) -> Iterator[RawBatch]:
    """The chosen records, one of more than `BATCH_BYTES` alone.

    Each is made into objects: right for the rare record that is wrong.
    """
    builder = BatchBuilder(ZSTD, max_bytes=BATCH_BYTES, any_time=True)
    for i in chosen.tolist():
        headers = [*records.headers(i), *encoded(came(tp, int(records.offsets[i]), reason))]
        record = records.key(i), records.value(i), int(records.timestamps[i]), headers
        if not builder.append(*record):
            yield RawBatch(builder.build())
            builder = BatchBuilder(ZSTD, max_bytes=BATCH_BYTES, any_time=True)
            builder.append(*record)
    if builder.count:
        yield RawBatch(builder.build())
