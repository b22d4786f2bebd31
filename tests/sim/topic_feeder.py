"""A topic that is deleted and made again under its name: what the controller's feeder does about that, and clients and brokers.

The steps are those of `broker/replication/controllership.py` (a term looks at topics and at marks, has replicas stopped, and
removes nodes) and `leftovers.py` (a broker that was away removes what a note names). What they decide by is the store's, as
late as a session sees it; what they do may be lost, late, or cut short by a kill at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sim.zookeeper_model import Node, Session

from penstock.broker.cluster import controller, roles
from penstock.broker.cluster.controller import Controller, Outcome
from penstock.broker.cluster.registration import Incarnation, Registration
from penstock.broker.store.base import Check, Create, Delete, Operation, Set, paths

if TYPE_CHECKING:
    from sim.cluster_world import Broker, ClusterWorld

Brokers = tuple[dict[int, Registration], dict[int, Incarnation]]

TOPIC = "topic"
STOP_LOST_MS = 1_200  # a broker that hasn't answered for so long that it has deleted its replicas is noted
MADE_AGAIN_MS = (20, 200)  # how often a client looks whether the name is free


@dataclass
class Term:
    """What the feeder of one controller epoch knows of the topic."""

    machine: Controller
    has_begun: bool = False
    topic_id: bytes | None = None
    removed: set[bytes] = field(default_factory=set)  # since the last look at topics began
    is_deleting: bool = False
    looks_again: bool = False  # at the mark, once the deletion that is under way is over


class TopicFeeder:
    """Of one world: for all of its brokers."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.made = 0
        self.current = b""

    def next_id(self) -> bytes:
        """The id of the next topic of the name."""
        self.made += 1
        self.current = b"topic-id" + self.made.to_bytes(8, "big")
        return self.current

    # Clients

    def remake(self) -> None:
        """A client has the topic deleted, and makes it again once its name is free."""
        world, mark = self.world, paths.deleted_topic(TOPIC)
        node = world.store.nodes.get(paths.topic(TOPIC))
        if node is None or mark in world.store.nodes:
            return
        world.store.multi(world.setup, [Create(mark, node.data)])
        for one in world.partitions:
            world.laws.truths[one].is_doomed = True
        world.note("the topic", node.data[-2:], "is to be deleted")
        world.count("topic deleted")
        self._make_later()

    def _make_later(self) -> None:
        self.world.later(self.world.random.randint(*MADE_AGAIN_MS), self._make)

    def _make(self) -> None:
        world = self.world
        if paths.topic(TOPIC) in world.store.nodes or paths.deleted_topic(TOPIC) in world.store.nodes:
            self._make_later()
            return
        topic_id = self.next_id()
        world.store.multi(world.setup, [Create(paths.topic(TOPIC), topic_id)])
        world.add_topic(topic_id)
        world.note("the topic", topic_id[-2:], "is made")
        world.count("topic made again")
        if world.fault(0.3):
            world.later(world.random.randint(1, 600), self.remake)

    # Brokers

    def take_stop(self, broker: Broker, controller_epoch: int, broker_epoch: int, topic_id: bytes) -> bool:
        """StopReplica of all partitions of a topic, to delete them; whether that is done."""
        if roles.refuse(broker.roles, controller_epoch, broker_epoch, broker.member.epoch):
            return False
        self._drop(broker, topic_id)
        return True

    def _drop(self, broker: Broker, topic_id: bytes) -> None:
        world = self.world
        broker.deleted.add(topic_id)
        for one in world.partitions:
            log = broker.logs[one]
            if log.topic_id == topic_id and log.is_made:
                world.laws.on_delete(one, topic_id, broker.id)
                world.put_in_place(broker, one, log)
                log.delete()
                world.note("log of", broker.id, one[1], "deleted with", topic_id[-2:])

    def read_leftovers(self, broker: Broker) -> None:
        """What is noted of deletions that a broker has missed: it removes them, unless the store has such a topic."""

        def look(session: Session) -> tuple[list[str], Node | None]:
            return self.world.store.children(session, paths.DELETED), self.world.store.get(session, paths.topic(TOPIC))

        def read(found: tuple[list[str], Node | None]) -> None:
            names, node = found
            for topic_id in map(bytes.fromhex, names):
                if topic_id not in broker.deleted and (node is None or node.data != topic_id):
                    self.world.count("leftovers removed")
                    self._drop(broker, topic_id)

        self.world.read(broker, look, read)

    # The controller

    def begin(self, broker: Broker) -> None:
        """A term begins: read what there is, and give it to the machine."""
        world, term = self.world, broker.term
        assert term is not None

        def look(session: Session) -> tuple[Brokers, Node | None, Node | None, Node | None]:
            world.store.catch_up(session)
            mark = world.store.get(session, paths.deleted_topic(TOPIC))
            return world.brokers_of(session), self._topic(session), mark, world.store.get(session, paths.DELETED)

        def read(found: tuple[Brokers, Node | None, Node | None, Node | None]) -> None:
            brokers, topic, mark, deletions = found
            if broker.term is not term or deletions is None:
                return
            controller.on_deletions(term.machine, deletions.version, world.now_ms)
            term.topic_id = None if topic is None else topic.data
            is_doomed = topic is not None and mark is not None and mark.data == topic.data
            world.read(broker, self._states, partial(self._begin, broker, term, brokers, is_doomed))

        world.read(broker, look, read)

    def _begin(
        self, broker: Broker, term: Term, brokers: Brokers, is_doomed: bool, nodes: dict[tuple[str, int], Node | None]
    ) -> None:
        world, machine = self.world, term.machine
        if broker.term is not term:
            return
        registrations, incarnations = brokers
        images = {} if term.topic_id is None else world.images(term.topic_id, nodes)
        term.has_begun = True
        out = controller.on_deleting(machine, list(images) if is_doomed else [], world.now_ms)
        out += controller.on_image(machine, images, registrations, incarnations, world.now_ms)
        world.act(broker, out)
        world.read_brokers(broker)  # What watches have said until now found no machine.
        self.look(broker)

    def look(self, broker: Broker) -> None:
        """A watch has fired, or its connection was lost: look at the topics and at the marks of deletions."""
        term = broker.term
        if term is None or not term.has_begun:
            return
        self._look_at_topic(broker, term)
        if term.is_deleting:
            term.looks_again = True
        else:
            self._look_at_mark(broker, term)

    def _topic(self, session: Session) -> Node | None:
        self.world.store.children(session, paths.TOPICS)  # for its watch
        return self.world.store.get(session, paths.topic(TOPIC), watch=True)

    def _states(self, session: Session) -> dict[tuple[str, int], Node | None]:
        return {one: self.world.store.get(session, controller.state_path(one)) for one in self.world.partitions}

    def _look_at_topic(self, broker: Broker, term: Term) -> None:
        removed = term.removed = set()

        def seen(node: Node | None) -> None:
            if broker.term is not term:
                return
            known, new = term.topic_id, None if node is None or node.data in removed else node.data
            if new == known:
                return
            term.topic_id = new
            if known is not None:
                self.world.act(broker, controller.on_deleted(term.machine, self.world.partitions, self.world.now_ms))
            if new is not None:
                self.world.read(broker, self._states, partial(self._seen_states, broker, term, new, removed))

        self.world.read(broker, self._topic, seen)

    def _seen_states(
        self, broker: Broker, term: Term, topic_id: bytes, removed: set[bytes], nodes: dict[tuple[str, int], Node | None]
    ) -> None:
        if broker.term is term and topic_id not in removed:
            images = self.world.images(topic_id, nodes)
            self.world.act(broker, controller.on_partitions(term.machine, images, self.world.now_ms))

    def _look_at_mark(self, broker: Broker, term: Term) -> None:
        term.is_deleting, term.looks_again = True, False

        def look(session: Session) -> Node | None:
            self.world.store.children(session, paths.DELETE_TOPICS)  # for its watch
            return self.world.store.get(session, paths.deleted_topic(TOPIC))

        def seen(mark: Node | None) -> None:
            if broker.term is not term:
                return
            if mark is None:
                self._over(broker, term)
            else:
                self.world.read(broker, self._topic, partial(self._delete, broker, term, mark))

        self.world.read(broker, look, seen)

    def _over(self, broker: Broker, term: Term) -> None:
        term.is_deleting = False
        if term.looks_again:
            self._look_at_mark(broker, term)

    def _delete(self, broker: Broker, term: Term, mark: Node, topic: Node | None) -> None:
        """Delete the topic of a mark everywhere; if another one has the name by now, only the mark goes."""
        if broker.term is not term:
            return
        if topic is not None and topic.data != mark.data:
            self._write(broker, term, [Delete(paths.deleted_topic(TOPIC))], partial(self._over, broker, term))
            return
        gone = [] if topic is None else self.world.partitions
        self.world.act(broker, controller.on_deleting(term.machine, gone, self.world.now_ms))
        self._wait(broker, term, mark, topic)

    def _wait(self, broker: Broker, term: Term, mark: Node, topic: Node | None) -> None:
        """Until no write of a state is out."""
        if broker.term is not term:
            return
        if not controller.is_settled(term.machine, self.world.partitions):
            self.world.post("timer", broker.id, lambda: self._wait(broker, term, mark, topic), 20)
        elif topic is None:
            self._remove(broker, term, mark, None, set())
        else:
            self._stop_replicas(broker, term, mark, topic)

    def _stop_replicas(self, broker: Broker, term: Term, mark: Node, topic: Node) -> None:
        world, machine, topic_id = self.world, term.machine, topic.data
        away = {one.id for one in world.brokers}
        asked = [one for one in world.brokers if one.id in machine.registrations]
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over and broker.term is term:
                is_over = True
                self._remove(broker, term, mark, topic, away)

        def answered(one: Broker, is_done: bool) -> None:
            asked.remove(one)
            if is_done:
                away.discard(one.id)
            if not asked:
                end()

        for one in list(asked):
            epoch = machine.registrations[one.id].epoch

            def arrive(one: Broker = one, epoch: int = epoch) -> None:
                is_done = self.take_stop(one, machine.epoch, epoch, topic_id)
                world.send("answer", one.id, broker.id, lambda: answered(one, is_done))

            world.send("roles", broker.id, one.id, arrive)
        world.post("timer", broker.id, end, STOP_LOST_MS)

    def _remove(self, broker: Broker, term: Term, mark: Node, topic: Node | None, away: set[int]) -> None:
        """The nodes: states first, the topic's own and the mark at last, in one multi."""
        if topic is None:  # Refused if somebody has made it meanwhile.
            mark_alone: list[Operation] = [
                Create(paths.topic(TOPIC)),
                Delete(paths.topic(TOPIC)),
                Delete(paths.deleted_topic(TOPIC)),
            ]
            self._write(broker, term, mark_alone, partial(self._removed, broker, term, None, None))
            return
        note = f"{paths.DELETED}/{topic.data.hex()}"

        def found(there: tuple[list[str], bool, Node | None]) -> None:
            states, is_noted, deletions = there
            assert deletions is not None
            last: list[Operation] = [Set(paths.DELETED, b"", deletions.version)]
            last += [Create(note)] if away and not is_noted else []
            last += [Delete(paths.topic(TOPIC), topic.version), Delete(paths.deleted_topic(TOPIC))]
            count = deletions.version + 1
            end = partial(self._write, broker, term, last, partial(self._removed, broker, term, topic.data, count))
            if states and broker.term is term:
                self._write(broker, term, [Delete(path) for path in states], end)
            elif broker.term is term:
                end()

        def look(session: Session) -> tuple[list[str], bool, Node | None]:
            store = self.world.store
            states = [controller.state_path(one) for one in self.world.partitions]
            there = [path for path in states if store.get(session, path) is not None]
            return there, store.get(session, note) is not None, store.get(session, paths.DELETED)

        self.world.read(broker, look, found)

    def _removed(self, broker: Broker, term: Term, topic_id: bytes | None, deletions: int | None) -> None:
        self.world.count("topic removed")
        if topic_id is not None:
            term.removed.add(topic_id)
        term.topic_id = None
        self.world.act(broker, controller.on_deleted(term.machine, self.world.partitions, self.world.now_ms))
        if broker.term is term and deletions is not None:
            self.world.act(broker, controller.on_deletions(term.machine, deletions, self.world.now_ms))
        if broker.term is term:
            self._over(broker, term)

    def _write(self, broker: Broker, term: Term, operations: Sequence[Operation], then: Callable[[], None]) -> None:
        """One multi of the controller's. Refused: all is looked at again; unknown, or of another one: the term is over."""

        def done(outcome: Outcome, refused: str, zxid: int) -> None:
            if broker.term is not term:
                return
            if outcome is Outcome.DONE:
                then()
            elif outcome is Outcome.REFUSED and refused != paths.CONTROLLER_EPOCH:
                self._look_at_mark(broker, term)
            else:
                self._end(broker, term)

        self.world.write(broker, controller.guard(term.machine) + list(operations), done)

    def _end(self, broker: Broker, term: Term) -> None:
        """The term has failed: another election, another epoch."""
        broker.controller = broker.term = None
        self.world.count("term failed")
        own: list[Operation] = [Check(paths.CONTROLLER_EPOCH, term.machine.epoch_version), Delete(paths.CONTROLLER)]
        self.world.write(broker, own, lambda outcome, refused, zxid: self.world.look_at_controller(broker))
