"""The main job: start everything, feed day after day, watch, kill if asked to, then audit, check and draw."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import shutil
import signal
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import tasks
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.demo import flights
from penstock.pipeline.demo.check import Verdict, compare, count_values
from penstock.pipeline.demo.cluster import ClusterPart
from penstock.pipeline.demo.lag import watch
from penstock.pipeline.demo.parts import BrokerPart, Part, PartError
from penstock.pipeline.demo.picture import draw
from penstock.pipeline.demo.progress import Sample, Show
from penstock.pipeline.demo.scrape import Latency, counted
from penstock.pipeline.demo.scrape import watch as watch_requests
from penstock.pipeline.etl.ready import ready_marker

TOPIC = "flights"
PARTITIONS = 4
CODECS = {"EWR": "snappy", "JFK": "lz4", "LGA": "zstd"}
AGGREGATE = "aggregate"
MARKER = ".penstock-demo"
# A collector dies before it has seen an answer about once in so many chunks: 0.6 % of all events come twice.
CHUNKS_PER_DEATH = 167
# Days that collectors may be ahead of the table: enough to keep every stage busy, few enough to be nights.
DAYS_AHEAD = 1
KILL_PAUSE_S = (2.0, 5.0)
ETL_KILL_SHARE = 0.2
STALL_LIMIT_S = 300.0
STOPPED = " is STOPPED, "


@dataclass
class Plan:
    """What a run of the demo does."""

    out: Path
    first: datetime.date
    nights: int
    kill: bool
    seed: int
    cluster: bool = False

    @property
    def days(self) -> list[datetime.date]:
        """The flight year's days of this run."""
        return [self.first + datetime.timedelta(days=number) for number in range(self.nights)]


@dataclass
class Outcome:
    """What a run came to."""

    verdict: Verdict
    audit: dict[str, Any]
    sent: int
    duplicates: int
    kills: dict[str, int]
    seconds: float
    picture: Path
    scraped: dict[str, int]
    """What the stages have counted; nothing where one was killed meanwhile."""

    @property
    def right(self) -> bool:
        """The table is exact, and the audit found no hop at which counts part."""
        return self.verdict.exact and bool(self.audit["complete"])


@dataclass
class Run:
    """The processes of one run, and what is known of them."""

    plan: Plan
    show: Show
    brokers: dict[str, BrokerPart | ClusterPart]
    services: dict[str, Part] = field(default_factory=dict)
    collectors: dict[str, Part] = field(default_factory=dict)
    etl: Part | None = None
    samples: list[Sample] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    ending: bool = False

    @property
    def config(self) -> Path:
        """The pipeline's file."""
        return self.plan.out / "pipeline.properties"

    @property
    def table(self) -> Path:
        """The table's folder."""
        return self.plan.out / "table"

    def nights_done(self) -> int:
        """Nights whose ready marker is there, counted from the first."""
        done = 0
        for day in self.plan.days:
            if not (self.table / ready_marker(day.isoformat())).exists():
                break
            done += 1
        return done

    def kills(self) -> dict[str, int]:
        """How often each part was killed."""
        parts: list[Part | ClusterPart] = [*self.brokers.values(), *self.services.values(), *self.collectors.values()]
        if self.etl is not None:
            parts.append(self.etl)
        return {part.name: part.kills for part in parts if part.kills}


def prepare_folder(out: Path) -> None:
    """An empty folder for the run; only a folder of an earlier demo is ever emptied. Raises PartError."""
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        raise PartError(f"`{out}` is not empty and no earlier demo's folder; choose another with `--out`")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARKER).touch()


def _write_config(run: Run) -> None:
    lines = [f"source.{origin}.bootstrap.servers={run.brokers[origin].bootstrap}" for origin in flights.ORIGINS]
    lines += [
        f"bootstrap.servers={run.brokers[AGGREGATE].bootstrap}",
        "penstock.mirror.http.listen=127.0.0.1:0",
        "penstock.dedupe.http.listen=127.0.0.1:0",
        f"topics={TOPIC}",
        f"penstock.dedupe.data={run.plan.out / 'dedupe'}",
        f"penstock.etl.table={run.table}",
        "penstock.etl.schema=id STRING NOT NULL, day DATE NOT NULL, scheduled TIMESTAMP NOT NULL, carrier STRING, "
        "flight INT, tailnum STRING, origin STRING NOT NULL, dest STRING, dep_time INT, sched_dep_time INT, "
        "dep_delay INT, arr_time INT, sched_arr_time INT, arr_delay INT, air_time INT, distance INT",
        "penstock.etl.event.day=day",
        f"penstock.etl.time.zone={flights.TIME_ZONE}",
    ]
    run.config.write_text("\n".join(lines) + "\n")


async def _create_topics(run: Run) -> None:
    # Retention goes by record timestamps, and these flights are of 2013: nothing may expire.
    for name, broker in run.brokers.items():
        topics = [TOPIC, f"{TOPIC}.deduped"] if name == AGGREGATE else [TOPIC]
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topics(dict.fromkeys(topics, PARTITIONS), configs={"retention.ms": "-1"})


def _service(run: Run, name: str, *arguments: str) -> Part:
    return Part(name, ["-m", "penstock", name, "--config", str(run.config), *arguments], run.plan.out)


async def _keep(run: Run, part: Part, ready: str) -> None:
    """Start a service and start it again whenever the demo has killed it."""
    while True:
        kills = part.kills
        await part.start()
        while line := await part.line():
            if ready in line and kills:
                run.show.say(f"[dim]{part.name} is back[/dim]")
        code = await part.wait()
        if run.ending:
            return
        if part.kills == kills:
            raise PartError(f"{part.name} ended by itself (exit code {code}):\n{part.log_tail()}")


async def _collect(run: Run, origin: str, dice: random.Random) -> None:
    """Feed a collector its days; it dies now and then before it sees an answer, and is started again."""
    plan = run.plan
    part = run.collectors[origin]
    part.arguments = [
        "-m", "penstock.pipeline.demo.collector", "--bootstrap", run.brokers[origin].bootstrap, "--origin", origin,
        "--topic", TOPIC, "--codec", CODECS[origin], "--ledger", str(plan.out / f"{origin}.ledger"),
        "--last-day", plan.days[-1].isoformat(),
    ]  # fmt: skip
    counted = 0
    for number, day in enumerate(plan.days):
        while number > run.nights_done() + DAYS_AHEAD:  # noqa: ASYNC110 - ready markers are files
            await asyncio.sleep(0.1)
        done = False
        while not done:
            if not part.running:
                # At random, but about as often as said in a short run too: the first time soon, then evenly spread.
                dies_at = 1 + int(CHUNKS_PER_DEATH * dice.uniform(0.5 if part.kills else 0.0, 1.5 if part.kills else 1.0))
                part.environment = {"PENSTOCK_FAILPOINTS": f"demo.answer_not_seen=kill@{dies_at}"}
                await part.start()
            await part.tell(day.isoformat())
            acked = 0
            while line := await part.line():
                word, *rest = line.split()
                if word == "acked":
                    acked += int(rest[1])
                elif word == "done":
                    done = True
                    break
            if not done:
                code = await part.wait()
                if code != -signal.SIGKILL:
                    raise PartError(f"{part.name} ended (exit code {code}):\n{part.log_tail()}")
                part.kills += 1
        counted += acked
        run.show.advance("collected", acked)
    await part.stop()


async def _load(run: Run, nights: list[datetime.date], clock: str) -> None:
    """Load nights into the table; a killed or failed run is simply run again."""
    assert run.etl is not None
    part = run.etl
    part.arguments = [
        "-m", "penstock", "etl", "--config", str(run.config), "--clock", clock,
        "--nights", f"{nights[0]}..{nights[-1]}",
    ]  # fmt: skip
    while True:
        kills = part.kills
        await part.start()
        while await part.line():
            pass
        code = await part.wait()
        if code == 0:
            return
        if part.kills == kills and not (run.plan.kill and run.kills()):
            raise PartError(f"etl ended (exit code {code}):\n{part.log_tail()}")


async def _murder(run: Run, dice: random.Random) -> None:
    """kill -9 a part at a random moment, over and over.

    The ETL process is only killed again once a night has come since: its start takes long, and a run must end.
    """
    nights_at_kill = -1
    while True:
        await asyncio.sleep(dice.uniform(*KILL_PAUSE_S))
        victims: list[Part | ClusterPart] = [*run.brokers.values(), *run.services.values(), *run.services.values()]
        nights = run.nights_done()
        if run.etl is not None and run.etl.running and nights > nights_at_kill and dice.random() < ETL_KILL_SHARE:
            victims, nights_at_kill = [run.etl], nights
        victim = dice.choice([part for part in victims if part.running] or [run.services["mirror"]])
        if not isinstance(victim, ClusterPart):  # It says itself which of its brokers it has killed.
            run.show.say(f"[red]kill -9 {victim.name}[/red]")
        victim.kill()


async def _follow_nights(run: Run) -> None:
    """Show the nights that are there; a run in which nothing comes any more is ended with a reason."""
    loop = asyncio.get_running_loop()
    seen, since = (-1, -1.0), loop.time()
    while True:
        now = run.nights_done(), run.show.completed("collected")
        run.show.set("nights", now[0])
        if now != seen:
            seen, since = now, loop.time()
        elif loop.time() - since > STALL_LIMIT_S:
            tails = "\n".join(f"{part.name}:\n{part.log_tail()}" for part in run.services.values())
            raise PartError(f"nothing has come for {STALL_LIMIT_S:.0f} s; the last words of the stages:\n{tails}")
        for part in run.services.values():
            if STOPPED in part.log_tail():
                raise PartError(f"{part.name} has a partition that needs an operator:\n{part.log_tail()}")
        await asyncio.sleep(0.25)


async def _main_job(run: Run, dice: random.Random) -> None:
    """Collect and load all days; the guards beside it end with it."""
    days = run.plan.days
    work: list[Coroutine[Any, Any, None]] = [_collect(run, origin, random.Random(dice.random())) for origin in flights.ORIGINS]
    async with asyncio.TaskGroup() as group:
        for feed in work:
            group.create_task(feed)
        if len(days) > 1:
            # A night is over at a source once it holds a record of the day after.
            group.create_task(_load(run, days[:-1], "records"))
    # The last day has no day after; by the wall clock it is long over. Nights that are there are left alone.
    await _load(run, days, "wall")


async def _guarded(run: Run, dice: random.Random) -> None:
    """The main job among its guards: a guard that fails ends the run with its reason, and so does the caller's end."""
    main = asyncio.ensure_future(_main_job(run, dice))
    guards = [asyncio.ensure_future(broker.keep()) for broker in run.brokers.values()]
    guards += [asyncio.ensure_future(_keep(run, part, "started")) for part in run.services.values()]
    guards.append(asyncio.ensure_future(_follow_nights(run)))
    guards.append(asyncio.ensure_future(watch(run.config, run.show, run.samples, run.nights_done, run.plan.nights)))
    nodes = [node for broker in run.brokers.values() for node in broker.nodes]
    guards.append(asyncio.ensure_future(watch_requests(nodes, lambda: run.show.elapsed_s, run.latencies)))
    if run.plan.kill:
        guards.append(asyncio.ensure_future(_murder(run, dice)))
    try:
        done, _ = await asyncio.wait([main, *guards], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        run.ending = True
        await tasks.end(main, *guards)


async def _audit(run: Run) -> dict[str, Any]:
    part = _service(run, "audit", "--json")
    await part.start()
    assert part.process is not None and part.process.stdout is not None
    text = await part.process.stdout.read()
    code = await part.wait()
    if not text:
        raise PartError(f"audit ended (exit code {code}):\n{part.log_tail()}")
    answer = json.loads(text)
    assert isinstance(answer, dict)
    return answer


def _ledgers(out: Path) -> tuple[int, Counter[datetime.date]]:
    """Events sent by the ledgers, and events sent again, by day."""
    sent, again = 0, Counter[datetime.date]()
    for origin in flights.ORIGINS:
        seen: set[tuple[str, str]] = set()
        for line in (out / f"{origin}.ledger").read_text().splitlines():
            word, _, rest = line.partition(" ")
            if word == "sent":
                day, chunk, count = rest.split()
                sent += int(count)
                if (day, chunk) in seen:
                    again[datetime.date.fromisoformat(day)] += int(count)
                seen.add((day, chunk))
    return sent, again


async def demo(plan: Plan, show: Show) -> Outcome:
    """Run the main job. Raises PartError when a part fails that the demo didn't kill. SIGTERM ends it like Ctrl-C."""
    whole = asyncio.current_task()
    assert whole is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, whole.cancel)
    prepare_folder(plan.out)
    dice = random.Random(plan.seed)
    brokers: dict[str, BrokerPart | ClusterPart] = {name: BrokerPart(name, plan.out) for name in flights.ORIGINS}
    aggregate = ClusterPart(AGGREGATE, plan.out, TOPIC, show.say) if plan.cluster else BrokerPart(AGGREGATE, plan.out)
    run = Run(plan, show, {**brokers, AGGREGATE: aggregate})
    try:
        await asyncio.gather(*(broker.start() for broker in run.brokers.values()))
        await _create_topics(run)
        _write_config(run)
        job.load(run.config)
        run.services = {name: _service(run, name) for name in ("mirror", "dedupe")}
        run.collectors = {name: Part(f"collector-{name}", [], plan.out) for name in flights.ORIGINS}
        run.etl = Part("etl", [], plan.out)
        await _guarded(run, dice)
        for broker in run.brokers.values():
            if not broker.running:
                await broker.start()
        audit = await _audit(run)
        were_killed = any(part.kills for part in run.services.values())
        scraped = {} if were_killed else await counted(run.services["mirror"], run.services["dedupe"])
    finally:
        run.ending = True
        await _stop_all(run)
    sent, again = _ledgers(plan.out)
    picture = plan.out / "demo.png"
    loaded = count_values(run.table, "day")
    draw(picture, loaded, again, run.samples, run.latencies, f"{loaded.total():,} flights in {plan.nights} nights")
    return Outcome(
        verdict=compare(run.table, plan.days[0], plan.days[-1]),
        audit=audit,
        sent=sent,
        duplicates=again.total(),
        kills=run.kills(),
        seconds=show.elapsed_s,
        picture=picture,
        scraped=scraped,
    )


async def _stop_all(run: Run) -> None:
    """Clients first, then brokers, each by SIGTERM."""
    clients: list[Part] = [*run.collectors.values(), *run.services.values()]
    if run.etl is not None:
        clients.append(run.etl)
    await asyncio.gather(*(part.stop() for part in clients))
    await asyncio.gather(*(broker.stop() for broker in run.brokers.values()))
