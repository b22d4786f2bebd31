"""A night: what has arrived since the night before it, once its day is over. Its events' own days are `event_day`."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.config import ConfigError

NIGHTS_MAX = 3660
COVERED_MAX = 3  # nights that one takes along without a person's word: those of a long weekend
WhenIncomplete = Literal["wait", "fail", "mark"]
Deleted = Literal["keep", "restore"] | None
"""What a reload does with rows that were deleted on purpose; None: it is refused where there are any."""


@dataclass(frozen=True, order=True)
class Night:
    """One night by its date; it ends at the next midnight of the configured time zone."""

    date: datetime.date

    def __str__(self) -> str:
        return self.date.isoformat()

    @property
    def next(self) -> Night:
        """The night after it."""
        return Night(self.date + datetime.timedelta(days=1))

    def end_ms(self, zone: ZoneInfo) -> int:
        """The first millisecond (since 1970, UTC) that is not of this night."""
        midnight = datetime.datetime.combine(self.date + datetime.timedelta(days=1), datetime.time(), zone)
        return round(midnight.timestamp() * 1000)


@dataclass(frozen=True)
class Consent:
    """What a person says to a night that would be refused otherwise; the commit notes it.

    covering: the night takes up to `COVERED_MAX` missing nights before it along; covering_since: any number, from this one on.
    from_earliest: a new table begins where its topic does by now. accept_table: the table that is there is the right one,
    whatever the aggregate notes of it. deleted: what a reload does with rows that were deleted on purpose.
    """

    covering: bool = False
    covering_since: Night | None = None
    from_earliest: bool = False
    accept_table: bool = False
    deleted: Deleted = None


def between(first: Night, last: Night) -> list[Night]:
    """The nights after one and before another, in order."""
    days = (last.date - first.date).days
    return [Night(first.date + datetime.timedelta(days=day)) for day in range(1, days)]


YESTERDAY = "yesterday"


def parse_night(text: str, zone: ZoneInfo | None = None) -> Night:
    """`YYYY-MM-DD`; given a time zone also `yesterday`, the night that ended there last. Raises ConfigError."""
    if zone is not None and text.strip() == YESTERDAY:
        return Night(datetime.datetime.now(zone).date() - datetime.timedelta(days=1))
    try:
        return Night(datetime.date.fromisoformat(text.strip()))
    except ValueError:
        raise ConfigError(f"`{text}` is not a date of the form YYYY-MM-DD") from None


def parse_nights(text: str) -> list[Night]:
    """`A..B` (both included) or one date, in order. Raises ConfigError."""
    first_text, dots, last_text = text.partition("..")
    first = parse_night(first_text)
    last = parse_night(last_text) if dots else first
    count = (last.date - first.date).days + 1
    if not 1 <= count <= NIGHTS_MAX:
        raise ConfigError(f"`{text}` names {count} nights; at least 1 and at most {NIGHTS_MAX} can be loaded in one call")
    return [Night(first.date + datetime.timedelta(days=day)) for day in range(count)]


def time_zone(name: str) -> ZoneInfo:
    """A time zone by its name in the IANA data base. Raises ConfigError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError(f"`{name}` is no time zone; they are named like `UTC` or `America/New_York`") from None
