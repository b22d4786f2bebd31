"""A topic and its partitions as the broker knows them, and what names they may have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ErrorCode, KafkaError

GROUP_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL = frozenset({GROUP_OFFSETS, TRANSACTION_STATE})
NAME_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The numbers of partitions by topic, all in the order in which they come."""
    found: dict[str, list[int]] = {}
    for name, index in partitions:
        found.setdefault(name, []).append(index)
    return found


@dataclass
class PartitionState:
    """A partition's leadership, as in the store's partition state node.

    leader: -1 while its log isn't open. offline: its disk has failed, or its log isn't found (then it isn't open either).
    directory: the id of the log folder that it lies in; "" = not known, in a store of an earlier version.
    away: in a cluster, the replicas whose broker or disk isn't there; None on one node.
    is_isolated: this broker leads it, is cut off from the others, and serves no client of it.
    unclean_epoch: in a cluster, the newest leader epoch that began with a leader which may lack records; -1: none.
    eligible, last_eligible: in a cluster, replicas out of the ISR that may lead (KIP-966), and those that could until their
    logs may have lost records.
    """

    index: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: bool = False
    directory: str = ""
    away: list[int] | None = None
    is_isolated: bool = False
    eligible: list[int] = field(default_factory=list)
    last_eligible: list[int] = field(default_factory=list)
    unclean_epoch: int = -1

    @property
    def leader_for_clients(self) -> int:
        """The leader as Metadata has it: a broker that still opens a log is to be asked again, not to be given up.

        librdkafka takes a partition without a leader for lost until it refreshes its metadata, minutes later.
        """
        if self.is_isolated:
            return -1
        is_opening = self.leader < 0 and not self.offline and self.away is None
        return self.replicas[0] if is_opening else self.leader

    @property
    def offline_replicas(self) -> list[int]:
        """Replicas on disks that failed, or whose broker isn't there, as Metadata has them."""
        if self.away is not None:
            return self.away
        return self.replicas if self.offline else []


@dataclass
class Topic:
    """A topic that is led here: `partitions[i].index == i`, `configs` are its own, not the broker's."""

    name: str
    topic_id: bytes
    partitions: list[PartitionState] = field(default_factory=list)
    configs: dict[str, str] = field(default_factory=dict)
    # Metadata's bytes of it, by version and flags, with the state that they show: `api/metadata.py`.
    encoded: dict[tuple[int, bool], tuple[object, bytes]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def internal(self) -> bool:
        """Whether it is one of the coordinators' own topics."""
        return self.name in INTERNAL


def partition_in(topic: Topic | None, index: int) -> PartitionState | None:
    """A partition of a topic; None: it has none of that number, or there is no such topic."""
    return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None


def check_name(name: str) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION for a name that Kafka does not allow either."""
    why = ""
    if not name:
        why = "the empty string is not allowed"
    elif name in (".", ".."):
        why = f"'{name}' is not allowed"
    elif len(name) > NAME_MAX:
        why = f"the length of '{name}' is longer than the max allowed length {NAME_MAX}"
    elif not _NAME.match(name):
        why = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if why:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {why}")


def internal_settings(config: Mapping[str, Any], name: str) -> tuple[int, dict[str, str]]:
    """Partitions and configs of a coordinator's topic, as Kafka makes it."""
    prefix = "offsets.topic" if name == GROUP_OFFSETS else "transaction.state.log"
    segment_bytes = str(config[f"{prefix}.segment.bytes"])
    configs = {"cleanup.policy": "compact", "segment.bytes": segment_bytes}
    if name == TRANSACTION_STATE and config["transaction.state.log.min.isr"] > 1:
        configs["min.insync.replicas"] = str(config["transaction.state.log.min.isr"])
    return config[f"{prefix}.num.partitions"], configs
