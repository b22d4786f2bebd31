"""A broker's registration: the ephemeral node by which the others know that it lives, and the node that stays.

`/brokers/ids/N` is ephemeral. Its creation's zxid is the *broker epoch* (KIP-380): it grows with each registration, so a broker
that restarted quickly isn't taken for its former self (KAFKA-7235).

`/penstock/incarnations/N` stays. One multi writes both, so its version grows with each registration. Whoever removes the
registration of another broker checks that version: a fresh ephemeral node always has version 0, and a deletion by that version
could hit the next incarnation.

A registration is *dealt with* once the controller has written what it costs into every state: a broker that registered again
loses its seats in the ISR (its log may have ended elsewhere before), and in the ELR, too, if it isn't clean. The controller
notes that in the node that stays, by the broker epoch: `"noted"`. It addresses a broker only after that, and the next one
doesn't take out once more a broker that has caught up since.

`clean` is false after a power cut, or if a log folder is missing, failed, or not as the last registered run of this broker
left it: each folder names that run's incarnation, and the node that stays says which one was the newest. **It stays false
until the broker gets a LeaderAndIsrRequest that is addressed to its registration**, whatever happens in between: restarts,
expired sessions. *A start that dies before a controller looked would otherwise make the next one look like an ordinary restart
after kill -9, and a log without its tail would keep its seat.*

`unwritable` says which replicas are in log folders that take no writes, since their disks are full: `true` for all of them,
else partitions by topic. The broker adds it to its registration and takes it away again, so it ends with the registration.
Elections avoid such replicas (`planning.py`). It costs no seat: a replica that can't follow leaves the ISR because it lags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from penstock.broker.cluster.leaderandisr import NO_EPOCH
from penstock.broker.cluster.messages import LeaderAndIsrRequest, Partition
from penstock.broker.store.base import ANY_VERSION, Check, Create, Delete, Operation, Set, paths
from penstock.broker.store.values import LONG_MAX, Fields


@dataclass(frozen=True, slots=True)
class Unwritable:
    """Which replicas of a broker are in log folders that take no writes."""

    is_all: bool = False
    partitions: frozenset[Partition] = frozenset()

    def __contains__(self, partition: Partition) -> bool:
        return self.is_all or partition in self.partitions


WRITABLE = Unwritable()
"""Every log folder takes writes."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A live broker, as the store has it."""

    broker: int
    epoch: int  # the zxid that made the ephemeral node
    incarnation: str
    clean: bool
    watches_moves: bool = False  # it hears of its node `/penstock/moved/N`; an older version doesn't
    unwritable: Unwritable = WRITABLE


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The node that stays: the last incarnation of a broker id, and the broker epoch that has been dealt with."""

    incarnation: str
    noted: int = NO_EPOCH
    version: int = 0  # the node's
    unknown: Mapping[str, Any] = field(default_factory=dict)


def registration_json(incarnation: str, clean: bool, address: Mapping[str, Any], home: Mapping[str, Any]) -> bytes:
    """The content of the ephemeral node. address: where clients and brokers reach it, with the names that Kafka's brokers use;
    home: by what another process with this id can be told from this one's own former session.
    """
    ours = {**home, "incarnation": incarnation, "clean": clean, "watches_moves": True}
    return _json({**address, "version": 5, "penstock": ours})


def read_registration(broker: int, data: bytes | None, epoch: int) -> Registration:
    """A registration. A broker that doesn't say whether it is clean isn't. Raises BadValueError."""
    fields = Fields.read(paths.broker(broker), data)
    ours = Fields(fields.path, fields.table("penstock"))
    table = fields.table("penstock")
    is_clean, watches = table.get("clean") is True, table.get("watches_moves") is True
    return Registration(broker, epoch, ours.text("incarnation"), is_clean, watches, _read_unwritable(fields, table))


def _read_unwritable(fields: Fields, table: Mapping[str, Any]) -> Unwritable:
    """Raises BadValueError."""
    topics = table.get("unwritable", {})
    if topics is True:
        return Unwritable(is_all=True)
    if not isinstance(topics, dict) or not all(isinstance(name, str) for name in topics):
        raise fields.wrong("`unwritable` should be true, or hold partitions by topic")
    numbers = {name: fields.brokers("unwritable", listed) for name, listed in topics.items()}
    return Unwritable(partitions=frozenset((name, number) for name, listed in numbers.items() for number in listed))


def report_unwritable(
    broker: int, data: bytes, version: int, incarnation_version: int, unwritable: Unwritable
) -> list[Operation]:
    """Say in a registration where its broker can't write: one multi. data, version: the registration as it is.
    incarnation_version: of the node that stays, so that the registration of another incarnation isn't changed.
    """
    content = json.loads(data)
    topics: dict[str, list[int]] = {}
    for name, number in sorted(unwritable.partitions):
        topics.setdefault(name, []).append(number)
    ours = {**content["penstock"], "unwritable": unwritable.is_all or topics}
    return [
        Check(paths.incarnation(broker), incarnation_version),
        Set(paths.broker(broker), _json({**content, "penstock": ours}), version),
    ]


def incarnation_json(incarnation: Incarnation) -> bytes:
    """The content of the node that stays."""
    return _json({**incarnation.unknown, "version": 1, "incarnation": incarnation.incarnation, "noted": incarnation.noted})


def read_incarnation(broker: int, data: bytes | None, version: int) -> Incarnation:
    """The node that stays. Raises BadValueError."""
    fields = Fields.read(paths.incarnation(broker), data)
    unknown = {
        name: value for name, value in json.loads(data or b"").items() if name not in ("version", "incarnation", "noted")
    }
    return Incarnation(fields.text("incarnation"), fields.number("noted", NO_EPOCH, LONG_MAX, NO_EPOCH), version, unknown)


def register(
    broker: int,
    incarnation: str,
    clean: bool,
    *,
    is_first: bool,
    replaces: bool,
    version: int = ANY_VERSION,
    address: Mapping[str, Any] = MappingProxyType({}),
    home: Mapping[str, Any] = MappingProxyType({}),
) -> list[Operation]:
    """Register: one multi. is_first: the node that stays isn't there yet. replaces: a registration of this broker's own former
    session is there; the broker holds the locks of the log folders that it names, so nobody else lives under it. version: of
    the node that stays, where the broker has decided by it whether it is clean.
    """
    content = incarnation_json(Incarnation(incarnation))
    stays: Operation = (
        Create(paths.incarnation(broker), content) if is_first else Set(paths.incarnation(broker), content, version)
    )
    former: list[Operation] = [Delete(paths.broker(broker))] if replaces else []
    return [stays, *former, Create(paths.broker(broker), registration_json(incarnation, clean, address, home), ephemeral=True)]


@dataclass(slots=True)
class OwnRegistration:
    """A broker's own view of its registration. `clean` outlives the process: it stands in the log folders."""

    broker: int
    incarnation: str
    clean: bool
    epoch: int = NO_EPOCH  # NO_EPOCH: not registered, or not known yet


def on_registered(own: OwnRegistration, zxid: int) -> None:
    """The registration is in the store."""
    own.epoch = zxid


def on_lost(own: OwnRegistration) -> None:
    """The session is over, or the registration is gone or another's. The caller fences all that it leads."""
    own.epoch = NO_EPOCH


def on_roles(own: OwnRegistration, request: LeaderAndIsrRequest) -> bool:
    """A request that is addressed to this registration: the controller has dealt with it. Whether the folders have to be
    marked as clean from now on, before any role is applied.
    """
    if request.broker_epoch != own.epoch or own.clean:
        return False
    own.clean = True
    return True


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
