"""How an operator names a partition, TOPIC:P, and a place in its log: `earliest`, `latest`, an offset or a time."""

from __future__ import annotations

from typing import NamedTuple

import click

from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.options import AGES, ISO_TIME, moment
from penstock.pipeline.stages.failures import OperatorNeeded

Named = tuple[str, int | None]
"""A topic, or one partition of it."""
PLACES = "earliest|latest|OFFSET|TIME"


def topic_or_partition(word: str) -> Named:
    """What TOPIC or TOPIC:P names. Raises BadParameter."""
    return one_partition(word) if ":" in word else (word, None)


def one_partition(word: str) -> Named:
    """What TOPIC:P names. Raises BadParameter."""
    topic, _, number = word.partition(":")
    if not (topic and number.isdecimal()):
        raise click.BadParameter(f"`{word}` names no partition (TOPIC:P, for example flights:3)")
    return topic, int(number)


class LogPlace(NamedTuple):
    """A place in a log: an offset, or else a moment as ListOffsets wants it."""

    offset: int | None
    moment: int

    async def find(self, admin: Admin, tp: TopicPartition, name: object) -> int:
        """The offset in a partition, which messages call `name`; before and after all times that its log has, that is the start
        and the end. Raises OperatorNeeded for an offset that the log doesn't have, KafkaError."""
        start, end = await admin.start_offset(tp), await admin.end_offset(tp, "read_committed")
        if self.offset is None:
            found = (await admin.list_offsets({tp: self.moment}, "read_committed"))[tp].offset
            return min(max(found, start), end) if found >= 0 else end
        if not start <= self.offset <= end:
            raise OperatorNeeded(f"offset {self.offset} is outside the log of {name} ({start} to {end})")
        return self.offset


def log_place(word: str) -> LogPlace:
    """The place that one of `PLACES` names. Raises BadParameter."""
    try:
        return LogPlace(int(word), 0) if word.isdecimal() else LogPlace(None, moment(word))
    except click.BadParameter:
        raise click.BadParameter(f"`{word}` is none of earliest, latest, an offset, {ISO_TIME}, or {AGES}") from None
