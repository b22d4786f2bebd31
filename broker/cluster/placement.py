"""Which brokers hold the replicas of new partitions: document B's rule, spread by the topic's id.

Partition p's first replica goes to broker (start + p) mod n of the sorted ids, its replica r to the broker r places further on;
after each n partitions the others move on by one more place. So leaders and followers are spread evenly. `start` and the first
shift come from the topic's id: the first partitions of small topics don't all go to the same broker.
"""

from __future__ import annotations

from collections.abc import Collection


def place(brokers: Collection[int], partitions: int, factor: int, topic_id: bytes, first: int = 0) -> list[list[int]]:
    """The replicas of `partitions` partitions from number `first` on, the preferred leader first. `factor` <= len(brokers)."""
    ids, n = sorted(brokers), len(brokers)
    start, shift = int.from_bytes(topic_id[:8], "big") % n, int.from_bytes(topic_id[8:], "big")
    placed = []
    for partition in range(first, first + partitions):
        at, turn = (start + partition) % n, (shift + partition // n) % max(1, n - 1)
        others = [ids[(at + 1 + (turn + more) % (n - 1)) % n] for more in range(factor - 1)]
        placed.append([ids[at], *others])
    return placed
