"""Closed batches to the sender, on a producer's loop: a few at a time, each with the identity and sequence of its turn.

Sequence numbers are given when a batch's turn comes, so a batch that the broker refused for good leaves no gap behind it. If
one may be left, everything after it goes under a new producer id.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from functools import partial

from penstock import log
from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.clients.accumulator import Accumulator
from penstock.pipeline.clients.client import ANY_NODE, Client, TopicPartition
from penstock.pipeline.clients.delivery import Batch
from penstock.pipeline.clients.queuehandler import Hooks
from penstock.pipeline.clients.sender import Produced, Sender
from penstock.pipeline.clients.transaction import SEQUENCE_MASK, WAITING, TransactionalSender
from penstock.pyx.wire.messages import InitProducerIdRequest

ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
# Codes that say for certain: not stored, because of the sequence number. The batch may go again under a new
# identity.
REFUSED = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


@dataclass(eq=False, slots=True)
class _Flow:
    """What is under way of a partition."""

    in_flight: int = 0
    refused: list[Batch] = field(default_factory=list)
    identity: tuple[int, int] | None = None
    sequence: int = 0


class Dispatcher:
    """Takes batches of an accumulator; all its methods belong to the loop. With a transaction that one sends them. `hooks` hear
    of batches that leave the queue and, without a transaction, of requests."""

    def __init__(
        self,
        client: Client,
        accumulator: Accumulator,
        transaction: TransactionalSender | None,
        hooks: Hooks | None = None,
    ) -> None:
        config = client.config
        acks = ACKS[config["acks"]]
        self._idempotent = config["enable.idempotence"] and acks == -1 and config["retries"] > 0
        self._window: int = config["max.in.flight.requests.per.connection"]
        self._client = client
        self._accumulator = accumulator
        self._transaction = transaction
        self._hooks = hooks
        before_request = None if hooks is None else partial(hooks.call, "before_request")
        self._sender = Sender(client, acks=acks, idempotent=self._idempotent, before_request=before_request)
        self._flows: dict[TopicPartition, _Flow] = {}
        self._lingering: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._identity: tuple[int, int] | None = None if self._idempotent else (-1, -1)
        self._identifying: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None  # when the next batch's time is over that waits for its turn
        self._closed = False
        self._log = log.get(__name__, client_id=config["client.id"])

    def pump(self, tp: TopicPartition, ripe: bool = False) -> None:
        """Hand batches of a partition to the sender while there is room, a `ripe` one as it is; set a timer for one that
        lingers."""
        flow = self._flows.get(tp)
        if flow is None:
            flow = self._flows[tp] = _Flow()
        while flow.in_flight < self._window:
            identity = self._ready_identity(flow)
            if identity is None:
                break
            batch = self._accumulator.next(tp, ripe)
            if not isinstance(batch, Batch):
                if batch < math.inf:
                    self._stop_timer(tp)
                    self._lingering[tp] = asyncio.get_running_loop().call_later(batch, self._ripen, tp)
                return
            self._stop_timer(tp)
            ripe = False  # the next one has not lingered
            if self._hooks is not None:
                self._hooks.call("after_dequeue", batch.queued)
            flow.in_flight += 1
            try:
                future = self._submit(flow, batch, identity)
            except (KafkaError, ValueError) as error:
                flow.in_flight -= 1
                unsent = error if isinstance(error, KafkaError) else KafkaError(ErrorCode.INVALID_RECORD, str(error))
                self._accumulator.finish(batch, None, unsent)
                continue
            future.add_done_callback(partial(self._answered, flow, batch))
        if self._expiry is None:
            self._expire_at(self._accumulator.next_deadline())

    def _expire_at(self, deadline: float) -> None:
        """Look then, at the latest, for batches whose time is over before their turn comes."""
        if self._closed or deadline == math.inf:
            return
        if self._expiry is None or deadline < self._expiry.when():
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        now = time.monotonic()
        overdue = self._accumulator.take_all(overdue=True)
        for flow in self._flows.values():
            overdue += [batch for batch in flow.refused if batch.deadline < now]
            flow.refused = [batch for batch in flow.refused if batch.deadline >= now]
            for batch in flow.refused:
                self._expire_at(batch.deadline)
        why = "" if self._identifying is None else ": no broker has given a producer id"
        error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"not sent within `delivery.timeout.ms`{why}")
        if overdue and self._transaction is not None:
            self._transaction.lose(error)
        for batch in overdue:
            self._accumulator.finish(batch, None, error)
        self._expire_at(self._accumulator.next_deadline())

    def _ripen(self, tp: TopicPartition) -> None:
        """A batch has lingered for its time. Those that linger for the same leader go along, as in Kafka's client: one
        request takes them all."""
        leader = self._leader(tp)
        for other in [other for other in self._lingering if other == tp or self._leader(other) == leader]:
            self._stop_timer(other)
            self.pump(other, ripe=True)

    def _stop_timer(self, tp: TopicPartition) -> None:
        timer = self._lingering.pop(tp, None)
        if timer is not None:
            timer.cancel()

    def _leader(self, tp: TopicPartition) -> int:
        info = self._client.partition_info(*tp)
        return -1 if info is None else info.leader

    def _submit(self, flow: _Flow, batch: Batch, identity: tuple[int, int]) -> asyncio.Future[Produced]:
        count = batch.builder.count
        if self._transaction is not None:
            self._transaction.check_open()
            sequence = self._transaction.next_sequence(batch.tp, count)
            return self._transaction.submit(batch.tp, [batch.builder.build(*identity, sequence, True)], batch.deadline)
        if not self._idempotent:
            return self._sender.submit(batch.tp, [batch.builder.build()], batch.deadline)
        data = batch.builder.build(*identity, flow.sequence, False)
        flow.sequence = (flow.sequence + count) & SEQUENCE_MASK
        return self._sender.submit(batch.tp, [data], batch.deadline)

    def _answered(self, flow: _Flow, batch: Batch, future: asyncio.Future[Produced]) -> None:
        flow.in_flight -= 1
        error = None if future.cancelled() else future.exception()
        if error is None and not future.cancelled():
            self._accumulator.finish(batch, future.result(), None)
        else:
            closed = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed")
            self._failed(flow, batch, error if isinstance(error, KafkaError) else closed)
        if not flow.in_flight and flow.refused:
            self._accumulator.put_back(batch.tp, flow.refused)
            flow.refused.clear()
        self.pump(batch.tp)

    def _failed(self, flow: _Flow, batch: Batch, error: KafkaError) -> None:
        """A gap in the sequence numbers is left: everything after it needs a new producer id."""
        if self._idempotent and self._transaction is None and flow.identity == self._identity:
            self._log.info("`%s` partition %d: new producer id after %s", *batch.tp, error)
            self._identity = None
        refused = self._transaction is None and error.code in REFUSED
        if refused and time.monotonic() < batch.deadline:
            flow.refused.append(batch)
            self._expire_at(batch.deadline)
        else:
            self._accumulator.finish(batch, None, error)

    # Identity

    def _ready_identity(self, flow: _Flow) -> tuple[int, int] | None:
        """The producer id and epoch for a partition's next batch, or None if that has to wait."""
        if self._transaction is not None:
            return self._transaction.producer_id, self._transaction.producer_epoch
        if self._identity is None:
            if self._identifying is None and not self._closed:
                self._identifying = asyncio.create_task(self._identify())
            return None
        if flow.identity != self._identity:
            if flow.in_flight:  # an older identity's batches first, or a retry could be overtaken
                return None
            flow.identity, flow.sequence = self._identity, 0
        return self._identity

    async def _identify(self) -> None:
        """Get a producer id, for as long as it takes; all batches fail if no retry helps."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)

        async def attempt() -> tuple[int, int]:
            answer = await self._client.send(ANY_NODE, request)
            raise_for(answer.error_code, "producer id")
            return answer.producer_id, answer.producer_epoch

        try:
            while self._identity is None:
                try:
                    self._identity = await self._client.retry(attempt, also=WAITING)
                except KafkaError as failure:
                    if not failure.retriable:
                        self._fail_waiting(failure)
        finally:
            self._identifying = None
        for tp in list(self._flows):
            self.pump(tp)

    def _fail_waiting(self, error: KafkaError) -> None:
        for batch in self._accumulator.take_all():
            self._accumulator.finish(batch, None, error)

    # Ending

    def discard(self, error: KafkaError) -> None:
        """Fail every batch that was not handed to the sender."""
        for tp in list(self._lingering):
            self._stop_timer(tp)
        for flow in self._flows.values():
            for batch in flow.refused:
                self._accumulator.finish(batch, None, error)
            flow.refused.clear()
        self._fail_waiting(error)

    async def close(self) -> None:
        """Fail all that is not stored, and end."""
        self._closed = True  # batches that fail from now on must not ask for a new identity
        error = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed")
        if self._identifying is not None:
            self._identifying.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        self.discard(error)
        if self._transaction is not None:
            await self._transaction.close()
        await self._sender.close(error)
        await asyncio.sleep(0)  # the callbacks of what just failed run
        self.discard(error)
