"""Where a partition's copy stands: kept on the target, in the transaction that carries the batches.

The committed metadata says which source log the offset belongs to and which target log has the copy, so that a
topic that was deleted and created again, or cut back, is not mistaken for the one that was copied so far.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.pipeline.lanes import OperatorNeeded


@dataclass(frozen=True)
class Position:
    """The next source offset to copy, with the identities of the source's and the target's log.

    `topic_id` is the source topic's (all zeros where the source has none, empty before the source was ever
    reached), `target_id` the target topic's, `leader_epoch` that of the last source batch passed (-1: none yet);
    `records` and `rebuilt` count all records copied and batches rebuilt so far.
    """

    offset: int
    topic_id: bytes
    target_id: bytes
    leader_epoch: int = -1
    records: int = 0
    rebuilt: int = 0

    def metadata(self) -> str:
        """The text committed beside the offset; well under Kafka's 4096 bytes."""
        return json.dumps(
            {
                "topic_id": self.topic_id.hex(),
                "target_id": self.target_id.hex(),
                "leader_epoch": self.leader_epoch,
                "records": self.records,
                "rebuilt": self.rebuilt,
            }
        )

    @classmethod
    def read(cls, offset: int, metadata: str) -> Position:
        """A position as it was committed. Raises OperatorNeeded when somebody else wrote it."""
        try:
            fields = json.loads(metadata)
            return cls(
                offset,
                bytes.fromhex(fields["topic_id"]),
                bytes.fromhex(fields["target_id"]),
                int(fields["leader_epoch"]),
                int(fields["records"]),
                int(fields["rebuilt"]),
            )
        except (ValueError, KeyError, TypeError):
            raise OperatorNeeded(
                f"the committed position {offset} has metadata {metadata!r}, which no mirror wrote, so that nobody "
                "knows which log it belongs to; delete the group's offset and start with `--new-source` to copy the "
                "source from its start"
            ) from None

    def check_topic(self, topic_id: bytes) -> None:
        """Refuse a source topic that is another one by its id. Raises OperatorNeeded."""
        if topic_id != self.topic_id:
            raise OperatorNeeded(
                f"the source topic was created anew (its id is {topic_id.hex()}, {self.topic_id.hex()} was copied so "
                "far); start with `--new-source` once you know that nothing is missing"
            )

    def check_target(self, target_id: bytes) -> None:
        """Refuse a target topic that is another one by its id. Raises OperatorNeeded."""
        if target_id != self.target_id:
            raise OperatorNeeded(
                f"the target topic was created anew (its id is {target_id.hex()}, the copy went to "
                f"{self.target_id.hex()}), so the copy up to offset {self.offset} is gone; delete the group's offsets "
                "to copy the source from its start"
            )
