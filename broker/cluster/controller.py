"""The controller: the one writer of partition states, as a pure state machine.

Its feeder (a broker's control plane, or the simulator) calls `on_...` with what happened and carries out the actions in order.

    WriteStates ──► on_written       one multi; its first operation checks the controller epoch (R1, I11)
    ReadState ────► on_state_read    one state, after a refused or an unknown write
    ReadBrokers ──► on_brokers       all registrations, then all `/penstock/incarnations`; with watches that are set before
    ReadDeletions ► on_deletions     the version of `/penstock/deleted`, after a multi that checked an older one
    SendRoles ────► on_answer        LeaderAndIsr to one broker; never two at a time
    AnswerAlter                      the answer to a leader's AlterPartition
    Resign                           another controller has been elected

- **Election**: `stand` creates `/controller` and raises `/controller_epoch` in one multi. Every later multi checks that epoch's
  version. *KAFKA-6082: the queue of an old controller goes on writing.*
- **One write of a state is out at a time**; what a leader asks meanwhile waits. A write names the version that it replaces.
  BadVersion and ConnectionLoss mean: read the state again. Is it what we wrote, one version on, then the write was ours
  (KAFKA-2729: BadVersion from one's own write, for ever). The bytes bear the controller epoch, so no other controller's write
  can be mistaken for ours.
- **What a leader asks of many partitions together is written together.** One version that is refused refuses the whole multi:
  the other partitions are planned again, by what is known then, and proposals of theirs are judged as if they came only now.
- **A broker is told nothing before its registration has been dealt with**: first every state that names it as a replica takes
  the registration into account (`planning.py`), then this is noted in the store, then the broker gets all of its roles.
  `admitted` has the registrations of which this is true. Roles name members by these, and a proposal's entrants are compared
  with these. *HW over an incarnation that lost its tail; an old fetch that brings an emptied replica into the ISR
  (KAFKA-15221).*
- **Only what the store has confirmed is told.** For each broker there is one set of roles to be told, not a queue: newer state
  replaces older.
- **A state is of one topic**, by the id that it bears: what was planned for a topic isn't taken for the state of a later one of
  its name. Nor does a late write come to a later topic's state, whose versions begin again: each write checks the count of
  deletions, too. A state of another topic that is there all the same (an old tool removes nodes, and isn't counted) is
  written over, and its leader epoch is exceeded.
- **A partition without a state** has had no leader: its topic is new, has grown, or was left half made by an earlier controller
  or an old tool. Its live replicas are told that nobody leads, and make their logs. The first state is written once they have
  said so, or MAKING_MS after the first of them did; it names those alone. *A state that names a broker which was dead by
  then: no later controller can know that nobody has led.*
- **A leader that lives hears of its successor twice**: by its role, and by a write to its node `/penstock/moved/N` in the same
  multi as the state. It may be cut off from the controller alone: then nothing else tells it, and it would go on answering as
  leader and as coordinator (*a group's position that goes back*). It looks at the states of what it leads then.
- **A topic that is being deleted** has its partitions among `deleting`: no roles are told, nothing is written. Once
  no write of them is out (`is_settled`) the feeder stops the replicas, removes the nodes, and calls `on_deleted`.
- **A new controller begins with what is written.** It notes nothing of its own: a registration that isn't noted is dealt with
  (perhaps again), one that is noted isn't taken out once more, since it may have caught up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from penstock.broker.cluster import elections, planning
from penstock.broker.cluster.leaderandisr import NO_EPOCH, NO_LEADER, NOT_CREATED, LeaderAndIsr, state_json
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    Partition,
    PartitionRole,
)
from penstock.broker.cluster.planning import PartitionImage
from penstock.broker.cluster.registration import Incarnation, Registration, incarnation_json
from penstock.broker.store.base import Check, Create, Operation, Set, paths
from penstock.errors import ErrorCode

ANSWER_MS = 5_000  # a request without an answer for so long: the connection is closed, and all roles are sent again
AGAIN_MS = 200  # a broker that doesn't know its registration yet is asked again
MAKING_MS = 2_000  # so long a new partition waits for other live replicas once one has its log: their sessions may be over soon
STATES_AT_A_TIME = 99  # in one multi, whose bound is 400 operations: a new state may need two parents and a check of its topic


class Outcome(Enum):
    """How a multi ended."""

    DONE = "done"
    REFUSED = "refused"  # an operation's version or existence; none was applied
    UNKNOWN = "unknown"  # the connection was lost: applied, not applied, or applied later


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Action: one multi; feed `on_written` with its id."""

    id: int
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class ReadState:
    """Action: read a partition's state."""

    partition: Partition


@dataclass(frozen=True, slots=True)
class ReadBrokers:
    """Action: read the registrations, then the nodes of incarnations, in this order."""


@dataclass(frozen=True, slots=True)
class ReadDeletions:
    """Action: read how many topics were deleted."""


@dataclass(frozen=True, slots=True)
class SendRoles:
    """Action: tell a broker its roles."""

    request: LeaderAndIsrRequest


@dataclass(frozen=True, slots=True)
class AnswerAlter:
    """Action: answer a leader."""

    token: object
    answer: AlterPartitionAnswer


@dataclass(frozen=True, slots=True)
class Resign:
    """Action: this controller has been replaced; `newer_epoch`: one that a broker has heard of, else NO_EPOCH."""

    newer_epoch: int = NO_EPOCH


Action = WriteStates | ReadState | ReadBrokers | ReadDeletions | SendRoles | AnswerAlter | Resign
Out = list[Action]


@dataclass(slots=True)
class Planned:
    """A write that is out, of one partition."""

    state: LeaderAndIsr  # with the partition epoch that it replaces
    handled: dict[int, int]
    lost: dict[int, int]
    ask: tuple[object, AlterPartition] | None = None
    wanted_leader: int | None = None  # as it was when the state was planned


@dataclass(frozen=True, slots=True)
class Note:
    """A write that is out: a registration has been dealt with."""

    broker: int
    incarnation: Incarnation  # as it is then, under the version that is replaced


@dataclass(slots=True)
class Peer:
    """What a broker has to be told."""

    pending: set[Partition] = field(default_factory=set)
    out: LeaderAndIsrRequest | None = None
    out_since_ms: int = 0
    not_before_ms: int = 0


@dataclass(slots=True)
class Controller:
    """One controller epoch of one broker."""

    broker: int
    epoch: int
    epoch_version: int  # of the node `/controller_epoch`
    deletions: int = 0  # the version of the node `/penstock/deleted`
    partitions: dict[Partition, PartitionImage] = field(default_factory=dict)
    registrations: dict[int, Registration] = field(default_factory=dict)
    incarnations: dict[int, Incarnation] = field(default_factory=dict)
    admitted: dict[int, int] = field(default_factory=dict)
    peers: dict[int, Peer] = field(default_factory=dict)
    asks: dict[Partition, list[tuple[object, AlterPartition]]] = field(default_factory=dict)
    writing: dict[Partition, Planned] = field(default_factory=dict)
    writes: dict[int, tuple[Partition, ...] | Note] = field(default_factory=dict)
    reading: set[Partition] = field(default_factory=set)
    leaderless: dict[Partition, int] = field(default_factory=dict)  # since when, by this controller's clock
    making: dict[Partition, int] = field(default_factory=dict)  # without a state: since when a replica has its log
    overtaken: set[Partition] = field(default_factory=set)  # planned again once it is known how many topics were deleted
    deleting: set[Partition] = field(default_factory=set)
    news: set[Partition] = field(default_factory=set)  # whose state is another one; the feeder takes them, to tell all brokers
    last_id: int = 0
    has_resigned: bool = False


def stand(broker: int, epoch: int, epoch_version: int, timestamp_ms: int) -> list[Operation]:
    """Become the controller of the epoch after `epoch`, which `/controller_epoch` has under this version."""
    node = f'{{"version":1,"brokerid":{broker},"timestamp":"{timestamp_ms}"}}'.encode()
    return [
        Create(paths.CONTROLLER, node, ephemeral=True),
        Set(paths.CONTROLLER_EPOCH, str(epoch + 1).encode(), epoch_version),
    ]


def on_image(
    controller: Controller,
    partitions: Mapping[Partition, PartitionImage],
    registrations: Mapping[int, Registration],
    incarnations: Mapping[int, Incarnation],
    now_ms: int,
) -> Out:
    """Everything was read, after the election: deal with what the registrations cost and tell all brokers all roles."""
    controller.partitions.update(partitions)
    controller.news.update(partitions)
    for partition, image in partitions.items():
        _note_leader(controller, partition, image, now_ms)
    for broker, registration in registrations.items():
        if is_noted(registration, incarnations.get(broker)):
            controller.admitted[broker] = registration.epoch
            for image in partitions.values():
                image.handled[broker] = registration.epoch
    for broker in controller.admitted:
        _tell_all(controller, broker)
    return on_brokers(controller, registrations, incarnations, now_ms)


def is_noted(registration: Registration, incarnation: Incarnation | None) -> bool:
    """Whether a controller has dealt with this registration already."""
    return incarnation is not None and incarnation.noted == registration.epoch


def on_brokers(
    controller: Controller, registrations: Mapping[int, Registration], incarnations: Mapping[int, Incarnation], now_ms: int
) -> Out:
    """The registrations as they are now."""
    for broker, old in controller.registrations.items():
        new = registrations.get(broker)
        if new is None or new.epoch != old.epoch:
            controller.peers.pop(broker, None)
    controller.registrations = dict(registrations)
    controller.incarnations = dict(incarnations)
    return _step(controller, list(controller.partitions), now_ms)


def on_alter(controller: Controller, asks: Iterable[tuple[object, AlterPartition]], now_ms: int) -> Out:
    """A leader proposes ISRs, each of another partition; a token each, which its answer bears."""
    out: Out = []
    partitions = []
    for token, ask in asks:
        if ask.partition not in controller.partitions or ask.partition in controller.deleting:
            out.append(AnswerAlter(token, AlterPartitionAnswer(ask, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        else:
            controller.asks.setdefault(ask.partition, []).append((token, ask))
            partitions.append(ask.partition)
    return out + _step(controller, partitions, now_ms)


def on_partitions(controller: Controller, partitions: Mapping[Partition, PartitionImage], now_ms: int) -> Out:
    """Topics were created or have grown: partitions that the controller doesn't know yet, most of them without a state."""
    new = {partition: image for partition, image in partitions.items() if partition not in controller.partitions}
    controller.partitions.update(new)
    for partition in new:
        _tell(controller, partition)
    return _step(controller, list(new), now_ms)


def on_deletions(controller: Controller, count: int, now_ms: int) -> Out:
    """So many topics were deleted, by the version of `/penstock/deleted`: what is written from now on checks it."""
    controller.deletions = count
    overtaken, controller.overtaken = sorted(controller.overtaken), set()
    return _step(controller, overtaken, now_ms)


def on_deleting(controller: Controller, partitions: Iterable[Partition], now_ms: int) -> Out:
    """Their topic is to be deleted: no role, no election and no proposal of them any more."""
    out: Out = []
    for partition in partitions:
        controller.deleting.add(partition)
        for token, ask in controller.asks.pop(partition, []):
            out.append(AnswerAlter(token, AlterPartitionAnswer(ask, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        for peer in controller.peers.values():
            peer.pending.discard(partition)
    return out + _step(controller, [], now_ms)


def is_settled(controller: Controller, partitions: Iterable[Partition]) -> bool:
    """Whether no write of partitions that are being deleted is out."""
    return not any(partition in controller.writing for partition in partitions)


def on_deleted(controller: Controller, partitions: Iterable[Partition], now_ms: int) -> Out:
    """Their nodes are gone. A later topic of the name begins with partitions of its own."""
    out: Out = []
    for partition in partitions:
        for token, ask in controller.asks.pop(partition, []):
            out.append(AnswerAlter(token, AlterPartitionAnswer(ask, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        controller.deleting.discard(partition)
        controller.leaderless.pop(partition, None)
        controller.making.pop(partition, None)
        controller.overtaken.discard(partition)
        controller.partitions.pop(partition, None)
        for peer in controller.peers.values():
            peer.pending.discard(partition)
    return out + _step(controller, [], now_ms)


def on_wish(
    controller: Controller,
    partition: Partition,
    now_ms: int,
    *,
    leader: int | None = None,
    min_isr: int | None = None,
    may_lose: bool | None = None,
    unclean: bool = False,
) -> Out:
    """Somebody wants another leader for now, or another min.insync.replicas or unclean.leader.election.enable from now on.
    unclean: where nobody can lead, an operator gives up what only replicas have that are away or lost their logs.
    """
    image = controller.partitions.get(partition)
    if image is None:
        return []
    if leader is not None:
        image.wanted_leader = leader
    if min_isr is not None:
        image.wanted_min_isr = min_isr
    if may_lose is not None:
        image.may_lose = may_lose
    if unclean and image.state.leader == NO_LEADER:
        image.wants_unclean = True
    return _step(controller, [partition], now_ms)


def on_log_dir_failure(controller: Controller, broker: int, now_ms: int) -> Out:
    """A broker has lost a log folder: it is told all its roles again, and answers which of them it can't have."""
    _tell_all(controller, broker)
    return _step(controller, [], now_ms)


def refuse_election(controller: Controller, partition: Partition, *, unclean: bool) -> int:
    """Why an election that somebody asks for isn't held: of the preferred leader, or, `unclean`, of any live replica."""
    image = controller.partitions.get(partition)
    if image is None or partition in controller.deleting:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    preferred = image.replicas[0]
    if image.state.leader == preferred or (unclean and image.state.leader != NO_LEADER):
        return ErrorCode.ELECTION_NOT_NEEDED
    if unclean:
        live = any(broker in controller.registrations for broker in image.replicas)
        return ErrorCode.NONE if live else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    is_live = preferred in controller.registrations
    can_lead = is_live and preferred in image.state.isr and preferred not in image.unwritable
    return ErrorCode.NONE if can_lead else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def on_written(controller: Controller, write: int, outcome: Outcome, now_ms: int, refused: str = "") -> Out:
    """A multi is over. refused: the path of the operation that failed it."""
    about = controller.writes.pop(write)
    if outcome is Outcome.REFUSED and refused == paths.CONTROLLER_EPOCH:
        controller.has_resigned = True
        return [Resign()]
    if isinstance(about, Note):
        return _on_noted(controller, about, outcome, now_ms)
    for broker, known in controller.registrations.items():
        if refused == paths.moved(broker):  # Somebody has removed the node: its broker hears of moves by roles alone.
            controller.registrations[broker] = replace(known, watches_moves=False)
    out: Out = []
    if refused == paths.DELETED:
        for partition in about:
            _postpone(controller, partition, out)
        controller.overtaken.update(about)
        return [*out, ReadDeletions()]
    for partition in about:
        planned = controller.writing[partition]
        if outcome is Outcome.DONE:
            _confirm(controller, partition, planned.state.written(planned.state.partition_epoch + 1), now_ms, out)
        elif outcome is Outcome.UNKNOWN or refused == state_path(partition):
            controller.reading.add(partition)
            out.append(ReadState(partition))
        else:
            if refused == paths.topic(partition[0]) and _is_planned_for(controller, partition):
                controller.deleting.add(partition)
            _postpone(controller, partition, out)
    return out + _step(controller, list(about), now_ms)


def on_state_read(controller: Controller, partition: Partition, state: LeaderAndIsr | None, now_ms: int) -> Out:
    """A state was read again: it may be what we wrote. None: there is no such node, since its creation failed."""
    out: Out = []
    if partition not in controller.reading:
        return out
    controller.reading.discard(partition)
    if partition not in controller.partitions:  # Its topic went meanwhile, and its nodes.
        _forget(controller, partition, out)
        return out
    planned = controller.writing[partition]
    if state == planned.state.written(planned.state.partition_epoch + 1) and state.topic_id == planned.state.topic_id:
        _confirm(controller, partition, state, now_ms, out)
    else:
        # What was asked for may still come, over an older connection: with an entrant that has lost its log meanwhile, say. The
        # same state is written once more then: a version that has moved ends it.
        image = controller.partitions[partition]
        if state is None:
            _on_state_gone(image)
        elif state.is_of(image.topic_id):
            image.is_doubtful = state.partition_epoch == planned.state.partition_epoch
            image.state = state
        else:
            planning.replace_stranger(image, state)
        if image.state.is_created:  # Nobody has led before, so logs stay as they are.
            image.log_ends.clear()
        _note_leader(controller, partition, image, now_ms)
        controller.news.add(partition)
        _forget(controller, partition, out)
        _tell(controller, partition)
    return out + _step(controller, [partition], now_ms)


def on_answer(controller: Controller, request: LeaderAndIsrRequest, answer: LeaderAndIsrAnswer, now_ms: int) -> Out:
    """A broker has answered its roles. Those that it failed to take, for whatever reason, it is told again."""
    if answer.error == ErrorCode.STALE_CONTROLLER_EPOCH:
        controller.has_resigned = True
        return [Resign(answer.controller_epoch)]
    peer = controller.peers.get(request.broker)
    if peer is None or peer.out is not request:
        return []
    peer.out = None
    if answer.error != ErrorCode.NONE:
        peer.not_before_ms = now_ms + AGAIN_MS
        _tell_all(controller, request.broker)
    for role in request.roles:
        told = answer.answers.get(role.partition)
        image = controller.partitions.get(role.partition)
        if told is None or image is None or image.topic_id != role.topic_id or role.partition in controller.deleting:
            continue
        if told.error == ErrorCode.KAFKA_STORAGE_ERROR:
            image.lost[request.broker] = image.without_log[request.broker] = request.broker_epoch
            controller.news.add(role.partition)
        elif told.error == ErrorCode.FENCED_LEADER_EPOCH:
            # A broker that knows a newer state of this epoch has it from this controller, or from a store that went back.
            if not image.state.is_created:
                image.is_state_lost = True
                peer.pending.add(role.partition)
            if told.last_epoch > role.state.leader_epoch or image.told.partition_epoch == role.state.partition_epoch:
                image.least_epoch = max(image.least_epoch, told.last_epoch)
        elif told.error != ErrorCode.NONE:  # Nor does it say where its log ends.
            peer.not_before_ms = now_ms + AGAIN_MS
            peer.pending.add(role.partition)
        else:
            if image.without_log.pop(request.broker, None) is not None:
                controller.news.add(role.partition)
            if role.state.leader == NO_LEADER and image.state.leader == NO_LEADER:
                image.log_ends[request.broker] = (request.broker_epoch, (told.last_epoch, told.log_end))
                if not image.state.is_created:
                    controller.making.setdefault(role.partition, now_ms)
    return _step(controller, [role.partition for role in request.roles], now_ms)


def on_unanswered(controller: Controller, request: LeaderAndIsrRequest, now_ms: int) -> Out:
    """The connection to a broker is gone, or its answer was none: whatever became of the request, all roles are sent again."""
    peer = controller.peers.get(request.broker)
    if peer is not None and peer.out is request:
        peer.out, peer.not_before_ms = None, now_ms + AGAIN_MS
        _tell_all(controller, request.broker)
    return _step(controller, [], now_ms)


def on_time(controller: Controller, now_ms: int) -> Out:
    """Time has passed: send again what was never answered, and elect where others were waited for long enough."""
    overdue = []
    for partition, since_ms in controller.leaderless.items():
        image = controller.partitions[partition]
        if 0 <= image.patience_ms <= now_ms - since_ms and not image.is_overdue:
            image.is_overdue = True
            overdue.append(partition)
    for partition, since_ms in list(controller.making.items()):
        if now_ms - since_ms >= MAKING_MS:
            controller.partitions[partition].is_waiting = False
            del controller.making[partition]
            overdue.append(partition)
    for broker, peer in controller.peers.items():
        if peer.out is not None and now_ms - peer.out_since_ms >= ANSWER_MS:
            peer.out = None
            _tell_all(controller, broker)
    return _step(controller, overdue, now_ms)


def state_path(partition: Partition) -> str:
    """The node of a partition's state."""
    return paths.partition_state(*partition)


def _step(controller: Controller, partitions: list[Partition], now_ms: int) -> Out:
    """Plan these partitions, write what has to change, admit brokers that all states take into account, tell roles."""
    out: Out = []
    if controller.has_resigned:
        return out
    planned = [partition for partition in partitions if _plan(controller, partition, out)]
    for at in range(0, len(planned), STATES_AT_A_TIME):
        some = planned[at : at + STATES_AT_A_TIME]
        _write(controller, tuple(some), _operations(controller, some), out)
    for broker in controller.registrations:
        _admit(controller, broker, out)
    _send(controller, now_ms, out)
    return out


def _operations(controller: Controller, partitions: list[Partition]) -> list[Operation]:
    """The writes of planned states. New ones make their parents, but not the node of a topic that was deleted meanwhile."""
    operations: list[Operation] = [Check(paths.DELETED, controller.deletions), *find_moves(controller, partitions)]
    topics: set[str] = set()
    for partition in partitions:
        state = controller.writing[partition].state
        if state.partition_epoch >= 0:
            operations.append(Set(state_path(partition), state_json(state), state.partition_epoch))
            continue
        if partition[0] not in topics:
            topics.add(partition[0])
            operations.append(Check(paths.topic(partition[0])))
        operations.append(Create(state_path(partition), state_json(state), parents=True))
    return operations


def find_moves(controller: Controller, partitions: Iterable[Partition]) -> list[Operation]:
    """The writes by which leaders that live hear that others are elected in their place, by the planned states."""
    former = set()
    for partition in partitions:
        leader = controller.partitions[partition].state.leader
        if leader != controller.writing[partition].state.leader and leader in controller.registrations:
            former.add(leader)
    return [Set(paths.moved(one), b"") for one in sorted(former) if controller.registrations[one].watches_moves]


def _write(controller: Controller, about: tuple[Partition, ...] | Note, operations: list[Operation], out: Out) -> None:
    controller.last_id += 1
    controller.writes[controller.last_id] = about
    out.append(WriteStates(controller.last_id, (*guard(controller), *operations)))


def guard(controller: Controller) -> list[Operation]:
    """R1: a controller that was replaced has no effect on the store."""
    return [Check(paths.CONTROLLER_EPOCH, controller.epoch_version)]


def _plan(controller: Controller, partition: Partition, out: Out) -> bool:
    """Whether a write of this partition is due now."""
    if partition in controller.writing or partition in controller.deleting or partition not in controller.partitions:
        return False
    image = controller.partitions[partition]
    image.unwritable = frozenset(one for one, known in controller.registrations.items() if partition in known.unwritable)
    handled, state = planning.see(image, controller.registrations), planning.plan(image, controller.registrations)
    ask = None
    if state == image.state and not image.is_doubtful:
        image.handled, image.lost, image.wanted_leader = handled, {}, None
        state, ask = _next_ask(controller, partition, out)
        if ask is None:
            return False
    state = replace(state, controller_epoch=controller.epoch, topic_id=image.topic_id)
    controller.writing[partition] = Planned(state, handled, dict(image.lost), ask, image.wanted_leader)
    return True


def _next_ask(
    controller: Controller, partition: Partition, out: Out
) -> tuple[LeaderAndIsr, tuple[object, AlterPartition] | None]:
    """The state of the first proposal that can be accepted; the ones before it are answered."""
    image, asks = controller.partitions[partition], controller.asks.get(partition, [])
    while asks:
        token, ask = asks.pop(0)
        error = find_refusal(controller, image, ask)
        if error == ErrorCode.NONE:
            return elections.alter(image.state, ask.isr, image.replicas), (token, ask)
        out.append(AnswerAlter(token, AlterPartitionAnswer(ask, error)))
    return image.state, None


def find_refusal(controller: Controller, image: PartitionImage, ask: AlterPartition) -> int:
    """Whether a proposal may be written, by registrations and state as they are known now."""
    state = image.state
    if ask.topic_id != image.topic_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not is_admitted(controller, ask.broker, ask.broker_epoch):
        return ErrorCode.STALE_BROKER_EPOCH
    if state.leader != ask.broker or state.leader_epoch != ask.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if state.partition_epoch != ask.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if ask.broker not in ask.isr or not set(ask.isr) <= set(image.replicas):
        return ErrorCode.INVALID_REQUEST
    entrants = [broker for broker in ask.isr if broker not in state.isr]
    if not all(is_admitted(controller, broker, ask.entrants.get(broker, NO_EPOCH)) for broker in entrants):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def is_admitted(controller: Controller, broker: int, epoch: int) -> bool:
    """Whether a broker is live under this registration, and all states take it into account."""
    registration = controller.registrations.get(broker)
    return registration is not None and registration.epoch == epoch == controller.admitted.get(broker)


def _note_leader(controller: Controller, partition: Partition, image: PartitionImage, now_ms: int) -> None:
    """A partition's state is another one: since when it has no leader."""
    if image.state.leader != NO_LEADER or not image.state.is_created:
        controller.leaderless.pop(partition, None)
        image.is_overdue = image.wants_unclean = False
        image.without_log.clear()
    else:
        controller.leaderless.setdefault(partition, now_ms)


def _is_planned_for(controller: Controller, partition: Partition) -> bool:
    """Whether a write that is out is of the topic that the partition has now."""
    image = controller.partitions.get(partition)
    return image is not None and image.topic_id == controller.writing[partition].state.topic_id


def _confirm(controller: Controller, partition: Partition, state: LeaderAndIsr, now_ms: int, out: Out) -> None:
    """The store has the state that was planned."""
    is_there, image = _is_planned_for(controller, partition), controller.partitions.get(partition)
    planned = controller.writing.pop(partition)
    if image is None or not is_there:  # Its topic went meanwhile.
        if planned.ask is not None:
            out.append(AnswerAlter(planned.ask[0], AlterPartitionAnswer(planned.ask[1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        if image is not None:
            planning.replace_stranger(image, state)
        return
    controller.news.add(partition)
    controller.making.pop(partition, None)
    image.state, image.handled, image.is_doubtful = state, planned.handled, False
    for broker, epoch in planned.lost.items():
        if image.lost.get(broker) == epoch:
            del image.lost[broker]
    if state.leader != NO_LEADER:
        image.log_ends.clear()
    if image.wanted_leader == planned.wanted_leader:
        image.wanted_leader = None
    _note_leader(controller, partition, image, now_ms)
    _tell(controller, partition)
    if planned.ask is not None:
        token, ask = planned.ask
        out.append(AnswerAlter(token, AlterPartitionAnswer(ask, ErrorCode.NONE, state)))


def _on_state_gone(image: PartitionImage) -> None:
    """There is no node of a partition's state. If there had been one, somebody has removed it: what is known is written again,
    unless its topic went, too."""
    image.is_doubtful = image.state.is_created
    image.state = image.state.written(NOT_CREATED.partition_epoch)


def _forget(controller: Controller, partition: Partition, out: Out) -> None:
    """The planned state isn't there. INVALID_UPDATE_VERSION is no refusal, so it says nothing too much."""
    planned = controller.writing.pop(partition)
    if planned.ask is not None:
        token, ask = planned.ask
        out.append(AnswerAlter(token, AlterPartitionAnswer(ask, ErrorCode.INVALID_UPDATE_VERSION)))


def _postpone(controller: Controller, partition: Partition, out: Out) -> None:
    """The planned state was refused because of another one: a leader's proposal is judged again, unless its topic goes."""
    if partition in controller.deleting or not _is_planned_for(controller, partition):
        _forget(controller, partition, out)
        return
    planned = controller.writing.pop(partition)
    if planned.ask is not None:
        controller.asks.setdefault(partition, []).insert(0, planned.ask)


def _admit(controller: Controller, broker: int, out: Out) -> None:
    """Admit a registration once all states take it into account and the store has a note of that."""
    registration, incarnation = controller.registrations[broker], controller.incarnations.get(broker)
    if controller.admitted.get(broker) == registration.epoch or incarnation is None:
        return
    if any(
        broker in image.replicas and image.handled.get(broker) != registration.epoch and partition not in controller.deleting
        for partition, image in controller.partitions.items()
    ):
        return
    if is_noted(registration, incarnation):
        controller.admitted[broker] = registration.epoch
        _tell_all(controller, broker)
    elif not any(isinstance(about, Note) and about.broker == broker for about in controller.writes.values()):
        note = Note(broker, replace(incarnation, noted=registration.epoch))
        write = Set(paths.incarnation(broker), incarnation_json(note.incarnation), incarnation.version)
        _write(controller, note, [write], out)


def _on_noted(controller: Controller, note: Note, outcome: Outcome, now_ms: int) -> Out:
    newest = controller.incarnations.get(note.broker)
    if outcome is not Outcome.DONE or newest is None or newest.version != note.incarnation.version:
        return [ReadBrokers()]
    controller.incarnations[note.broker] = replace(note.incarnation, version=newest.version + 1)
    return _step(controller, [], now_ms)


def _tell(controller: Controller, partition: Partition) -> None:
    """All replicas have to hear of a partition's state, or that there is none."""
    if partition in controller.deleting:
        return
    for broker in controller.partitions[partition].replicas:
        controller.peers.setdefault(broker, Peer()).pending.add(partition)


def _tell_all(controller: Controller, broker: int) -> None:
    """A broker has to hear of all its partitions."""
    pending = controller.peers.setdefault(broker, Peer()).pending
    pending.update(
        partition
        for partition, image in controller.partitions.items()
        if broker in image.replicas and partition not in controller.deleting
    )


def _send(controller: Controller, now_ms: int, out: Out) -> None:
    for broker, registration in controller.registrations.items():
        peer = controller.peers.get(broker)
        if peer is None or not peer.pending or peer.out is not None or now_ms < peer.not_before_ms:
            continue
        if controller.admitted.get(broker) == registration.epoch:
            roles = tuple(_role(controller, partition) for partition in sorted(peer.pending))
            peer.out = LeaderAndIsrRequest(controller.broker, controller.epoch, broker, registration.epoch, roles)
            peer.out_since_ms = now_ms
            peer.pending.clear()
            out.append(SendRoles(peer.out))


def _role(controller: Controller, partition: Partition) -> PartitionRole:
    image = controller.partitions[partition]
    epochs = {broker: controller.admitted[broker] for broker in image.replicas if broker in controller.admitted}
    return PartitionRole(partition, image.topic_id, image.replicas, image.told, epochs)
