"""A cluster without chance, for histories that are told step by step: `ClusterWorld` with the words that they are told in.

Unless a history says otherwise: broker 0 leads, all replicas are in sync, the last broker is the controller.
"""

from __future__ import annotations

from sim.cluster_laws import Violation
from sim.cluster_log import Batch
from sim.cluster_world import ClusterWorld

from penstock.broker.cluster.leader import LONG_AGO
from penstock.broker.cluster.leaderandisr import LeaderAndIsr

P = ("topic", 0)
LAST = -1


class CalmWorld(ClusterWorld):
    """A cluster without chance."""

    def __init__(self, *, brokers: int = 3, min_isr: int = 2, head: int = LAST) -> None:
        head = head % brokers
        order = (head, *(number for number in range(brokers) if number != head))
        super().__init__(0, calm=True, brokers=brokers, min_isr=min_isr, order=order)
        self.wish(leader=0)
        assert self.state.leader == 0 and len(self.state.isr) == brokers, self.state
        assert self.brokers[head].controller is not None

    @property
    def state(self) -> LeaderAndIsr:
        """What the store has."""
        return self.laws.truths[P].state

    def log(self, broker: int) -> list[Batch]:
        """A replica's log."""
        return self.brokers[broker].logs[P].batches

    def die(self, broker: int) -> None:
        """Killed, and the session has expired."""
        self.kill(broker)
        self.end_session(broker)

    def end_session(self, broker: int) -> None:
        """The session has expired; by then the last fetch is too old for the leader to propose this broker."""
        lead = self.brokers[self.state.leader].roles.replicas[P].leader
        if lead is not None and broker != self.state.leader:
            lead.marks[broker].fetched_ms = LONG_AGO
        self.expire(broker)
        self.settle()

    def back(self, broker: int) -> None:
        """Started again."""
        self.start(broker)
        self.settle()

    def bounce(self, broker: int) -> None:
        """Killed and started."""
        self.kill(broker)
        self.back(broker)

    def lose_power(self, broker: int) -> None:
        """Everything in the log is lost; the session has expired, and the broker is back."""
        self.power_cut(broker, keep=0)
        self.end_session(broker)
        self.back(broker)

    def lag(self, member: int) -> None:
        """A member hasn't been caught up for longer than it may: the leader looks, and proposes an ISR without it."""
        lead = self.brokers[self.state.leader].roles.replicas[P].leader
        assert lead is not None
        lead.marks[member].caught_up_ms = lead.marks[member].fetched_ms = LONG_AGO
        self.advance(1)

    def keep_out(self, broker: int) -> None:
        """A replica that fetches no more, and has left the ISR."""
        self.hold("fetch", self.state.leader, broker)
        self.lag(broker)
        assert broker not in self.state.isr

    def make_again(self) -> None:
        """The topic is deleted, and its name is used again: by a topic that has had no leader."""
        before = self.topics.made
        self.topics.remake()
        for _ in range(20):
            if self.topics.made > before:
                return
            self.advance(200)
        raise AssertionError("the topic isn't made again")

    def check_leader(self, broker: int) -> None:
        """I12: who has everything leads."""
        if self.state.leader != broker:
            raise Violation(f"I12: {broker} should lead: {self.state}")

    def append(self, broker: int) -> None:
        """A record with acks=1."""
        assert self.produce(broker, acks_wanted=1)
