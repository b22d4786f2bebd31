"""What a log folder says of its partitions beside their logs: where each begins and ends, recovery point, how far each was
compacted.

The truth is `penstock-checkpoints`, one file a log folder, text:

    penstock-checkpoints 3
    kafka cleaner-offset-checkpoint - -
    kafka log-start-offset-checkpoint 9b9d6ee1 -
    kafka recovery-point-offset-checkpoint 5f6a2d10 0c7dd3a2
    kafka replication-offset-checkpoint 83c1f0aa 6a09e667
    partition AQIDBAUGBwgJCgsMDQ4PEA orders 0 45 1207 -1 40 1310 1208 1300 0
    crc32c 1f2e3d4c

A `partition` line has the topic's id, topic, partition, log start (0: its first segment's name says it), recovery point
and first dirty offset (-1: never compacted; 0 already before a first pass puts files in the place of others, as the log
may have holes from then on, and again once a log turns out to end before this offset or the recovery point). Then come
the ends of the log: the base offset of its first segment (-1: unknown), its end when the line was written, and the end
of what was flushed. Then the high watermark (-1: the log has no other replica), and the number of the last amendment that
the line has (amendment.py): a newer one in the partition's folder changes what the line says. An offset is given to a log of
that topic id alone, so that a line of a deleted topic can't be that of a later one of its name. The last line is the CRC32C of
all before it: a file with any other byte in it says nothing at all.

A log that begins later than its line says, or ends earlier, has lost files or bytes: it isn't opened (recovery.pxd).
Retention therefore writes the new first segment before it removes files. After a power cut only what was flushed counts.
After a kill -9 the end is that of the log's slot (endslots.pxd), which is newer; without this file slots say nothing.

Version 2 has neither high watermarks nor amendments, and is written where no log has any: as on one node, so that a Penstock
that knows only version 2 can be put back. Version 1 has no ends of logs either. Both are read: what they don't have is unknown.
A Penstock that knows only an older version says that this file is damaged and goes on as without it.

Apache Kafka's four files are written beside it, for Kafka and for people. Their form, in `log-start-offset-checkpoint`:

    0                         the version
    1                         how many entries
    orders 0 45               topic, partition, offset

They have neither ids nor a checksum. A `kafka` line has the CRC32C of such a file as it is to be, and as it was before
(`-`: it wasn't there). One that is neither was damaged, or Kafka worked here: that is said in the log, and our file
holds. Kafka may have deleted segments meanwhile: if such a file can be read, the ends of all logs become unknown.
Where ours is missing (Kafka's folder) or damaged, only log starts are taken from Kafka's file, and a log that
contradicts one keeps all its records: what was deleted is shown again rather than what was acknowledged hidden. Recovery
then walks everything, and compaction begins again; both are slow but right.

A clean stop leaves a copy of ours in its mark (`stop_text` in broker/logs/folder.py). The next start holds the file against
it, and writes all four again as they were where somebody has changed them since, or has put older ones back. Kafka takes
such a mark away, so it hasn't been here then. After a clean stop of Kafka's the ends of all logs are unknown, whatever its
files say. A file that is gone stays gone: then an operator, or Kafka, has removed it.

Crash story: ours is written first, beside, synced and renamed; then Kafka's, renamed but not synced. A kill between the
two leaves Kafka's as they were before, which our file knows.
"""

from __future__ import annotations

import base64
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock import log
from penstock.durable import replace_file
from penstock.failpoints import declare, failpoint
from penstock.pyx.log.amendment import Amendment
from penstock.pyx.log.endslots import NAME, key_of, read_ends
from penstock.pyx.record.crc import crc32c

OURS = "penstock-checkpoints"
STARTS = "log-start-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
KAFKAS = (CLEANED, STARTS, RECOVERY_POINTS, HIGH_WATERMARKS)
VERSION = 0
Key = tuple[str, int]

WRITTEN = declare("checkpoints.written", "`penstock-checkpoints` is replaced, Apache Kafka's files are not yet")

_log = log.get(__name__)
_HEAD = b"penstock-checkpoints 3\n"
_HEAD_2 = b"penstock-checkpoints 2\n"
"""Without high watermarks and amendments."""
_SPACES_2 = 9  # in a line of a partition, in version 2
_HEAD_1 = b"penstock-checkpoints 1\n"
"""Without the ends of logs, too."""
_CRC_LINE = re.compile(rb"crc32c ([0-9a-f]{8})\n\Z")
_KAFKA_LINE = re.compile(r"kafka ([a-z-]+) (-|[0-9a-f]{8}) (-|[0-9a-f]{8})")
_ENTRY = re.compile(r"(\S+) (0|[1-9]\d{0,9}) (0|[1-9]\d{0,18})", re.ASCII)
_NOT_THERE = "-"
_OFFSET_MAX = (1 << 63) - 1
KAFKAS_STOP = b""
"""Apache Kafka was the last one to stop here cleanly."""
_NAMED = 3
"""How many partitions a sentence names."""


class Offsets(NamedTuple):
    """What is known of a partition."""

    topic_id: bytes | None  # None: Kafka's file says it, which has neither ids nor a checksum
    log_start: int = 0
    recovery_point: int = 0
    first_dirty: int = -1
    first_segment: int = -1  # the base offset of its first segment; -1: unknown
    log_end: int = 0  # it ended there or later, but for what a power cut took
    flushed_end: int = 0  # it ends there or later
    high_watermark: int = -1  # -1: there is no other replica, or none was noted
    amendment: int = 0  # the number of the last one that is in this

    @property
    def begin(self) -> int:
        """The first offset that was never deleted; -1: unknown."""
        return -1 if self.first_segment < 0 else max(self.first_segment, 0 if self.topic_id is None else self.log_start)

    @property
    def least_end(self) -> int:
        """The log has had records up to there, or further."""
        return max(self.log_start, self.recovery_point, self.log_end)

    def amended(self, by: Amendment, slot_end: int | None) -> Offsets:
        """What holds with an amendment; slot_end: where the log ended by its slot."""
        known = self._replace(amendment=by.number)
        if by.holes and known.first_dirty < 0:
            known = known._replace(first_dirty=0)
        if by.end < 0:
            return known
        least = by.least_end
        if by.first_segment >= 0:
            start = by.log_start if by.log_start > by.first_segment else 0
            known = known._replace(log_start=start, first_segment=by.first_segment)
        return known._replace(
            log_start=min(known.log_start, least) if by.first_segment < 0 else known.log_start,
            recovery_point=min(known.recovery_point, by.recovery_point),
            first_dirty=known.first_dirty if known.first_dirty <= least else 0,
            log_end=min(known.log_end, least) if slot_end is None else slot_end,
            flushed_end=min(known.flushed_end, least),
            high_watermark=min(known.high_watermark, least),
        )


NOTHING = Offsets(None)
OTHERS = Offsets(b"")  # of no topic


def parse_checkpoint(data: bytes) -> dict[Key, int]:
    """The offsets in one of Kafka's files. Raises ValueError, saying what is wrong."""
    text = data.decode("ascii")
    if not text.endswith("\n"):
        raise ValueError("its end is missing" if text else "it is empty")
    version, *lines = text[:-1].split("\n")
    if version != str(VERSION):
        raise ValueError(f"its version isn't {VERSION}")
    if not lines or lines[0] != str(len(lines) - 1):
        raise ValueError("it doesn't have as many entries as it says")
    offsets = {}
    for line in lines[1:]:
        entry = _ENTRY.fullmatch(line)
        if entry is None or int(entry[3]) > _OFFSET_MAX:
            raise ValueError(f"{line!r} is not an entry")
        offsets[entry[1], int(entry[2])] = int(entry[3])
    if len(offsets) != len(lines) - 1:
        raise ValueError("it has a partition twice")
    return offsets


def read_checkpoint(path: Path) -> dict[Key, int]:
    """The offsets in one of Kafka's files; empty if it is missing or isn't one."""
    try:
        return parse_checkpoint(path.read_bytes())
    except (OSError, ValueError):
        return {}


def format_checkpoint(offsets: Mapping[Key, int]) -> bytes:
    """Kafka's text of some offsets."""
    lines = [str(VERSION), str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    return ("\n".join(lines) + "\n").encode("ascii")


def format_offsets(lines: Iterable[bytes], kafkas: Mapping[str, tuple[str, str]]) -> bytes:
    """The text of `penstock-checkpoints` from its lines of partitions (`format_line`) and two sums of each of Kafka's
    files: as it is to be, and as it was."""
    told = sorted((name, sums) for name, sums in kafkas.items() if name != HIGH_WATERMARKS or sums != (_NOT_THERE, _NOT_THERE))
    sums = (f"kafka {name} {to_be} {before}\n".encode() for name, (to_be, before) in told)
    written = list(lines)
    head = _HEAD if any(line.count(b" ") > _SPACES_2 for line in written) else _HEAD_2
    body = b"".join([head, *sums, *written])
    return body + b"crc32c %08x\n" % crc32c(body)


def format_line(key: Key, known: Offsets) -> bytes:
    """A partition's line."""
    topic_id = _NOT_THERE
    if known.topic_id is not None:
        topic_id = base64.urlsafe_b64encode(known.topic_id).decode().rstrip("=")
    (topic, partition), (_, *offsets) = key, known
    if known.high_watermark == NOTHING.high_watermark and known.amendment == NOTHING.amendment:
        offsets = offsets[:-2]
    return f"partition {topic_id} {topic} {partition} {' '.join(map(str, offsets))}\n".encode()


def parse_offsets(data: bytes) -> tuple[dict[Key, Offsets], dict[str, tuple[str, str]]]:
    """What `format_offsets` was given. Raises ValueError for anything else, saying what is wrong."""
    end = _CRC_LINE.search(data)
    if end is None:
        raise ValueError("its end is missing" if data else "it is empty")
    if int(end[1], 16) != crc32c(data[: end.start()]):
        raise ValueError("its checksum is wrong")
    if not data.startswith((_HEAD, _HEAD_2, _HEAD_1)):
        raise ValueError("its version is none of 1, 2 and 3")
    offsets: dict[Key, Offsets] = {}
    kafkas: dict[str, tuple[str, str]] = {}
    for line in data[len(_HEAD) : end.start()].decode("ascii").splitlines():
        kafka = _KAFKA_LINE.fullmatch(line)
        if kafka is not None:
            kafkas[kafka[1]] = kafka[2], kafka[3]
            continue
        _, topic_id, topic, partition, *known = line.split(" ")
        identity = None if topic_id == _NOT_THERE else base64.urlsafe_b64decode(topic_id + "==")
        offsets[topic, int(partition)] = Offsets(identity, *map(int, known))
    return offsets, kafkas


def _sum(data: bytes | None) -> str:
    return _NOT_THERE if data is None else f"{crc32c(data):08x}"


def _read(path: Path) -> bytes | None:
    """A file's bytes; None if it isn't there. Raises OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _replace(path: Path, data: bytes, *, sync: bool) -> None:
    """Replace a file in one step, and sync it if asked for. Raises OSError."""
    if sync:
        replace_file(path, data)
        return
    beside = path.with_name(path.name + ".tmp")
    beside.write_bytes(data)
    beside.replace(path)


class Checkpoints:
    """What is known of the partitions of one log folder, written only when something changed. Safe from any thread.

    Only who writes waits for the disk: what is known is taken and told meanwhile.
    """

    def __init__(self, folder: str, stopped: bytes | None = None) -> None:
        """stopped: what our file held at the clean stop that was the last one here, or KAFKAS_STOP; None: nobody says it."""
        self._writing = threading.Lock()  # held while files are written, so that none replaces a newer one; taken before:
        self._lock = threading.Lock()  # what is known
        self._folder = Path(folder)
        self._offsets: dict[Key, Offsets] = {}
        self._lines: dict[Key, bytes] = {}  # of `_offsets`, in our file
        self._texts = dict.fromkeys(KAFKAS, b"")  # of Kafka's files, as they are to be
        self._there: dict[str, str] = {}  # sums of Kafka's files as they lie on the disk; "" = damaged; for who writes
        self._changed = set(KAFKAS)  # those whose text isn't what `_offsets` say
        self._written = False  # our file says what `_offsets` say
        self._starts: set[Key] = set()  # those that Kafka's file of log starts has, or will have
        self._unbound: set[Key] = set()  # those whose lines in our file have no topic's id
        self._overdue = True  # a reader of names could take a deleted partition's offsets for another's; or `owe` says so
        self.whole = True
        """Our file was there, and right, when it was read."""
        self._ends: dict[bytes, tuple[bytes, int]] = {}  # of logs that weren't opened yet, as their slots say them
        self._load(stopped)

    def of(self, key: Key, topic_id: bytes, by: Amendment | None = None) -> Offsets:
        """What is known of a partition of that topic, with the amendment that is in its folder; nothing of another's of its
        name."""
        with self._lock:
            known = self._offsets.get(key, NOTHING)
            end_of, end = self._ends.get(key_of(*key), (b"", 0))
        if known.topic_id not in (topic_id, None):
            known = NOTHING
        if by is not None and by.number > known.amendment:
            return known.amended(by, end if end_of == topic_id else None)
        return known._replace(log_end=end) if end_of == topic_id and end > known.log_end else known

    def amendment(self, key: Key, topic_id: bytes) -> int:
        """The number of the last amendment of a partition that the checkpoints have."""
        with self._lock:
            known = self._offsets.get(key, NOTHING)
        return known.amendment if known.topic_id in (topic_id, None) else 0

    def knows_end(self, key: Key, topic_id: bytes) -> bool:
        """Whether the slot of a log that wasn't opened yet says where it ended. Else it ended there or later."""
        with self._lock:
            return self._ends.get(key_of(*key), (b"", 0))[0] == topic_id

    def ends_before(self) -> dict[bytes, tuple[bytes, int]]:
        """Where the logs ended that weren't opened yet, by their slots (`read_ends`)."""
        with self._lock:
            return dict(self._ends)

    def put(
        self,
        key: Key,
        topic_id: bytes,
        recovery_point: int,
        log_start: int,
        first_segment: int,
        log_end: int,
        flushed_end: int,
        high_watermark: int = -1,
        amendment: int = 0,
        least_end: int = -1,
    ) -> None:
        """Take a partition's offsets. A log start that its first segment's name says isn't kept, as in Kafka. least_end: the
        least offset at which it was cut up to that amendment; -1: it wasn't."""
        with self._lock:
            before = self._offsets.get(key, NOTHING)
            if before.topic_id not in (topic_id, None):
                before = NOTHING
            start = log_start if log_start > first_segment else 0
            # A log start that no checksum vouched for gets none by being written again.
            unchecked = before.topic_id is None and 0 < start == before.log_start
            self._ends.pop(key_of(*key), None)
            # What was flushed once stays so, though a recovery begins to count again.
            flushed, first_dirty = before.flushed_end, before.first_dirty
            if amendment > before.amendment and least_end >= 0:
                flushed = min(flushed, least_end)
                first_dirty = first_dirty if first_dirty <= least_end else 0
            flushed = min(log_end, max(flushed_end, recovery_point, flushed))
            identity = None if unchecked else topic_id
            self._put(
                key,
                Offsets(
                    identity, start, recovery_point, first_dirty, first_segment, log_end, flushed, high_watermark, amendment
                ),
            )

    def keep_end(self, key: Key, topic_id: bytes) -> None:
        """A log isn't opened: where it ended by its slot counts after a start of the machine too, since this one has found
        that its records are gone."""
        known = self.of(key, topic_id)
        with self._lock:
            if known.log_end > known.flushed_end and key_of(*key) in self._ends:
                self._put(key, known._replace(flushed_end=known.log_end))
                self._overdue = True

    def begin_at(self, key: Key, topic_id: bytes, first_segment: int) -> None:
        """Take it that a partition begins with that segment: what it had before is lost, and an operator knows."""
        with self._lock:
            before = self._offsets.get(key, NOTHING)
            if before.topic_id in (topic_id, None):
                start = before.log_start if before.log_start > first_segment else 0
                self._put(key, before._replace(log_start=start, first_segment=first_segment))

    def put_first_dirty(self, key: Key, topic_id: bytes, first_dirty: int) -> None:
        """Take the offset up to which a partition is compacted; of another topic's than that of `put` nothing is taken."""
        with self._lock:
            before = self._offsets.get(key)
            if before is not None and before.topic_id in (topic_id, None):
                self._put(key, before._replace(first_dirty=first_dirty))

    def have_holes(self, key: Key, topic_id: bytes) -> None:
        """Take it that a partition may have holes, if nothing says so yet."""
        with self._lock:
            before = self._offsets.get(key)
            if before is not None and before.topic_id in (topic_id, None) and before.first_dirty < 0:
                self._put(key, before._replace(first_dirty=0))

    def note_holes(self, key: Key, topic_id: bytes) -> bool:
        """Say on the disk that a partition may have been compacted, if nothing says so yet. False: what is known here is
        another topic's. Raises OSError; nothing is said then, so that the next call writes again."""
        return self._make_dirty(key, topic_id, lambda known: known.first_dirty < 0)

    def compact_again(self, key: Key, topic_id: bytes) -> None:
        """Say on the disk that a partition which was compacted is dirty from its beginning, and may have holes. Raises OSError;
        nothing is said then, so that the next call writes again."""
        self._make_dirty(key, topic_id, lambda known: known.first_dirty > 0)

    def _make_dirty(self, key: Key, topic_id: bytes, wanted: Callable[[Offsets], bool]) -> bool:
        with self._writing:
            with self._lock:
                before = self._offsets.get(key, OTHERS)
                if before.topic_id not in (topic_id, None):
                    return False
                if wanted(before):
                    self._put(key, before._replace(first_dirty=0))
                elif not self._overdue:
                    return True
            try:
                self._write()
            except BaseException:
                with self._lock:
                    known = self._offsets.get(key, OTHERS)
                    if known.topic_id in (topic_id, None):
                        self._put(key, known._replace(first_dirty=before.first_dirty))
                raise
            return True

    def carry(self, key: Key, other: Checkpoints) -> bool:
        """Take what another folder knows of a partition that moves here, and nothing that was known of it before. Whether more
        has changed by it than the recovery point and the ends of its last appends, of which older ones are as good: then it
        has to be written."""
        with other._lock:
            known = other._offsets.get(key)
        with self._lock:
            before = self._offsets.get(key)
            self._ends.pop(key_of(*key), None)
            if known is None:
                self._drop(key)
            else:
                self._put(key, known)
        if known is None or before is None:
            return known is not before
        point, end, flushed = before.recovery_point, before.log_end, before.flushed_end
        return known._replace(recovery_point=point, log_end=end, flushed_end=flushed) != before

    def drop(self, key: Key) -> None:
        """Forget a partition that was deleted."""
        with self._lock:
            self._drop(key)

    def write(self) -> None:
        """Write what changed. Raises OSError; what couldn't be written is tried again the next time."""
        with self._writing:
            self._write()

    def owe(self) -> None:
        """Let the next `write_overdue` write: a start takes a compacted topic's log that it finds no line of for one with
        holes."""
        with self._lock:
            self._overdue = True

    def write_overdue(self) -> None:
        """Write if a name is to be free and a file has offsets under it that aren't bound to a topic's id, if there is no
        file of ours yet, or if `owe` says so. Raises OSError."""
        with self._writing:  # A write that is under way may be the one that frees the name.
            if self._overdue:
                self._write()

    # --- under the lock ---------------------------------------------------------------------------------------
    def _put(self, key: Key, known: Offsets) -> None:
        before = self._offsets.get(key)
        if known == before:
            return
        self._offsets[key] = known
        self._lines[key] = format_line(key, known)
        self._written = False
        if before is None or before.recovery_point != known.recovery_point:
            self._changed.add(RECOVERY_POINTS)
        if (before or NOTHING).log_start != known.log_start:
            self._changed.add(STARTS)
        if (before or NOTHING).first_dirty != known.first_dirty:
            self._changed.add(CLEANED)
        if (before or NOTHING).high_watermark != known.high_watermark:
            self._changed.add(HIGH_WATERMARKS)

    def _drop(self, key: Key) -> None:
        self._ends.pop(key_of(*key), None)
        gone = self._offsets.pop(key, None)
        if gone is None:
            return
        del self._lines[key]
        self._written = False
        self._changed.update(KAFKAS)
        self._overdue = self._overdue or gone.topic_id is None or key in self._starts or key in self._unbound

    def _text(self, name: str) -> bytes:
        """What one of Kafka's files is to hold; empty: it needn't be there."""
        every = self._offsets.items()
        if name == STARTS:
            entries = {key: known.log_start for key, known in every if known.log_start > 0}
        elif name == CLEANED:
            entries = {key: known.first_dirty for key, known in every if known.first_dirty >= 0}
        elif name == HIGH_WATERMARKS:
            entries = {key: known.high_watermark for key, known in every if known.high_watermark >= 0}
        else:
            entries = {key: known.recovery_point for key, known in every}
        # What Kafka's file of high watermarks says of logs without other replicas stays as it is.
        needed = self._texts[name] if name == HIGH_WATERMARKS else self._there[name] != _NOT_THERE
        return format_checkpoint(entries) if entries or needed else b""

    # --- under the lock of who writes --------------------------------------------------------------------------
    def _write(self) -> None:
        with self._lock:
            for name in tuple(self._changed):
                self._texts[name] = self._text(name)
                self._changed.discard(name)
            texts = dict(self._texts)
            sums = {name: _sum(text or None) for name, text in texts.items()}
            due = [name for name in KAFKAS if sums[name] != self._there[name] and (texts[name] or name != HIGH_WATERMARKS)]
            kafkas = {name: (sums[name], self._there[name] or sums[name]) for name in KAFKAS}
            ours = None if self._written else format_offsets(self._lines.values(), kafkas)
            starts = {key for key, known in self._offsets.items() if known.log_start > 0}
            unbound = {key for key, known in self._offsets.items() if known.topic_id is None}
            self._starts |= starts
            overdue = self._overdue
            self._written, self._overdue = True, False
        if ours is None and not due:
            return
        try:
            if ours is not None:
                _replace(self._folder / OURS, ours, sync=True)
                ours = None
                with self._lock:
                    self._unbound = unbound
            failpoint(WRITTEN)
            for name in due:
                _replace(self._folder / name, texts[name], sync=False)
                self._there[name] = sums[name]
        except BaseException:
            with self._lock:
                self._written = self._written and ours is None
                self._overdue = self._overdue or overdue
            raise
        if STARTS in due:
            with self._lock:
                self._starts = starts

    # --- once, before anybody else has it -----------------------------------------------------------------------
    def _load(self, stopped: bytes | None) -> None:
        found: dict[str, bytes | None] = {}
        for name in KAFKAS:
            try:
                found[name] = _read(self._folder / name)
            except OSError as error:
                found[name] = str(error).encode()  # which is none of its texts
            self._there[name] = _sum(found[name])
        why = ""
        try:
            data = _read(self._folder / OURS)
            if data is not None:
                self._take(data, found, stopped)
                return
        except (OSError, ValueError) as error:
            why = str(error)
        self._take_kafkas(found[STARTS], why)

    def _take(self, there: bytes, found: Mapping[str, bytes | None], stopped: bytes | None) -> None:
        """Take what our file says, or said at the stop before. Raises ValueError."""
        data, by_us = there, False
        if stopped:
            with suppress(ValueError):  # The mark of the stop is damaged.
                self._offsets, kafkas = parse_offsets(stopped)
                data, by_us = stopped, True
        if not by_us:
            self._offsets, kafkas = parse_offsets(there)
        if data != there:
            _log.warning(
                "`%s` isn't as the last clean stop left it: it was damaged, or an older one was put back. What it held at that "
                "stop holds", self._folder / OURS,
            )  # fmt: skip
        self._lines = {key: format_line(key, known) for key, known in self._offsets.items()}
        self._written, self._overdue = data == there, False
        self._starts = {key for key, known in self._offsets.items() if known.log_start > 0}
        self._unbound = {key for key, known in self._offsets.items() if known.topic_id is None}
        # An older Penstock, which doesn't know slots, was the last one here.
        self._ends = {} if data.startswith(_HEAD_1) else read_ends(str(self._folder))
        for name in KAFKAS:
            if name == HIGH_WATERMARKS and name not in kafkas:
                continue  # An older Penstock, which doesn't know this file, was the last one here.
            if self._there[name] not in kafkas.get(name, ()):
                if self._warn_of(name, found[name]) and not by_us:
                    self._forget_ends()
                if name == CLEANED and not by_us:
                    self._take_compacted()
                self._there[name] = ""
                self._written = False
        if stopped == KAFKAS_STOP:
            self._forget_ends()
        if found[STARTS] is not None:
            self._starts |= set(read_checkpoint(self._folder / STARTS))

    def _warn_of(self, name: str, data: bytes | None) -> bool:
        """One of Kafka's files isn't what was written, while ours is. True: Kafka may have written it."""
        kafkas = False
        if data is None:
            what = "is gone"
        else:
            try:
                there = parse_checkpoint(data)
                what = "was changed, by Apache Kafka or by damage" + _differences(name, there, self._offsets)
                kafkas = True
            except ValueError as error:
                what = f"is damaged ({error})"
        _log.warning("`%s` %s; what `%s` says holds", self._folder / name, what, OURS)
        return kafkas

    def _forget_ends(self) -> None:
        """Kafka may have deleted segments of any log."""
        self._ends.clear()
        for key, known in self._offsets.items():
            self._put(key, known._replace(first_segment=-1, log_end=0, flushed_end=0))

    def _take_kafkas(self, starts: bytes | None, why: str) -> None:
        """Ours can't be read (`why`), or isn't there: take log starts from Kafka's file."""
        held = self._holds_logs()
        if not why and not held:
            return  # A folder that is new.
        ours = self._folder / OURS
        what = f"is damaged ({why})" if why else "is not there, as in a folder of Apache Kafka's"
        self.whole = False
        self._take_compacted()
        try:
            if starts is None:
                raise ValueError("it is not there")
            known = parse_checkpoint(starts)
            for key, offset in known.items():
                if f"{key[0]}-{key[1]}" in held and offset > 0:
                    self._put(key, self._offsets.get(key, NOTHING)._replace(log_start=offset))
            self._starts = set(known)
            then = f"log starts are those of `{STARTS}` where their logs don't contradict it"
        except ValueError as error:
            self._there[STARTS] = self._there[STARTS] if starts is None else ""
            then = f"and `{STARTS}` doesn't help ({error}): records that DeleteRecords has deleted may be seen again"
        _log.warning(
            "`%s` %s: logs that weren't closed cleanly are checked from their beginning, compaction begins again, %s",
            ours, what, then,
        )  # fmt: skip

    def _take_compacted(self) -> None:
        """A log that Kafka has ever compacted has holes, whatever its topic's cleanup.policy is by now."""
        held = self._holds_logs()
        for key in read_checkpoint(self._folder / CLEANED):
            known = self._offsets.get(key, NOTHING)
            if f"{key[0]}-{key[1]}" in held and known.first_dirty < 0:
                self._put(key, known._replace(first_dirty=0))

    def _holds_logs(self) -> set[str]:
        """Names of folders in it that can be partitions'."""
        try:
            with os.scandir(self._folder) as entries:
                return {entry.name for entry in entries if entry.name[-1].isdigit() and "-" in entry.name and entry.is_dir()}
        except OSError:
            return set()


def settle(folder: Path, stopped: bytes | None) -> None:
    """Make the files of a log folder say what holds after the clean stop that was the last one here; `stopped` as `Checkpoints`
    takes it. It is called before the mark of that stop goes. Raises OSError."""
    if stopped is None or not (folder / OURS).exists():
        return
    known = Checkpoints(str(folder), stopped)
    if known.whole:
        known.write()
        if stopped == KAFKAS_STOP:
            (folder / NAME).unlink(missing_ok=True)  # It tells of a life before Kafka's.


def _differences(name: str, there: Mapping[Key, int], offsets: Mapping[Key, Offsets]) -> str:
    """Where a log start, which an operator may want to set again, isn't ours."""
    if name != STARTS:
        return ""
    ours = {key: known.log_start for key, known in offsets.items() if known.log_start > 0}
    other = sorted(key for key in {*there, *ours} if there.get(key) != ours.get(key))
    if not other:
        return ""
    said = [f"{key[0]}-{key[1]} begins at {ours.get(key, 0)}, not at {there.get(key, 0)}" for key in other[:_NAMED]]
    more = f", and {len(other) - _NAMED} others" if len(other) > _NAMED else ""
    return f" ({', '.join(said)}{more})"
