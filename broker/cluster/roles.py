"""All replicas of one broker, and which controller they obey.

A LeaderAndIsrRequest bears the controller's epoch and the addressee's broker epoch. A broker

- refuses an older controller epoch than it has heard of, and names the newer one (I11);
- refuses a broker epoch that isn't its own: the request was meant for an older incarnation, or it came before this broker's own
  registration was answered (KAFKA-9839; *an old picture that is taken by an incarnation which doesn't know its epoch yet*).
  The controller sends such a request again, whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.broker.cluster.leaderandisr import NO_EPOCH
from penstock.broker.cluster.messages import Partition
from penstock.broker.cluster.replica import Replica, Role
from penstock.errors import ErrorCode


@dataclass(slots=True)
class Roles:
    """The replicas that a broker holds."""

    broker: int
    controller_epoch: int = NO_EPOCH
    replicas: dict[Partition, Replica] = field(default_factory=dict)

    @property
    def led(self) -> list[Partition]:
        """The partitions that this broker leads."""
        return [partition for partition, replica in self.replicas.items() if replica.role is Role.LEADER]


def refuse(roles: Roles, controller_epoch: int, addressed_epoch: int, broker_epoch: int) -> ErrorCode:
    """Why a controller's request isn't taken, or NONE: then that controller is the newest one that was heard of. The request
    is addressed to one broker epoch; `broker_epoch` is the one that this broker has."""
    if controller_epoch < roles.controller_epoch:
        return ErrorCode.STALE_CONTROLLER_EPOCH
    if broker_epoch == NO_EPOCH or addressed_epoch != broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    roles.controller_epoch = controller_epoch
    return ErrorCode.NONE
