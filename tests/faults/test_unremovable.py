"""Files of deleted partitions that their disk doesn't remove: no start stops for them, no later topic is taken for theirs."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pyx.wire.messages import DeleteTopicsRequest
from support import faultio
from support.asking import create, end_offset, names, produce
from support.harness import BrokerProcess, WireConnection

HEX = "0123456789abcdef" * 2


@pytest.fixture
def control(tmp_path: Path) -> Path:
    return tmp_path / "faults"


@pytest.fixture
def broker(tmp_path: Path, control: Path) -> Iterator[BrokerProcess]:
    """Of two log folders, `data` and `second`."""
    properties = {"log.dirs": tmp_path / "second", "penstock.ballast.bytes": 0}
    made = BrokerProcess(tmp_path / "data", properties)
    made.environment.update(LD_PRELOAD=str(faultio.build(tmp_path)), FAULT_CTL=str(control))
    yield made.start()
    made.close()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EIO])
def test_a_file_that_is_not_removed_stops_no_start(broker: BrokerProcess, control: Path, number: int) -> None:
    second = broker.data.with_name("second")
    assert broker.stop() == 0
    stuck, other = (second / f"{name}-0.{HEX}-delete" for name in ("stuck", "other"))
    for folder in (stuck, other):
        folder.mkdir()
    (stuck / "precious.log").write_text("x")
    control.write_text(f"remove {number} precious.log\n")
    broker.start()
    said = broker.log_text()
    assert said.count("precious.log") == 1 and stuck.is_dir()
    assert (f"log_dir={second} failed and is offline" in said) == (number == errno.EIO)
    assert number == errno.EIO or not other.exists()
    assert not create(broker, "t").topics[0].error_code and produce(broker, "t", 3) == 0
    assert broker.stop() == 0
    control.write_text("")
    broker.start()
    assert not stuck.exists() and not other.exists() and end_offset(broker, "t") == 3


def test_a_deletion_finished_at_start_leaves_nothing_under_the_topics_name(broker: BrokerProcess, control: Path) -> None:
    assert not create(broker, "t").topics[0].error_code and produce(broker, "t", 9) == 0
    broker.kill()
    broker.environment["PENSTOCK_FAILPOINTS"] = "topics.marked=kill"
    broker.start()
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="t")], timeout_ms=60_000)
    with pytest.raises((EOFError, ConnectionError)), WireConnection(broker.bootstrap) as wire:
        wire.ask(request, 6)
    broker.kill()
    del broker.environment["PENSTOCK_FAILPOINTS"]
    control.write_text(f"remove {errno.EPERM} 00000.log\n")
    broker.start()
    assert "t" not in names(broker) and "the log of topic=t partition=0 can't be removed" in broker.log_text()
    folders = (broker.data, broker.data.with_name("second"))
    left = [path.name for folder in folders for path in folder.glob("t-0*")]
    assert len(left) == 1 and left[0].endswith("-delete")
    assert not create(broker, "t").topics[0].error_code and produce(broker, "t", 2) == 0
    assert broker.stop() == 0
    control.write_text("")
    broker.start()
    assert end_offset(broker, "t") == 2
    assert [path.name for folder in folders for path in folder.glob("t-0*")] == ["t-0"]
