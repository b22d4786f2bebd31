"""The logs of one broker, for its control plane; see logs.pyi."""

import base64
import os
import threading
from collections import namedtuple
from pathlib import Path

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.operator cimport dereference as at, postincrement as step
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector
from penstock.pyx.append cimport (
    ORIGIN_CLIENT, ORIGIN_COORDINATOR, ORIGIN_MARKER, ORIGIN_REPLICA, Append, partition_append,
)
from penstock.pyx.batch cimport BatchHeader, batch_parse
from penstock.pyx.epochs cimport epochs_cut_start
from penstock.pyx.files cimport is_full, is_passing, made, read_at, wall_ms
from penstock.pyx.logconfig cimport LogConfig, config_flushes, read_config
from penstock.pyx.partition cimport (
    ISOLATION_LOG_END, LogSetOwner, Partition, logset_add, logset_count_flushing, logset_remove,
    partition_epoch_end, partition_leader_epoch, partition_new,
    partition_offsets, partition_release,
)
from penstock.pyx.partitionlog cimport (
    TOPIC_ID_BYTES, LogFolder, PartitionLog, end_cleaning, folder_fail, folder_ran_full, folder_release, is_offline,
    log_of, settle_stable, write_epochs,
)
from penstock.pyx.posix cimport (
    EIO, EMFILE, ENFILE, ENOENT, O_CLOEXEC, O_DIRECTORY, O_RDONLY, atomic_add32, atomic_load32, atomic_store32, close,
    errno, free, malloc, memcpy, open, pthread_mutex_lock, pthread_mutex_unlock, syncfs,
)
from penstock.pyx.producerstate cimport ProducerEntry, producers_get
from penstock.pyx.read cimport (
    SEARCH_INFLATED_MAX_BYTES, AbortedTxn, ReadResult, partition_aborted, partition_find_time, partition_read,
    read_release,
)
from penstock.pyx.recovery cimport RecoveryReport
from penstock.pyx.segment cimport WALK_BATCH, WALK_END, segment_room_end
from penstock.pyx.upkeep cimport (
    Kept, close_log, flush_log, give_back_if_idle, halt_log, housekeep_log, open_log, raise_epoch, settle_log,
)

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.checkpoint import Checkpoints

Recovered = namedtuple("Recovered", "log_start log_end batches_checked cut_bytes")
AppendedTo = namedtuple("Appended", "base_offset log_append_time_ms log_start")
Offsets = namedtuple("Offsets", "log_start last_stable high_watermark log_end leader_epoch")
Producer = namedtuple(
    "Producer", "producer_id producer_epoch last_sequence last_timestamp_ms coordinator_epoch txn_first_offset"
)
LogSegment = namedtuple("LogSegment", "base_offset size_bytes path")
FolderState = namedtuple("FolderState", "failed room rolled ahead")
Housekept = namedtuple("Housekept", "segments_deleted bytes_deleted rolled flushed")
SEARCH_INFLATED_BYTES = SEARCH_INFLATED_MAX_BYTES
globals()["Appended"] = AppendedTo


cdef class _Folder:
    """A log folder: its checkpoint files, and what all its partitions share."""

    cdef LogFolder* shared
    cdef readonly object checkpoints

    def __cinit__(self, path, int news):
        self.checkpoints = Checkpoints(path)
        self.shared = made[LogFolder]()
        self.shared.refs = 1
        self.shared.news = news

    def __dealloc__(self):
        # Partitions that outlive the Logs must not write to a descriptor that is another's by then.
        self.shared.news = -1
        folder_release(self.shared)


cdef class _Led:
    """Holds the set's reference of a led partition, and what Python knows of it."""

    cdef Partition* partition
    cdef PartitionLog* p               # the same, seen from inside
    cdef _Folder folder                # None while it isn't open
    cdef dict config
    cdef tuple key

    def __dealloc__(self):
        if self.partition != NULL:
            partition_release(self.partition)


cdef _Led _new_led(tuple key, bytes topic_id):
    cdef _Led led = _Led()
    name = key[0].encode()
    led.key = key
    led.partition = partition_new(
        PyBytes_AS_STRING(name), <size_t>len(name), <const uint8_t*>PyBytes_AS_STRING(topic_id), key[1]
    )
    led.p = log_of(led.partition)
    read_config(&led.p.config, {})
    return led


def room_end(int64_t batches_end):
    """How far zeros go that were written behind batches; see logs.pyi."""
    return segment_room_end(batches_end)


cdef object _raise_os(int number, object what):
    raise OSError(number, os.strerror(number), str(what))


def _prepare_folder(str folder, topic_id):
    """Make the partition's folder; its `partition.metadata` says the topic id, and another one is refused. Answers
    whether the folder is new."""
    fresh = not os.path.isdir(folder)
    if fresh:
        os.mkdir(folder)
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    known = None if fresh else _read_topic_id(folder)
    if known and known != text:
        raise ValueError(f"`{folder}` belongs to a topic with the id {known}, not {text}")
    if known is None and any(topic_id):
        beside = f"{folder}/partition.metadata.tmp"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, f"version: 0\ntopic_id: {text}\n".encode())
        finally:
            os.close(fd)
        os.rename(beside, f"{folder}/partition.metadata")
    return fresh


def _read_topic_id(str folder):
    """The id in `partition.metadata` as text, which may be empty; None if there is no such file."""
    try:
        fd = os.open(f"{folder}/partition.metadata", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.read(fd, 4096).decode("ascii", "replace").partition("topic_id: ")[2].strip()
    finally:
        os.close(fd)


def _remove_folder(folder):
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


# 0 or errno, of anything that couldn't be written since the last time.
cdef int _sync_file_system(const char* path) noexcept nogil:
    cdef int result = 0
    cdef int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if fd < 0:
        return 0 if errno == ENOENT or errno == EMFILE or errno == ENFILE else errno
    if syncfs(fd) != 0:
        result = errno
    close(fd)
    return result


# How many of the n bytes are whole batches.
cdef size_t _whole_batches(const uint8_t* p, size_t n) noexcept nogil:
    cdef BatchHeader header
    cdef size_t done = 0
    while done < n and batch_parse(p + done, n - done, &header) == 0:
        done += <size_t>header.size
    return done


cdef class Logs(LogSetOwner):
    """Every log that one broker leads; see logs.pyi.

    A partition's lock is taken without the GIL only, and nothing of Python runs under it: a write that hangs under it
    would hold up every thread, and a thread that waits for it with the GIL whoever has it and needs the GIL.
    """

    cdef object _lock                  # the tables below
    cdef dict _led                     # (topic, partition) -> _Led
    cdef object _opening               # those that are on their way into _led
    cdef dict _announced               # (topic, partition) -> _Led of those that aren't open
    cdef dict _folders                 # path -> _Folder
    cdef readonly int news_fd
    cdef object _flush_from            # where flush_rolled goes on

    def __cinit__(self):
        self._lock = threading.Lock()
        self._led = {}
        self._announced = {}
        self._opening = set()
        self._folders = {}
        self._flush_from = 0
        self.news_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __dealloc__(self):
        close(self.news_fd)

    cdef _Led _find(self, str topic, int partition):
        led = self._led.get((topic, partition))
        if led is None:
            led = self._announced.get((topic, partition))
            if led is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not led here")
            if (<_Led>led).p.offline:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline")
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} is not open yet")
        return <_Led>led

    cdef _Folder _folder(self, str path):
        with self._lock:
            if path not in self._folders:
                self._folders[path] = _Folder(path, self.news_fd)
            return self._folders[path]

    def announce(self, str topic, bytes topic_id, int partition, bint offline=False):
        """Say that a partition exists though it isn't open; see logs.pyi."""
        cdef _Led led
        key = (topic, partition)
        with self._lock:
            if key in self._led:
                raise ValueError(f"`{topic}-{partition}` is led already")
            led = self._announced.get(key)
            if led is not None:
                led.p.offline = offline
                led.p.stopped = not offline
                return
            led = _new_led(key, topic_id)
            led.p.offline = offline
            led.p.stopped = not offline
            self._announced[key] = led
            logset_add(self.set, led.partition, NULL)

    def withdraw(self, str topic, int partition):
        """Forget a partition that was announced; see logs.pyi."""
        cdef _Led led
        with self._lock:
            led = self._announced.pop((topic, partition), None)
        if led is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not announced here")
        logset_remove(self.set, led.partition)

    def folder_states(self):
        """What each folder has to tell; see logs.pyi."""
        cdef _Folder folder
        states = {}
        with self._lock:
            for path, folder in self._folders.items():
                states[path] = FolderState(
                    atomic_load32(&folder.shared.failed), atomic_load32(&folder.shared.room),
                    atomic_load32(&folder.shared.rolled) != 0, atomic_load32(&folder.shared.ahead) != 0,
                )
        return states

    def fail_folder(self, str path, int error):
        """Take a folder offline; see logs.pyi."""
        folder_fail(self._folder(path).shared, error)

    def set_room(self, str path, int room):
        """Say whether a folder has room; see logs.pyi."""
        atomic_store32(&self._folder(path).shared.room, room)

    def folder_of(self, str topic, int partition):
        """The log folder that a partition lies in; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        return str(Path(os.fsdecode(led.p.log.folder)).parent)

    def _raise_led_epoch(self, _Led led, int leader_epoch):
        cdef PartitionLog* p = led.p
        with nogil:
            pthread_mutex_lock(&p.lock)
            raise_epoch(p, leader_epoch)
            pthread_mutex_unlock(&p.lock)
        return Recovered(p.log.log_start, p.log.log_end, 0, 0)

    def lead(
        self, str topic, bytes topic_id, int partition, int leader_epoch, str folder, dict config, bint clean=False
    ):
        """Open (or create) a partition's log and take the lead; see logs.pyi."""
        cdef _Led led, before
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
        with self._lock:
            if key in self._led:
                if os.fsdecode((<_Led>self._led[key]).p.log.folder) != str(Path(folder, f"{topic}-{partition}")):
                    raise ValueError(f"`{topic}-{partition}` is led already, from another folder than `{folder}`")
                return self._raise_led_epoch(self._led[key], leader_epoch)
            if key in self._opening:
                raise ValueError(f"`{topic}-{partition}` is being opened already")
            self._opening.add(key)
        try:
            path = os.path.join(folder, f"{topic}-{partition}")
            fresh = _prepare_folder(path, topic_id)
            led = _new_led(key, topic_id)
            led.config = merged
            led.folder = self._folder(folder)
            if fresh:
                led.folder.checkpoints.drop(key)  # a deleted topic's, if the broker died before they were written
            p = led.p
            p.folder = led.folder.shared
            atomic_add32(&p.folder.refs, 1)
            p.config = parsed
            p.log.folder = os.fsencode(path)
            p.log.log_start = led.folder.checkpoints.start.get(key, 0)
            p.log.recovery_point = led.folder.checkpoints.recovery.get(key, 0)
            p.log.index_interval_bytes = parsed.index_interval_bytes
            p.log.dense = not parsed.cleanup_compact
            with nogil:
                result = open_log(p, leader_epoch, clean, &report)
            if result != 0:
                _raise_os(result, path)
            with self._lock:
                self._led[key] = led
                before = self._announced.pop(key, None)
                logset_add(self.set, led.partition, <Partition*>NULL if before is None else before.partition)
                logset_count_flushing(self.set, config_flushes(&parsed))
        finally:
            with self._lock:
                self._opening.discard(key)
        self._note(led)
        return Recovered(p.log.log_start, p.log.log_end, report.batches_checked, report.cut_bytes)

    cdef object _note(self, _Led led):
        """Give a partition's offsets to its folder's checkpoints (in memory), unless it isn't led any more: what a
        delete has dropped must not come back, a later topic of the name would begin with it."""
        with self._lock:
            if self._led.get(led.key) is led:
                self._put(led)

    cdef object _put(self, _Led led):
        cdef int64_t recovery_point, log_start, first_segment
        cdef PartitionLog* p = led.p
        with nogil:
            pthread_mutex_lock(&p.lock)
            recovery_point = p.log.recovery_point
            log_start = p.log.log_start
            first_segment = p.log.segments.front().base_offset
            pthread_mutex_unlock(&p.lock)
        led.folder.checkpoints.put(led.key, recovery_point, log_start, first_segment)

    def reconfigure(self, str topic, int partition, dict config):
        """Change keys of a partition's configuration; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef LogConfig parsed
        merged = read_config(&parsed, {**led.config, **config})
        led.config = merged
        with nogil:
            pthread_mutex_lock(&p.lock)
            logset_count_flushing(self.set, config_flushes(&parsed) - config_flushes(&p.config))
            pthread_mutex_lock(&p.settings)
            p.config = parsed
            pthread_mutex_unlock(&p.settings)
            p.log.index_interval_bytes = parsed.index_interval_bytes
            pthread_mutex_unlock(&p.lock)

    cdef _Led _take_out(self, str topic, int partition, _Led place=None):
        """Remove a partition from the tables; what its finders hold stays valid until they release it."""
        with self._lock:
            led = self._led.pop((topic, partition), None)
            if led is not None and place is not None:
                self._announced[topic, partition] = place
        if led is None:
            led = self._find(topic, partition)     # which raises
        if place is not None:
            logset_add(self.set, place.partition, (<_Led>led).partition)
        else:
            logset_remove(self.set, (<_Led>led).partition)
        logset_count_flushing(self.set, -config_flushes(&(<_Led>led).p.config))
        return <_Led>led

    def stop(self, str topic, int partition, bint announced=False):
        """Flush and close a partition; see logs.pyi."""
        cdef _Led led, place = None
        cdef PartitionLog* p
        cdef int result
        if announced:
            p = self._find(topic, partition).p
            place = _new_led((topic, partition), PyBytes_FromStringAndSize(<char*>p.topic_id, TOPIC_ID_BYTES))
            place.p.stopped = True
        led = self._take_out(topic, partition, place)
        p = led.p
        with nogil:
            end_cleaning(p)
            pthread_mutex_lock(&p.upkeep)
            halt_log(p)
            result = close_log(p, wall_ms())
            pthread_mutex_unlock(&p.upkeep)
        if result != 0:
            _raise_os(result, p.log.folder)
        self._put(led)

    def delete(self, str topic, int partition):
        """Stop a partition and remove its folder; see logs.pyi."""
        cdef _Led led
        cdef PartitionLog* p
        if (topic, partition) in self._announced:
            self.withdraw(topic, partition)
            return
        led = self._take_out(topic, partition)
        p = led.p
        with nogil:
            end_cleaning(p)
            pthread_mutex_lock(&p.upkeep)
            halt_log(p)
            pthread_mutex_unlock(&p.upkeep)
        led.folder.checkpoints.drop(led.key)
        path = Path(os.fsdecode(p.log.folder))
        # Kafka's form: a name of at most 255 bytes that no topic can have.
        suffix = f"-{partition}.{os.urandom(16).hex()}-delete"
        gone = path.with_name(topic[: 255 - len(suffix)] + suffix)
        path.rename(gone)
        _remove_folder(gone)

    def remove_deleted(self, str folder):
        """Remove folders that a delete had renamed when the broker died; see logs.pyi."""
        removed = 0
        for path in Path(folder).glob("*-delete"):
            name, _, mark = path.name.rpartition(".")
            if name and len(mark) == 32 + len("-delete") and path.is_dir():
                _remove_folder(path)
                removed += 1
        return removed

    cdef int _epoch(self, _Led led):
        cdef int32_t epoch
        with nogil:
            epoch = partition_leader_epoch(led.partition)
        return epoch

    cdef object _append(self, str topic, int partition, bytes records, int origin, int leader_epoch):
        cdef _Led led = self._find(topic, partition)
        cdef Append one
        cdef Append* part = &one
        cdef int64_t may_inflate = INT64_MAX
        cdef size_t n = <size_t>PyBytes_GET_SIZE(records)
        if leader_epoch >= 0 and leader_epoch != self._epoch(led):
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"{topic}-{partition} is at another epoch")
        one.n = n
        one.origin = origin
        one.may_inflate = &may_inflate
        one.records = <uint8_t*>malloc(n if n > 0 else 1)
        if one.records == NULL:
            raise MemoryError
        memcpy(one.records, PyBytes_AS_STRING(records), n)
        with nogil:
            partition_append(led.partition, &part, 1)
        free(one.records)
        if one.done.error != 0:
            raise KafkaError(one.done.error, f"append to {topic}-{partition}")
        return AppendedTo(one.done.base_offset, one.done.log_append_time_ms, one.done.log_start_offset)

    def append(self, str topic, int partition, bytes records, int leader_epoch=-1):
        """Append as a coordinator; see logs.pyi."""
        return self._append(topic, partition, records, ORIGIN_COORDINATOR, leader_epoch)

    def append_marker(self, str topic, int partition, bytes records):
        """Append a marker of transactions v2; see logs.pyi."""
        return self._append(topic, partition, records, ORIGIN_MARKER, -1)

    def append_client(self, str topic, int partition, bytes records):
        """Append as a client; see logs.pyi."""
        return self._append(topic, partition, records, ORIGIN_CLIENT, -1)

    def append_replica(self, str topic, int partition, bytes records):
        """Append a leader's bytes as they are; see logs.pyi."""
        return self._append(topic, partition, records, ORIGIN_REPLICA, -1)

    def read(self, str topic, int partition, int64_t offset, int32_t max_bytes, int isolation=ISOLATION_LOG_END):
        """Whole raw batches; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef ReadResult result
        cdef int16_t error
        cdef int64_t got = 0
        cdef size_t whole
        with nogil:
            error = partition_read(led.partition, offset, max_bytes, True, <int8_t>isolation, &result)
        if error != 0:
            raise KafkaError(error, f"read of {topic}-{partition} at {offset}")
        if result.length == 0:
            return b""
        out = PyBytes_FromStringAndSize(NULL, result.length)
        cdef char* to = PyBytes_AS_STRING(out)
        with nogil:
            got = read_at(result.fd, to, <size_t>result.length, result.position)
            read_release(&result)
            whole = _whole_batches(<const uint8_t*>to, <size_t>(got if got > 0 else 0))
        if got < 0:
            _raise_os(<int>-got, p.log.folder)
        return out if <int64_t>whole == result.length else out[:whole]

    def aborted(self, str topic, int partition, int64_t from_offset, int64_t to_offset):
        """Aborted transactions of a range; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef vector[AbortedTxn] found
        cdef int16_t error
        cdef size_t i
        with nogil:
            error = partition_aborted(led.partition, from_offset, to_offset, found)
        if error != 0:
            raise KafkaError(error, f"aborted transactions of {topic}-{partition}")
        return [(found[i].producer_id, found[i].first_offset) for i in range(found.size())]

    def offsets(self, str topic, int partition):
        """Where the log begins and ends; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef int64_t log_start, last_stable, high_watermark, log_end
        with nogil:
            partition_offsets(led.partition, &log_start, &last_stable, &high_watermark, &log_end)
        return Offsets(log_start, last_stable, high_watermark, log_end, self._epoch(led))

    # By its holder: it keeps the partition alive while the GIL is released.
    cdef object _answer_time(self, _Led led, int64_t timestamp_ms):
        cdef PartitionLog* p = led.p
        cdef int64_t offset = -1, timestamp = -1
        cdef int result
        with nogil:
            result = partition_find_time(led.partition, timestamp_ms, &offset, &timestamp)
        if result == WALK_END:
            return None
        if result != WALK_BATCH:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, os.fsdecode(p.log.folder))
        return offset, timestamp

    def offset_for_timestamp(self, str topic, int partition, int64_t timestamp_ms):
        """The first record at or after a time; see logs.pyi."""
        return self._answer_time(self._find(topic, partition), timestamp_ms)

    def max_timestamp(self, str topic, int partition):
        """The record with the largest timestamp; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef int64_t newest = -1
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&p.lock)
            for i in range(p.log.segments.size()):
                if p.log.segments[i].next_offset > p.log.log_start and p.log.segments[i].max_timestamp > newest:
                    newest = p.log.segments[i].max_timestamp
            pthread_mutex_unlock(&p.lock)
        return None if newest < 0 else self._answer_time(led, newest)

    def offset_for_epoch(self, str topic, int partition, int epoch):
        """Where a leader epoch ended; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef int32_t found
        cdef int64_t end_offset
        with nogil:
            partition_epoch_end(led.partition, epoch, &found, &end_offset)
        return found, end_offset

    def delete_records_before(self, str topic, int partition, int64_t offset):
        """Move the log start; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef int64_t log_start
        cdef bint stopped, out_of_range
        with nogil:
            pthread_mutex_lock(&p.lock)
            stopped = p.stopped
            if offset == -1:
                offset = p.high_watermark
            out_of_range = offset > p.high_watermark or offset < 0
            if not stopped and not out_of_range and offset > p.log.log_start:
                p.log.log_start = offset
                settle_stable(p)
                if epochs_cut_start(&p.log.epochs, offset):
                    write_epochs(p, False)
            log_start = p.log.log_start
            pthread_mutex_unlock(&p.lock)
        if stopped:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} was stopped")
        if out_of_range:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"delete of records before {offset} in {topic}-{partition}")
        self._note(led)
        # Before the answer: a kill must not bring deleted records back.
        led.folder.checkpoints.write()
        return log_start

    def producers(self, str topic, int partition):
        """What the log knows of its producers; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef vector[ProducerEntry] entries
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&p.lock)
            place = p.log.producers.entries.begin()
            while place != p.log.producers.entries.end():
                entries.push_back(at(place).second)
                step(place)
            pthread_mutex_unlock(&p.lock)
        return sorted(
            Producer(
                entries[i].producer_id,
                entries[i].epoch,
                entries[i].batches[entries[i].count - 1].last_sequence if entries[i].count > 0 else -1,
                entries[i].last_timestamp_ms,
                entries[i].coordinator_epoch,
                entries[i].txn_first_offset,
            )
            for i in range(entries.size())
        )

    def sequences(self, str topic, int partition, int64_t producer_id):
        """(first sequence, last sequence, first offset) of the remembered batches; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef ProducerEntry e
        cdef int i
        with nogil:
            pthread_mutex_lock(&p.lock)
            e = producers_get(&p.log.producers, producer_id)
            pthread_mutex_unlock(&p.lock)
        return [
            (
                e.batches[i].last_sequence - e.batches[i].offset_delta,
                e.batches[i].last_sequence,
                e.batches[i].last_offset - e.batches[i].offset_delta,
            )
            for i in range(e.count)
        ]

    def housekeep(self, str topic, int partition, int64_t now_ms):
        """Roll, retention, flush, expiry, idle files; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef Kept kept
        cdef int result
        with nogil:
            pthread_mutex_lock(&p.upkeep)
            result = housekeep_log(p, now_ms, &kept)
            pthread_mutex_unlock(&p.upkeep)
        self._note(led)
        if result != 0:
            _raise_os(result, p.log.folder)
        return Housekept(kept.segments_deleted, kept.bytes_deleted, bool(kept.rolled), bool(kept.flushed))

    def carry_checkpoints(self, str topic, int partition, str folder, str to):
        """Copy what the checkpoints say of a log that isn't open to another folder; see logs.pyi."""
        after = self._folder(to).checkpoints
        after.carry((topic, partition), self._folder(folder).checkpoints)
        after.write()

    def drop_checkpoints(self, str topic, int partition, str folder):
        """Forget what a folder's checkpoints say of a log; see logs.pyi."""
        self._folder(folder).checkpoints.drop((topic, partition))

    def flush_rolled(self, int most=0x7fffffff):
        """Flush the segments that were sealed; see logs.pyi."""
        cdef _Led led
        cdef _Folder folder
        with self._lock:
            every = list(self._led.values())
            for folder in self._folders.values():
                atomic_store32(&folder.shared.rolled, 0)
        done, first = 0, self._flush_from % max(1, len(every))
        for i in range(len(every)):
            led = every[(first + i) % len(every)]
            if not led.p.rolled:
                continue
            if done == most:
                atomic_store32(&led.folder.shared.rolled, 1)
                break
            with nogil:
                pthread_mutex_lock(&led.p.upkeep)
                led.p.rolled = False
                # What fails takes its folder offline, or is tried again by the next housekeeping.
                if not led.p.stopped and not is_offline(led.p):
                    flush_log(led.p, False, wall_ms(), False)
                pthread_mutex_unlock(&led.p.upkeep)
            done += 1
            self._flush_from = first + i + 1     # each has its turn, however often another rolls
        return done

    def give_back_idle(self):
        """Give back what files have ahead of logs that nobody appends to; see logs.pyi."""
        cdef _Led led
        cdef _Folder folder
        cdef bint idle
        with self._lock:
            for folder in self._folders.values():
                atomic_store32(&folder.shared.ahead, 0)
            every = [led for led in self._led.values() if atomic_load32(&(<_Led>led).p.ahead)]
        done = 0
        for led in every:
            with nogil:
                idle = give_back_if_idle(led.p)
            done += idle
            if not idle:
                atomic_store32(&led.folder.shared.ahead, 1)
        return done

    def settle_all(self):
        """Write out what is in memory and sync whole file systems; see logs.pyi."""
        cdef _Led led
        cdef _Folder folder
        cdef int result
        cdef bytes where
        cdef const char* folder_path
        with self._lock:
            every = list(self._led.values())
            folders = dict(self._folders)
        for led in every:
            with nogil:
                pthread_mutex_lock(&led.p.upkeep)
                settle_log(led.p)          # what fails here is written, and said, by its stop
                pthread_mutex_unlock(&led.p.upkeep)
        for path, folder in folders.items():
            if atomic_load32(&folder.shared.failed):
                continue
            where = os.fsencode(path)
            folder_path = PyBytes_AS_STRING(where)
            with nogil:
                result = _sync_file_system(folder_path)
            if result != 0:
                folder_fail(folder.shared, result)

    def flush_all(self):
        """Flush every log; see logs.pyi."""
        cdef _Led led
        cdef PartitionLog* p
        cdef int result
        failed = None
        with self._lock:
            every = list(self._led.values())
        for led in every:
            p = led.p
            with nogil:
                pthread_mutex_lock(&p.upkeep)
                if p.stopped:              # flushed by its stop, or deleted: its paths may be another log's by now
                    result = 0
                else:
                    result = EIO if is_offline(p) else flush_log(p, True, wall_ms(), False)
                pthread_mutex_unlock(&p.upkeep)
            if result != 0:
                failed = failed or OSError(result, os.strerror(result), os.fsdecode(p.log.folder))
        self.write_checkpoints()
        if failed is not None:
            raise failed

    def write_checkpoints(self):
        """Write the checkpoint files that changed; see logs.pyi."""
        with self._lock:
            every = list(self._led.values())
            folders = dict(self._folders)
        used = set()
        for led in every:
            self._note(led)
            used.add((<_Led>led).folder)
        failed = None
        for path, folder in folders.items():
            if atomic_load32(&(<_Folder>folder).shared.failed):
                continue                   # what it holds is looked at anew when it comes back
            if folder not in used and not os.path.isdir(path):
                continue                   # it went with its last log
            try:
                folder.checkpoints.write()
            except OSError as error:
                failed = failed or error
                if not is_passing(error.errno):
                    folder_fail((<_Folder>folder).shared, error.errno)
                elif is_full(error.errno):
                    folder_ran_full((<_Folder>folder).shared)
        if failed is not None:
            raise failed

    def size_bytes(self, str topic, int partition):
        """Bytes of all segments; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef int64_t size = 0
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&p.lock)
            for i in range(p.log.segments.size()):
                size += p.log.segments[i].size
            pthread_mutex_unlock(&p.lock)
        return size

    def segments(self, str topic, int partition):
        """The segments, oldest first; see logs.pyi."""
        cdef _Led led = self._find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef vector[string] stems
        cdef vector[int64_t] bases, sizes
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&p.lock)
            for i in range(p.log.segments.size()):
                stems.push_back(p.log.segments[i].stem)
                bases.push_back(p.log.segments[i].base_offset)
                sizes.push_back(p.log.segments[i].size)
            pthread_mutex_unlock(&p.lock)
        found = []
        for i in range(stems.size()):
            stem = PyBytes_FromStringAndSize(stems[i].data(), <Py_ssize_t>stems[i].size())
            found.append(LogSegment(bases[i], sizes[i], os.fsdecode(stem) + ".log"))
        return found

    def is_offline(self, str topic, int partition):
        """Whether the disk failed under it; see logs.pyi."""
        led = self._announced.get((topic, partition))
        return bool((<_Led>led).p.offline) if led is not None else is_offline(self._find(topic, partition).p)

    def partitions(self):
        """Every partition that is led here."""
        with self._lock:
            return sorted(self._led)
