"""What the options that commands share say, and how rows are shown."""

from __future__ import annotations

import pytest

from penstock.pipeline.options import Invocation

ROWS = [{"topic": "a-topic-with-a-long-name", "partition": 0, "why": "words " * 20, "offsets": 51_444_113_408}]


@pytest.mark.parametrize("columns", [40, 80])
def test_a_number_is_never_divided(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int) -> None:
    """On a narrow terminal texts are folded; of a number one line would be read alone."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    Invocation("", {}, as_json=False).show(ROWS)
    shown = capsys.readouterr().out
    assert "51,444,113,408" in shown
    assert len(shown.splitlines()) > 2, "it is narrow"
