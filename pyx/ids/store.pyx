"""Ids seen by a dedupe worker: recent ones in memory, older ones in RocksDB files that age as wholes.

    unseen ──► memory (hash table over one arena) ──► RocksDB (one MultiGet for what memory does not know)
    add    ──► memory ─ full ─► sorted file ─ ingest ─► FIFO column family, oldest file dropped at the size bound

The database has no write-ahead log and no memtable: a file is written whole, then ingested in one atomic step. Inside
it are the ids (0x01 + id) and one entry 0x00 + file number (8 bytes, big-endian) -> complete_to, reaches_to, first_ms,
last_ms, ids (8 bytes each, big-endian). All ids of output offsets below complete_to are in this file or an earlier one,
none of reaches_to or later is. So the offset can never lead the ids, and dropping a file takes its ids and its entry
together: ageing needs no tombstones and no scans. After a crash what was in memory is read again from the
output topic.

Ids come from outside: the hash table's hash is SipHash under a random key of the store, kept in its folder
(`hash.key`), so that nobody can choose ids that all fall into one place.

RocksDB merges neighbouring small files in age order, so that look-ups meet few of them; a file never grows past a
twenty-fourth of the size bound, so that the window shrinks in small steps.

A build of RocksDB with assertions (Debian's) aborts the process where it doesn't expect an error of the disk. Three
rules keep such errors values: RocksDB writes no log of its own (it appends to that one again after a write failed), a
file's ends are read before the database asks for them (it believes that reads of them succeed), and no file is written
again over one whose ingestion failed, because the database may have that one.

python-rocksdb 0.7 builds with neither today's Cython nor today's RocksDB, and every packaged binding makes a Python
object of each id and takes the GIL for each call; here the ids of a whole fetch come as one array. A second index by
sequence number, with a seek hint, cost 3 to 10 times more CPU in trials than files that age as wholes.
"""

import numpy as np
import os
import threading
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector
from pathlib import Path

from penstock.durable import replace_file
from penstock.pyx.ids.siphash cimport siphash64

cdef extern from * nogil:
    """
    #include <algorithm>
    #include <cstdarg>
    #include <cstdint>
    #include <memory>
    #include <string_view>
    #include <vector>
    #include <rocksdb/env.h>

    // Takes RocksDB's own log lines and keeps none.
    struct NoLog final : rocksdb::Logger {
        using rocksdb::Logger::Logv;
        void Logv(const char*, va_list) override {}
    };

    static inline std::shared_ptr<rocksdb::Logger> no_log() { return std::make_shared<NoLog>(); }

    struct IdSlot { uint64_t hash; uint64_t at; uint32_t length; uint32_t used; };

    // An id to be sorted: its first eight bytes as a number decide nearly always, without a look at the id itself.
    struct IdPlace { uint64_t prefix; uint64_t at; uint32_t length; uint32_t number; };

    // `at` is where the id stands in the arena, `length` its length, both with its prefix byte.
    static inline IdPlace id_place(const uint8_t* arena, uint64_t at, uint32_t length, uint32_t number) {
        uint64_t prefix = 0;
        for (uint32_t i = 1; i < 9; i++)
            prefix = prefix << 8 | (i < length ? arena[at + i] : 0);
        return IdPlace{prefix, at, length, number};
    }

    static inline void id_sort(std::vector<IdPlace>& places, const uint8_t* arena) {
        std::sort(places.begin(), places.end(), [arena](const IdPlace& a, const IdPlace& b) {
            if (a.prefix != b.prefix)
                return a.prefix < b.prefix;
            return std::string_view((const char*)arena + a.at, a.length)
                 < std::string_view((const char*)arena + b.at, b.length);
        });
    }
    """
    cdef struct IdSlot:
        uint64_t hash
        uint64_t at
        uint32_t length
        uint32_t used
    cdef struct IdPlace:
        uint64_t prefix
        uint64_t at
        uint32_t length
        uint32_t number
    IdPlace id_place(const uint8_t* arena, uint64_t at, uint32_t length, uint32_t number) noexcept
    void id_sort(vector[IdPlace]& places, const uint8_t* arena) except +

cdef extern from "rocksdb/slice.h" namespace "rocksdb" nogil:
    cdef cppclass Slice:
        Slice() noexcept
        Slice(const char*, size_t) noexcept
        const char* data() noexcept
        size_t size() noexcept
    cdef cppclass PinnableSlice(Slice):
        PinnableSlice() except +
        void Reset() noexcept

cdef extern from "rocksdb/status.h" namespace "rocksdb" nogil:
    cdef cppclass Status:
        Status() noexcept
        cbool ok() noexcept
        cbool IsNotFound() noexcept
        string ToString() except +

cdef extern from "rocksdb/options.h" namespace "rocksdb" nogil:
    cdef enum CompressionType:
        kNoCompression
    cdef enum CompactionStyle:
        kCompactionStyleFIFO
    cdef cppclass CompactionOptionsFIFO:
        uint64_t max_table_files_size
        cbool allow_compaction
    cdef cppclass TableFactory
    cdef cppclass Logger
    cdef cppclass Options:
        Options() except +
        cbool create_if_missing
        CompressionType compression
        CompactionStyle compaction_style
        CompactionOptionsFIFO compaction_options_fifo
        int num_levels
        size_t write_buffer_size
        uint64_t max_compaction_bytes
        int level0_file_num_compaction_trigger
        int level0_slowdown_writes_trigger
        int level0_stop_writes_trigger
        int max_open_files
        int max_background_jobs
        uint64_t ttl
        uint64_t periodic_compaction_seconds
        shared_ptr[TableFactory] table_factory
        shared_ptr[Logger] info_log
    cdef cppclass ReadOptions:
        ReadOptions() except +
        cbool verify_checksums
    cdef cppclass IngestExternalFileOptions:
        IngestExternalFileOptions() except +
        cbool move_files
        cbool failed_move_fall_back_to_copy
    cdef cppclass EnvOptions:
        EnvOptions() except +

cdef extern from "rocksdb/filter_policy.h" namespace "rocksdb" nogil:
    cdef cppclass FilterPolicy
    const FilterPolicy* NewBloomFilterPolicy(double bits_per_key) except +

cdef extern from "rocksdb/cache.h" namespace "rocksdb" nogil:
    cdef cppclass Cache
    shared_ptr[Cache] NewLRUCache(size_t capacity) except +

cdef extern from "rocksdb/table.h" namespace "rocksdb" nogil:
    cdef cppclass BlockBasedTableOptions:
        BlockBasedTableOptions() except +
        shared_ptr[const FilterPolicy] filter_policy
        shared_ptr[Cache] block_cache
        cbool whole_key_filtering
        size_t block_size
    TableFactory* NewBlockBasedTableFactory(const BlockBasedTableOptions&) except +

cdef extern from "rocksdb/metadata.h" namespace "rocksdb" nogil:
    cdef cppclass LiveFileMetaData:
        size_t size

cdef extern from "rocksdb/iterator.h" namespace "rocksdb" nogil:
    cdef cppclass Iterator:
        void Seek(const Slice&) except +
        void SeekToFirst() except +
        void SeekToLast() except +
        cbool Valid() noexcept
        void Next() except +
        Slice key() noexcept
        Slice value() noexcept
        Status status() noexcept

cdef extern from "rocksdb/db.h" namespace "rocksdb" nogil:
    cdef cppclass ColumnFamilyHandle
    cdef cppclass DB:
        ColumnFamilyHandle* DefaultColumnFamily() noexcept
        void MultiGet(
            const ReadOptions&, ColumnFamilyHandle*, size_t, const Slice*, PinnableSlice*, Status*, cbool
        ) except +
        Iterator* NewIterator(const ReadOptions&) except +
        Status IngestExternalFile(const vector[string]&, const IngestExternalFileOptions&) except +
        void GetLiveFilesMetaData(vector[LiveFileMetaData]*) except +
        Status Close() except +
    Status open_database "rocksdb::DB::Open"(const Options&, const string&, DB**) except +
    Status open_to_read "rocksdb::DB::OpenForReadOnly"(const Options&, const string&, DB**) except +

cdef extern from "rocksdb/sst_file_writer.h" namespace "rocksdb" nogil:
    cdef cppclass SstFileWriter:
        SstFileWriter(const EnvOptions&, const Options&) except +
        Status Open(const string&) except +
        Status Put(const Slice&, const Slice&) except +
        Status Finish() except +

cdef extern from "rocksdb/sst_file_reader.h" namespace "rocksdb" nogil:
    cdef cppclass SstFileReader:
        SstFileReader(const Options&) except +
        Status Open(const string&) except +
        Iterator* NewIterator(const ReadOptions&) except +

cdef extern from * nogil:
    shared_ptr[Logger] no_log() except +

cdef enum:
    FILES_MIN = 24                  # the bound is kept by dropping whole files: one is at most this part of it
    FILES_MERGED = 8                # so many neighbours of a size become one
    LOOKUP_CHUNK = 1024             # ids of one MultiGet
    FILTER_BITS = 10
    BLOCK_CACHE_BYTES = 32 << 20
    ENTRY_BYTES = 40                # complete_to, reaches_to, first_ms, last_ms, ids
    FILE_PREFIX = 0
    ID_PREFIX = 1
    RECORDS_PER_ID = 8              # a file is due after so many records for each id that memory may hold


SECRET_FILE = "hash.key"


class RocksError(Exception):
    """RocksDB refused or failed; the text is its own, with the path."""


class RocksDiskError(RocksError):
    """The disk is full, read-only or failing: another try may succeed."""


cdef inline void _store_i64(uint8_t* p, int64_t value) noexcept nogil:
    cdef int i
    for i in range(8):
        p[i] = <uint8_t>(<uint64_t>value >> (56 - 8 * i))


cdef inline int64_t _load_i64(const uint8_t* p) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(8):
        value = (value << 8) | p[i]
    return <int64_t>value


# A set of ids: open addressing, the ids one behind the other in an arena, each after its prefix byte.
cdef cppclass IdSet:
    vector[IdSlot] slots
    vector[uint8_t] arena
    size_t count

    __init__():
        this.count = 0

    void clear() noexcept nogil:
        this.slots.clear()
        this.slots.shrink_to_fit()
        this.arena.clear()
        this.arena.shrink_to_fit()
        this.count = 0

    cbool has(const uint8_t* p, size_t n, uint64_t hash) noexcept nogil:
        if this.slots.empty():
            return False
        cdef size_t mask = this.slots.size() - 1
        cdef size_t i = hash & mask
        cdef IdSlot* slot = &this.slots[i]
        while slot.used:
            # The arena's ids stand behind a prefix byte.
            if slot.hash == hash and slot.length == n + 1 and memcmp(&this.arena[slot.at + 1], p, n) == 0:
                return True
            i = (i + 1) & mask
            slot = &this.slots[i]
        return False

    # Puts an id that is not there yet.
    int put(const uint8_t* p, size_t n, uint64_t hash) except -1 nogil:
        if this.count * 2 >= this.slots.size():
            this.grow()
        cdef IdSlot slot
        slot.hash = hash
        slot.at = this.arena.size()
        slot.length = <uint32_t>(n + 1)
        slot.used = 1
        this.arena.resize(this.arena.size() + n + 1)
        this.arena[slot.at] = ID_PREFIX
        if n:
            memcpy(&this.arena[slot.at + 1], p, n)
        this.place(slot)
        this.count += 1
        return 0

    void place(const IdSlot& slot) noexcept nogil:
        cdef size_t mask = this.slots.size() - 1
        cdef size_t i = slot.hash & mask
        while this.slots[i].used:
            i = (i + 1) & mask
        this.slots[i] = slot

    int grow() except -1 nogil:
        cdef vector[IdSlot] before
        cdef size_t i
        before.swap(this.slots)
        this.slots.resize(4096 if before.empty() else 2 * before.size())
        for i in range(before.size()):
            if before[i].used:
                this.place(before[i])
        return 0


# The ids of one call, held in place while the GIL is released.
cdef class IdColumn:
    cdef Py_buffer data_view
    cdef Py_buffer starts_view
    cdef Py_buffer null_view
    cdef const uint8_t* data
    cdef const int64_t* starts
    cdef const uint8_t* null
    cdef Py_ssize_t count

    def __cinit__(self, data, starts, null):
        self.count = len(starts) - 1
        PyObject_GetBuffer(data, &self.data_view, PyBUF_SIMPLE)
        PyObject_GetBuffer(starts, &self.starts_view, PyBUF_SIMPLE)
        PyObject_GetBuffer(null, &self.null_view, PyBUF_SIMPLE)
        self.data = <const uint8_t*>self.data_view.buf
        self.starts = <const int64_t*>self.starts_view.buf
        self.null = <const uint8_t*>self.null_view.buf
        if self.count < 0 or self.starts_view.len != 8 * (self.count + 1) or self.null_view.len != self.count:
            raise ValueError("ids don't fit together: data, starts and null are of different lengths")
        if not self._rises():
            raise ValueError("ids don't fit together: starts must rise and end within data")

    def __dealloc__(self):
        PyBuffer_Release(&self.data_view)
        PyBuffer_Release(&self.starts_view)
        PyBuffer_Release(&self.null_view)

    cdef cbool _rises(self) noexcept nogil:
        cdef int64_t before = 0
        cdef Py_ssize_t i
        for i in range(self.count + 1):
            if self.starts[i] < before:
                return False
            before = self.starts[i]
        return before <= self.data_view.len

    cdef size_t length(self, Py_ssize_t i) noexcept nogil:
        return <size_t>(self.starts[i + 1] - self.starts[i])


cdef class IdStore:
    """The ids that one dedupe worker has seen. One call at a time, others wait; the GIL is released around all work."""
    cdef object lock
    cdef DB* db
    cdef IdSet* memory
    cdef Options options
    cdef uint64_t secret[2]
    cdef str path
    cdef cbool read_only
    cdef str waiting_file
    cdef size_t memory_max_ids
    cdef size_t memory_max_bytes
    cdef int64_t next_file
    cdef int64_t first_ms
    cdef int64_t last_ms
    cdef readonly int64_t complete_to
    cdef readonly int64_t reaches_to
    cdef readonly int64_t kept_to
    cdef readonly int files
    cdef int64_t ids_in_files
    cdef int64_t oldest_ms
    cdef readonly int64_t records_noted

    def __cinit__(self, str path, int64_t max_bytes, int64_t memory_max_ids, cbool read_only=False):
        self.db = NULL
        self.memory = new IdSet()
        self.lock = threading.Lock()
        self.path = path
        self.waiting_file = None
        self.memory_max_ids = memory_max_ids
        self.memory_max_bytes = max(max_bytes // FILES_MIN, 1 << 16)
        self.next_file = self.records_noted = 0
        self.first_ms = self.last_ms = 0
        self.complete_to = self.reaches_to = self.kept_to = 0
        self.read_only = read_only
        self._configure(max_bytes)
        self._open()

    def __dealloc__(self):
        if self.db != NULL:
            with nogil:
                del self.db
        del self.memory

    cdef void _configure(self, int64_t max_bytes) except *:
        cdef BlockBasedTableOptions table
        table.filter_policy.reset(NewBloomFilterPolicy(FILTER_BITS))
        table.block_cache = NewLRUCache(BLOCK_CACHE_BYTES)
        table.whole_key_filtering = True
        table.block_size = 4096
        self.options.create_if_missing = True
        self.options.compression = kNoCompression       # ids are random: nothing to gain
        self.options.compaction_style = kCompactionStyleFIFO
        self.options.num_levels = 1
        self.options.compaction_options_fifo.max_table_files_size = max_bytes
        self.options.compaction_options_fifo.allow_compaction = True
        # Ids go by size alone. With only one of the two at 0 RocksDB takes thirty days.
        self.options.ttl = 0
        self.options.periodic_compaction_seconds = 0
        # FIFO's merging takes files up to this size each and never makes one larger than max_compaction_bytes.
        self.options.write_buffer_size = self.memory_max_bytes
        self.options.max_compaction_bytes = self.memory_max_bytes
        self.options.level0_file_num_compaction_trigger = FILES_MERGED
        self.options.level0_slowdown_writes_trigger = 1 << 30
        self.options.level0_stop_writes_trigger = 1 << 30
        self.options.max_open_files = -1
        self.options.max_background_jobs = 2
        self.options.info_log = no_log()
        self.options.table_factory.reset(NewBlockBasedTableFactory(table))

    cdef void _check(self, Status status) except *:
        if not status.ok():
            text = status.ToString().decode(errors="replace")
            # RocksDB wraps some errors of the disk in codes of other kinds; a file that isn't there won't come back.
            of_the_disk = "IO error: " in text and "No such file" not in text
            raise (RocksDiskError if of_the_disk else RocksError)(f"`{self.path}`: {text}")

    cdef void _expect_open(self) except *:
        if self.db == NULL:
            raise RocksError(f"`{self.path}` is closed")

    cdef void _open(self) except *:
        cdef string name = os.fsencode(self.path)
        cdef Status status
        if self.read_only:
            if not (Path(self.path) / "CURRENT").exists():      # RocksDB would make the folder
                raise RocksError(f"`{self.path}`: there is no database")
            with nogil:
                status = open_to_read(self.options, name, &self.db)
            self._check(status)
            self._read_entries()
            return
        Path(self.path).mkdir(parents=True, exist_ok=True)
        with nogil:
            status = open_database(self.options, name, &self.db)
        self._check(status)
        # A file that was written but never ingested says nothing: its ids are in the output topic.
        for left in Path(self.path).glob("*.ids"):
            left.unlink()
        self._take_secret()
        self._read_entries()

    # The store's own key of its hash. Files hold whole ids, so a store without a key (an older one) or with a damaged
    # one takes another.
    cdef void _take_secret(self) except *:
        path = Path(self.path) / SECRET_FILE
        secret = path.read_bytes() if path.exists() else b""
        if len(secret) != sizeof(self.secret):
            secret = os.urandom(sizeof(self.secret))
            replace_file(path, secret, 0o600)
        memcpy(self.secret, <const char*><bytes>secret, sizeof(self.secret))

    # Walks the files' own entries: the first is that of the oldest file kept, the last says what is complete.
    cdef void _read_entries(self) except *:
        cdef uint8_t prefix = FILE_PREFIX
        cdef ReadOptions reading
        cdef Iterator* entries = self.db.NewIterator(reading)
        cdef const uint8_t* value
        cdef int found = 0
        cdef Status status
        self.ids_in_files = self.oldest_ms = 0
        try:
            entries.Seek(Slice(<const char*>&prefix, 1))
            while entries.Valid():
                if entries.key().size() != 9 or entries.key().data()[0] != FILE_PREFIX:
                    break
                if entries.value().size() != ENTRY_BYTES:
                    raise RocksError(f"`{self.path}`: a file's own entry is damaged")
                value = <const uint8_t*>entries.value().data()
                if found == 0:
                    self.oldest_ms = _load_i64(value + 16)
                self.kept_to = max(self.kept_to, _load_i64(value))
                self.reaches_to = max(self.reaches_to, _load_i64(value + 8))
                self.ids_in_files += _load_i64(value + 32)
                self.next_file = _load_i64(<const uint8_t*>entries.key().data() + 1) + 1
                found += 1
                entries.Next()
            status = entries.status()
        finally:
            del entries
        self._check(status)
        self.complete_to = max(self.complete_to, self.kept_to)
        self.files = found

    def unseen(self, data, starts, null):
        """Which records carry an id that was never added: True for the first of its kind in this call."""
        with self.lock:
            self._expect_open()
            return self._mask(IdColumn(data, starts, null))

    cdef object _mask(self, IdColumn ids):
        mask = np.zeros(ids.count, dtype=np.bool_)
        cdef Py_buffer view
        cdef Status status
        PyObject_GetBuffer(mask, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                self._unseen(ids, <uint8_t*>view.buf, &status)
        finally:
            PyBuffer_Release(&view)
        self._check(status)
        return mask

    # First what memory and this very call know, then one sorted MultiGet a chunk for the rest.
    cdef int _unseen(self, IdColumn ids, uint8_t* mask, Status* status) except -1 nogil:
        cdef IdSet here
        cdef vector[IdPlace] asked
        cdef Py_ssize_t i
        cdef const uint8_t* p
        cdef size_t length
        cdef uint64_t hash, at
        for i in range(ids.count):
            if ids.null[i]:
                mask[i] = 1
                continue
            p = ids.data + ids.starts[i]
            length = ids.length(i)
            hash = siphash64(self.secret, p, length)
            if self.memory.has(p, length, hash) or here.has(p, length, hash):
                continue
            at = here.arena.size()
            here.put(p, length, hash)
            mask[i] = 1
            # Its number says whose mask to clear when the database knows it.
            asked.push_back(id_place(here.arena.data(), at, <uint32_t>(length + 1), <uint32_t>i))
        if self.files == 0 or asked.empty():
            return 0
        id_sort(asked, here.arena.data())
        return self._look_up(asked, here.arena.data(), mask, status)

    cdef int _look_up(
        self, vector[IdPlace]& asked, const uint8_t* arena, uint8_t* mask, Status* status
    ) except -1 nogil:
        cdef ReadOptions reading
        cdef vector[Slice] keys
        cdef vector[PinnableSlice] values = vector[PinnableSlice](LOOKUP_CHUNK)
        cdef vector[Status] found = vector[Status](LOOKUP_CHUNK)
        cdef size_t start = 0, count, i
        while start < asked.size():
            count = min(<size_t>LOOKUP_CHUNK, asked.size() - start)
            keys.clear()
            for i in range(count):
                keys.push_back(Slice(<const char*>arena + asked[start + i].at, asked[start + i].length))
            self.db.MultiGet(
                reading, self.db.DefaultColumnFamily(), count, keys.data(), values.data(), found.data(), True
            )
            for i in range(count):
                values[i].Reset()
                if found[i].ok():
                    mask[asked[start + i].number] = 0
                elif not found[i].IsNotFound():
                    status[0] = found[i]
                    return 0
            start += count
        return 0

    def add(self, data, starts, null, int64_t complete_to, int64_t now_ms, Py_ssize_t first=0):
        """Add ids from record `first` on until memory is full; the record to go on with after a spill."""
        with self.lock:
            self._expect_open()
            return self._add_from(IdColumn(data, starts, null), complete_to, now_ms, first)

    cdef Py_ssize_t _add_from(self, IdColumn ids, int64_t complete_to, int64_t now_ms, Py_ssize_t first) except -1:
        cdef Py_ssize_t end
        if not 0 <= first <= ids.count:
            raise ValueError(f"no record {first} among {ids.count}")
        with nogil:
            end = self._add(ids, first)
        if end == ids.count:
            self.complete_to = max(self.complete_to, complete_to)
        self.reaches_to = max(self.reaches_to, complete_to)
        self.records_noted += end - first
        self.first_ms = self.first_ms or now_ms
        self.last_ms = now_ms
        return end

    cdef Py_ssize_t _add(self, IdColumn ids, Py_ssize_t first) except -1 nogil:
        cdef Py_ssize_t i
        cdef const uint8_t* p
        cdef size_t length
        cdef uint64_t hash
        for i in range(first, ids.count):
            if ids.null[i]:
                continue
            if self._memory_is_full():
                return i
            p = ids.data + ids.starts[i]
            length = ids.length(i)
            hash = siphash64(self.secret, p, length)
            if not self.memory.has(p, length, hash):
                self.memory.put(p, length, hash)
        return ids.count

    cdef cbool _memory_is_full(self) noexcept nogil:
        return self.memory.count >= self.memory_max_ids or self.memory.arena.size() >= self.memory_max_bytes

    def is_full(self):
        """Whether the ids in memory should become a file now."""
        # Records without a new id count too: a restart reads again what came since the last file.
        return self._memory_is_full() or self.records_noted >= RECORDS_PER_ID * <int64_t>self.memory_max_ids

    def write_file(self):
        """Write the ids in memory, sorted, with the offset that they are complete to, into a file of its own."""
        with self.lock:
            self._expect_open()
            if self.read_only:
                raise RocksError(f"`{self.path}` is open for reading only")
            self._write_file()

    cdef void _write_file(self) except *:
        cdef uint8_t[9] key
        cdef uint8_t[ENTRY_BYTES] value
        cdef Status status
        waiting = str(Path(self.path) / f"{self.next_file:020}.ids")
        cdef string name = os.fsencode(waiting)
        self.waiting_file = None
        Path(waiting).unlink(missing_ok=True)   # its blocks may be a file of the database's by now
        key[0] = FILE_PREFIX
        _store_i64(key + 1, self.next_file)
        _store_i64(value, self.complete_to)
        _store_i64(value + 8, self.reaches_to)
        _store_i64(value + 16, self.first_ms)
        _store_i64(value + 24, self.last_ms)
        _store_i64(value + 32, <int64_t>self.memory.count)
        with nogil:
            self._write_sorted(name, Slice(<const char*>key, 9), Slice(<const char*>value, ENTRY_BYTES), &status)
            if status.ok():
                self._read_ends(name, &status)
        self._check(status)
        self.waiting_file = waiting

    cdef int _write_sorted(self, const string& name, Slice key, Slice value, Status* status) except -1 nogil:
        cdef EnvOptions environment
        cdef unique_ptr[SstFileWriter] writer
        cdef vector[IdPlace] sorted_ids
        cdef IdSlot* slot
        cdef Slice nothing
        cdef size_t i
        writer.reset(new SstFileWriter(environment, self.options))
        for i in range(self.memory.slots.size()):
            slot = &self.memory.slots[i]
            if slot.used:
                sorted_ids.push_back(id_place(self.memory.arena.data(), slot.at, slot.length, 0))
        id_sort(sorted_ids, self.memory.arena.data())
        status[0] = writer.get().Open(name)
        if status[0].ok():
            status[0] = writer.get().Put(key, value)    # 0x00 stands before every id
        for i in range(sorted_ids.size()):
            if not status[0].ok():
                return 0
            status[0] = writer.get().Put(
                Slice(<const char*>&self.memory.arena[sorted_ids[i].at], sorted_ids[i].length), nothing
            )
        if status[0].ok():
            status[0] = writer.get().Finish()
        return 0

    # Reads a file's first and last block, which the block cache then has when the database asks for them.
    cdef int _read_ends(self, const string& name, Status* status) except -1 nogil:
        cdef ReadOptions reading
        cdef unique_ptr[SstFileReader] reader
        cdef unique_ptr[Iterator] ends
        reader.reset(new SstFileReader(self.options))
        status[0] = reader.get().Open(name)
        if not status[0].ok():
            return 0
        ends.reset(reader.get().NewIterator(reading))
        ends.get().SeekToFirst()
        if ends.get().Valid():
            ends.get().SeekToLast()
        status[0] = ends.get().status()
        return 0

    def ingest_file(self):
        """Give the written file to the database (one atomic step) and forget the ids in memory."""
        with self.lock:
            self._expect_open()
            self._ingest_file()

    cdef void _ingest_file(self) except *:
        cdef IngestExternalFileOptions ingesting
        cdef vector[string] names
        cdef Status status
        if self.waiting_file is None:
            raise RocksError(f"`{self.path}`: no file was written")
        names.push_back(os.fsencode(self.waiting_file))
        ingesting.move_files = True
        with nogil:
            status = self.db.IngestExternalFile(names, ingesting)
        self._check(status)
        self.waiting_file = None
        self.memory.clear()
        self.first_ms = self.records_noted = 0
        self._read_entries()

    def stats(self):
        """Counts and sizes, all whole numbers."""
        with self.lock:
            self._expect_open()
            return self._stats()

    cdef dict _stats(self):
        cdef vector[LiveFileMetaData] live
        cdef int64_t size = 0
        cdef size_t i
        self._read_entries()
        self.db.GetLiveFilesMetaData(&live)
        for i in range(live.size()):
            size += live[i].size
        return {
            "ids_in_memory": self.memory.count,
            "memory_bytes": self.memory.slots.capacity() * sizeof(IdSlot) + self.memory.arena.capacity(),
            "ids_in_files": self.ids_in_files,
            "files": live.size(),
            "size_bytes": size,
            "oldest_ms": self.oldest_ms or self.first_ms,
        }

    def close(self):
        """Close the database. Ids in memory are not written: they are read again from the output topic."""
        with self.lock:
            self._close()

    cdef void _close(self) except *:
        cdef Status status
        if self.db != NULL:
            with nogil:
                status = self.db.Close()
                del self.db
                self.db = NULL
            self._check(status)
