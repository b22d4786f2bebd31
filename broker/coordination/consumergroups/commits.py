"""A consumer group's offsets: who may commit, fetch and delete them; and the end of the group itself."""

from __future__ import annotations

from penstock.broker.coordination import groupoffsets
from penstock.broker.coordination.consumergroups.state import ConsumerGroup, Member, end_of, subscribed_topics
from penstock.broker.coordination.consumergroups.writing import Then, write
from penstock.broker.coordination.groupoffsets import AfterRemoval, Commit, Delete, DeleteOffsets, Expire, Out
from penstock.broker.coordination.machines import Now, Reply, TopicPartition, append_error
from penstock.broker.coordination.offsets import tombstones
from penstock.errors import ErrorCode
from penstock.groupnames import is_stage


def on_commit(group: ConsumerGroup, event: Commit, now: Now, out: Out) -> None:
    """Append the commits of a member, or of anybody while there is none."""
    groupoffsets.commit(group, event, _commit_refused(group, event), now, out)


def _commit_refused(group: ConsumerGroup, event: Commit) -> int:
    """A member commits at its epoch, or at an older one for partitions that it has had since then (KIP-848)."""
    transactional = event.producer_id >= 0
    if group.dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if event.generation < 0 and not group.members:
        return ErrorCode.NONE
    if transactional and event.generation == -1 and not event.member_id and event.instance_id is None:
        return ErrorCode.NONE
    member = group.members.get(event.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not transactional and member.facts.classic is None and not event.knows_epochs:
        return ErrorCode.UNSUPPORTED_VERSION
    stale = ErrorCode.ILLEGAL_GENERATION
    if event.knows_epochs and member.facts.classic is None:
        stale = ErrorCode.STALE_MEMBER_EPOCH
    if event.generation == member.current.epoch:
        return ErrorCode.NONE
    if event.generation > member.current.epoch:
        return stale
    for name, partition in event.commits:
        topic = group.catalog.get(name)
        since = _had_since(member, topic.topic_id, partition) if topic is not None else None
        if since is None or event.generation < since:
            return stale
    return ErrorCode.NONE


def _had_since(member: Member, topic_id: bytes, partition: int) -> int | None:
    for held in (member.current.assigned, member.current.revoking):
        if partition in held.get(topic_id, {}):
            return held[topic_id][partition]
    return None


def fetch_refused(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> int:
    """Whether that member may fetch offsets (OffsetFetch from version 9 on): an error code."""
    if member_id is None and member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member_epoch == member.current.epoch:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if member.facts.classic is not None else ErrorCode.STALE_MEMBER_EPOCH


def on_delete(group: ConsumerGroup, event: Delete, now: Now, out: Out) -> None:
    """Forget a group without members."""
    if group.dead or group.members:
        error = ErrorCode.GROUP_ID_NOT_FOUND if group.dead else ErrorCode.NON_EMPTY_GROUP
        out.append(Reply(event.token, error))
        return

    def then(error: int, at: Now, out: Out) -> None:
        out.append(Reply(event.token, append_error(error)))

    _end(group, tuple(sorted(group.offsets.partitions())), then, out)


def _end(group: ConsumerGroup, gone: tuple[TopicPartition, ...], then: Then, out: Out) -> None:
    """Tombstones for everything."""

    def ended(error: int, at: Now, out: Out) -> None:
        if not error:
            group.offsets.remove(gone)
        then(error, at, out)

    write(group, end_of(group), ended, out, before=tombstones(gone))


def on_delete_offsets(group: ConsumerGroup, event: DeleteOffsets, now: Now, out: Out) -> None:
    """Forget offsets of topics that no member is subscribed to."""
    groupoffsets.delete(group, event, _wanted(group), out)


def _wanted(group: ConsumerGroup) -> set[str]:
    return subscribed_topics((member.facts for member in group.members.values()), group.patterns)


def on_expire(group: ConsumerGroup, event: Expire, now: Now, out: Out) -> None:
    """Forget what is past its retention, and a group of which nothing is left."""
    if group.dead:
        return
    retention_ms = group.config.offsets_retention_ms
    wanted = frozenset(_wanted(group))
    # A group may have been quiet for long when its last member leaves: its offsets stay for as long as they would of a
    # classic group.
    empty_ms = 0 if group.members else group.epoch_ms
    gone: tuple[TopicPartition, ...] = ()
    if not is_stage(group.id):
        gone = group.offsets.expired(lambda one: max(one.commit_timestamp_ms, empty_ms), wanted, retention_ms, now.wall_ms)
    nothing_left = len(gone) == len(group.offsets.partitions())
    if not group.members and nothing_left and group.epoch > 0:
        _end(group, gone, lambda error, at, out: None, out)
    elif gone:
        groupoffsets.take_back(group, AfterRemoval(gone), [], out)
