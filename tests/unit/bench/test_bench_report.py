"""Targets are judged by what was measured, and the report says so in each of its forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from penstock.bench import plots, report
from penstock.bench.case import Measured
from penstock.bench.cases import BROKER_CASES, CASES
from penstock.bench.command import command
from penstock.bench.run import Run, chosen
from penstock.bench.sides import FLOOR, KAFKA, PENSTOCK
from penstock.bench.targets import TARGETS, Bound, Target, Verdict


def measured(name: str, **sides: list[float]) -> dict[str, Measured]:
    samples = {side: [{"cpu_s_per_gb": value, "mb_per_s": 100.0} for value in values] for side, values in sides.items()}
    return {name: Measured(name, name, samples)}


def test_medians_not_means_are_judged() -> None:
    cases = measured("p", penstock=[0.2, 9.0, 0.3], kafka=[1.0, 1.0, 1.0])
    assert cases["p"].median(PENSTOCK, "cpu_s_per_gb") == 0.3
    assert Bound("p", "cpu_s_per_gb", 0.3, times=KAFKA).verdict(cases) is Verdict.MET
    assert Bound("p", "cpu_s_per_gb", 0.29, times=KAFKA).verdict(cases) is Verdict.MISSED
    assert measured("p", penstock=[1.0, 3.0])["p"].median(PENSTOCK, "cpu_s_per_gb") == 2.0


@pytest.mark.parametrize(
    ("sides", "verdict"),
    [
        ({PENSTOCK: [0.2], KAFKA: [1.0]}, Verdict.MET),
        ({PENSTOCK: [0.9], KAFKA: [1.0]}, Verdict.MISSED),
        ({PENSTOCK: [0.6], KAFKA: [9.0]}, Verdict.MISSED),  # the multiple holds, the absolute limit doesn't
        ({PENSTOCK: [0.2]}, Verdict.NOT_MEASURED),
        ({PENSTOCK: [0.9]}, Verdict.MISSED),  # one bound is enough for that
        ({}, Verdict.NOT_MEASURED),
    ],
)
def test_a_target_is_met_only_if_all_of_it_was_measured(sides: dict[str, list[float]], verdict: Verdict) -> None:
    bounds = (Bound("p", "cpu_s_per_gb", 0.3, times=KAFKA), Bound("p", "cpu_s_per_gb", 0.55))
    assert Target("f", "t", bounds).verdict(measured("p", **sides)) is verdict


def test_a_rate_is_judged_from_below() -> None:
    cases = measured("p", penstock=[1.0], floor=[1.0])
    assert Bound("p", "mb_per_s", 101, at_least=True).verdict(cases) is Verdict.MISSED
    assert Bound("p", "mb_per_s", 1.0, times=FLOOR, at_least=True).verdict(cases) is Verdict.MET


def test_each_bound_is_measured_by_a_case() -> None:
    assert TARGETS.keys() == CASES.keys()
    for what, targets in TARGETS.items():
        sides = {case.name: case.sides for case in CASES[what]}
        for bound in (bound for target in targets for bound in target.bounds):
            assert PENSTOCK in sides[bound.case]
            assert not bound.times or bound.times in sides[bound.case]


def a_run() -> Run:
    cases = chosen(BROKER_CASES, "^produce-1m$|^linkedin-(async|producer)$|^sustained$")
    run = Run(cases, (PENSTOCK, KAFKA, FLOOR), 1, 0.1, 1.0, {"kernel": "6"})
    run.measured |= measured("produce-1m", penstock=[0.2], kafka=[2.0], floor=[0.15])
    run.measured["linkedin-producer"] = Measured(
        "linkedin-producer",
        "Single producer thread, no replication",
        {
            PENSTOCK: [{"records_per_s": 900_000, "cpu_s_per_gb": 1.0}],
            KAFKA: [{"records_per_s": 3e5, "cpu_s_per_gb": 4.0}],
        },
    )
    run.measured["linkedin-async"] = Measured(
        "linkedin-async",
        "Single producer thread, 3x asynchronous replication",
        failed={PENSTOCK: "librdkafka is not installed"},
    )
    run.measured["sustained"] = Measured(
        "sustained", "long", {PENSTOCK: [{"mb_per_s_in_window_1": 40.0, "p99_ms_in_window_1": 1.0}]}
    )
    return run


def test_the_markdown_has_targets_reasons_and_linkedins_rows() -> None:
    text = report.markdown(a_run())
    assert "| produce CPU s/GB, 1 MB batches, recycled pages |" in text
    assert "produce-1m broker CPU s/GB: 0.10 (<= 0.25 x Kafka)" in text
    assert "| met |" in text and "| not measured |" in text
    assert "memory: not part of this run" in text
    assert "| Single producer thread, no replication | 821,557 records/s (78.3 MB/s) | 900,000 | 300,000 | 0.25 |" in text
    assert "librdkafka is not installed" in text
    assert "scale below 1" in text


def test_json_and_terminal_say_the_same() -> None:
    run = a_run()
    whole = json.loads(report.as_json(run))
    assert whole["targets"][0]["verdict"] == "met"
    assert whole["cases"]["produce-1m"]["median"]["penstock"]["cpu_s_per_gb"] == 0.2
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    report.tell(run, console)
    assert "821,557 records/s" in console.export_text()


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = plots.draw(a_run(), tmp_path)
    assert {path.name for path in drawn} == {"targets.png", "cpu.png", "rate.png", "sustained.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_the_command_lists_and_refuses() -> None:
    listed = CliRunner().invoke(command, ["--list", "--only", "^ack"])
    assert [line.split()[0] for line in listed.output.splitlines()] == [
        "ack-latency",
        "ack-latency-busy",
        "ack-latency-hoarded",
        "ack-latency-hoarded-ordinary",
        "ack-latency-scraped",
    ]
    no_checkout = ["--only", "^ack", "--before", "bench"]
    for arguments in (no_checkout, ["--only", "nothing-like-it"], ["--only", "("], ["elsewhere"], ["--scale", "0"]):
        refused = CliRunner().invoke(command, arguments)
        assert refused.exit_code != 0 and "Traceback" not in refused.output
