"""The only door between the control plane and the network threads, besides the partition functions.

The network threads serve the versions of Produce and Fetch in pyx/wire/apis by themselves.
Every other request, also Produce and Fetch of other versions and unknown requests,
comes out here and is answered, or its connection closed, by its token. Answers
leave each connection in the order of its requests, whatever the order in which they are given. A token whose connection is
gone, or that was answered before, is dropped silently (counted as `answers_late`).

Use: make, `listen`, `start`; watch `request_fd`; `take_requests`, `answer` each; `stop`. All functions may be called from any
thread. `stop` waits; `serve_flushing` and `flush_produce` (an fsync) and `append_produce` may wait for a disk.
"""

from array import array
from typing import NamedTuple

from penstock.pyx.log.logmanager import LogManager

BOUNDS_S: tuple[float, ...]
"""The upper bounds of the buckets of `RequestTimes`, which belong to them: eight for each power of two, up to 67 s."""

def bucket_for(ns: int) -> int:
    """The number of the bucket that counts a duration; len(BOUNDS_S): it is longer than every bound."""

class RequestTimes(NamedTuple):
    """How long the requests of an API took, in one phase, since `start`."""

    counts: array[int]  # of int64: one for each bound, and one for what is longer
    sum_ns: int

class SlowRequest(NamedTuple):
    """A request that took slow_request_ms or more, waiting aside. Produces that were appended together are one."""

    request: str
    client_id: str  # its first 64 bytes
    peer: str
    topic: str  # the first one; empty if it isn't known, or gone
    bytes: int
    queue_ns: int
    local_ns: int
    waiting_ns: int
    send_ns: int
    when_ms: int  # its end, by the wall clock

class ThreadFigures(NamedTuple):
    """A thread of the data plane."""

    name: str  # network-0, reader-0, worker-0 ...
    busy_ns: int  # not waiting for work, up to now
    beats: int  # of a network thread: it grows each second at least, unless the thread is stuck; of others: their jobs
    waiting: bool  # for work, just now
    connections: dict[str, int]  # of a network thread, by listener

class ConnectionFigures(NamedTuple):
    """A connection that is open."""

    peer: str
    listener: str
    client_id: str  # of its last request; the first 64 bytes; empty if it has said none
    software_name: str  # as `name_software` has them
    software_version: str
    age_ms: int
    idle_ms: int  # since it sent a whole request, or took some of an answer
    requests: int
    bytes_in: int
    bytes_out: int

class Request(NamedTuple):
    token: int  # names connection and request; opaque, below 2**64
    api_key: int
    api_version: int
    correlation_id: int
    frame: bytes  # the whole request with its header, without the size in front; at least 10 bytes
    peer: str  # "10.0.0.1:4711", "[::1]:4711"
    listener: str  # as given to `listen`
    handed_over: bool = False  # a produce that the control plane serves: a coordinator, an fsync, a move, or one before it

class Closed(NamedTuple):
    """A connection that was closed for what its peer did, didn't, or sent."""

    reason: str  # a counter's name: closed_memory_short and those that `counters` has after it
    peer: str
    listener: str
    held_bytes: int  # of memory, for a request that hadn't come whole
    detail: str  # of what this peer sent, in words; empty where the reason says all

class UnverifiedBatch(NamedTuple):
    """A partition of a produce request whose first batch would begin a transaction there."""

    place: int  # of the partition in the request, from 0, through all topics
    partition: tuple[str, int]
    producer_id: int
    producer_epoch: int

class Question(NamedTuple):
    """What a transaction coordinator has to be asked before a produce is appended."""

    transactional_id: str
    batches: list[UnverifiedBatch]
    guard: int
    """For `append_produce`, which takes no batch that begins a transaction if the producer's marker, or another role of this
    broker, came after the question."""

class ProduceAnswer:
    """The answer to a produce, and what it has to wait for."""

class DataPlane:
    """The network threads and their listening sockets.

    network_threads: epoll threads, 1 to 64 (num.network.threads). max_request_bytes: larger frames close their connection
    (socket.request.max.bytes). max_idle_ms: a connection that sent no whole request and took no answer for so long is closed,
    unless this broker owes it one (connections.max.idle.ms). queued_bytes_max: of three things each may have so many bytes:
    requests in the control queue, requests at workers, frames that have come in part (queued.max.request.bytes); beyond it
    connections aren't read; at least 1 MiB. fetch_max_bytes: of a whole answer (fetch.max.bytes).
    logs: what is produced to and fetched from. fetch_sessions: slots of fetch sessions (KIP-227,
    max.incremental.fetch.session.cache.slots); one that wasn't used for fetch_session_eviction_ms gives way to any other;
    fetch_sessions_bytes bounds what all of them hold. frame_ms: a request that has begun to come has to be whole within it
    (and a second more for each 64 KiB), else its connection is closed; take_ms: so is one whose peer takes nothing of its
    answers for so long. memory_patience_ms: while a connection waits for memory for a request, one that holds some and for
    so long brought less than would fill it in a minute is closed, the largest first. folders: how many log folders there
    are; two threads each read cold pages. slow_request_ms: requests that take longer, waiting aside, are noted
    (penstock.slow.request.ms); 0: none.

    Raises ValueError for a number out of range, OSError when descriptors are short.
    """

    def __init__(
        self,
        *,
        network_threads: int,
        node_id: int,
        max_request_bytes: int,
        max_idle_ms: int,
        queued_bytes_max: int,
        fetch_max_bytes: int,
        logs: LogManager,
        fetch_sessions: int = 1000,
        fetch_session_eviction_ms: int = 120_000,
        fetch_sessions_bytes: int = 64 << 20,
        frame_ms: int = 60_000,
        take_ms: int = 300_000,
        memory_patience_ms: int = 5_000,
        folders: int = 1,
        slow_request_ms: int = 500,
    ) -> None: ...
    @property
    def request_fd(self) -> int:
        """An eventfd, readable while `take_requests` has something. It belongs to the DataPlane: never read or close it."""

    def limit_connections(
        self,
        most: int = 2**31 - 1,
        rate: int = 0,
        most_of_address: int = 2**31 - 1,
        of_addresses: dict[str, int] | None = None,
    ) -> None:
        """Limits of the whole broker, at any time; connections that are there stay.

        most: connections at once (max.connections). rate: new ones a second, 0 = any (max.connection.creation.rate). Beyond
        either the next ones wait in the kernel's queue. most_of_address, of_addresses: at once from an address, and what
        holds for single ones instead (max.connections.per.ip and its overrides); more are closed at once.
        """

    def set_addresses(self, addresses: dict[str, list[tuple[int, str, int, str | None]]]) -> None:
        """Where the clients of each listener reach the brokers: id, host, port and rack of each. A client that asks for what
        another broker leads is told by this (KIP-951)."""

    def listen(
        self,
        host: str,
        port: int,
        listener: str,
        *,
        max_connections: int = 2**31 - 1,
        rate: int = 0,
        kept_open: bool = False,
        between_brokers: bool = False,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        congestion: str = "",
    ) -> int:
        """Bind (port 0: any free one) and answer the real port. Connections are refused until `start`. Raises OSError.

        max_connections, rate: the listener's own limits. kept_open: the whole broker's number doesn't stop it.
        between_brokers: a fetch that names a replica is that replica's; on other listeners it is a consumer's. Socket buffers
        are the system's for -1, and so is the congestion control for "".
        """

    def start(self) -> None:
        """Listen and start the threads. Raises OSError."""

    def take_requests(self) -> list[Request]:
        """At most 256 requests, oldest first; `request_fd` stays readable while there are more."""

    def answer(self, token: int, frame: bytes | bytearray | memoryview, begun_ns: int = 0, local_ns: int = 0) -> None:
        """Give the answer to a request: response header and body, without the size in front.

        begun_ns: when its service began, by `time.monotonic_ns`; local_ns: how much of the time since then was work; the rest
        counts as waiting. Without begun_ns, all since the request came counts as work.
        """

    def name_software(self, token: int, name: str, version: str) -> None:
        """Say which software the client of a request has: what `connections` shows of it, the first 40 bytes of each. The
        caller has checked that they are ASCII without control characters."""

    def close_connection(self, token: int, reason: str = "closed_failed", detail: str = "") -> None:
        """Close the connection of a request that can't be answered, once the requests before it are answered. The reason is
        one of `Closed`; closed_failed, whose cause the caller logs, is counted and not among the `closures`."""

    def is_connected(self, token: int) -> bool:
        """Whether the client of a request is connected."""

    def is_sending(self, token: int) -> bool:
        """Whether it is connected and hasn't shut its sending half down. A client that closes its connection can't be told from
        one that only sends nothing more, before something is sent to it."""

    def divert(self, api_key: int, on: bool) -> None:
        """Send the requests of Produce (0) or Fetch (1) to `take_requests` instead of serving them, or no longer."""

    def resume(self, request: Request, *, lose_answer: bool = False) -> None:
        """Let the network thread serve a diverted request after all, in its turn. Its version must be one that is served.

        lose_answer: a produce is carried out and its connection closed instead of answered.
        """

    def unverified(self, request: Request) -> Question:
        """The partitions in which a produce request begins a transaction (KIP-890).

        No partitions (and no id): no coordinator has to be asked. A malformed request has none; `append_produce` gives
        no answer.
        """

    def flushes(self, request: Request) -> frozenset[int]:
        """If a handed over produce names a partition that is synced before its answer (flush.messages): the log folders of
        all that it names, as numbers. Empty otherwise.
        """

    def held(self, request: Request) -> bool:
        """Whether a handed over produce names a partition that is held until its move is over (`LogManager.hold`)."""

    def serve_flushing(self, request: Request) -> bool:
        """Append a produce request, sync it and answer it, in the calling thread, without the GIL; where acks=all waits for
        other replicas, a network thread answers once they have it. Slow. Its frame is written to. False, and nothing was
        done: it begins a transaction, so its coordinator has to be asked first, it is held, or it is malformed, so that
        `append_produce` gives no answer.
        """

    def append_produce(self, request: Request, refused: dict[int, int], guard: int) -> ProduceAnswer | None:
        """Append a produce request; the answer for `answer_produce`, None: its connection is being closed. Its frame is
        written to. What is to be synced before the answer (flush.messages) isn't: `flush_produce` does it.

        refused: places of `unverified` -> the error code that the partition is answered with; all others are appended. guard:
        that of the question.
        Appends in the calling thread, without the GIL.
        """

    def flush_produce(self, request: Request) -> None:
        """Sync the partitions with flush.messages of a produce that `append_produce` appended, without the GIL. Slow. Raises
        OSError."""

    def answer_produce(self, request: Request, answer: ProduceAnswer, begun_ns: int = 0, local_ns: int = 0) -> None:
        """Send what `append_produce` gave, once the replicas that acks=all waits for have the records. Once; times as in
        `answer`."""

    def counters(self) -> dict[str, int]:
        """Sums over the threads since `start`, by name.

        Now: connections, queued_bytes, working_bytes, input_bytes, fetch_sessions, fetch_session_partitions,
        fetch_session_bytes. Ever:
        connections_accepted, connections_closed, closed_idle, closed_memory_short, closed_slow_request,
        closed_slow_reader, closed_address_limit, closed_tls, closed_http, closed_request_size, closed_malformed,
        closed_unsupported, closed_unacknowledged, closed_failed, closed_fault, accepts_delayed, accepts_without_descriptor,
        fetch_session_evictions, requests, requests_produce, requests_fetch, requests_control, produces_held,
        produces_held_ms, worked, answers_late, bytes_in, bytes_out, produce_batches, produce_bytes, produce_errors,
        fetch_bytes, fetch_errors, fetch_waits, fetch_sessions_made, fetch_partitions_asked (those that sessions remember
        aren't), cold_ranges, stalls, slow_requests_lost.
        """

    def request_times(self) -> dict[tuple[str, str], RequestTimes]:
        """By request and phase, of requests whose answers have been sent since `start`.

        Requests have Kafka's names: Produce, FetchConsumer, FetchFollower, Metadata ... The phases are total, queue (until
        its service begins), local (its service), waiting (a fetch for records, a handler for other clients or for a disk) and
        send (until the socket has taken the answer). A request is in none while its answer isn't sent, nor if its connection
        is closed before.
        """

    def requests_by_version(self) -> dict[tuple[str, int], int]:
        """The requests of `request_times` by name and version, those below 32."""

    def slow_requests(self) -> list[SlowRequest]:
        """Take the slow requests that were noted since the last call; for each network thread 256 have room. Those that had
        none are counted (slow_requests_lost in `counters`)."""

    def slow_counts(self) -> dict[str, int]:
        """Slow requests since `start`, by request, of those that `request_times` has; lost ones, too."""

    def threads(self) -> list[ThreadFigures]:
        """Network threads, readers and workers."""

    def connections(self, most: int = 10_000) -> list[ConnectionFigures]:
        """Connections that are open, `most` at most. One that opens or closes meanwhile may be missing."""

    def software(self) -> dict[tuple[str, str], int]:
        """Connections that are open by name and version of their clients' software; both empty: it isn't known."""

    def closures(self) -> list[Closed]:
        """Take what is known of connections that were closed for what their peers did or sent: the first 256 of them."""

    def stop(self) -> None:
        """Take nothing new, answer waiting fetches, give waiting control requests 2 s, close everything, join the threads.

        Blocks, so an event loop that still has answers to give calls it in another thread. Safe twice.
        """

    def abort(self) -> None:
        """As a kill ends a process: nothing more is answered, connections are reset, the threads are joined. Safe twice, and
        while they are paused. The caller has the logs closed without a flush.
        """

    def pause(self) -> None:
        """Hold the network threads; returns once each has ended its pass. What other threads have begun they end. Raises
        RuntimeError if they don't run.
        """

    def go_on(self) -> None:
        """Let them run again."""

    def shut(self, shut: bool) -> None:
        """Close all connections, and new ones at once, until it is called with False. Listeners stay. A network thread that is
        at a disk does so once it goes on; see `hang_up_held`. From any thread."""

    def hang_up_held(self) -> None:
        """After `shut`: end the streams of the connections of network threads that haven't closed them, as they are at a disk.
        From any thread."""
