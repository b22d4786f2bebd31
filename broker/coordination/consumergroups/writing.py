"""How a consumer group changes: records are appended, then applied, then the member that asked is answered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from penstock.broker.coordination.classicgroups.state import Group
from penstock.broker.coordination.consumergroups.state import (
    ConsumerGroup,
    ConsumerRecord,
    EpochRecord,
    Member,
    PatternRecord,
    apply,
    subscribed_topics,
    topics_hash,
    without,
)
from penstock.broker.coordination.groupoffsets import Out
from penstock.broker.coordination.machines import NEVER, Append, Now

AnyGroup = ConsumerGroup | Group
# Called with the append's error when it has ended, and the time of then; gives back the group that comes after, if it is
# another.
Then = Callable[[int, Now, Out], AnyGroup | None]


@dataclass(slots=True)
class AfterWrite:
    """Apply the records, then go on."""

    records: Sequence[ConsumerRecord]
    then: Then


def write(
    group: ConsumerGroup,
    records: Sequence[ConsumerRecord],
    then: Then,
    out: Out,
    before: Sequence[object] = (),
    after: Sequence[object] = (),
) -> None:
    """Append the group's records; other events wait until that has ended.

    Records of other kinds may go with them, before or after; `then` has to see to those.
    """
    group.busy = True
    out.append(Append(group.in_flight.add(AfterWrite(records, then)), [*before, *records, *after]))


def written(group: ConsumerGroup, after: AfterWrite, error: int, now: Now, out: Out) -> AnyGroup:
    """The append has ended: the group that comes after."""
    group.busy = False
    if not error:
        for record in after.records:
            apply(group, record, now.wall_ms)
    return after.then(error, now, out) or group


def removal(group: ConsumerGroup, gone: Collection[str]) -> list[ConsumerRecord]:
    """The records that take members out of the group, with its next epoch."""
    records: list[ConsumerRecord] = [record for member_id in gone for record in without(member_id)]
    left = [member.facts for member in group.members.values() if member.id not in gone]
    patterns = {facts.pattern for facts in left}
    records.extend(PatternRecord(pattern, None) for pattern in group.patterns if pattern not in patterns)
    hashed = topics_hash(subscribed_topics(left, group.patterns), group.catalog)
    records.append(EpochRecord((group.epoch + 1, hashed)))
    return records


def wake(group: ConsumerGroup, deadline_ms: int) -> None:
    """Be ticked no later than that."""
    group.wake_at_ms = min(group.wake_at_ms, deadline_ms)


def await_heartbeat(group: ConsumerGroup, member: Member, now: Now) -> None:
    """The member was heard: it has a full session again."""
    member.session_deadline_ms = now.mono_ms + group.session_timeout_ms(member.facts)
    wake(group, member.session_deadline_ms)


def find_next_deadline(group: ConsumerGroup) -> None:
    """Find when the next deadline is due."""
    group.wake_at_ms = min((member.next_deadline_ms() for member in group.members.values()), default=NEVER)
