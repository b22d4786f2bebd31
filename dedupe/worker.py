"""One input partition, deduplicated exactly once.

A turn: open the batches, leave out repeats, publish the rest and the input position in one transaction, then put the
ids into the store. A crash before the commit leaves nothing; a crash after it leaves a store that lacks ids which the
output has, and the next start repairs it before it reads input. So an id that is read again after a crash is
distinguished from a duplicate: its record is in the output or it is not, and the position says from where to read on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from penstock import log
from penstock.dedupe import movedtopic
from penstock.dedupe.counts import DedupeCounts
from penstock.dedupe.ids import IdSource
from penstock.dedupe.inputs import Input, Inputs
from penstock.dedupe.position import DedupePosition, identity
from penstock.dedupe.progress import Progress
from penstock.dedupe.quarantine import corrupt_batch
from penstock.dedupe.repair import REPAIRED, UnknownIds
from penstock.dedupe.seenids import SeenIds, StoreFailed
from penstock.dedupe.settings import Settings
from penstock.dedupe.sift import Sifted
from penstock.dedupe.topics import DedupeTopics, Found, check_id
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetched
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pipeline.job import shared_moved_topic
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.batches import Refused, TooLarge, prepare, send
from penstock.pipeline.stages.completion import to_its_end
from penstock.pipeline.stages.failures import OperatorNeeded, StartsOver
from penstock.pipeline.stages.identity import take_identity
from penstock.pipeline.stages.outputlog import OutputLog, OutputLost
from penstock.pipeline.stages.position import short
from penstock.pipeline.stages.recordcount import records_of
from penstock.pipeline.stages.stagetopics import make_topic
from penstock.pipeline.stages.state import State
from penstock.pyx.record.rawbatch import RawBatch

ALIVE_MS = 30_000  # how old a position may become while its worker repairs the store, before it is committed again

FENCED = declare("dedupe.fenced", "the identity is taken, the store is not repaired yet")
SIFTED = declare("dedupe.sifted", "repeats are left out, nothing was published")
MOVED = declare("dedupe.moved", "records that belong elsewhere are sent there, the output and the position are not")
SET_ASIDE = declare("dedupe.set_aside", "what doesn't go on is sent to quarantine, nothing else is")
PUBLISHED = declare("dedupe.published", "the output is sent, the position is not")
OFFSETS_SENT = declare("dedupe.offsets_sent", "output and position are sent, not committed")
COMMITTED = declare("dedupe.committed", "the transaction is committed, the ids are not in the store")
ADDED = declare("dedupe.added", "all ids of the transaction are in the store")


class DedupeWorker:
    """Dedupes one partition: `take()` fences and repairs, `start()` gives the position, `turn()` is one transaction."""

    def __init__(self, tp: TopicPartition, settings: Settings, admin: Admin, source: IdSource) -> None:
        self.tp = tp
        self.output = settings.output_topic, tp[1]
        self.ids = SeenIds(tp, self.output, settings, source)
        self._written = OutputLog(admin, self.output)
        self.counts = DedupeCounts()
        self._settings = settings
        self._admin = admin
        self._source = source
        self._sender: TransactionalSender | None = None
        self._attempted = -1
        self._sift_failed = False  # ids could not be looked up, and only another turn tells whether they can be again
        self._inputs = Inputs(tp, settings, admin, source)
        self._owner = f"group `{settings.group}`, input `{tp[0]}`"  # of the topic of moved records, by its mark
        self._log = log.get(__name__, topic=tp[0], partition=tp[1])
        moved = None if settings.misplaced == "pass" else self._inputs.moved.tp[0]
        self._progress = Progress(self._log, moved, source)

    @property
    def _topics(self) -> DedupeTopics:
        settings = self._settings
        return DedupeTopics(self._admin, self.tp, settings.output_topic, settings.group, self._inputs.moved.tp[0])

    @property
    def position(self) -> DedupePosition:
        """Where it stands in its partition of the input, and why it stands still, if it does."""
        return self._inputs.own.position

    @property
    def places(self) -> dict[TopicPartition, DedupePosition]:
        """Where it stands in all that it reads."""
        return {each.tp: each.position for each in self._inputs}

    @property
    def going(self) -> State:
        """The state of the partition if nothing holds it."""
        return self.position.going(self._source.text)

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
        await self._inputs.learn()
        are_there = False
        try:
            await self._check_topics(self._sender)
            are_there = True
            await self._check_output()
            await self._show_life()
            await self.ids.make_complete(self._admin, self.position, self._show_life)
        except OperatorNeeded as error:
            if self.position.topic_id:
                unknown = error.offsets if isinstance(error, UnknownIds) else self.position.unknown
                # So that any host sees why, and what there is to accept; each time, so that the position doesn't expire.
                after = replace(self.position, unknown=unknown, stopped=str(error))
                await self._commit(after, alone=not are_there)
            raise
        except (KafkaError, StoreFailed) as error:
            if isinstance(error, StoreFailed) or error.code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                await self._stall(str(error), alone=not are_there)
            raise
        if self.position.unknown:
            await self._commit(replace(self.position, unknown=""))
        failpoint(REPAIRED)

    async def _check_output(self) -> None:
        """Refuse an output that lacks what was written up to the position. All transactions of the worker must have ended.
        Raises OutputLost, KafkaError."""
        end = self.position.output_end
        if why := await self._written.lacks(end, settled=True):
            last = await self._written.last_batch(end)
            raise OutputLost(
                f"{why}: the output lost records of its offsets {0 if last is None else last.next_offset} to {end - 1}. "
                f"{hints.to_move(self.tp)} reads the input again from before them (`--at earliest` surely does) and drops what "
                f"the output still has; {hints.to_rebuild(self.tp)}"
            )

    async def _stall(self, why: str, *, alone: bool = False) -> None:
        """Commit why the partition stands still, so that any host sees it; now and then again, so that the position doesn't
        expire meanwhile."""
        why = short(why)
        if self.position.topic_id and why != self.position.stalled:
            await self._commit(replace(self.position, stalled=why), alone=alone)
        elif self.position.topic_id:
            await self._show_life()

    async def _show_life(self) -> None:
        """Commit a position that has become old, though nothing was read: whoever looks at it sees that somebody works here."""
        if time.time_ns() // 1_000_000 - self.position.committed_ms > ALIVE_MS:
            await self._commit(self.position)

    async def _check_topics(self, sender: TransactionalSender) -> None:
        """See that the topics are those of the position, or begin one. Raises OperatorNeeded, KafkaError."""
        topics = await self._topics.find(self.position.partitions)
        for each in (self._inputs.own, self._inputs.moved):
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
            sender.pin(self._inputs.moved.tp[0], bytes.fromhex(self.position.moved_id))

    async def _begin(self, topics: Found) -> None:
        """The first position, allowed only while the output is empty and with as many partitions as the others began."""
        end = await self._admin.end_offset(self.output)
        if end > 0:
            raise OperatorNeeded(
                f"`{self.output[0]}` partition {self.output[1]} has data (end offset {end}), but group "
                f"`{self._settings.group}` has no input position; nothing is guessed. If it was deleted or has expired, "
                f"{hints.to_move(self.tp)} goes on there: records are read once more, and those whose ids are known are "
                "dropped. A stage that is new begins with an empty output topic"
            )
        # How many there were changes with no turn, and of a busy stage's positions some are never stable.
        others = await self._admin.all_committed(self._settings.group, require_stable=False)
        for tp, found in others.items():
            if tp[0] == self.tp[0]:
                began_with = DedupePosition.parse(self._settings.group, tp, *found).partitions
                self._topics.check_count(began_with, topics.partitions)
        start = await self._inputs.own.log.start()
        if start > 0:
            raise self._inputs.own.log.gone(0, start)
        await self._commit(DedupePosition(0, topics.input_id, topics.output_id, partitions=topics.partitions))

    async def _begin_moved(self, topics: Found) -> None:
        """The first position in the topic of moved records, at its beginning, and the mark where the topic has none yet. Raises
        OperatorNeeded where that is gone: the command by which an operator goes on gives the position."""
        topic, unmarked = self._inputs.moved.tp[0], list[TopicPartition]()
        if topic != shared_moved_topic(self.tp[0]):
            unmarked = await movedtopic.unmarked(self._admin, topic, topics.partitions, self._owner)
        start = await self._inputs.moved.log.start()
        if start > 0:
            raise self._inputs.moved.log.gone(0, start)
        first = DedupePosition(0, topics.moved_id, topics.output_id, partitions=topics.partitions)
        before = self._inputs.moved.position
        is_new = before.topic_id not in ("", topics.moved_id)
        self._inputs.moved.position = before.in_new_log(topics.moved_id, 0) if is_new else first
        await self._commit(replace(self.position, moved_id=topics.moved_id), unmarked)

    def _check_moved(self) -> None:
        if not self._inputs.moved.position.topic_id:
            raise OperatorNeeded(
                f"group `{self._settings.group}` has no position of {self._inputs.moved.tp[0]}-{self.tp[1]}, which was read "
                f"before; {hints.to_move(self.tp)} says where to go on, and reads moved records from their beginning: those "
                "whose ids are known are dropped"
            )

    async def start(self) -> dict[TopicPartition, int]:
        """The offsets to read from. Raises OperatorNeeded when the input is not the one of the position."""
        await self.check()
        before = [each.position for each in self._inputs]
        for each in self._inputs:
            each.position = await each.log.check(each.position)
        if self.position.stopped or (self.position.stalled and not self._sift_failed):
            await self.refresh()  # what it stood still for is over
        elif before != [each.position for each in self._inputs]:
            await self._commit(self.position)
        self._log.info("reads from offset %d", self.position.offset)
        return {each.tp: each.position.offset for each in self._inputs}

    async def check(self) -> None:
        """Look whether input and output are still the topics that they were, and whether ids should become a file.

        Raises OperatorNeeded, KafkaError.
        """
        topics = await self._topics.find(self.position.partitions)
        self._topics.check(topics, self.position)
        if topics.moved_id and not self.position.moved_id:
            raise StartsOver(f"`{self._inputs.moved.tp[0]}` is there now: it is read, too")
        await self._written.check_after_election(self.position.output_end)
        try:
            await self.ids.spill_in_time(await self._admin.start_offset(self.output))
        except StoreFailed:
            raise StartsOver("ids of memory could not become a file") from None

    async def look(self) -> tuple[int, bool]:
        """The committed offset, and whether somebody has work there; see `Inputs.look`."""
        return await self._inputs.look()

    async def holder(self) -> str:
        """The process that committed the position last."""
        return await self._inputs.holder()

    async def refresh(self, stopped: str = "", stalled: str = "") -> None:
        """Commit the position again, so that an idle one doesn't expire, with why the partition stands still."""
        await self._commit(replace(self.position, stopped=stopped, stalled=stalled))

    async def _commit(self, position: DedupePosition, unmarked: Sequence[TopicPartition] = (), *, alone: bool = False) -> None:
        """`alone`: without that of moved records, whose topic may be gone. `unmarked` partitions of that get its mark."""
        await to_its_end(self._transact(position, unmarked, alone))

    async def _transact(self, position: DedupePosition, unmarked: Sequence[TopicPartition], alone: bool) -> None:
        assert self._sender is not None, "take the identity first"
        await self._sender.begin()
        for tp in unmarked:
            await send(self._sender, tp, [movedtopic.mark(self._owner)])
        if alone:
            at = position.offset, position.by_us().metadata()
            await self._sender.send_offsets(self._settings.group, {self.tp: at})
        else:
            await self._sender.send_offsets(self._settings.group, self._inputs.to_commit({self.tp: position}))
        await self._sender.commit()
        self._inputs.own.position = position.by_us()

    async def turn(self, fetched: Sequence[Fetched]) -> None:
        """Dedupe what was fetched, of each input in one transaction, then note its ids.

        Raises Fenced, KafkaError, OperatorNeeded, StartsOver.
        """
        for each in self._inputs:
            if parts := [part for part in fetched if part.tp == each.tp]:
                await self._take_turn(each, parts)

    async def _take_turn(self, read: Input, fetched: Sequence[Fetched]) -> None:
        for part in fetched:
            if part.topic_id is not None:
                check_id(read.name, part.topic_id.hex(), read.position.topic_id, self._inputs.moved.tp[0])
        passed = await read.log.check_fetched(fetched, read.position)
        batches = [batch for part in fetched for batch in part.batches]
        events = [batch for batch in batches if read is self._inputs.own or not movedtopic.owner_of(batch)]
        passed = replace(passed, marks=passed.marks + len(batches) - len(events))
        try:
            self._sift_failed = True
            sifted = await self.ids.sift(events, read.position.offset, read.rules)
            self._sift_failed = False
            failpoint(SIFTED)
            if sifted.moved and not self.position.moved_id:
                await self._make_moved_topic()
            complete_to = await self._publish(read, sifted, passed, batches)
            failpoint(COMMITTED)
            await self.ids.add(sifted.ids, complete_to)
        except TooLarge as error:
            raise OperatorNeeded(f"{error}, then start the stage again") from error
        failpoint(ADDED)
        self._progress.misplaced(sifted, self.position)
        self._progress.lacking(self.position)
        self._progress.report(fetched[-1].last_stable_offset - read.position.offset, self.position, self.ids.stats())

    async def _make_moved_topic(self) -> None:
        settings, topic = self._settings, self._inputs.moved.tp[0]
        partitions = self._inputs.own.rules.partitions
        configs = movedtopic.configs(settings.max_batch_bytes, settings.retention_bytes)
        await make_topic(self._admin, topic, partitions, configs)
        raise StartsOver(f"the first ids that belong into other partitions: they go there by way of `{topic}`")

    async def _publish(self, read: Input, sifted: Sifted, passed: DedupePosition, batches: Sequence[RawBatch]) -> int:
        """Output and input position in one transaction; the output offset up to which its ids are complete then.

        `passed` is the position after what was sifted, with the counters of before; `batches` are what was sifted.
        """
        sender, before = self._sender, read.position
        self._attempted = self.own_offsets[0] - before.offset + passed.offset
        assert sender is not None, "take the identity first"
        aside = [*sifted.aside, *(piece for batch in sifted.corrupt for piece in corrupt_batch(batch, read.tp))]
        place = await self._settings.quarantine.place(self.tp[1]) if aside else self.output
        await sender.begin()
        into = place
        try:
            if aside:
                await self._set_aside(sender, place, aside, read, sifted)
            for home, moved in sifted.moved.items():
                into = self._inputs.moved.tp[0], home
                await send(sender, into, moved)
            if sifted.moved:
                failpoint(MOVED)
            into = self.output
            begin, complete_to = await send(sender, into, sifted.batches)
        except Refused as error:
            raise OperatorNeeded(
                f"`{into[0]}` refuses a batch of what is read of `{read.tp[0]}` from offset {before.offset} up to "
                f"{passed.offset}: {error}; change that topic's configs, then start the stage again"
            ) from error
        failpoint(PUBLISHED)
        if complete_to >= 0:
            await self._written.check_before_commit(self.position.output_end, begin=begin)
        after = {self.tp: self.position, read.tp: _counted(before, passed, sifted, batches)}
        end = max(self.position.output_end, complete_to)
        after[self.tp] = replace(after[self.tp], output_end=end, stopped="", stalled="")
        await sender.send_offsets(self._settings.group, self._inputs.to_commit(after))
        failpoint(OFFSETS_SENT)
        await sender.commit()
        for each in self._inputs:
            each.position = after.get(each.tp, each.position).by_us()
        self.counts.note(before, after[read.tp], sum(batch.size_in_bytes for batch in sifted.batches))
        return complete_to

    async def _set_aside(
        self, sender: TransactionalSender, place: TopicPartition, aside: Sequence[RawBatch], read: Input, sifted: Sifted
    ) -> None:
        """Send what doesn't go on to the quarantine."""
        for batch in sifted.corrupt:
            self._log.error(
                "the batch at offset %d of `%s` can't be opened: it goes to `%s`", batch.base_offset, read.tp[0], place[0]
            )
        try:
            await send(sender, place, prepare(aside, 0, self._settings.quarantine.limit).batches)
        except (KafkaError, OperatorNeeded):
            self._settings.quarantine.forget()
            raise
        failpoint(SET_ASIDE)

    async def close(self) -> None:
        """Keep the ids that only memory has, and let others into the folder."""
        await self.ids.close(self._log)


def _counted(before: DedupePosition, passed: DedupePosition, sifted: Sifted, batches: Sequence[RawBatch]) -> DedupePosition:
    """The position `passed` with the counters of what was sifted, `batches` read from the one `before` on, added."""
    corrupt = sum(records_of(batch) for batch in sifted.corrupt)
    return replace(
        passed.with_read(before, batches).with_recent(sifted.read, sifted.without_id),
        read=before.read + sifted.read + corrupt,
        written=before.written + sifted.written,
        dropped=before.dropped + sifted.dropped,
        quarantined=before.quarantined + corrupt + sifted.set_aside,
        without_id=before.without_id + sifted.without_id,
        misplaced=before.misplaced + sifted.misplaced,
        moved=before.moved + sifted.moved_records,
    )
