"""A process whose clean stop takes its time says how it is ended at once, and is."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from penstock import interrupts

PROGRAM = """
import asyncio, sys
from penstock import interrupts

async def run():
    asked = asyncio.Event()
    interrupts.hear(asked, lambda text: print(text, flush=True))
    print("runs", flush=True)
    await asked.wait()
    print("stops", flush=True)
    await asyncio.sleep(300)

asyncio.run(run())
"""


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_ends_a_stop_that_takes_its_time(first: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "runs\n"
            process.send_signal(first)
            assert process.stdout.readline() == "stops\n"
            if first == signal.SIGINT:
                assert "Ctrl-C again ends at once" in process.stdout.readline()
                process.send_signal(signal.SIGINT)
                assert "ended by a second Ctrl-C" in process.stdout.readline()
                assert process.wait() == interrupts.INTERRUPTED
            else:  # A service manager's word is no Ctrl-C: it has a limit of its own.
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGINT)
                time.sleep(0.2)
                assert process.poll() is None
        finally:
            process.kill()
