"""The logs of one broker, for its control plane; see logmanager.pyi."""

import os
from collections import namedtuple
from enum import IntEnum
from typing import NamedTuple
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from cython.operator cimport dereference as at, postincrement as step
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock import log
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.errorcodes cimport NOT_LEADER_OR_FOLLOWER
from penstock.pyx.linux.descriptors cimport set_close_files
from penstock.pyx.linux.posix cimport (
    ENOENT, atomic_load32, atomic_load64, atomic_store32, errno, free, malloc, memcpy, pthread_mutex_lock,
    pthread_mutex_unlock, syncfs,
)
from penstock.pyx.log.append cimport Append, partition_append
from penstock.pyx.log.endslots import NAME, slots_lost
from penstock.pyx.log.files cimport dropped, is_full, is_passing, made, read_at, wall_ms
from penstock.pyx.log.followerask cimport FollowerAsk as _Ask
from penstock.pyx.log.following cimport (
    FOLLOW_DISK, FOLLOW_DONE, FOLLOW_REFUSED, FOLLOW_ROTTEN, FOLLOW_STALE, follower_append, follower_ask,
    follower_begin, follower_cut,
)
from penstock.pyx.log.logtable cimport Folder, LeaderEntry, raise_os
from penstock.pyx.log.openfiles cimport close_files
from penstock.pyx.log.origin cimport CLIENT, COORDINATOR, MARKER, REPLICA, Origin, from_coordinator
from penstock.pyx.log.pagecache cimport read_cached_at
from penstock.pyx.log.partition cimport (
    ISOLATION_LOG_END, Extent, logset_extents, logset_tallies, partition_epoch_end, partition_leader_epoch,
    partition_offsets, wake_reactors,
)
from penstock.pyx.log.partitionlog cimport (
    PartitionLog, doubt_segment, fail_log, folder_fail, folder_ran_full, is_offline, move_log_start, serves_clients,
)
from penstock.pyx.log.producerstate cimport NO_OFFSET, ProducerEntry, guard_counts, next_guard, producers_get
from penstock.pyx.log.proof cimport prove_doubted
from penstock.pyx.log.read cimport (
    SEARCH_INFLATED_MAX_BYTES, AbortedTxn, ReadResult, partition_aborted, partition_find_time, partition_read,
    partition_read_cached, read_release,
)
from penstock.pyx.log.replicatable cimport ReplicaTable
from penstock.pyx.log.role cimport NO_EPOCH
from penstock.pyx.log.room cimport room_bound
from penstock.pyx.log.segment cimport WALK_BATCH, WALK_END, Segment
from penstock.pyx.log.topictally cimport PartitionTally, TopicTally, tally_sum, topic_tally_release
from penstock.pyx.log.truncation cimport (
    CUT_ENDED, TAKE_DONE, TAKE_NOTHING, TAKE_STALE, Truncation, truncation_close, truncation_open, truncation_plan,
    truncation_step, truncation_take,
)
from penstock.pyx.log.upkeep cimport (
    BY_BYTES, BY_LOG_START, BY_TIME, Upkeep, flush_log, flush_until, give_back_if_idle, is_flush_deferred,
    prepare_log_sync, remove_expired, upkeep_log,
)
from penstock.pyx.record.batch cimport (
    DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, RECORDS_AT, BatchHeader, batch_parse, batch_parse_header,
)

Appended = namedtuple("Appended", "base_offset log_append_time_ms log_start needed waits")
Offsets = namedtuple("Offsets", "log_start last_stable high_watermark log_end leader_epoch")
Producer = namedtuple(
    "Producer", "producer_id producer_epoch last_sequence last_timestamp_ms coordinator_epoch txn_first_offset"
)
LogSegment = namedtuple("LogSegment", "base_offset size_bytes path")
UpkeepResult = namedtuple("UpkeepResult", "segments_deleted bytes_deleted newest_ms reasons rolled flushed")


cdef extern from *:
    """
    static inline PyObject* tuple_like(PyObject* type, Py_ssize_t n) {
        return ((PyTypeObject*)type)->tp_alloc((PyTypeObject*)type, n);
    }
    """
    # A tuple of a subclass, without its numbers.
    object tuple_like(object type, Py_ssize_t n)

cdef enum:
    FIGURES = 7                        # fields of TopicFigures


class TopicFigures(NamedTuple):
    """What was counted of a topic; see logmanager.pyi."""

    messages_in: int
    bytes_in: int
    bytes_out: int
    produce_requests: int
    fetch_requests: int
    failed_produces: int
    failed_fetches: int


_REASONS = {BY_LOG_START: "deleted records", BY_TIME: "retention.ms", BY_BYTES: "retention.bytes"}
SEARCH_INFLATED_BYTES = SEARCH_INFLATED_MAX_BYTES

CUTTING = declare("log.cutting", "before each step that changes files of a log that is cut, and after the last one")

_log = log.get(__name__)

set_close_files(close_files)


def room_end(int64_t batches_end):
    """How far zeros go that were written behind batches; see logmanager.pyi."""
    return room_bound(batches_end)


cdef object _figures(const PartitionTally* sum):
    """As TopicFigures(...) makes it: its class's call takes four times as long, and there may be 10,000 topics."""
    cdef int64_t* numbers = [
        sum.messages_in, sum.bytes_in, sum.bytes_out, sum.appends + sum.refusals, sum.fetches,
        sum.appends_failed + sum.refusals, sum.fetches_failed,
    ]
    cdef object figures = tuple_like(TopicFigures, FIGURES)
    cdef object number
    cdef int i
    for i in range(FIGURES):
        number = numbers[i]
        Py_INCREF(number)              # the place in the tuple takes it over
        PyTuple_SET_ITEM(figures, i, number)
    return figures


class FollowerAsk(NamedTuple):
    """What a follower's fetch names; see logmanager.pyi."""

    leader: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start: int


class FollowResult(IntEnum):
    """What became of a leader's answer; see logmanager.pyi."""

    DONE = FOLLOW_DONE
    STALE = FOLLOW_STALE
    ROTTEN = FOLLOW_ROTTEN
    REFUSED = FOLLOW_REFUSED
    DISK = FOLLOW_DISK


cdef object _producer(const ProducerEntry* e):
    return Producer(
        e.producer_id,
        e.epoch,
        e.batches[e.count - 1].last_sequence if e.count > 0 else -1,
        e.last_timestamp_ms,
        e.coordinator_epoch,
        e.txn_first_offset,
    )


cdef _Ask _ask_of(object given):
    cdef _Ask ask
    ask.leader_id, ask.broker_epoch, ask.leader_epoch, ask.offset, ask.last_epoch, ask.log_start = given
    return ask


cdef size_t _whole_batches(const uint8_t* p, size_t n) noexcept nogil:
    """How many of the n bytes are whole batches."""
    cdef BatchHeader header
    cdef size_t done = 0
    while done < n and batch_parse(p + done, n - done, &header) == 0:
        done += <size_t>header.size
    return done


cdef class LogManager(ReplicaTable):
    """Every log that one broker leads; see logmanager.pyi. Locks: logtable.pxd."""

    cdef dict _flush_from              # where flush_rolled goes on, by log folder

    def __cinit__(self):
        self._flush_from = {}

    cdef int _epoch(self, LeaderEntry led):
        cdef int32_t epoch
        with nogil:
            epoch = partition_leader_epoch(led.partition)
        return epoch

    # Prove what is doubted, if something is: whether looking again is of use. Another thread may have proved it since
    # the caller looked.
    cdef bint _prove(self, LeaderEntry led) except -1:
        cdef PartitionLog* p = led.p
        cdef int result = 0
        cdef uint64_t wake = 0
        if atomic_load32(&p.doubted):
            with nogil:
                pthread_mutex_lock(&p.upkeep)
                if is_offline(p):
                    atomic_store32(&p.doubted, 0)
                elif not p.stopped:
                    result = prove_doubted(p, wall_ms())
                    if result == ENOENT:
                        pthread_mutex_lock(&p.lock)
                        wake = fail_log(p, result)
                        pthread_mutex_unlock(&p.lock)
                        wake_reactors(led.partition, wake)
                pthread_mutex_unlock(&p.upkeep)
            self.say(led)
            if result != 0 and result != ENOENT:
                raise_os(result, p.log.folder)
        return not p.stopped and not is_offline(p)

    cdef object _append(self, str topic, int partition, bytes records, Origin origin, int led_since):
        cdef LeaderEntry led = self.find(topic, partition)
        cdef Append one
        cdef Append* part = &one
        cdef int64_t may_inflate = INT64_MAX
        cdef int64_t work_left = INT64_MAX
        cdef size_t n = <size_t>PyBytes_GET_SIZE(records)
        one.n = n
        one.origin = origin
        one.ask = NULL
        one.may_inflate = &may_inflate
        one.work_left = &work_left
        one.checked = NULL
        one.acks_all = from_coordinator(origin)
        one.led_since = led_since
        one.guard = 0
        one.lease_until_ms = NULL
        one.records = <uint8_t*>malloc(n if n > 0 else 1)
        if one.records == NULL:
            raise MemoryError
        memcpy(one.records, PyBytes_AS_STRING(records), n)
        with nogil:
            partition_append(led.partition, &part, 1)
        free(one.records)
        if one.done.error != 0:
            raise KafkaError(one.done.error, f"append to {topic}-{partition}")
        return Appended(
            one.done.base_offset, one.done.log_append_time_ms, one.done.log_start_offset, one.done.needed,
            bool(one.done.waits),
        )

    def append(self, str topic, int partition, bytes records, int led_since=NO_EPOCH):
        """Append as a coordinator; see logmanager.pyi."""
        return self._append(topic, partition, records, COORDINATOR, led_since)

    def append_marker(self, str topic, int partition, bytes records, int led_since=NO_EPOCH):
        """Append a marker of transactions v2; see logmanager.pyi."""
        return self._append(topic, partition, records, MARKER, led_since)

    def append_client(self, str topic, int partition, bytes records):
        """Append as a client; see logmanager.pyi."""
        return self._append(topic, partition, records, CLIENT, NO_EPOCH)

    def append_replica(self, str topic, int partition, bytes records):
        """Append a leader's bytes as they are; see logmanager.pyi."""
        return self._append(topic, partition, records, REPLICA, NO_EPOCH)

    def read(self, str topic, int partition, int64_t offset, int32_t max_bytes, int isolation=ISOLATION_LOG_END):
        """Whole raw batches; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef ReadResult result
        cdef int16_t error
        cdef int64_t got = 0
        cdef size_t whole
        while True:
            with nogil:
                error = partition_read(led.partition, offset, max_bytes, True, <int8_t>isolation, &result)
            if error != NOT_LEADER_OR_FOLLOWER or not self._prove(led):
                break
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
            raise_os(<int>-got, p.log.folder)
        return out if <int64_t>whole == result.length else out[:whole]

    def aborted(self, str topic, int partition, int64_t from_offset, int64_t to_offset):
        """Aborted transactions of a range; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef vector[AbortedTxn] found
        cdef int16_t error
        cdef size_t i
        while True:
            found.clear()
            with nogil:
                error = partition_aborted(led.partition, from_offset, to_offset, found)
            if error != NOT_LEADER_OR_FOLLOWER or not self._prove(led):
                break
        if error != 0:
            raise KafkaError(error, f"aborted transactions of {topic}-{partition}")
        return [(found[i].producer_id, found[i].first_offset) for i in range(found.size())]

    def offsets(self, str topic, int partition):
        """Where the log begins and ends; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef int64_t log_start, last_stable, high_watermark, log_end
        with nogil:
            partition_offsets(led.partition, &log_start, &last_stable, &high_watermark, &log_end)
        return Offsets(log_start, last_stable, high_watermark, log_end, self._epoch(led))

    # By its holder: it keeps the partition alive while the GIL is released.
    cdef object _answer_time(self, LeaderEntry led, int64_t timestamp_ms):
        cdef PartitionLog* p = led.p
        cdef int64_t offset = -1, timestamp = -1
        cdef int result
        cdef int16_t error
        while True:
            error = 0
            with nogil:
                result = partition_find_time(led.partition, timestamp_ms, &offset, &timestamp, &error)
            if error != NOT_LEADER_OR_FOLLOWER or not self._prove(led):
                break
        if result == WALK_END:
            return None
        if result != WALK_BATCH:
            raise KafkaError(error, os.fsdecode(p.log.folder))
        return offset, timestamp

    def offset_for_timestamp(self, str topic, int partition, int64_t timestamp_ms):
        """The first record at or after a time; see logmanager.pyi."""
        return self._answer_time(self.find(topic, partition), timestamp_ms)

    def max_timestamp(self, str topic, int partition):
        """The record with the largest timestamp; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef int64_t newest = -1
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&p.lock)
            for i in range(p.log.segments.size()):
                if not p.log.segments[i].proved and not p.log.segments[i].corrupt:
                    doubt_segment(p, p.log.segments[i])
            pthread_mutex_unlock(&p.lock)
        self._prove(led)
        with nogil:
            pthread_mutex_lock(&p.lock)
            for i in range(p.log.segments.size()):
                if p.log.segments[i].next_offset > p.log.log_start and p.log.segments[i].max_timestamp > newest:
                    newest = p.log.segments[i].max_timestamp
            pthread_mutex_unlock(&p.lock)
        if newest < 0:
            return None
        found = self._answer_time(led, newest)
        return found if found is not None else self._newest_below(led, newest)

    # Records before the log start have the largest timestamp of their segment: finds the largest one of the others, by
    # halving.
    cdef object _newest_below(self, LeaderEntry led, int64_t too_new):
        cdef int64_t low = -1, high = too_new - 1, middle
        best = self._answer_time(led, -1)
        if best is not None:
            low = best[1]
        while best is not None and low < high:
            middle = low + (high - low + 1) // 2
            found = self._answer_time(led, middle)
            if found is None:
                high = middle - 1
            else:
                best, low = found, found[1]
        return best

    cdef object _batch_time(self, str topic, int partition, int64_t offset):
        cdef LeaderEntry led
        cdef ReadResult result
        cdef BatchHeader header
        cdef uint8_t first[RECORDS_AT]
        cdef int64_t timestamp = -1
        cdef int16_t error
        cdef bint is_exact = False
        try:
            led = self.find(topic, partition)
        except KafkaError:
            return None
        with nogil:
            error = partition_read_cached(led.partition, offset, RECORDS_AT, True, ISOLATION_LOG_END, &result)
            if result.segment != NULL:
                if (
                    error == 0
                    and read_cached_at(result.fd, first, RECORDS_AT, result.position) == RECORDS_AT
                    and batch_parse_header(first, RECORDS_AT, &header) == 0
                ):
                    timestamp = header.base_timestamp
                    if header.attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT):
                        timestamp = header.max_timestamp       # the other one is another time
                    is_exact = timestamp >= 0
                if timestamp < 0:
                    timestamp = atomic_load64(&(<Segment*>result.segment).max_timestamp)
            read_release(&result)
        return (timestamp, is_exact) if timestamp >= 0 else None

    def batch_times(self, list wanted):
        """When the batches at some offsets were written; see logmanager.pyi."""
        return [self._batch_time(topic, partition, offset) for topic, partition, offset in wanted]

    def offset_for_epoch(self, str topic, int partition, int epoch):
        """Where a leader epoch ended; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef int32_t found
        cdef int64_t end_offset
        with nogil:
            partition_epoch_end(led.partition, epoch, &found, &end_offset)
        return found, end_offset

    cdef object _move_start(self, LeaderEntry led, int64_t offset):
        """The new log start (not in the checkpoints' file yet), or the KafkaError that says why it stays."""
        cdef PartitionLog* p = led.p
        cdef int64_t log_start
        cdef bint stopped, out_of_range
        with nogil:
            pthread_mutex_lock(&p.lock)
            stopped = p.stopped or not serves_clients(p)
            if offset == -1:
                offset = p.high_watermark
            out_of_range = offset > p.high_watermark or offset < 0
            if not stopped and not out_of_range and offset > p.log.log_start:
                move_log_start(p, offset)
            log_start = p.log.log_start
            pthread_mutex_unlock(&p.lock)
        name = "%s-%d" % led.key
        if stopped:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} was stopped, or is led by another broker")
        if out_of_range:
            return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"delete of records before {offset} in {name}")
        self.note(led)
        return log_start

    def delete_records(self, object before):
        """Move log starts; see logmanager.pyi."""
        cdef LeaderEntry led
        outcomes, folders = [], {}
        for topic, topic_id, partition, offset in before:
            try:
                led = self.find_id(topic, topic_id, partition)
            except KafkaError as error:
                outcomes.append(error)
                continue
            outcome = self._move_start(led, offset)
            if not isinstance(outcome, KafkaError):
                folders.setdefault(led.folder, []).append(len(outcomes))
            outcomes.append(outcome)
        # Before the answer: a kill must not bring deleted records back. Synced, so once for all.
        for folder, moved in folders.items():
            try:
                folder.checkpoints.write()
            except OSError as error:
                for i in moved:
                    outcomes[i] = error
        return outcomes

    def truncate(self, str topic, int partition, int64_t offset):
        """Cut a log; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef Truncation* t = made[Truncation]()
        cdef int result, taken = TAKE_NOTHING
        with nogil:
            truncation_open(p, t, wall_ms())
            result = truncation_plan(p, t, offset)
            if result == 0:
                taken = truncation_take(p, t, NULL)
        try:
            while result == 0 and taken == TAKE_DONE and t.step != CUT_ENDED:
                failpoint(CUTTING)
                with nogil:
                    result = truncation_step(p, t)
            failpoint(CUTTING)
        finally:
            with nogil:
                truncation_close(p, t)
            dropped[Truncation](t)
        self.say(led)
        if result != 0:
            raise_os(result, p.log.folder)
        if taken == TAKE_STALE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} was stopped")
        if taken != TAKE_DONE and taken != TAKE_NOTHING:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline")

    def follower_ask(self, str topic, int partition):
        """What a follower's next fetch names; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef _Ask ask
        cdef bint follows
        with nogil:
            follows = follower_ask(led.partition, &ask)
        if not follows:
            return None
        return FollowerAsk(
            ask.leader_id, ask.broker_epoch, ask.leader_epoch, ask.offset, ask.last_epoch, ask.log_start
        )

    def follower_append(
        self, str topic, int partition, ask, bytes records, int64_t high_watermark, int64_t log_start=0,
        int64_t removed_below=0
    ):
        """Take a leader's records; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef _Ask asked = _ask_of(ask)
        cdef bytearray changed = bytearray(records)
        cdef uint8_t* at_records = <uint8_t*>PyByteArray_AS_STRING(changed)
        cdef size_t n = <size_t>len(changed)
        cdef int result
        with nogil:
            result = follower_append(
                led.partition, &asked, at_records, n, high_watermark, log_start, removed_below
            )
        self.say(led)
        return FollowResult(result)

    def follower_cut(self, str topic, int partition, ask, int32_t epoch, int64_t end_offset):
        """Cut where the leader's log parts; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef _Ask asked = _ask_of(ask)
        cdef int result
        with nogil:
            result = follower_cut(led.partition, &asked, epoch, end_offset)
        self.say(led)
        return FollowResult(result)

    def follower_begin(
        self, str topic, int partition, ask, int64_t log_start, int64_t removed_below=0, bint again=False
    ):
        """Begin at the leader's log start; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef _Ask asked = _ask_of(ask)
        cdef int result
        with nogil:
            result = follower_begin(led.partition, &asked, log_start, removed_below, again)
        self.say(led)
        return FollowResult(result)

    def producers(self, str topic, int partition):
        """What the log knows of its producers; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
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
        return sorted(_producer(&entries[i]) for i in range(entries.size()))

    def open_transactions(self, str topic, int partition):
        """The producers that have a transaction open; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef vector[ProducerEntry] entries
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&p.lock)
            place = p.log.producers.open_txns.begin()
            while place != p.log.producers.open_txns.end():
                entries.push_back(producers_get(&p.log.producers, at(place).second.producer_id))
                step(place)
            pthread_mutex_unlock(&p.lock)
        return [_producer(&entries[i]) for i in range(entries.size())]

    def producer(self, str topic, int partition, int64_t producer_id):
        """What the log knows of one of them; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef ProducerEntry e
        with nogil:
            pthread_mutex_lock(&led.p.lock)
            e = producers_get(&led.p.log.producers, producer_id)
            pthread_mutex_unlock(&led.p.lock)
        return None if e.epoch == NO_EPOCH else _producer(&e)

    def guard(self):
        """What is taken before a transaction's coordinator is asked; see logmanager.pyi."""
        return next_guard()

    def is_guarded(self, str topic, int partition, int64_t producer_id, int producer_epoch, int64_t guard):
        """Whether a coordinator's answer still counts; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef ProducerEntry e
        cdef bint counts
        with nogil:
            pthread_mutex_lock(&p.lock)
            e = producers_get(&p.log.producers, producer_id)
            counts = guard_counts(&p.log.producers, &e, guard)
            pthread_mutex_unlock(&p.lock)
        return counts or (e.txn_first_offset != NO_OFFSET and e.epoch == producer_epoch)

    def highest_producer_id(self, int64_t below):
        """The largest producer id that a log remembers; see logmanager.pyi."""
        cdef LeaderEntry led
        cdef PartitionLog* p
        cdef int64_t producer_id, highest = -1
        cdef int closed = 0
        with self.lock:
            every = list(self.led.values())
            for led in self.announced.values():
                closed += not led.p.offline
        if closed:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{closed} logs are not open yet, which know producer ids"
            )
        for led in every:
            p = led.p
            with nogil:
                pthread_mutex_lock(&p.lock)
                place = p.log.producers.entries.begin()
                while place != p.log.producers.entries.end():
                    producer_id = at(place).first
                    if highest < producer_id < below:
                        highest = producer_id
                    step(place)
                pthread_mutex_unlock(&p.lock)
        return highest

    def sequences(self, str topic, int partition, int64_t producer_id):
        """(first sequence, last sequence, first offset) of the remembered batches; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
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

    def size_bytes(self, str topic, int partition):
        """Bytes of all segments; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef int64_t size = 0
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&p.seldom)
            for i in range(p.log.segments.size()):
                size += atomic_load64(&p.log.segments[i].size)
            pthread_mutex_unlock(&p.seldom)
        return size

    def topic_figures(self):
        """What was counted of each topic, and of all; see logmanager.pyi."""
        cdef vector[TopicTally*] topics
        cdef vector[PartitionTally] sums
        cdef PartitionTally total
        cdef size_t i
        cdef dict figures = {}
        with nogil:
            logset_tallies(self.set, topics, sums, &total)
            for i in range(topics.size()):
                tally_sum(&total, &sums[i])
        for i in range(topics.size()):
            figures[PyUnicode_DecodeUTF8(topics[i].name.data(), topics[i].name.size(), NULL)] = _figures(&sums[i])
            topic_tally_release(topics[i])
        return figures, _figures(&total)

    def partition_figures(self):
        """Size and offsets of each log; see logmanager.pyi."""
        cdef vector[Extent] extents
        cdef dict names = {}           # one object a topic
        cdef list figures = []
        cdef size_t i
        with nogil:
            logset_extents(self.set, extents)
        for i in range(extents.size()):
            key = <size_t>extents[i].topic
            topic = names.get(key)
            if topic is None:
                topic = names[key] = (<bytes>extents[i].topic.name).decode()
            figures.append((topic, extents[i].index, extents[i].size, extents[i].log_start, extents[i].log_end))
        with nogil:
            for i in range(extents.size()):
                topic_tally_release(extents[i].topic)
        return figures

    def segments(self, str topic, int partition):
        """The segments, oldest first; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef vector[string] stems
        cdef vector[int64_t] bases, sizes
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&p.seldom)
            for i in range(p.log.segments.size()):
                stems.push_back(p.log.segments[i].stem)
                bases.push_back(p.log.segments[i].base_offset)
                sizes.push_back(atomic_load64(&p.log.segments[i].size))
            pthread_mutex_unlock(&p.seldom)
        found = []
        for i in range(stems.size()):
            stem = PyBytes_FromStringAndSize(stems[i].data(), <Py_ssize_t>stems[i].size())
            found.append(LogSegment(bases[i], sizes[i], os.fsdecode(stem) + ".log"))
        return found

    def upkeep(self, str topic, int partition, int64_t now_ms, bint retain=True, bint remove=True):
        """Roll, retention, flush, expiry, idle files; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef Upkeep kept
        cdef int result
        with nogil:
            pthread_mutex_lock(&p.upkeep)
            result = upkeep_log(p, now_ms, retain, &kept)
            pthread_mutex_unlock(&p.upkeep)
        self.note(led)
        self.say(led)
        if remove:
            self._remove_expired(led.folder, [led], now_ms)
        # A round that let segments go has its caller remove their files, whatever else went wrong: on a full disk
        # that makes room. What is still wrong then is the next round's error.
        if result != 0 and kept.segments_deleted == 0:
            raise_os(result, p.log.folder)
        reasons = {name: kept.by[reason] for reason, name in _REASONS.items() if kept.by[reason] > 0}
        return UpkeepResult(
            kept.segments_deleted, kept.bytes_deleted, kept.newest_ms, reasons, bool(kept.rolled), bool(kept.flushed)
        )

    def remove_expired(self, str path, int64_t now_ms):
        """Remove the files of what retention let go; see logmanager.pyi."""
        with self.lock:
            folder = self.folders.get(path)
            every = [led for led in self.led.values() if (<LeaderEntry>led).folder is folder]
        if folder is not None:
            self._remove_expired(<Folder>folder, every, now_ms)

    cdef object _remove_expired(self, Folder folder, list every, int64_t now_ms):
        cdef LeaderEntry led
        cdef PartitionLog* p
        cdef int result = 0, error
        cdef bint waits
        waiting = []
        for led in every:
            p = led.p
            with nogil:
                pthread_mutex_lock(&p.lock)
                waits = not p.expired.empty()
                pthread_mutex_unlock(&p.lock)
            if waits:
                waiting.append(led)
        if not waiting:
            return
        for led in waiting:
            self.note(led)                 # an earlier round may have failed to write it
        try:
            folder.checkpoints.write()
        except OSError as failure:
            if not is_full(failure.errno):
                raise
            # Their room is what is needed. Until it is written the `.deleted` files say that it was retention.
            folder_ran_full(folder.shared)
        for led in waiting:
            p = led.p
            with nogil:
                pthread_mutex_lock(&p.upkeep)
                error = remove_expired(p, now_ms)
                pthread_mutex_unlock(&p.upkeep)
            result = result if result != 0 else error
        if result != 0:
            raise_os(result, p.log.folder)

    def flush_rolled(self, int64_t now_ms, int most=INT32_MAX, str path=None):
        """Flush the segments that were sealed a moment ago; see logmanager.pyi."""
        cdef LeaderEntry led
        cdef Folder folder
        cdef bint deferred
        with self.lock:
            of = [folder for where, folder in self.folders.items() if path is None or where == path]
            every = [led for led in self.led.values() if (<LeaderEntry>led).folder in of]
            for folder in of:
                atomic_store32(&folder.shared.rolled, 0)
        done, first = 0, self._flush_from.get(path, 0) % max(1, len(every))
        for i in range(len(every)):
            led = every[(first + i) % len(every)]
            if led.p.flush_at_ms == 0:
                continue
            deferred = is_flush_deferred(led.p.flush_at_ms, now_ms)
            if deferred or done == most:
                atomic_store32(&led.folder.shared.rolled, 1)
            if deferred:
                continue
            if done == most:
                break
            with nogil:
                pthread_mutex_lock(&led.p.upkeep)
                # What fails takes its folder offline, or is tried again by the next upkeep.
                if led.p.stopped or is_offline(led.p):
                    led.p.flush_at_ms = 0
                else:
                    flush_log(led.p, False, now_ms, False)
                pthread_mutex_unlock(&led.p.upkeep)
            if led.p.flush_at_ms != 0:
                atomic_store32(&led.folder.shared.rolled, 1)     # what was sealed later has to wait on
            done += 1
            self._flush_from[path] = first + i + 1     # each has its turn, however often another rolls
        return done

    def prove_doubted(self):
        """Prove segments that a network thread waits for; see logmanager.pyi."""
        cdef Folder folder
        with self.lock:
            for folder in self.folders.values():
                atomic_store32(&folder.shared.doubted, 0)
            every = [led for led in self.led.values() if atomic_load32(&(<LeaderEntry>led).p.doubted)]
        failed = None
        for led in every:
            try:
                self._prove(led)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def give_back_idle(self):
        """Give back what files have ahead of logs that nobody appends to; see logmanager.pyi."""
        cdef LeaderEntry led
        cdef Folder folder
        cdef bint idle
        with self.lock:
            for folder in self.folders.values():
                atomic_store32(&folder.shared.ahead, 0)
            every = [led for led in self.led.values() if atomic_load32(&(<LeaderEntry>led).p.ahead)]
        done = 0
        for led in every:
            with nogil:
                idle = give_back_if_idle(led.p)
            done += idle
            if not idle:
                atomic_store32(&led.folder.shared.ahead, 1)
        return done

    def sync_all(self, synced):
        """Write out what is in memory and sync whole file systems; see logmanager.pyi."""
        cdef LeaderEntry led
        cdef Folder folder
        cdef int fd, result
        with self.lock:
            every = list(self.led.values())
            folders = dict(self.folders)
        opened = {}
        try:
            for path, folder in folders.items():
                if atomic_load32(&folder.shared.failed):
                    continue
                try:
                    opened[folder] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                except OSError as error:
                    if not is_passing(error.errno) and error.errno != ENOENT:
                        folder_fail(folder.shared, error.errno)
            for led in every:
                if led.folder not in opened:
                    continue               # what can't be synced here is flushed, or fails, by its stop
                with nogil:
                    pthread_mutex_lock(&led.p.upkeep)
                    prepare_log_sync(led.p)      # what fails here is written, and said, by its stop
                    pthread_mutex_unlock(&led.p.upkeep)
            for path, folder in folders.items():
                if folder not in opened:
                    continue
                fd = opened[folder]
                with nogil:
                    result = errno if syncfs(fd) != 0 else 0
                if result != 0:
                    folder_fail(folder.shared, result)
                synced(path)
        finally:
            for held in opened.values():
                os.close(held)

    def flush(self, str topic, int partition):
        """Flush one log; see logmanager.pyi."""
        cdef LeaderEntry led = self.find(topic, partition)
        cdef PartitionLog* p = led.p
        cdef int64_t end
        cdef int result
        with nogil:
            pthread_mutex_lock(&p.lock)
            end = p.log.log_end
            pthread_mutex_unlock(&p.lock)
            result = flush_until(p, end, wall_ms())
        if result != 0:
            raise OSError(result, os.strerror(result), os.fsdecode(p.log.folder))

    def write_checkpoints(self, str only=None):
        """Write the checkpoint files that changed; see logmanager.pyi."""
        cdef LeaderEntry led
        with self.lock:
            folders = {path: folder for path, folder in self.folders.items() if only is None or path == only}
            of = set(folders.values())
            every = [led for led in self.led.values() if (<LeaderEntry>led).folder in of]
        used, owed = set(), {}
        for led in every:
            if atomic_load32(&led.p.amendment.owed):
                owed.setdefault(led.folder, []).append((led, atomic_load64(&led.p.amendment.number)))
            self.note(led)
            used.add(led.folder)
        failed = None
        for path, folder in folders.items():
            if atomic_load32(&(<Folder>folder).shared.failed):
                continue                   # what it holds is checked again when it comes back
            if folder not in used and not os.path.isdir(path):
                continue                   # it went with its last log
            try:
                folder.checkpoints.write()
                for led, number in owed.get(folder, ()):
                    self._settle(led, number)
            except OSError as error:
                failed = failed or error
                if not is_passing(error.errno):
                    folder_fail((<Folder>folder).shared, error.errno)
                elif is_full(error.errno):
                    folder_ran_full((<Folder>folder).shared)
        if slots_lost():
            _log.warning(
                "`%s` of a log folder can't be written any more: its disk fails, or somebody has cut the file. If this "
                "process is killed, a lost end of a log is only noticed up to the last checkpoint", NAME,
            )
        if failed is not None:
            raise failed
