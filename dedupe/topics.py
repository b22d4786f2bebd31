"""The topics of a partition's worker: which there are, and whether they are those that its position notes."""

from __future__ import annotations

from typing import NamedTuple

from penstock.dedupe.position import DedupePosition
from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.hints import quoted
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.failures import OperatorNeeded


def begin_again(moved: str) -> str:
    """How a stage begins once more, when its topics aren't those that it began with. `moved`: its topic of moved records."""
    return (
        "begin with an empty output topic, a new `penstock.dedupe.name`, an empty `penstock.dedupe.data` and without "
        f"`{moved}` (`penstock topics delete {quoted(moved)}`, if it is there); all topics of the stage begin again, and "
        "their nights need a new table"
    )


class Found(NamedTuple):
    """Input and output topic as the cluster has them: their ids (hexadecimal) and how many partitions both have; the id of
    the topic of moved records, empty as long as nobody has made it.
    """

    input_id: str
    output_id: str
    moved_id: str
    partitions: int


class DedupeTopics:
    """Of one input partition, `tp`; `moved` is the stage's topic of moved records."""

    def __init__(self, admin: Admin, tp: TopicPartition, output_topic: str, group: str, moved: str) -> None:
        self._admin = admin
        self._tp = tp
        self._input = tp[0]
        self._output = output_topic
        self._moved = moved
        self._group = group

    async def find(self, began_with: int) -> Found:
        """Input and output topic as they are. Raises OperatorNeeded when they differ in their partitions, or from how many
        there were when the stage began (0: it hasn't, or that isn't noted); KafkaError."""
        cluster = await self._admin.metadata([self._input, self._output, self._moved], refresh=True)
        for topic in (self._input, self._output):
            if topic not in cluster.topics:
                raise missing_topic(topic)
        read, written = cluster.topics[self._input], cluster.topics[self._output]
        self.check_count(began_with, len(read.partitions))
        if len(read.partitions) != len(written.partitions):
            raise OperatorNeeded(
                f"`{self._input}` has {len(read.partitions)} partitions and `{self._output}` "
                f"{len(written.partitions)}; they must have the same number, since an id must always meet the same worker: "
                f"grow the smaller one (`penstock topics grow`), unless the stage has begun: then {begin_again(self._moved)}"
            )
        moved = cluster.topics.get(self._moved)
        if moved is not None and len(moved.partitions) != len(read.partitions):
            raise OperatorNeeded(
                f"`{self._moved}` has {len(moved.partitions)} partitions and `{self._input}` {len(read.partitions)}; they "
                f"must have the same number, since an id must always meet the same worker: {begin_again(self._moved)}"
            )
        if moved is None and cluster.errors.get(self._moved, 0) not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise_for(cluster.errors[self._moved], f"topic `{self._moved}`")
        return Found(
            read.topic_id.hex(), written.topic_id.hex(), "" if moved is None else moved.topic_id.hex(), len(read.partitions)
        )

    def check(self, found: Found, position: DedupePosition) -> None:
        """See that what was found is what a position notes. Raises OperatorNeeded."""
        check_id("input topic", found.input_id, position.topic_id, self._moved)
        if found.output_id != position.output_id:
            raise OperatorNeeded(
                f"the output topic was recreated (its id is {found.output_id}, {position.output_id} was "
                f"written so far), so what was written is gone; to dedupe the partition's input again stop the stage, "
                f"{hints.to_set_aside(self._tp)}, {hints.to_delete(self._group, self._tp)}, and start it"
            )
        if position.moved_id not in ("", found.moved_id):
            raise OperatorNeeded(
                f"`{self._moved}` was {'recreated' if found.moved_id else 'deleted'}, so what was moved and not read "
                f"yet is gone; {hints.to_move(self._tp)} says where to go on, once you know what is missing"
            )
        self.check_count(position.partitions, found.partitions)

    def check_count(self, began_with: int, partitions: int) -> None:
        """See that the topics have as many partitions as when the stage began (0: not noted). Raises OperatorNeeded."""
        if began_with not in (0, partitions):
            raise OperatorNeeded(
                f"`{self._input}` had {began_with} partitions when the stage began and has {partitions} now, so that ids meet "
                f"other workers than before; {begin_again(self._moved)}"
            )


def check_id(name: str, topic_id: str, noted: str, moved: str) -> None:
    """See that a topic that is read, called `name`, is the one that its position notes. Raises OperatorNeeded. `moved`: the
    stage's topic of moved records."""
    if topic_id != noted:
        raise OperatorNeeded(f"the {name} was recreated (its id is {topic_id}, {noted} was read so far); {begin_again(moved)}")


def missing_topic(topic: str) -> KafkaError:
    """The error of a topic that is not there."""
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic `{topic}`")
