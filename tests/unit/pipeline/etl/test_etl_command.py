"""What `penstock etl` prints: the help and the answer."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from penstock.cli import root
from penstock.pipeline.etl.display import Display
from penstock.pipeline.etl.ledger import NightCommit, Range
from penstock.pipeline.etl.load import Outcome


def test_the_help_says_what_holds_when_nothing_is_set() -> None:
    said = " ".join(CliRunner().invoke(root, ["etl", "--help"]).output.split())
    for name, value in {"incomplete": "wait", "wait.seconds": "3600", "clock": "wall"}.items():
        assert f"Default: `penstock.etl.{name}`, which is {value} unless set." in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--follow", "--covering"], "--follow takes each night as it comes"),
        (["--follow", "--from-earliest"], "--follow takes each night as it comes"),
        (["--take-back", "--night", "2013-01-01"], "--take-back finds its nights by itself"),
        (["--take-back", "--accept-table"], "--take-back finds its nights by itself"),
        ([], "give --night, --nights, --follow or --take-back"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: list[str], words: str) -> None:
    done = CliRunner().invoke(root, ["etl", "--config", "none", *options])
    assert done.exit_code == 2 and words in f"{done.output}{done.exception}"


def test_the_answer_in_json_names_the_numbers_of_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    commit = NightCommit("2013-01-01", 1, {("flights", 1): Range(10, 20, 9, 7, 2), ("flights", 0): Range(0, 5, 5, 5, 0)})
    Display(1, as_json=True).done(Outcome(commit, "loaded", 1.5))
    answer = json.loads(capsys.readouterr().out)
    assert answer["ranges"] == [
        {"topic": "flights", "partition": 0, "start": 0, "end": 5, "records": 5, "rows": 5, "rejects": 0},
        {"topic": "flights", "partition": 1, "start": 10, "end": 20, "records": 9, "rows": 7, "rejects": 2},
    ]
    assert (answer["night"], answer["did"], answer["records"], answer["rows"], answer["rejects"]) == (
        *("2013-01-01", "loaded", 14, 12, 2),
    )
