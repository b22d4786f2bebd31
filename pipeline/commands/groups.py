"""`penstock groups`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import click

from penstock.commandgroup import Group
from penstock.errors import ErrorCode, KafkaError
from penstock.groupnames import DEDUPE_GROUPS, MIRROR_GROUPS
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.clients.assignors import decode_assignment
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.commands.common import chosen_partitions, cluster, confirm_deletion, no_group, time_text
from penstock.pipeline.options import MOMENTS, Invocation, moment
from penstock.pyx.record.rawbatch import records
from penstock.pyx.wire.message import WireError

FIRST_UNREAD_TIMEOUT_S = 15.0
SKEW_S = 1.0  # by so much a producer's clock may be ahead of this one without being wrong
# What moves the positions of our own stages.
STAGES = {MIRROR_GROUPS: "penstock mirror begin", DEDUPE_GROUPS: "penstock dedupe position"}


@click.group("groups", cls=Group)
def command() -> None:
    """Consumer groups of any Kafka cluster: list, describe with lag, reset offsets, delete.

    Example: penstock groups describe etl
    """


@command.command("list")
@click.option("--state", multiple=True, help="Only groups in this state; may be given several times.")
@cluster
def list_groups(invocation: Invocation, state: Sequence[str]) -> None:
    """List groups with their state and type.

    Example: penstock groups list --state Stable
    """
    wanted = {name.lower() for name in state}
    rows = [
        {"group": listed.group, "state": listed.state or None, "type": listed.type or None, "protocol": listed.protocol}
        for listed in invocation.ask(lambda admin: admin.group_listings())
        if not wanted or listed.state.lower() in wanted
    ]
    invocation.show(rows, "groups")


@command.command("describe")
@click.argument("group")
@click.option("--members", is_flag=True, help="The members instead of the partitions.")
@cluster
def describe_group(invocation: Invocation, group: str, members: bool) -> None:
    """Describe a group: committed offsets, lag in messages and in seconds, owners.

    Lag in seconds is the age of the first record that the group has not read; one from the future has none. Under a group of
    the mirror stand offsets of its source, which say nothing of this cluster's topic: no end and no lag are shown then.

    Example: penstock groups describe etl
    """

    async def work(admin: Admin) -> list[dict[str, Any]]:
        async with _naming_group(admin, group):
            owners = await _members(admin, group)
        committed = await admin.all_committed(group, require_stable=False)
        if not owners and not committed and group not in await admin.list_groups():  # Older brokers describe any name.
            raise await no_group(admin, group)
        if members:
            return [
                {"member": name, "client": client, "host": host, "partitions": [f"{t}:{p}" for t, p in sorted(owned)]}
                for name, client, host, owned in owners
            ]
        owner_of = {tp: client for _, client, _, owned in owners for tp in owned}
        tps = sorted({*committed, *owner_of})
        ends = {} if group.startswith(MIRROR_GROUPS) else await _ends(admin, tps)
        behind = {tp: committed[tp][0] for tp in tps if tp in committed and ends.get(tp, (0, 0))[1] > committed[tp][0]}
        ages = await _ages_s(admin, {tp: max(offset, ends[tp][0]) for tp, offset in behind.items()})
        return [
            {
                "topic": tp[0],
                "partition": tp[1],
                "committed": committed[tp][0] if tp in committed else None,
                "end": ends[tp][1] if tp in ends else None,
                "lag": max(0, ends[tp][1] - committed[tp][0]) if tp in committed and tp in ends else None,
                "lag_seconds": ages.get(tp, 0.0 if tp in committed and tp in ends and tp not in behind else None),
                "owner": owner_of.get(tp),
            }
            for tp in tps
        ]

    invocation.show(invocation.ask(work), f"{'members' if members else 'offsets'} of group {group}")
    if group.startswith(MIRROR_GROUPS) and not members:
        click.echo("these are the mirror's positions in its source cluster, not a consumer's in this one", err=True)


@command.command("reset")
@click.argument("group")
@click.argument("words", nargs=-1, required=True, metavar="TOPIC[:PARTITION,...]...")
@click.option("--to", "when", help=MOMENTS)
@click.option("--to-offset", type=int, help="This offset.")
@click.option("--shift", type=int, help="So many forward, or back if negative.")
@click.option("--execute", is_flag=True, help="Do it; without this only the plan is shown.")
@cluster
def reset_offsets(
    invocation: Invocation,
    group: str,
    words: Sequence[str],
    when: str | None,
    to_offset: int | None,
    shift: int | None,
    execute: bool,
) -> None:
    """Move a group's committed offsets. The group must have no members. Goals beyond the log are cut to its ends.

    Example: penstock groups reset etl flights --to -2h
    """
    if [when, to_offset, shift].count(None) != 2:
        raise click.UsageError("give one of --to, --to-offset and --shift")
    for prefix, instead in STAGES.items():
        if group.startswith(prefix):
            raise click.ClickException(
                f"`{group}` holds a stage's positions, which it would refuse without what it notes beside them: use `{instead}`"
            )
    timestamp = None if when is None else moment(when)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        tps = await chosen_partitions(admin, words)
        committed = await admin.all_committed(group)
        ends = await _ends(admin, tps)
        found = {} if timestamp is None else await admin.list_offsets(dict.fromkeys(tps, timestamp))
        goals: dict[TopicPartition, int] = {}
        for tp in tps:
            if shift is not None and tp not in committed:
                continue
            goal = committed[tp][0] + shift if shift is not None else to_offset
            if timestamp is not None:
                goal = found[tp].offset if found[tp].offset >= 0 else ends[tp][1]
            assert goal is not None
            goals[tp] = min(max(goal, ends[tp][0]), ends[tp][1])
        if execute and goals:
            await admin.commit(group, {tp: (goal, "") for tp, goal in goals.items()})
        return [
            {"topic": tp[0], "partition": tp[1], "from": committed[tp][0] if tp in committed else None, "to": goal}
            for tp, goal in sorted(goals.items())
        ]

    invocation.show(invocation.ask(work), "offsets to move")
    if not execute and not invocation.as_json:
        click.echo("nothing was moved: add --execute to do it", err=True)


@command.command("delete")
@click.argument("groups", nargs=-1, required=True)
@click.option("--topic", "words", multiple=True, metavar="TOPIC[:PARTITION,...]", help="Only these offsets.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@cluster
def delete_groups(invocation: Invocation, groups: Sequence[str], words: Sequence[str], yes: bool) -> None:
    """Delete groups without members, with their offsets; or with --topic some of their offsets.

    Example: penstock groups delete old-etl --yes
    """
    what = f"offsets of {', '.join(words)} in" if words else "groups"
    if not yes:
        confirm_deletion(f"{what} {', '.join(groups)}")

    async def work(admin: Admin) -> None:
        tps = await chosen_partitions(admin, words)
        for group in groups:
            async with _naming_group(admin, group):
                await (admin.delete_offsets(group, tps) if words else admin.delete_groups([group]))

    invocation.ask(work)
    invocation.say(f"deleted {what} {', '.join(groups)}", deleted=list(groups))


@asynccontextmanager
async def _naming_group(admin: Admin, group: str) -> AsyncIterator[None]:
    """Where the cluster refuses a group that isn't there, say which one may be meant. Raises ClickException."""
    try:
        yield
    except KafkaError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        raise await no_group(admin, group) from None


Member = tuple[str, str, str, list[TopicPartition]]  # id, client id, host, what it owns


async def _members(admin: Admin, group: str) -> list[Member]:
    """The members of a group of either protocol."""
    try:
        described = await admin.describe_consumer_group(group)
    except KafkaError as error:
        if error.code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            raise
    else:
        return [
            (
                member.member_id,
                member.client_id,
                member.client_host,
                [(part.topic_name, index) for part in member.assignment.topic_partitions for index in part.partitions],
            )
            for member in described.members
        ]
    classic = await admin.describe_group(group)
    return [
        (member.member_id, member.client_id, member.client_host, _assigned(bytes(member.member_assignment)))
        for member in classic.members
    ]


def _assigned(assignment: bytes) -> list[TopicPartition]:
    """What a consumer's assignment names; members of other protocols (Connect) own no partitions here."""
    try:
        return decode_assignment(assignment)
    except WireError:
        return []


async def _ends(admin: Admin, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """First and end offset of those partitions that are there."""
    seen = await admin.metadata(sorted({topic for topic, _ in tps}), refresh=True) if tps else None
    there = [tp for tp in tps if seen is not None and tp[0] in seen.topics and tp[1] in seen.topics[tp[0]].partitions]
    first = await admin.list_offsets(dict.fromkeys(there, EARLIEST))
    last = await admin.list_offsets(dict.fromkeys(there, LATEST))
    return {tp: (first[tp].offset, last[tp].offset) for tp in there}


async def _ages_s(admin: Admin, unread: Mapping[TopicPartition, int]) -> dict[TopicPartition, float | None]:
    """Seconds since the first record at or after each offset, None if that is of the future; a partition that gives none in
    time is left out."""
    ages: dict[TopicPartition, float | None] = {}
    until = time.monotonic() + FIRST_UNREAD_TIMEOUT_S
    async with Fetcher(admin, unread, isolation="read_uncommitted", partition_max_bytes=64 << 10) as fetcher:
        while len(ages) < len(unread) and time.monotonic() < until:
            for fetched in await fetcher.fetch():
                if fetched.error is not None:
                    fetcher.pause(fetched.tp)
                    continue
                timestamps = (
                    record.timestamp_ms
                    for batch in fetched.batches
                    for record in records(batch)
                    if record.offset >= unread[fetched.tp]
                )
                timestamp = next(timestamps, None)
                if timestamp is not None and time_text(timestamp) is not None:
                    age_s = round(time.time() - timestamp / 1000, 1)
                    ages[fetched.tp] = max(0.0, age_s) if age_s >= -SKEW_S else None
                    fetcher.pause(fetched.tp)
    return ages
