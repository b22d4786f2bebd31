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
from penstock.broker.cluster.messages import LeaderAndIsrAnswer, LeaderAndIsrRequest, Partition
from penstock.broker.cluster.replica import Replica
from penstock.errors import ErrorCode


@dataclass(slots=True)
class Roles:
    """The replicas that a broker holds."""

    broker: int
    controller_epoch: int = NO_EPOCH
    replicas: dict[Partition, Replica] = field(default_factory=dict)


def refuse(roles: Roles, request: LeaderAndIsrRequest, broker_epoch: int) -> LeaderAndIsrAnswer | None:
    """The refusal of a request; None: its roles are to be taken, each with `replica.on_role`."""
    error = ErrorCode.NONE
    if request.controller_epoch < roles.controller_epoch:
        error = ErrorCode.STALE_CONTROLLER_EPOCH
    elif broker_epoch == NO_EPOCH or request.broker_epoch != broker_epoch:
        error = ErrorCode.STALE_BROKER_EPOCH
    if error:
        return LeaderAndIsrAnswer(roles.broker, broker_epoch, error, roles.controller_epoch)
    roles.controller_epoch = request.controller_epoch
    return None
