"""Segments; see segment.pxd."""

from libc.stdint cimport INT64_MAX

from penstock.pyx.linux.descriptors cimport open_file, spare_descriptors
from penstock.pyx.linux.posix cimport (
    EAGAIN, EINVAL, ENOENT, ENOSYS, EOPNOTSUPP, O_CLOEXEC, O_CREAT, O_RDWR, SYNC_FILE_RANGE_WAIT_AFTER,
    SYNC_FILE_RANGE_WAIT_BEFORE, SYNC_FILE_RANGE_WRITE, atomic_add32, atomic_add64, atomic_load32, atomic_store64,
    close, errno, fdatasync, ftruncate, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_trylock, pthread_mutex_unlock, rename, snprintf, stat, stat_path, strlen, strncmp, sync_file_range,
    unlink,
)
from penstock.pyx.log.checks cimport Checks, checks_read, checks_write
from penstock.pyx.log.files cimport FILE_MODE, dropped, is_shortage, made, ms_of, read_at, sync_file, write_pieces_at
from penstock.pyx.log.index cimport (
    INDEX_ENTRY, INDEX_WRONG, IndexFile, IndexSum, index_add, index_bound, index_floor, index_hold, index_release,
    index_reset, index_sum, index_unmap, index_view, index_write,
)
from penstock.pyx.log.pagecache cimport read_cached_at
from penstock.pyx.log.room cimport room_give_back, room_reserve, room_wants_blocks, room_wants_zeros, room_write
from penstock.pyx.log.timeindex cimport TIMEINDEX_ENTRY, timeindex_add, timeindex_floor, timeindex_last
from penstock.pyx.log.txnindex cimport txnindex_add
from penstock.pyx.record.batch cimport (
    BATCH_OK, BATCH_OVER_LIMIT, BATCH_PARTIAL, CODEC_MASK, LOG_APPEND_TIME_BIT, MAGIC_2, RECORDS_AT, BatchHeader,
    RecordView, batch_last_offset, batch_parse, batch_parse_header, batch_payload, record_create_time,
    record_offset, record_read,
)
from penstock.pyx.record.messageset cimport message_at_time

cdef enum:
    NAME_DIGITS = 20
    WRITE_OUT_BYTES = 4 << 20
    FIND_CHUNK = 8192                  # one read finds a batch when index.interval.bytes is the default 4096
    TIME_CHUNK = 65536
    FILES = 5                          # of a segment
    INDEXES_END = 4                    # the indexes are those before it, from 1 on
    INFLATED_MAX_BYTES = 64 << 20      # a batch that inflates to more isn't opened for its timestamps

cdef int64_t _opened = 0                # atomic: files of logs, ever
cdef const char* SUFFIXES[FILES]
SUFFIXES[0] = b".log"
SUFFIXES[1] = b".index"
SUFFIXES[2] = b".timeindex"
SUFFIXES[3] = b".txnindex"
SUFFIXES[4] = b".checks"


cdef string segment_stem(const string& folder, int64_t base_offset) noexcept nogil:
    cdef char name[32]
    cdef string stem = folder
    snprintf(name, 32, b"/%020lld", <long long>base_offset)
    stem.append(<const char*>name)
    return stem


cdef int64_t segment_named_offset(const char* name, const char* suffix) noexcept nogil:
    cdef int i
    cdef int64_t offset = 0
    if strlen(name) != NAME_DIGITS + strlen(suffix) or strncmp(name + NAME_DIGITS, suffix, strlen(suffix)) != 0:
        return -1
    for i in range(NAME_DIGITS):
        if name[i] < c'0' or name[i] > c'9':
            return -1
        if offset > (INT64_MAX - 9) // 10:
            return -1
        offset = offset * 10 + (name[i] - c'0')
    return offset


cdef inline string _path(const Segment* s, const char* suffix) noexcept nogil:
    cdef string path = s.stem
    path.append(suffix)
    return path


cdef inline int _offset_entries(Segment* s, const uint8_t** entries, size_t* n) noexcept nogil:
    """The offset index is looked up for each read: the path is put together only when the file has to be mapped."""
    if s.index.held:
        entries[0] = s.index.bytes.data()
        n[0] = s.index.bytes.size()
        return 0
    if s.index.map != NULL:
        entries[0] = s.index.map
        n[0] = s.index.mapped
        return 0
    return index_view(&s.index, _path(s, b".index").c_str(), entries, n)


cdef Segment* segment_new(const string& folder, int64_t base_offset, int64_t now_ms) noexcept nogil:
    cdef Segment* s = made[Segment]()
    s.refs = 1
    pthread_mutex_init(&s.lock, NULL)
    s.stem = segment_stem(folder, base_offset)
    s.fd = -1
    s.base_offset = base_offset
    s.next_offset = base_offset
    s.first_timestamp = -1
    s.max_timestamp = -1
    s.max_timestamp_offset = -1
    s.created_ms = now_ms
    s.tail.offset = -1
    s.ended_before = -1
    return s


cdef void segment_retain(Segment* s) noexcept nogil:
    atomic_add32(&s.refs, 1)


cdef void segment_release(Segment* s) noexcept nogil:
    if atomic_add32(&s.refs, -1) != 0:
        return
    if s.fd >= 0:
        close(s.fd)
    index_unmap(&s.index)
    index_unmap(&s.timeindex)
    index_unmap(&s.txnindex)
    pthread_mutex_destroy(&s.lock)
    dropped[Segment](s)


cdef int segment_open(Segment* s, bint create) noexcept nogil:
    cdef int fd
    pthread_mutex_lock(&s.lock)
    if s.fd < 0:
        fd = open_file(_path(s, b".log").c_str(), O_RDWR | O_CLOEXEC | (O_CREAT if create else 0), FILE_MODE)
        if fd < 0:
            fd = fd if s.lost == 0 else -s.lost
            pthread_mutex_unlock(&s.lock)
            return fd
        s.fd = fd
        s.opened = atomic_add64(&_opened, 1)
        spare_descriptors(fd)
    fd = s.fd
    pthread_mutex_unlock(&s.lock)
    return fd


cdef int segment_give_back(Segment* s) noexcept nogil:
    cdef int result
    pthread_mutex_lock(&s.lock)
    result = room_give_back(&s.room, s.fd, s.size)
    pthread_mutex_unlock(&s.lock)
    return result


cdef int segment_write(Segment* s, vector[iovec]& pieces, int64_t n, bint* broken) noexcept nogil:
    cdef int result
    cdef int fd = segment_open(s, False)
    broken[0] = False
    if fd < 0:
        return -fd
    if room_wants_blocks(&s.room, s.size, n):
        room_reserve(&s.room, fd, s.size, n)
    if room_wants_zeros(&s.room, s.size, n) and room_write(&s.room, fd, pieces, s.size, n):
        return 0
    result = write_pieces_at(fd, pieces.data(), <int>pieces.size(), s.size)
    if result != 0 and ftruncate(fd, s.size) != 0:
        broken[0] = True
    return result


cdef void segment_index_batch(
    Segment* s, const BatchHeader* header, int64_t position, int64_t interval_bytes
) noexcept nogil:
    cdef int64_t last_offset = batch_last_offset(header)
    pthread_mutex_lock(&s.lock)
    if position == 0:
        s.first_timestamp = header.max_timestamp
    # A batch that compaction has emptied has no record of that time.
    if header.max_timestamp > s.max_timestamp and header.record_count > 0:
        s.max_timestamp = header.max_timestamp
        s.max_timestamp_offset = last_offset
    if s.bytes_since_index > interval_bytes:
        index_add(&s.index, <int32_t>(last_offset - s.base_offset), <int32_t>position)
        timeindex_add(&s.timeindex, s.max_timestamp, <int32_t>(s.max_timestamp_offset - s.base_offset))
        s.bytes_since_index = 0
    s.bytes_since_index += header.size
    s.next_offset = last_offset + 1
    atomic_store64(&s.size, position + header.size)
    if header.magic < MAGIC_2:
        s.formats = FORMATS_OLD
    s.unflushed = True
    s.touched = True
    s.checked = False
    pthread_mutex_unlock(&s.lock)


cdef void segment_index_abort(
    Segment* s, int64_t producer_id, int64_t first_offset, int64_t last_offset, int64_t last_stable_offset
) noexcept nogil:
    pthread_mutex_lock(&s.lock)
    txnindex_add(&s.txnindex, producer_id, first_offset, last_offset, last_stable_offset)
    s.has_aborts = True
    pthread_mutex_unlock(&s.lock)


cdef void segment_reset_indexes(Segment* s) noexcept nogil:
    pthread_mutex_lock(&s.lock)
    index_reset(&s.index)
    index_reset(&s.timeindex)
    index_reset(&s.txnindex)
    s.has_aborts = False
    s.bytes_since_index = 0
    s.max_timestamp = -1
    s.max_timestamp_offset = -1
    s.first_timestamp = -1
    s.next_offset = s.base_offset
    s.formats = FORMATS_NEW
    s.unflushed = True
    s.proved = True
    s.corrupt = False
    s.checked = False
    pthread_mutex_unlock(&s.lock)


cdef int segment_hold_indexes(Segment* s) noexcept nogil:
    cdef int result = 0
    pthread_mutex_lock(&s.lock)
    if not s.index.held:
        result = index_hold(&s.index, _path(s, b".index").c_str())
    if result == 0 and not s.timeindex.held:
        result = index_hold(&s.timeindex, _path(s, b".timeindex").c_str())
    if result == 0 and not s.txnindex.held:
        result = index_hold(&s.txnindex, _path(s, b".txnindex").c_str())
    pthread_mutex_unlock(&s.lock)
    return result


cdef bint segment_index_full(Segment* s, int64_t index_bytes, size_t more) noexcept nogil:
    # Kafka keeps one entry of the time index free for the one that a roll adds.
    return (
        s.index.bytes.size() // INDEX_ENTRY + more >= <size_t>(index_bytes // INDEX_ENTRY)
        or s.timeindex.bytes.size() // TIMEINDEX_ENTRY + more + 1 >= <size_t>(index_bytes // TIMEINDEX_ENTRY)
    )


cdef int64_t segment_newest_ms(const Segment* s) noexcept nogil:
    cdef stat info
    if s.max_timestamp >= 0:
        return s.max_timestamp
    if stat_path(_path(s, b".log").c_str(), &info) != 0:
        return s.created_ms
    return ms_of(&info.st_mtim)


cdef void segment_last_time(Segment* s) noexcept nogil:
    cdef size_t before
    pthread_mutex_lock(&s.lock)
    if s.timeindex.held:
        before = s.timeindex.bytes.size()
        timeindex_add(&s.timeindex, s.max_timestamp, <int32_t>(s.max_timestamp_offset - s.base_offset))
        s.unflushed = s.unflushed or s.timeindex.bytes.size() > before
        s.checked = s.checked and s.timeindex.bytes.size() == before
    pthread_mutex_unlock(&s.lock)


cdef void segment_seal(Segment* s) noexcept nogil:
    segment_last_time(s)
    if not s.sealed:
        s.checked = False              # its .checks, if there are any, know of no next segment
    s.sealed = True


cdef int _write_indexes(Segment* s) noexcept nogil:
    cdef int result = index_write(&s.index, _path(s, b".index").c_str(), False, False)
    if result == 0:
        result = index_write(&s.timeindex, _path(s, b".timeindex").c_str(), False, False)
    if result == 0:
        result = index_write(&s.txnindex, _path(s, b".txnindex").c_str(), True, False)
    return result


cdef inline bint _sum_of(const IndexFile* f, IndexSum* out) noexcept nogil:
    """What the file of an index is, or will be once it is written. False: that isn't known."""
    out[0] = index_sum(f.bytes.data(), f.bytes.size()) if f.held else f.sum
    return f.held or f.known


cdef inline int64_t _following(const Segment* s) noexcept nogil:
    return s.next_offset if s.sealed else <int64_t>-1


cdef int _write_checks(Segment* s, const char* suffix, int64_t following) noexcept nogil:
    """Under the segment's lock. 0, also where there is nothing to write, or errno."""
    cdef Checks checks
    cdef int result = 0
    if not s.proved or s.checked:
        return 0
    checks.base_offset = s.base_offset
    checks.size = s.size
    checks.max_timestamp = s.max_timestamp
    checks.max_timestamp_offset = s.max_timestamp_offset
    checks.next_offset = s.next_offset
    checks.formats = s.formats
    checks.following = following
    if (
        _sum_of(&s.index, &checks.sums[0])
        and _sum_of(&s.timeindex, &checks.sums[1])
        and _sum_of(&s.txnindex, &checks.sums[2])
    ):
        result = checks_write(&checks, _path(s, suffix).c_str())
        s.checked = result == 0
    return result


cdef int segment_write_checks(Segment* s) noexcept nogil:
    cdef int result
    pthread_mutex_lock(&s.lock)
    result = _write_checks(s, b".checks", _following(s))
    pthread_mutex_unlock(&s.lock)
    return result


cdef int segment_write_cleaned_checks(Segment* s, int64_t following) noexcept nogil:
    cdef int result
    pthread_mutex_lock(&s.lock)
    result = _write_checks(s, b".checks.cleaned", following)
    pthread_mutex_unlock(&s.lock)
    return result


cdef bint segment_checks_are_sealed(Segment* s) noexcept nogil:
    cdef Checks checks
    return checks_read(&checks, _path(s, b".checks").c_str()) and checks.following >= 0


cdef void segment_drop_checks(Segment* s) noexcept nogil:
    pthread_mutex_lock(&s.lock)
    unlink(_path(s, b".checks").c_str())
    s.checked = False
    pthread_mutex_unlock(&s.lock)


cdef bint _has_size(Segment* s, const char* suffix, int64_t size, bint optional) noexcept nogil:
    """Whether the file is as long as it should be; `optional`: one that should have nothing may be missing."""
    cdef stat info
    if stat_path(_path(s, suffix).c_str(), &info) != 0:
        return optional and size == 0
    return info.st_size == size


cdef inline void _should_be(IndexFile* f, const IndexSum* sum) noexcept nogil:
    f.known = True
    f.sum = sum[0]


cdef bint _read_checks(Segment* s, Checks* checks) noexcept nogil:
    return (
        checks_read(checks, _path(s, b".checks").c_str())
        and checks.base_offset == s.base_offset
        and checks.size == s.size
    )


cdef int64_t segment_checked_end(Segment* s) noexcept nogil:
    cdef Checks checks
    return checks.next_offset if _read_checks(s, &checks) else <int64_t>-1


cdef int segment_read_checks(Segment* s) noexcept nogil:
    cdef Checks checks
    if not _read_checks(s, &checks):
        return CHECKS_NONE
    s.next_offset = checks.next_offset
    if not (
        _has_size(s, b".index", checks.sums[0].size, False)
        and _has_size(s, b".timeindex", checks.sums[1].size, False)
        and _has_size(s, b".txnindex", checks.sums[2].size, True)
    ):
        return CHECKS_DISAGREE
    _should_be(&s.index, &checks.sums[0])
    _should_be(&s.timeindex, &checks.sums[1])
    _should_be(&s.txnindex, &checks.sums[2])
    s.max_timestamp = checks.max_timestamp
    s.max_timestamp_offset = checks.max_timestamp_offset
    s.has_aborts = checks.sums[2].size > 0
    s.formats = checks.formats
    s.proved = True
    s.checked = True
    return CHECKS_AGREE


cdef int segment_view_indexes(Segment* s) noexcept nogil:
    cdef const uint8_t* entries
    cdef size_t n
    cdef int result
    pthread_mutex_lock(&s.lock)
    result = index_view(&s.index, _path(s, b".index").c_str(), &entries, &n)
    if result == 0:
        result = index_view(&s.timeindex, _path(s, b".timeindex").c_str(), &entries, &n)
    if result == 0:
        result = index_view(&s.txnindex, _path(s, b".txnindex").c_str(), &entries, &n)
    pthread_mutex_unlock(&s.lock)
    return result


cdef bint segment_newest_is_there(Segment* s) noexcept nogil:
    cdef const uint8_t* entries
    cdef size_t n
    cdef int64_t timestamp, offset, position
    cdef BatchHeader header
    cdef bint knows
    pthread_mutex_lock(&s.lock)
    knows = (
        index_view(&s.timeindex, _path(s, b".timeindex").c_str(), &entries, &n) == 0
        and timeindex_last(entries, n, s.base_offset, &timestamp, &offset)
    )
    pthread_mutex_unlock(&s.lock)
    if not knows or segment_find(s, offset, s.size, False, &header, &position) != WALK_BATCH:
        return False
    return header.base_offset <= offset and header.max_timestamp == timestamp


cdef void _take(IndexFile* to, IndexFile* source) noexcept nogil:
    index_reset(to)
    to.bytes.swap(source.bytes)


cdef void segment_take_indexes(Segment* s, Segment* right) noexcept nogil:
    pthread_mutex_lock(&s.lock)
    _take(&s.index, &right.index)
    _take(&s.timeindex, &right.timeindex)
    _take(&s.txnindex, &right.txnindex)
    s.has_aborts = right.has_aborts
    s.bytes_since_index = right.bytes_since_index
    s.unflushed = True
    s.checked = False
    pthread_mutex_unlock(&s.lock)


cdef int segment_write_indexes(Segment* s) noexcept nogil:
    cdef int result
    pthread_mutex_lock(&s.lock)
    result = _write_indexes(s)
    pthread_mutex_unlock(&s.lock)
    return result


cdef int segment_write_out(Segment* s, bint* fatal) noexcept nogil:
    cdef int64_t position = 0
    cdef int fd = segment_open(s, False)
    fatal[0] = False
    if fd < 0:
        return -fd
    while position < s.size:
        if sync_file_range(
            fd, position, WRITE_OUT_BYTES,
            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER,
        ) != 0:
            if errno == EINVAL or errno == ENOSYS or errno == EOPNOTSUPP:
                return 0               # a file system without it: the sync does all at once
            fatal[0] = True
            return errno
        position += WRITE_OUT_BYTES
    return 0


cdef int segment_flush(Segment* s, bint* fatal) noexcept nogil:
    cdef int i, result, fd
    fatal[0] = False
    fd = segment_open(s, False)
    if fd < 0:
        return -fd
    pthread_mutex_lock(&s.lock)
    # Cleared first: what an appender adds from here on is the next flush's.
    s.unflushed = False
    result = _write_indexes(s)
    if result == 0 and s.sealed:
        _write_checks(s, b".checks", _following(s))
    pthread_mutex_unlock(&s.lock)
    if result == 0 and fdatasync(fd) != 0:
        result = errno
        fatal[0] = True
    for i in range(1, INDEXES_END):
        if result == 0:
            result = sync_file(_path(s, SUFFIXES[i]).c_str())
            fatal[0] = result != 0 and not is_shortage(result)
    if result != 0:
        s.unflushed = True
    return result


cdef int segment_prepare_sync(Segment* s) noexcept nogil:
    cdef int result
    pthread_mutex_lock(&s.lock)
    result = _write_indexes(s)
    if result == 0:
        result = room_give_back(&s.room, s.fd, s.size)
    if result == 0:
        _write_checks(s, b".checks", _following(s))
    s.unflushed = result != 0
    pthread_mutex_unlock(&s.lock)
    return result


cdef int segment_flush_log(Segment* s, bint* fatal) noexcept nogil:
    cdef int fd = segment_open(s, False)
    fatal[0] = False
    if fd < 0:
        return -fd
    if fdatasync(fd) != 0:
        fatal[0] = True
        return errno
    return 0


cdef inline bint _close_file(Segment* s) noexcept nogil:
    if s.fd < 0 or room_give_back(&s.room, s.fd, s.size) != 0:
        return False
    close(s.fd)
    s.fd = -1
    return True


cdef bint segment_close_file(Segment* s) noexcept nogil:
    cdef bint closed
    if atomic_load32(&s.refs) != 1 or pthread_mutex_trylock(&s.lock) != 0:
        return False
    closed = _close_file(s)
    pthread_mutex_unlock(&s.lock)
    return closed


cdef void segment_close_idle(Segment* s) noexcept nogil:
    if s.touched or atomic_load32(&s.refs) != 1:
        s.touched = False
        return
    pthread_mutex_lock(&s.lock)
    _close_file(s)
    if not s.unflushed:
        index_release(&s.index, s.proved)
        index_release(&s.timeindex, s.proved)
        index_release(&s.txnindex, s.proved)
    index_unmap(&s.index)
    index_unmap(&s.timeindex)
    index_unmap(&s.txnindex)
    pthread_mutex_unlock(&s.lock)


cdef int _keep_open(Segment* s) noexcept nogil:
    """Under the segment's lock: whoever has a reference can go on when the paths lead nowhere. 0 or errno."""
    cdef const uint8_t* entries
    cdef size_t n
    cdef int fd
    if s.fd < 0:
        fd = open_file(_path(s, b".log").c_str(), O_RDWR | O_CLOEXEC, 0)
        if fd < 0:
            return -fd
        s.fd = fd
    # An index that can't be had, or is wrong, costs a walk; that aborted transactions are missing is noticed.
    _offset_entries(s, &entries, &n)
    index_view(&s.timeindex, _path(s, b".timeindex").c_str(), &entries, &n)
    index_view(&s.txnindex, _path(s, b".txnindex").c_str(), &entries, &n)
    return 0


cdef int segment_retire(Segment* s, int64_t due_ms, vector[DeletedFile]& trash) noexcept nogil:
    cdef int i, result = 0
    cdef string path
    cdef DeletedFile gone
    gone.due_ms = due_ms
    pthread_mutex_lock(&s.lock)
    if atomic_load32(&s.refs) > 1:
        s.lost = _keep_open(s)
    for i in range(FILES):
        path = _path(s, SUFFIXES[i])
        gone.path = path
        gone.path.append(b".deleted")
        if rename(path.c_str(), gone.path.c_str()) == 0:
            trash.push_back(gone)
        elif errno != ENOENT:
            result = errno
    pthread_mutex_unlock(&s.lock)
    return result


cdef void empty_trash(vector[DeletedFile]& trash, int64_t now_ms) noexcept nogil:
    cdef size_t i, kept = 0
    for i in range(trash.size()):
        if trash[i].due_ms <= now_ms:
            unlink(trash[i].path.c_str())
        else:
            trash[kept] = trash[i]
            kept += 1
    trash.resize(kept)


cdef int segment_delete(Segment* s) noexcept nogil:
    cdef vector[DeletedFile] trash
    cdef int result = segment_retire(s, 0, trash)
    empty_trash(trash, 0)
    return result


cdef void walk_begin(LogWalk* walk, int fd, int64_t position, int64_t end, size_t chunk) noexcept nogil:
    walk.fd = fd
    walk.position = position
    walk.end = end
    walk.chunk = chunk
    walk.buffer_at = 0
    walk.buffered = 0
    walk.cached = False


cdef inline int64_t _fill(LogWalk* walk, size_t n) noexcept nogil:
    """At least `n` bytes from walk.position on in the buffer (fewer at the end of the file). The bytes there, or
    -errno: -EAGAIN when they aren't in the page cache."""
    cdef int64_t got, want
    cdef int64_t ahead = walk.buffer_at + <int64_t>walk.buffered - walk.position
    if walk.position >= walk.buffer_at and ahead >= <int64_t>n:
        return ahead
    want = <int64_t>(n if n > walk.chunk else walk.chunk)
    if want > walk.end - walk.position:
        want = walk.end - walk.position
    if walk.buffer.size() < <size_t>want:
        walk.buffer.resize(<size_t>want)
    if walk.cached:
        got = read_cached_at(walk.fd, walk.buffer.data(), <size_t>want, walk.position)
        if 0 <= got < min(want, <int64_t>n):
            return -EAGAIN
    else:
        got = read_at(walk.fd, walk.buffer.data(), <size_t>want, walk.position)
    if got < 0:
        return got
    walk.buffer_at = walk.position
    walk.buffered = <size_t>got
    return got


cdef int walk_next(LogWalk* walk, BatchHeader* header, const uint8_t** bytes, bint whole) noexcept nogil:
    cdef int fault
    cdef int64_t left
    cdef const uint8_t* p
    if walk.position >= walk.end:
        return WALK_END
    left = _fill(walk, RECORDS_AT)
    if left < 0:
        return WALK_COLD if left == -EAGAIN else <int>left
    p = walk.buffer.data() + (walk.position - walk.buffer_at)
    fault = batch_parse_header(p, <size_t>left, header)
    if fault == BATCH_PARTIAL and left < RECORDS_AT:
        fault = batch_parse(p, <size_t>left, header)       # a small message of magic 0 or 1 at the very end
    if fault != 0 or header.size > walk.end - walk.position or header.last_offset_delta < 0:
        return WALK_GARBAGE
    if whole:
        left = _fill(walk, <size_t>header.size)
        if left < 0:
            return WALK_COLD if left == -EAGAIN else <int>left
        if left < header.size:
            return WALK_GARBAGE
        p = walk.buffer.data() + (walk.position - walk.buffer_at)
    bytes[0] = p
    walk.position += header.size
    return WALK_BATCH


cdef int segment_find(
    Segment* s, int64_t offset, int64_t limit, bint cached, BatchHeader* header, int64_t* position
) noexcept nogil:
    cdef const uint8_t* entries
    cdef size_t n
    cdef int64_t start, named = -1
    cdef int result
    cdef bint first, wrong
    cdef LogWalk walk
    cdef const uint8_t* bytes
    cdef int fd = segment_open(s, False)
    if fd < 0:
        return fd
    pthread_mutex_lock(&s.lock)
    result = _offset_entries(s, &entries, &n)
    start = index_floor(entries, n, s.base_offset, offset, &named) if result == 0 else 0
    s.touched = True
    pthread_mutex_unlock(&s.lock)
    if result != 0:
        return -result
    if start > limit and s.proved:
        start = 0                      # what lies past the limit was written since
    while True:
        walk_begin(&walk, fd, start, limit, FIND_CHUNK)
        walk.cached = cached
        first = start != 0
        wrong = start < 0 or start > limit
        result = WALK_GARBAGE
        while not wrong:
            result = walk_next(&walk, header, &bytes, False)
            # An entry that leads to another batch than it names might lead past the wanted one.
            wrong = first and result == WALK_BATCH and batch_last_offset(header) != named
            first = False
            if result != WALK_BATCH or batch_last_offset(header) >= offset:
                break
        if (wrong or result == WALK_GARBAGE) and start != 0:
            if not s.proved and not s.corrupt:
                return -INDEX_WRONG
            start = 0                  # an index that lies costs time, never a wrong answer
            continue
        position[0] = walk.position - header.size if result == WALK_BATCH else walk.position
        return result


cdef void segment_expect(Segment* s, const BatchPlace* next) noexcept nogil:
    pthread_mutex_lock(&s.lock)
    s.expected = next[0]
    pthread_mutex_unlock(&s.lock)


cdef bint segment_expected(Segment* s, int64_t offset, int64_t limit, BatchPlace* out) noexcept nogil:
    pthread_mutex_lock(&s.lock)
    out[0] = s.expected
    s.touched = True
    pthread_mutex_unlock(&s.lock)
    return out.size > 0 and out.offset == offset and out.position + out.size <= limit


cdef int64_t segment_bound(Segment* s, int64_t position, int64_t next_offset) noexcept nogil:
    cdef const uint8_t* entries
    cdef size_t n
    cdef int64_t bound = -1
    if not s.proved:
        return next_offset             # an entry that lies would leave an aborted transaction out
    pthread_mutex_lock(&s.lock)
    if _offset_entries(s, &entries, &n) == 0:
        bound = index_bound(entries, n, s.base_offset, position)
    pthread_mutex_unlock(&s.lock)
    return next_offset if bound < 0 or bound > next_offset else bound


cdef bint _batch_at_time(
    const BatchHeader* header, int64_t from_offset, int64_t* offset, int64_t* timestamp
) noexcept nogil:
    offset[0] = header.base_offset if header.base_offset > from_offset else from_offset
    timestamp[0] = header.max_timestamp
    return True


cdef bint _record_at_time(
    const uint8_t* p, const BatchHeader* header, int64_t timestamp_ms, int64_t from_offset, vector[uint8_t]& scratch,
    size_t* may_inflate, int64_t* offset, int64_t* timestamp
) noexcept nogil:
    """The first record of a batch that is late enough; False if there is none, or if its payload can't be read."""
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef size_t n, limit = INFLATED_MAX_BYTES
    cdef int fault
    cdef RecordView record
    cdef bint packed = (header.attributes & CODEC_MASK) != 0
    if packed and limit > may_inflate[0]:
        limit = may_inflate[0]
    if header.magic < 2:
        fault = message_at_time(p, header, timestamp_ms, from_offset, limit, scratch, offset, timestamp)
    elif header.attributes & LOG_APPEND_TIME_BIT:
        return _batch_at_time(header, from_offset, offset, timestamp)
    else:
        fault = batch_payload(p, header, limit, scratch, &at, &n)
    if packed:
        # Of what went wrong only the room that it took says how much work it was.
        may_inflate[0] -= min(scratch.capacity() if scratch.empty() else scratch.size(), limit)
    if fault == BATCH_OVER_LIMIT:
        return _batch_at_time(header, from_offset, offset, timestamp)
    if fault != BATCH_OK or header.magic < 2:
        return fault == BATCH_OK
    end = at + n
    while at != NULL and at < end:
        at = record_read(at, end, &record)
        if at == NULL:
            return False
        offset[0] = record_offset(header, &record)
        timestamp[0] = record_create_time(header, &record)
        if timestamp[0] >= timestamp_ms and offset[0] >= from_offset:
            return True
    return False


cdef int segment_find_time(
    Segment* s, int64_t timestamp_ms, int64_t from_offset, int64_t limit, size_t* may_inflate, int64_t* offset,
    int64_t* timestamp
) noexcept nogil:
    cdef const uint8_t* entries
    cdef const uint8_t* bytes
    cdef size_t n
    cdef int result
    cdef int64_t start, position = 0, named_ms
    cdef BatchHeader header
    cdef LogWalk walk
    cdef vector[uint8_t] scratch
    pthread_mutex_lock(&s.lock)
    result = index_view(&s.timeindex, _path(s, b".timeindex").c_str(), &entries, &n)
    start = timeindex_floor(entries, n, s.base_offset, timestamp_ms, &named_ms)
    pthread_mutex_unlock(&s.lock)
    if result != 0:
        return -result
    if start < from_offset:
        start = from_offset
        named_ms = -1
    result = segment_find(s, start, limit, False, &header, &position)
    if result != WALK_BATCH:
        offset[0] = position
        return result
    if named_ms >= 0 and header.max_timestamp != named_ms and not s.walked:
        return -INDEX_WRONG
    walk_begin(&walk, s.fd, position, limit, TIME_CHUNK)
    while True:
        result = walk_next(&walk, &header, &bytes, False)
        if result != WALK_BATCH:
            offset[0] = walk.position
            return result
        if header.max_timestamp < timestamp_ms or batch_last_offset(&header) < from_offset or header.record_count == 0:
            continue
        walk.position -= header.size
        result = walk_next(&walk, &header, &bytes, True)
        if result != WALK_BATCH:
            offset[0] = walk.position
            return result
        if _record_at_time(bytes, &header, timestamp_ms, from_offset, scratch, may_inflate, offset, timestamp):
            return WALK_BATCH


cdef int segment_aborts(Segment* s, vector[uint8_t]& out) noexcept nogil:
    cdef const uint8_t* entries
    cdef size_t n
    cdef int result
    out.clear()
    pthread_mutex_lock(&s.lock)
    result = index_view(&s.txnindex, _path(s, b".txnindex").c_str(), &entries, &n)
    if result == 0 and n == 0 and s.has_aborts:
        result = INDEX_WRONG           # the file is gone: that is never taken for "none"
    if result == 0 and n > 0:
        out.assign(entries, entries + n)
    pthread_mutex_unlock(&s.lock)
    return result
