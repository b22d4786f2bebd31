"""The latest time that a broker knew, for the next start: `penstock-clock` in the first log folder.

    penstock-clock 1
    known_ms 1795824000000
    crc32c 1f2e3d4c

It is the time of `AgeClock`, which may be behind a wall clock that nobody believes yet. If there is no such file, an earlier
version or Apache Kafka had the folders: then the latest known time is when it last wrote checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from penstock import log
from penstock.durable import replace_file
from penstock.pyx.log.checkpoint import OURS, RECOVERY_POINTS
from penstock.pyx.record.crc import crc32c

NAME = "penstock-clock"
_CONTENT = re.compile(rb"(penstock-clock 1\nknown_ms (\d{1,18})\n)crc32c ([0-9a-f]{8})\n")

_log = log.get(__name__)


def read(folders: Sequence[Path]) -> int | None:
    """The latest time that is known, in milliseconds since 1970; None at a first start. The file is in the first folder."""
    try:
        content = (folders[0] / NAME).read_bytes()
    except OSError:
        return _checkpointed_ms(folders)
    found = _CONTENT.fullmatch(content)
    if found is None or crc32c(found[1]) != int(found[3], 16):
        _log.warning("%s is damaged: the time of the last checkpoints is taken instead", folders[0] / NAME)
        return _checkpointed_ms(folders)
    return int(found[2])


def write(folder: Path, known_ms: int) -> None:
    """Note the time. Raises OSError."""
    body = b"penstock-clock 1\nknown_ms %d\n" % known_ms
    replace_file(folder / NAME, body + b"crc32c %08x\n" % crc32c(body), 0o600)


def _checkpointed_ms(folders: Sequence[Path]) -> int | None:
    written_ms = []
    for path in (folder / name for folder in folders for name in (OURS, RECOVERY_POINTS)):
        try:
            written_ms.append(path.stat().st_mtime_ns // 1_000_000)
        except OSError:
            continue
    return max(written_ms, default=None)
