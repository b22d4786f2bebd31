"""Who the controller is.

Every broker watches `/controller`. Where it is gone each stands for it: one multi makes the node and raises the epoch,
so one of them wins. The winner is the controller for a term (`term.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from penstock import log
from penstock.broker.cluster import controller as machine
from penstock.broker.cluster.controller import Controller
from penstock.broker.replication.electioncount import ElectionCount
from penstock.broker.replication.reading import controller_of
from penstock.broker.replication.sender import ControllerSender
from penstock.broker.replication.term import Term
from penstock.broker.store.base import (
    BadValueError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    SessionLostError,
    Store,
    StoreError,
    paths,
    setting,
)
from penstock.broker.store.values import INT_MAX, whole_number

UNREADABLE = INT_MAX
"""In place of the controller's number, where what its node says can't be read."""
AGAIN_S = 0.5
"""How long it waits before it asks again for what the store refused to say."""

_log = log.get(__name__)


class Controllership:
    """Of one broker in one session. config: its properties, of which those about elections count while it is the controller."""

    def __init__(
        self,
        node_id: int,
        store: Store,
        sender: ControllerSender,
        config: Mapping[str, Any],
        *,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        newer_epoch: Callable[[], int],
        lease_is_over: Callable[[], bool],
        elections: ElectionCount,
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._sender = sender
        self._config = config
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._newer_epoch = newer_epoch
        self._lease_is_over = lease_is_over
        self._elections = elections
        self.term: Term | None = None
        """While this broker is the controller."""
        self._won: Controller | None = None
        """The machine of the election that this session has won, until its term begins."""
        self._heard_of = -1  # the latest controller epoch that a broker has refused this one with

    async def run(self) -> None:
        """For as long as the session lasts. Raises SessionLostError."""
        while True:
            changed = asyncio.Event()
            controller, is_own = await self._look(changed)
            try:
                if controller < 0:
                    await self._stand()
                elif is_own:
                    await self._lead()
                else:
                    await changed.wait()
            except SessionLostError:
                raise
            except StoreError as error:
                _log.error("the controller's node can't be read or written: %s", error)
                await asyncio.sleep(AGAIN_S)

    async def _look(self, changed: asyncio.Event) -> tuple[int, bool]:
        """Who the controller is, and whether it is this session."""
        try:
            data, stat = await self._store.get(paths.CONTROLLER, setting(changed))
        except NoNodeError:
            return -1, False
        try:
            return controller_of(data), stat.ephemeral_session == self._store.session
        except BadValueError as error:
            _log.error("nobody is the controller until this node is right, or gone: %s", error.why)
            return UNREADABLE, False

    async def _stand(self) -> None:
        """Become the controller, if nobody was quicker. Raises StoreError."""
        data, stat = await self._store.get(paths.CONTROLLER_EPOCH)
        written = whole_number(paths.CONTROLLER_EPOCH, data, 0, INT_MAX - 1)
        # Brokers may have heard of a later one, if the store was put back from a copy.
        epoch = max(written, self._newer_epoch(), self._heard_of)
        try:
            await self._store.multi(machine.stand(self._node_id, epoch, stat.version, self._now_ms()))
        except (NodeExistsError, BadVersionError):
            return
        self._won = Controller(self._node_id, epoch + 1, stat.version + 1)

    async def _lead(self) -> None:
        """Be the controller until another one is elected. Raises StoreError."""
        own, self._won = self._won, None
        if own is None:  # The answer to the multi got lost, or the term has failed: another election, another epoch.
            await self._store.delete(paths.CONTROLLER)
            return
        _log.info("broker %d is the controller of epoch %d", self._node_id, own.epoch)
        self.term = Term(
            own, self._store, self._sender, self._config, self._monotonic_ms, self._lease_is_over, self._elections
        )  # fmt: skip
        try:
            await self.term.run()
        finally:
            self._heard_of = max(self._heard_of, self.term.newer_epoch)
            self.term = None
        _log.warning("another controller has been elected: epoch %d is over", own.epoch)
