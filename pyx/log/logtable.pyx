"""Which logs a broker leads, and where they lie; see logtable.pxd."""

import base64
import errno
import logging
import os
import re
import threading
from collections import namedtuple
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport UINT64_MAX, int64_t, uint8_t
from libcpp.vector cimport vector
from pathlib import Path

from penstock import log
from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.pyx.linux.posix cimport (
    atomic_add32, atomic_load32, atomic_load64, atomic_store32, atomic_store64, atomic_swap32, close, monotonic_ns,
    pthread_mutex_lock, pthread_mutex_unlock,
)
from penstock.pyx.log.amendment import NAME as _AMENDMENT
from penstock.pyx.log.amendment import finish_cut, read_amendment
from penstock.pyx.log.checkpoint import STARTS, Checkpoints
from penstock.pyx.log.damage cimport DAMAGE_BEGIN, DAMAGE_END, DAMAGE_MIDDLE, LOG_CORRUPT, Damage
from penstock.pyx.log.endslots cimport EndSlots
from penstock.pyx.log.files cimport made, wall_ms
from penstock.pyx.log.lifecycle cimport close_log, halt_log, open_log, raise_epoch
from penstock.pyx.log.logconfig cimport LogConfig, config_flushes, read_config
from penstock.pyx.log.logstate cimport (
    NOTE_BEGUN_AGAIN, NOTE_COPY_OVERTAKEN, NOTE_CORRUPT_BATCH, NOTE_CORRUPT_MESSAGE, NOTE_CORRUPT_READ, NOTE_CUT,
    NOTE_EPOCHS, NOTE_GONE, NOTE_HOLES, NOTE_REBUILT, NOTE_REFUSED_CUT, NOTE_REMOVED, NOTE_SNAPSHOT, Note,
)
from penstock.pyx.log.partition cimport (
    LogSetOwner, Partition, logset_add, logset_count_flushing, logset_drop_topic, logset_held, logset_remove,
    partition_new, partition_release, partition_retain, wake_reactors,
)
from penstock.pyx.log.partitionfolder import remove_folder, rename_folder
from penstock.pyx.log.partitionlog cimport (
    Amendment, LogFolder, PartitionLog, amendment_clear, end_cleaning, folder_fail, folder_release,
    is_offline, keep_above_log_start, log_of, mail_open, mail_take, put_high_watermark,
)
from penstock.pyx.log.recovery cimport RecoveryReport
from penstock.pyx.log.removals cimport read_removed
from penstock.pyx.log.role cimport ROLE_FENCED
from penstock.pyx.record.frame cimport TOPIC_ID_BYTES

Recovered = namedtuple("Recovered", "log_start log_end batches_checked cut_bytes")
FolderState = namedtuple("FolderState", "failed space rolled ahead doubted", defaults=[False])
LongWrite = namedtuple("LongWrite", "ms log_dir")

_log = log.get(__name__)
_TOPIC_ID = re.compile("[A-Za-z0-9_-]{22}")
_DELETED = re.compile(r".+-\d+\.[0-9a-f]{32}-delete")


cdef class Folder:
    """See logtable.pxd."""

    def __cinit__(self, path, int news, int entrants_fd, int moved_fd):
        self.checkpoints = Checkpoints(path)
        self.ends = EndSlots(path, self.checkpoints.ends_before)
        self.shared = made[LogFolder]()
        self.shared.refs = 1
        self.shared.news = news
        self.shared.ends = self.ends.chunks
        mail_open(&self.shared.entrants, entrants_fd)
        mail_open(&self.shared.moved, moved_fd)

    def __dealloc__(self):
        cdef vector[Partition*] left
        cdef size_t i
        # Partitions that outlive the LogManager must not write to a descriptor that is another's by then.
        self.shared.news = -1
        self.shared.entrants.fd = self.shared.moved.fd = -1
        with nogil:
            mail_take(&self.shared.entrants, left)
            mail_take(&self.shared.moved, left)
            for i in range(left.size()):
                partition_release(left[i])
            folder_release(self.shared)

    cdef object forget(self, tuple key):
        self.checkpoints.drop(key)
        self.ends.drop(*key)


cdef class LeaderEntry:
    """See logtable.pxd."""

    def __dealloc__(self):
        if self.partition != NULL:
            partition_release(self.partition)


cdef LeaderEntry _new_led(LogTable table, tuple key, bytes topic_id):
    cdef LeaderEntry led = LeaderEntry()
    name = key[0].encode()
    led.key = key
    led.partition = partition_new(
        table.set, PyBytes_AS_STRING(name), <size_t>len(name), <const uint8_t*>PyBytes_AS_STRING(topic_id), key[1]
    )
    led.p = log_of(led.partition)
    read_config(&led.p.config, {})
    led.p.wanted = led.p.config
    return led


cdef object raise_os(int number, object what):
    raise OSError(number, os.strerror(number), str(what))


cdef str _log_dir(PartitionLog* p):
    return str(Path(os.fsdecode(p.log.folder)).parent)


cdef inline bint _began(int64_t* since_ms, int64_t* first_ms) noexcept nogil:
    """Whether something is going on that began before all others; it is the first one then."""
    cdef int64_t began_ms = atomic_load64(since_ms)
    if began_ms == 0 or began_ms >= first_ms[0]:
        return False
    first_ms[0] = began_ms
    return True


cdef bytes _topic_id(PartitionLog* p):
    return PyBytes_FromStringAndSize(<char*>p.topic_id, TOPIC_ID_BYTES)


def _prepare_folder(str folder, topic_id, bint new):
    """Make the partition's folder if it is to be new; its `partition.metadata` says the topic id. What is no id there,
    or is ours but for a bit, is damage, and written again; another one is refused. Answers whether the folder was made.
    """
    fresh = not os.path.isdir(folder)
    if fresh and not new:
        raise FileNotFoundError(errno.ENOENT, "the partition's folder is gone", folder)
    if fresh:
        os.mkdir(folder)
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    known = None if fresh else _read_topic_id(folder)
    if known is not None and known != text:
        if _TOPIC_ID.fullmatch(known) is not None and not _is_a_bit_away(known, text):
            raise ValueError(
                f"`{folder}` belongs to a topic with the id {known}, not {text}: its partition.metadata says so. If "
                "the records in it are this topic's, that file is damaged: remove it and start again, it is written "
                "again. If they are another topic's, stop the broker and move the folder out of the log folder"
            )
        _log.warning("`%s/partition.metadata` was damaged and is written again with the topic id %s", folder, text)
        known = None
    if known is None and any(topic_id):
        beside = f"{folder}/partition.metadata.tmp"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"version: 0\ntopic_id: {text}\n".encode())
        finally:
            os.close(fd)
        os.rename(beside, f"{folder}/partition.metadata")
    return fresh


def _is_a_bit_away(str known, str text):
    """Whether one flipped bit makes one id of the other: ids are random, so that no two topics have such."""
    return (int.from_bytes(known.encode(), "big") ^ int.from_bytes(text.encode(), "big")).bit_count() == 1


def _read_topic_id(str folder):
    """The id in `partition.metadata` as text, whatever that is; None if there is no such file."""
    try:
        fd = os.open(f"{folder}/partition.metadata", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.read(fd, 4096).decode("ascii", "replace").partition("topic_id: ")[2].strip()
    finally:
        os.close(fd)


# What an operator should hear of a log, by the kind of note: the level, and the sentence.
cdef dict _SENTENCES = {
    NOTE_REBUILT: (
        logging.WARNING,
        "the index files of {stem}.log were missing or wrong: they are rebuilt from its batches",
    ),
    NOTE_CORRUPT_BATCH: (
        logging.ERROR,
        "the batch at byte {position} of {stem}.log can't be read: the segment isn't deleted by retention.ms, and its "
        "index files are believed as they are",
    ),
    NOTE_SNAPSHOT: (
        logging.WARNING,
        "{stem}.snapshot (or .sequences) can't be read: what producers have sent is taken from an older one and "
        "the batches",
    ),
    NOTE_EPOCHS: (
        logging.WARNING,
        "{folder}/leader-epoch-checkpoint was missing or wrong: it is written again from the batches",
    ),
    NOTE_CORRUPT_READ: (
        logging.ERROR,
        "{stem}.log holds no batch at byte {position}, where one was written: a fetch from there is answered "
        "CORRUPT_MESSAGE. Restore the file; or stop the broker and run `penstock log repair {quoted}`, which says what "
        "is lost",
    ),
    NOTE_CORRUPT_MESSAGE: (
        logging.ERROR,
        "{folder}: the message at offset {offset} (byte {position} of its segment) can't be read, and a fetch from "
        "there is answered CORRUPT_MESSAGE. Restore the file; or let consumers go on after it",
    ),
    NOTE_CUT: (
        logging.WARNING,
        "{stem}.log had no whole batch from byte {position} on, as a write that was cut short leaves it: those bytes "
        "are now in {stem}.log.cut-{position}",
    ),
    NOTE_GONE: (
        logging.ERROR,
        "files of {folder} are gone, somebody has removed them: the partition is offline and answers "
        "KAFKA_STORAGE_ERROR. Stop the broker, put the folder back and start again, or delete the topic",
    ),
    NOTE_REFUSED_CUT: (
        logging.ERROR,
        "broker {position}, which leads {folder}, has its log up to offset {offset} only, and this replica holds "
        "records up to its high watermark {high_watermark}, which may have been acknowledged: nothing was cut, and "
        "this replica follows no more. If that broker has lost what this one holds, let this one lead by an unclean "
        "election",
    ),
    NOTE_REMOVED: (
        logging.WARNING,
        "`{folder}/penstock-removed-checkpoint` is damaged: compaction is taken to have removed deletions up to offset "
        "{offset}. Replicas that end before it are copied again",
    ),
    NOTE_BEGUN_AGAIN: (
        logging.WARNING,
        "{folder}: this replica ended at offset {offset} when it came back, and its leader's compaction has removed "
        "deletions up to offset {position}. The replica may have kept what they deleted, so it was emptied and is "
        "copied again from its leader",
    ),
    NOTE_COPY_OVERTAKEN: (
        logging.WARNING,
        "{folder}: this replica was being copied from its leader and had come to offset {offset}, when the leader's "
        "compaction removed deletions up to offset {position}. The copy takes longer than the topic's "
        "delete.retention.ms and begins again: raise that until the replica is in sync",
    ),
    NOTE_HOLES: (
        logging.WARNING,
        "{folder}: the leader has no records of offsets {offset} up to {position} (exclusive). A log that was "
        "compacted has such holes; the topic's cleanup.policy doesn't say that this one is",
    ),
}


class CorruptLogError(ValueError):
    """Records that were acknowledged can't be read; the text says which, and what to do."""


cdef object _what_is_corrupt(str folder, const Damage* damage):
    file = f"{folder}/{damage.base_offset:020d}.log{'.swap' if damage.swap else ''}"
    if damage.kind == DAMAGE_BEGIN:
        return (
            f"{file} is missing: the log began at offset {damage.first_offset}, and what is there begins at "
            f"offset {damage.next_offset}. Nothing was changed. Restore the missing files and start again; or stop the "
            f"broker and run `penstock log accept {quoted(folder)}`, which lets the log begin there"
        )
    if damage.kind == DAMAGE_END:
        return (
            f"the log ended at offset {damage.next_offset} or later, and what is there ends at offset "
            f"{damage.first_offset} (byte {damage.position} of {file}). Nothing was changed. Restore the missing files "
            f"and start again; or stop the broker and run `penstock log accept {quoted(folder)}`, which lets the "
            f"log go on at offset {damage.next_offset}"
        )
    if damage.kind == DAMAGE_MIDDLE:
        return (
            f"records of offsets {damage.first_offset} to {damage.next_offset - 1} are missing after byte "
            f"{damage.position} of {file}: a segment is gone, or was cut. Nothing was changed. Restore the missing "
            f"files and start again; or stop the broker and run `penstock log accept {quoted(folder)}`, which lets the "
            "log go on without them"
        )
    if damage.next_offset > damage.first_offset:
        lost = f"offsets {damage.first_offset} to {damage.next_offset - 1} are missing or can't be read; others follow"
    else:
        lost = f"offsets from {damage.first_offset} on are missing or can't be read"
    return (
        f"{file} is damaged at byte {damage.position}, and {lost}. Nothing was changed. "
        f"Restore the file from a copy and start again; or stop the broker and run `penstock log repair "
        f"{quoted(folder)}`, "
        "which sets the damaged bytes aside, so that the log goes on without these records"
    )


cdef class LogTable(LogSetOwner):
    """Which logs there are: announced, led, stopped, deleted; see logtable.pxd and logtable.pyi."""

    def __cinit__(self):
        self.lock = threading.Lock()
        self.loading = threading.Lock()
        self.led = {}
        self.announced = {}
        self.retired = {}
        self.opening = set()
        self.folders = {}
        self.rebuilt_indexes = 0
        self.damaged_segments = 0
        self.news_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.entrants_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.moved_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __dealloc__(self):
        close(self.news_fd)
        close(self.entrants_fd)
        close(self.moved_fd)

    @property
    def walked_bytes(self):
        """Bytes that openings have walked; see logtable.pyi."""
        return atomic_load64(&self.walked)

    cdef LeaderEntry find(self, str topic, int partition):
        led = self.led.get((topic, partition))
        if led is None:
            led = self.announced.get((topic, partition))
            if led is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not led here")
            if (<LeaderEntry>led).p.offline:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline")
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} is not open yet")
        return <LeaderEntry>led

    cdef LeaderEntry find_id(self, str topic, bytes topic_id, int partition):
        led = self.find(topic, partition)
        if _topic_id(led.p) != topic_id:
            what = f"{topic}-{partition} is a later topic's of that name"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
        return led

    def topic_id(self, str topic, int partition):
        """Of which topic a log is; see logtable.pyi."""
        return _topic_id(self.find(topic, partition).p)

    cdef Folder folder(self, str path):
        found = self.folders.get(path)
        if found is None:
            with self.loading:
                found = self.folders.get(path)
                if found is None:
                    found = Folder(path, self.news_fd, self.entrants_fd, self.moved_fd)
                    with self.lock:
                        self.folders[path] = found
        return <Folder>found

    def announce(self, str topic, bytes topic_id, int partition, bint offline=False):
        """Say that a partition exists though it isn't open; see logtable.pyi."""
        cdef LeaderEntry led
        key = (topic, partition)
        with self.lock:
            if key in self.led:
                raise ValueError(f"`{topic}-{partition}` is led already")
            led = self.announced.get(key)
            if led is not None:
                led.p.offline = offline
                led.p.stopped = not offline
                return
            led = _new_led(self, key, topic_id)
            led.p.offline = offline
            led.p.stopped = not offline
            self.announced[key] = led
            logset_add(self.set, led.partition, NULL)

    def withdraw(self, str topic, int partition):
        """Forget a partition that was announced; see logtable.pyi."""
        cdef LeaderEntry led
        with self.lock:
            led = self.announced.pop((topic, partition), None)
        if led is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not announced here")
        logset_remove(self.set, led.partition)

    def hold(self, str topic, int partition):
        """Let requests for a partition wait where they are; see logtable.pyi."""
        atomic_swap32(&self.find(topic, partition).p.held, 1)

    def held_appends(self, str topic, int partition):
        """Whether appends go on that began before `hold`; see logtable.pyi."""
        return atomic_load32(&self.find(topic, partition).p.appending) != 0

    def release(self, str topic, int partition):
        """End a `hold`; see logtable.pyi."""
        cdef LeaderEntry led
        cdef Partition* partition_of = NULL
        with self.lock:
            for table in (self.led, self.announced):
                led = table.get((topic, partition))
                if led is not None:
                    atomic_store32(&led.p.held, 0)
                    partition_of = led.partition
                    partition_retain(partition_of)
                    break
        if partition_of != NULL:
            with nogil:
                wake_reactors(partition_of, UINT64_MAX)
                partition_release(partition_of)

    @property
    def produces_held(self):
        """Produce requests that were held; see logtable.pyi."""
        return logset_held(self.set)

    def folder_states(self):
        """What each folder has to report; see logtable.pyi."""
        cdef Folder folder
        states = {}
        with self.lock:
            for path, folder in self.folders.items():
                states[path] = FolderState(
                    atomic_load32(&folder.shared.failed), atomic_load32(&folder.shared.space),
                    atomic_load32(&folder.shared.rolled) != 0, atomic_load32(&folder.shared.ahead) != 0,
                    atomic_load32(&folder.shared.doubted) != 0,
                )
        return states

    def longest_write(self):
        """The append or flush that has been at a disk for longest; see logtable.pyi."""
        cdef int64_t now_ms = monotonic_ns() // 1_000_000
        cdef int64_t first_ms = now_ms
        cdef LeaderEntry led, found = None
        with self.lock:
            every = list(self.led.values())
        for led in every:
            if _began(&led.p.writing_since_ms, &first_ms) or _began(&led.p.flushing_since_ms, &first_ms):
                found = led
        return LongWrite(0, "") if found is None else LongWrite(now_ms - first_ms, _log_dir(found.p))

    def fail_folder(self, str path, int error):
        """Take a folder offline; see logtable.pyi."""
        folder_fail(self.folder(path).shared, error)

    def abandon(self):
        """Append, flush and write nothing any more; see logtable.pyi."""
        with self.lock:
            for folder in self.folders.values():
                atomic_store32(&(<Folder>folder).shared.failed, errno.EIO)

    def set_space(self, str path, int space):
        """Say whether a folder's disk has space; see logtable.pyi."""
        atomic_store32(&self.folder(path).shared.space, space)

    def folder_of(self, str topic, int partition):
        """The log folder that a partition lies in; see logtable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        return _log_dir(led.p)

    def _raise_led_epoch(self, LeaderEntry led, int leader_epoch):
        cdef PartitionLog* p = led.p
        with nogil:
            pthread_mutex_lock(&p.lock)
            raise_epoch(p, leader_epoch)
            pthread_mutex_unlock(&p.lock)
        return Recovered(p.log.log_start, p.log.log_end, 0, 0)

    def lead(
        self, str topic, bytes topic_id, int partition, int leader_epoch, str folder, dict config, bint clean=False,
        bint new=True, bint power_cut=False
    ):
        """Open (or create) a partition's log and take the lead; see logtable.pyi."""
        return self.open(topic, topic_id, partition, leader_epoch, folder, config, clean, new, power_cut, True)

    cdef object open(
        self, str topic, bytes topic_id, int partition, int leader_epoch, str folder, dict config, bint clean, bint new,
        bint power_cut, bint leads
    ):
        cdef LeaderEntry led, before
        cdef PartitionLog* p
        cdef LogConfig parsed
        cdef RecoveryReport report
        cdef int result
        if len(topic_id) != TOPIC_ID_BYTES:
            raise ValueError("a topic id has 16 bytes")
        if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or partition < 0:
            raise ValueError(f"`{topic}-{partition}` is not a partition's name")
        merged = read_config(&parsed, config)
        key = (topic, partition)
        with self.lock:
            led = self.led.get(key)
            if led is not None:
                if _topic_id(led.p) != topic_id:
                    raise ValueError(f"`{topic}-{partition}` is led already, for another topic of that name")
                if os.fsdecode(led.p.log.folder) != str(Path(folder, f"{topic}-{partition}")):
                    raise ValueError(f"`{topic}-{partition}` is led already, from another folder than `{folder}`")
            elif key in self.opening:
                raise ValueError(f"`{topic}-{partition}` is being opened already")
            else:
                self.opening.add(key)
        if led is not None:
            return self._raise_led_epoch(led, leader_epoch)     # of a replica that is open nothing changes
        try:
            path = os.path.join(folder, f"{topic}-{partition}")
            led = _new_led(self, key, topic_id)
            led.config = merged
            led.folder = self.folder(folder)   # which checks whether there are logs without checkpoints
            fresh = _prepare_folder(path, topic_id, new)
            by = None if fresh else read_amendment(path)
            if by is not None and not by.done:
                finish_cut(Path(path), by)
                clean = False              # whatever says so: it isn't as it was left
            known = led.folder.checkpoints.of(key, topic_id, by)
            if fresh:
                # A deleted topic's, if the broker died before they were written.
                led.folder.forget(key)
                if known.topic_id is not None and known.least_end > 0:
                    _log.warning(
                        "topic=%s partition=%d: its log had records up to offset %d or more, and `%s` is gone: "
                        "it begins again", topic, partition, known.least_end, path,
                    )
                    led.folder.checkpoints.owe()     # what it had isn't missed after a kill, either
                known = led.folder.checkpoints.of(key, topic_id)
            p = led.p
            p.folder = led.folder.shared
            atomic_add32(&p.folder.refs, 1)
            p.config = p.wanted = parsed
            p.log.folder = os.fsencode(path)
            # One that Kafka's file says is applied only once the log's end is known.
            p.log.log_start = max(0 if known.topic_id is None else known.log_start, known.first_segment, 0)
            p.log.known_begin = known.begin
            p.log.known_first = known.first_segment
            p.log.known_end = known.flushed_end if power_cut and not clean else known.log_end
            p.log.recovery_point = known.recovery_point
            p.log.index_interval_bytes = parsed.index_interval_bytes
            p.log.power_cut = power_cut
            if not leads:
                p.role = ROLE_FENCED
                p.log.replicated = True
                put_high_watermark(p, known.high_watermark)
            # A log that was compacted before its topic's cleanup.policy was changed has holes, too; one that the
            # checkpoints don't know (another broker's, or another folder's) may have been.
            p.log.dense = known.first_dirty < 0 and (
                fresh or not parsed.cleanup_compact or known.topic_id is not None
            )
            p.log.first_dirty = known.first_dirty
            self._take_amendment(led, by)
            with nogil:
                p.log.walked_bytes = &self.walked
                result = open_log(p, leader_epoch, clean, &report)
                p.log.walked_bytes = NULL
            if result == LOG_CORRUPT:
                with self.lock:
                    self.damaged_segments += 1
                if p.log.known_end == known.log_end:
                    led.folder.checkpoints.keep_end(key, topic_id)
                raise CorruptLogError(_what_is_corrupt(path, &report.damage))
            if result == 0:
                result = read_removed(p)
            if result != 0:
                raise_os(result, path)
            self._check_start(led, known, &report)
            p.end_slot = led.folder.ends.take(topic, topic_id, partition, p.log.log_end)
            with self.lock:
                self.led[key] = led
                before = self.announced.pop(key, None)
                logset_add(self.set, led.partition, <Partition*>NULL if before is None else before.partition)
                logset_count_flushing(self.set, config_flushes(&parsed))
        finally:
            with self.lock:
                self.opening.discard(key)
        with self.lock:
            others = [other for other in self.folders.values() if other is not led.folder]
        for other in others:
            (<Folder>other).forget(key)    # somebody has moved it here by hand
        self.note(led)
        if p.log.log_end < known.log_end or 0 <= known.begin < p.log.log_start:
            # What a power cut took, or retention on a full disk, isn't missed at the start after the next kill.
            led.folder.checkpoints.owe()
        if not p.log.dense and known.first_dirty < 0:
            led.folder.checkpoints.put_first_dirty(key, topic_id, 0)
        if parsed.cleanup_compact and known.topic_id is None:
            led.folder.checkpoints.owe()
        self.say(led)
        return Recovered(p.log.log_start, p.log.log_end, report.batches_checked, report.cut_bytes)

    cdef object _take_amendment(self, LeaderEntry led, object by):
        """What the checkpoints don't have yet of a log that opens."""
        cdef Amendment* a = &led.p.amendment
        a.number = led.folder.checkpoints.amendment(led.key, _topic_id(led.p))
        if by is None:
            return
        if by.number > a.number:
            a.number = by.number
            a.end, a.least_end, a.recovery_point = by.end, by.least_end, by.recovery_point
            a.first_segment, a.log_start, a.holes = by.first_segment, by.log_start, by.holes
        a.owed = 1

    cdef object _check_start(self, LeaderEntry led, object known, RecoveryReport* report):
        """What the checkpoints say must not contradict the log in silence."""
        cdef PartitionLog* p = led.p
        cdef int64_t log_start = max(known.log_start, known.begin)
        topic, partition = led.key
        if known.first_dirty > 0 and max(known.recovery_point, known.first_dirty) > report.end_found:
            # What is appended would count as compacted: its tombstones would go, and what they delete stay.
            _log.warning(
                "topic=%s partition=%d: its log ends at offset %d, and compaction up to %d was of another one: it "
                "begins again", topic, partition, report.end_found, known.first_dirty,
            )
            led.folder.checkpoints.compact_again(led.key, _topic_id(p))
        if known.recovery_point > report.end_found:
            _log.warning(
                "topic=%s partition=%d: its log ends at offset %d, though records up to %d were flushed: they are gone",
                topic, partition, report.end_found, known.recovery_point,
            )
        if known.topic_id is not None:
            if log_start > report.end_found:
                _log.warning(
                    "topic=%s partition=%d: its log ends at offset %d, before its log start %d: all of it was deleted "
                    "by request, and it goes on at %d", topic, partition, report.end_found, log_start, log_start,
                )
        elif log_start > p.log.log_end:
            _log.warning(
                "topic=%s partition=%d: the log start %d of an unchecked file lies beyond its log end %d and isn't "
                "applied", topic, partition, log_start, p.log.log_end,
            )
        elif log_start > p.log.log_start:
            _log.log(
                logging.INFO if led.folder.checkpoints.whole else logging.WARNING,     # the first start says it loudly
                "topic=%s partition=%d: the log start %d is that of an unchecked file: records below are hidden, and "
                "no file is deleted for it. If they should be seen, stop the broker, remove `penstock-checkpoints`, "
                "take the line of the partition out of `%s`, and start again",
                topic, partition, log_start, STARTS,
            )
            with nogil:
                pthread_mutex_lock(&p.lock)
                p.unchecked_start = log_start
                # The epochs stay as the batches say them: the next start doesn't know better, either.
                atomic_store64(&p.log.log_start, log_start)
                keep_above_log_start(p)
                pthread_mutex_unlock(&p.lock)

    cdef object say(self, LeaderEntry led):
        cdef PartitionLog* p = led.p
        cdef vector[Note] notes
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&p.lock)
            notes.swap(p.log.notes)
            pthread_mutex_unlock(&p.lock)
        folder = os.fsdecode(p.log.folder)
        for i in range(notes.size()):
            level, sentence = _SENTENCES[notes[i].kind]
            stem = f"{folder}/{notes[i].offset:020d}"
            sentence = sentence.format(
                folder=folder, quoted=quoted(folder), stem=stem, offset=notes[i].offset, position=notes[i].position,
                high_watermark=atomic_load64(&p.high_watermark),
            )
            _log.log(level, "%s", sentence)
            with self.lock:
                self.rebuilt_indexes += notes[i].kind == NOTE_REBUILT
                self.damaged_segments += notes[i].kind == NOTE_CORRUPT_READ

    cdef object note(self, LeaderEntry led):
        with self.lock:
            if self.led.get(led.key) is led:
                self._put(led)

    cdef object _put(self, LeaderEntry led):
        cdef int64_t recovery_point, log_start, first_segment, log_end, flushed_end, amendment, high_watermark = -1
        cdef PartitionLog* p = led.p
        # First: what is read after it is no older than the cut.
        amendment = atomic_load64(&p.amendment.number)
        # Not under the partition's lock: the tables' is held here. The log start first, since retention moves it last:
        # else an old segment's name could seem to say a new log start.
        log_start = atomic_load64(&p.log.log_start)
        recovery_point = atomic_load64(&p.log.recovery_point)
        flushed_end = atomic_load64(&p.log_end_flushed)
        log_end = atomic_load64(&p.log.log_end)
        with nogil:
            pthread_mutex_lock(&p.seldom)
            first_segment = p.log.segments.front().base_offset
            pthread_mutex_unlock(&p.seldom)
        if p.log.replicated:
            high_watermark = atomic_load64(&p.high_watermark)
        led.folder.checkpoints.put(
            led.key, _topic_id(p), recovery_point, log_start, first_segment, log_end, flushed_end, high_watermark,
            amendment, p.amendment.least_end,
        )
        if p.amendment.holes:
            led.folder.checkpoints.have_holes(led.key, _topic_id(p))

    def reconfigure(self, str topic, int partition, dict config):
        """Change keys of a partition's configuration; see logtable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef LogConfig parsed
        cdef bint swapping
        merged = read_config(&parsed, {**led.config, **config})
        led.config = merged
        with nogil:
            pthread_mutex_lock(&p.seldom)
            swapping = atomic_load32(&p.swapping) != 0
            logset_count_flushing(self.set, config_flushes(&parsed) - config_flushes(&p.wanted))
            p.wanted = parsed
            atomic_store32(&p.reconfigured, 1)
            pthread_mutex_unlock(&p.seldom)
        return swapping

    def is_swapping(self, str topic, int partition):
        """Whether a pass puts files in the place of others; see logtable.pyi."""
        return atomic_load32(&self.find(topic, partition).p.swapping) != 0

    cdef object _settle(self, LeaderEntry led, int64_t number):
        """The checkpoints have been written: they say what the log's amendments up to that number do."""
        cdef PartitionLog* p = led.p
        if not atomic_load32(&p.amendment.owed):
            return
        with nogil:
            pthread_mutex_lock(&p.upkeep)
        try:
            if p.amendment.number == number and not p.cutting and not p.stopped:
                Path(os.fsdecode(p.log.folder), _AMENDMENT).unlink(missing_ok=True)
                amendment_clear(&p.amendment)
        finally:
            with nogil:
                pthread_mutex_unlock(&p.upkeep)

    cdef LeaderEntry _take_out(self, str topic, int partition, LeaderEntry place=None):
        """Remove a partition from the tables; what its finders hold stays valid until they release it."""
        with self.lock:
            led = self.led.pop((topic, partition), None)
            if led is not None and place is not None:
                place.p.held = atomic_load32(&(<LeaderEntry>led).p.held)
                self.announced[topic, partition] = place
        if led is None:
            led = self.find(topic, partition)     # which raises
        if place is not None:
            logset_add(self.set, place.partition, (<LeaderEntry>led).partition)
        else:
            logset_remove(self.set, (<LeaderEntry>led).partition)
        logset_count_flushing(self.set, -config_flushes(&(<LeaderEntry>led).p.wanted))
        return <LeaderEntry>led

    def stop(self, str topic, int partition, bint announced=False):
        """Flush and close a partition; see logtable.pyi."""
        cdef LeaderEntry led, place = None
        cdef PartitionLog* p
        cdef int result
        if announced:
            p = self.find(topic, partition).p
            place = _new_led(self, (topic, partition), _topic_id(p))
            place.p.stopped = True
        led = self._take_out(topic, partition, place)
        p = led.p
        with nogil:
            end_cleaning(p)
            pthread_mutex_lock(&p.upkeep)
            halt_log(p)
            result = close_log(p, wall_ms())
            pthread_mutex_unlock(&p.upkeep)
        self.say(led)
        if result != 0:
            raise_os(result, p.log.folder)
        self._put(led)

    def retire(self, str topic, int partition):
        """Let nobody find a partition any more; see logtable.pyi."""
        if (topic, partition) in self.led:
            self.retired[topic, partition] = self._take_out(topic, partition)

    def _forget_tally(self, str topic):
        """A deleted topic's figures go with its last partition; the sum of all keeps them."""
        cdef bytes name = topic.encode()
        cdef const char* text = PyBytes_AS_STRING(name)
        cdef size_t n = <size_t>len(name)
        with nogil:
            logset_drop_topic(self.set, text, n)

    def delete(self, str topic, int partition):
        """Stop a partition and remove its folder; see logtable.pyi."""
        cdef LeaderEntry led
        cdef PartitionLog* p
        if (topic, partition) in self.announced:
            self.withdraw(topic, partition)
            self._forget_tally(topic)
            return
        led = self.retired.pop((topic, partition), None) or self._take_out(topic, partition)
        p = led.p
        with nogil:
            end_cleaning(p)
            pthread_mutex_lock(&p.upkeep)
            halt_log(p)
            pthread_mutex_unlock(&p.upkeep)
        self._forget_tally(topic)
        led.folder.forget(led.key)
        path = Path(os.fsdecode(p.log.folder))
        # Kafka's form: a name of at most 255 bytes that no topic can have.
        suffix = f"-{partition}.{os.urandom(16).hex()}-delete"
        gone = path.with_name(topic[: 255 - len(suffix)] + suffix)
        rename_folder(path, gone)
        remove_folder(gone)

    def remove_deleted(self, str folder):
        """Remove folders that a delete had renamed when the broker died; see logtable.pyi."""
        removed = 0
        for path in Path(folder).iterdir():
            if not _DELETED.fullmatch(path.name) or not path.is_dir():
                continue
            try:
                remove_folder(path)
                removed += 1
            except OSError as error:
                if error.errno == errno.EIO:
                    raise
                _log.warning("remains of a deleted partition can't be removed; the next start tries again: %s", error)
        return removed

    def carry_checkpoints(self, str topic, int partition, str folder, str to):
        """Copy what the checkpoints say of a log that isn't open to another folder; see logtable.pyi."""
        cdef Folder after = self.folder(to)
        after.ends.drop(topic, partition)
        if after.checkpoints.carry((topic, partition), self.folder(folder).checkpoints):
            after.checkpoints.write()

    def drop_checkpoints(self, str topic, int partition, str folder):
        """Forget what a folder's checkpoints say of a log; see logtable.pyi."""
        self.folder(folder).forget((topic, partition))

    def write_overdue_checkpoints(self, str folder):
        """Write a folder's checkpoints if they are overdue; see logtable.pyi."""
        self.folder(folder).checkpoints.write_overdue()

    def recovery_point(self, str topic, bytes topic_id, int partition, str folder):
        """The recovery point of a log that isn't open; see logtable.pyi."""
        by = read_amendment(os.path.join(folder, f"{topic}-{partition}"))
        return self.folder(folder).checkpoints.of((topic, partition), topic_id, by).recovery_point

    def had_records(self, str topic, bytes topic_id, int partition, str folder):
        """Whether a log folder knows of records of a log; see logtable.pyi."""
        return self.folder(folder).checkpoints.of((topic, partition), topic_id).least_end > 0

    def first_dirty(self, str topic, bytes topic_id, int partition):
        """How far a log was compacted; see logtable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        by = read_amendment(os.fsdecode(led.p.log.folder)) if atomic_load32(&led.p.amendment.owed) else None
        return led.folder.checkpoints.of((topic, partition), topic_id, by).first_dirty

    def note_holes(self, str topic, bytes topic_id, int partition):
        """Say that a log may have holes from now on; see logtable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        if not led.folder.checkpoints.note_holes(led.key, topic_id):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} opens just now")
        with nogil:
            pthread_mutex_lock(&p.lock)
            p.log.dense = False
            pthread_mutex_unlock(&p.lock)

    def compacted(self, str topic, bytes topic_id, int partition, int64_t first_dirty):
        """Take how far a log was compacted; see logtable.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        with self.lock:
            if self.led.get(led.key) is not led:
                return
            led.folder.checkpoints.put_first_dirty(led.key, topic_id, first_dirty)
        led.folder.checkpoints.write()

    def is_offline(self, str topic, int partition):
        """Whether the disk failed under it; see logtable.pyi."""
        led = self.announced.get((topic, partition))
        return bool((<LeaderEntry>led).p.offline) if led is not None else is_offline(self.find(topic, partition).p)

    def partitions(self):
        """Every partition that is led here."""
        with self.lock:
            return sorted(self.led)
