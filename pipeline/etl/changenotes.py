"""What others have changed in the table, as the newest of our commits notes it, with the run number.

It is one `domainMetadata` action beside the nights' own. Delta keeps the newest one in every checkpoint, whatever an owner has
set for how long it keeps log files or transaction numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.pipeline.etl.errors import EtlError, words_of

CHANGES_DOMAIN = "penstock.etl.changes"
FORMAT = 1

Place = tuple[str, str, int]
"""Where a row belongs: its night, topic and partition."""

STATEMENTS = frozenset({"DELETE", "UPDATE", "MERGE", "TRUNCATE"})
"""Operations, by Delta's names, that say which rows they mean. Others (RESTORE, an overwritten table) take rows along."""


@dataclass(frozen=True)
class Change:
    """A commit of somebody else that changed the table's rows.

    `rows` are those that it took away, by night, topic and partition, less those that it added; a night "" stands for rows that
    are in no night's ranges. `untold` are likewise those of files that are gone by now, so that nobody can tell which rows they
    were; None where not even their number is known. `updated` rows were written again. `run` is that of the last night before
    it, `commits` how many commits were added up.
    """

    version: int
    time_ms: int
    operation: str
    run: int
    rows: Mapping[Place, int]
    untold: int | None = 0
    updated: int = 0
    commits: int = 1

    @property
    def removed(self) -> int:
        """Rows that it took away."""
        return sum(count for count in self.rows.values() if count > 0) + max(0, self.untold or 0)

    @property
    def added(self) -> int:
        """Rows that it added."""
        return -sum(count for count in self.rows.values() if count < 0) - min(0, self.untold or 0)

    @property
    def is_statement(self) -> bool:
        """Whether it says which rows it means."""
        return self.operation in STATEMENTS

    def document(self) -> dict[str, Any]:
        """The change as it stands in the notes."""
        rows: dict[str, dict[str, list[list[int]]]] = {}
        for (night, topic, partition), count in sorted(self.rows.items()):
            rows.setdefault(night, {}).setdefault(topic, []).append([partition, count])
        return {
            "version": self.version,
            "time_ms": self.time_ms,
            "operation": self.operation,
            "run": self.run,
            "rows": rows,
            "untold": self.untold,
            "updated": self.updated,
            "commits": self.commits,
        }

    @classmethod
    def from_document(cls, found: Mapping[str, Any]) -> Change:
        """Read what `document` gave. Raises ValueError, KeyError, TypeError or AttributeError for what is not that."""
        rows = {
            (str(night), str(topic), int(partition)): int(count)
            for night, topics in found["rows"].items()
            for topic, counts in topics.items()
            for partition, count in counts
        }
        untold = None if found["untold"] is None else int(found["untold"])
        version, time_ms, run, updated, commits = (
            int(found[name]) for name in ("version", "time_ms", "run", "updated", "commits")
        )
        return cls(version, time_ms, str(found["operation"]), run, rows, untold, updated, commits)


@dataclass(frozen=True)
class ChangeNotes:
    """What is noted: the last run's number, and the changes of others in its commits up to version `read_to`. `unread` are the
    versions from and up to which Delta had removed commits before they were read."""

    run: int = 0
    read_to: int = -1
    changes: tuple[Change, ...] = field(default=())
    unread: tuple[int, int] | None = None

    def to_json(self) -> str:
        """The text that stands in the commit."""
        changes = [change.document() for change in self.changes]
        document = {"format": FORMAT, "run": self.run, "read_to": self.read_to, "changes": changes}
        if self.unread is not None:
            document["unread"] = list(self.unread)
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ChangeNotes:
        """Read what `to_json` wrote. Raises EtlError when it is not that."""
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise EtlError(
                    f"the notes about changes of the table have format {document['format']}, this version reads {FORMAT}: "
                    "another one wrote them"
                )
            changes = tuple(map(Change.from_document, document["changes"]))
            unread = document.get("unread")
            gone = None if unread is None else (int(unread[0]), int(unread[1]))
            return cls(int(document["run"]), int(document["read_to"]), changes, gone)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise EtlError(f"the notes about changes of the table can't be read ({words_of(error)}): {text[:200]}") from None
