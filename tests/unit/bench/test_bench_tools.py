"""The load programs' files and answers, and the reading of samples."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.bench import frames, process
from penstock.bench.cases import consume, produce
from penstock.bench.cases.steps import steps
from penstock.bench.programs import ProgramError, Programs
from penstock.bench.world import World
from penstock.pyx.record.rawbatch import RawBatch
from penstock.pyx.wire import requests
from penstock.pyx.wire.header import decode_request, decode_response
from penstock.pyx.wire.messages import FetchResponse, ProduceRequest, ProduceResponse


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, 1.0, 1.0, Programs(Path("build/bench/programs")))


def split(path: Path) -> list[bytes]:
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack_from(">i", data)
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


@pytest.mark.parametrize("codec", frames.CODECS)
def test_produce_frames_are_right_requests(tmp_path: Path, codec: str) -> None:
    size = 1024 if codec == "none" else frames.EVENTS
    made = frames.produce(tmp_path / "f", "t", 2, batch_bytes=16_384, record_bytes=size, codec=codec, keyed=True)
    requests = split(made.path)
    assert len(requests) == made.count == 8
    for number, frame in enumerate(requests):
        _, request = decode_request(frame)
        assert isinstance(request, ProduceRequest)
        partition = request.topic_data[0].partition_data[0]
        raw = RawBatch(partition.records or b"")
        raw.check(client=True)
        assert (partition.index, raw.record_count, raw.codec) == (number % 2, made.records, frames.CODECS[codec])
        assert (codec == "none") == (raw.size_in_bytes > made.value_bytes)


def test_the_error_code_is_where_the_programs_look(world: World) -> None:
    answer = produce.answer_file(world, "some-topic").read_bytes()
    frame = bytearray(answer[4:])
    struct.pack_into(">h", frame, frames.error_at("some-topic"), 42)
    _, decoded = decode_response(ProduceResponse, frame, requests.PRODUCE_VERSION)
    assert decoded.responses[0].partition_responses[0].error_code == 42


def test_the_floors_fetch_answer_is_one(world: World) -> None:
    _, decoded = decode_response(FetchResponse, consume.fetch_answer("t")[4:], requests.FETCH_VERSION)
    assert decoded.responses[0].partitions[0].error_code == 0


def test_requests_counts_refusals(world: World, tmp_path: Path) -> None:
    load = frames.produce(tmp_path / "f", "floor", 1, batch_bytes=100, record_bytes=100)
    answer = produce.answer_file(world, "floor")
    frame = bytearray(answer.read_bytes())
    struct.pack_into(">h", frame, 4 + load.error_at, 6)
    answer.write_bytes(frame)
    floor = world.floor("echo", answer=answer)
    try:
        with pytest.raises(ProgramError, match="3 answers had errors, the first one 6"):
            world.requests(floor, load, requests=3)
    finally:
        floor.stop()


def test_requests_by_the_clock_and_in_windows(world: World, tmp_path: Path) -> None:
    load = frames.produce(tmp_path / "f", "floor", 1, batch_bytes=100, record_bytes=100)
    floor = world.floor("echo", answer=produce.answer_file(world, "floor"))
    try:
        printed = world.requests(floor, load, connections=3, rate=2000, requests=500, window=0.1)
        before = floor.cpu_s()
        assert printed[-1]["requests"] == 500 == sum(one["requests"] for one in printed[:-1])
        assert 0 < printed[-1]["p50_us"] <= printed[-1]["p99_us"] <= printed[-1]["max_us"]
        assert printed[-1]["seconds"] >= 499 / 2000  # by the clock: never earlier
        assert before >= 0 and floor.rss_mib() > 0
    finally:
        floor.stop()


def test_a_program_without_a_server_fails_with_words(world: World, tmp_path: Path) -> None:
    load = frames.produce(tmp_path / "f", "t", 1, batch_bytes=100, record_bytes=100)
    with pytest.raises(ProgramError, match="Connection refused"):
        world.programs.run("requests", to="127.0.0.1:1", frames=load.path, requests=1)


def test_cpu_seconds_count_threads() -> None:
    before = process.cpu_s(os.getpid())
    worker = threading.Thread(target=lambda: sum(range(3_000_000)))
    worker.start()
    worker.join()
    assert process.cpu_s(os.getpid()) > before


FORKED = """
import os, signal, subprocess
held = bytearray(os.urandom(1 << 20) * 128)
if os.fork() == 0:
    print("up", flush=True)
    signal.pause()
signal.pause()
"""


def test_a_forked_process_is_not_a_second_one_in_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKED], stdout=subprocess.PIPE, start_new_session=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline()
        assert len(process.tree(started.pid)) == 2
        assert 128 < process.tree_rss_mib(started.pid) < 2 * 128
        os.killpg(started.pid, signal.SIGKILL)


def test_a_program_that_a_process_runs_counts_with_it() -> None:
    holding = "import signal; held = bytearray(b'x' * (64 << 20)); print('up', flush=True); signal.pause()"
    run = f"import subprocess, sys; held = bytearray(b'x' * (64 << 20)); subprocess.run([sys.executable, '-c', {holding!r}])"
    with subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE, start_new_session=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline()
        assert process.tree_rss_mib(started.pid) > 2 * 64
        os.killpg(started.pid, signal.SIGKILL)


def test_samples_are_told_apart_by_call_and_module() -> None:
    kernel = "([kernel.kallsyms])"
    script = f"""\
 ffffffff1 tcp_sendmsg+0x1 {kernel}
 ffffffff2 __x64_sys_sendto+0x1d {kernel}
 7f01 __send+0x1 (/usr/lib/libc.so.6)

 7f02 crc32c_3way (/x/pyx/record/crc.cpython-311-x86_64-linux-gnu.so)
 7f03 batch_check (/x/pyx/record/batch.cpython-311-x86_64-linux-gnu.so)

 7f04 __memmove_avx (/usr/lib/libc.so.6)
 7f05 partition_append (/x/pyx/log/partition.cpython-311-x86_64-linux-gnu.so)

 ffffffff3 finish_task_switch {kernel}

 7f06 _PyEval_EvalFrameDefault (/usr/bin/python3.11)

"""
    assert steps(script) == {
        "answer: send": 1,
        "CRC32C": 1,
        "lock, append, index": 1,
        "interrupts and switches": 1,
        "control plane (Python)": 1,
    }


def test_weights_share_the_requests_out(tmp_path: Path) -> None:
    made = frames.produce(tmp_path / "f", "t", 3, batch_bytes=100, record_bytes=100, payloads=1, weights=[1, 2, 5])
    requests: list[Any] = [decode_request(frame)[1] for frame in split(made.path)]
    partitions = [request.topic_data[0].partition_data[0].index for request in requests]
    assert [partitions.count(number) for number in range(3)] == [1, 2, 5]
    assert partitions != sorted(partitions)
