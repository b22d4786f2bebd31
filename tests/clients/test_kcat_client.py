"""kcat works unchanged: produce, consume, list, query."""

from __future__ import annotations

from collections.abc import Callable

from support.harness import BrokerProcess
from support.kcat import kcat


def test_kcat(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic = new_topic("kcat")
    lines = [f"k{n}:v{n}" for n in range(50)]
    kcat(shared_broker, "-P", "-t", topic, "-K:", "-z", "snappy", stdin="\n".join(lines) + "\n")
    assert kcat(shared_broker, "-C", "-t", topic, "-e", "-q", "-K:").splitlines() == lines
    assert f'topic "{topic}" with 1 partitions' in kcat(shared_broker, "-L")
    assert f"{topic} [0] offset 50" in kcat(shared_broker, "-Q", "-t", f"{topic}:0:-1")
    group = kcat(shared_broker, "-G", new_topic("group"), "-e", "-q", "-o", "beginning", topic)
    assert group.splitlines() == [f"v{n}" for n in range(50)]
