"""The demo's picture: events per day, duplicates per day, and each stage's lag through the run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib import dates, pyplot

from penstock.pipeline.demo.progress import Sample

matplotlib.use("Agg")


def draw(
    path: Path,
    loaded: Mapping[datetime.date, int],
    duplicates: Mapping[datetime.date, int],
    samples: Sequence[Sample],
    title: str,
) -> None:
    """Write a PNG. `loaded` counts table rows by event day, `duplicates` events sent twice by event day."""
    figure, (rows, again, lag) = pyplot.subplots(3, 1, figsize=(11, 9), height_ratios=[3, 2, 3])
    days = sorted(loaded)
    rows.bar(days, [loaded[day] for day in days], width=0.9, color="#2f6f9f")
    rows.set_ylabel("events in the table")
    rows.set_title(title)
    again.bar(days, [duplicates.get(day, 0) for day in days], width=0.9, color="#c0504d")
    again.set_ylabel("duplicates dropped")
    again.sharex(rows)
    seconds = [sample.at_s for sample in samples]
    lag.plot(seconds, [sample.mirror_lag for sample in samples], label="mirror", color="#2f6f9f")
    lag.plot(seconds, [sample.dedupe_lag for sample in samples], label="dedupe", color="#7f9f3f")
    lag.set_ylabel("lag, offsets behind")
    lag.set_xlabel("seconds of the run")
    nights = lag.twinx()
    nights.plot(seconds, [sample.nights_behind for sample in samples], label="etl", color="#c0504d", linestyle=":")
    nights.set_ylabel("nights behind")
    lag.legend(loc="upper center")
    nights.legend(loc="upper right")
    rows.tick_params(labelbottom=False)
    again.xaxis.set_major_formatter(dates.ConciseDateFormatter(again.xaxis.get_major_locator()))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
