"""Pictures of a run, and of figures over time; matplotlib comes with the extra `bench`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.bench.case import Measured, label
from penstock.bench.history import Entry
from penstock.bench.run import Run
from penstock.bench.sides import BEFORE, FLOOR, KAFKA, PENSTOCK
from penstock.bench.targets import TARGETS, Verdict

COLOURS = {PENSTOCK: "#2f6f9f", BEFORE: "#8fb0d0", KAFKA: "#c0504d", FLOOR: "#9f9f9f"}
# Picture -> its metric; every case that has it gets a group of bars.
BARS = {
    "cpu": "cpu_s_per_gb",
    "cpu-request": "cpu_us_per_request",
    "rate": "mb_per_s",
    "latency-p50": "p50_ms",
    "latency-p99": "p99_ms",
}


def draw(run: Run, folder: Path) -> list[Path]:
    """Write PNGs; what was drawn. Nothing when matplotlib isn't installed."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [_targets(run, folder / "targets.png", pyplot)]
    drawn += [_bars(run, metric, folder / f"{name}.png", pyplot) for name, metric in BARS.items()]
    for case in run.cases:
        if case.series and case.name in run.measured:
            drawn.append(_series(run.measured[case.name], case.series, folder / f"{case.name}.png", pyplot))
    drawn += [
        _steps(run.measured[case.name], folder / f"{case.name}.png", pyplot)
        for case in run.cases
        if case.name.startswith("steps-") and case.name in run.measured
    ]
    return [path for path in drawn if path is not None]


def draw_history(entries: Sequence[Entry], what: str, cases: set[str], path: Path) -> int:
    """Write a PNG: of each bound on these cases our figure over time, a line for each machine and scale, beside the limit.

    Returns how many figures were drawn; without one there is no picture. Raises ModuleNotFoundError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import dates, pyplot

    bounds = [bound for target in TARGETS[what] for bound in target.bounds if bound.case in cases]
    bounds = [bound for bound in bounds if any(bound.value(entry.cases) is not None for entry in entries)]
    if not bounds:
        return 0
    columns = min(len(bounds), 3)
    rows = math.ceil(len(bounds) / columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(5.5 * columns, 0.8 + 2.6 * rows), squeeze=False)
    for axes in grid.flat[len(bounds) :]:
        axes.set_visible(False)
    for axes, bound in zip(grid.flat, bounds, strict=False):
        for conditions in dict.fromkeys(entry.conditions for entry in entries):
            points = [(one.when, bound.value(one.cases)) for one in entries if one.conditions == conditions]
            measured = [(when, value) for when, value in points if value is not None]
            if measured:
                axes.plot(*zip(*measured, strict=True), marker=".", label=conditions)
        axes.axhline(bound.limit, color="black", linestyle=":")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{bound.case} {label(bound.metric)}{bound.multiple_of}", fontsize=9)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(axes.xaxis.get_major_locator()))
    lines = {name: line for axes in grid.flat for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(lines.values(), lines.keys(), loc="lower center", fontsize=8)
    figure.suptitle("dotted: the limit", fontsize=9)
    figure.tight_layout(rect=(0, 0.22 * (1 + len(lines)) / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    return len(bounds)


def _targets(run: Run, path: Path, pyplot: Any) -> Path | None:
    """Every bound that was measured, as a part of its limit: left of the line it is met."""
    bounds = [bound for target in TARGETS[run.what] for bound in target.bounds if bound.used(run.measured) is not None]
    if not bounds:
        return None
    figure, axes = pyplot.subplots(figsize=(11, 1.5 + 0.3 * len(bounds)))
    used = [max(bound.used(run.measured) or 0.0, 0.01) for bound in bounds]
    met = [bound.verdict(run.measured) is Verdict.MET for bound in bounds]
    axes.barh(range(len(bounds)), used, color=["#5f9f5f" if one else "#c0504d" for one in met])
    axes.axvline(1.0, color="black")
    axes.set_yticks(range(len(bounds)), [bound.text(run.measured) for bound in bounds], fontsize=8)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xscale("log")
    axes.set_xlabel("ours as a part of the limit (of rates: the limit as a part of ours); less is better")
    return _saved(figure, path, pyplot)


def _bars(run: Run, metric: str, path: Path, pyplot: Any) -> Path | None:
    cases = [
        one
        for one in run.measured.values()
        if one.median(PENSTOCK, metric) is not None and one.median(KAFKA, metric) is not None
    ]
    if not cases:
        return None
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.55 * len(cases)))
    for number, side in enumerate((PENSTOCK, KAFKA, FLOOR)):
        places = [place + (number - 1) * 0.27 for place in range(len(cases))]
        axes.barh(places, [one.median(side, metric) or 0 for one in cases], 0.25, color=COLOURS[side], label=side)
    axes.set_yticks(range(len(cases)), [one.name for one in cases])
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xscale("log")
    axes.set_xlabel(f"{label(metric)} (median of {run.rounds})")
    axes.legend()
    return _saved(figure, path, pyplot)


def _series(measured: Measured, prefixes: tuple[str, ...], path: Path, pyplot: Any) -> Path | None:
    if not measured.samples:
        return None
    figure, rows = pyplot.subplots(len(prefixes), 1, figsize=(9, 3 * len(prefixes)), squeeze=False)
    for axes, prefix in zip(rows[:, 0], prefixes, strict=True):
        for side, samples in measured.samples.items():
            values = [value for metric, value in samples[0].items() if metric.startswith(prefix)]
            axes.plot(range(1, len(values) + 1), values, marker=".", color=COLOURS[side], label=side)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label(prefix.removesuffix("_in_window_")))
        axes.set_xlabel("minute (sixth of the run, if that is shorter)")
    return _saved(figure, path, pyplot)


def _steps(measured: Measured, path: Path, pyplot: Any) -> Path | None:
    if not measured.samples:
        return None
    sample = measured.samples[PENSTOCK][0]
    parts = {name.removesuffix(" ns"): ns for name, ns in sample.items() if name.endswith(" ns")}
    whole = parts.pop("whole request")
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.35 * len(parts)))
    axes.barh(list(parts), [ns / 1e3 for ns in parts.values()], color=COLOURS[PENSTOCK])
    axes.invert_yaxis()
    axes.set_xlabel(f"us of a request's {whole / 1e3:.1f} us")
    axes.set_title(measured.title, fontsize=10)
    return _saved(figure, path, pyplot)


def _saved(figure: Any, path: Path, pyplot: Any) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
