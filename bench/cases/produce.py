"""Produce: ready-made batches from a client that costs next to nothing, on pages that are used again."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.bench import frames
from penstock.bench.case import Case, Sample
from penstock.bench.sides import FLOOR, KAFKA, OURS, PENSTOCK, Server
from penstock.bench.world import GB, RECYCLED_BYTES, RECYCLED_TOPIC, SETTLE_S, World

PARTITIONS = 2
# Sent before what is measured, at most as much again: the pages that the brokers write to are then pages that old segments
# had just now, not pages that the machine has to get back from its host.
AHEAD_BYTES = 2 * PARTITIONS * RECYCLED_BYTES


def sample(done: Mapping[str, float], cpu_s: float, count: float, value_bytes: int) -> Sample:
    """What so many requests, each of so many bytes of values, came to; done: what the load program printed."""
    bytes_sent = count * value_bytes
    return {
        "cpu_s_per_gb": cpu_s / (bytes_sent / GB),
        "mb_per_s": bytes_sent / 1e6 / done["seconds"],
        "cpu_us_per_request": cpu_s / count * 1e6,
        "requests_per_s": count / done["seconds"],
        "p50_ms": done["p50_us"] / 1e3,
        "p99_ms": done["p99_us"] / 1e3,
        "client_cpu_s": done["client_cpu_s"],
    }


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
    floor: str = "write"
    _loads: dict[str, tuple[Server, str, frames.Frames]] = field(default_factory=dict)
    _kept: list[Path] = field(default_factory=list)

    def prepare(self, world: World, side: str) -> None:
        if side == FLOOR:
            server, topic = self._floor(world), "floor"
        else:
            server = world.broker(side, **(self.properties if side in OURS else {}))
            topic = world.topic(server, self.name, PARTITIONS, RECYCLED_TOPIC)
        self._loads[side] = server, topic, self._frames(world, topic)

    def _frames(self, world: World, topic: str) -> frames.Frames:
        return frames.produce(
            world.path(self.name),
            topic,
            PARTITIONS,
            batch_bytes=self.batch_bytes,
            record_bytes=self.record_bytes,
            codec=self.codec,
        )

    def _floor(self, world: World) -> Server:
        self._kept = [answer_file(world, "floor"), world.path("floor-kept")]
        writing = {"file": self._kept[1], "wrap": RECYCLED_BYTES} if self.floor == "write" else {}
        return world.floor(self.floor, answer=self._kept[0], **writing)

    def run(self, world: World, side: str) -> Sample:
        server, _, load = self._loads[side]
        count = world.scaled(self.gb * GB / load.value_bytes, least=4)
        self._send(world, server, load, max(4, min(count, world.scaled(AHEAD_BYTES / load.batch_bytes))))
        time.sleep(SETTLE_S)
        done, cpu_s = world.measured(server, lambda: self._send(world, server, load, count))
        return sample(done, cpu_s, count, load.value_bytes)

    def _send(self, world: World, server: Server, load: frames.Frames, count: int) -> dict[str, float]:
        return world.requests(server, load, connections=self.connections, in_flight=self.in_flight, requests=count)[-1]

    def finish(self, world: World, side: str) -> None:
        if side not in self._loads:
            return
        server, topic, load = self._loads.pop(side)
        load.path.unlink()
        if side == FLOOR:
            server.stop()
            for path in self._kept:
                path.unlink(missing_ok=True)
        else:
            world.drop(server, topic)


def answer_file(world: World, topic: str) -> Path:
    """An answer to Produce of one partition, as version 7 has it, its size in front."""
    partition = struct.pack(">ihqqq", 0, 0, 0, -1, 0)
    body = struct.pack(">iih", 0, 1, len(topic)) + topic.encode() + struct.pack(">i", 1) + partition + struct.pack(">i", 0)
    path = world.path("answer")
    path.write_bytes(struct.pack(">i", len(body)) + body)
    return path


def _compressed(codec: str) -> list[Case]:
    title = f"produce, 128 KB batches of events, {codec}"
    return [
        Produce(f"produce-{codec}", f"{title}, every record checked", 131_072, 1.0, frames.EVENTS, codec),
        Produce(
            f"produce-{codec}-headers",
            f"{title}, ours checks headers and checksums only (penstock.validate.records=headers)",
            131_072,
            3.0,
            frames.EVENTS,
            codec,
            properties={"penstock_validate_records": "headers"},
        ),
    ]


def _one_record(name: str, how: str, *, connections: int, in_flight: int) -> Case:
    return Produce(
        name,
        f"one record of 100 B a request, {how}",
        batch_bytes=100,
        gb=0.01,
        record_bytes=100,
        connections=connections,
        in_flight=in_flight,
        sides=(PENSTOCK, KAFKA, FLOOR),
        floor="echo",
    )


CASES: list[Case] = [
    Produce("produce-1m", "produce, 1 MB batches", 1_000_000, 2.0, sides=(PENSTOCK, KAFKA, FLOOR)),
    Produce("produce-16k", "produce, 16 KB batches", 16_384, 1.0, sides=(PENSTOCK, KAFKA, FLOOR)),
    Produce("produce-100b", "produce, 128 KB batches of records of 100 B", 131_072, 1.0, 100),
    *_compressed("snappy"),
    *_compressed("lz4"),
    *_compressed("zstd"),
    # What a request costs. The floor answers and does nothing else.
    _one_record("request-5", "1 connection, 5 in flight", connections=1, in_flight=5),
    _one_record("request-16x1", "16 connections, 1 in flight each", connections=16, in_flight=1),
]
