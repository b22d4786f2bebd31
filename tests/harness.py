"""Real processes for tests: a broker on a free port with a folder of its own, killed only by its own pid."""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
from collections.abc import Sequence

from penstock.bench.broker_process import BrokerProcess
from penstock.bench.wire import WireConnection

__all__ = ["BrokerProcess", "WireConnection", "output", "topic_name"]

_names = itertools.count()


def topic_name(hint: str = "topic") -> str:
    """A name that no other test uses, also when tests share a broker."""
    return f"{hint}-{os.getpid()}-{next(_names)}-{secrets.token_hex(3)}"


def output(command: Sequence[str], *, stdin: str = "", timeout_s: float = 150) -> str:
    """What a program printed; it must end well."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
