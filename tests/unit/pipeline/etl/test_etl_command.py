"""What `penstock etl` prints: the help and the answer."""

from __future__ import annotations

from click.testing import CliRunner

from penstock.cli import root


def test_the_help_says_what_holds_when_nothing_is_set() -> None:
    said = " ".join(CliRunner().invoke(root, ["etl", "--help"]).output.split())
    for name, value in {"incomplete": "wait", "wait.seconds": "3600", "clock": "wall"}.items():
        assert f"Default: `penstock.etl.{name}`, which is {value} unless set." in said
