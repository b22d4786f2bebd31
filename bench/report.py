"""What a run found, for people (terminal, Markdown) and for programs (JSON). One list of tables serves both of the former."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.bench.case import Measured, label, show
from penstock.bench.cases.linkedin import END_TO_END, END_TO_END_PUBLISHED_MS, PUBLISHED
from penstock.bench.run import Run
from penstock.bench.sides import FLOOR, KAFKA, NAMES, PENSTOCK
from penstock.bench.targets import FULL_SCALE, TARGETS, Target, Verdict
from penstock.bench.world import RECYCLED_TOPIC, RECYCLING

COLOURS = {Verdict.MET: "green", Verdict.MISSED: "red", Verdict.NOT_MEASURED: "yellow"}


@dataclass
class Sheet:
    """A table: the first column is words, the others are numbers."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    words: bool = False  # all columns are words


def sheets(run: Run) -> list[Sheet]:
    """Targets first, then LinkedIn's rows, then every case."""
    found = [targets_sheet(run)]
    floors = floors_sheet(run)
    if floors.rows:
        found.append(floors)
    if any(name.startswith("linkedin") for name in run.measured):
        found.append(linkedin_sheet(run))
    found += [case_sheet(run, measured) for measured in run.measured.values()]
    return found


def targets_sheet(run: Run) -> Sheet:
    """Each target with our figures beside it, and why it is missed or not measured."""
    sheet = Sheet(f"Targets of the {run.what}", ("figure", "target", "ours", "verdict", "why"), words=True)
    for target in TARGETS[run.what]:
        ours = "\n".join(bound.text(run.measured) for bound in target.bounds)
        sheet.rows.append([target.figure, target.target, ours, target.verdict(run.measured).value, why(run, target)])
    return sheet


def why(run: Run, target: Target) -> str:
    """The reason of a verdict that isn't `met`."""
    verdict = target.verdict(run.measured)
    if verdict is Verdict.MET:
        return ""
    reasons = [target.why] if verdict is Verdict.MISSED and target.why else []
    for case in dict.fromkeys(bound.case for bound in target.bounds):
        if case not in run.measured:
            reasons.append(f"{case}: not part of this run")
        else:
            reasons += [f"{case} on {side}: {text}" for side, text in run.measured[case].failed.items()]
    return "\n".join(reasons)


# What a floor does -> the case that measures it, and its metric.
FLOORS = {
    "epoll ping-pong, 1 connection, 5 in flight": ("request-5", "cpu_us_per_request"),
    "epoll ping-pong, 16 connections": ("request-16x1", "cpu_us_per_request"),
    "recv + pwrite of 1 MB requests": ("produce-1m", "cpu_s_per_gb"),
    "recv + pwrite of 16 KB requests": ("produce-16k", "cpu_s_per_gb"),
    "sendfile, 1 consumer": ("consume-1", "cpu_s_per_gb"),
    "sendfile, 4 consumers": ("consume-4", "cpu_s_per_gb"),
}


def floors_sheet(run: Run) -> Sheet:
    """What this machine takes for the bare system calls, in the same run and by the same clients."""
    sheet = Sheet("Floors of this machine", ("floor", "CPU", "penstock", "x floor"))
    for what, (case, metric) in FLOORS.items():
        measured = run.measured.get(case)
        value = measured.median(FLOOR, metric) if measured else None
        if measured and value is not None:
            unit = label(metric).removeprefix("broker CPU ")
            cells = [_cell(measured, PENSTOCK, metric), _ratio(measured, metric, FLOOR)]
            sheet.rows.append([what, f"{show(metric, value)} {unit}", *cells])
    return sheet


def linkedin_sheet(run: Run) -> Sheet:
    """The published rows under their own names; six machines then, one now."""
    columns = ("row (LinkedIn, 2014)", "published", "penstock here", "Apache Kafka here", "CPU, x Kafka")
    sheet = Sheet("LinkedIn's rows, 100-byte records", columns)
    by_title = {measured.title: measured for measured in run.measured.values()}
    for title, (records, megabytes) in PUBLISHED.items():
        cells = _linkedin_cells(by_title.get(title), "records_per_s", "cpu_s_per_gb")
        sheet.rows.append([title, f"{records:,.0f} records/s ({megabytes} MB/s)", *cells])
    published = ", ".join(f"{value:g}" for value in END_TO_END_PUBLISHED_MS.values())
    measured = by_title.get(END_TO_END)
    cells = _linkedin_cells(measured, "average_ms", "cpu_us_per_request")
    if measured is not None and measured.samples:
        cells[:2] = [_latencies(measured, side) for side in (PENSTOCK, KAFKA)]
    sheet.rows.append([END_TO_END, f"{published} ms (median, p99, p99.9)", *cells])
    return sheet


def _latencies(measured: Measured, side: str) -> str:
    values = [measured.median(side, metric) for metric in (*END_TO_END_PUBLISHED_MS, "average_ms")]
    if None in values:
        return ""
    p50, p99, p999, average = values
    return f"{p50:g}, {p99:g}, {p999:g} ms (average {average:.2f})"


def _linkedin_cells(measured: Measured | None, metric: str, cost: str) -> list[str]:
    if measured is None:
        return ["not part of this run", "", ""]
    if not measured.samples:
        return ["; ".join(sorted(set(measured.failed.values()))), "", ""]
    return [*(_cell(measured, side, metric) for side in (PENSTOCK, KAFKA)), _ratio(measured, cost, KAFKA)]


def case_sheet(run: Run, measured: Measured) -> Sheet:
    """Medians of a case by side, and ours as a multiple of the others."""
    sides = [side for side in NAMES if side in measured.samples]
    others = [side for side in sides if side != PENSTOCK and PENSTOCK in sides]
    columns = ["median", *sides, *(f"x {side}" for side in others)]
    sheet = Sheet(f"{measured.name}: {measured.title}", columns)
    for metric in measured.metrics():
        cells = [_cell(measured, side, metric) for side in sides]
        sheet.rows.append([label(metric), *cells, *(_ratio(measured, metric, side) for side in others)])
    for side, text in measured.failed.items():
        sheet.rows.append([f"{side}: {text}", *[""] * (len(columns) - 1)])
    return sheet


def _cell(measured: Measured, side: str, metric: str) -> str:
    value = measured.median(side, metric)
    return "" if value is None else show(metric, value)


def _ratio(measured: Measured, metric: str, side: str) -> str:
    ours, other = measured.median(PENSTOCK, metric), measured.median(side, metric)
    return f"{ours / other:.2f}" if ours is not None and other else ""


def preface(run: Run) -> list[str]:
    """What has to be known to read the figures."""
    lines = [f"{name}: {value}" for name, value in run.machine.items()]
    lines.append(f"{run.rounds} rounds in turn, medians; scale {run.scale:g}; {sum(run.took_s.values()) / 60:.0f} minutes")
    if run.scale < FULL_SCALE:
        lines.append("A scale below 1 shortens the load: absolute targets (memory, recovery, partitions) are easier.")
    lines.append("CPU time has a grain of 10 ms. GB = 1e9 bytes of record values before compression.")
    return lines + PREFACES.get(run.what, list)()


def _broker_preface() -> list[str]:
    return [
        *_recycling_preface(),
        "Both brokers run all the time, the one that isn't measured is idle. Broker CPU is user + system of all its threads.",
    ]


def _cluster_preface() -> list[str]:
    return [
        "Three brokers of each side on this machine. One ZooKeeper server of release 3.8, with Debian's ticks, serves ours; "
        "its CPU is shown apart. Each node of Kafka is broker and controller.",
        *_recycling_preface(),
        "All six run all the time, those that aren't measured are idle. Broker CPU is user + system of a side's three.",
    ]


def _recycling_preface() -> list[str]:
    recycling = ", ".join(f"{name}={value}" for name, value in RECYCLED_TOPIC.items())
    settings = ", ".join(f"{name}={value}" for name, value in RECYCLING[KAFKA].items())
    return [
        f"Settings that are not defaults: both brokers look for old segments often ({settings}), and the topics of produce "
        f"cases keep little ({recycling}), so that pages are used again; life-cycle cases have defaults throughout.",
        "Segments of such topics live for less than a second. Kafka flushes a segment as soon as it is sealed, ours a second "
        "later, so ours never writes them to the disk; where they live longer, a produce costs a sixth more of its CPU.",
    ]


PREFACES = {"broker": _broker_preface, "cluster": _cluster_preface}


def tell(run: Run, console: Console) -> None:
    """Print everything."""
    for line in preface(run):
        console.print(line, highlight=False)
    for sheet in sheets(run):
        table = Table(title=sheet.title, title_justify="left", show_lines=sheet.words)
        for number, column in enumerate(sheet.columns):
            table.add_column(column, justify="left" if sheet.words or not number else "right", overflow="fold")
        for row in sheet.rows:
            table.add_row(*_coloured(row))
        console.print(table)


def _coloured(row: Sequence[str]) -> Iterable[str]:
    colours = {verdict.value: colour for verdict, colour in COLOURS.items()}
    for cell in row:
        yield f"[{colours[cell]}]{cell}[/]" if cell in colours else cell.replace("[", r"\[")


def markdown(run: Run, pictures: Sequence[Path] = ()) -> str:
    """The same as a file."""
    lines = [f"# Benchmark of the {run.what}", ""]
    lines += [f"- {line}" for line in preface(run)]
    for sheet in sheets(run):
        lines += ["", f"## {sheet.title}", ""]
        lines.append("| " + " | ".join(sheet.columns) + " |")
        marks = ["---" if sheet.words or not number else "---:" for number in range(len(sheet.columns))]
        lines.append("| " + " | ".join(marks) + " |")
        for row in sheet.rows:
            lines.append("| " + " | ".join(cell.replace("|", r"\|").replace("\n", "<br>") for cell in row) + " |")
    lines += [line for picture in pictures for line in ("", f"![{picture.stem}]({picture.name})")]
    return "\n".join(lines) + "\n"


def as_json(run: Run) -> str:
    """Everything that was measured, each round by itself, and the verdicts."""
    cases = {
        name: {
            "title": measured.title,
            "samples": measured.samples,
            "median": {
                side: {metric: measured.median(side, metric) for metric in measured.metrics()} for side in measured.samples
            },
            "failed": measured.failed,
            "took_s": run.took_s.get(name),
        }
        for name, measured in run.measured.items()
    }
    targets = [
        {
            "figure": target.figure,
            "target": target.target,
            "verdict": target.verdict(run.measured).value,
            "ours": [bound.text(run.measured) for bound in target.bounds],
            "why": why(run, target),
        }
        for target in TARGETS[run.what]
    ]
    whole = {"machine": run.machine, "rounds": run.rounds, "scale": run.scale, "targets": targets, "cases": cases}
    return json.dumps(whole, indent=1)
