"""`penstock log verify`: files that only Apache Kafka writes, what a running broker does meanwhile, what a kill leaves."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.broker.logs.folder import DataFolder, mark_clean
from penstock.broker.logs.logdirs import DELETED, FUTURE
from penstock.broker.tools.logcommand import command
from penstock.broker.tools.logfiles import read_file
from penstock.broker.tools.logverify import Verified, verify
from penstock.pyx.compaction.cleaner import Cleaner
from penstock.pyx.compaction.pace import Pace
from penstock.pyx.log.logmanager import LogManager, room_end
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import marker
from support.compacted import keyed
from support.logs import FLUSH_DUE_MS, NOW_MS, TOPIC_ID, batch

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


CONFIG = {"segment_bytes": 300, "retention_ms": -1, "file_delete_delay_ms": 0}
KEPT_BYTES = {"retention_bytes": 600}


def running(root: Path, **config: int) -> LogManager:
    """The log `t-0` of a data folder, as a broker has it that runs or was killed: several segments, checkpoints written."""
    DataFolder.open(root, 1).close(clean=False)
    logs = LogManager()
    logs.lead("t", TOPIC_ID, 0, 0, str(root), CONFIG | config)
    for _ in range(4):
        appends(logs)
    seal(logs)
    appends(logs)
    appends(logs)
    logs.write_checkpoints()
    return logs


def appends(logs: LogManager) -> None:
    for _ in range(5):
        logs.append_client("t", 0, keyed([(b"same", b"v"), (b"other", b"v" * 40)]))


def seal(logs: LogManager) -> None:
    """Flush, with the checks of all sealed segments."""
    logs.flush("t", 0)
    logs.flush_rolled(int(time.time() * 1000) + FLUSH_DUE_MS)


def verified(root: Path, seen: Callable[[], object] = lambda: None) -> Verified:
    files = sorted(path for path in (root / "t-0").iterdir() if path.suffix in (".log", ".index", ".checks", ".snapshot"))
    return verify(files, lambda _: True, seen)


def retention(logs: LogManager) -> None:
    logs.reconfigure("t", 0, KEPT_BYTES)
    logs.upkeep("t", 0, NOW_MS)
    logs.remove_expired(logs.folder_of("t", 0), NOW_MS + 1_000_000)


def compaction(logs: LogManager) -> None:
    """Two passes: what the first one has emptied is merged by the second."""
    seal(logs)
    for _ in range(2):
        done = Cleaner(Pace(), 1 << 20).compact(logs, "t", 0, 0, NOW_MS, 0, 1000)
        logs.compacted("t", TOPIC_ID, 0, done.first_dirty)
    logs.remove_expired(logs.folder_of("t", 0), NOW_MS + 1_000_000)


COMPACTED = {"segment_bytes": 600, "cleanup_delete": 0, "cleanup_compact": 1}


@pytest.mark.parametrize("when", [1, 2, 5, 9, "each time"])
@pytest.mark.parametrize(("work", "config"), [(retention, {}), (compaction, COMPACTED), (appends, {}), (appends, COMPACTED)])
def test_what_a_running_broker_does_meanwhile_is_no_damage(
    tmp_path: Path, work: Callable[[LogManager], None], config: dict[str, int], when: int | str
) -> None:
    logs = running(tmp_path, **config)
    calls = 0

    def seen() -> None:
        nonlocal calls
        calls += 1
        if when in (calls, "each time"):
            appends(logs)
            work(logs)

    found = verified(tmp_path, seen)
    assert found.damage == []
    assert found.gone > 0 or work is appends or when == 9
    assert found.files + found.gone == calls


def test_of_a_topic_that_is_deleted_meanwhile_nothing_is_missing(tmp_path: Path) -> None:
    logs = running(tmp_path)
    deleted = False

    def seen() -> None:
        nonlocal deleted
        if not deleted:
            deleted = True
            logs.delete("t", 0)

    found = verified(tmp_path, seen)
    assert (found.damage, found.files) == ([], 1)


def test_a_segment_that_gives_room_back_while_it_is_read_ends_there(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    data = batch(1)
    path.write_bytes(data + bytes(room_end(len(data)) - len(data)))
    rows = read_file(path)
    assert next(rows)["base_offset"] == 0
    os.truncate(path, len(data))
    assert list(rows) == []


@pytest.mark.parametrize("content", [b"", bytes(83), b"torn"], ids=["empty", "zeros", "torn"])
@pytest.mark.parametrize("ended", ["killed", "stopped"])
def test_side_files_that_the_next_start_builds_again_are_no_damage_after_a_kill(
    tmp_path: Path, content: bytes, ended: str
) -> None:
    running(tmp_path)
    if ended == "stopped":
        mark_clean(tmp_path)
    folder = tmp_path / "t-0"
    names = {max(folder.glob("*.checks")).name, f"{max(folder.glob('*.log')).stem}.timeindex"}
    for name in names:
        (folder / name).write_bytes(content)
    shown = CliRunner().invoke(command, ["verify", "--json", str(tmp_path)])
    found = {Path(row["file"]).name for row in json.loads(shown.stdout)["damage"]}
    if ended == "killed":
        assert found == set()
    else:
        assert {name for name in names if name.endswith(".checks")} <= found
    started = DataFolder.open(tmp_path, 1)
    LogManager().lead("t", TOPIC_ID, 0, 0, str(tmp_path), CONFIG, started.was_clean)
    started.close(clean=False)


def test_an_index_below_the_recovery_point_counts_after_a_kill_too(tmp_path: Path) -> None:
    """The next start believes it, or says that it is built again."""
    running(tmp_path)
    first = min((tmp_path / "t-0").glob("*.timeindex"))
    first.write_bytes(b"torn")
    shown = CliRunner().invoke(command, ["verify", "--json", str(tmp_path)])
    assert [row["file"] for row in json.loads(shown.stdout)["damage"]] == [str(first)]


@pytest.mark.parametrize("ending", [FUTURE, DELETED])
def test_what_the_next_start_removes_is_left_out(tmp_path: Path, ending: str) -> None:
    """Half a copy that a move had made, or half of what a deletion had to remove."""
    running(tmp_path)
    half = tmp_path / f"t-0.{'0' * 32}{ending}"
    shutil.copytree(tmp_path / "t-0", half)
    for path in half.glob("*.log"):
        os.truncate(path, path.stat().st_size // 2 + 1)
    assert CliRunner().invoke(command, ["verify", str(tmp_path)]).exit_code == 0
    assert CliRunner().invoke(command, ["verify", str(half)]).exit_code == 1, "somebody has asked for it"
