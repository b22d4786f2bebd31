"""The commands by which an operator goes on with a partition, as messages name them.

A partition of dedupe is TOPIC:P, one of the mirror SOURCE TOPIC:P.
"""

from __future__ import annotations

from penstock.hints import quoted
from penstock.pipeline.clients.client import TopicPartition

LaneAddress = tuple[str, TopicPartition]
"""The name of a source, and a partition there."""


def address(tp: TopicPartition) -> str:
    """A partition as commands take it."""
    return f"{tp[0]}:{tp[1]}"


def to_begin(lane: LaneAddress, at: str = "OFFSET") -> str:
    """The command that says where a copy begins or goes on. `at`: words of ours from which an operator chooses."""
    return f"`penstock mirror begin {quoted(lane[0])} {quoted(address(lane[1]))} " + f"--at {at} --because TEXT" + "`"


def to_skip(lane: LaneAddress, next_offset: int | None) -> str:
    """How a copy gets past a batch, given the offset behind it if that is known."""
    to = "OFFSET" if next_offset is None else next_offset
    return f"`penstock mirror skip {quoted(lane[0])} {quoted(address(lane[1]))} --to {quoted(to)} --because TEXT` sets it aside"


def to_retry(lane: LaneAddress) -> str:
    """The command that lets a copy try again."""
    return f"`penstock mirror retry {quoted(lane[0])} {quoted(address(lane[1]))} --because TEXT`"


def to_move(tp: TopicPartition) -> str:
    """The command that says where an input partition of dedupe is read from."""
    return f"`penstock dedupe position {quoted(address(tp))} --at OFFSET --because TEXT`"


def to_accept(tp: TopicPartition) -> str:
    """The command that lets it go on though ids are unknown."""
    return f"`penstock dedupe accept {quoted(address(tp))} --because TEXT`"


def to_set_aside(tp: TopicPartition) -> str:
    """The command that makes room for a new store."""
    return f"`penstock dedupe rebuild {quoted(address(tp))}`"


def to_rebuild(tp: TopicPartition) -> str:
    """How it gets a new store. Nothing is removed, because the output may keep less than the store's window."""
    return (
        f"stop the stage, then {to_set_aside(tp)} sets the store aside, and the next start builds it from the output (what the "
        "output no longer has comes back only from a snapshot)"
    )


def to_delete(group: str, tp: TopicPartition) -> str:
    """The command that takes its position away."""
    return f"`penstock groups delete {quoted(group)} --topic {quoted(address(tp))}`"
