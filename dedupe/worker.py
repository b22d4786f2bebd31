"""One input partition, deduplicated exactly once.

A turn: open the batches, leave out repeats, publish the rest and the input position in one transaction, then put the
ids into the store. A crash before the commit leaves nothing; a crash after it leaves a store that lacks ids which the
output has, and the next start repairs it before it reads input. So an id that is read again after a crash is
distinguished from a duplicate: its record is in the output or it is not, and the position says from where to read on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from penstock import log
from penstock.dedupe import hints, movedtopic
from penstock.dedupe.folder import StoreFolder, owner
from penstock.dedupe.ids import IdSource
from penstock.dedupe.position import Position, identity
from penstock.dedupe.quarantine import corrupt_batch
from penstock.dedupe.repair import REPAIRED, UnknownIds, expires_soon, repair
from penstock.dedupe.sift import Misplaced, Rules, Sifted, WithoutId, sift
from penstock.dedupe.topics import Found, Topics, check_id
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetched
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pipeline.job import moved_topic
from penstock.pipeline.stages.batches import Refused, TooLarge, prepare, send
from penstock.pipeline.stages.completion import to_its_end
from penstock.pipeline.stages.failures import OperatorNeeded, StartsOver
from penstock.pipeline.stages.identity import take_identity
from penstock.pipeline.stages.position import short
from penstock.pipeline.stages.quarantine import Quarantine
from penstock.pipeline.stages.recordcount import records_of
from penstock.pipeline.stages.sourcelog import SourceLog
from penstock.pipeline.stages.stagetopics import make_topic
from penstock.pyx.ids.store import IdStore, RocksError
from penstock.pyx.record.columns import Column

P = ParamSpec("P")
T = TypeVar("T")

ALIVE_MS = 30_000  # how old a position may become while its worker repairs the store, before it is committed again
REPORT_S = 10.0  # how often a busy worker says where it is
MISPLACED_S = 60.0  # how often it says that ids are in the wrong partition

FENCED = declare("dedupe.fenced", "the identity is taken, the store is not repaired yet")
SIFTED = declare("dedupe.sifted", "repeats are left out, nothing was published")
MOVED = declare("dedupe.moved", "records that belong elsewhere are sent there, the output and the position are not")
SET_ASIDE = declare("dedupe.set_aside", "what doesn't go on is sent to quarantine, nothing else is")
PUBLISHED = declare("dedupe.published", "the output is sent, the position is not")
OFFSETS_SENT = declare("dedupe.offsets_sent", "output and position are sent, not committed")
COMMITTED = declare("dedupe.committed", "the transaction is committed, the ids are not in the store")
FILE_WRITTEN = declare("dedupe.file_written", "a sorted file of ids is written, the database does not know it")
FILE_INGESTED = declare("dedupe.file_ingested", "the database has the file, memory was emptied")
ADDED = declare("dedupe.added", "all ids of the transaction are in the store")


@dataclass(frozen=True)
class Settings:
    """What all workers of a stage share. Sizes are bytes; `max_batch_bytes` is what the output topic takes.

    `quarantine`: where what doesn't go on is set aside. `retention_bytes`: of the topic of moved records.
    """

    stage: str
    group: str
    output_topic: str
    data: Path
    size_max_bytes: int
    memory_max_ids: int
    turn_bytes: int
    max_batch_bytes: int
    spill_ms: int
    retention_bytes: int
    quarantine: Quarantine
    without_id: WithoutId = "pass"
    misplaced: Misplaced = "move"


@dataclass
class Input:
    """One log that a worker reads: its partition of the input topic, or that of the topic of moved records."""

    tp: TopicPartition
    name: str
    log: SourceLog
    rules: Rules
    position: Position


class Worker:
    """Dedupes one partition: `take()` fences and repairs, `start()` gives the position, `turn()` is one transaction."""

    def __init__(self, tp: TopicPartition, settings: Settings, admin: Admin, source: IdSource) -> None:
        self.tp = tp
        self.output = settings.output_topic, tp[1]
        self.folder = StoreFolder.of(settings.data, tp)
        self.store: IdStore | None = None
        self._settings = settings
        self._admin = admin
        self._source = source
        self._sender: TransactionalSender | None = None
        self._attempted = -1
        self._committed_ms = -1  # when the position was, last
        self._work: asyncio.Future[Any] | None = None
        self._storing = asyncio.Lock()  # a file is written and ingested as one step, and no id comes in between
        self._memory_since = time.monotonic()  # memory holds ids that no file has for so long at most
        self._reported = time.monotonic()
        self._misplaced_again = 0.0
        self._go_on = f"{hints.to_move(tp)} says where to go on"
        self._topics = Topics(admin, tp, settings.output_topic, settings.group)
        self._input = self._read(tp, "input topic", settings.misplaced)
        # A record of INPUT.moved whose id belongs into yet another partition can't be moved once more: it stops the partition.
        misplaced: Misplaced = "stop" if settings.misplaced == "move" else settings.misplaced
        self._moved = self._read((moved_topic(tp[0]), tp[1]), "topic of moved records", misplaced)
        self._log = log.get(__name__, topic=tp[0], partition=tp[1])

    def _read(self, tp: TopicPartition, name: str, misplaced: Misplaced) -> Input:
        settings, were_moved = self._settings, tp != self.tp
        source_log = SourceLog(
            self._admin,
            tp,
            "input",
            lost=f"{self._go_on}, once you know what is missing",
            cut=f"{self._go_on}, once you know what is missing or there twice",
        )
        rules = Rules(tp, self._source, settings.max_batch_bytes, settings.without_id, misplaced, were_moved=were_moved)
        return Input(tp, name, source_log, rules, Position(0, "", ""))

    @property
    def position(self) -> Position:
        """Where it stands in its partition of the input, and why it stands still, if it does."""
        return self._input.position

    @property
    def _inputs(self) -> list[Input]:
        """What it reads: moved records from when it has noted their topic on."""
        return [self._input, self._moved] if self.position.moved_id else [self._input]

    @property
    def decisions(self) -> int:
        """What operators decided about the partition so far."""
        return self.position.decisions

    @property
    def own_offsets(self) -> tuple[int, ...]:
        """The committed offset, and that of the last turn: sums over what it reads."""
        return sum(each.position.offset for each in self._inputs), self._attempted

    async def take(self, *, force: bool = False) -> None:
        """Fence the forerunner, learn the position, and make the store complete, before any input is looked at.

        The folder must be locked. Raises Fenced, OperatorNeeded, KafkaError, OSError.
        """
        name = identity(self._settings.stage, self.tp)
        self._sender = await take_identity(self._admin, name, None if force else self._sender)
        failpoint(FENCED)
        committed = await self._admin.committed(self._settings.group, [self.tp, self._moved.tp])
        for each in (self._input, self._moved):
            found = committed[each.tp]
            each.position = Position(0, "", "") if found is None else self._parse(each.tp, found)
        self._committed_ms = self.position.committed_ms
        are_there = False
        try:
            await self._check_topics(self._sender)
            are_there = True
            await self._show_life()
            await self._repair()
        except OperatorNeeded as error:
            if self.position.topic_id:
                unknown = error.offsets if isinstance(error, UnknownIds) else self.position.unknown
                # So that any host sees why, and what there is to accept; each time, so that the position doesn't expire.
                after = replace(self.position, unknown=unknown, stopped=str(error))
                await self._commit(after, alone=not are_there)
            raise
        except KafkaError as error:
            why = short(str(error))
            if error.code == ErrorCode.UNSTABLE_OFFSET_COMMIT and why != self.position.stalled:
                await self._commit(replace(self.position, stalled=why))
            raise
        if self.position.unknown:
            await self._commit(replace(self.position, unknown=""))
        failpoint(REPAIRED)

    def _parse(self, tp: TopicPartition, found: tuple[int, str]) -> Position:
        return Position.parse(self._settings.group, tp, *found, self.tp)

    async def _show_life(self) -> None:
        """Commit a position that has become old, though nothing was read: whoever looks at it sees that somebody works here."""
        if time.time_ns() // 1_000_000 - self._committed_ms > ALIVE_MS:
            await self._commit(self.position)

    async def _check_topics(self, sender: TransactionalSender) -> None:
        """See that the topics are those of the position, or begin one. Raises OperatorNeeded, KafkaError."""
        topics = await self._topics.find(self.position.partitions)
        for each in (self._input, self._moved):
            each.rules = replace(each.rules, partitions=topics.partitions)
        if self.position.topic_id:
            self._topics.check(topics, self.position)
        else:
            await self._begin(topics)
        if self.position.moved_id:
            self._check_moved()
        elif topics.moved_id:
            await self._begin_moved(topics)
        sender.pin(self.output[0], bytes.fromhex(self.position.output_id))
        if self.position.moved_id:
            sender.pin(self._moved.tp[0], bytes.fromhex(self.position.moved_id))

    async def _begin(self, topics: Found) -> None:
        """The first position, allowed only while the output is empty and with as many partitions as the others began."""
        end = await self._admin.end_offset(self.output)
        if end > 0:
            raise OperatorNeeded(
                f"`{self.output[0]}` partition {self.output[1]} has data (end offset {end}), but group "
                f"`{self._settings.group}` has no input position; nothing is guessed: begin with an empty output topic, or "
                f"set it by {hints.to_move(self.tp)}"
            )
        # How many there were changes with no turn, and of a busy stage's positions some are never stable.
        others = await self._admin.all_committed(self._settings.group, require_stable=False)
        for tp, found in others.items():
            if tp[0] == self.tp[0]:
                began_with = Position.parse(self._settings.group, tp, *found).partitions
                self._topics.check_count(began_with, topics.partitions)
        start = await self._input.log.start()
        if start > 0:
            raise self._input.log.gone(0, start)
        await self._commit(Position(0, topics.input_id, topics.output_id, partitions=topics.partitions))

    async def _begin_moved(self, topics: Found) -> None:
        """The first position in the topic of moved records: at its beginning, unless an operator has decided that what is
        gone there is gone."""
        start = await self._moved.log.start()
        if start > 0 and not self.decisions:
            raise self._moved.log.gone(0, start)
        self._moved.position = Position(start, topics.moved_id, topics.output_id, partitions=topics.partitions)
        await self._commit(replace(self.position, moved_id=topics.moved_id))

    def _check_moved(self) -> None:
        if not self._moved.position.topic_id:
            raise OperatorNeeded(
                f"group `{self._settings.group}` has no position of {self._moved.tp[0]}-{self.tp[1]}, which was read before; "
                f"{self._go_on}, and reads moved records from their beginning: those whose ids are known are dropped"
            )

    async def _repair(self) -> None:
        """A store that this process has already open may have ids beyond what was committed, so it is opened again."""

        async def note(ids: Column, complete_to: int) -> None:
            await self._note(ids, complete_to)
            await self._show_life()

        async with self._storing:
            self._close_store()
            try:
                self.folder.claim(owner(self.output, self.position.output_id, self._source), hints.to_rebuild(self.tp))
                store = await self._in_thread(self._open_store)
                self._memory_since = time.monotonic()
                begins_at = store.complete_to
                turn_bytes, committed = self._settings.turn_bytes, self.position
                await repair(self._admin, self.tp, self.output, store, self._source, note, turn_bytes, committed)
                if committed.accepted and store.complete_to > begins_at:
                    await self._spill()  # so that what was accepted once is not asked for again
            except RocksError as error:
                raise self._store_failed(error) from None

    def _open_store(self) -> IdStore:
        settings = self._settings
        self.store = IdStore(str(self.folder.database), settings.size_max_bytes, settings.memory_max_ids)
        return self.store

    def _store_failed(self, error: RocksError) -> OperatorNeeded:
        return OperatorNeeded(
            f"the store failed: {error}; if the disk is full, make room and start again; if the database is damaged, "
            f"{hints.to_rebuild(self.tp)}"
        )

    async def start(self) -> dict[TopicPartition, int]:
        """The offsets to read from. Raises OperatorNeeded when the input is not the one of the position."""
        await self.check()
        for each in self._inputs:
            await each.log.check(each.position.offset, each.position.leader_epoch)
        if self.position.stopped or self.position.stalled:
            await self.refresh()  # what it stood still for is over
        self._log.info("reads from offset %d", self.position.offset)
        return {each.tp: each.position.offset for each in self._inputs}

    async def check(self) -> None:
        """Look whether input and output are still the topics that they were, and whether ids should become a file.

        Raises OperatorNeeded, KafkaError.
        """
        topics = await self._topics.find(self.position.partitions)
        self._topics.check(topics, self.position)
        if topics.moved_id and not self.position.moved_id:
            raise StartsOver(f"`{self._moved.tp[0]}` is there now: it is read, too")
        await self._spill_in_time()

    async def _spill_in_time(self) -> None:
        """Ids that only memory has become a file before their output is gone: after a while, or when the output's log
        start is as close to them as they are many offsets. Raises OperatorNeeded, KafkaError.
        """
        start = await self._admin.start_offset(self.output)
        if self.store is None or self._storing.locked():
            return
        if expires_soon(self.store, start) or self._is_due():
            async with self._storing:
                try:
                    await self._spill()
                except RocksError as error:
                    raise self._store_failed(error) from None

    def _is_due(self) -> bool:
        return time.monotonic() - self._memory_since >= self._settings.spill_ms / 1000

    async def look(self) -> tuple[int, bool]:
        """The committed offset (the sum over what is read), and whether somebody has work there: input behind a position, or an
        input that ends before it, and nothing stopped it."""
        inputs = [each.tp for each in (self._input, self._moved)]
        committed = await self._admin.committed(self._settings.group, inputs, require_stable=False)
        at, waits, stopped = 0, False, False
        for tp, found in committed.items():
            if found is not None:
                position = self._parse(tp, found)
                at += position.offset
                stopped |= bool(position.stopped)
                waits |= position.offset != await self._admin.end_offset(tp, "read_committed")
        return at, waits and not stopped

    async def refresh(self, stopped: str = "", stalled: str = "") -> None:
        """Commit the position again, so that an idle one doesn't expire, with why the partition stands still."""
        await self._commit(replace(self.position, stopped=stopped, stalled=stalled))

    async def _commit(self, position: Position, *, alone: bool = False) -> None:
        """`alone`: without that of moved records, whose topic may be gone."""
        await to_its_end(self._transact(position, alone))

    async def _transact(self, position: Position, alone: bool) -> None:
        assert self._sender is not None, "take the identity first"
        await self._sender.begin()
        if alone:
            await self._sender.send_offsets(self._settings.group, {self.tp: (position.offset, position.metadata())})
        else:
            await self._send_positions(self._sender, {self.tp: position})
        await self._sender.commit()
        self._input.position = position

    async def _send_positions(self, sender: TransactionalSender, changed: dict[TopicPartition, Position]) -> None:
        """All positions that there are, so that none expires alone."""
        positions = {each.tp: each.position for each in self._inputs if each.position.topic_id} | changed
        if positions[self.tp].moved_id:
            positions.setdefault(self._moved.tp, self._moved.position)
        await sender.send_offsets(
            self._settings.group, {tp: (position.offset, position.metadata()) for tp, position in positions.items()}
        )
        self._committed_ms = time.time_ns() // 1_000_000

    async def turn(self, fetched: Sequence[Fetched]) -> None:
        """Dedupe what was fetched, of each input in one transaction, then note its ids.

        Raises Fenced, KafkaError, OperatorNeeded, StartsOver.
        """
        for each in self._inputs:
            if parts := [part for part in fetched if part.tp == each.tp]:
                await self._take_turn(each, parts)

    async def _take_turn(self, read: Input, fetched: Sequence[Fetched]) -> None:
        assert self.store is not None, "take the identity first"
        for part in fetched:
            if part.topic_id is not None:
                check_id(read.name, part.topic_id.hex(), read.position.topic_id, self.tp[0])
        leader_epoch = await read.log.check_fetched(fetched, read.position.offset, read.position.leader_epoch)
        batches = [batch for part in fetched for batch in part.batches]
        try:
            sifted = await self._in_thread(sift, batches, read.position.offset, self.store, read.rules)
            failpoint(SIFTED)
            if sifted.moved and not self.position.moved_id:
                await self._make_moved_topic()
            complete_to = await self._publish(read, sifted, fetched[-1].next_offset, leader_epoch)
            failpoint(COMMITTED)
            async with self._storing:
                await self._note(sifted.ids, complete_to)
        except RocksError as error:
            raise self._store_failed(error) from None
        except TooLarge as error:
            raise OperatorNeeded(f"{error}, then start the stage again") from error
        failpoint(ADDED)
        if sifted.misplaced:
            self._say_misplaced(sifted)
        self._report(fetched[-1].last_stable_offset - read.position.offset)

    async def _make_moved_topic(self) -> None:
        settings, topic = self._settings, self._moved.tp[0]
        partitions = self._input.rules.partitions
        configs = movedtopic.configs(settings.max_batch_bytes, settings.retention_bytes)
        await make_topic(self._admin, topic, partitions, configs)
        raise StartsOver(f"the first ids that belong into other partitions: they go there by way of `{topic}`")

    async def _publish(self, read: Input, sifted: Sifted, next_offset: int, leader_epoch: int) -> int:
        """Output and input position in one transaction; the output offset up to which its ids are complete then."""
        sender, before = self._sender, read.position
        self._attempted = self.own_offsets[0] - before.offset + next_offset
        assert sender is not None, "take the identity first"
        corrupt = sum(records_of(batch) for batch in sifted.corrupt)
        aside = [*sifted.aside, *(piece for batch in sifted.corrupt for piece in corrupt_batch(batch, read.tp))]
        place = await self._settings.quarantine.place(self.tp[1]) if aside else self.output
        await sender.begin()
        into = place[0]
        try:
            if aside:
                for batch in sifted.corrupt:
                    self._log.error(
                        "the batch at offset %d of `%s` can't be opened: it goes to `%s`", batch.base_offset, read.tp[0], into
                    )
                try:
                    await send(sender, place, prepare(aside, 0, self._settings.quarantine.limit).batches)
                except (KafkaError, OperatorNeeded):
                    self._settings.quarantine.forget()
                    raise
                failpoint(SET_ASIDE)
            into = self._moved.tp[0]
            for home, batches in sifted.moved.items():
                await send(sender, (into, home), batches)
            if sifted.moved:
                failpoint(MOVED)
            into = self.output[0]
            complete_to = await send(sender, self.output, sifted.batches)
        except Refused as error:
            raise OperatorNeeded(
                f"`{into}` refuses a batch of what is read of `{read.tp[0]}` from offset {before.offset} up to {next_offset}: "
                f"{error}; change that topic's configs, then start the stage again"
            ) from error
        failpoint(PUBLISHED)
        counted = replace(
            before,
            offset=next_offset,
            leader_epoch=leader_epoch,
            read=before.read + sifted.read + corrupt,
            written=before.written + sifted.written,
            dropped=before.dropped + sifted.dropped,
            quarantined=before.quarantined + corrupt + sifted.set_aside,
            without_id=before.without_id + sifted.without_id,
            misplaced=before.misplaced + sifted.misplaced,
            moved=before.moved + sifted.moved_records,
        )
        after = {self.tp: self.position, read.tp: counted}
        end = max(self.position.output_end, complete_to)
        after[self.tp] = replace(after[self.tp], output_end=end, stopped="", stalled="")
        await self._send_positions(sender, after)
        failpoint(OFFSETS_SENT)
        await sender.commit()
        for each in self._inputs:
            each.position = after.get(each.tp, each.position)
        return complete_to

    async def _note(self, ids: Column, complete_to: int) -> None:
        """Put ids of committed output into the store, which is complete to that output offset then."""
        store = self.store
        assert store is not None, "take the identity first"
        taken = 0
        while True:
            now_ms = time.time_ns() // 1_000_000
            taken = await self._in_thread(store.add, ids.data, ids.starts, ids.null, complete_to, now_ms, taken)
            if store.is_full() or self._is_due():
                await self._spill()
            if taken == len(ids.null):
                return

    async def _spill(self) -> None:
        """Make a file of what came since the last one, if anything did."""
        store = self.store
        assert store is not None, "take the identity first"
        self._memory_since = time.monotonic()
        if store.reaches_to == store.kept_to and store.records_noted == 0:
            return
        await self._in_thread(store.write_file)
        failpoint(FILE_WRITTEN)
        await self._in_thread(store.ingest_file)
        failpoint(FILE_INGESTED)

    def _say_misplaced(self, sifted: Sifted) -> None:
        """Say it: once where such ids move, once a minute where they pass."""
        if time.monotonic() < self._misplaced_again:
            return
        passes = self._settings.misplaced == "pass"
        self._misplaced_again = time.monotonic() + MISPLACED_S if passes else math.inf
        what = f"they go there by way of `{self._moved.tp[0]}`"
        if passes:
            what = "repeats of them in other partitions aren't seen"
        if self._source.is_key:
            what += "; where the producers use it (librdkafka: partitioner=murmur2_random) there are none"
        say = self._log.warning if passes else self._log.info
        say(
            "%d of %d ids just read (the first at offset %d; %d of %d since the stage began) belong into another partition by "
            "Kafka's murmur2: %s",
            *(sifted.misplaced, sifted.read, sifted.misplaced_at, self.position.misplaced, self.position.read, what),
        )

    def _report(self, behind: int) -> None:
        """Say now and then what was done so far. `behind`: offsets that wait in what was read just now."""
        if self.store is None or time.monotonic() - self._reported < REPORT_S:
            return
        self._reported = time.monotonic()
        stats, at = self.store.stats(), self.position
        window_s = max(0, time.time_ns() // 1_000_000 - stats["oldest_ms"]) // 1000 if stats["oldest_ms"] else 0
        self._log.info(
            "read %d, dropped %d, without id %d, misplaced %d, quarantined %d, behind %d; ids %d, database %d bytes in %d "
            "files, window %d s",
            *(at.read, at.dropped, at.without_id, at.misplaced, at.quarantined, max(0, behind)),
            *(stats["ids_in_memory"] + stats["ids_in_files"], stats["size_bytes"], stats["files"], window_s),
        )

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work on the store in a thread. A cancelled worker leaves it running: `close` waits for it."""
        future = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        self._work = future
        return await asyncio.shield(future)

    def _close_store(self) -> None:
        if self.store is not None:
            self.store.close()
            self.store = None

    async def close(self) -> None:
        """Make a file of the ids in memory and close the store; without it they are read again from the output topic."""
        if self._work is not None:
            await asyncio.wait([self._work])
        if self.store is not None:
            try:
                await self._spill()
            except RocksError as error:
                self._log.warning("the ids in memory are not kept, the next start reads them from the output: %s", error)
        self._close_store()
        self.folder.unlock()
