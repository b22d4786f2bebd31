"""Produce: ready-made batches from a client that costs next to nothing, on pages that are used again."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from penstock.bench import frames
from penstock.bench.case import Case, Sample
from penstock.bench.sides import FLOOR, KAFKA, PENSTOCK, Server
from penstock.bench.world import GB, MIB, RECYCLED_TOPIC, World

PARTITIONS = 4


@dataclass
class Produce(Case):
    """Batches of one size, several requests in flight. GB are those of record values, before compression."""

    name: str
    title: str
    batch_bytes: int
    gb: float
    record_bytes: int = 1024
    codec: str = "none"
    connections: int = 2
    in_flight: int = 4
    properties: dict[str, str] = field(default_factory=dict)  # of our broker
    sides: tuple[str, ...] = (PENSTOCK, KAFKA)

    def run(self, world: World, side: str) -> Sample:
        if side == FLOOR:
            return self._floor(world)
        broker = world.broker(side, **(self.properties if side == PENSTOCK else {}))
        topic = world.topic(broker, self.name, PARTITIONS, RECYCLED_TOPIC)
        load = self._frames(world, topic)
        try:
            return self._load(world, broker, load)
        finally:
            world.drop(broker, topic)
            load.path.unlink()

    def _frames(self, world: World, topic: str) -> frames.Frames:
        path = world.path(self.name)
        return frames.produce(
            path,
            topic,
            PARTITIONS,
            batch_bytes=self.batch_bytes,
            record_bytes=self.record_bytes,
            codec=self.codec,
        )

    def _load(self, world: World, server: Server, load: frames.Frames) -> Sample:
        count = world.scaled(self.gb * GB / load.value_bytes, least=4)
        done, cpu_s = world.measured(
            server,
            lambda: world.requests(
                server, load, connections=self.connections, in_flight=self.in_flight, requests=count
            )[-1],
        )
        bytes_sent = count * load.value_bytes
        return {
            "cpu_s_per_gb": cpu_s / (bytes_sent / GB),
            "mb_per_s": bytes_sent / 1e6 / done["seconds"],
            "cpu_us_per_request": cpu_s / count * 1e6,
            "requests_per_s": count / done["seconds"],
            "p50_ms": done["p50_us"] / 1e3,
            "p99_ms": done["p99_us"] / 1e3,
            "client_cpu_s": done["client_cpu_s"],
        }

    def _floor(self, world: World) -> Sample:
        load = self._frames(world, "floor")
        answer, kept = answer_file(world, "floor"), world.path("floor-kept")
        floor = world.floor("write", answer=answer, file=kept, wrap=64 * MIB)
        try:
            self._load_some(world, floor, load)  # the file's pages are there afterwards
            return self._load(world, floor, load)
        finally:
            floor.stop()
            for path in (load.path, answer, kept):
                path.unlink()

    def _load_some(self, world: World, server: Server, load: frames.Frames) -> None:
        world.requests(server, load, requests=max(4, 80 * MIB // load.batch_bytes))


def answer_file(world: World, topic: str) -> Path:
    """An answer to Produce of one partition, as version 7 has it, its size in front."""
    partition = struct.pack(">ihqqq", 0, 0, 0, -1, 0)
    body = struct.pack(">iih", 0, 1, len(topic)) + topic.encode() + struct.pack(">i", 1) + partition + struct.pack(">i", 0)
    path = world.path("answer")
    path.write_bytes(struct.pack(">i", len(body)) + body)
    return path


@dataclass
class OneRecord(Produce):
    """One record of 100 bytes in each request: what a request costs. The floor answers and does nothing else."""

    def _floor(self, world: World) -> Sample:
        load = self._frames(world, "floor")
        answer = answer_file(world, "floor")
        floor = world.floor("echo", answer=answer)
        try:
            return self._load(world, floor, load)
        finally:
            floor.stop()
            load.path.unlink()
            answer.unlink()


def _compressed(codec: str) -> list[Case]:
    title = f"produce, 128 KB batches of events, {codec}"
    return [
        Produce(f"produce-{codec}", f"{title}, headers checked", 131_072, 1.0, codec=codec),
        Produce(
            f"produce-{codec}-full",
            f"{title}, ours opens every record (penstock.validate.records=full)",
            131_072,
            0.5,
            codec=codec,
            properties={"penstock_validate_records": "full"},
        ),
    ]


CASES: list[Case] = [
    Produce("produce-1m", "produce, 1 MB batches", 1_000_000, 2.0, sides=(PENSTOCK, KAFKA, FLOOR)),
    Produce("produce-16k", "produce, 16 KB batches", 16_384, 1.0, sides=(PENSTOCK, KAFKA, FLOOR)),
    *_compressed("snappy"),
    *_compressed("lz4"),
    *_compressed("zstd"),
    OneRecord(
        "request-5",
        "one record of 100 B a request, 1 connection, 5 in flight",
        100,
        0.01,
        record_bytes=100,
        connections=1,
        in_flight=5,
        sides=(PENSTOCK, KAFKA, FLOOR),
    ),
    OneRecord(
        "request-16x1",
        "one record of 100 B a request, 16 connections, 1 in flight each",
        100,
        0.01,
        record_bytes=100,
        connections=16,
        in_flight=1,
        sides=(PENSTOCK, KAFKA, FLOOR),
    ),
]
