"""Messages as streams, each for one thread: the high-level consumer of Kafka's first clients.

Each stream is a member of the group with a consumer of its own, so each partition is in one stream only, over all processes
of the group. A member's id begins with `GROUP_HOST-MILLISECONDS-UUID-N`; the assignor `range` sorts by it. A stream joins and
takes part in rebalances while its thread asks it for messages: one whose thread works for longer than `max.poll.interval.ms`
on a message loses its partitions. Calls of the connector may come from any thread.
"""

from __future__ import annotations

import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Self

from penstock.config import ConfigError
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.consumer import CLOSE_TIMEOUT_S, Consumer, ConsumerRecord
from penstock.pipeline.clients.subscription import Revoked, TopicFilter, Topics

__all__ = ["ConsumerConnector", "MessageStream", "TopicFilter"]

SLICE_S = 0.2  # after so long without a message a stream's thread lets commits and the shutdown have their turn


class MessageStream:
    """Messages of the partitions that are this stream's at the time; a connector makes it. Iterate it in one thread.

    A loop over it ends when the connector is shut down, and when no message has come for `consumer.timeout.ms`, in which the
    group has to begin, too; another loop then goes on. A message counts as consumed as soon as it was given out:
    `commit_offsets` and, with `enable.auto.commit`, a shutdown commit it, also one that its thread still works on. Other
    automatic commits wait until the next one is asked for.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._timeout_ms: int = consumer.config["consumer.timeout.ms"]
        self._ended = False
        self._lock = threading.RLock()  # the thread that has it may use the consumer
        self._queue = threading.RLock()  # the stream's thread waits here while another thread waits for the consumer
        self._polling: int | None = None  # the thread that polls or closes now, and runs callbacks

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        begun = time.monotonic()
        while True:
            with self._queue:
                pass
            with self._lock:
                if self._ended:
                    raise StopIteration
                record = self._poll()
            if record is not None:
                return record
            if 0 <= self._timeout_ms <= (time.monotonic() - begun) * 1000:
                raise StopIteration

    def _poll(self) -> ConsumerRecord | None:
        self._polling = threading.get_ident()
        try:
            return self._consumer.poll_one(SLICE_S if self._timeout_ms < 0 else min(SLICE_S, self._timeout_ms / 1000))
        finally:
            self._polling = None

    @property
    def is_in_callback(self) -> bool:
        """Whether the calling thread runs a callback of this stream."""
        return self._polling == threading.get_ident()

    @property
    def client_id(self) -> str:
        """What the member's id begins with."""
        return str(self._consumer.config["client.id"])

    def commit(self) -> None:
        """Commit the offsets of all messages that were consumed. Raises KafkaError."""
        if self.is_in_callback:  # It has the lock; whoever waits for that is first in the queue.
            self._commit()
            return
        with self._queue, self._lock:
            self._commit()

    def _commit(self) -> None:
        if not self._ended and self._consumer.assignment():
            self._consumer.commit()

    def end(self, timeout_s: float) -> None:
        """End the stream and leave the group, after at most so long."""
        with self._queue, self._lock:
            self._polling = threading.get_ident()
            try:
                self._consumer.close(timeout_s)
            finally:
                self._polling = None
                self._ended = True


class ConsumerConnector:
    """Makes the streams of one process in a group. Properties are those of Consumer, of which `group.id` has to be given.

        with ConsumerConnector("host:9092", **{"group.id": "night", "auto.offset.reset": "earliest"}) as connector:
            streams = connector.create_message_streams({"events": 3})["events"]
            threads = [Thread(target=work, args=(stream,)) for stream in streams]  # work: `for message in stream: ...`
            ...
            connector.commit_offsets()

    Each partition is in one stream only, over all processes of the group. A stream joins the group, and takes part in
    rebalances, while its thread asks it for messages. Calls may come from any thread. Raises ConfigError for a property that is
    unknown or wrong.
    """

    def __init__(self, bootstrap: str = "", **given: object) -> None:
        config = properties.load(properties.CONSUMER, given)
        if config["group.id"] is None:
            raise ConfigError("message streams need `group.id`")
        self._bootstrap = bootstrap
        self._given = {name.replace("_", "."): value for name, value in given.items()}
        name = f"{socket.gethostname()}-{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:8]}"
        self.consumer_id = f"{config['group.id']}_{self._given.get('client.id') or name}"
        self._instance: str | None = config["group.instance.id"]
        self._streams: list[MessageStream] = []
        self._created = False
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def create_message_streams(
        self, topics: Mapping[str, int], *, on_assigned: Revoked | None = None, on_revoked: Revoked | None = None
    ) -> dict[str, list[MessageStream]]:
        """So many streams for each topic; once for a connector. The callbacks are those of `Consumer.subscribe`. Raises
        ConfigError for fewer streams than one, KafkaError INVALID_REQUEST the second time."""
        wanted: list[tuple[str, int, Topics]] = [(topic, n, [topic]) for topic, count in topics.items() for n in range(count)]
        for topic, count in topics.items():
            if count < 1:
                raise ConfigError(f"topic `{topic}` needs at least one stream, not {count}")
        made = self._make(wanted, on_assigned, on_revoked)
        of_topics: dict[str, list[MessageStream]] = {}
        for (topic, _, _), stream in zip(wanted, made, strict=True):
            of_topics.setdefault(topic, []).append(stream)
        return of_topics

    def create_message_streams_by_filter(
        self,
        streams: int = 1,
        *,
        allow: str | re.Pattern[str] | None = None,
        deny: str | re.Pattern[str] | None = None,
        on_assigned: Revoked | None = None,
        on_revoked: Revoked | None = None,
    ) -> list[MessageStream]:
        """So many streams, each of which may have partitions of any topic whose whole name matches `allow` and not `deny`.
        Topics that come later join, at the latest after `metadata.max.age.ms`. Raises ConfigError without a filter, for one
        that is no regular expression, or for fewer streams than one; KafkaError INVALID_REQUEST the second time."""
        if allow is None and deny is None:
            raise ConfigError("a filter of topics needs `allow` or `deny`")
        if streams < 1:
            raise ConfigError(f"a filter of topics needs at least one stream, not {streams}")
        chosen = TopicFilter(allow, deny)
        return self._make([("filter", n, chosen) for n in range(streams)], on_assigned, on_revoked)

    def _make(
        self, wanted: list[tuple[str, int, Topics]], on_assigned: Revoked | None, on_revoked: Revoked | None
    ) -> list[MessageStream]:
        if self._created or self._ended:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a connector makes its streams once")
        self._created = True
        try:
            for name, number, topics in wanted:
                given = {**self._given, "client.id": f"{self.consumer_id}-{number}"}
                if self._instance is not None:
                    given["group.instance.id"] = f"{self._instance}-{name}-{number}"
                consumer = Consumer(self._bootstrap, **given)
                self._streams.append(MessageStream(consumer))
                consumer.subscribe(topics, on_assigned=on_assigned, on_revoked=on_revoked)
        except BaseException:
            self.shutdown()
            raise
        return list(self._streams)

    def commit_offsets(self) -> None:
        """Commit the offsets of all messages that the streams have given out so far; in a callback those of its stream alone,
        since callbacks of several streams that wait for each other would never end. If one stream's commit fails, those of the
        others are made all the same, and the KafkaError is raised."""
        failures: list[KafkaError] = []
        for stream in [one for one in self._streams if one.is_in_callback] or self._streams:
            try:
                stream.commit()
            except KafkaError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def shutdown(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit (with `enable.auto.commit`), leave the group, end the loops over the streams. A broker that gives no answer is
        waited for at most so long. Shutting down twice is nothing. Raises RuntimeError in a callback. What a stream's callback
        raises is raised once all streams have ended."""
        if any(stream.is_in_callback for stream in self._streams):
            raise RuntimeError("a callback of a stream cannot shut its connector down")
        self._ended = True
        deadline = time.monotonic() + timeout_s
        failures: list[Exception] = []
        for stream in self._streams:
            try:
                stream.end(max(0.0, deadline - time.monotonic()))
            except Exception as error:  # noqa: BLE001  users' callbacks raise anything
                failures.append(error)
        if failures:
            raise failures[0]
