"""The way of a transaction's markers in a cluster: to the leaders of its partitions, until each is committed.

A broker may be away, or a partition without a leader, for as long as it likes: the markers are sent again, to whoever leads by
then. A partition that this broker doesn't know is no deleted one, since a coordinator may be at work before it has had its
first picture of the cluster: the metadata store is asked.

A marker names the topic that its transaction wrote to by its id, as far as the coordinator knows it. The leader of a later
topic of that name refuses it (*a marker that hung in a connection ends another transaction of its producer, in the next
topic*). Then, too, the store is asked whether the former topic is gone: the leader may not have heard of the later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from penstock import log
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.markers import Markers, is_done
from penstock.broker.coordination.parts import BrokerSender, Parts
from penstock.broker.topic import PartitionState, partition_in
from penstock.broker.topics.changes import Topics
from penstock.broker.transactionmessages import Marker, MarkerAnswer, MarkerWrite, TopicIds
from penstock.errors import ErrorCode

RETRY_S = 0.5
"""How long the next picture of the cluster is waited for before markers are sent again."""

Target = tuple[TopicPartition, bytes]
"""A partition that is to get a marker, and its topic's id; b"": of whichever topic has the name."""

_log = log.get(__name__)


class Delivery:
    """Of one coordinator's markers."""

    def __init__(self, parts: Parts, markers: Markers) -> None:
        self._parts = parts
        self._markers = markers

    async def deliver(
        self,
        cluster: BrokerSender,
        marker: Marker,
        partitions: Collection[TopicPartition],
        is_wanted: Callable[[], bool],
        topic_ids: TopicIds = frozenset(),
    ) -> bool:
        """Until the marker is committed in each partition that there is. False: by then nobody wants it any more."""
        left = targets(partitions, topic_ids)
        was_said = False
        while is_wanted():
            left -= await self._send(cluster, marker, left)
            if not left:
                if was_said:
                    _log.info("markers of producer_id=%d epoch=%d are written", marker.producer_id, marker.producer_epoch)
                return True
            if not was_said:
                was_said = True
                _log.warning(
                    "markers of producer_id=%d epoch=%d wait for the leaders of %d partitions: %s", marker.producer_id,
                    marker.producer_epoch, len(left), [(*one, self._leader(one)) for one, _ in sorted(left)[:5]],
                )  # fmt: skip
            await cluster.next_picture(RETRY_S)
        return False

    async def _send(self, cluster: BrokerSender, marker: Marker, targets: Iterable[Target]) -> set[Target]:
        """Send it once to every leader; those that have it, and those that are gone."""
        writes: list[tuple[int, dict[TopicPartition, int], dict[str, bytes]]] = []
        unknown: list[Target] = []
        for partition, topic_id in sorted(targets):  # a set's order differs from one process to the next
            state = shown(self._parts.topics, partition, topic_id)
            if state is None:
                unknown.append((partition, topic_id))
            elif state.leader >= 0:
                epochs, ids = _write_for(writes, state.leader, partition[0], topic_id)
                epochs[partition], ids[partition[0]] = state.leader_epoch, topic_id
        done: set[Target] = set()
        answers = await asyncio.gather(
            *(self._write(cluster, leader, MarkerWrite(marker, epochs, _known(ids))) for leader, epochs, ids in writes)
        )
        for (_, _, ids), some in zip(writes, answers, strict=True):
            for partition, answer in some.items():
                if is_done(answer):
                    done.add((partition, ids[partition[0]]))
                elif answer.error == ErrorCode.UNKNOWN_TOPIC_ID:
                    unknown.append((partition, ids[partition[0]]))
        for partition, topic_id in unknown:
            if await cluster.is_gone(partition, topic_id):
                done.add((partition, topic_id))
        return done

    async def _write(self, cluster: BrokerSender, leader: int, write: MarkerWrite) -> Mapping[TopicPartition, MarkerAnswer]:
        if leader == self._parts.node_id:
            own = [
                self._markers.write_committed(one, write.marker, epoch, write.topic_ids.get(one[0], b""))
                for one, epoch in write.leader_epochs.items()
            ]
            return dict(zip(write.leader_epochs, await asyncio.gather(*own), strict=True))
        try:
            return await cluster.write_markers(leader, write)
        except ConnectionError as error:
            _log.debug("markers may not have reached broker %d: %s", leader, error)
            return {}

    def _leader(self, partition: TopicPartition) -> int | None:
        state = shown(self._parts.topics, partition)
        return None if state is None else state.leader


def targets(partitions: Iterable[TopicPartition], topic_ids: TopicIds) -> set[Target]:
    """The partitions of a transaction, of each topic that it is known to have written to under that name."""
    ids: dict[str, list[bytes]] = {}
    for name, topic_id in topic_ids:
        ids.setdefault(name, []).append(topic_id)
    return {(one, topic_id) for one in partitions for topic_id in ids.get(one[0], [b""])}


def shown(topics: Topics, partition: TopicPartition, topic_id: bytes = b"") -> PartitionState | None:
    """What this broker is shown of a partition; None: nothing, or of another topic. topic_id: b"": whichever has the name."""
    topic = topics.get(partition[0])
    return None if topic is not None and topic_id not in (b"", topic.topic_id) else partition_in(topic, partition[1])


def _write_for(
    writes: list[tuple[int, dict[TopicPartition, int], dict[str, bytes]]], leader: int, name: str, topic_id: bytes
) -> tuple[dict[TopicPartition, int], dict[str, bytes]]:
    """The write to a leader in which a name means that topic; a new one if there is none."""
    for to, epochs, ids in writes:
        if to == leader and ids.get(name, topic_id) == topic_id:
            return epochs, ids
    writes.append((leader, {}, {}))
    return writes[-1][1:]


def _known(ids: dict[str, bytes]) -> dict[str, bytes]:
    return {name: topic_id for name, topic_id in ids.items() if topic_id}
