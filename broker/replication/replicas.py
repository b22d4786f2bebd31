"""The replicas that this broker holds: what the controller tells becomes roles of logs, and work for the fetchers.

The machines of `broker/cluster/` decide (`replica`, `leader`, `roles`); between them and the data plane is
`replicalogs.py`.

A log is made only where this broker has no seat by the state, marked `unclean` or not. There is no seat before the first
leader; then a log is made, too, unless the log folders know of records. A seat whose log isn't there, or is damaged, is
answered KAFKA_STORAGE_ERROR for as long as it is so: the controller takes the seat away, but the last one stays, without a
leader, until its log is back (*an unmounted disk that makes a partition begin again, empty*), or an operator gives up what it
held (ElectLeaders, unclean): then the controller takes the last seat away, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from penstock import log
from penstock.broker.cluster import replica as replicas
from penstock.broker.cluster import roles
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
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
from penstock.broker.cluster.replica import Replica
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.topicconfig import log_config, topic_value
from penstock.broker.logs.logdirs import DELETED, METADATA, LogDir, LogDirs, give_way, set_aside, topic_id_in
from penstock.broker.replication.isolation import Isolation
from penstock.broker.replication.proposals import Proposals
from penstock.broker.replication.reading import MAY_LOSE
from penstock.broker.replication.replicalogs import Coordinators, FetcherThreads, ReplicaLogs
from penstock.broker.store.base import StoreError
from penstock.durable import sync_file, sync_folder
from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.logtable import CorruptLogError
from penstock.pyx.log.partitionfolder import remove_folder

DELETED_MAX = 100_000
"""So many topic ids of deleted topics are remembered."""

_log = log.get(__name__)


class Replicas:
    """All replicas of one broker. On the loop; what may wait for a disk is done in the executor's threads.

    configs: a topic's own configs, by its name and id. stored_id: the id of the topic that the store has under a name now, None
    if it has none; raises StoreError. controller, alter: as `Proposals` has them. lease_is_over: others may lead by now.
    isolate: told what is led here and served to no client.
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
        stored_id: Callable[[str], Awaitable[bytes | None]],
        controller: Callable[[], int],
        alter: Callable[[int, Sequence[AlterPartition]], Awaitable[Sequence[AlterPartitionAnswer]]],
        lease_is_over: Callable[[], bool],
        isolate: Callable[[Collection[Partition]], None],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._replica_logs = ReplicaLogs(node_id, logs, executor, fetchers, coordinators)
        self.roles = self._replica_logs.roles
        self.proposals = Proposals(self._replica_logs, logs, config, controller, alter, monotonic_ms)
        self.isolation = Isolation(self._replica_logs, logs, lease_is_over, isolate)
        self._node_id = node_id
        self._config = config
        self._dirs = dirs
        self._logs = logs
        self._fetchers = fetchers
        self._coordinators = coordinators
        self._configs = configs
        self._stored_id = stored_id
        self._now_ms = monotonic_ms
        self._damaged: set[Partition] = set()
        """Logs that aren't whole, until a role says that this broker has no seat for them."""
        self._unopened = set(dirs.found())
        """What the log folders held at the start, and no role has opened yet."""
        self._deleted: dict[bytes, None] = {}
        """Topics that were deleted here, by their ids, the latest: a message that was overtaken may still speak of them."""

    def start(self) -> None:
        """Begin to propose ISRs, and to look at the lease."""
        self.proposals.start()
        self.isolation.start()

    async def stop(self) -> None:
        """Propose nothing more."""
        await self.proposals.stop()
        await self.isolation.stop()

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
        if partition not in self._unopened:
            return None
        return (await self._replica_logs.in_thread(self._ids_in_folders, [partition])).get(partition)

    async def remove(self, name: str, topic_id: bytes) -> bool:
        """Remove all replicas of a topic that is deleted; whether nothing is left."""
        partitions = sorted(partition for partition in self._dirs.found() if partition[0] == name)
        async with self._replica_logs.changing:
            self._note_deleted(topic_id)
            errors = [await self._drop_one(partition, topic_id, deletes=True) for partition in partitions]
        return not any(errors)

    async def set_stray_aside(self, partition: Partition, topic_id: bytes) -> None:
        """Set a log aside that no role has opened, and whose topic has no replica here by the store."""
        async with self._replica_logs.changing:
            if await self.topic_id_of(partition) != topic_id:
                return
            try:
                await self._replica_logs.in_thread(self._set_aside, partition)
            except OSError as error:
                _log.error("topic=%s partition=%d belongs to no topic and can't be set aside: %s", *partition, error)
                return
            self._unopened.discard(partition)

    async def take(self, request: LeaderAndIsrRequest, present: Callable[[], int]) -> LeaderAndIsrAnswer:
        """Take the roles that the controller tells. present: the broker epoch, which may change while others are taken."""
        async with self._replica_logs.changing:
            broker_epoch = present()
            refusal = roles.refuse(self.roles, request.controller_epoch, request.broker_epoch, broker_epoch)
            if refusal:
                return LeaderAndIsrAnswer(self._node_id, broker_epoch, refusal, self.roles.controller_epoch)
            late = await self._find_late(request.roles)
            if late:
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
            answers = dict.fromkeys(sorted(late), RoleAnswer(ErrorCode.UNKNOWN_TOPIC_ID))
            changed: list[Replica] = []
            for role in request.roles:
                if role.partition in failed:
                    answers[role.partition] = RoleAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
                    continue
                replica = self._replica(role.partition)
                found = self._replica_logs.look(replica)
                is_whole = role.partition not in self._damaged
                before = None if replica.leader is None else replica.leader.state
                told = replicas.on_role(replica, role, broker_epoch, found, self._now_ms(), is_whole=is_whole)
                self.proposals.count_members(before, replica)
                answers[role.partition] = told
                if told.error == ErrorCode.NONE:
                    changed.append(replica)
                    _tell_unclean(replica, before, found.end)
            for partition in await self._carry_out(changed):
                answers[partition] = RoleAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
            return LeaderAndIsrAnswer(self._node_id, broker_epoch, ErrorCode.NONE, self.roles.controller_epoch, answers)

    async def take_stored(self, states: Mapping[Partition, LeaderAndIsr], present: Callable[[], int]) -> list[Partition]:
        """Take what the store has of partitions that are led here, as this broker has read it; those that it leads no more.
        present: as of `take`."""
        async with self._replica_logs.changing:
            changed = []
            for partition, state in states.items():
                replica = self.roles.replicas.get(partition)
                if replica is None or replica.leader is None:
                    continue
                found = self._replica_logs.look(replica)
                if replicas.on_stored(replica, state, present(), found, self._now_ms()):
                    changed.append(replica)
            await self._carry_out(changed)
            return [replica.partition for replica in changed]

    async def _carry_out(self, changed: Sequence[Replica]) -> Collection[Partition]:
        """Have data plane and coordinators carry out what replicas have taken; those that the data plane has refused."""
        refused = await self._replica_logs.apply(changed)
        for replica in changed:
            if replica.leader is None or replica.partition in refused:
                self._replica_logs.resign([replica.partition])
            else:
                state = replica.leader.state
                self._coordinators.elected(*replica.partition, state.leader_epoch, state.unclean_epoch)
        return refused

    async def drop(self, request: StopReplica, present: Callable[[], int]) -> StopReplicaAnswer:
        """Stop replicas, and delete those that say so: they are the controller's no more. present: as of `take`."""
        async with self._replica_logs.changing:
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
        self._replica_logs.resign([partition])
        error, is_gone = await self._replica_logs.in_thread(self._drop, partition, topic_id, deletes)
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
        led = await self._replica_logs.in_thread(self._logs.fence_all)
        self._replica_logs.resign(self.roles.replicas)
        async with self._replica_logs.changing:
            for replica in self.roles.replicas.values():
                replicas.fence(replica)
            led += await self._replica_logs.in_thread(self._logs.fence_all)
            self._replica_logs.resign(self.roles.replicas)
        if led:
            _log.warning(
                "this broker's registration is over: it leads %d partitions no more until a controller says so", len(led)
            )

    async def folder_failed(self, log_dir: LogDir) -> None:
        """The logs of a folder answer errors by themselves by now: lead and follow nothing there."""
        async with self._replica_logs.changing:
            held = [one for one in self.roles.replicas if self._dirs.of(one) is log_dir]
            for partition in held:
                replicas.fence(self.roles.replicas[partition])
            self._replica_logs.resign(held)
            await self._replica_logs.in_thread(self._let_go, held)
            self._unopened -= {partition for partition in self._unopened if self._dirs.of(partition) is log_dir}

    def _let_go(self, held: Iterable[Partition]) -> None:
        for partition in held:
            self._fetchers.remove(*partition)
            with contextlib.suppress(KafkaError):  # It isn't open.
                self._logs.fence(*partition)

    async def log_starts(self, partition: Partition, topic_id: bytes) -> dict[int, int]:
        """Where the logs of the others begin, as their fetches say, of a partition that is led here. Raises KafkaError, also
        where another topic has the name."""
        return await self._replica_logs.in_thread(self._log_starts, partition, topic_id)

    def _log_starts(self, partition: Partition, topic_id: bytes) -> dict[int, int]:
        if self._logs.topic_id(*partition) != topic_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition[0]}-{partition[1]} is another topic's by now")
        if self._logs.replica_state(*partition).role != "leader":
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition[0]}-{partition[1]} is led by another broker")
        return {mark.broker: mark.log_start for mark in self._logs.marks(*partition)}

    async def configs_changed(self, *names: str) -> None:
        """Configs in force of these topics, or of all, are others. Raises StoreError.

        Their logs get new settings, also those whose leader isn't known here. Whether anybody else can be elected depends on
        one config."""
        async with self._replica_logs.changing:
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
                    led = [self.roles.replicas[partition] for partition in self.roles.led if partition[0] == name]
                    await self._replica_logs.apply(led)

    def _note_configs(self, name: str, configs: Mapping[str, str]) -> bool:
        """Whether that has changed."""
        before = name in self._replica_logs.may_lose
        may_lose: bool = topic_value(self._config, configs, MAY_LOSE)
        (self._replica_logs.may_lose.add if may_lose else self._replica_logs.may_lose.discard)(name)
        return before != may_lose

    # Roles

    async def _find_late(self, told: Iterable[PartitionRole]) -> set[Partition]:
        """The roles of topics that aren't there: a deletion has overtaken the message, or its controller has read a server of
        the store that lags. Where the log here is another topic's, the store says which of the two is there now. If the store
        can't be asked, no log is set aside: the controller tells the role again."""
        late = {role.partition for role in told if role.topic_id in self._deleted}
        others = await self._find_others([role for role in told if role.partition not in late])
        stored: dict[str, bytes | None] = {}
        for role in others:
            name = role.partition[0]
            if name not in stored:
                try:
                    stored[name] = await self._stored_id(name)
                except StoreError as error:
                    stored[name] = None
                    _log.error("topic=%s: whether it was made again isn't known: %s", name, error)
            if stored[name] != role.topic_id:
                late.add(role.partition)
                _log.warning("topic=%s partition=%d: a role of a topic that isn't there isn't taken", *role.partition)
        return late

    async def _find_others(self, told: Iterable[PartitionRole]) -> list[PartitionRole]:
        """The roles in whose place the log of another topic is, open or not."""
        unopened = [role for role in told if role.partition in self._unopened and self._topic_id(role.partition) is None]
        partitions = [role.partition for role in unopened]
        ids = await self._replica_logs.in_thread(self._ids_in_folders, partitions) if partitions else {}
        return [
            role for role in told if (ids.get(role.partition) or self._topic_id(role.partition)) not in (None, role.topic_id)
        ]

    def _ids_in_folders(self, partitions: Iterable[Partition]) -> dict[Partition, bytes | None]:
        """Of which topics these are that no role has opened. In a thread."""
        found = {}
        for partition in partitions:
            log_dir = self._dirs.of(partition)
            if log_dir is not None and not log_dir.offline:
                found[partition] = topic_id_in(log_dir.holds(partition))
        return found

    async def _forget_former(self, role: PartitionRole) -> None:
        """A replica of an earlier topic of this name, whose deletion this broker has missed, is set aside."""
        partition = role.partition
        if self._topic_id(partition) in (None, role.topic_id):
            return
        self._replica_logs.resign([partition])
        try:
            await self._replica_logs.in_thread(self._set_aside, partition)
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
            return None if held is None or held.newest_role is None else held.newest_role.topic_id

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

    async def _open(self, told: Iterable[PartitionRole], configs: Mapping[str, Mapping[str, str]]) -> set[Partition]:
        """Open the logs of these roles that aren't open yet, and make those that may be new. configs: the topics' own. Answers
        those that can't be opened."""
        open_already = set(self._logs.partitions())
        failed: set[Partition] = set()
        made: list[Path] = []
        for role in told:
            place = self._dirs.of(role.partition)
            if place is not None and place.offline:
                failed.add(role.partition)
                continue
            if role.partition in open_already:
                continue
            settings = log_config(self._config, configs[role.partition[0]])
            try:
                made += await self._replica_logs.in_thread(self._open_one, role, settings)
            except (OSError, KafkaError) as error:
                failed.add(role.partition)
                _log.error("topic=%s partition=%d can't be opened: %s", *role.partition, error)
            self._unopened.discard(role.partition)
            if role.partition in failed or role.partition in self._damaged:
                log_dir = self._dirs.of(role.partition)
                if log_dir is not None:
                    log_dir.unopened = True  # The next start has to look again: it gets no clean mark.
        await self._replica_logs.in_thread(_sync_identities, made)
        for path in dict.fromkeys(folder.parent for folder in made):
            await self._replica_logs.in_thread(self._logs.write_overdue_checkpoints, str(path))
            await self._replica_logs.in_thread(sync_folder, path)
        return failed

    def _open_one(self, role: PartitionRole, settings: dict[str, int]) -> list[Path]:
        """Open a log; the partition's folder if it was made. Where the state says that this broker has a seat, a log that
        isn't there or is damaged is not made. Raises OSError, KafkaError."""
        name, index = role.partition
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
        has_seat = self._node_id in role.state.seats and not role.state.is_new
        if has_seat or (role.state.is_new and self._had_records(role)):
            if role.partition not in self._damaged:
                _log.error("topic=%s partition=%d should be here, and no log folder holds it", name, index)
            self._damaged.add(role.partition)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "it had records, or has a seat by the partition's state, and its log isn't whole. Put it back, or repair it "
                "with `penstock log repair` while this broker is stopped; `penstock cluster elect "
                f"{quoted(f'{name}:{index}')} --unclean` gives up what no live replica holds",
            )
        self._damaged.discard(role.partition)
        place = self._dirs.place(role.partition)
        if place.holds(role.partition).exists():
            set_aside(place, role.partition)
        self._logs.open_replica(name, role.topic_id, index, str(place.path), settings, new=True)
        return [place.holds(role.partition)]

    def _had_records(self, role: PartitionRole) -> bool:
        """Whether this broker knows that a partition has had records, whatever the controller says."""
        name, index = role.partition
        return any(self._logs.had_records(name, role.topic_id, index, str(log_dir.path)) for log_dir in self._dirs.online)

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


def _sync_identities(made: Iterable[Path]) -> None:
    """Have these partitions' folders say after a power cut whose they are: no role takes one that doesn't. Raises OSError."""
    for folder in made:
        sync_file(folder / METADATA)


def _tell_unclean(replica: Replica, before: LeaderAndIsr | None, log_end: int) -> None:
    """Log that this broker begins to lead with a log that may lack acknowledged records. before: the state that it led."""
    if replica.leader is None:
        return
    state = replica.leader.state
    if state.unclean_epoch == state.leader_epoch and (before is None or before.leader_epoch < state.leader_epoch):
        _log.warning(
            "topic=%s partition=%d: an unclean election in epoch %d: this broker leads with a log that ends at offset %d, and "
            "acknowledged records from there on are gone if there were any",
            *replica.partition, state.leader_epoch, log_end,
        )  # fmt: skip
