"""Which brokers of the cluster are gone, and who leads what they led: said in the log, in counts.

The controller's pictures tell both, the brokers first and the new leaders with the pictures that follow. The log says at once
that a broker is gone, and who leads its partitions once each of them has another leader, or `SETTLED_S` later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Set

from penstock import log
from penstock.broker.cluster.leaderandisr import NO_LEADER
from penstock.broker.cluster.messages import Partition

SETTLED_S = 5.0

_log = log.get(__name__)


class Departures:
    """Of one broker, on the loop. leader_of: who leads a partition, by the pictures; None: it isn't there any more."""

    def __init__(self, leader_of: Callable[[Partition], int | None]) -> None:
        self._leader_of = leader_of
        self._gone: set[int] = set()
        self._left: dict[int, Collection[Partition]] = {}  # what a broker led that is gone, until it is said who leads that
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def take(self, gone: Mapping[int, Collection[Partition]], live: Set[int]) -> None:
        """A picture is shown: these brokers are gone, with what they led, and those live."""
        for broker in sorted(self._gone & live):
            _log.info("broker %d is there again", broker)
            self._forget(broker)
        self._gone -= live
        for broker, led in sorted(gone.items()):
            self._gone.add(broker)
            _log.warning("broker %d is gone: it led %d partitions", broker, len(led))
            if led:
                self._left[broker] = led
                self._timers[broker] = asyncio.get_running_loop().call_later(SETTLED_S, self._say, broker)
        for broker in [one for one, led in self._left.items() if not self._count(led, one)[NO_LEADER]]:
            self._say(broker)

    def stop(self) -> None:
        """Say nothing any more."""
        for broker in list(self._left):
            self._forget(broker)

    def _count(self, led: Collection[Partition], gone: int) -> Counter[int]:
        """How many partitions each broker leads; NO_LEADER: nobody does yet."""
        leaders = [leader for one in led if (leader := self._leader_of(one)) is not None]
        return Counter(NO_LEADER if leader == gone else leader for leader in leaders)

    def _say(self, broker: int) -> None:
        counts = self._count(self._left[broker], broker)
        orphans = counts.pop(NO_LEADER, 0)
        taken = ", ".join(f"broker {leader} leads {count}" for leader, count in sorted(counts.items())) or "nobody leads any"
        say = _log.warning if orphans else _log.info
        say("of the partitions that broker %d led %s; %d have no leader", broker, taken, orphans)
        self._forget(broker)

    def _forget(self, broker: int) -> None:
        self._left.pop(broker, None)
        timer = self._timers.pop(broker, None)
        if timer is not None:
            timer.cancel()
