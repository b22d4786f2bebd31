"""`penstock topics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from penstock.commandgroup import Group
from penstock.errors import KafkaError
from penstock.pipeline.clients.admin import EARLIEST, LATEST, TOPIC_RESOURCE, Admin, OffsetAt
from penstock.pipeline.commands.common import chosen_partitions, cluster, confirm_deletion, pairs, time_text, topic_counts
from penstock.pipeline.options import MOMENTS, Invocation, moment

CONFIRMED = "penstock.configs.confirmed"


@click.group("topics", cls=Group)
def command() -> None:
    """Topics of any Kafka cluster: list, describe, create, delete, grow, confirm, trim, offsets; the log folders they lie in.

    Example: penstock topics list --bootstrap localhost:9092
    """


@command.command("list")
@click.option("--internal", is_flag=True, help="Internal topics too.")
@cluster
def list_topics(invocation: Invocation, internal: bool) -> None:
    """List topics with their partitions and offsets.

    Example: penstock topics list
    """

    async def work(admin: Admin) -> list[dict[str, Any]]:
        seen = await admin.metadata(None, refresh=True)
        topics = [info for info in seen.topics.values() if internal or not info.internal]
        tps = [(info.name, index) for info in topics for index, state in info.partitions.items() if state.leader >= 0]
        first, last = await _ends(admin, tps)
        rows = []
        for info in sorted(topics, key=lambda info: info.name):
            held = [tp for tp in tps if tp[0] == info.name]
            rows.append(
                {
                    "topic": info.name,
                    "partitions": len(info.partitions),
                    "replicas": max((len(state.replicas) for state in info.partitions.values()), default=0),
                    "offsets": sum(last[tp].offset - first[tp].offset for tp in held),
                    "without_leader": len(info.partitions) - len(held),
                }
            )
        return rows

    invocation.show(invocation.ask(work), "topics")


@command.command("describe")
@click.argument("names", nargs=-1, required=True)
@cluster
def describe_topics(invocation: Invocation, names: Sequence[str]) -> None:
    """Describe topics: each partition's leader, replicas and offsets, and what is configured.

    Example: penstock topics describe flights
    """

    async def work(admin: Admin) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        counts = await topic_counts(admin, names)
        seen = await admin.metadata(list(names))
        led = {name: seen.topics[name].partitions for name in names}
        tps = [(name, index) for name in names for index in counts[name] if led[name][index].leader >= 0]
        first, last = await _ends(admin, tps)
        rows = []
        for name in names:
            for index in counts[name]:
                state = led[name][index]
                known = (name, index) in last
                rows.append(
                    {
                        "topic": name,
                        "partition": index,
                        "leader": state.leader,
                        "replicas": list(state.replicas),
                        "isr": list(state.isr),
                        "start": first[name, index].offset if known else None,
                        "end": last[name, index].offset if known else None,
                    }
                )
        own = [
            {"topic": name, "config": entry.name, "value": entry.value}
            for name in names
            for entry in await admin.config_entries(TOPIC_RESOURCE, name)
            if entry.is_own
        ]
        return rows, own

    rows, own = invocation.ask(work)
    if invocation.as_json:
        invocation.say("", partitions=rows, configs=own)
        return
    invocation.show(rows)
    if own:
        click.echo()
        invocation.show(own)


@command.command("create")
@click.argument("names", nargs=-1, required=True)
@click.option("-p", "--partitions", type=int, default=-1, help="[the cluster's default]")
@click.option("-r", "--replication-factor", type=int, default=-1, help="[the cluster's default]")
@click.option("-c", "--set", "configs", multiple=True, metavar="KEY=VALUE", help="A topic config.")
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that is there as it is.")
@cluster
def create_topics(
    invocation: Invocation,
    names: Sequence[str],
    partitions: int,
    replication_factor: int,
    configs: Sequence[str],
    if_not_exists: bool,
) -> None:
    """Create topics and wait until each has its leaders.

    Example: penstock topics create orders -p 6 -c retention.ms=604800000
    """
    given = pairs(configs, "--set")

    async def work(admin: Admin) -> list[str]:
        there = (await admin.metadata(None, refresh=True)).topics if if_not_exists else {}
        await admin.create_topics(
            dict.fromkeys(names, partitions),
            replication_factor=replication_factor,
            configs=given,
            exist_ok=if_not_exists,
        )
        return [name for name in names if name not in there]

    made = invocation.ask(work)
    invocation.say(f"created {', '.join(made)}" if made else "all of them were there", created=made)


@command.command("delete")
@click.argument("names", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Don't ask.")
@cluster
def delete_topics(invocation: Invocation, names: Sequence[str], yes: bool) -> None:
    """Delete topics with all their records.

    Example: penstock topics delete orders --yes
    """
    if not yes:
        confirm_deletion(f"{', '.join(names)} with all records")

    async def work(admin: Admin) -> None:
        await topic_counts(admin, names)
        await admin.delete_topics(names)

    invocation.ask(work)
    invocation.say(f"deleted {', '.join(names)}", deleted=list(names))


@command.command("grow")
@click.argument("name")
@click.option("-p", "--partitions", type=int, required=True, help="The new count; it can't shrink.")
@cluster
def grow_topic(invocation: Invocation, name: str, partitions: int) -> None:
    """Give a topic more partitions. Keys may go to other partitions than before.

    Example: penstock topics grow orders -p 12
    """

    async def work(admin: Admin) -> None:
        await topic_counts(admin, [name])
        await admin.create_partitions({name: partitions})

    invocation.ask(work)
    invocation.say(f"{name} has {partitions} partitions", topic=name, partitions=partitions)


@command.command("confirm")
@click.argument("names", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All topics that wait for it.")
@cluster
def confirm_topics(invocation: Invocation, names: Sequence[str], every: bool) -> None:
    """Confirm the configs of topics that a Penstock broker found in its folders without them: check them first, with
    `penstock topics describe`. Until then retention and compaction are paused there (`penstock.configs.confirmed=false`).

    Example: penstock topics confirm flights orders
    """
    if every == bool(names):
        raise click.UsageError("name the topics, or give --all")

    async def work(admin: Admin) -> list[str]:
        if names:
            await topic_counts(admin, names)
        found = list(names) or sorted((await admin.metadata(None, refresh=True)).topics)
        waiting = []
        for name in found:
            entries = await admin.config_entries(TOPIC_RESOURCE, name)
            if any(entry.name == CONFIRMED and entry.value == "false" for entry in entries):
                await admin.alter_configs(TOPIC_RESOURCE, name, {CONFIRMED: None})
                waiting.append(name)
        return waiting

    done = invocation.ask(work)
    invocation.say(f"confirmed {', '.join(done)}" if done else "none of them waited for it", confirmed=done)


@command.command("offsets")
@click.argument("words", nargs=-1, required=True, metavar="TOPIC[:PARTITION,...]...")
@click.option("--at", "when", default="latest", show_default=True, help=MOMENTS)
@cluster
def show_offsets(invocation: Invocation, words: Sequence[str], when: str) -> None:
    """Show the first offset at or after a moment, by partition.

    Example: penstock topics offsets flights --at 2013-05-01T00:00:00Z
    """
    timestamp = moment(when)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        tps = await chosen_partitions(admin, words)
        found = await admin.list_offsets(dict.fromkeys(tps, timestamp))
        ends = await admin.list_offsets(dict.fromkeys(tps, LATEST))
        return [
            {
                "topic": tp[0],
                "partition": tp[1],
                # Nothing is so late: the next record will be.
                "offset": found[tp].offset if found[tp].offset >= 0 else ends[tp].offset,
                "time": time_text(found[tp].timestamp),
            }
            for tp in tps
        ]

    invocation.show(invocation.ask(work))


@command.command("trim")
@click.argument("words", nargs=-1, required=True, metavar="TOPIC[:PARTITION,...]...")
@click.option("--before", "when", required=True, help=f"Delete records before: {MOMENTS}; or an offset as @1234.")
@click.option("--execute", is_flag=True, help="Do it; without this only the plan is shown.")
@cluster
def trim_topics(invocation: Invocation, words: Sequence[str], when: str, execute: bool) -> None:
    """Delete the oldest records of partitions (DeleteRecords).

    Example: penstock topics trim flights --before -30d --execute
    """
    offset = int(when[1:]) if when.startswith("@") and when[1:].isdigit() else None
    timestamp = None if offset is not None else moment(when)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        tps = await chosen_partitions(admin, words)
        first, last = await _ends(admin, tps)
        found = {} if timestamp is None else await admin.list_offsets(dict.fromkeys(tps, timestamp))
        goals = {}
        for tp in tps:
            goal = offset if offset is not None else found[tp].offset
            goals[tp] = min(last[tp].offset if goal is None or goal < 0 else goal, last[tp].offset)
        goals = {tp: goal for tp, goal in goals.items() if goal > first[tp].offset}
        if execute and goals:
            await admin.delete_records(goals)
        return [
            {"topic": topic, "partition": index, "from": first[topic, index].offset, "to": goal}
            for (topic, index), goal in goals.items()
        ]

    invocation.show(invocation.ask(work), "records to delete")
    if not execute and not invocation.as_json:
        click.echo("nothing was deleted: add --execute to do it", err=True)


@command.command("log-dirs")
@cluster
def show_log_dirs(invocation: Invocation) -> None:
    """Show every broker's log folders: the partitions in each, the room on its disk, and whether it is offline.

    Example: penstock topics log-dirs
    """
    rows = [
        {
            "broker": broker,
            "log_dir": found.log_dir,
            "state": KafkaError(found.error_code).name if found.error_code else "online",
            "partitions": sum(len(topic.partitions) for topic in found.topics),
            "bytes": sum(part.partition_size for topic in found.topics for part in topic.partitions),
            # Brokers before Kafka 3.3 don't say.
            "disk_bytes": found.total_bytes if found.total_bytes >= 0 else None,
            "free_bytes": found.usable_bytes if found.usable_bytes >= 0 else None,
        }
        for broker, folders in invocation.ask(Admin.log_dirs).items()
        for found in sorted(folders, key=lambda found: found.log_dir)
    ]
    invocation.show(rows, "log folders")


Offsets = dict[tuple[str, int], OffsetAt]


async def _ends(admin: Admin, tps: Sequence[tuple[str, int]]) -> tuple[Offsets, Offsets]:
    """First and next offset of each partition."""
    first = await admin.list_offsets(dict.fromkeys(tps, EARLIEST))
    return first, await admin.list_offsets(dict.fromkeys(tps, LATEST))
