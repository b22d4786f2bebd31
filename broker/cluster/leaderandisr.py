"""The state of one partition: its leader, its in-sync replicas, and who else may lead. One JSON node of the store holds it.

The node has the five fields that Kafka with ZooKeeper always wrote (`controller_epoch`, `leader`, `version`, `leader_epoch`,
`isr`), Kafka 3.2's `leader_recovery_state`, and five of ours. Older tools ignore the fields that they don't know; we keep the
fields that we don't know, so that an older controller loses nothing of a newer one's.

- `elr`: eligible leader replicas (KIP-966). A replica that leaves the ISR while the ISR is smaller than min.insync.replicas
  goes there. The high watermark stands still from then on, so such a replica has every record below it.
- `unclean`: replicas that lost their seat, or hold the last one, with a log that a power cut or a disk may have shortened
  (Kafka's LastKnownElr). No ordinary election takes them, also not after a later clean restart.
- `unclean_epoch`: the newest leader epoch that an unclean election began; -1: none. It alone permits a follower to cut its
  log below its high watermark.
- `min_isr`: min.insync.replicas. It is part of the state because the ELR is computed from it: if a leader read the config
  itself, it could move the high watermark by a value that the controller didn't use when it chose the ELR.
- `topic_id`: the topic that the state was written for. A later topic of the name begins with another state.

A partition without a node has had no leader: its first state names the first leader, and is written before any broker may
lead. Each seat that a state names is that of a log which is there, or was lost.

The version of the node is the *partition epoch*: it grows with every write, and each write names the version that it replaces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.broker.store.values import INT_MAX, Fields
from penstock.broker.uuids import uuid_bytes, uuid_text

NO_LEADER = -1
NO_EPOCH = -1

_OWN = frozenset(
    (
        "version",
        "controller_epoch",
        "leader",
        "leader_epoch",
        "isr",
        "leader_recovery_state",
        "elr",
        "unclean",
        "unclean_epoch",
        "min_isr",
        "topic_id",
    )
)


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """A partition's state, as one version of its node holds it."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    unclean: tuple[int, ...] = ()
    unclean_epoch: int = NO_EPOCH
    min_isr: int = 1
    controller_epoch: int = 0
    leader_recovery_state: int = 0
    partition_epoch: int = 0  # the node's version
    unknown: Mapping[str, Any] = field(default_factory=dict)  # fields of newer brokers
    topic_id: bytes = field(default=b"", compare=False)  # as the node has it, b"": it has none; brokers aren't told it
    is_new: bool = field(default=False, compare=False)  # as replicas are told: nobody has led, so logs need not be there yet

    @property
    def seats(self) -> tuple[int, ...]:
        """The replicas that may be elected: ISR, then ELR."""
        return self.isr + self.elr

    @property
    def is_created(self) -> bool:
        """Whether this is a state, and not the lack of one."""
        return self.leader_epoch != NO_EPOCH

    def is_of(self, topic_id: bytes) -> bool:
        """Whether this is a state of that topic. One without an id is Kafka's, of whichever topic is there."""
        return self.topic_id in (b"", topic_id)

    def needed(self, replicas: tuple[int, ...]) -> int:
        """How many members the ISR needs before the high watermark moves: min.insync.replicas, at most all replicas."""
        return min(self.min_isr, len(replicas))

    def written(self, partition_epoch: int) -> LeaderAndIsr:
        """This state once the store has it under a version."""
        return replace(self, partition_epoch=partition_epoch)


# Of a partition that its topic names and that has no node yet: no version is older.
NOT_CREATED = LeaderAndIsr(NO_LEADER, NO_EPOCH, (), partition_epoch=-1)


def state_json(state: LeaderAndIsr) -> bytes:
    """The content of the node."""
    content = {
        **state.unknown,
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": state.isr,
        "leader_recovery_state": state.leader_recovery_state,
        "elr": state.elr,
        "unclean": state.unclean,
        "unclean_epoch": state.unclean_epoch,
        "min_isr": state.min_isr,
    }
    if state.topic_id:
        content["topic_id"] = uuid_text(state.topic_id)
    return json.dumps(content, separators=(",", ":")).encode()


def read_state(path: str, data: bytes | None, partition_epoch: int) -> LeaderAndIsr:
    """The state that a node holds; a node of Kafka's has no ELR and needs one in-sync replica.

    Raises BadValueError.
    """
    fields = Fields.read(path, data)
    content: dict[str, Any] = json.loads(data or b"")
    return LeaderAndIsr(
        fields.number("leader", -2, INT_MAX),
        fields.number("leader_epoch", 0, INT_MAX - 1),
        _brokers(fields, content, "isr"),
        _brokers(fields, content, "elr"),
        _brokers(fields, content, "unclean"),
        fields.number("unclean_epoch", NO_EPOCH, INT_MAX, NO_EPOCH),
        fields.number("min_isr", 1, INT_MAX, 1),
        fields.number("controller_epoch", 0, INT_MAX),
        fields.number("leader_recovery_state", 0, 1, 0),
        partition_epoch,
        {name: value for name, value in content.items() if name not in _OWN},
        _topic_id(fields, content),
    )


def _topic_id(fields: Fields, content: Mapping[str, Any]) -> bytes:
    if "topic_id" not in content:
        return b""
    try:
        return uuid_bytes(fields.text("topic_id"))
    except ValueError as error:
        raise fields.wrong(f"`topic_id`: {error}") from None


def _brokers(fields: Fields, content: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A list of broker ids; unlike a list of replicas it may be empty, and may be missing."""
    if not content.get(name):
        return ()
    ids = tuple(fields.brokers(name))
    if len(set(ids)) != len(ids):
        raise fields.wrong(f"`{name}` names a broker twice")
    return ids
