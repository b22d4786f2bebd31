"""What topics take and give: by topic for the busiest ones, the others summed up, and of all."""

from __future__ import annotations

import operator
from collections.abc import Mapping

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
from penstock.metrics import REST, Page, Rest, labels_text
from penstock.pyx.log.logmanager import TopicFigures

COUNTED = (MESSAGES_IN, BYTES_IN, BYTES_OUT, PRODUCES, FETCHES, FAILED_PRODUCES, FAILED_FETCHES)
"""The families in the order of the fields of `TopicFigures`."""
MOST_BYTES = 500_000


class TopicGatherer:
    """Topics on a page."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rest: Rest[str] = Rest(len(COUNTED))

    async def write(
        self, page: Page, bounds: Bounds, figures: Mapping[str, TopicFigures], total: TopicFigures, turns: Turns
    ) -> None:
        """All families of topics: `figures` by name, and those of all that ever were."""
        names = self._rest.ordered(figures, lambda name: figures[name].bytes_in + figures[name].bytes_out, ROWS_MAX)
        await turns.take()
        labels = [labels_text(MESSAGES_IN, (name,)) for name in names[:ROWS_MAX]]
        fitting = bounds.fitting((*COUNTED, TOPIC_PARTITIONS), labels, MOST_BYTES, len(names))
        names, labels = names[:fitting], labels[:fitting]
        others = self._rest.count(figures, names, total)
        rest = labels_text(MESSAGES_IN, (REST,))
        is_all = len(names) == len(figures) and not any(others)
        for at, family in enumerate(COUNTED):
            await turns.take()
            field = operator.itemgetter(at)
            page.family(family)
            page.samples([("", total[at])])
            page.samples(zip(labels, map(field, map(figures.__getitem__, names)), strict=True))
            if not is_all:
                page.samples([(rest, others[at])])
        await turns.take()
        page.family(TOPIC_PARTITIONS)
        topics = self._context.topics
        page.samples(
            [
                (text, len(topic.partitions))
                for name, text in zip(names, labels, strict=True)
                if (topic := topics.get(name)) is not None
            ]
        )
