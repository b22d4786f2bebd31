"""What topics take and give: by topic for the busiest ones, the others summed up, and of all."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from penstock.broker.context import Context
from penstock.broker.metrics.bounds import ROWS_MAX, Bounds
from penstock.broker.metrics.families import (
    BYTES_IN,
    BYTES_OUT,
    FAILED_FETCHES,
    FAILED_PRODUCES,
    FETCHES,
    MESSAGES_IN,
    PRODUCES,
    TOPIC_PARTITIONS,
)
from penstock.broker.turns import Turns
from penstock.metrics import REST, Page, labels_text
from penstock.pyx.log.logmanager import TopicFigures

COUNTED = (MESSAGES_IN, BYTES_IN, BYTES_OUT, PRODUCES, FETCHES, FAILED_PRODUCES, FAILED_FETCHES)
"""The families in the order of the fields of `TopicFigures`."""
MOST_BYTES = 500_000

NONE = TopicFigures(*[0] * len(COUNTED))


class TopicGatherer:
    """Topics on a page.

    Topics that the last page had stay on the next one as long as they exist: the sum of all others, of which each is a counter,
    must not go back when one of them leaves it. A topic that is new on the page leaves what it had so far in that sum.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._shown: dict[str, TopicFigures] = {}  # as the last page had them
        self._rest = [0] * len(COUNTED)
        self._others = NONE  # what the topics that the last page lacked had, when it was made

    async def write(self, page: Page, bounds: Bounds, turns: Turns) -> None:
        """All families of topics."""
        context = self._context
        figures = context.log_manager.topic_figures()
        await turns.take()
        total = context.log_manager.total_figures()
        names = self._chosen(figures)
        await turns.take()
        labels = [labels_text(MESSAGES_IN, (name,)) for name in names[:ROWS_MAX]]
        fitting = bounds.fitting((*COUNTED, TOPIC_PARTITIONS), labels, MOST_BYTES, len(names))
        names, labels = names[:fitting], labels[:fitting]
        self._count_rest(figures, total, names)
        rest = labels_text(MESSAGES_IN, (REST,))
        is_all = len(names) == len(figures) and not any(self._rest)
        for at, family in enumerate(COUNTED):
            await turns.take()
            field = operator.itemgetter(at)
            page.family(family)
            page.samples([("", total[at])])
            page.samples(zip(labels, map(field, map(figures.__getitem__, names)), strict=True))
            if not is_all:
                page.samples([(rest, self._rest[at])])
        await turns.take()
        page.family(TOPIC_PARTITIONS)
        topics = context.topics
        page.samples(
            [
                (text, len(topic.partitions))
                for name, text in zip(names, labels, strict=True)
                if (topic := topics.get(name)) is not None
            ]
        )

    def _chosen(self, figures: Mapping[str, TopicFigures]) -> list[str]:
        """The names of topics, those first that the last page had, then the busiest; more than fit."""
        stay = [name for name in self._shown if name in figures]
        fresh = [name for name in figures if name not in self._shown]
        if len(stay) + len(fresh) > ROWS_MAX:
            busyness = {name: figures[name].bytes_in + figures[name].bytes_out for name in fresh}
            fresh.sort(key=busyness.__getitem__, reverse=True)
        return stay + fresh

    def _count_rest(self, figures: Mapping[str, TopicFigures], total: TopicFigures, names: Sequence[str]) -> None:
        """Add to the rest what all but those that the last page had have grown by since; of a topic that is gone, its last
        figures count on, also if one of its name was made since."""
        before = [max(last, figures.get(name, last)) for name, last in self._shown.items()]
        grown = _without(total, before)
        for at in range(len(COUNTED)):
            self._rest[at] += max(0, grown[at] - self._others[at])
        self._shown = {name: figures[name] for name in names}
        self._others = _without(total, list(self._shown.values()))


def _without(total: TopicFigures, some: Sequence[TopicFigures]) -> TopicFigures:
    """What is left of all when some topics are taken away."""
    sums = [sum(column) for column in zip(*some, strict=True)] if some else [0] * len(COUNTED)
    return TopicFigures(*(whole - part for whole, part in zip(total, sums, strict=True)))
