"""The demo's picture: events and duplicates per day; each stage's lag, and how long requests take, through the run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import dates, pyplot

from penstock.pipeline.demo.lag import seconds_behind
from penstock.pipeline.demo.progress import Sample
from penstock.pipeline.demo.scrape import Latency

matplotlib.use("Agg")

COLORS = {"mirror": "#2f6f9f", "dedupe": "#7f9f3f"}


def draw(
    path: Path,
    loaded: Mapping[datetime.date, int],
    duplicates: Mapping[datetime.date, int],
    samples: Sequence[Sample],
    latencies: Sequence[Latency],
    title: str,
) -> None:
    """Write a PNG. `loaded` counts table rows by event day, `duplicates` events sent twice by event day."""
    # A run that ends before the second scrape has no requests to draw.
    heights = [3, 2, 3, 2, 2] if latencies else [3, 2, 3, 2]
    figure, (rows, again, lag, wait, *others) = pyplot.subplots(
        len(heights), 1, figsize=(11, 2 + sum(heights)), height_ratios=heights
    )
    days = sorted(loaded)
    rows.bar(days, [loaded[day] for day in days], width=0.9, color="#2f6f9f")
    rows.set_ylabel("events in the table")
    rows.set_title(title)
    again.bar(days, [duplicates.get(day, 0) for day in days], width=0.9, color="#c0504d")
    again.set_ylabel("duplicates dropped")
    again.sharex(rows)
    seconds = [sample.at_s for sample in samples]
    lag.plot(seconds, [sample.mirror_lag for sample in samples], label="mirror", color=COLORS["mirror"])
    lag.plot(seconds, [sample.dedupe_lag for sample in samples], label="dedupe", color=COLORS["dedupe"])
    lag.set_ylabel("lag, offsets behind")
    nights = lag.twinx()
    nights.plot(seconds, [sample.nights_behind for sample in samples], label="etl", color="#c0504d", linestyle=":")
    nights.set_ylabel("nights behind")
    lag.legend(loc="upper center")
    nights.legend(loc="upper right")
    read = {"mirror": [sample.mirrored for sample in samples], "dedupe": [sample.deduped for sample in samples]}
    behind = {"mirror": [sample.mirror_lag for sample in samples], "dedupe": [sample.dedupe_lag for sample in samples]}
    for name, color in COLORS.items():
        wait.plot(seconds, seconds_behind(seconds, read[name], behind[name]), label=name, color=color)
    wait.set_ylabel("lag, seconds\nsince arrival")
    wait.legend(loc="upper center")
    for requests in others:
        _draw_requests(requests, latencies)
    for below in (wait, *others):
        below.sharex(lag)
    for above in (lag, wait, *others)[:-1]:
        above.tick_params(labelbottom=False)
    (wait, *others)[-1].set_xlabel("seconds of the run")
    rows.tick_params(labelbottom=False)
    again.xaxis.set_major_formatter(dates.ConciseDateFormatter(again.xaxis.get_major_locator()))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_requests(axes: Any, latencies: Sequence[Latency]) -> None:
    moments = [sample.at_s for sample in latencies]
    axes.plot(moments, [sample.p99_s * 1000 for sample in latencies], label="99 in 100", color="#c0504d")
    axes.plot(moments, [sample.median_s * 1000 for sample in latencies], label="median", color="#2f6f9f")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("produce requests,\nms to the answer")
    axes.legend(loc="upper center")
