"""How long an acknowledgement takes when the broker is not busy, when its control plane is, and when another process is."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import frames, wire
from penstock.bench.case import Case, Sample
from penstock.bench.programs import ended
from penstock.bench.sides import Broker
from penstock.bench.world import RECYCLED_TOPIC, World
from penstock.pyx.wire import messages

HEARTBEAT_VERSION = 2


@dataclass
class Paced(Case):
    """One record of 1 KiB a request, by the clock; `tail` adds a consumer at the end that measures send to arrival."""

    name: str
    title: str
    rate: int = 2_000
    seconds: float = 20.0
    record_bytes: int = 1024
    tail: bool = False
    busy: bool = False
    beside: bool = False

    def run(self, world: World, side: str) -> Sample:
        broker = world.broker(side)
        topic = world.topic(broker, self.name, 1, RECYCLED_TOPIC)
        load = frames.produce(
            world.path(self.name), topic, 1, batch_bytes=self.record_bytes, record_bytes=self.record_bytes
        )
        options: dict[str, object] = {"rate": self.rate, "requests": int(self.rate * world.seconds(self.seconds))}
        frame = world.path("tail")
        if self.tail:
            options.update(tail=frame, tail_offset_at=frames.fetch(frame, topic), tail_from=0)
        try:
            done, cpu_s = world.measured(broker, lambda: self._load(world, broker, load, topic, options))
        finally:
            world.drop(broker, topic)
            load.path.unlink()
            frame.unlink(missing_ok=True)
        names = ["p50", "p99", "p999", *(["tail_p50", "tail_p99", "tail_p999"] if self.tail else [])]
        sample = {f"{name}_ms": float(done[f"{name}_us"]) / 1e3 for name in names}
        if self.busy:
            sample["control_requests_per_s"] = float(done["control_requests_per_s"])
        else:
            sample["cpu_us_per_request"] = cpu_s / float(done["requests"]) * 1e6
        return sample

    def _load(
        self, world: World, broker: Broker, load: frames.Frames, topic: str, options: dict[str, object]
    ) -> dict[str, float]:
        if self.beside:
            stranger = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                return world.requests(broker, load, **options)[-1]
            finally:
                stranger.kill()
                stranger.wait()
        if not self.busy:
            return world.requests(broker, load, **options)[-1]
        control = world.path("control")
        control_requests(control, topic)
        seconds = world.seconds(self.seconds) + 0.5
        other = world.programs.start_idle("requests", to=broker.bootstrap, frames=control, seconds=seconds)
        try:
            done = world.requests(broker, load, **options)[-1]
        finally:
            asked = ended(other)[-1]
            control.unlink()
        return {**done, "control_requests_per_s": asked["requests"] / asked["seconds"]}


def control_requests(path: Path, topic: str) -> None:
    """Metadata and Heartbeats, the requests that a control plane gets most."""
    heartbeat = messages.HeartbeatRequest(group_id="nobody", generation_id=1, member_id="none")
    metadata = wire.metadata_request(topic)
    frames.write(path, [(metadata, wire.METADATA_VERSION), *[(heartbeat, HEARTBEAT_VERSION)] * 9])


CASES: list[Case] = [
    Paced("ack-latency", "acknowledgement, 2,000 a second, 1 KiB each, with a consumer at the end", tail=True),
    Paced(
        "ack-latency-busy",
        "the same while Metadata and Heartbeats come as fast as they are answered on another connection",
        tail=True,
        busy=True,
    ),
    # What a busy core costs in itself: the control plane can't cost less.
    Paced("ack-latency-beside", "the same beside a process that keeps a core busy by itself", tail=True, beside=True),
]
