"""Logs inside the test process that follow a leader."""

from __future__ import annotations

import itertools
from pathlib import Path

from support.logs import LOGS

LEADER = 1
BROKER_EPOCH = 7
"""Of the registration to which the roles are told."""

_numbers = itertools.count()
_partition_epochs = itertools.count()


def topic_id(topic: str) -> bytes:
    """An id that follows from the name."""
    return topic.encode().ljust(16, b"#")[:16]


def follow(folder: Path, *, partitions: int = 1, topic: str = "", id: bytes = b"", leader_epoch: int = 0, **config: int) -> str:
    """A topic whose partitions follow LEADER; its name."""
    folder.mkdir(exist_ok=True)
    name = topic or f"follow{next(_numbers)}"
    for index in range(partitions):
        LOGS.open_replica(name, id or topic_id(name), index, str(folder), config)
        set_role(name, index, leader_epoch)
    return name


def set_role(topic: str, index: int, leader_epoch: int) -> None:
    """Follow LEADER in that epoch."""
    assert LOGS.set_follower(
        topic,
        index,
        broker_epoch=BROKER_EPOCH,
        leader=LEADER,
        leader_epoch=leader_epoch,
        partition_epoch=next(_partition_epochs),
        unclean_epoch=-1,
    )
