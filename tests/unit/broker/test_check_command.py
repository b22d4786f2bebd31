"""`penstock broker --check`: what a start would trip over is said, and nothing is changed."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker.process import BrokerProcess
from support.asking import listening


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "broker", "--check", *listening(*arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_new_folder_is_not_made(tmp_path: Path) -> None:
    done = check("--data", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    assert "could start" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_nothing_changes_in_folders_that_were_used(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    beside = check("--data", str(tmp_path / "data"), "--listen", broker.bootstrap)
    broker.stop()
    assert beside.returncode == 0, beside.stderr
    before = content(tmp_path / "data")
    assert check("--data", str(tmp_path / "data")).returncode == 0
    assert content(tmp_path / "data") == before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--set", "log.segment.bites=1"], 2, "did you mean `log.segment.bytes`"),
        (["--listen", "203.0.113.7:9092"], 1, "is no address of this machine"),
        (["--set", "listeners=SASL_SSL://127.0.0.1:0"], 2, "SASL"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    done = check("--data", str(tmp_path / "data"), *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert words in done.stderr


@pytest.mark.parametrize("change", ["out of log.dirs", "missing", "empty", "another"])
def test_log_folders_that_a_start_would_not_find_are_named(tmp_path: Path, change: str) -> None:
    first, second = tmp_path / "a", tmp_path / "b b"
    both = {"log.dirs": f"{first},{second}"}
    broker = BrokerProcess(first, both).start()
    make = [sys.executable, "-m", "penstock", "topics", "create", "events", "-p", "4", "-b", broker.bootstrap]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    broker.stop()
    dirs = str(first) if change == "out of log.dirs" else f"{first},{second}"
    assert "offline" not in check("--set", f"log.dirs={both['log.dirs']}").stdout
    if change != "out of log.dirs":
        second.rename(tmp_path / "gone")
    if change == "empty":
        second.mkdir()
    if change == "another":
        shutil.copytree(tmp_path / "gone", second)
        meta = second / "meta.properties"
        meta.write_text(re.sub("directory.id=.*", "directory.id=AAAAAAAAAAAAAAAAAAAAAQ", meta.read_text()))
    done = check("--set", f"log.dirs={dirs}")
    assert done.returncode == 0, "a start works, without that folder"
    assert "1 log folders would be offline" in done.stdout
    words = {"out of log.dirs": "isn't in `log.dirs` now", "another": "is another folder now"}.get(change, f"is {change} now")
    assert f"the log folder `{second}` was there before and {words}" in done.stderr
    assert re.search(r"its \d+ partitions would answer KAFKA_STORAGE_ERROR", done.stderr)
    forgotten = check("--set", f"log.dirs={dirs}", "--forget-log-dir", str(second))
    assert "offline" not in forgotten.stdout + forgotten.stderr


def test_an_address_that_the_start_would_not_get(tmp_path: Path) -> None:
    folder = ["--data", str(tmp_path / "data")]
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        for words in ([], ["--check"]):
            command = [sys.executable, "-m", "penstock", "broker", *folder, "--listen", address, *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (1, "")
            assert f"cannot listen on {address}: Address already in use; choose another `--listen`" in done.stderr
    assert check(*folder, "--listen", address).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, who may not bind port 80")
def test_a_port_that_this_user_may_not_have(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "broker", "--check", "--data", "/tmp", "--listen", "127.0.0.1:80"]
    alone = ["setpriv", "--bounding-set", "-net_bind_service", "--inh-caps", "-net_bind_service", *command]
    done = subprocess.run(alone, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "cannot listen on 127.0.0.1:80: Permission denied" in done.stderr


def test_folders_of_another_broker_and_of_two_clusters_are_said(tmp_path: Path) -> None:
    for name, owner, cluster in (("a", 1, "AAAAAAAAAAAAAAAAAAAAAA"), ("b", 2, "BBBBBBBBBBBBBBBBBBBBBB")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text(f"version=0\nbroker.id={owner}\ncluster.id={cluster}\n")
    done = check("--set", f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}")
    assert done.returncode == 1
    assert "belongs to broker 2, not to 1" in done.stderr
    assert "belong to several clusters" in done.stderr


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    done = check("--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert "is a file" in done.stderr


def test_a_store_that_was_there_and_is_gone(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    broker.stop()
    (tmp_path / "data" / "metadata.db").unlink()
    done = check("--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert "--restore-metadata" in done.stderr
