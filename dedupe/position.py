"""Where a dedupe worker stands in its input: committed in the transaction that carries its output.

The counters beside the offset survive any kill, and the audit compares them with the logs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from penstock.pipeline.lanes import OperatorNeeded


@dataclass(frozen=True)
class Position:
    """The next input offset, the ids of input and output topic (hexadecimal), and records read, written, dropped as
    duplicates, quarantined (in rotten batches) and without an id (passed on) since the stage began; `partitions` is how
    many both topics had then (0: not noted).

    read = written + dropped + quarantined; `without_id` of the written ones have none.
    """

    offset: int
    topic_id: str
    output_id: str
    read: int = 0
    written: int = 0
    dropped: int = 0
    quarantined: int = 0
    without_id: int = 0
    partitions: int = 0

    def metadata(self) -> str:
        """The text committed beside the offset."""
        fields = asdict(self)
        del fields["offset"]
        return json.dumps(fields)

    @classmethod
    def parse(cls, offset: int, metadata: str) -> Position:
        """A position as it was committed. Raises OperatorNeeded when somebody else wrote it."""
        try:
            position = cls(offset, **json.loads(metadata))
            if {type(value) for value in asdict(position).values()} != {int, str}:
                raise TypeError
            return position
        except (ValueError, TypeError):
            raise OperatorNeeded(
                f"the committed position {offset} has metadata {metadata!r}, which no dedupe worker wrote; "
                "delete the group's offset if the stage is to begin anew"
            ) from None
