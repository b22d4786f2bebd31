"""How long a command waits for a cluster before it says that the cluster doesn't answer: the option `--timeout`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from penstock.pipeline.admin import Admin

TIMEOUT_S = 30.0
CONTACT_S = 5.0  # a cluster of which no broker answers by then has a wrong address, or is down


@dataclass(frozen=True)
class Patience:
    """The limit of each question to a cluster, in seconds. A first contact has `CONTACT_S` of it at most."""

    timeout_s: float = TIMEOUT_S

    @property
    def contact_ms(self) -> int:
        """The limit of a first contact."""
        return max(1, round(min(CONTACT_S, self.timeout_s) * 1000))

    def limits(self) -> dict[str, Any]:
        """Both, as properties of a client."""
        most_ms = max(1, round(self.timeout_s * 1000))
        return {
            "default.api.timeout.ms": most_ms,
            "request.timeout.ms": most_ms,
            "socket.connection.setup.timeout.ms": self.contact_ms,
        }

    @asynccontextmanager
    async def admin(self, servers: str, client_id: str) -> AsyncIterator[Admin]:
        """An admin client that has reached its cluster. Raises KafkaError where no broker answers."""
        admin = Admin(servers, **{"client.id": client_id, **self.limits()})
        try:
            await admin.start(self.contact_ms)
            yield admin
        finally:
            await admin.close()


USUAL = Patience()
