"""Which brokers hold the replicas of new partitions: document B's rule, spread by the topic's id.

Partition p's first replica goes to broker (start + p) mod n of the sorted ids, its replica r to the broker r places further on;
after each n partitions the others move on by one more place. So leaders and followers are spread evenly. `start` and the first
shift come from the topic's id: the first partitions of small topics don't all go to the same broker.

Racks (KIP-36): the brokers are taken from the racks in turn, and a partition's replica goes to a rack that has none of it yet,
as long as there is one. Brokers that name no rack count as one rack together, unless none names one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain, zip_longest


def place(
    brokers: Collection[int],
    partitions: int,
    factor: int,
    topic_id: bytes,
    first: int = 0,
    racks: Mapping[int, str] | None = None,
) -> list[list[int]]:
    """The replicas of `partitions` partitions from number `first` on, the preferred leader first. `factor` <= len(brokers).
    racks: those of the brokers that name one.
    """
    rack_of: dict[int, object] = {broker: racks.get(broker) if racks else broker for broker in brokers}
    ids, n = _in_turn(rack_of), len(brokers)
    start, shift = int.from_bytes(topic_id[:8], "big") % n, int.from_bytes(topic_id[8:], "big")
    placed = []
    for partition in range(first, first + partitions):
        at, turn = (start + partition) % n, (shift + partition // n) % max(1, n - 1)
        others = [ids[(at + 1 + (turn + more) % (n - 1)) % n] for more in range(n - 1)]
        placed.append(_spread([ids[at], *others], factor, rack_of))
    return placed


def _in_turn(rack_of: Mapping[int, object]) -> list[int]:
    """All brokers, from one rack after the other."""
    racks: dict[object, list[int]] = {}
    for broker in sorted(rack_of):
        racks.setdefault(rack_of[broker], []).append(broker)
    return [broker for broker in chain.from_iterable(zip_longest(*racks.values())) if broker is not None]


def _spread(candidates: list[int], factor: int, rack_of: Mapping[int, object]) -> list[int]:
    """The first candidate, then those whose racks have the fewest replicas yet, in their order."""
    chosen: list[int] = []
    used: set[object] = set()
    while len(chosen) < factor:
        found = next((one for one in candidates if one not in chosen and rack_of[one] not in used), None)
        if found is None:
            used.clear()
        else:
            chosen.append(found)
            used.add(rack_of[found])
    return chosen
