"""The aggregate as a cluster: three brokers around a ZooKeeper, of which one at a time is killed."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.metadata import PartitionInfo
from penstock.pipeline.demo.parts import BrokerPart, Part, PartError, killed

ZOOKEEPER_STARTED = re.compile(r"zookeeper started on (\S+)")
BROKERS = 3
LOOK_S = 0.1
"""How often the cluster is asked who has a role."""
DOWN_S = 1.0
"""How long a killed broker stays away after another one has its role."""
# Three replicas of all, and two in sync for each answer.
REPLICATED = (
    "default.replication.factor=3",
    "offsets.topic.replication.factor=3",
    "transaction.state.log.replication.factor=3",
    "transaction.state.log.min.isr=2",
    "min.insync.replicas=2",
)


class ClusterPart:
    """Three brokers around a ZooKeeper, a process each: `kills` were one of the brokers at a time, which has come back."""

    def __init__(self, name: str, folder: Path, topic: str, kill_done: Callable[[str], None]) -> None:
        """topic: it has the leader that is killed. kill_done: told of each kill once it is over."""
        self.name = name
        self.kills = 0
        self.nodes: Sequence[BrokerPart] = []
        """The brokers 1 to 3; none before the first start."""
        self._folder = folder
        data = folder / f"{name}-zookeeper"
        self._zookeeper = Part(data.name, ["-m", "penstock.bench.zookeeper", str(data)], folder)
        # None: the controller; else the leader of the first partition, which coordinates where the topic is an internal one.
        self._roles = itertools.cycle((topic, None, "__transaction_state", "__consumer_offsets"))
        self._kill_done = kill_done
        self._wanted = asyncio.Event()
        self._returns = asyncio.Event()  # the broker that was killed may start again

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def running(self) -> bool:
        """Whether all processes live."""
        return self._zookeeper.running and all(node.running for node in self.nodes)

    async def start(self) -> None:
        """Start what doesn't run, and wait until all serve and know each other. Raises PartError."""
        if not self.nodes:
            await self._zookeeper.start()
            match = ZOOKEEPER_STARTED.match(await self._zookeeper.line())
            if match is None:
                raise PartError(f"{self._zookeeper.name} did not start:\n{self._zookeeper.log_tail()}")
            settings = [word for setting in REPLICATED for word in ("--set", setting)]
            self.nodes = [
                BrokerPart(f"{self.name}-{number}", self._folder, "--zookeeper", match[1], "--id", str(number), *settings)
                for number in range(1, BROKERS + 1)
            ]
        await asyncio.gather(*(node.start() for node in self.nodes if not node.running))
        await asyncio.gather(*map(_until_all_known, self.nodes))

    def kill(self) -> None:
        """Have `keep` kill the broker that has the next role: a leader, the controller, a coordinator; one at a time."""
        self._wanted.set()

    async def keep(self) -> None:
        """Kill brokers as `kill` wants it, and start them again. Raises PartError when a process has ended by itself."""
        async with asyncio.TaskGroup() as group:
            group.create_task(killed(self._zookeeper))
            for node in self.nodes:
                group.create_task(self._keep_node(node))
            group.create_task(self._kill_for_ever())

    async def _keep_node(self, node: BrokerPart) -> None:
        while True:
            await killed(node)
            await self._returns.wait()
            self._returns.clear()
            await node.start()

    async def _kill_for_ever(self) -> None:
        async with Admin(self.bootstrap) as admin:
            for topic in self._roles:
                await self._wanted.wait()
                said = await self._kill(admin, topic)
                self.kills += 1
                self._kill_done(f"[red]{self.name}: {said}[/red]")
                self._wanted.clear()

    async def _kill(self, admin: Admin, topic: str | None) -> str:
        """Kill -9 the broker that has a role; start it again once another one has it. Returns when it follows again."""

        async def found() -> tuple[int, Collection[int]]:
            """Who has the role, -1: nobody, and who is in sync there."""
            seen = await admin.metadata([] if topic is None else [topic], refresh=True)
            if topic is None:
                return seen.controller_id, seen.brokers
            state = seen.topics[topic].partitions[0] if topic in seen.topics else PartitionInfo(-1)
            return state.leader, state.isr

        async def until(is_so: Callable[[int, Collection[int]], bool]) -> int:
            while True:
                broker, in_sync = await found()
                if is_so(broker, in_sync):
                    return broker
                await asyncio.sleep(LOOK_S)

        victim = await until(lambda broker, _: broker > 0)
        self.nodes[victim - 1].kill()
        await until(lambda broker, _: broker not in (victim, -1))
        await asyncio.sleep(DOWN_S)
        self._returns.set()
        await until(lambda _, in_sync: victim in in_sync)
        return f"killed {victim}, which {'was the controller' if topic is None else f'led {topic}-0'}"

    async def stop(self) -> None:
        """The brokers by SIGTERM, then ZooKeeper."""
        await asyncio.gather(*(node.stop() for node in self.nodes))
        await self._zookeeper.stop()

    def log_tail(self) -> str:
        """The last lines of each log."""
        return "\n".join(part.log_tail() for part in (self._zookeeper, *self.nodes))


async def _until_all_known(node: BrokerPart) -> None:
    """Wait until a broker knows that all live: before, it could give no topic a replica on each."""
    known = 0
    while known < BROKERS:
        await asyncio.sleep(LOOK_S)
        async with Admin(node.bootstrap) as admin:  # One that knows this address alone.
            known = len((await admin.metadata([], refresh=True)).brokers)
