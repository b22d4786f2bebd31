"""From what a member has to what it shall have: revoke before assign, and never what another still holds.

    stable ── target changed, nothing to give back ──► stable | unreleased     at the target's epoch
    stable ── something to give back ──► unrevoked                             still at the old epoch
    unrevoked ── the member owns it no more ──► stable | unreleased            at the target's epoch
                                             └► unrevoked, for a newer target  at the next epoch
    unreleased ── others have released it ──► stable

A member keeps its epoch while it has partitions to revoke, so that its commits for them are still its own. What it
gave back leaves it with the next epoch, always, so that a commit from before that comes late is seen to be old. It
is given what is free, and the rest as soon as the others let go (KIP-848).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from penstock.broker.coordination.consumergroups.state import Assigned, Current, MemberState, Partitions

# Whether another member holds that partition of the topic id.
Held = Callable[[bytes, int], bool]


class UnknownState(Exception):
    """The member is in a state that a newer coordinator wrote: it has to come back with nothing."""


def reconcile(
    current: Current,
    target_epoch: int,
    target: Partitions,
    topic_ids: Collection[bytes],
    owned: Partitions | None,
    held: Held,
    subscription_changed: bool,
) -> Current:
    """The member's next assignment; the same object if nothing changes. Raises UnknownState.

    `topic_ids` are those of its subscription, `owned` what it says that it owns (None: it does not say).
    """
    if current.state is MemberState.UNKNOWN:
        if owned is None or any(owned.values()):
            raise UnknownState
        return _next(current, target_epoch, target, topic_ids, owned, held)
    if current.state is MemberState.STABLE:
        if current.epoch != target_epoch:
            return _next(current, target_epoch, target, topic_ids, owned, held)
        return _narrowed(current, topic_ids, owned) if subscription_changed else current
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if _owns_any(owned, current.revoking):
            return _narrowed(current, topic_ids, owned) if subscription_changed else current
        # A target that asks for more is newer than the one that asked for these: this epoch is below its.
        epoch = min(current.epoch + 1, target_epoch)
        return _next(current, target_epoch, target, topic_ids, owned, held, epoch)
    return _next(current, target_epoch, target, topic_ids, owned, held)


def _owns_any(owned: Partitions | None, revoking: Assigned) -> bool:
    if owned is None:
        return True
    return any(not partitions.isdisjoint(revoking.get(topic_id, ())) for topic_id, partitions in owned.items())


def _merged(first: Assigned, second: Assigned) -> Assigned:
    return {topic_id: {**first.get(topic_id, {}), **second.get(topic_id, {})} for topic_id in {**first, **second}}


def _narrowed(current: Current, topic_ids: Collection[bytes], owned: Partitions | None) -> Current:
    """Give back at once what is no longer subscribed; the rest waits for the next target."""
    dropped = {topic_id: held for topic_id, held in current.assigned.items() if topic_id not in topic_ids}
    if not dropped:
        return current
    kept = {topic_id: held for topic_id, held in current.assigned.items() if topic_id in topic_ids}
    revoking = _merged(current.revoking, dropped)
    if _owns_any(owned, revoking):
        state = MemberState.UNREVOKED_PARTITIONS
        return Current(current.epoch, current.epoch, state, assigned=kept, revoking=revoking)
    return replace(current, previous_epoch=current.epoch, assigned=kept)


def _next(
    current: Current,
    target_epoch: int,
    target: Partitions,
    topic_ids: Collection[bytes],
    owned: Partitions | None,
    held: Held,
    epoch_until_then: int | None = None,
) -> Current:
    """Towards the target; `epoch_until_then` is the member's epoch while it still has something to give back."""
    kept: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, dict[int, int]] = {}
    free: dict[bytes, list[int]] = {}
    unreleased = False
    for topic_id in {**target, **current.assigned}:
        wanted = target.get(topic_id, frozenset()) if topic_id in topic_ids else frozenset()
        for partition, epoch in current.assigned.get(topic_id, {}).items():
            where = kept if partition in wanted else revoking
            where.setdefault(topic_id, {})[partition] = epoch
        for partition in wanted - kept.get(topic_id, {}).keys():
            if held(topic_id, partition):
                unreleased = True
            else:
                free.setdefault(topic_id, []).append(partition)
    if revoking and _owns_any(owned, revoking):
        epoch = current.epoch if epoch_until_then is None else epoch_until_then
        return Current(epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)
    for topic_id, partitions in free.items():
        kept.setdefault(topic_id, {}).update(dict.fromkeys(partitions, target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    after = Current(target_epoch, current.epoch, state, assigned=kept)
    unchanged = (
        state is current.state and current.epoch == target_epoch and not current.revoking and after.assigned == current.assigned
    )
    return current if unchanged else after
