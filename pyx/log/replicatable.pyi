"""Roles of partitions, and their replicas, for the control plane: a part of `LogManager`.

The pure machines in `broker/cluster` decide; this carries out what runs on the network threads: marks, high watermark, fences.
A role is refused (False, and nothing has changed) if its leader epoch, partition epoch or broker epoch is older than one that
the log has heard of, or its leader epoch is older than the log's last batch. Each change wakes all who wait for the partition.

Unknown partitions raise KafkaError, as with `LogManager`. A partition's lock is taken without the GIL: these belong in an
executor thread, as a disk that hangs holds it, but for `take_entrants` and `check_leads`, which don't take it.
"""

from typing import NamedTuple

from penstock.pyx.log.logtable import LogTable, Recovered

class Replica(NamedTuple):
    """A replica other than the leader, as the leader is told of it."""

    broker: int
    in_isr: bool
    in_max: bool  # in the ISR, or its entry has been proposed and isn't refused for good
    named_epoch: int  # the broker epoch under which the controller has named it; -1: none

class ReplicaState(NamedTuple):
    role: str  # leader, follower, fenced (nobody leads, or this broker's registration is over), offline
    leader: int  # of a follower; else -1
    leader_epoch: int
    partition_epoch: int  # -1: no role was told yet
    leads_since: int  # the leader epoch from which on this broker has led without a pause; -1
    log_start: int
    high_watermark: int
    log_end: int
    last_epoch: int  # of the last batch; -1: the log is empty
    epoch_start: int  # the log end when the lead began
    removed_below: int  # compaction may have removed tombstones and markers below it

class MarkState(NamedTuple):
    """How far a replica has fetched. Times are of the monotonic clock; of what never was they are far below 0."""

    broker: int
    broker_epoch: int  # of its last fetch; -1
    end: int  # all below is in its log
    caught_up_ms: int  # when it last had all that there was
    fetched_ms: int
    end_at_fetch: int  # the leader's log end at its last fetch
    log_start: int  # where its log begins, as its last fetch said
    removed_below: int  # the leader's at its last fetch

class FetchOutcome(NamedTuple):
    error: int
    high_watermark: int
    log_end: int
    diverging: tuple[int, int] | None  # the largest epoch up to the follower's last, and where it ends
    begins: bool  # with OFFSET_OUT_OF_RANGE: its log may keep what was deleted, and begins again at the log start
    removed_below: int  # of the leader's log, if it is past the fetch's offset; else 0

class ReplicaTable(LogTable):
    """What the control plane tells of roles, and hears of replicas."""

    def open_replica(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        folder: str,
        config: dict[str, int],
        *,
        clean: bool = False,
        new: bool = True,
        power_cut: bool = False,
    ) -> Recovered:
        """As `lead`, but the log is fenced: nobody leads it. A log that is open already stays as it is. Slow."""

    def set_leader(
        self,
        topic: str,
        partition: int,
        *,
        broker_epoch: int,
        leader_epoch: int,
        partition_epoch: int,
        replicas: list[Replica],
        enough: int,
        sole: bool = False,
        now_ms: int = -1,
    ) -> bool:
        """Lead. With a new leader epoch the lead begins, and nothing is known of the replicas; with the same one the members
        are others. replicas: all but this broker's own; enough: how many members the ISR needs before the high watermark moves;
        sole: nobody else can be elected, so that it is led without a lease, too. now_ms: of the monotonic clock, which is read
        for -1. A replica that was fenced doesn't lead the same epoch again: the answer is True, as of all that is taken."""

    def set_follower(
        self,
        topic: str,
        partition: int,
        *,
        broker_epoch: int,
        leader: int,
        leader_epoch: int,
        partition_epoch: int,
        unclean_epoch: int,
    ) -> bool:
        """Follow a leader; -1: nobody leads, and the replica is fenced."""

    def set_lease(self, until_ms: int | None) -> None:
        """Until when, by CLOCK_BOOTTIME, this broker surely leads what it leads; None: for ever. From then on produces with
        acks=0 and 1 are refused, and those that were appended aren't answered for, unless the partition is `sole`. So are
        questions for the end of its log."""

    def isolate(self, silence_ms: int | None) -> list[tuple[str, int]]:
        """The lease is over: refuse all clients of partitions of which a member of MAX hasn't fetched for so long, until the
        next call or another role. None: the lease holds, refuse none. Answers the partitions; waits for their locks."""

    def unsettled(self, lag_ms: int, now_ms: int) -> list[tuple[str, int]]:
        """Led partitions of which a member of the ISR hasn't been caught up for so long, and those that are neither led nor
        followed here. Thousands cost a millisecond, as the ones at rest make no Python object; waits for the locks of
        those that are led."""

    def fence(self, topic: str, partition: int) -> None:
        """This broker's registration is over: what it led is led by nobody until the controller speaks."""

    def fence_all(self) -> list[tuple[str, int]]:
        """The same for all that is led; answers of which that was."""

    def replica_state(self, topic: str, partition: int) -> ReplicaState:
        """What a replica is and has, all of one moment."""

    def marks(self, topic: str, partition: int) -> list[MarkState]:
        """How far the others have fetched, while this broker leads."""

    def take_entrants(self) -> list[tuple[str, int]]:
        """Partitions in which, since the last call, a replica that isn't in sync fetched from the high watermark or beyond,
        and beyond where the lead began: it may enter the ISR."""

    def check_leads(self, topic: str, partition: int, latest: bool = False) -> None:
        """Raise KafkaError(NOT_LEADER_OR_FOLLOWER) if another broker leads, or this one is isolated. latest: also if the lease
        is over, and KafkaError(OFFSET_NOT_AVAILABLE) while the high watermark of a new leader may be lower than what the one
        before has shown (KIP-207)."""

    def committed(self, topic: str, partition: int, needed: int, leader_epoch: int, last: bool = False) -> int | None:
        """Whether all below `needed`, which this broker has appended in a leader epoch, is committed: 0; an error code: it
        can't be said any more; None: not yet, and `take_moved` has the partition once it may be. last: no longer is waited for,
        and that is an error, too."""

    def take_moved(self) -> list[tuple[str, int]]:
        """Partitions for which `committed` has answered None, and whose high watermark or role has changed since."""

    def replica_fetched(
        self,
        topic: str,
        partition: int,
        *,
        replica: int,
        broker_epoch: int,
        leader_epoch: int,
        offset: int,
        last_epoch: int,
        now_ms: int,
        log_start: int = 0,
        moves: bool = True,
    ) -> FetchOutcome:
        """What a network thread does when a replica fetches, but for the records. moves: at the first try of a fetch."""

    def note_removed(self, topic: str, partition: int, below: int) -> None:
        """What a compaction pass does before it removes tombstones or markers below that offset. Raises OSError. Slow."""
