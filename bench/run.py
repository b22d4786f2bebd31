"""A run: every case, its sides in turn, round after round; what failed is said and the rest goes on."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock import __version__
from penstock.bench.apache_kafka import KAFKA_VERSION
from penstock.bench.case import Case, Measured, Sample, label, show
from penstock.bench.disk import file_system
from penstock.bench.sides import BEFORE, KAFKA, MIRROR_MAKER, PENSTOCK, SPARK
from penstock.bench.world import Skipped, World

Say = Callable[[str], None]
BUSY_LOAD = 0.7
WHEN = "%Y-%m-%d %H:%M UTC"  # how the date of a run is written


@dataclass
class Run:
    """What is asked for, and what came of it so far."""

    cases: Sequence[Case]
    sides: tuple[str, ...]
    rounds: int
    scale: float
    minutes: float
    machine: dict[str, str] = field(default_factory=dict)
    measured: dict[str, Measured] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    what: str = "broker"  # or "pipeline", "cluster": which targets it is held against


def chosen(cases: Sequence[Case], only: str | None) -> list[Case]:
    """The cases whose name a regular expression finds. Raises re.error."""
    return [case for case in cases if only is None or re.search(only, case.name)]


def carry_out(run: Run, world: World, say: Say, after_each: Callable[[], None]) -> None:
    """Measure everything; `after_each` is called when a case is done."""
    run.machine = machine(world)
    if os.getloadavg()[0] > BUSY_LOAD:
        say(f"the machine is busy (load {os.getloadavg()[0]:.1f}): trust no figure of this run")
    for number, case in enumerate(run.cases, 1):
        say(f"[{number}/{len(run.cases)}] {case.name}: {case.title}")
        started = time.monotonic()
        run.measured[case.name] = _case(run, case, world, say)
        run.took_s[case.name] = time.monotonic() - started
        say(f"    took {run.took_s[case.name]:.0f} s")
        after_each()


def sides_of(case: Case) -> tuple[str, ...]:
    """Those that a run may choose from. A case that compares us with Apache Kafka's compares us with an earlier commit, too."""
    return (PENSTOCK, BEFORE, *case.sides[1:]) if {KAFKA, MIRROR_MAKER, SPARK} & {*case.sides} else case.sides


def _case(run: Run, case: Case, world: World, say: Say) -> Measured:
    measured = Measured(case.name, case.title)
    sides = [side for side in sides_of(case) if side in run.sides]
    prepared: list[str] = []
    try:
        for side in sides:
            prepared.append(side)
            _try(measured, side, say, lambda side=side: case.prepare(world, side))  # type: ignore[misc]
        rounds = min(run.rounds, case.rounds_max)
        for number in range(0 if case.warm else 1, rounds + 1):
            for side in sides:
                if side not in measured.failed:
                    sample = _try(measured, side, say, lambda side=side: _sample(case, world, side))  # type: ignore[misc]
                    if sample is not None and number:
                        measured.samples.setdefault(side, []).append(sample)
                        say(f"    {side:9} round {number}: {brief(sample)}")
    finally:
        for side in prepared:
            _try(measured, side, say, lambda side=side: case.finish(world, side))  # type: ignore[misc]
    return measured


def _sample(case: Case, world: World, side: str) -> Sample:
    """A round, and how much of the processors a virtual machine's host gave to others meanwhile.

    That comes in pieces of milliseconds: one per cent of it is in every figure that a hundredth decides, such as a p99.
    """
    before = _processor_times()
    sample = case.run(world, side)
    stolen, total = (after - then for after, then in zip(_processor_times(), before, strict=True))
    return {**sample, "stolen_percent": 100 * stolen / max(total, 1)}


def _processor_times() -> tuple[int, int]:
    """Ticks of all processors together since the machine started: taken by its host, and all."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]  # guests' are in others
    return ticks[7], sum(ticks)


def _try(measured: Measured, side: str, say: Say, work: Callable[[], Sample | None]) -> Sample | None:
    try:
        return work()
    except Skipped as reason:
        text = str(reason)
    except Exception as error:  # noqa: BLE001 - the other cases are still worth measuring; this one's failure is reported
        text = _short(f"{type(error).__name__}: {error}")
    measured.failed.setdefault(side, text)  # the first failure is the cause of the others
    say(f"    {side:9} {text}")
    return None


def _short(text: str) -> str:
    """The first and the last line: what failed, and in what came along of a log the reason."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def brief(sample: Sample, most: int = 4) -> str:
    """A sample's first metrics on one line."""
    return ", ".join(f"{label(metric)} {show(metric, value)}" for metric, value in list(sample.items())[:most])


def commit(folder: Path) -> str:
    """The commit of a source tree, `+` when it was changed since; nothing where there is no tree."""
    git = ["git", "-C", str(folder)]
    try:
        described = subprocess.run([*git, "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return described.stdout.strip()


def machine(world: World) -> dict[str, str]:
    """What the figures depend on."""
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    memory = re.search(r"^MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(), re.M)
    return {
        "when": datetime.datetime.now(datetime.UTC).strftime(WHEN),
        "cores": f"{os.cpu_count()} x {models[0] if models else platform.machine()}",
        "memory": f"{int(memory[1]) / (1 << 20):.0f} GiB" if memory else "?",
        "kernel": platform.release(),
        "file system": file_system(world.folder),
        "load at the start": f"{os.getloadavg()[0]:.2f}",
        "TCP congestion control": congestion.read_text().strip() if congestion.exists() else "?",
        "penstock": f"{__version__} {commit(Path(__file__).resolve().parent)}".strip(),
        **({"before": commit(world.before)} if world.before else {}),
        "Apache Kafka": f"{KAFKA_VERSION}, KRaft, 1 GiB heap a node",
    }
