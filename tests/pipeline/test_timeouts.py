"""`--timeout` of the commands of stages, audit and nights, asked for a cluster that takes connections and answers nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import root
from penstock.pipeline.options import Timeouts

COMMANDS = {
    "mirror status": "",
    "mirror begin": "EWR t --at earliest --because x",
    "mirror skip": "EWR t:0 --to 5 --because x",
    "mirror retry": "EWR t --because x",
    "dedupe status": "",
    "dedupe accept": "t:0",
    "dedupe position": "t:0 --at 0 --because x",
    "dedupe restore": "t:0 --from nowhere",
    "dedupe rebuild": "t:0",
    "audit": "",
    "etl": "--night 2020-01-01 --incomplete fail",
}
INCOMPLETE = 3


@pytest.mark.parametrize("words", COMMANDS)
def test_a_cluster_that_hangs_is_left_by_timeout(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: set[float] = set()
    real: property = Timeouts.contact_ms  # type: ignore[assignment]  # of the class it is the property itself

    def contact_ms(timeouts: Timeouts) -> object:
        asked_for.add(timeouts.timeout_s)
        return real.__get__(timeouts)

    monkeypatch.setattr(Timeouts, "contact_ms", property(contact_ms))
    path = tmp_path / "pipeline.properties"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        path.write_text(
            f"bootstrap.servers={address}\nsource.EWR.bootstrap.servers={address}\ntopics=t\n"
            f"penstock.dedupe.data={tmp_path}/ids\npenstock.etl.table={tmp_path}/table\n"
            "penstock.etl.schema=a INT\npenstock.etl.event.day=date(timestamp)\n"
        )
        asked = [*words.split(), *COMMANDS[words].split(), "--config", str(path), "--timeout", "0.3"]
        result = CliRunner().invoke(root, asked)
    # An audit can't tell, and a night is incomplete.
    assert result.exit_code == {"etl": INCOMPLETE, "audit": 3}.get(words, 1), result.output
    assert f"cannot connect to `{address}`: no answer in time" in result.output
    assert asked_for == {0.3}, "a client was made that waits for as long as usual"


def test_a_first_contact_has_the_timeout_or_five_seconds() -> None:
    for timeout_s, wanted_ms in ((0.0001, 1), (0.3, 300), (5, 5000), (60, 5000)):
        limits = Timeouts(timeout_s).properties()
        assert Timeouts(timeout_s).contact_ms == limits["socket.connection.setup.timeout.ms"] == wanted_ms
        assert limits["request.timeout.ms"] == limits["default.api.timeout.ms"] == max(1, round(timeout_s * 1000))
