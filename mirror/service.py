"""The mirror as a process: every partition of every source on a lane of its own.

Nothing waits for all: a source, topic or partition that can't be reached holds up its own lanes. Only registration has
an order: all sources' lanes of a target partition are known to the target before any of them sends a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from penstock import log, tasks
from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.mirror.creation import create, outlived
from penstock.mirror.identity import Identity
from penstock.mirror.source import Source
from penstock.mirror.target import Into
from penstock.mirror.worker import CountsDiffer, MirrorWorker
from penstock.pipeline import job
from penstock.pipeline.service import Replaced
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.failures import TRANSIENT, OperatorNeeded, patiently
from penstock.pipeline.stages.figures import Key, Placed
from penstock.pipeline.stages.lane import Lane, Pace
from penstock.pipeline.stages.lanes import Lanes
from penstock.pipeline.stages.noted import Noted
from penstock.pipeline.stages.stage import Stage
from penstock.pipeline.stages.topics import TopicChoice

MEETING_S = 3.0  # how long lanes wait to know whether their source is one that is refused


class Copy:
    """One topic of the target and what is copied into it: `topics` by source.

    `present` are sources that have lanes in it; others are registered. `partitions` have lanes already.
    """

    def __init__(self, into: Into, topics: Mapping[str, str]) -> None:
        self.into = into
        self.topics = topics
        self.present: set[str] = set()
        self.registered: set[tuple[str, int]] = set()
        self.partitions = 0
        self.tried = asyncio.Event()  # it was looked for once, whatever came of it
        self.lock = asyncio.Lock()


class Mirror(Stage):
    """All sources of one mirror."""

    def __init__(self, config: Config) -> None:
        super().__init__("mirror", config, log.get(__name__, mirror=config["penstock.mirror.name"]))
        self.topics = TopicChoice(config)
        self.sources = [
            Source(name, self._admin(servers), self.target, job.mirror_group(config, name))
            for name, servers in job.sources(config).items()
        ]
        linger_ms, pace = config["penstock.mirror.linger.ms"], Pace(config["penstock.mirror.transactions.max"])
        self._lanes: dict[str, Lanes] = {}  # by source
        for source in self.sources:
            source.others = self.sources
            self._lanes[source.name] = self._lanes_from(source.admin, source.log, linger_ms=linger_ms, pace=pace)
        self._copies: dict[str, Copy] = {}  # by the topic's name on the target
        for topic in self.topics.named:
            for source in self.sources:
                if (copy := self._copy(topic, source)) is not None:
                    copy.present.add(source.name)
        self._looked = {source.name: asyncio.Event() for source in self.sources}  # for the first time
        self._group: asyncio.TaskGroup | None = None

    async def _all_tried(self) -> None:
        if self.topics.are_searched:
            for looked in self._looked.values():
                await looked.wait()
        for copy in list(self._copies.values()):
            await copy.tried.wait()
        for lanes in self._lanes.values():
            for lane in list(lanes.lanes.values()):
                await lane.tried.wait()

    async def _set_out(self) -> None:
        meetings = [asyncio.ensure_future(source.learn()) for source in self.sources]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._until_replaced([group.create_task(lanes.run()) for lanes in self._lanes.values()]))
                self._group = group
                await asyncio.wait(meetings, timeout=MEETING_S)
                for copy in list(self._copies.values()):
                    group.create_task(self._follow(copy))
                for source in self.sources:
                    group.create_task(self._watch(source))
        finally:
            await tasks.end(*meetings)

    async def _watch(self, source: Source) -> None:
        """Look at a source again and again: new topics and partitions, who else mirrors it, what operators decided."""
        while True:
            try:
                await self._look(source)
            except TRANSIENT:
                pass  # its lanes say so
            finally:
                self._looked[source.name].set()
            await asyncio.sleep(self.config["penstock.watch.ms"] / 1000)

    async def _look(self, source: Source) -> None:
        """Ask a source once, with one request for all topics of the source. Raises KafkaError, OSError."""
        await self._hear(source)
        await source.learn(again=True)
        theirs = await source.admin.metadata(None if self.topics.are_searched else self.topics.named, refresh=True)
        for topic, info in theirs.topics.items():
            if topic in self.topics.named or not self.topics.wants(topic, info.internal, source.name):
                continue
            copy = self._copy(topic, source)
            if copy is not None and source.name not in copy.present:
                copy.present.add(source.name)
                self._set_out_for(copy)
        for copy in self._copies.values():
            if copy.into.name in self._refused and source.name in copy.present and not copy.lock.locked():
                self._set_out_for(copy)
        ours = await self.target.metadata([copy.into.name for copy in self._copies.values()], refresh=True)
        lanes = self._lanes[source.name]
        for copy in self._copies.values():
            found, there = theirs.topics.get(copy.topics.get(source.name, "")), ours.topics.get(copy.into.name)
            if found is None or there is None or len(found.partitions) != len(there.partitions):
                continue
            if copy.partitions and len(there.partitions) > copy.partitions:
                self._log.info("topic %s has %d partitions now", copy.into.name, len(there.partitions))
                self._set_out_for(copy)
            for partition in range(copy.partitions):
                lane = lanes.lanes.get((found.name, partition))
                if lane is not None and lane.stopped and isinstance(lane.reason, CountsDiffer):
                    lanes.retry(lane.tp)
        for lane in list(lanes.lanes.values()):
            try:
                await source.check(lane.tp[0], self.topics.into(source.name, lane.tp[0]))
            except OperatorNeeded as error:
                if not lane.stopped:
                    lane.stop(error)

    async def _hear(self, source: Source) -> None:
        """Operators' commands move positions: their lanes start over. Raises KafkaError."""
        lanes = self._lanes[source.name]
        known = {(self.topics.into(source.name, tp[0]), tp[1]): lane for tp, lane in lanes.lanes.items()}
        found = await self.target.committed(source.group, known, require_stable=False) if known else {}
        lanes.hear({known[into].tp: Noted(at[1]).decisions for into, at in found.items() if at is not None})

    async def _until_replaced(self, running: Sequence[asyncio.Task[None]]) -> None:
        """Lanes run until others have taken them all."""
        await asyncio.gather(*running)
        raise Replaced(
            f"another mirror with `penstock.mirror.name={self.name}` took over every partition; only one may run, and that "
            "one goes on: leave it, or stop it before this one is started again"
        )

    def _copy(self, topic: str, source: Source) -> Copy | None:
        """The copy that a source's topic is part of; topics of one name go into one topic of the target. None for a topic that
        is refused, since another one has its name there."""
        name = self.topics.into(source.name, topic)
        copy = self._copies.get(name)
        if copy is None:
            sources = [source] if self.topics.are_apart else self.sources
            copy = self._copies[name] = Copy(Into(self.target, name), {one.name: topic for one in sources})
        if copy.topics.get(source.name) == topic:
            return copy
        (other, others), *_ = copy.topics.items()
        words = f"it would be {name} on the target, as topic {others} of source {other} is: change `penstock.mirror.rename`"
        self._refuse(f"{source.name}/{topic}", OperatorNeeded(words))
        return None

    def _set_out_for(self, copy: Copy) -> None:
        """See to a copy's lanes in a task of its own."""
        assert self._group is not None, "set out first"
        self._group.create_task(self._follow(copy))

    async def _follow(self, copy: Copy) -> None:
        """Find a topic on the target, or make it there, and give each partition a lane for every source."""
        name = copy.into.name
        sources = [one for one in self.sources if one.name in copy.topics]

        async def find() -> None:
            try:
                try:
                    await copy.into.learn()
                except KafkaError as error:
                    if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise
                    allowed = [one for one in sources if not await self._refuses(one, copy)]
                    if not allowed:
                        why = "; ".join(dict.fromkeys(self._refused[_key(one, copy)] for one in sources))
                        raise KafkaError(error.code, f"nothing may be copied into topic {name}: {why}") from None
                    await self._create(copy, allowed)
                    await copy.into.learn()
            except (*TRANSIENT, OperatorNeeded):
                copy.tried.set()
                raise

        try:
            async with copy.lock:
                await patiently(find, f"find topic {name} on the target", self._log)
                await self._add_lanes(copy, [one for one in sources if not await self._refuses(one, copy)])
            if self._refused.pop(name, None) is not None:
                self._log.info("%s goes on", name)
        except KafkaError as error:  # `_look` tries again
            self._refuse(name, error)
        copy.tried.set()

    async def _add_lanes(self, copy: Copy, sources: Sequence[Source]) -> None:
        """Lanes for what has none yet. A source that hasn't the topic (yet) is registered all the same: the target then
        knows that nothing of it was copied.
        """
        copy.partitions = copy.into.partitions
        for partition in range(copy.partitions):
            added: list[tuple[Lanes, Lane]] = []
            for source in sources:
                topic = copy.topics[source.name]
                lanes = self._lanes[source.name]
                if (topic, partition) in lanes.lanes:
                    continue
                identity = Identity(self.name, source.name, (topic, partition), (copy.into.name, partition))
                worker = MirrorWorker(identity, source, self.target, copy.into)
                if source.name in copy.present:
                    added.append((lanes, lanes.add((topic, partition), worker, partial(hints.to_skip, identity.address))))
                elif (source.name, partition) not in copy.registered:
                    with contextlib.suppress(OperatorNeeded):  # once it has the topic, its lane says so
                        await patiently(worker.take, f"register {identity}", source.log)
                    await worker.close()
                    copy.registered.add((source.name, partition))
            for lanes, lane in added:
                lane.peers = [peer for _, peer in added]
                lanes.begin(lane)

    async def _refuses(self, source: Source, copy: Copy) -> bool:
        """Whether no lane may be made for a topic. A source that hasn't been reached yet is asked by its lanes."""
        topic = copy.topics[source.name]
        key = _key(source, copy)
        try:
            if source.is_met:
                await source.check(topic, copy.into.name)
        except OperatorNeeded as error:
            if key not in self._refused:
                source.log.error("%s is STOPPED, the others go on: %s", topic, error)
            self._refused[key] = str(error)
            return True
        self._refused.pop(key, None)
        return False

    async def _create(self, copy: Copy, sources: Sequence[Source]) -> None:
        """Make the topic on the target. Raises KafkaError when no source can be reached or has it."""
        topics = [(source, copy.topics[source.name]) for source in sources]
        partitions = await create(self.target, copy.into.name, topics)
        self._log.info("created topic %s with %d partitions on the target", copy.into.name, partitions)
        for sentence in await outlived(self.target, copy.into.name, topics):
            self._log.warning("%s", sentence)

    async def _close_own(self) -> None:
        for source in self.sources:
            await source.admin.close()

    def placed(self) -> Iterator[Placed]:
        """All lanes."""
        for source, lanes in self._lanes.items():
            yield from (Placed(source, lanes, lane) for lane in list(lanes.lanes.values()))

    def waiting_topics(self) -> dict[Key, str]:
        """The states of topics that have no lane, as `status` has them."""
        found: dict[Key, str] = {}
        for source in self.sources:
            have = {topic for topic, _ in self._lanes[source.name].lanes}
            copies = {copy.topics[source.name]: copy for copy in self._copies.values() if source.name in copy.present}
            refused = [key.removeprefix(f"{source.name}/") for key in self._refused if key.startswith(f"{source.name}/")]
            for topic in sorted({*copies, *refused} - have):
                is_there = topic in copies and copies[topic].into.partitions > 0
                state = "no position" if is_there else "not copied" if source.admin.topic_id(topic) else "no topic"
                found[source.name, topic, ""] = state if source.is_met else "unreachable"
        return found

    def stopped(self) -> dict[str, str]:
        """The partitions that stopped, as `source/topic-partition`, each with its reason."""
        stopped = {f"{source}/{name}": why for source, lanes in self._lanes.items() for name, why in lanes.stopped().items()}
        return {**self._refused, **stopped}


def _key(source: Source, copy: Copy) -> str:
    """A topic of a source, as it is named where it is refused."""
    return f"{source.name}/{copy.topics[source.name]}"
