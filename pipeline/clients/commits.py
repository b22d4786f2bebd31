"""What a consumer commits: its positions, or what its user says, as the member that it is."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from penstock import log
from penstock.config import Config, ConfigError
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.background import BackgroundLoop, Question
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.groupmember import LEAVE_S
from penstock.pipeline.clients.partitionlists import Offsets, with_metadata
from penstock.pipeline.clients.positions import Positions
from penstock.pipeline.clients.subscription import Subscription
from penstock.pipeline.clients.truncation import Position


class Commits:
    """Commits of one consumer, which may have no group, or one that it is no member of.

    They go out one by one in the order in which they were asked for, each as the member that the consumer was then: one that is
    tried again takes no later one back, of this member or of the one that has the partitions by now.
    """

    def __init__(
        self,
        client: Admin,
        config: Config,
        background: BackgroundLoop,
        positions: Positions,
        subscription: Subscription | None,
    ) -> None:
        self.are_automatic: bool = config["enable.auto.commit"] and config["group.id"] is not None
        self._client = client
        self._group: str | None = config["group.id"]
        self._interval_s = config["auto.commit.interval.ms"] / 1000
        self._background = background
        self._positions = positions
        self._subscription = subscription
        self._committed_at = time.monotonic()
        self._last: Question[None] = Question(background)
        self._turn = asyncio.Lock()
        self._log = log.get(__name__, client_id=config["client.id"])

    def committed(self, tps: Iterable[TopicPartition]) -> Coroutine[Any, Any, dict[TopicPartition, tuple[int, str] | None]]:
        """The group's committed offsets with their metadata, for the loop."""
        return self._client.committed(self._group_id(), tps)

    def begin(self, offsets: Offsets | None = None) -> Coroutine[Any, Any, None]:
        """A commit of these offsets, or of the positions as they are now, for the loop."""
        wanted = self._positions.known() if offsets is None else offsets
        return self._commit(self._group_id(), wanted, self._positions.with_epochs())

    async def _commit(self, group: str, offsets: Offsets, positions: Mapping[TopicPartition, Position]) -> None:
        """positions: as they were when the commit was asked for. An offset that is one of them has its leader epoch."""
        wanted = with_metadata(offsets)
        epochs = {tp: at.leader_epoch for tp, at in positions.items() if tp in wanted and wanted[tp][0] == at.offset}

        if not wanted and (self._subscription is None or not self._subscription.is_lost):
            return  # `poll` has given nothing yet: the consumer may be joining its group still

        subscription = self._subscription if self._subscription is not None and self._subscription.is_active else None
        identity = subscription.identity() if subscription is not None else {}
        standing = subscription.standing(wanted) if subscription is not None else None

        async def attempt() -> None:
            nonlocal identity
            try:
                await self._client.commit(group, wanted, epochs=epochs, **identity)
            except KafkaError as error:
                if error.code == ErrorCode.STALE_MEMBER_EPOCH and subscription is not None:
                    if subscription.standing(wanted) != standing:
                        text = f"partitions of the commit may be another member's of group `{group}` by now"
                        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, text) from error
                    identity = subscription.identity()
                raise

        loop = asyncio.get_running_loop()
        limit_ms = self._client.config["default.api.timeout.ms"]
        deadline = loop.time() + limit_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            raise self._client.no_answer(limit_ms) from None
        try:
            # A member of KIP-848 hears of its new epoch by its next heartbeat.
            stale = frozenset({ErrorCode.STALE_MEMBER_EPOCH})
            await self._client.retry(attempt, timeout_ms=(deadline - loop.time()) * 1000, also=stale)
        finally:
            self._turn.release()

    async def let_out(self) -> None:
        """Wait until what was asked for has gone out, or for as long as a leave would wait for its answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(LEAVE_S, self._client.config["default.api.timeout.ms"] / 1000)), self._turn:
                pass

    def _group_id(self) -> str:
        if self._group is None:
            raise ConfigError("committed offsets need `group.id`")
        return self._group

    def begin_async(self, offsets: Offsets | None, callback: Callable[[KafkaError | None], None] | None) -> None:
        """Commit without waiting; the callback runs in the loop's thread."""

        def done(future: concurrent.futures.Future[None]) -> None:
            error: BaseException | None
            if future.cancelled():
                error = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the consumer was closed")
            else:
                error = future.exception()
            if error is not None and not isinstance(error, KafkaError):
                error = KafkaError(ErrorCode.INVALID_REQUEST, f"commit: {error}")
            if callback is not None:
                callback(error)
            elif error is not None:
                self._log.warning("a commit failed: %s", error)

        self._background.start(self.begin(offsets)).add_done_callback(done)

    def commit_in_time(self) -> None:
        """Once in `auto.commit.interval.ms`, at the start of a poll: everything given out before counts as worked on."""
        now = time.monotonic()
        if self.are_automatic and now - self._committed_at >= self._interval_s:
            self._committed_at = now
            self.begin_async(None, None)

    def commit_last(self, wait_s: float | None) -> None:
        """Commit before the partitions go, while they are still this member's. Raises UnderWay."""
        if self.are_automatic and self._subscription is not None and not self._subscription.is_lost:
            try:
                self._last.answer(wait_s, self.begin)
            except KafkaError as error:
                self._log.warning("the commit before a rebalance failed: %s", error)

    def drop_last(self) -> None:
        """The partitions have gone: a last commit that is under way is none of theirs any more."""
        self._last.drop()
