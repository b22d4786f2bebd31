"""`penstock mirror skip` sets aside exactly the offsets that it is told, also within a batch, and counts what was committed."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka

from support.harness import BrokerProcess
from support.mirror_world import World, brokers


def begun(w: World) -> None:
    """The mirror has copied a batch of ten records and is stopped."""
    w.fill(1)
    w.run_once()


def skip(w: World, to: int, code: int = 0) -> str:
    return w.operate("skip", "EWR", f"{w.topic}:0", "--to", to, "--because", "a test", code=code)


def test_an_end_within_a_batch_and_aborted_records(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["target"], partitions=1) as w:
        begun(w)
        w.fill(2)  # offsets 10 to 29
        w.fill_transactions("ac")  # 30 to 49 and their marker, 51 to 70 and theirs
        assert "goes on at 15; gaps so far: 5 offsets, 5 records" in skip(w, 15)
        assert "goes on at 25; gaps so far: 15 offsets, 15 records" in skip(w, 25)  # from within one batch to within the next
        assert "goes on at 58; gaps so far: 48 offsets, 27 records" in skip(w, 58)
        del w.ids["EWR", 0][10:37]
        w.run_once()
        w.check_ids()


def test_an_end_within_a_batch_that_cannot_be_opened(tmp_path: Path) -> None:
    with (
        brokers(tmp_path, "EWR", "target") as nodes,
        World(tmp_path / "w", {"EWR": nodes["EWR"]}, nodes["target"], partitions=1) as w,
    ):
        begun(w)
        w.fill(4)
        assert nodes["EWR"].stop() == 0
        segment = next((tmp_path / "EWR" / f"{w.topic}-0").glob("*.log"))
        data = bytearray(segment.read_bytes())
        data[data.find(w.payloads["EWR", 0][3]) + 5] ^= 1  # of offsets 30 to 39
        segment.write_bytes(data)
        nodes["EWR"].start()
        said = skip(w, 35, code=1)
        assert "offset 35 is within the batch of offsets 30 to 39, which can't be opened" in said
        assert said.rstrip().endswith("set aside whole or not at all: `--to 30` or `--to 40`")
        assert "goes on at 30; gaps so far: 20 offsets, 20 records" in skip(w, 30)
        assert skip(w, 35, code=1).rstrip().endswith("set aside whole or not at all: `--to 40`")
        assert "goes on at 40; gaps so far: 30 offsets, 30 records" in skip(w, 40)
        del w.ids["EWR", 0][10:40]
        w.run_once()
        w.check_ids()


def test_nothing_of_an_open_transaction(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """Whether its records count is not known yet."""
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["target"], partitions=1) as w:
        begun(w)
        w.fill(1)
        producer = confluent_kafka.Producer({"bootstrap.servers": clusters["EWR"].bootstrap, "transactional.id": w.topic})
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(w.topic, b"not committed")
        producer.flush()
        said = skip(w, 25, code=1)
        assert "is at offset 10, and what the source has committed ends at 20: 25 is not between" in said
        assert "goes on at 20; gaps so far: 10 offsets, 10 records" in skip(w, 20)
        producer.abort_transaction()
