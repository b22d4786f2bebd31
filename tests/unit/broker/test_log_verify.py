"""`penstock log verify` and files that only Apache Kafka writes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.broker.tools.logcommand import command
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import marker
from support.logs import NOW_MS

TYPE_AT = 61 + 7  # of the only record's key, after its version: length, attributes, two deltas, length of the key


def control(kind: int) -> bytes:
    """A control batch of that type, as KRaft's own log has such."""
    data = bytearray(marker(True, -1, -1, 0, NOW_MS))
    (before,) = struct.unpack_from(">h", data, TYPE_AT)
    assert before == 1, "the type of a commit"
    struct.pack_into(">h", data, TYPE_AT, kind)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(2, "leader change"), (3, "snapshot header"), (4, "snapshot footer"), (5, "kraft version"), (6, "kraft voters")],
)
def test_control_records_of_krafts_own_log_are_no_damage(tmp_path: Path, kind: int, name: str) -> None:
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    (folder / "00000000000000000000.log").write_bytes(control(kind))
    (folder / "00000000000000000000-0000000001.checkpoint").write_bytes(control(kind))
    assert CliRunner().invoke(command, ["verify", str(folder)]).exit_code == 0
    for path in folder.iterdir():
        shown = CliRunner().invoke(command, ["dump", str(path)])
        assert shown.exit_code == 0 and f"control={name}" in shown.output
