"""The main job as a user runs it, small: the table is exact, and a demo that is told to stop leaves nothing behind."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT_S = 600.0  # four JVMs start, one after the other, on a machine that does much else

pytestmark = pytest.mark.timeout(900)


def command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "demo", "--out", str(out), "--json", *options]


@pytest.mark.spark
def test_two_nights_are_exact(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "out", "--nights", "2", "--seed", "5"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout)
    assert outcome["right"] and outcome["seed"] == 5
    # 842 and 943 flights left New York on the first two days of 2013 (the data set's own count).
    assert outcome["verdict"]["rows"] == outcome["verdict"]["expected"] == 842 + 943
    assert outcome["sent"] == 842 + 943 + outcome["duplicates"]
    hops = {hop["name"]: hop for hop in outcome["audit"]["hops"]}
    assert hops["aggregate flights"]["records"] == outcome["sent"]
    assert hops["aggregate flights.deduped"]["dropped"] == outcome["duplicates"]
    scraped = {"penstock_lane_records_total": outcome["sent"], "penstock_dedupe_duplicates_total": outcome["duplicates"]}
    assert outcome["scraped"] == scraped
    picture = (tmp_path / "out" / "demo.png").read_bytes()
    # All five panels: the last one, of how long requests take, is there once the brokers were scraped twice.
    assert picture.startswith(b"\x89PNG") and struct.unpack(">II", picture[16:24]) == (11 * 110, 14 * 110)


@pytest.mark.spark
def test_nights_are_exact_while_brokers_of_a_cluster_are_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "out", "--nights", "2", "--seed", "7", "--cluster", "--kill"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout)
    assert outcome["right"] and outcome["verdict"]["rows"] == 842 + 943
    kills = outcome["kills"].get("aggregate", 0)
    assert kills > 0, "no broker of the cluster was killed"
    logs = [(tmp_path / "out" / f"aggregate-{number}.log").read_text() for number in (1, 2, 3)]
    assert sum(log.count("is registered, broker epoch") for log in logs) >= 3 + kills, "not each killed one was a process"
    assert alive(str(tmp_path)) == []


def alive(marker: str) -> list[str]:
    """Processes whose command line names the marker."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if marker in words and state != "Z":
                found.append(words.replace("\0", " "))
    return found


def test_a_demo_that_is_told_to_stop_ends_its_parts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    demo = subprocess.Popen(command(out, "--nights", "2"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + LIMIT_S
    while not (out / "mirror.log").exists() and time.monotonic() < deadline:
        assert demo.poll() is None
        time.sleep(0.1)
    demo.send_signal(signal.SIGTERM)
    _, said = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 1 and b"SIGTERM" in said and b"Traceback" not in said
    assert alive(str(out)) == []


def test_a_folder_that_is_no_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1 and "--out" in done.stderr
    assert (tmp_path / "precious").read_text() == "data"
