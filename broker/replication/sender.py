"""What a controller sends through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.broker.cluster.messages import (
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    StopReplica,
    StopReplicaAnswer,
    UpdateMetadata,
)
from penstock.broker.endpoint import Endpoint


class ControllerSender(Protocol):
    """Sends a controller's requests to brokers, itself among them. Raises OSError where one can't be reached."""

    def know(self, endpoints: Mapping[int, Mapping[str, Endpoint]]) -> None:
        """Where brokers are reached."""
        ...

    async def send_roles(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        """Tell a broker its roles."""
        ...

    async def send_picture(self, picture: UpdateMetadata) -> int:
        """Tell a broker who lives and who leads; answers its error code."""
        ...

    async def send_stop(self, request: StopReplica) -> StopReplicaAnswer:
        """Tell a broker which replicas it has no longer."""
        ...
