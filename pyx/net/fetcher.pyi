"""The fetcher threads: they fetch from the leaders, without the GIL, what this broker follows.

A partition belongs to the thread of its log folder, so that a disk that hangs holds up its own partitions alone. A thread has
one connection to each leader. The control plane dials it, shakes hands on it and gives it away (`connect`); a thread never
dials. It asks each partition's log with which offset and epochs to fetch, and gives it the records; the log decides whether
they still fit.

Use: make, `start`; `add` and `remove` as roles change; watch `news_fd`, `take_news`; `stop`. All functions may be called from
any thread. `remove`, and `add` of a partition that is followed already, wait while its thread writes into its log, and so for a
disk; `stop` waits for 10 s at most.
"""

from typing import NamedTuple

from penstock.pyx.log.logmanager import LogManager

class News(NamedTuple):
    """What a thread has to say.

    kind:
        wanted        the thread has its first partition of the leader, and no connection
        disconnected  its connection ended while it has partitions of the leader. `error` is NETWORK_EXCEPTION,
                      REQUEST_TIMED_OUT, or CORRUPT_MESSAGE for bytes that are no answer. The control plane dials, as after
                      `wanted`.
        rotten        records of the partition can't be believed (CORRUPT_MESSAGE); they are fetched again after 1 s, then 30 s
        refused       the leader's log lacks what this replica has below its high watermark
        begun_again   the log is copied from its leader's log start again, as it might keep what was deleted; it has a note
        error         the leader answered so, or the own log can't be written (KAFKA_STORAGE_ERROR). Of a partition once until
                      its error is another one; `topic` empty and `partition` -1: of the whole answer
    """

    kind: str
    leader: int
    topic: str
    partition: int
    error: int
    thread: int  # of `connect`

class Fetchers:
    """The fetcher threads of a broker.

    logs: where the replicas are. threads: how many; partitions of a log folder share one.
    wait_ms, min_bytes: how long a leader waits for how many bytes. partition_bytes, answer_bytes: what it gives at most, one
    batch at least. batch_bytes: records of a partition beyond that end the connection. answer_ms: the same for a leader that
    is silent for longer, waiting aside.

    Raises ValueError for a number that can't be, OSError if there are no descriptors.
    """

    def __init__(
        self,
        logs: LogManager,
        node_id: int,
        threads: int,
        *,
        wait_ms: int = 500,
        min_bytes: int = 1,
        partition_bytes: int = 1048576,
        answer_bytes: int = 10485760,
        batch_bytes: int = 104857600,
        answer_ms: int = 30_000,
    ) -> None: ...
    @property
    def news_fd(self) -> int:
        """An eventfd, readable when there are news."""

    @property
    def threads(self) -> int:
        """How many there are."""

    def start(self) -> None:
        """Start the threads. Raises RuntimeError the second time, or after `stop`."""

    def stop(self) -> list[str]:
        """End the threads and close their connections. Answers the names of those that hang on a disk for longer than 10 s."""

    def pause(self) -> None:
        """Hold the threads; returns once each has ended what it had begun. Called while they run, and before `stop`."""

    def go_on(self) -> None:
        """Let them run again."""

    def add(self, topic: str, topic_id: bytes, partition: int, leader: int) -> None:
        """Follow a leader, in place of the one that was followed before, if any.

        Raises KafkaError if this broker doesn't hold the partition, or its log isn't open; RuntimeError after `stop`.
        """

    def remove(self, topic: str, partition: int) -> None:
        """Follow nobody: once this returns nothing is appended or cut. No effect on a partition that isn't followed."""

    def connect(self, leader: int, thread: int, fd: int) -> None:
        """Give a thread a connected socket, whose descriptor it owns from now on, in place of the one that it has.

        Raises ValueError if there is no such thread; the descriptor stays the caller's then.
        """

    def follows(self, leader: int) -> bool:
        """Whether something is fetched from a leader, or is to be."""

    def disconnect(self, leader: int) -> None:
        """Close all threads' connections to a leader, without news."""

    def set_broker_epoch(self, epoch: int) -> None:
        """The epoch of this broker's registration. Partitions whose role was told to another one aren't fetched."""

    def take_news(self) -> list[News]:
        """What there is to say since the last call."""

    def counters(self) -> dict[str, int]:
        """Since the threads were made.

        fetches: requests sent. bytes: received. records: offsets by which logs grew. errors: answers, or partitions of them,
        that were errors or could not be used. unasked: partitions of answers that were not asked for, or not any more.
        partitions: followed now. lag: the most records that one of them lacks. news_lost: news beyond those that are kept.
        """
