"""The way of a transaction's markers in a cluster: to the leaders of its partitions, until each is committed.

A broker may be away, or a partition without a leader, for as long as it likes: the markers are sent again, to whoever leads by
then. A partition that this broker doesn't know is no deleted one, since a coordinator may be at work before it has had its
first picture of the cluster: the metadata store is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from penstock import log
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.markers import Markers, is_done
from penstock.broker.coordination.parts import OtherBrokers, Parts
from penstock.broker.topic import PartitionState, partition_in
from penstock.broker.transactionmessages import Marker, MarkerAnswer, MarkerWrite

RETRY_S = 0.5
"""How long the next picture of the cluster is waited for before markers are sent again."""

_log = log.get(__name__)


class Delivery:
    """Of one coordinator's markers."""

    def __init__(self, parts: Parts, markers: Markers) -> None:
        self._parts = parts
        self._markers = markers

    async def deliver(
        self, cluster: OtherBrokers, marker: Marker, partitions: Collection[TopicPartition], is_wanted: Callable[[], bool]
    ) -> bool:
        """Until the marker is committed in each partition that there is. False: by then nobody wants it any more."""
        left = set(partitions)
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
                    marker.producer_epoch, len(left), [(*one, self._leader(one)) for one in sorted(left)[:5]],
                )  # fmt: skip
            await cluster.next_picture(RETRY_S)
        return False

    async def _send(self, cluster: OtherBrokers, marker: Marker, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Send it once to every leader; those that have it, and those that are gone."""
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        unknown: list[TopicPartition] = []
        for partition in sorted(partitions):  # a set's order differs from one process to the next
            state = self._state(partition)
            if state is None:
                unknown.append(partition)
            elif state.leader >= 0:
                by_leader.setdefault(state.leader, {})[partition] = state.leader_epoch
        done: set[TopicPartition] = set()
        answers = await asyncio.gather(
            *(self._write(cluster, leader, MarkerWrite(marker, epochs)) for leader, epochs in by_leader.items())
        )
        for some in answers:
            done.update(partition for partition, answer in some.items() if is_done(answer))
        for partition in unknown:
            if await cluster.is_gone(partition):
                done.add(partition)
        return done

    async def _write(self, cluster: OtherBrokers, leader: int, write: MarkerWrite) -> Mapping[TopicPartition, MarkerAnswer]:
        if leader == self._parts.node_id:
            own = [self._markers.write_committed(one, write.marker, epoch) for one, epoch in write.leader_epochs.items()]
            return dict(zip(write.leader_epochs, await asyncio.gather(*own), strict=True))
        try:
            return await cluster.write_markers(leader, write)
        except ConnectionError as error:
            _log.debug("markers may not have reached broker %d: %s", leader, error)
            return {}

    def _state(self, partition: TopicPartition) -> PartitionState | None:
        return partition_in(self._parts.topics.get(partition[0]), partition[1])

    def _leader(self, partition: TopicPartition) -> int | None:
        state = self._state(partition)
        return None if state is None else state.leader
