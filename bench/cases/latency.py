"""How long an acknowledgement takes when the broker is not busy, and when its control plane is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import frames, wire
from penstock.bench.case import Case, Sample
from penstock.bench.programs import ended
from penstock.bench.sides import FLOOR, KAFKA, PENSTOCK, Broker
from penstock.bench.world import RECYCLED_TOPIC, World
from penstock.pyx.wire import messages

HEARTBEAT_VERSION = 2


@dataclass
class Paced(Case):
    """One record of 1 KiB a request, by the clock; `tail` adds a consumer at the end that measures send to arrival.

    `busy` adds requests to a control plane. On the floor's side it is that of another broker, in a process of its own: so
    much of the growth comes of processors that are busy, whoever keeps them so.
    """

    name: str
    title: str
    rate: int = 2_000
    seconds: float = 20.0
    record_bytes: int = 1024
    tail: bool = False
    busy: bool = False
    sides: tuple[str, ...] = (PENSTOCK, KAFKA)

    def run(self, world: World, side: str) -> Sample:
        broker = world.broker(PENSTOCK if side == FLOOR else side)
        topic = world.topic(broker, self.name, 1, RECYCLED_TOPIC)
        load = frames.produce(
            world.path(self.name), topic, 1, batch_bytes=self.record_bytes, record_bytes=self.record_bytes
        )
        options: dict[str, object] = {"rate": self.rate, "requests": int(self.rate * world.seconds(self.seconds))}
        frame = world.path("tail")
        if self.tail:
            options.update(tail=frame, tail_offset_at=frames.fetch(frame, topic), tail_from=0)
        try:
            done, cpu_s = world.measured(broker, lambda: self._load(world, side, broker, load, topic, options))
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
        self, world: World, side: str, broker: Broker, load: frames.Frames, topic: str, options: dict[str, object]
    ) -> dict[str, float]:
        if not self.busy:
            return world.requests(broker, load, **options)[-1]
        control = world.path("control")
        control_requests(control, topic)
        seconds = world.seconds(self.seconds) + 0.5
        with _asked(world, side, broker) as asked:
            other = world.programs.start_idle("requests", to=asked.bootstrap, frames=control, seconds=seconds)
            try:
                done = world.requests(broker, load, **options)[-1]
            finally:
                answered = ended(other)[-1]
                control.unlink()
        return {**done, "control_requests_per_s": answered["requests"] / answered["seconds"]}


@contextmanager
def _asked(world: World, side: str, measured: Broker) -> Iterator[Broker]:
    """Whose control plane is kept busy."""
    if side != FLOOR:
        yield measured
        return
    with world.own_broker(PENSTOCK) as other:
        other.start()
        yield other


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
        sides=(PENSTOCK, KAFKA, FLOOR),
    ),
]
