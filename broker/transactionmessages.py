"""What brokers ask each other of transactions, as values."""

from __future__ import annotations

from dataclasses import dataclass

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a producer may begin its transaction in some partitions (KIP-890). adds: its coordinator adds them."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[Partition, ...]
    adds: bool
