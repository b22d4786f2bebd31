"""Partitions on their way through a stage, each on a lane of its own: fetch, one transaction a turn, start over.

The mirror and the dedupe stage both are such stages. A lane that can't go on by its own strength stops alone and
says why once; the others go on. What a retry can mend is tried again from the start: take the identity, ask the
output cluster for the position, go on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from penstock import log
from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.client import Client, TopicPartition
from penstock.pipeline.fetcher import Fetched, Fetcher
from penstock.pipeline.transaction import TRANSACTION_VERSION, Fenced, TransactionalSender
from penstock.pyx.record.rawbatch import BatchError
from penstock.pyx.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

T = TypeVar("T")

BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 5.0
TAKEN_AT_ONCE = 8  # identities taken at the same time
HELD_BYTES = 64 << 20  # what waits in all lanes together, about
LANE_BYTES_MIN = 1 << 20  # a lane may hold this much however many there are
LANE_PIECES = 8  # answers that one lane keeps alive
ABORTING = ("PrepareEpochFence", "PrepareAbort", "CompleteAbort")  # states of the transaction coordinator
COMMITTING = ("PrepareCommit", "CompleteCommit")
TAKING_S = 1.0  # longer than it takes to take an identity
LAST_TURN_S = 10.0  # how long a stop waits for the turns under way
TRANSIENT = (KafkaError, OSError, TimeoutError)


class OperatorNeeded(Exception):
    """Something that a stage must not decide by itself: the lane stops, the text says what to do."""


class Worker(Protocol):
    """What drives one partition. Every call may raise Fenced, OperatorNeeded, KafkaError, BatchError, OSError."""

    async def take(self) -> None:
        """Take the identity (fencing whoever had it) and learn the position from the output cluster."""
        ...

    async def start(self) -> int:
        """Check the position against the input; the offset to read from."""
        ...

    async def turn(self, fetched: Sequence[Fetched]) -> None:
        """Everything that was fetched, in order, in one transaction."""
        ...

    async def refresh(self) -> None:
        """Commit an idle position again, so that it does not expire."""
        ...

    async def check(self) -> None:
        """Look whether the input is still the one that the position belongs to. Raises OperatorNeeded."""
        ...


# Final for one transaction, producer or fetch position, not for the partition: the lane takes its identity again and
# starts over, and `Worker.start` finds words for what can't be mended.
STARTS_OVER = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)


def needs_operator(error: Exception) -> bool:
    """Whether trying again can't mend it."""
    if isinstance(error, KafkaError):
        return not error.retriable and error.code not in STARTS_OVER and not isinstance(error, Fenced)
    return isinstance(error, (OperatorNeeded, BatchError))


class Backoff:
    """Pauses that double, and start small again after a success."""

    def __init__(self) -> None:
        self._pause_s = BACKOFF_MIN_S

    async def wait(self) -> None:
        """Pause."""
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, BACKOFF_MAX_S)

    def reset(self) -> None:
        """A success."""
        self._pause_s = BACKOFF_MIN_S


async def patiently(work: Callable[[], Awaitable[T]], what: str, logger: log.Fields) -> T:
    """Do work until it succeeds; says once what it waits for. Raises what trying again can't mend."""
    backoff, said = Backoff(), False
    while True:
        try:
            return await work()
        except TRANSIENT as error:
            if isinstance(error, Fenced) or needs_operator(error):
                raise
            if not said:
                logger.warning(f"waits to {what}: {error}")
                said = True
            await backoff.wait()


async def take_identity(
    client: Client, transactional_id: str, before: TransactionalSender | None
) -> TransactionalSender:
    """A new sender for an identity. One that this worker had `before` is given up, and taken again only if nobody
    else has taken it since (KIP-360). Raises Fenced, KafkaError.
    """
    sender = TransactionalSender(client, transactional_id)
    if before is None or before.producer_id < 0:
        await sender.init()
        return sender
    await before.close()
    known = before.producer_id, before.producer_epoch
    try:
        await sender.init(*known)
    except Fenced:
        if not await _ended_itself(client, transactional_id, *known):
            raise
        # Still nobody else's, or this is refused: the epoch says so.
        sender = TransactionalSender(client, transactional_id)
        await sender.init(known[0], known[1] + 1)
    return sender


async def _ended_itself(client: Client, transactional_id: str, producer_id: int, producer_epoch: int) -> bool:
    """Whether the coordinator raised the epoch only because our transaction took too long, or, with transactions v2, was
    ended by us and the answer got lost; not for somebody else.

    It leaves an ended transaction with the next epoch. So does somebody who is just taking the identity, but only
    until the markers of our transaction are written; and a commit of theirs raises the epoch once more.
    """
    ended = ABORTING + COMMITTING if client.feature(TRANSACTION_VERSION) >= 2 else ABORTING
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def codes(answer: DescribeTransactionsResponse) -> list[int]:
        return [state.error_code for state in answer.transaction_states]

    seen = 0
    while seen < 2:
        answer = await client.retry(
            partial(client.ask_coordinator, transactional_id, "transaction", request, codes=codes)
        )
        (state,) = answer.transaction_states
        if (state.producer_id, state.producer_epoch) != (producer_id, producer_epoch + 1):
            return False
        if state.transaction_state not in ended:
            return False
        seen += state.transaction_state in ("CompleteAbort", "CompleteCommit")
        await asyncio.sleep(TAKING_S)
    return True


class Lane:
    """One partition: its worker, what waits for it, and why it stopped (empty: it goes on)."""

    def __init__(self, tp: TopicPartition, worker: Worker) -> None:
        self.tp = tp
        self.name = f"{tp[0]}-{tp[1]}"
        self.worker = worker
        self.stopped = ""
        self.backoff = Backoff()
        self.said = ""  # the failure that was told last
        self._waiting: list[Fetched] = []
        self._bytes = 0
        self._reason: OperatorNeeded | None = None
        self._wake = asyncio.Event()

    def put(self, fetched: Fetched) -> None:
        """Hand over what was fetched."""
        self._waiting.append(fetched)
        self._bytes += _bytes(fetched)
        self._wake.set()

    def stop(self, reason: OperatorNeeded) -> None:
        """Hand over a reason to stop, before anything that waits."""
        self._reason = reason
        self._wake.set()

    def is_full(self, most_bytes: int) -> bool:
        """Whether no more should be fetched for it now."""
        return self._bytes >= most_bytes or len(self._waiting) >= LANE_PIECES

    def clear(self) -> None:
        """Forget what waits: the position is asked for again."""
        self._waiting, self._bytes, self._reason = [], 0, None
        self._wake.clear()

    async def next(self, most_bytes: int) -> list[Fetched]:
        """What waits, at least one piece and no more of them once they have so many bytes.

        Raises what was handed over; good batches before an error come first.
        """
        await self._wake.wait()
        if self._reason is not None:
            raise self._reason
        error = self._waiting[0].error
        if error is not None and not self._waiting[0].batches:
            raise error
        pieces: list[Fetched] = []
        taken = 0
        while self._waiting and taken < most_bytes and (self._waiting[0].batches or not self._waiting[0].error):
            pieces.append(self._waiting.pop(0))
            taken += _bytes(pieces[-1])
        self._bytes -= taken
        if not self._waiting:
            self._wake.clear()
        return pieces


def _bytes(fetched: Fetched) -> int:
    return sum(batch.size_in_bytes for batch in fetched.batches)


class Lanes:
    """All lanes of one input cluster, fed by one fetcher.

    `refresh_ms`: idle positions are committed again this often. `watch_ms`: how often the input is looked at for
    growth or a new topic of the same name, besides what fetching shows. `turn_bytes`: a turn takes what waits, but
    no more once it has so much.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        workers: Mapping[TopicPartition, Worker],
        logger: log.Fields,
        refresh_ms: int,
        watch_ms: int = 30_000,
        turn_bytes: int = 4 << 20,
    ) -> None:
        self.lanes = {tp: Lane(tp, worker) for tp, worker in workers.items()}
        self._fetcher = fetcher
        self._log = logger
        self._refresh_s = refresh_ms / 1000
        self._watch_s = watch_ms / 1000
        self._turn_bytes = turn_bytes
        self._lane_bytes = max(LANE_BYTES_MIN, HELD_BYTES // max(1, len(workers)))
        self._full: set[TopicPartition] = set()
        self._reaching: dict[str, asyncio.Lock] = {}  # by topic

    def stopped(self) -> dict[str, str]:
        """The lanes that stopped, `topic-partition` -> why."""
        return {lane.name: lane.stopped for lane in self.lanes.values() if lane.stopped}

    async def take(self) -> None:
        """Take all identities; a lane that needs an operator stops, the output cluster is waited for.

        Raises Fenced.
        """
        places = asyncio.Semaphore(TAKEN_AT_ONCE)

        async def take(lane: Lane) -> None:
            async with places:
                try:
                    await patiently(partial(_take, lane), f"take the identity of {lane.name}", self._log)
                except Fenced:
                    raise
                except (OperatorNeeded, BatchError, KafkaError) as error:
                    self._stop(lane, error)

        async with asyncio.TaskGroup() as group:
            for lane in self.lanes.values():
                group.create_task(take(lane))

    async def run(self) -> None:
        """Move all lanes until cancelled; turns under way are then finished. Raises Fenced."""
        self._fetcher.assign(dict.fromkeys(self.lanes, 0))
        for tp in self.lanes:
            self._fetcher.pause(tp)
        try:
            async with asyncio.TaskGroup() as group:
                for lane in self.lanes.values():
                    group.create_task(self._live(lane))
                group.create_task(self._feed())
                group.create_task(self._watch())
        finally:
            await self._fetcher.close()

    def _stop(self, lane: Lane, error: Exception) -> None:
        lane.stopped = str(error)
        self._log.error(f"{lane.name} is STOPPED, the others go on: {error}")

    async def _live(self, lane: Lane) -> None:
        """A lane's life: start, turn after turn, and after a failure take the identity and start again."""
        taken = moving = True
        while True:
            try:
                moving = False
                if lane.stopped:
                    await asyncio.sleep(self._refresh_s)
                    await self._keep(lane)
                    continue
                await self._reach_input(lane)
                if not taken:
                    await _take(lane)
                taken, moving = False, True
                await self._move(lane)
            except Fenced as error:
                if not moving:
                    raise
                await self._failed(lane, error)  # whether somebody else has the identity, `take` will say
            except (*TRANSIENT, OperatorNeeded, BatchError) as error:
                await self._failed(lane, error)

    async def _keep(self, lane: Lane) -> None:
        """Keep the position of a lane that stands still from expiring."""
        await _take(lane)
        with contextlib.suppress(Fenced):  # whether somebody else has the identity, the next `_take` will say
            await lane.worker.refresh()

    async def _failed(self, lane: Lane, error: Exception) -> None:
        self._fetcher.pause(lane.tp)
        if lane.stopped:
            return
        if needs_operator(error):
            self._stop(lane, error)
            return
        text = str(error) or type(error).__name__
        if text != lane.said:
            self._log.warning(f"{lane.name} starts again: {text}")
            lane.said = text
        await lane.backoff.wait()

    async def _reach_input(self, lane: Lane) -> None:
        """Wait until the input cluster knows the topic; meanwhile keep the position from expiring."""

        topic = lane.tp[0]

        async def ask() -> None:
            errors = (await self._fetcher.client.metadata([topic], refresh=True)).errors
            raise_for(errors.get(topic, 0), f"topic `{topic}`")

        while True:
            try:
                # One lane of a topic asks at a time: the others would only ask and say the same.
                async with (
                    asyncio.timeout(self._refresh_s),
                    self._reaching.setdefault(topic, asyncio.Lock()),
                ):
                    return await patiently(ask, f"find topic `{topic}` at the input", self._log)
            except TimeoutError:
                await self._keep(lane)

    async def _move(self, lane: Lane) -> None:
        offset = await lane.worker.start()
        lane.clear()
        self._full.discard(lane.tp)
        self._fetcher.seek(lane.tp, offset)
        self._fetcher.resume(lane.tp)
        while True:
            try:
                async with asyncio.timeout(self._refresh_s):
                    pieces = await lane.next(self._turn_bytes)
            except TimeoutError:
                await lane.worker.refresh()
                continue
            # An error behind good batches comes again with the next fetch, which has nothing before it.
            emptied = lane.tp in self._full and not lane.is_full(self._lane_bytes)
            if emptied or pieces[-1].error is not None:
                self._full.discard(lane.tp)
                self._fetcher.resume(lane.tp)
            await _to_its_end(lane.worker.turn(pieces))
            lane.backoff.reset()
            lane.said = ""

    async def _feed(self) -> None:
        """Fetch for all lanes. A full lane is left out until it was emptied, which bounds what is held."""
        while True:
            for fetched in await self._fetcher.fetch(ahead=False):
                lane = self.lanes[fetched.tp]
                lane.put(fetched)
                if lane.is_full(self._lane_bytes):
                    self._full.add(lane.tp)
                    self._fetcher.pause(lane.tp)

    async def _watch(self) -> None:
        """Notice an input that grew or was created anew, also while nothing comes from it."""
        while True:
            await asyncio.sleep(self._watch_s)
            for lane in self.lanes.values():
                if lane.stopped:
                    continue
                try:
                    await lane.worker.check()
                except OperatorNeeded as error:
                    lane.stop(error)
                except TRANSIENT:
                    continue


async def _take(lane: Lane) -> None:
    """Take the identity. Raises Fenced when somebody else has it.

    `take` ends with a transaction of its own at times; the coordinator may have given up that one because it took too
    long. Taking again tells.
    """
    try:
        await lane.worker.take()
    except Fenced:
        await lane.worker.take()


async def _to_its_end(turn: Awaitable[None]) -> None:
    """Await a turn; a cancelled one is given some time to finish, so that a clean stop leaves nothing open."""
    task = asyncio.ensure_future(turn)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=LAST_TURN_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
