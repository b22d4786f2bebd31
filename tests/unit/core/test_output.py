"""What the daily commands show on a terminal."""

from __future__ import annotations

import pytest

from penstock.output import visible
from penstock.pipeline.options import show_rows


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("flights", "flights"),
        ("ünï 組", "ünï 組"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("line\nend\r\t", r"line\nend\r\t"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\x9b31m\u200b", r"\x9b31m\u200b"),
    ],
)
def test_what_a_terminal_would_act_on_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize("text", ["[red]x", "[/red]", "[bold]x[/bold]", "[link=http://a]b[/link]"])
def test_a_text_in_a_table_is_no_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"client": text, "topics": [text, "b\x07"]}], "clients", as_json=False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["client", "topics"], [text, rf"{text},b\x07"]]
