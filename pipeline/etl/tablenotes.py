"""What the aggregate cluster notes for the nights: a topic of one partition, compacted, whose records the broker stamps.

The stamp of a record is the cluster's own clock, also where nobody has produced anything for days. A machine whose clock is
wrong would load nights that aren't over, and nothing in its table would say so.

A record with a table's place as its key says which table is there, and up to which run. A table that is gone (a disk that
isn't mounted), or exchanged for another one or an older copy, says nothing of that itself. Each load notes the run after its
commit, so that a note may be a run behind its table. The place of a table in a folder has the name of its host: on another
host, or under another path, a table has no note, and its first night begins where its topic does, or is refused.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass

from penstock.hints import quoted
from penstock.pipeline.etl.clusterview import ClusterView
from penstock.pipeline.etl.errors import Refused, refused_as
from penstock.pipeline.etl.storage import Storage

TOPIC = "penstock.tables"
CONFIGS = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
CLOCK = b"clock"  # the key of records that are only appended for their stamp


@dataclass(frozen=True)
class TableNote:
    """The last run that a table's load has noted, its night, and the table's id in Delta's log."""

    run: int
    night: str
    table_id: str


class TableNotes:
    """The notes of a cluster, whose topic the first record makes."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def clock_ms(self) -> int:
        """The cluster's clock, ms since 1970. Raises Refused where the topic doesn't show it, Unreachable."""
        shown = await self._cluster.append(TOPIC, CONFIGS, CLOCK, b"{}")
        if shown < 0:
            raise Refused(
                f"{self._cluster.name} doesn't stamp the records of `{TOPIC}`, so that nobody knows its clock\n"
                f"hint: `penstock configs set topic {quoted(TOPIC)} message.timestamp.type=LogAppendTime`"
            )
        return shown

    async def of(self, table: Storage) -> TableNote | None:
        """What is noted of a table, if anything. Raises EtlError."""
        text = await self._cluster.newest(TOPIC, _place(table))
        if text is None:
            return None
        with refused_as(f"what `{TOPIC}` notes of the table `{table}` can't be read", ValueError, KeyError, TypeError):
            document = json.loads(text)
            return TableNote(int(document["run"]), str(document["night"]), str(document["table_id"]))

    async def note(self, table: Storage, note: TableNote) -> None:
        """Note a table's last run. Raises Unreachable."""
        await self._cluster.append(TOPIC, CONFIGS, _place(table), json.dumps(asdict(note)).encode())


def _place(table: Storage) -> bytes:
    host = socket.gethostname() if table.uri.startswith("file:") else ""
    return f"{host} {table.uri}".strip().encode()
