"""The mirror's way to send a batch on: another header before the same, unread payload."""

from penstock.pyx.record.rawbatch import RawBatch

def rewrite_header(
    raw: RawBatch, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool = True
) -> bytes:
    """Give the 61 bytes to put before `raw.payload`: this producer, no leader epoch, the LogAppendTime bit cleared.

    The checksum follows from the old one: right if it was right, wrong if it was wrong. Base offset and timestamps stay.
    Raises BatchError for a control batch or an older magic.
    """
