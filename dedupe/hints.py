"""The commands by which an operator goes on with a partition, as messages name them."""

from __future__ import annotations

from penstock.hints import quoted
from penstock.pipeline.clients.client import TopicPartition


def to_move(tp: TopicPartition) -> str:
    """The command that says where an input partition is read from."""
    return f"`penstock dedupe position --topic {quoted(tp[0])} -p {quoted(tp[1])} --at OFFSET --because TEXT`"


def to_accept(tp: TopicPartition) -> str:
    """The command that lets it go on though ids are unknown."""
    return f"`penstock dedupe accept --topic {quoted(tp[0])} -p {quoted(tp[1])} --because TEXT`"


def to_set_aside(tp: TopicPartition) -> str:
    """The command that makes room for a new store."""
    return f"`penstock dedupe rebuild --topic {quoted(tp[0])} -p {quoted(tp[1])}`"


def to_rebuild(tp: TopicPartition) -> str:
    """How it gets a new store. Nothing is removed, since the output may keep less than the store's window."""
    return (
        f"stop the stage, then {to_set_aside(tp)} sets the store aside, and the next start builds it from the output (what the "
        "output no longer has comes back only from a snapshot)"
    )


def to_delete(group: str, tp: TopicPartition) -> str:
    """The command that takes its position away."""
    return f"`penstock groups delete {quoted(group)} --topic {quoted(f'{tp[0]}:{tp[1]}')}`"
