"""No network thread ever takes the interpreter's lock: not by its code, and not while somebody holds it."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pyx.net import border
from penstock.pyx.wire.messages import FetchResponse, ProduceResponse
from support.dataplane import Peer, api_versions, batch, fetch, fetched, produce, produced

MODULES = Path(border.__file__).parents[1]  # pyx/
# A proof that takes the lock away: a thread that never gives it up, beside a client that is another process.
HOLDER = """
import ctypes, os, sys
sys.path.insert(0, {tests!r})
from support.dataplane import Broker, lead
from support.logs import LOGS
import tempfile, pathlib
lead(pathlib.Path(tempfile.mkdtemp(dir={folder!r})), "held")
with Broker(threads=2) as broker:
    print(broker.port, flush=True)
    # A call through PyDLL keeps the lock for as long as it lasts: here until a byte comes.
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
    print("given back", flush=True)
    sys.stdin.readline()
os._exit(0)
"""


@pytest.mark.parametrize(
    "name",
    [
        "coldreader", "connection", "control", "fetch", "fetchanswer", "fetchread", "fetchset", "input", "output", "produce",
        "reactor", "requests", "sessions", "waiting",
    ],
)  # fmt: skip
def test_no_module_of_the_network_threads_can_take_the_lock(name: str) -> None:
    (compiled,) = MODULES.glob(f"*/{name}.{sys.implementation.cache_tag}-*.so")
    # Cython takes the lock in a function without it by this call only, at an object or an exception. (Other modules have the
    # call for when a C++ container finds no memory.)
    assert b"PyGILState_Ensure" not in compiled.read_bytes()


def test_produce_and_fetch_are_served_while_the_lock_is_held(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[2])
    broker = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(tests=tests, folder=str(tmp_path))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert broker.stdin is not None and broker.stdout is not None
    try:
        port = int(broker.stdout.readline())
        with Peer(port) as writer, Peer(port) as reader:
            for offset in range(200):
                answer = writer.ask(produce("held", batch([b"x"]), 9), 9, ProduceResponse)
                assert (produced(answer).error_code, produced(answer).base_offset) == (0, offset)
                assert fetched(reader.ask(fetch("held", offset, 12), 12, FetchResponse)).high_watermark == offset + 1
            # What the interpreter has to answer waits until it may.
            writer.send(api_versions(5))
            assert writer.is_silent()
            broker.stdin.write("x")
            broker.stdin.flush()
            assert writer.receive()[:4] == struct.pack(">i", 5)
        assert broker.stdout.readline() == "given back\n"
    finally:
        broker.kill()
        broker.wait()
        broker.stdin.close()
        broker.stdout.close()
