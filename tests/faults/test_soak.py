"""A pipeline to which everything happens comes out exact (`make soak` for long), and the judge of it sees what isn't."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import soak
from support.soak_ledger import Ledger, TableLedger

WORK_S = 20


@pytest.mark.spark
@pytest.mark.whole_day
@pytest.mark.timeout(600)
def test_a_pipeline_to_which_everything_happens_is_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with soak.disks(tmp_path) as (disk, small):
        failed = soak.play(tmp_path, WORK_S, 11, disk, small)
    assert failed == 0, capsys.readouterr().out


def test_the_ledger_finds_what_is_missing_or_too_much() -> None:
    ledger = Ledger()
    ledger.acknowledge("t", "EWR", ["a", "b", "c"])
    ledger.acknowledge("t", "JFK", ["c"])
    assert ledger.judge("t", ["a", "b", "c"]) == []
    assert ledger.judge("t", ["a", "b"]) == ["t: 1 ids missing, such as ['c']"]
    assert ledger.judge("t", ["a", "b", "c", "a"]) == ["t: 1 ids more than once, such as ['a']"]
    assert ledger.judge("t", ["a", "b", "c", "d"]) == ["t: 1 ids never sent, such as ['d']"]


def test_what_a_source_lost_is_owed_if_another_had_it_or_the_target_has_it() -> None:
    ledger = Ledger()
    ledger.acknowledge("t", "EWR", ["copied"])
    ledger.copied("t", "EWR")
    ledger.acknowledge("t", "EWR", ["lost", "both"])
    ledger.acknowledge("t", "JFK", ["both"])
    assert ledger.lost("t", "EWR") == 1
    assert ledger.judge("t", ["copied", "both"]) == ledger.judge("t", ["copied", "both", "lost"]) == []
    assert ledger.judge("t", ["both"]) == ["t: 1 ids missing, such as ['copied']"]
    assert ledger.judge("t", ["copied", "lost"]) == ["t: 1 ids missing, such as ['both']"]
    assert ledger.judge("t", ["copied", "both", "lost", "lost"]) == ["t: 1 ids more than once, such as ['lost']"]


def test_what_is_lost_for_good_is_what_no_output_has() -> None:
    ledger = Ledger()
    ledger.acknowledge("t", "EWR", ["copied", "lost"])
    ledger.give_up("t", ["never taken"])
    assert ledger.lost("t", "EWR") == 2
    assert ledger.lost_for_good("t", ["copied"]) == {"lost"}


def test_the_ledger_of_a_table_finds_rows_that_are_missing_or_too_many() -> None:
    ledger = TableLedger()
    ledger.load("1", ["a", "b"])
    ledger.load("2", ["a", "b", "c"])
    ledger.delete({"a", "c"})
    assert ledger.named == {"1": 1, "2": 1}
    assert ledger.judge("t", ["b"]) == []
    assert ledger.judge("t", ["b", "c"]) == ["table t: 1 rows too many, such as ['c']"]
    assert ledger.judge("t", []) == ["table t: 1 rows missing, such as ['b']"]
    assert ledger.judge("t", ["b", "b"]) == ["table t: 1 rows more than once, such as ['b']"]
    ledger.reload("1", restore=True)
    ledger.reload("2", restore=False)
    assert ledger.named == {}
    assert ledger.judge("t", ["a", "b"]) == []
    assert ledger.judge("t", ["a", "b", "c"]) == ["table t: 1 rows too many, such as ['c']"]
