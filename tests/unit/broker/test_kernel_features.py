"""What a sandbox takes away, the broker says at its start, and serves all the same."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from penstock.broker.process import PROGRAM
from support.asking import create, end_offset, produce
from support.harness import BrokerProcess, topic_name
from support.sandbox import known, sandboxed


def features(broker: BrokerProcess) -> set[str]:
    """Those that it says it has."""
    (said,) = re.findall(r"kernel features: (.*)", broker.log_text())
    return set(said.split()) - {"none"}


@pytest.mark.skipif(not known(), reason="the numbers of this machine's system calls aren't listed")
@pytest.mark.parametrize(
    ("error", "calls", "lost", "why"),
    [
        # Allow lists of systemd's are older than cachestat, and `@resources` has the other two.
        (
            errno.EPERM,
            ["cachestat", "sched_setattr", "setpriority"],
            {"cachestat", "time_slice", "nice"},
            "Operation not permitted: a sandbox refuses it",
        ),
        (errno.ENOSYS, ["cachestat"], {"cachestat"}, "Function not implemented: the kernel is too old, or a sandbox hides it"),
    ],
    ids=["refused", "hidden"],
)
def test_a_sandbox_is_said(tmp_path: Path, error: int, calls: list[str], lost: set[str], why: str) -> None:
    plain, narrow = BrokerProcess(tmp_path / "plain"), BrokerProcess(tmp_path / "narrow")
    narrow.program = sandboxed(error, calls, PROGRAM)
    try:
        assert features(narrow.start()) == features(plain.start()) - lost
        missing = dict(re.findall(r"kernel feature missing: (\w+) \((.*?)\): \w", narrow.log_text()))
        assert {name: missing.get(name) for name in lost} == dict.fromkeys(lost, why)
        topic = topic_name()
        create(narrow, topic)
        assert produce(narrow, topic, 1) == 0
        assert end_offset(narrow, topic) == 1
    finally:
        plain.close()
        narrow.close()
