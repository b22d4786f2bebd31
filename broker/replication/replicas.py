"""The replicas that this broker holds: what the controller tells becomes roles of logs, and work for the fetchers.

The machines of `broker/cluster/` decide (`replica`, `leader`, `roles`); the data plane has what changes with every request: how
far each follower has fetched, and the high watermark. So before a machine is asked, its marks are read from the data plane; and
what it has decided - role, epochs, ISR, MAX - is set there before anything else depends on it. A proposal is sent only once its
entrants count for the high watermark (R2).

A follower's fetches end before its role changes, and begin after it.

A log is made only where this broker has no seat by the state, marked `unclean` or not. A seat whose log isn't there, or is
damaged, is answered KAFKA_STORAGE_ERROR for as long as it is so: the controller takes the seat away, but the last one stays,
without a leader, until its log is back (*an unmounted disk that makes a partition begin again, empty*), or an operator gives up
what it held (ElectLeaders, unclean): then the controller takes the last seat away, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from penstock import log
from penstock.broker import tasks
from penstock.broker.cluster import leader as leading
from penstock.broker.cluster import replica as replicas
from penstock.broker.cluster import roles
from penstock.broker.cluster.leaderandisr import NO_EPOCH, LeaderAndIsr
from penstock.broker.cluster.lease import SILENCE_MS
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    Partition,
    PartitionRole,
    RoleAnswer,
    StopReplica,
    StopReplicaAnswer,
)
from penstock.broker.cluster.replica import Replica, Role
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.topicconfig import log_config, topic_value
from penstock.broker.logs.logdirs import DELETED, LogDir, LogDirs, give_way, set_aside, topic_id_in
from penstock.broker.replication.reading import MAY_LOSE
from penstock.broker.topic import INTERNAL
from penstock.durable import sync_folder
from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.logtable import CorruptLogError
from penstock.pyx.log.partitionfolder import remove_folder
from penstock.pyx.log.replicatable import Replica as Member
from penstock.pyx.log.replicatable import ReplicaState

DELETED_MAX = 100_000
"""So many topic ids of deleted topics are remembered."""
TICK_S = 0.5
"""How often proposals without an answer and members that lag are looked for."""

_log = log.get(__name__)
T = TypeVar("T")


class FetcherThreads(Protocol):
    """What follows leaders for this broker's replicas (`penstock.pyx.net.fetcher.Fetchers`)."""

    def add(self, topic: str, topic_id: bytes, partition: int, leader: int) -> None:
        """Fetch a partition from a broker."""

    def remove(self, topic: str, partition: int) -> None:
        """No longer. Returns when nothing of it is being appended any more."""


class Coordinators(Protocol):
    """What coordinates the names of the internal topics' partitions (`penstock.broker.coordination.coordinators`)."""

    def elected(self, topic: str, partition: int, leader_epoch: int) -> None:
        """This broker leads it in that epoch."""

    def resigned(self, topic: str, partition: int) -> None:
        """It doesn't."""


@dataclass(frozen=True, slots=True)
class _Log:
    """A log as the machines see it (`cluster.log.Log`)."""

    logs: LogManager
    partition: Partition
    end: int = 0
    last_epoch: int = NO_EPOCH
    removed_below: int = 0

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return self.logs.offset_for_epoch(*self.partition, epoch)


class Replicas:
    """All replicas of one broker. On the loop; what may wait for a disk is done in the executor's threads.

    configs: a topic's own configs, by its name and id. alter: asks the controller for another ISR; raises OSError where it
    can't be reached. lease_is_over: others may lead by now. isolate: told what is led here and served to no client.
    """

    def __init__(
        self,
        node_id: int,
        config: BrokerConfig,
        dirs: LogDirs,
        logs: LogManager,
        executor: ThreadPoolExecutor,
        fetchers: FetcherThreads,
        *,
        coordinators: Coordinators,
        configs: Callable[[str, bytes | None], Awaitable[dict[str, str]]],
        alter: Callable[[AlterPartition], Awaitable[AlterPartitionAnswer]],
        lease_is_over: Callable[[], bool],
        isolate: Callable[[Collection[Partition]], None],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.roles = roles.Roles(node_id)
        self._node_id = node_id
        self._config = config
        self._dirs = dirs
        self._logs = logs
        self._executor = executor
        self._fetchers = fetchers
        self._coordinators = coordinators
        self._configs = configs
        self._alter = alter
        self._lease_is_over = lease_is_over
        self._isolate = isolate
        self._now_ms = monotonic_ms
        self._changing = asyncio.Lock()
        self._damaged: set[Partition] = set()
        """Logs that aren't whole, until a role says that this broker has no seat for them."""
        self._unopened = set(dirs.found())
        """What the log folders held at the start, and no role has opened yet."""
        self._deleted: dict[bytes, None] = {}
        """Topics that were deleted here, by their ids, the latest: a message that was overtaken may still speak of them."""
        self._isolated: Collection[Partition] = ()
        self.isr_shrinks = 0
        self.isr_expands = 0
        """How often an ISR lost and got members while this broker led."""
        self._may_lose: set[str] = set()
        """Topics of which a replica may be elected that lacks records."""
        self._proposing = tasks.Group("replicas")

    def start(self) -> None:
        """Begin to propose ISRs."""
        asyncio.get_running_loop().add_reader(self._logs.entrants_fd, self._entrants)
        self._proposing.start(self._tick_for_ever())

    async def stop(self) -> None:
        """Propose nothing more."""
        asyncio.get_running_loop().remove_reader(self._logs.entrants_fd)
        await self._proposing.stop()

    @property
    def all_open(self) -> bool:
        """Whether all that the log folders held at the start has been opened."""
        return not self._unopened

    @property
    def unopened(self) -> list[Partition]:
        """What the log folders held at the start, and no role has opened yet."""
        return sorted(self._unopened)

    async def topic_id_of(self, partition: Partition) -> bytes | None:
        """Of which topic a log is that no role has opened; None: it is none of these any more, or its topic isn't known."""
        log_dir = self._dirs.of(partition)
        if log_dir is None or log_dir.offline or partition not in self._unopened:
            return None
        return await self._in_thread(topic_id_in, log_dir.holds(partition))

    async def remove(self, name: str, topic_id: bytes) -> bool:
        """Remove all replicas of a topic that is deleted; whether nothing is left."""
        partitions = [partition for partition in self._dirs.found() if partition[0] == name]
        async with self._changing:
            self._note_deleted(topic_id)
            errors = [await self._drop_one(partition, topic_id, deletes=True) for partition in partitions]
        return not any(errors)

    async def give_up(self, partition: Partition, topic_id: bytes) -> None:
        """Set a log aside that no role has opened, and whose topic has no replica here by the store."""
        async with self._changing:
            if await self.topic_id_of(partition) != topic_id:
                return
            try:
                await self._in_thread(self._set_aside, partition)
            except OSError as error:
                _log.error("topic=%s partition=%d belongs to no topic and can't be set aside: %s", *partition, error)
                return
            self._unopened.discard(partition)

    async def take(self, request: LeaderAndIsrRequest, present: Callable[[], int]) -> LeaderAndIsrAnswer:
        """Take the roles that the controller tells. present: the broker epoch, which may change while others are taken."""
        async with self._changing:
            broker_epoch = present()
            refusal = roles.refuse(self.roles, request.controller_epoch, request.broker_epoch, broker_epoch)
            if refusal:
                return LeaderAndIsrAnswer(self._node_id, broker_epoch, refusal, self.roles.controller_epoch)
            late = {role.partition for role in request.roles if role.topic_id in self._deleted}
            if late:  # It was overtaken by the deletion.
                request = replace(request, roles=tuple(role for role in request.roles if role.partition not in late))
            for role in request.roles:
                await self._forget_former(role)
            ids = {role.partition[0]: role.topic_id for role in request.roles}
            configs = dict(zip(ids, await asyncio.gather(*map(self._configs, ids, ids.values())), strict=True))
            for name, own in configs.items():
                self._note_configs(name, own)
            failed = await self._open(request.roles, configs)
            if present() != broker_epoch:  # The session has ended while logs were opened: nothing is led in the next one yet.
                return LeaderAndIsrAnswer(self._node_id, present(), ErrorCode.STALE_BROKER_EPOCH, self.roles.controller_epoch)
            answers = dict.fromkeys(late, RoleAnswer(ErrorCode.UNKNOWN_TOPIC_ID))
            changed: list[Replica] = []
            for role in request.roles:
                if role.partition in failed:
                    answers[role.partition] = RoleAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
                    continue
                replica = self._replica(role.partition)
                known = self._look(replica)
                is_whole = role.partition not in self._damaged
                before = None if replica.leader is None else replica.leader.state
                told = replicas.on_role(replica, role, broker_epoch, known, self._now_ms(), is_whole=is_whole)
                self._count_members(before, replica)
                answers[role.partition] = told
                if told.error == ErrorCode.NONE:
                    changed.append(replica)
            for partition in await self._in_thread(self._apply, changed):
                answers[partition] = RoleAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
            for replica in changed:
                is_refused = answers[replica.partition].error != ErrorCode.NONE
                if replica.leader is None or is_refused:
                    self._resign([replica.partition])
                elif replica.partition[0] in INTERNAL:
                    self._coordinators.elected(*replica.partition, replica.leader.state.leader_epoch)
            return LeaderAndIsrAnswer(self._node_id, broker_epoch, ErrorCode.NONE, self.roles.controller_epoch, answers)

    async def drop(self, request: StopReplica, present: Callable[[], int]) -> StopReplicaAnswer:
        """Stop replicas, and delete those that say so: they are the controller's no more. present: as of `take`."""
        async with self._changing:
            broker_epoch, answers = present(), dict[Partition, int]()
            error = roles.refuse(self.roles, request.controller_epoch, request.broker_epoch, broker_epoch)
            if not error:
                for one in request.replicas:
                    if one.delete:
                        self._note_deleted(one.topic_id)
                    answers[one.partition] = await self._drop_one(one.partition, one.topic_id, deletes=one.delete)
            return StopReplicaAnswer(self._node_id, broker_epoch, error, self.roles.controller_epoch, answers)

    def _note_deleted(self, topic_id: bytes) -> None:
        self._deleted[topic_id] = None
        if len(self._deleted) > DELETED_MAX:
            del self._deleted[next(iter(self._deleted))]

    async def _drop_one(self, partition: Partition, topic_id: bytes, *, deletes: bool) -> int:
        if self._topic_id(partition) not in (None, topic_id):
            return int(ErrorCode.NONE)  # Of an earlier topic of this name.
        self._resign([partition])
        error, is_gone = await self._in_thread(self._drop, partition, topic_id, deletes)
        if is_gone:
            self._unopened.discard(partition)
            self.roles.replicas.pop(partition, None)
            self._damaged.discard(partition)
            if deletes:
                self._dirs.drop(partition)
        return error

    async def fence_all(self) -> None:
        """This broker's registration is over: lead nothing until a controller speaks. Producers that wait are answered. At
        once, and again behind roles that are being taken."""
        led = await self._in_thread(self._logs.fence_all)
        self._resign(self.roles.replicas)
        async with self._changing:
            for replica in self.roles.replicas.values():
                replicas.fence(replica)
            led += await self._in_thread(self._logs.fence_all)
            self._resign(self.roles.replicas)
        if led:
            _log.warning(
                "this broker's registration is over: it leads %d partitions no more until a controller says so", len(led)
            )

    async def folder_failed(self, log_dir: LogDir) -> None:
        """The logs of a folder answer errors by themselves by now: lead and follow nothing there."""
        async with self._changing:
            held = [one for one in self.roles.replicas if self._dirs.of(one) is log_dir]
            for partition in held:
                replicas.fence(self.roles.replicas[partition])
            self._resign(held)
            await self._in_thread(self._let_go, held)
            self._unopened -= {partition for partition in self._unopened if self._dirs.of(partition) is log_dir}

    def _let_go(self, held: Iterable[Partition]) -> None:
        for partition in held:
            self._fetchers.remove(*partition)
            with contextlib.suppress(KafkaError):  # It isn't open.
                self._logs.fence(*partition)

    @property
    def isolated(self) -> int:
        """How many partitions this broker leads, and serves to no client."""
        return len(self._isolated)

    async def log_starts(self, partition: Partition, topic_id: bytes) -> dict[int, int]:
        """Where the logs of the others begin, as their fetches say, of a partition that is led here. Raises KafkaError, also
        where another topic has the name."""
        return await self._in_thread(self._log_starts, partition, topic_id)

    def _log_starts(self, partition: Partition, topic_id: bytes) -> dict[int, int]:
        if self._logs.topic_id(*partition) != topic_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition[0]}-{partition[1]} is another topic's by now")
        if self._logs.replica_state(*partition).role != "leader":
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition[0]}-{partition[1]} is led by another broker")
        return {mark.broker: mark.log_start for mark in self._logs.marks(*partition)}

    def led(self) -> list[Partition]:
        """The partitions that this broker leads."""
        return [partition for partition, replica in self.roles.replicas.items() if replica.role is Role.LEADER]

    async def configs_changed(self, *names: str) -> None:
        """Configs in force of these topics, or of all, are others. Raises StoreError.

        Their logs get new settings, also those whose leader isn't known here. Whether anybody else can be elected depends on
        one config."""
        async with self._changing:
            by_name: dict[str, list[int]] = {}
            for name, index in self.roles.replicas:
                if not names or name in names:
                    by_name.setdefault(name, []).append(index)
            for name, indexes in by_name.items():
                configs = await self._configs(name, self._topic_id((name, indexes[0])))
                settings = log_config(self._config, configs)
                for index in indexes:
                    with contextlib.suppress(KafkaError):  # It isn't open.
                        self._logs.reconfigure(name, index, settings)
                await asyncio.sleep(0)  # There may be thousands of topics.
                if self._note_configs(name, configs):
                    led = [self.roles.replicas[partition] for partition in self.led() if partition[0] == name]
                    await self._in_thread(self._apply, led)

    def _note_configs(self, name: str, configs: Mapping[str, str]) -> bool:
        """Whether that has changed."""
        before = name in self._may_lose
        may_lose: bool = topic_value(self._config, configs, MAY_LOSE)
        (self._may_lose.add if may_lose else self._may_lose.discard)(name)
        return before != may_lose

    # Roles

    async def _forget_former(self, role: PartitionRole) -> None:
        """A replica of an earlier topic of this name, whose deletion this broker has missed, is set aside."""
        partition = role.partition
        if self._topic_id(partition) in (None, role.topic_id):
            return
        self._resign([partition])
        try:
            await self._in_thread(self._set_aside, partition)
        except OSError as error:  # If the new log needs its place, that fails as well, for this partition alone.
            _log.error("topic=%s partition=%d was made again, and its former log can't be set aside: %s", *partition, error)
        else:
            _log.warning("topic=%s partition=%d was deleted and made again: its former log is set aside", *partition)
        self.roles.replicas.pop(partition, None)
        self._damaged.discard(partition)

    def _topic_id(self, partition: Partition) -> bytes | None:
        """Of which topic the replica is that is here: by its open log, which may have no role yet (*a session that ended while
        logs were opened, and the next topic of the name led with the records of this one*), or else by its role. None: neither
        is here."""
        try:
            return self._logs.topic_id(*partition)
        except KafkaError:  # It isn't open.
            held = self.roles.replicas.get(partition)
            return None if held is None or held.known is None else held.known.topic_id

    def _resign(self, partitions: Iterable[Partition]) -> None:
        """This broker coordinates nothing in these any more."""
        for name, index in partitions:
            if name in INTERNAL:
                self._coordinators.resigned(name, index)

    def _set_aside(self, partition: Partition) -> None:
        """In a thread."""
        self._fetchers.remove(*partition)
        with contextlib.suppress(KafkaError):  # It isn't open.
            self._logs.stop(*partition)
        log_dir = self._dirs.drop(partition)
        if log_dir is not None and log_dir.holds(partition).exists():
            set_aside(log_dir, partition)

    def _replica(self, partition: Partition) -> Replica:
        found = self.roles.replicas.get(partition)
        if found is None:
            found = self.roles.replicas[partition] = Replica(self._node_id, partition, 0)
        return found

    async def _in_thread(self, work: Callable[..., T], *given: object) -> T:
        """What it gives or raises. Whoever is cancelled waits for it all the same: nobody else may change roles meanwhile."""
        running = asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *given))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    async def _open(self, told: Iterable[PartitionRole], configs: Mapping[str, Mapping[str, str]]) -> set[Partition]:
        """Open the logs of these roles that aren't open yet, and make those that may be new. configs: the topics' own. Answers
        those that can't be opened."""
        open_already = set(self._logs.partitions())
        failed: set[Partition] = set()
        made: set[str] = set()
        for role in told:
            place = self._dirs.of(role.partition)
            if place is not None and place.offline:
                failed.add(role.partition)
                continue
            if role.partition in open_already:
                continue
            settings = log_config(self._config, configs[role.partition[0]])
            try:
                made.update(await self._in_thread(self._open_one, role, settings))
            except (OSError, KafkaError) as error:
                failed.add(role.partition)
                _log.error("topic=%s partition=%d can't be opened: %s", *role.partition, error)
            self._unopened.discard(role.partition)
            if role.partition in failed or role.partition in self._damaged:
                log_dir = self._dirs.of(role.partition)
                if log_dir is not None:
                    log_dir.unopened = True  # The next start has to look again: it gets no clean mark.
        for path in made:
            await self._in_thread(self._logs.write_overdue_checkpoints, path)
            await self._in_thread(sync_folder, Path(path))
        return failed

    def _open_one(self, role: PartitionRole, settings: dict[str, int]) -> list[str]:
        """Open a log; the path of its log folder if it was made. Where the state says that this broker has a seat, a log that
        isn't there or is damaged is not made. Raises OSError, KafkaError."""
        name, index = role.partition
        has_seat = role.state.partition_epoch > 0 and self._node_id in role.state.seats
        is_seat_believed = replicas.holds_seat(self._node_id, role.state)
        log_dir = self._dirs.choose(role.partition, role.topic_id, may_guess=not is_seat_believed)
        if log_dir is not None and log_dir.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log_dir.path} is offline: {log_dir.error}")
        if log_dir is not None and topic_id_in(log_dir.holds(role.partition)) == role.topic_id:
            try:
                self._logs.open_replica(
                    name, role.topic_id, index, str(log_dir.path), settings,
                    clean=log_dir.was_clean, new=False, power_cut=log_dir.power_cut,
                )  # fmt: skip
            except CorruptLogError as error:
                if role.partition not in self._damaged:
                    _log.error("topic=%s partition=%d is damaged: %s", name, index, error)
                self._damaged.add(role.partition)
            else:
                return []
        elif has_seat:
            if role.partition not in self._damaged:
                _log.error("topic=%s partition=%d should be here, and no log folder holds it", name, index)
            self._damaged.add(role.partition)
        if role.partition in self._damaged and has_seat:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "it has a seat by the partition's state, and its log isn't whole. Put it back, or repair it with `penstock log "
                "repair` while this broker is stopped; `penstock cluster elect "
                f"{quoted(f'{name}:{index}')} --unclean` gives up what no live replica holds",
            )
        self._damaged.discard(role.partition)
        place = self._dirs.place(role.partition)
        if place.holds(role.partition).exists():
            set_aside(place, role.partition)
        self._logs.open_replica(name, role.topic_id, index, str(place.path), settings, new=True)
        return [str(place.path)]

    def _look(self, replica: Replica) -> _Log:
        """What the data plane knows of a replica goes into its machine; answers its log."""
        try:
            state: ReplicaState = self._logs.replica_state(*replica.partition)
        except KafkaError:
            return _Log(self._logs, replica.partition)
        replica.high_watermark = state.high_watermark
        if state.role == "offline" and replica.role is Role.FOLLOWER:
            replica.role = Role.OFFLINE
        if state.role != "leader" and replica.leader is not None:
            replicas.fence(replica)  # A follower knew a newer epoch.
            self._resign([replica.partition])
        if replica.leader is not None:
            if state.leader_epoch == replica.leader.state.leader_epoch:
                replica.leader.epoch_start = state.epoch_start
            for seen in self._logs.marks(*replica.partition):
                mark = replica.leader.marks.get(seen.broker)
                if mark is None:
                    continue
                mark.broker_epoch, mark.end = seen.broker_epoch, seen.end
                mark.caught_up_ms, mark.fetched_ms, mark.end_at_fetch = seen.caught_up_ms, seen.fetched_ms, seen.end_at_fetch
                mark.removed_below = seen.removed_below
        return _Log(self._logs, replica.partition, state.log_end, state.last_epoch, state.removed_below)

    def _apply(self, changed: Iterable[Replica]) -> list[Partition]:
        """Set in the data plane what machines have decided; answers what it refused. In a thread."""
        failed = []
        for replica in changed:
            try:
                self._apply_one(replica)
            except (KafkaError, OSError, RuntimeError) as error:
                _log.error("topic=%s partition=%d can't take its role: %s", *replica.partition, error)
                failed.append(replica.partition)
        return failed

    def _apply_one(self, replica: Replica) -> None:
        known = replica.known
        assert known is not None
        name, index = replica.partition
        self._fetchers.remove(name, index)
        if replica.role is Role.LEADER:
            self._set_leader(replica)
        elif replica.role is Role.FOLLOWER:
            self._follow(replica, known)
        else:
            self._logs.fence(name, index)

    def _follow(self, replica: Replica, known: PartitionRole) -> None:
        name, index = replica.partition
        self._logs.set_follower(
            name, index, broker_epoch=replica.broker_epoch, leader=known.state.leader,
            leader_epoch=known.state.leader_epoch, partition_epoch=known.state.partition_epoch,
            unclean_epoch=known.state.unclean_epoch,
        )  # fmt: skip
        self._fetchers.add(name, known.topic_id, index, known.state.leader)

    def _set_leader(self, replica: Replica) -> None:
        leader = replica.leader
        assert leader is not None
        state, members = leader.state, leading.all_in_sync(leader)
        self._logs.set_leader(
            *replica.partition,
            broker_epoch=replica.broker_epoch,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=[
                Member(broker, broker in state.isr, broker in members, leader.broker_epochs.get(broker, NO_EPOCH))
                for broker in leader.marks
            ],
            enough=state.needed(leader.role.replicas),
            sole=self._is_sole(leader, members),
        )

    def _is_sole(self, leader: leading.Leader, members: Collection[int]) -> bool:
        """Whether nobody else can be elected, as long as this broker doesn't say that others are in sync."""
        if len(leader.role.replicas) == 1:
            return True
        is_alone = set(members) == {self._node_id} and not leader.state.elr
        return is_alone and leader.partition[0] not in self._may_lose

    def _drop(self, partition: Partition, topic_id: bytes, deletes: bool) -> tuple[int, bool]:
        """Its error code, and whether the replica isn't this broker's any more. In a thread."""
        self._fetchers.remove(*partition)
        try:
            if deletes and partition not in self._logs.partitions():  # No role has opened it since the start.
                return self._remove_unopened(partition, topic_id)
            if deletes:
                self._logs.delete(*partition)
            else:
                self._logs.stop(*partition, announced=True)
        except KafkaError:
            return int(ErrorCode.NONE), True  # It isn't here.
        except OSError as error:
            _log.error("topic=%s partition=%d can't be %s: %s", *partition, "deleted" if deletes else "stopped", error)
            return int(ErrorCode.KAFKA_STORAGE_ERROR), False
        return int(ErrorCode.NONE), True

    def _remove_unopened(self, partition: Partition, topic_id: bytes) -> tuple[int, bool]:
        """Remove a log that wasn't opened, if it is of that very topic. Raises OSError."""
        log_dir = self._dirs.of(partition)
        if log_dir is None:
            return int(ErrorCode.NONE), True
        if log_dir.offline:
            return int(ErrorCode.KAFKA_STORAGE_ERROR), False
        if topic_id_in(log_dir.holds(partition)) != topic_id:
            return int(ErrorCode.NONE), False
        remove_folder(give_way(log_dir, partition, DELETED))
        _log.info("topic=%s partition=%d was deleted while this broker was away: its log is removed", *partition)
        return int(ErrorCode.NONE), True

    # Proposals

    def _entrants(self) -> None:
        """On the loop: a replica has caught up."""
        due = self._logs.take_entrants()
        if due:
            self._proposing.start(self._propose(due))

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._look_at_lease()
                await self._propose(self.led(), scan=True)
            except Exception:  # noqa: BLE001 - without this look no ISR would shrink any more
                _log.exception("a look at what this broker leads has failed")

    async def _look_at_lease(self) -> None:
        """Once the lease is over, clients of partitions with a silent follower are refused: others lead them soon, if not by
        now. The others are served, as far as acks=all goes."""
        is_over = self._lease_is_over()
        if not is_over and not self._isolated:
            return
        before = self._isolated
        self._isolated = frozenset(await self._in_thread(self._logs.isolate, SILENCE_MS if is_over else None))
        self._isolate(self._isolated)
        if self._isolated and not before:
            _log.warning(
                "the lease is over and followers are silent: no client is served of %d partitions that this broker leads",
                len(self._isolated),
            )
        elif before and not self._isolated:
            _log.info("clients of all partitions that this broker leads are served again")

    async def _propose(self, partitions: Sequence[Partition], *, scan: bool = False) -> None:
        """Look at partitions that this broker leads, and send what is to be proposed."""
        asks: list[AlterPartition] = []
        async with self._changing:
            for partition in partitions:
                replica = self.roles.replicas.get(partition)
                if replica is None or replica.leader is None:
                    continue
                known = self._look(replica)
                if replica.leader is None:
                    continue
                decide = leading.on_time if scan else leading.propose
                ask = decide(
                    replica.leader, known.end, replica.high_watermark, self._config["replica.lag.time.max.ms"], self._now_ms()
                )
                if ask is not None:
                    asks.append(ask)
            if not asks:
                return
            failed = await self._in_thread(self._apply, [self.roles.replicas[ask.partition] for ask in asks])
            # Else its entrants don't count for the high watermark yet (R2): it is repeated.
            held = {*failed}
            withdrawn = [ask.partition for ask in asks if ask.partition not in held and not self._counts(ask.partition)]
            if withdrawn:
                await self._in_thread(self._apply, [self.roles.replicas[partition] for partition in withdrawn])
                held.update(withdrawn)
        for ask in asks:
            if ask.partition not in held:
                self._proposing.start(self._send(ask))

    def _counts(self, partition: Partition) -> bool:
        """Whether a proposal may be sent, now that its entrants count. They are looked at again: the high watermark went on
        until then."""
        replica = self.roles.replicas[partition]
        self._look(replica)
        if replica.leader is None or replica.leader.proposal is None:
            return False
        return leading.count(replica.leader, replica.high_watermark)

    async def _send(self, ask: AlterPartition) -> None:
        again: AlterPartition | None = ask
        while again is not None:
            try:
                answer = await self._alter(again)
            except OSError:
                return  # It is sent again.
            again = await self._altered(answer)

    def _count_members(self, before: LeaderAndIsr | None, replica: Replica) -> None:
        """The ISR may be another one than in the state before, of which this broker led the same epoch."""
        if before is None or replica.leader is None:
            return
        after = replica.leader.state
        if before.leader_epoch == after.leader_epoch:
            self.isr_shrinks += not set(before.isr) <= set(after.isr)
            self.isr_expands += not set(after.isr) <= set(before.isr)

    async def _altered(self, answer: AlterPartitionAnswer) -> AlterPartition | None:
        async with self._changing:
            replica = self.roles.replicas.get(answer.ask.partition)
            if replica is None or replica.leader is None:
                return None
            self._look(replica)
            before = None if replica.leader is None else replica.leader.state
            again = replicas.on_altered(replica, answer, self._now_ms())
            self._count_members(before, replica)
            if replica.leader is not None:
                await self._in_thread(self._apply, [replica])
            return again
