"""A source cluster as the mirror sees it: who it is, and why a topic of it must not be copied to this target."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock import log
from penstock.groupnames import MIRROR_GROUPS
from penstock.hints import quoted
from penstock.mirror.identity import Identity
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.noted import Noted
from penstock.pipeline.stages.sourcelog import SourceLog


def source_log(admin: Admin, identity: Identity) -> SourceLog:
    """The log that a partition is copied from, with an operator's ways on."""
    return SourceLog(
        admin,
        identity.partition,
        f"source {identity.source}",
        lost=f"{hints.to_begin(identity.address, 'earliest')} once you know what is missing",
        cut=f"{hints.to_begin(identity.address)} once you know what is missing or there twice",
    )


class Source:
    """One source cluster; `target` is the cluster that its topics go to, `group` has its positions there."""

    def __init__(self, name: str, admin: Admin, target: Admin, group: str) -> None:
        self.name = name
        self.admin = admin
        self.group = group
        self.cluster_id = ""  # empty: not reached yet, or a broker that has no cluster id
        self.target_id = ""
        self.others: Sequence[Source] = ()
        self.log = log.get(__name__, source=name)
        self._target = target
        self._rings: dict[str, str] = {}  # topic here -> the group that says it is copied from our target
        self._others: list[str] = []  # the groups at the target that other positions of mirrors are in
        self._begun = self._ended = 0  # the latest asking that has begun, and that has ended well
        self._learnt = False
        self._learning = asyncio.Lock()

    @property
    def is_met(self) -> bool:
        """Whether it was reached."""
        return self._learnt

    async def learn(self, *, again: bool = False) -> None:
        """Learn which cluster this is, and who mirrors our target into it; `again`: by requests that begin after this call;
        callers share them. Raises KafkaError.
        """
        wanted = self._begun + 1
        async with self._learning:
            if self._ended >= wanted or (self._learnt and not again):
                return
            self._begun += 1
            self.target_id = (await self._target.metadata([])).cluster_id or ""
            self.cluster_id = (await self.admin.metadata([], refresh=True)).cluster_id or ""
            rings: dict[str, str] = {}
            for group in await self.admin.list_groups() if self.target_id else ():
                if group.startswith(MIRROR_GROUPS):
                    rings.update(dict.fromkeys(await self._copied(group), group))
            self._rings = rings
            self._others = [
                one for one in await self._target.list_groups() if one.startswith(MIRROR_GROUPS) and one != self.group
            ]
            self._learnt = True
            self._ended = self._begun

    async def _copied(self, group: str) -> list[str]:
        """The topics here that are copied from our target, by what the positions of a group say. Raises KafkaError.

        Once a position names a cluster it goes on to; one that doesn't may be about to: that is waited for. (To wait for all
        would be to wait until a busy mirror has no transaction open.)
        """
        positions = await self.admin.all_committed(group, require_stable=False)
        unsaid = [tp for tp, (_, text) in positions.items() if not Noted(text).text("cluster")]
        if unsaid:
            found = await self.admin.committed(group, unsaid)
            positions |= {tp: at for tp, at in found.items() if at is not None}
        return [tp[0] for tp, (_, text) in positions.items() if Noted(text).text("cluster") == self.target_id]

    async def check(self, topic: str, into: str, *, again: bool = False) -> None:
        """Refuse a copy that would never end, or that is made twice; `again`: after the source was asked once more.

        Raises OperatorNeeded, KafkaError.
        """
        await self.learn(again=again)
        key = f"`source.{self.name}.bootstrap.servers`"
        if self.cluster_id and self.cluster_id == self.target_id and topic == into:
            raise OperatorNeeded(
                f"source {self.name} is the target itself (cluster id {self.cluster_id}), and a topic copied into "
                f"itself never ends: change {key} or `bootstrap.servers`"
            )
        for other in self.others:
            if self.cluster_id and other is not self and other.cluster_id == self.cluster_id:
                raise self._twice(other)
        if topic in self._rings:
            raise OperatorNeeded(
                f"a ring: group `{self._rings[topic]}` at source {self.name} says that topic {topic} there is copied "
                f"from our target (cluster id {self.target_id}), so each record would come back for ever: mirror it "
                "one way only; if that other mirror is gone, delete its group there"
            )

    async def check_others(self, into: TopicPartition) -> None:
        """Refuse what another source, which can't be reached now, has copied from this very cluster: its position says so.

        Raises OperatorNeeded, KafkaError.
        """
        for other in self.others:
            if other is self or other.is_met or not self.cluster_id:
                continue
            found = (await self._target.committed(other.group, [into]))[into]
            if found is not None and Noted(found[1]).text("cluster") == self.cluster_id:
                raise self._twice(other)

    async def check_twins(self, lane: Identity, topic_id: bytes) -> None:
        """Refuse to begin where a mirror of another name, or this one under another source's name, copies from the same topic.
        `topic_id` is the source topic's. Raises OperatorNeeded, KafkaError.
        """
        if not self.cluster_id:
            return
        for group in self._others:
            found = (await self._target.committed(group, [lane.into], require_stable=False))[lane.into]
            noted = Noted("" if found is None else found[1])
            same = noted.text("cluster"), noted.text("topic_id")
            if group == lane.older_group or same != (self.cluster_id, topic_id.hex()):
                continue
            raise OperatorNeeded(
                f"group `{group}` at the target says that another mirror, or another source of this one, copies the same topic "
                f"(cluster id {self.cluster_id}) into {lane.into[0]}-{lane.into[1]}, so each record would be there twice: stop "
                f"one of them; if the other one is gone for good, `penstock groups delete {quoted(group)} --topic "
                f"{quoted(hints.address(lane.into))}`, then {hints.to_retry(lane.address)}"
            )

    def _twice(self, other: Source) -> OperatorNeeded:
        return OperatorNeeded(
            f"sources {self.name} and {other.name} are one cluster (id {self.cluster_id}), so that each record would be "
            f"copied twice: remove `source.{self.name}.bootstrap.servers` or `source.{other.name}.bootstrap.servers`"
        )
