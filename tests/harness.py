"""Real processes for tests: a broker on a free port with a folder of its own, killed only by its own pid."""

from __future__ import annotations

import itertools
import os
import secrets

from penstock.bench.broker_process import BrokerProcess
from penstock.bench.wire import WireConnection

__all__ = ["BrokerProcess", "WireConnection", "topic_name"]

_names = itertools.count()


def topic_name(hint: str = "topic") -> str:
    """A name that no other test uses, also when tests share a broker."""
    return f"{hint}-{os.getpid()}-{next(_names)}-{secrets.token_hex(3)}"
