"""What a soak run has sent, and what must have come of it: ids that are there once, and ids of which nobody can tell.

An id is owed once a source has acknowledged a record of it. It is owed no longer when every source that has acknowledged it
loses it before the target had it, as by a topic that is deleted or by retention: then it may be there or not, but never twice.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable


class Ledger:
    """The ids of each topic. Its methods may be called by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[str, set[str]]] = defaultdict(dict)  # topic -> id -> sources from which it has to come
        self._safe: dict[str, set[str]] = defaultdict(set)  # ids that the target has
        self._open: dict[str, set[str]] = defaultdict(set)  # ids that may be there
        self._acknowledged: dict[str, set[str]] = defaultdict(set)
        self.acknowledged: Counter[tuple[str, str]] = Counter()  # records by topic and source
        self.unknown = 0  # records whose acknowledgement never came

    def acknowledge(self, topic: str, source: str, ids: Iterable[str]) -> None:
        """A source has these records for good."""
        with self._lock:
            for word in ids:
                self.acknowledged[topic, source] += 1
                self._acknowledged[topic].add(word)
                if word not in self._safe[topic]:
                    self._waiting[topic].setdefault(word, set()).add(source)

    def give_up(self, topic: str, ids: Iterable[str]) -> None:
        """Records that were sent and never acknowledged."""
        with self._lock:
            for word in ids:
                self.unknown += 1
                self._open[topic].add(word)

    def copied(self, topic: str, source: str) -> None:
        """The target has all that a source has of a topic."""
        with self._lock:
            for word, sources in list(self._waiting[topic].items()):
                if source in sources:
                    del self._waiting[topic][word]
                    self._safe[topic].add(word)

    def lost(self, topic: str, source: str) -> int:
        """A source has lost what it had of a topic; how many ids nobody owes any more."""
        count = 0
        with self._lock:
            for word, sources in list(self._waiting[topic].items()):
                sources.discard(source)
                if not sources:
                    del self._waiting[topic][word]
                    self._open[topic].add(word)
                    count += 1
        return count

    def safe(self, topic: str) -> set[str]:
        """The ids that the target has."""
        with self._lock:
            return set(self._safe[topic])

    def trimmed(self, topic: str, read: set[str]) -> int:
        """The target has lost what it had of a topic but those that were read before; how many ids nobody owes any more."""
        with self._lock:
            lost = self._safe[topic] - read
            self._safe[topic] -= lost
            self._open[topic] |= lost
        return len(lost)

    def some(self, topic: str, number: int) -> list[str]:
        """Ids that were sent before."""
        with self._lock:
            known = [*list(self._waiting[topic])[-number:], *list(self._safe[topic])[:number]]
        return known

    def lost_for_good(self, topic: str, found: Iterable[str]) -> set[str]:
        """The ids that a source had acknowledged and that the topic's output doesn't have, on purpose or not."""
        with self._lock:
            return self._acknowledged[topic].difference(found)

    def judge(self, topic: str, found: Iterable[str]) -> list[str]:
        """What is wrong with the ids that a topic's output has."""
        counts = Counter(found)
        with self._lock:
            owed = self._safe[topic] | set(self._waiting[topic])
            known = owed | self._open[topic]
        wrong = []
        for what, words in (
            ("missing", owed - counts.keys()),
            ("more than once", {word for word, count in counts.items() if count > 1}),
            ("never sent", counts.keys() - known),
        ):
            if words:
                wrong.append(f"{topic}: {len(words)} ids {what}, such as {sorted(words)[:3]}")
        return wrong


class TableLedger:
    """The rows that a table must have: those that nights brought but for those that its owner has deleted."""

    def __init__(self) -> None:
        self.nights: dict[str, set[str]] = {}
        """The ids that came with each night."""
        self.deleted: set[str] = set()
        self.named: Counter[str] = Counter()
        """How many rows of each night the statements deleted that are in force: a reload of a night ends what is about it."""

    @property
    def rows(self) -> set[str]:
        """The ids that are there."""
        return set[str]().union(*self.nights.values()) - self.deleted

    def load(self, night: str, output: Iterable[str]) -> None:
        """A night took along what a topic has by now."""
        self.nights[night] = set(output).difference(*self.nights.values())

    def delete(self, ids: set[str]) -> None:
        """The owner has deleted rows."""
        for night, came in self.nights.items():
            self.named[night] += len(ids & came)
        self.named = +self.named
        self.deleted |= ids

    def reload(self, night: str, *, restore: bool) -> None:
        """A night was loaded again, and what was deleted of it came back or stayed away."""
        del self.named[night]
        if restore:
            self.deleted -= self.nights[night]

    def judge(self, name: str, found: Iterable[str]) -> list[str]:
        """What is wrong with the rows that a table has."""
        counts, owed = Counter(found), self.rows
        wrong = []
        for what, words in (
            ("missing", owed - counts.keys()),
            ("more than once", {word for word, count in counts.items() if count > 1}),
            ("too many", counts.keys() - owed),
        ):
            if words:
                wrong.append(f"table {name}: {len(words)} rows {what}, such as {sorted(words)[:3]}")
        return wrong
