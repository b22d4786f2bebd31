"""The table's ledger, read from Delta's log without a JVM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow.parquet

from penstock.pipeline.etl.changenotes import CHANGES_DOMAIN, ChangeNotes
from penstock.pipeline.etl.errors import refused_as
from penstock.pipeline.etl.ledger import DOMAIN_PREFIX, RUN_APP_ID, TOPIC_PROPERTY, NightCommit, Status
from penstock.pipeline.etl.storage import Storage

LOG = "_delta_log"
THREADS = False
"""Arrow's threads may hang or abort the process at its end, once they have read for it (apache/arrow#34314 and #50482)."""


def status(table: Storage) -> Status:
    """The table's nights and run number; an empty status when there is no table yet. Raises EtlError."""
    kinds = ValueError, KeyError, TypeError, AttributeError, pyarrow.ArrowException
    with refused_as(f"the log of the table `{table}` can't be read", *kinds):
        return _status(table)


def _status(table: Storage) -> Status:
    nights: dict[str, NightCommit] = {}
    run, schema, table_id, topic, notes = 0, "", "", "", ChangeNotes()
    for action in _ledger_actions(table):
        domain, txn, metadata = action.get("domainMetadata"), action.get("txn"), action.get("metaData")
        if domain is not None and domain["domain"].startswith(DOMAIN_PREFIX):
            nights.pop(domain["domain"], None)
            if not domain["removed"]:
                nights[domain["domain"]] = NightCommit.from_json(domain["configuration"])
        elif domain is not None and domain["domain"] == CHANGES_DOMAIN:
            notes = ChangeNotes.from_json(domain["configuration"])
        elif txn is not None and txn["appId"] == RUN_APP_ID:
            run = int(txn["version"])
        elif metadata is not None:
            schema, table_id = metadata["schemaString"], str(metadata.get("id", ""))
            topic = str(dict(metadata.get("configuration") or {}).get(TOPIC_PROPERTY, ""))
    # An owner's settings may have let Delta forget the transaction's number.
    run = max(run, notes.run, *(commit.run for commit in nights.values()), 0)
    return Status(sorted(nights.values(), key=lambda commit: commit.night), run, schema, table_id, topic, notes)


def committed(table: Storage) -> list[NightCommit]:
    """The committed nights in order of their dates; none when there is no table. Raises EtlError."""
    return status(table).nights


def _ledger_actions(table: Storage) -> Iterator[dict[str, Any]]:
    """The actions that make up the ledger, oldest first: those of the newest whole checkpoint, then each
    later commit's."""
    checkpoint, commits = newest_state(table.names(LOG))
    for name in checkpoint:
        with table.file(f"{LOG}/{name}") as file:
            yield from _checkpoint_actions(file)
    for name in commits:
        for line in table.read_commit(f"{LOG}/{name}").splitlines():
            # Most lines are files' statistics: only the few that matter are parsed.
            if line.startswith((b'{"domainMetadata"', b'{"txn"', b'{"metaData"')):
                yield json.loads(line)


def version(table: Storage) -> int:
    """The version that the table is at; -1 when there is none. Raises EtlError."""
    names = table.names(LOG)
    checkpoint, _ = _newest_checkpoint(names)
    return max([checkpoint, *(number for number, _ in _commits(names))])


def commits_after(table: Storage, version: int) -> list[tuple[int, str]]:
    """The commits that the log still has behind a version, in order, each with its file. Raises EtlError."""
    return [(number, name) for number, name in _commits(table.names(LOG)) if number > version]


def _commits(names: Iterable[str]) -> list[tuple[int, str]]:
    matches = (re.fullmatch(r"(\d{20})\.json", name) for name in names)
    return [(int(match[1]), match[0]) for match in matches if match is not None]


def newest_state(names: list[str]) -> tuple[list[str], list[str]]:
    """The files of the newest whole checkpoint, and those of the commits behind it, in order."""
    version, checkpoint = _newest_checkpoint(names)
    return checkpoint, [name for number, name in _commits(names) if number > version]


def _newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """The version and the files of the newest checkpoint whose parts are all there; (-1, []) when there is
    none."""
    found: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        match = re.fullmatch(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.parquet", name)
        if match is None:
            continue
        version = int(match[1])
        if match[3] is None:
            found[version] = [name]
        else:
            of_set = parts.setdefault((version, int(match[3])), [])
            of_set.append(name)
            if len(of_set) == int(match[3]):
                found[version] = of_set
    if not found:
        return -1, []
    newest = max(found)
    return newest, found[newest]


def _checkpoint_actions(data: BinaryIO) -> Iterator[dict[str, Any]]:
    with pyarrow.parquet.ParquetFile(data) as file:
        wanted = [name for name in ("domainMetadata", "txn", "metaData") if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=wanted, use_threads=THREADS):
            for row in batch.to_pylist():
                for name in wanted:
                    if row[name] is not None:
                        yield {name: row[name]}
