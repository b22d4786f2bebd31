"""What one controller has told a broker by UpdateMetadata, and in which order it was sent.

A connection that was closed may deliver a request after newer ones have come over the next connection. Controller and broker
epoch are the same in both, so the controller numbers what it sends within its term, and a broker takes nothing older than what
it has taken (*a picture without a live broker, or with a deleted topic, that nothing corrects*). A controller that sends no
numbers is taken in the order of arrival.

A new controller tells each broker of all topics, in pieces. After the last piece, a topic that none of them has named was
deleted while this broker heard nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.broker.cluster.leaderandisr import NO_EPOCH
from penstock.broker.cluster.messages import UpdateMetadata


@dataclass(slots=True)
class Told:
    """What a broker has taken from one controller under one registration."""

    controller_epoch: int = NO_EPOCH
    broker_epoch: int = NO_EPOCH
    number: int = 0
    topics: set[bytes] = field(default_factory=set)  # the ids that were named; not kept any more once all were
    is_whole: bool = False

    def is_of(self, update: UpdateMetadata) -> bool:
        """Whether an update is of that controller and that registration."""
        return (update.controller_epoch, update.broker_epoch) == (self.controller_epoch, self.broker_epoch)


def is_overtaken(told: Told, update: UpdateMetadata) -> bool:
    """Whether the controller sent an update before one that was taken. Pieces of one update have the same number."""
    return told.is_of(update) and update.number < told.number


def find_unnamed(told: Told, update: UpdateMetadata, shown: Iterable[bytes]) -> set[bytes]:
    """The topics, among those that this broker shows, that a controller hasn't named though it has told of all by this update;
    only at the first such update of its term. Absence elsewhere says nothing."""
    if not update.is_whole or (told.is_of(update) and told.is_whole):
        return set()
    named = {one.topic_id for one in update.partitions} | (told.topics if told.is_of(update) else set())
    return set(shown) - named


def on_taken(told: Told, update: UpdateMetadata) -> None:
    """An update was taken."""
    if not told.is_of(update):
        told.controller_epoch, told.broker_epoch = update.controller_epoch, update.broker_epoch
        told.topics, told.is_whole = set(), False
    told.number = update.number
    told.is_whole = told.is_whole or update.is_whole
    if told.is_whole:
        told.topics.clear()
    else:
        told.topics.update(one.topic_id for one in update.partitions)
