"""The history of runs has a line of each, and draws their figures over time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.bench import history
from penstock.bench.case import Case, Sample
from penstock.bench.cases import CASES
from penstock.bench.command import command
from penstock.bench.sides import KAFKA, PENSTOCK
from penstock.bench.world import World


class Known(Case):
    """A case that measures in no time."""

    name, title, warm = "produce-1m", "known figures", False

    def __init__(self, cpu_s_per_gb: float) -> None:
        self._cpu_s_per_gb = cpu_s_per_gb

    def run(self, world: World, side: str) -> Sample:
        return {"cpu_s_per_gb": self._cpu_s_per_gb if side == PENSTOCK else 2.0}


def bench(monkeypatch: pytest.MonkeyPatch, file: Path, cpu_s_per_gb: float, folder: Path | None = None) -> str:
    """What a run of the command with one case says on standard error."""
    monkeypatch.setitem(CASES, "broker", [Known(cpu_s_per_gb)])
    out = ["--out", str((folder or file.parent) / "out"), "--rounds", "2", "--scale", "0.01"]
    done = CliRunner().invoke(command, [*out, "--history", str(file)])
    assert done.exit_code == 0, done.output
    return done.stderr


def drawn(file: Path, *arguments: str) -> tuple[int, str]:
    out = file.parent / "pictures"
    done = CliRunner().invoke(command, ["--draw-history", "--history", str(file), "--out", str(out), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stderr


def test_each_run_appends_a_line_and_figures_are_drawn_over_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "made" / "history.jsonl"
    bench(monkeypatch, file, 0.5)
    bench(monkeypatch, file, 0.25)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["figures"] for line in lines] == [
        {"produce-1m": {side: {"cpu_s_per_gb": value, "stolen_percent": stolen(line, side)} for side, value in sides.items()}}
        for line, sides in zip(lines, ({PENSTOCK: 0.5, KAFKA: 2.0}, {PENSTOCK: 0.25, KAFKA: 2.0}), strict=True)
    ]
    assert all(line["date"].endswith(" UTC") and line["commit"] and line["machine"]["kernel"] for line in lines)
    assert drawn(file) == (0, f"2 figures of 2 runs drawn into `{file.parent}/pictures/history-broker.png`\n")
    assert (file.parent / "pictures" / "history-broker.png").read_bytes().startswith(b"\x89PNG")


def stolen(line: dict[str, dict[str, dict[str, dict[str, float]]]], side: str) -> float:
    return line["figures"]["produce-1m"][side]["stolen_percent"]


def test_a_line_that_cannot_be_read_hides_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "history.jsonl"
    bench(monkeypatch, file, 0.5)
    whole = file.read_text()
    file.write_text(whole + whole[:40])  # a disk was full
    bench(monkeypatch, file, 0.25)
    with file.open("ab") as lines:
        lines.write(b'\xff\xfe\n[]\n{"what": "broker"}\n{"what": "pipeline"}\n')
    entries, unread = history.read(file, "broker")
    assert [entry.cases["produce-1m"].median(PENSTOCK, "cpu_s_per_gb") for entry in entries] == [0.5, 0.25]
    assert unread == [2, 4, 5, 6]
    code, words = drawn(file)
    assert code == 0 and f"`{file}` has 4 lines that can't be read, the first is line 2\n" in words


def test_without_a_run_there_is_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "history.jsonl"
    for what in CASES:
        code, words = drawn(file, what)
        assert code == 1 and f"`{file}` has 0 runs of the {what}" in words and "\nhint: penstock bench " in words


def test_a_run_whose_history_cannot_be_written_keeps_its_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = bench(monkeypatch, tmp_path / "file" / "history.jsonl", 0.5, tmp_path)
    assert "the history has no line of this run: " in words
    assert json.loads((tmp_path / "out" / "report.json").read_text())["cases"].keys() == {"produce-1m"}


def test_the_file_is_outside_of_every_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert history.default_file() == Path(history.DEFAULT).expanduser()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history.default_file() == tmp_path / "penstock" / "bench-history.jsonl"
