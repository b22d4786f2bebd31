"""The table of figures in a document keeps what a run didn't measure, and names the run of each row."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.bench import figures
from penstock.bench.case import Measured
from penstock.bench.command import command
from penstock.bench.run import Run
from penstock.bench.sides import KAFKA, PENSTOCK
from penstock.bench.targets import ALL_TARGETS, BROKER_TARGETS

WITH_CASES = [target for target in BROKER_TARGETS if target.bounds]
KEYED = next(target for target in WITH_CASES if target.bounds[0].case == "produce-100b")
BATCHES = next(target for target in WITH_CASES if target.bounds[0].case == "produce-1m")


def a_run(commit: str, **ours: float) -> Run:
    """Of five rounds, of which its cases take three."""
    run = Run([], (PENSTOCK, KAFKA), 5, 1.0, 30.0, {"penstock": commit, "when": "2026-01-31 00:00 UTC"})
    for case, value in ours.items():
        name = case.replace("_", "-")
        run.measured[name] = Measured(name, name, {PENSTOCK: 3 * [{"cpu_s_per_gb": value}], KAFKA: 3 * [{"cpu_s_per_gb": 1.0}]})
    return run


def rows(document: Path) -> dict[str, str]:
    lines = [line for line in document.read_text().splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines[2:]}


def test_each_row_is_of_the_run_that_measured_it(tmp_path: Path) -> None:
    document = tmp_path / "ROADMAP.md"
    document.write_text(f"# Words\n\n{figures.BEGIN}\n{figures.END}\n\nMore words.\n")
    assert figures.update(document, a_run("c0ffee1", produce_100b=0.11, produce_1m=0.2)) == 2
    assert figures.update(document, a_run("c0ffee2", produce_100b=0.31)) == 1
    found = rows(document)
    assert list(found) == [target.figure for target in ALL_TARGETS]
    assert "0.31 (<= 0.25 x Kafka)" in found[KEYED.figure]
    assert "| missed | c0ffee2, 2026-01-31 00:00 UTC, 3 x, scale 1 |" in found[KEYED.figure]
    assert "0.20 (<= 0.25 x Kafka)" in found[BATCHES.figure] and "| met | c0ffee1, " in found[BATCHES.figure]
    assert sum(figures.NEVER in line for line in found.values()) == len([target for target in ALL_TARGETS if target.bounds]) - 2
    for missing in (target for target in ALL_TARGETS if not target.bounds):
        assert missing.why.startswith("not there: ")
        assert f"| {missing.why} | missed |" in found[missing.figure]
    assert document.read_text().startswith("# Words\n\n<!--") and document.read_text().endswith("-->\n\nMore words.\n")


def test_a_verdict_says_what_was_easier_than_its_target(tmp_path: Path) -> None:
    document = tmp_path / "ROADMAP.md"
    document.write_text(f"{figures.BEGIN}\n{figures.END}\n")
    long, start = (next(target for target in WITH_CASES if target.bounds[0].case == case) for case in ("sustained", "start"))
    run = a_run("c0ffee1", produce_100b=0.11)
    run.scale, run.minutes = 0.4, 2.0
    for target in (long, start):
        for bound in target.bounds:
            value = 2 * bound.limit if bound.at_least else bound.limit / 2
            samples = run.measured.setdefault(bound.case, Measured(bound.case, "", {PENSTOCK: [{}]})).samples
            samples[PENSTOCK][0][bound.metric] = value
    assert figures.update(document, run) == 3
    found = rows(document)
    assert "| met at scale 0.4 over 2 minutes |" in found[long.figure]
    assert "| met at scale 0.4 |" in found[start.figure]
    assert "| met |" in found[KEYED.figure], "a multiple of Apache Kafka's, measured alike"


@pytest.mark.parametrize("text", ["no table", f"{figures.END}\n{figures.BEGIN}", figures.BEGIN])
def test_a_document_without_a_place_is_left_alone(tmp_path: Path, text: str) -> None:
    document = tmp_path / "ROADMAP.md"
    document.write_text(text)
    with pytest.raises(figures.NoTable, match=r"ROADMAP\.md"):
        figures.update(document, a_run("c0ffee1", produce_1m=0.2))
    assert document.read_text() == text
    refused = CliRunner().invoke(command, ["--only", "^produce-1m$", "--figures", str(document), "--out", str(tmp_path)])
    assert refused.exit_code != 0 and "has no `<!-- figures" in refused.output and "Traceback" not in refused.output


def test_the_roadmap_has_the_table() -> None:
    roadmap = Path(__file__).parents[3] / "ROADMAP.md"
    assert roadmap.read_text().count(figures.BEGIN) == roadmap.read_text().count(figures.END) == 1
    table = rows(roadmap)
    assert list(table) == [target.figure for target in ALL_TARGETS]
    for target in ALL_TARGETS:
        cells = table[target.figure].split(" | ")
        assert cells[1] == target.target
        assert target.why or not cells[3].startswith("missed"), target.figure
