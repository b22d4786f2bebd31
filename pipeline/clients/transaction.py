"""Raw batches in, exactly once: a transactional producer whose batches are built (or only re-headed) by the caller.

    new ──init──► ready ──begin──► open ──commit──► ending ──► ready
                    ▲                │ error: must_abort
                    └────abort───────┘            fenced, failed: only init (which fences the other one) leads out

A commit that was cancelled half-way stays `ending`: what became of it is not known, so only init leads out of that too.

Where the cluster's `transaction.version` is 2 (KIP-890) each transaction has an epoch of its own, which the end of the one
before has given, and sequences begin at 0 in each; the broker adds partitions and groups to the transaction by itself.
Otherwise it is Kafka's first protocol: partitions and groups are added before they are used, epoch and sequences go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from penstock import log, tasks
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.connection import Piece
from penstock.pipeline.clients.partitionlists import by_topic, number, offset_topics, partition_codes
from penstock.pipeline.clients.sender import BeforeRequest, Produced, Sender
from penstock.pyx.record.rawbatch import RawBatch
from penstock.pyx.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

T = TypeVar("T")
HEADER_BYTES = 61
SEQUENCE_MASK = 0x7FFFFFFF  # sequence numbers go round from 2^31 - 1 to 0
FIRST_PAUSE_MS = 20  # markers of the transaction before are written within milliseconds
TRANSACTION_VERSION = "transaction.version"
END_TXN_V2 = (5, 5)  # versions of EndTxn and of TxnOffsetCommit for transactions v2
OFFSETS_V1, OFFSETS_V2 = (0, 4), (5, 5)  # of TxnOffsetCommit; from 6 on topics have no names
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_BASE_SEQUENCE_AT = 53

FENCING = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
WAITING = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
FATAL = frozenset(
    {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)


class Fenced(KafkaError):
    """A newer producer with the same transactional id took over, or the broker aborted our transaction by its
    timeout.
    """


class TransactionState(enum.Enum):
    """Where a transactional producer stands; the picture is at the top of the module."""

    NEW = "new"
    READY = "ready"
    OPEN = "open"
    ENDING = "ending"
    MUST_ABORT = "must_abort"
    FENCED = "fenced"
    FAILED = "failed"


class TransactionalSender:
    """One transactional id. Keep the order: `init`, then for each transaction `begin`, sends, `commit` or
    `abort`.

    A batch's header has to carry `producer_id`, `producer_epoch` and a base sequence from `next_sequence`, so
    each allocated sequence must be sent, in the order of allocation for each partition. All methods raise
    `Fenced` once a newer producer took over. Any other KafkaError of a send or of `send_offsets` means:
    `abort`, then begin again (`state` is MUST_ABORT), or, when `state` is FAILED, `init` again. An error of
    `commit` after its retries leaves the outcome unknown (FAILED): read positions back from the target after
    `init`.
    """

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        timeout_ms: int = 60_000,
        before_request: BeforeRequest | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.producer_epoch = -1
        self.state = TransactionState.NEW
        self._client = client
        self._timeout_ms = timeout_ms
        self._sender = Sender(
            client, transactional_id=transactional_id, gate=self._add_partition, before_request=before_request
        )
        self._next: dict[TopicPartition, int] = {}  # the sequence to allocate next
        self._stored: dict[TopicPartition, int] = {}  # the sequence after the last one known to be stored
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._touched = False  # the coordinator may have begun the transaction
        self._version2 = False  # of the transaction that is open, or was last
        self._adding: dict[TopicPartition, asyncio.Future[None]] = {}
        self._adder: asyncio.Task[None] | None = None
        self._log = log.get(__name__, transactional_id=transactional_id)

    def pin(self, topic: str, topic_id: bytes) -> None:
        """Let nothing into a topic but the one of this id: sends, or else the commit, fail with INCONSISTENT_TOPIC_ID
        when it was deleted and created again.
        """
        self._sender.pin(topic, topic_id)

    async def init(self, producer_id: int = -1, producer_epoch: int = -1) -> None:
        """Take the identity: fences older producers of it and ends their open transaction. Sequences begin at 0.

        With the producer id and epoch that this process had before, the identity is only taken again if nobody else
        took it meanwhile (KIP-360): a worker that starts over must not fence its own successor. Raises Fenced.
        """
        # Answers to what an earlier try left under way must not be taken for news of this one.
        await self.close()
        await asyncio.sleep(0)
        await self._init_producer(producer_id, producer_epoch)
        self._enter(TransactionState.READY)
        self._forget_transaction()
        self._version2 = self._sender.adds_partitions = self._speaks_version2()

    async def _init_producer(self, producer_id: int, producer_epoch: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        answer = await self._ask(request)
        self._take_producer(answer.producer_id, answer.producer_epoch)

    def _speaks_version2(self) -> bool:
        return self._client.feature(TRANSACTION_VERSION) >= 2

    async def begin(self) -> None:
        """Open a transaction; nothing is sent before its first batch or offset. Raises Fenced or KafkaError."""
        self._expect(TransactionState.READY)
        self._forget_transaction()
        if self._version2 != self._speaks_version2():
            # The cluster was changed meanwhile: nothing of the other protocol may meet the next transaction's epoch.
            await self._init_producer(self.producer_id, self.producer_epoch)
            self._version2 = self._sender.adds_partitions = self._speaks_version2()
        self._enter(TransactionState.OPEN)

    def next_sequence(self, tp: TopicPartition, record_count: int) -> int:
        """Allocate the sequence numbers of a batch; gives its base sequence."""
        sequence = self._next.get(tp, 0)
        self._next[tp] = (sequence + record_count) & SEQUENCE_MASK
        return sequence

    async def send_raw(self, tp: TopicPartition, parts: Sequence[Piece | RawBatch]) -> int:
        """Produce one batch, given in parts of which the first holds its whole header; gives its base offset.

        -1 when the broker has it already but forgot where. Several may run at once: those of one partition
        are stored in the order of the calls. Retries send the same bytes. Raises Fenced or KafkaError.
        """
        return (await self.submit(tp, parts)).base_offset

    def submit(
        self, tp: TopicPartition, parts: Sequence[Piece | RawBatch], deadline: float | None = None
    ) -> asyncio.Future[Produced]:
        """`send_raw` without a coroutine: put the batch into its line now and give a future. `deadline` is the sender's. Raises
        KafkaError unless a transaction is open, ValueError for a first part without the batch's whole header."""
        self._expect(TransactionState.OPEN)
        pieces = [memoryview(part) for part in parts]
        if not pieces or pieces[0].nbytes < HEADER_BYTES:
            raise ValueError("the first part of a batch must hold its whole header")
        head = pieces[0].cast("B")
        (sequence,) = _LAST_OFFSET_DELTA.unpack_from(head, _BASE_SEQUENCE_AT)
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(head, _LAST_OFFSET_DELTA_AT)
        self._touched = self._touched or self._version2
        inner = self._sender.submit(tp, pieces, deadline)
        outer: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()

        def done(future: asyncio.Future[Produced]) -> None:
            error = future.exception()
            if error is None:
                self._stored[tp] = (sequence + delta + 1) & SEQUENCE_MASK
                if not outer.done():
                    outer.set_result(future.result())
                return
            assert isinstance(error, KafkaError)
            error = self._note_error(error)
            if not outer.done():
                outer.set_exception(error)
                outer.exception()  # a caller that only commits learns of it there

        inner.add_done_callback(done)
        return outer

    async def send_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        *,
        generation_id: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
    ) -> None:
        """Commit a group's offsets with this transaction. Raises Fenced or KafkaError."""
        self._expect(TransactionState.OPEN)
        try:
            self._touched = True
            await self._add_group(group)
            request = TxnOffsetCommitRequest(
                **self._identity(),
                group_id=group,
                generation_id_or_member_epoch=generation_id,
                member_id=member_id,
                group_instance_id=group_instance_id,
                topics=offset_topics(
                    offsets,
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic,
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition,
                ),
            )
            versions = OFFSETS_V2 if self._version2 else OFFSETS_V1
            await self._retry(
                lambda: self._client.ask_coordinator(group, "group", request, codes=partition_codes, versions=versions)
            )
        except KafkaError as error:
            raise self._note_error(error) from error

    async def _add_group(self, group: str) -> None:
        if group in self._groups or self._version2:
            return
        await self._ask(AddOffsetsToTxnRequest(**self._identity(), group_id=group))
        self._groups.add(group)

    async def commit(self) -> None:
        """Wait for all sends and commit. Raises KafkaError (state MUST_ABORT) if a send failed."""
        self._expect(TransactionState.OPEN)
        self._enter(TransactionState.ENDING)  # a send from now on would come after the marker
        await self._sender.drain()
        await asyncio.sleep(0)  # the last answers' callbacks have run after this
        self._expect(TransactionState.ENDING)
        await self._check_pins()
        with self._ending():
            if self._added or self._groups or (self._version2 and self._touched):
                await self._end(committed=True)

    async def _check_pins(self) -> None:
        """Batches that were sent by their topic's name must not be in another topic of that name. Raises KafkaError."""
        topics = sorted(self._sender.sent_by_name)
        if not topics:
            return
        try:
            cluster = await self._client.metadata(topics, refresh=True)
            for topic in topics:
                found = cluster.topics.get(topic)
                if found is None or found.topic_id != self._sender.pins[topic]:
                    raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"`{topic}` was recreated")
        except KafkaError as error:
            raise self._note_error(error) from error

    async def abort(self) -> None:
        """Give the transaction up; what was not sent yet fails. Sequences go on where the stored ones end.

        When it is not known what was stored, the producer epoch is raised and sequences begin at 0 again; with
        transactions v2 always.
        """
        self._expect(TransactionState.OPEN, TransactionState.MUST_ABORT)
        self._enter(TransactionState.MUST_ABORT)
        self._sender.drop_unsent(KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted"))
        await self._stop_adding()
        await self._sender.drain()
        await asyncio.sleep(0)
        self._expect(TransactionState.MUST_ABORT)
        with self._ending():
            if self._touched:
                await self._end(committed=False)
            elif self._version2:
                self._next.clear()  # allocated, never sent
            if self._next != self._stored:
                await self._init_producer(self.producer_id, self.producer_epoch)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Around what ends a transaction: another may begin afterwards, unless it isn't known how this one has ended."""
        try:
            yield
        except KafkaError as error:
            if self._note_error(error).code not in FENCING:
                self._enter(TransactionState.FAILED)
            raise
        self._forget_transaction()
        self._enter(TransactionState.READY)

    async def close(self) -> None:
        """Fail what is under way. An open transaction ends by the next `init` or the broker's timeout."""
        await self._stop_adding()
        await self._sender.close(KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the sender was closed"))

    # Coordinator

    async def _end(self, committed: bool) -> None:
        request = EndTxnRequest(**self._identity(), committed=committed)
        try:
            answer = await self._ask(request, END_TXN_V2 if self._version2 else None)
        except KafkaError as error:
            if error.code != ErrorCode.INVALID_TXN_STATE:
                raise
            if committed and self._version2:
                # An abort was stored already: by the transaction's timeout, or for a newer producer.
                self._enter(TransactionState.FENCED)
                text = f"the broker has aborted the transaction of transactional id `{self.transactional_id}`"
                raise Fenced(ErrorCode.PRODUCER_FENCED, text) from error
            if committed:
                raise
            # An abort of what the coordinator never saw begin (its AddPartitions failed) has nothing to do.
            if self._version2:  # A commit was stored before: the epoch to go on with isn't known.
                await self._init_producer(self.producer_id, self.producer_epoch)
            return
        if self._version2:
            self._take_producer(answer.producer_id, answer.producer_epoch)

    def _identity(self) -> dict[str, Any]:
        """What every request of a transaction begins with."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    def _take_producer(self, producer_id: int, producer_epoch: int) -> None:
        """Another epoch, maybe another id: sequences begin at 0."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._next.clear()
        self._stored.clear()

    async def _ask(self, request: Any, versions: tuple[int, int] | None = None) -> Any:
        """Ask the transaction coordinator, until `delivery.timeout.ms`. Raises Fenced or KafkaError."""
        key = self.transactional_id
        try:
            return await self._retry(lambda: self._client.ask_coordinator(key, "transaction", request, versions=versions))
        except KafkaError as error:
            if error.code in FENCING:
                self._enter(TransactionState.FENCED)
                raise Fenced(error.code, f"transactional id `{key}`") from error
            raise

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        limit_ms = self._client.config["delivery.timeout.ms"]
        return await self._client.retry(attempt, timeout_ms=limit_ms, also=WAITING, first_ms=FIRST_PAUSE_MS)

    async def _add_partition(self, tp: TopicPartition) -> None:
        """The sender's gate: returns once the coordinator knows that tp takes part in this transaction."""
        if tp in self._added:
            return
        future = self._adding.get(tp)
        if future is None:
            future = self._adding[tp] = asyncio.get_running_loop().create_future()
        if self._adder is None:
            self._adder = asyncio.create_task(self._add_partitions())
        await asyncio.shield(future)

    async def _add_partitions(self) -> None:
        """Ask for all partitions that wait, together; further ones that came meanwhile follow."""
        try:
            while self._adding:
                adding, self._adding = self._adding, {}
                try:
                    self._touched = True
                    await self._retry(partial(self._ask_add, self._add_request(adding)))
                except (KafkaError, asyncio.CancelledError) as error:
                    aborted = KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted")
                    for future in adding.values():
                        future.set_exception(error if isinstance(error, KafkaError) else aborted)
                        future.exception()
                    if isinstance(error, asyncio.CancelledError):
                        raise
                else:
                    self._added.update(adding)
                    for future in adding.values():
                        future.set_result(None)
        finally:
            self._adder = None

    async def _stop_adding(self) -> None:
        """End the adder, which may not even have begun, and fail what waits for it."""
        await tasks.end(self._adder)
        self._adder = None
        adding, self._adding = self._adding, {}
        for future in adding.values():
            future.set_exception(KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted"))
            future.exception()

    def _add_request(self, adding: Iterable[TopicPartition]) -> AddPartitionsToTxnRequest:
        request_topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[request_topic(name=name, partitions=numbers) for name, numbers in by_topic(adding, number)],
        )

    async def _ask_add(self, request: AddPartitionsToTxnRequest) -> None:
        key = self.transactional_id
        await self._client.ask_coordinator(key, "transaction", request, codes=_add_partition_codes)

    # State

    def check_open(self) -> None:
        """Raise, as a send would, unless a transaction is open."""
        self._expect(TransactionState.OPEN)

    def _enter(self, state: TransactionState) -> None:
        self.state = state

    def _expect(self, *states: TransactionState) -> None:
        if self.state in states:
            return
        if self.state is TransactionState.FENCED:
            raise Fenced(ErrorCode.PRODUCER_FENCED, f"transactional id `{self.transactional_id}`")
        if self.state is TransactionState.MUST_ABORT:
            text = f"transactional id `{self.transactional_id}`: a send failed, abort first"
            raise KafkaError(ErrorCode.TRANSACTION_ABORTABLE, text)
        names = " or ".join(state.value for state in states)
        text = f"transactional id `{self.transactional_id}` is {self.state.value}, not {names}"
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, text)

    def lose(self, error: KafkaError) -> None:
        """A batch of the open transaction will never be submitted: it has to be aborted."""
        self._note_error(error)

    def _note_error(self, error: KafkaError) -> KafkaError:
        """Note what an error means for the transaction; gives the error to raise."""
        if error.code in FENCING:
            self._enter(TransactionState.FENCED)
            if not isinstance(error, Fenced):
                return Fenced(error.code, f"transactional id `{self.transactional_id}`")
        elif error.code in FATAL and self.state is not TransactionState.FENCED:
            self._enter(TransactionState.FAILED)
        elif self.state in (TransactionState.OPEN, TransactionState.ENDING):
            self._log.warning("the transaction has to be aborted: %s", error)
            self._enter(TransactionState.MUST_ABORT)
        return error

    def _forget_transaction(self) -> None:
        self._added.clear()
        self._groups.clear()
        self._touched = False
        self._sender.sent_by_name.clear()
        self._sender.close_gates()


def _add_partition_codes(answer: AddPartitionsToTxnResponse) -> Iterable[int]:
    """The code that says why first: OPERATION_NOT_ATTEMPTED only says that another one failed."""
    parts = [part for topic in answer.results_by_topic_v3_and_below for part in topic.results_by_partition]
    codes = [part.partition_error_code for part in parts]
    return sorted(codes, key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED)
