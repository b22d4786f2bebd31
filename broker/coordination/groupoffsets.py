"""A group's committed offsets as its machine handles them: the same for classic groups and KIP-848's.

Which commits are taken is the rule of the group's machine; what happens to them then is here. Events come in, `Append` and
`Reply` go out; what an append was for is remembered in the group's `in_flight` and carried out by `appended`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.broker.configs.groupconfig import GroupConfig
from penstock.broker.coordination.machines import Append, Appended, InFlight, Now, Reply, TopicPartition, append_error
from penstock.broker.coordination.offsets import Committed, OffsetRecord, Offsets, tombstones
from penstock.errors import ErrorCode

Action = Reply | Append
Out = list[Action]


class Owner(Protocol):
    """What the functions here need to know of a group."""

    offsets: Offsets
    in_flight: InFlight

    @property
    def dead(self) -> bool:
        """Whether the group is gone, and the shell about to forget it."""
        ...

    @property
    def config(self) -> GroupConfig:
        """The broker's properties for groups."""
        ...


# --- events (each with a token is answered by one Reply) ----------------------------------------------------
@dataclass(slots=True)
class Commit:
    """OffsetCommit, or with a producer id TxnOffsetCommit. Answered by an error code for all, or a dict by
    partition.

    `commits` are those of partitions that exist; their commit_timestamp_ms is set here. `generation` is the
    member epoch of a KIP-848 member; `knows_epochs` says that the request's version has such and the errors
    that come with them (OffsetCommit from version 9 on, TxnOffsetCommit from 6).
    """

    token: object
    member_id: str
    instance_id: str | None
    generation: int
    commits: dict[TopicPartition, Committed]
    retention_ms: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    knows_epochs: bool = True


@dataclass(slots=True)
class Marker:
    """The producer's transaction marker is in this group's partition of the log."""

    producer_id: int
    commit: bool


@dataclass(slots=True)
class Delete:
    """DeleteGroups. Answered by an error code."""

    token: object


@dataclass(slots=True)
class DeleteOffsets:
    """OffsetDelete. Answered by an error code for all, or a dict of error codes by partition."""

    token: object
    partitions: Sequence[TopicPartition]


@dataclass(slots=True)
class TopicDeleted:
    """A topic is gone: its offsets go too."""

    topic: str


@dataclass(slots=True)
class Expire:
    """Find offsets past their retention, and for a group that nothing is left of."""


# --- what an append was for ---------------------------------------------------------------------------------
@dataclass(slots=True)
class AfterCommit:
    """Make the commits visible and answer."""

    event: Commit
    accepted: dict[TopicPartition, Committed]
    results: dict[TopicPartition, int]


@dataclass(slots=True)
class AfterRemoval:
    """Offsets were taken back; `then` gets the append's error."""

    gone: tuple[TopicPartition, ...]
    token: object | None = None
    result: object = None
    then: Callable[[int], None] | None = None


def commit(group: Owner, event: Commit, refused: int, now: Now, out: Out) -> None:
    """Append the commits of a request, or answer the error code with which its group has `refused` it."""
    if refused:
        out.append(Reply(event.token, refused))
        return
    results: dict[TopicPartition, int] = {}
    accepted: dict[TopicPartition, Committed] = {}
    limit = group.config.offset_metadata_max_bytes
    for partition, value in event.commits.items():
        # A character has at most four bytes, so the cheap test decides the ordinary case.
        text = value.metadata
        if len(text) * 4 > limit and len(text.encode("utf-8", "surrogatepass")) > limit:
            results[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        value.commit_timestamp_ms = now.wall_ms
        if event.retention_ms >= 0:
            value.expire_timestamp_ms = now.wall_ms + event.retention_ms
        results[partition] = ErrorCode.NONE
        accepted[partition] = value
    if not accepted:
        out.append(Reply(event.token, results))
        return
    group.offsets.begin(accepted, event.producer_id)
    records = [OffsetRecord(topic, partition, value) for (topic, partition), value in accepted.items()]
    append_id = group.in_flight.add(AfterCommit(event, accepted, results))
    out.append(Append(append_id, records, event.producer_id, event.producer_epoch))


def delete(group: Owner, event: DeleteOffsets, in_use: Collection[str], out: Out) -> None:
    """Take back the offsets of partitions, except those of topics in use."""
    if group.dead:
        out.append(Reply(event.token, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    results: dict[TopicPartition, int] = {
        key: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if key[0] in in_use else ErrorCode.NONE for key in event.partitions
    }
    stored = group.offsets.partitions()
    gone = tuple(key for key, error in results.items() if not error and key in stored)
    if gone:
        take_back(group, AfterRemoval(gone, event.token, results), [], out)
    else:
        out.append(Reply(event.token, results))


def on_topic_deleted(group: Owner, event: TopicDeleted, now: Now, out: Out) -> None:
    """Take back the offsets of a topic that is gone."""
    gone = tuple(sorted(key for key in group.offsets.partitions() if key[0] == event.topic))
    if gone and not group.dead:
        take_back(group, AfterRemoval(gone), [], out)


def take_back(group: Owner, after: AfterRemoval, beside: Sequence[object], out: Out) -> None:
    """Append tombstones for offsets, and other records beside them."""
    records = [*tombstones(after.gone), *beside]
    if records:
        out.append(Append(group.in_flight.add(after), records))


def appended(group: Owner, after: AfterCommit | AfterRemoval, event: Appended, out: Out) -> None:
    """One of the appends of this module has ended."""
    error = event.error
    if isinstance(after, AfterCommit):
        base_offset = -1 if error else event.base_offset
        group.offsets.finish(after.accepted, after.event.producer_id, base_offset)
        if error:
            after.results.update(dict.fromkeys(after.accepted, commit_error(error)))
        out.append(Reply(after.event.token, after.results))
        return
    if not error:
        group.offsets.remove(after.gone)
    if after.then is not None:
        after.then(error)
    if after.token is not None:
        out.append(Reply(after.token, append_error(error) if error else after.result))


def commit_error(error: int) -> int:
    """What a client hears when a commit could not be stored."""
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return append_error(error)


def load(group: Owner, record: OffsetRecord, record_offset: int, producer_id: int = -1) -> None:
    """Apply an offset's record of the log, in the log's order."""
    key = (record.topic, record.partition)
    if record.value is None:
        group.offsets.remove([key])
        return
    record.value.record_offset = record_offset
    if producer_id >= 0:
        group.offsets.transactional.setdefault(producer_id, {})[key] = record.value
    else:
        group.offsets.put(key, record.value)
