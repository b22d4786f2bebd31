"""`penstock cluster`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from penstock.commandgroup import Group
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.metadata import Cluster, PartitionInfo
from penstock.pipeline.commands.common import chosen_partitions, cluster
from penstock.pipeline.options import Invocation, show_rows

MIN_ISR = "min.insync.replicas"
NO_LEADER, UNDER_MIN_ISR, UNDER_REPLICATED = "no leader", "under min ISR", "under-replicated"
PREFERRED_AWAY = (
    "hint: a preferred leader that is away, or not in sync, can't lead: `penstock cluster` shows which broker is away; elect "
    "again once the partition's `isr` has it"
)
NOBODY_LIVES = (
    "hint: no replica in sync lives: start a broker that has one, or give up what only those hold that are away with "
    "`penstock cluster elect TOPIC:PARTITION --unclean`"
)
HINTS: dict[int, str] = {
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: PREFERRED_AWAY,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: NOBODY_LIVES,
    ErrorCode.REQUEST_TIMED_OUT: "hint: the election may go on: `penstock cluster` shows the partitions without a leader",
}

TROUBLES = {NO_LEADER: "without a leader", UNDER_MIN_ISR: "under min ISR", UNDER_REPLICATED: "under-replicated"}
"""How a count of partitions goes on."""

ANSWER_S = 3.0
"""How long an answer is waited for without which the rest can be shown."""

Row = dict[str, Any]
T = TypeVar("T")


class Look(NamedTuple):
    """What a cluster says of itself at one moment."""

    brokers: list[Row]
    troubled: list[Row]
    counts: dict[str, int]
    """Partitions: all, those with each trouble, and those that another replica than the preferred one leads."""
    controller: int
    """-1: nobody knows it."""
    internal: frozenset[str]
    """The topics that hold what coordinators note."""
    unasked: int
    """Of so many topics with trouble nobody has answered their min.insync.replicas."""
    reassignment: str
    """What the controller says of an old tool's wish to move replicas; "": nothing."""


@click.group("cluster", cls=Group, invoke_without_command=True)
@click.option(
    "--watch",
    "every_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.2, max=3600),
    help="Look again and again, until Ctrl-C.",
)
@click.option("--all", "every", is_flag=True, help="A line for each partition of internal topics, too.")
@cluster
def command(invocation: Invocation, every_s: float | None, every: bool) -> None:
    """Show the brokers of any Kafka cluster, its controller, and the partitions that lack a leader or replicas in sync.

    `lag` says how many records each replica lacks of its leader's, where one isn't in sync. `offline` counts the replicas of a
    broker that is away, and those in its log folders that have failed or, in a cluster of Penstock, are full.

    The exit code is 1 if a partition has no leader, or fewer replicas in sync than its min.insync.replicas: producers with
    acks=all fail there. It is 1, too, if brokers don't answer what that is.

    Example: penstock cluster --bootstrap localhost:9092

    Example: penstock cluster --watch 2
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        if given:
            raise click.UsageError(f"options go behind `{context.invoked_subcommand}`")
        return
    if every_s is None:
        look = invocation.ask(_look)
        _show(invocation, look, every=every)
        if look.unasked or any(row["trouble"] != UNDER_REPLICATED for row in look.troubled):
            raise SystemExit(1)
        return
    wait_s = every_s

    async def watch(admin: Admin) -> None:
        while True:
            async with invocation.within(admin):
                look = await _look(admin)
            if not invocation.as_json:
                click.clear()
            _show(invocation, look, every=every)
            await asyncio.sleep(wait_s)

    invocation.ask_on(watch)


@command.command("elect")
@click.argument("words", nargs=-1, metavar="[TOPIC[:PARTITION,...]...]")
@click.option("--all", "every", is_flag=True, help="All partitions that need an election.")
@click.option("--unclean", is_flag=True, help="Give up what only replicas hold that are away, or lost their logs.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@cluster
def elect(invocation: Invocation, words: Sequence[str], every: bool, unclean: bool, yes: bool) -> None:
    """Elect leaders: the preferred one of each partition, if it is in sync.

    With `--unclean`, where a partition has no leader: the longest log of the replicas that live leads. Records that only others
    hold are lost, also those that producers were answered; a log that is lost or damaged everywhere begins again, empty.

    Example: penstock cluster elect flights

    Example: penstock cluster elect --all

    Example: penstock cluster elect flights:0 --unclean
    """
    if every == bool(words):
        raise click.UsageError("name topics or partitions, or give --all")
    if unclean and not yes:
        what = "all partitions without a leader" if every else ", ".join(words)
        question = f"let {what} go on without the records that no live replica holds?"
        click.confirm(question, abort=True, err=True)

    async def work(admin: Admin) -> dict[TopicPartition, int]:
        return await admin.elect_leaders(None if every else await chosen_partitions(admin, words), unclean=unclean)

    found = invocation.ask(work)
    invocation.show(
        [
            {"topic": topic, "partition": partition, "elected": not code, "error": KafkaError(code).name if code else None}
            for (topic, partition), code in sorted(found.items())
        ],
        "partition needs an election",
    )
    failed = sorted({code for code in found.values() if code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)})
    for code in failed:
        if (hint := HINTS.get(code)) is not None:
            click.echo(hint, err=True)
    if failed:
        raise SystemExit(1)


def _show(invocation: Invocation, look: Look, *, every: bool) -> None:
    if invocation.as_json:
        invocation.say(
            "", controller=look.controller, brokers=look.brokers, partitions=look.troubled, counts=look.counts,
            min_isr_unknown=look.unasked, reassignment=look.reassignment or None,
        )  # fmt: skip
        return
    rows = look.troubled if every else [row for row in look.troubled if row["topic"] not in look.internal]
    folded = Counter((row["topic"], row["trouble"]) for row in look.troubled if not every and row["topic"] in look.internal)
    show_rows(look.brokers, "brokers", as_json=False)
    if not any(row["controller"] for row in look.brokers):
        away = "no controller: is ZooKeeper, or the quorum of controllers, there?"
        click.echo(away if look.controller < 0 else f"the controller is node {look.controller}, which is no broker")
    click.echo()
    show_rows([dict(look.counts)], as_json=False)
    click.echo()
    if rows:
        show_rows(rows, as_json=False)
    for (topic, trouble), count in sorted(folded.items()):
        click.echo(f"{topic}: {count} {'partition' if count == 1 else 'partitions'} {TROUBLES[trouble]}; --all shows them")
    if look.unasked:
        click.echo(f"nobody answers what min.insync.replicas of {look.unasked} topics is: partitions may be under min ISR")
    if not look.troubled:
        click.echo("each partition has a leader and all its replicas in sync")
    if look.reassignment:
        click.echo(f"\n{look.reassignment}")


async def _look(admin: Admin) -> Look:
    """The brokers, and the partitions with trouble, as rows."""
    controller = await admin.controller()
    seen = await admin.metadata(None, refresh=True)
    short = {name: topic.partitions for name, topic in seen.topics.items() if any(map(_lacks, topic.partitions.values()))}
    # While ZooKeeper, or the quorum, is away some questions have no answer: the rest is shown without it.
    lags = await _answered(_lags(admin, seen, short), {})
    least_of = await _min_isrs(admin, short)
    troubled = []
    for name, partitions in sorted(short.items()):
        least = least_of.get(name)
        for index, state in sorted(partitions.items()):
            if _lacks(state):
                troubled.append(
                    {
                        "topic": name,
                        "partition": index,
                        "trouble": _trouble(state, least),
                        "leader": state.leader,
                        "replicas": list(state.replicas),
                        "isr": list(state.isr),
                        "lag": lags.get((name, index), [None] * len(state.replicas)),
                        "min_isr": least,
                    }
                )
    states = [state for topic in seen.topics.values() for state in topic.partitions.values()]
    kinds = Counter(str(row["trouble"]) for row in troubled)
    counts = {
        "partitions": len(states),
        **{
            kind.replace(" ", "_").replace("-", "_").lower(): kinds[kind]
            for kind in (NO_LEADER, UNDER_MIN_ISR, UNDER_REPLICATED)
        },
        "not_preferred": sum(state.leader >= 0 and state.leader != state.replicas[0] for state in states if state.replicas),
    }
    return Look(
        _brokers(seen, controller),
        troubled,
        counts,
        controller,
        frozenset(name for name, topic in seen.topics.items() if topic.internal),
        len(short) - len(least_of),
        await _answered(_reassignment(admin, controller), ""),
    )


async def _reassignment(admin: Admin, controller: int) -> str:
    if controller < 0:
        return ""
    try:
        return await admin.refused_reassignment()
    except KafkaError as error:
        if error.code == ErrorCode.UNSUPPORTED_VERSION:  # Kafka before 2.4.
            return ""
        raise


async def _lags(
    admin: Admin, seen: Cluster, short: Mapping[str, Mapping[int, PartitionInfo]]
) -> dict[TopicPartition, list[int | None]]:
    """Of partitions with trouble how many records each replica lacks of its leader's; None: it is away, or nobody leads."""
    states = {(name, index): state for name, some in short.items() for index, state in some.items() if _lacks(state)}
    held: dict[int, list[TopicPartition]] = {}
    for tp, state in states.items():
        for broker in state.replicas:
            if broker in seen.brokers and state.leader >= 0:
                held.setdefault(broker, []).append(tp)
    followers = await admin.replica_ends(held)
    # Leaders are asked again: none of its followers is ahead of a leader's later answer.
    led = {leader: [tp for tp in some if states[tp].leader == leader] for leader, some in held.items()}
    leaders = await admin.replica_ends({leader: some for leader, some in led.items() if some})

    def lag(tp: TopicPartition, state: PartitionInfo, broker: int) -> int | None:
        end, own = leaders.get(state.leader, {}).get(tp), followers.get(broker, {}).get(tp)
        return None if end is None or own is None else 0 if broker == state.leader else max(end - own, 0)

    return {tp: [lag(tp, state, broker) for broker in state.replicas] for tp, state in states.items()}


def _brokers(seen: Cluster, controller: int) -> list[Row]:
    """Also those that hold replicas and don't live."""
    states = [state for topic in seen.topics.values() for state in topic.partitions.values()]
    led = Counter(state.leader for state in states)
    preferred = Counter(state.replicas[0] for state in states if state.replicas)
    held = Counter(broker for state in states for broker in state.replicas)
    in_sync = Counter(broker for state in states for broker in state.isr)
    offline = Counter(broker for state in states for broker in state.offline)
    rows = []
    for broker in sorted({*seen.brokers, *held}):
        at = seen.brokers.get(broker)
        rows.append(
            {
                "broker": broker,
                "address": "away" if at is None else f"{at.host}:{at.port}",
                "rack": None if at is None else at.rack,
                "controller": broker == controller,
                "leads": led[broker],
                "preferred": preferred[broker],
                "replicas": held[broker],
                "in_sync": in_sync[broker],
                "offline": offline[broker],
            }
        )
    return rows


def _lacks(state: PartitionInfo) -> bool:
    return state.leader < 0 or len(state.isr) < len(state.replicas)


def _trouble(state: PartitionInfo, least: int | None) -> str:
    if state.leader < 0:
        return NO_LEADER
    return UNDER_MIN_ISR if least is not None and len(state.isr) < min(least, len(state.replicas)) else UNDER_REPLICATED


async def _answered(question: Awaitable[T], otherwise: T) -> T:
    """What a question gives, if it does within ANSWER_S."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await question
    except TimeoutError:
        return otherwise


async def _min_isrs(admin: Admin, names: Iterable[str]) -> dict[str, int | None]:
    """Those of topics, up to the first that nobody answers."""
    found: dict[str, int | None] = {}
    for name in names:
        try:
            async with asyncio.timeout(ANSWER_S):
                found[name] = await _min_isr(admin, name)
        except TimeoutError:
            break
    return found


async def _min_isr(admin: Admin, name: str) -> int | None:
    """A topic's min.insync.replicas; None: the cluster doesn't say."""
    try:
        entries: Mapping[str, str | None] = {
            entry.name: entry.value for entry in await admin.config_entries(TOPIC_RESOURCE, name)
        }
    except KafkaError:
        return None
    text = entries.get(MIN_ISR)
    return int(text) if text is not None and text.isdecimal() else None
