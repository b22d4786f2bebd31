"""Opening a log folder; see recovery.pxd."""

from cython.operator cimport dereference as at, postincrement as step
from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.algorithm cimport binary_search, sort
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.linux.descriptors cimport open_file
from penstock.pyx.linux.posix cimport (
    DIR, O_CLOEXEC, O_RDONLY, close, closedir, dirent, errno, fstat, ftruncate, opendir, readdir, rename, stat,
    stat_path, strlen, strncmp, unlink,
)
from penstock.pyx.log.batchorder cimport BatchOrder, order_begin, order_blame, order_take
from penstock.pyx.log.checks cimport Checks, checks_read
from penstock.pyx.log.damage cimport (
    DAMAGE_BEGIN, DAMAGE_BYTES, DAMAGE_END, DAMAGE_MIDDLE, LOG_CORRUPT, find_batch, set_aside,
)
from penstock.pyx.log.epochs cimport epochs_assign, epochs_cut_end, epochs_cut_start, epochs_read, epochs_write
from penstock.pyx.log.files cimport is_full, read_at
from penstock.pyx.log.index cimport INDEX_ENTRY, INDEX_WRONG, RELATIVE_MAX, IndexFile, index_view
from penstock.pyx.log.logstate cimport (
    NOTE_CORRUPT_BATCH, NOTE_CUT, NOTE_REBUILT, NOTE_SNAPSHOT, LogState, count_walked, note,
)
from penstock.pyx.log.origin cimport REPLICA
from penstock.pyx.log.producerstate cimport (
    NO_OFFSET, EndedTxn, ProducerEntry, producer_data, producer_marker, producers_clear, producers_first_open,
    producers_get, producers_put, producers_read, producers_remove,
)
from penstock.pyx.log.room cimport room_is_zeros
from penstock.pyx.log.segment cimport (
    CHECKS_AGREE, CHECKS_DISAGREE, HEADERS_CHUNK, WALK_BATCH, WALK_END, WALK_GARBAGE, LogWalk, Segment,
    segment_checked_end, segment_checks_are_sealed, segment_close_idle, segment_delete, segment_drop_checks,
    segment_index_abort, segment_index_batch,
    segment_named_offset, segment_new, segment_open, segment_read_checks, segment_release, segment_reset_indexes,
    segment_seal, segment_stem, segment_view_indexes, walk_begin, walk_next,
)
from penstock.pyx.log.swap cimport swap_recover
from penstock.pyx.log.timeindex cimport TIMEINDEX_ENTRY, timeindex_last
from penstock.pyx.log.txnindex cimport TXNINDEX_ENTRY
from penstock.pyx.record.batch cimport (
    CHECK_STORED, MARKER_COMMIT, BatchHeader, batch_check, batch_is_control, batch_last_offset, batch_marker_type,
)
from penstock.pyx.record.endian cimport get_i32

cdef enum:
    WALK_CHUNK = 1 << 20               # one read of a whole walk

# What a walk does beside moving on.
cdef enum:
    WALK_CHECKS = 1                    # checksums; cut at the first bad byte
    WALK_INDEXES = 2                   # rebuild the segment's indexes
    WALK_PRODUCERS = 4                 # replay into the producer states


cdef string snapshot_stem(const string& folder, int64_t offset) noexcept nogil:
    return segment_stem(folder, offset)


cdef bint _ends_with(const char* name, const char* suffix) noexcept nogil:
    cdef size_t n = strlen(name), m = strlen(suffix)
    return n >= m and strncmp(name + n - m, suffix, m) == 0


# What a partition's folder holds, by the offsets that files are named after, sorted.
cdef struct Listing:
    vector[int64_t] bases
    vector[int64_t] snapshots
    vector[int64_t] checks
    vector[int64_t] deleted            # segments that retention has let go
    vector[string] leftovers           # what a crash has left half done, or retention for later
    bint swaps                         # there are files that compaction was putting in the place of others


cdef int _list_folder(const string& folder, Listing* out) noexcept nogil:
    """0 or errno."""
    cdef dirent* entry
    cdef string path
    cdef DIR* listing = opendir(folder.c_str())
    if listing == NULL:
        return errno
    out.bases.clear()
    out.snapshots.clear()
    out.checks.clear()
    out.deleted.clear()
    out.leftovers.clear()
    out.swaps = False
    while True:
        entry = readdir(listing)
        if entry == NULL:
            break
        _add_named(entry.d_name, b".log", out.bases)
        _add_named(entry.d_name, b".snapshot", out.snapshots)
        _add_named(entry.d_name, b".checks", out.checks)
        _add_named(entry.d_name, b".log.deleted", out.deleted)
        out.swaps = out.swaps or _ends_with(entry.d_name, b".swap")
        if _ends_with(entry.d_name, b".deleted") or _ends_with(entry.d_name, b".cleaned") or _ends_with(
            entry.d_name, b".tmp"
        ):
            path = folder
            path.append(b"/")
            path.append(entry.d_name)
            out.leftovers.push_back(path)
    closedir(listing)
    sort(out.bases.begin(), out.bases.end())
    sort(out.snapshots.begin(), out.snapshots.end())
    return 0


cdef void _add_named(const char* name, const char* suffix, vector[int64_t]& out) noexcept nogil:
    cdef int64_t offset = segment_named_offset(name, suffix)
    if offset >= 0:
        out.push_back(offset)


cdef int _validate_begin(const LogState* log, const Listing* listing, RecoveryReport* report) noexcept nogil:
    """Whether the first segments are there, and any, or retention had begun to remove them without a checkpoint (on a
    full disk): the first one is `.deleted` then. Those that went before it excuse nothing. 0 or LOG_CORRUPT."""
    cdef size_t i
    cdef bint empty = listing.bases.empty()
    report.damage.position = 0
    report.damage.swap = False
    if empty and log.known_end <= log.log_start:
        return 0
    if empty and log.known_begin < 0:
        report.damage.kind = DAMAGE_END
        report.damage.base_offset = log.log_start
        report.damage.first_offset = log.log_start
        report.damage.next_offset = log.known_end
        return LOG_CORRUPT
    if not empty and (log.known_begin < 0 or listing.bases[0] <= log.known_begin):
        return 0
    for i in range(listing.deleted.size()):
        if not empty and listing.deleted[i] == log.known_first:
            return 0                   # retention leaves a segment
    report.damage.kind = DAMAGE_BEGIN
    report.damage.base_offset = log.known_begin
    report.damage.first_offset = log.known_begin
    report.damage.next_offset = log.known_end if empty else listing.bases[0]
    return LOG_CORRUPT


cdef int _end_of(const string& path, int64_t base_offset, int64_t* end) noexcept nogil:
    """One past the last offset of a segment's file, by the headers of its batches. 0 or errno."""
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef stat info
    cdef int result = WALK_BATCH
    cdef int fd = open_file(path.c_str(), O_RDONLY | O_CLOEXEC, 0)
    end[0] = base_offset
    if fd < 0:
        return -fd
    if fstat(fd, &info) != 0:
        result = -errno
    else:
        walk_begin(&walk, fd, 0, info.st_size, HEADERS_CHUNK)
    while result == WALK_BATCH:
        result = walk_next(&walk, &header, &bytes, False)
        if result == WALK_BATCH:
            end[0] = batch_last_offset(&header) + 1
    close(fd)
    return -result if result < 0 else 0


cdef int _validate_chain(
    const LogState* log, const Listing* listing, bint clean, vector[int64_t]& wrong, RecoveryReport* report
) noexcept nogil:
    """Whether a log with holes has all segments, and all bytes of them, that their .checks know. Where nothing is
    missing, or another program may have worked here, checks that disagree are `wrong`: they would accuse the log
    later. 0, LOG_CORRUPT or errno."""
    cdef Checks checks
    cdef stat info
    cdef string stem, path
    cdef size_t i
    cdef int result
    cdef int64_t next_base
    cdef bint believed, is_short
    for i in range(listing.bases.size() - 1 if not listing.bases.empty() else 0):
        stem = segment_stem(log.folder, listing.bases[i])
        path = stem
        path.append(b".checks")
        if not checks_read(&checks, path.c_str()) or checks.base_offset != listing.bases[i] or checks.following < 0:
            continue
        path = stem
        path.append(b".log")
        if stat_path(path.c_str(), &info) != 0:
            return errno
        next_base = listing.bases[i + 1]
        is_short = info.st_size < checks.size
        if not is_short and (info.st_size > checks.size or checks.following == next_base):
            continue
        # A dense log shows by its offsets what it lacks. What lies below the log start was deleted.
        believed = log.known_first >= 0 and not log.dense and next_base > log.log_start
        believed = believed and (clean or checks.following <= log.recovery_point)
        if not believed or (not is_short and checks.following > next_base):
            wrong.push_back(listing.bases[i])
            continue
        result = _end_of(path, listing.bases[i], &report.damage.first_offset)
        if result != 0:
            return result
        report.damage.kind = DAMAGE_MIDDLE
        report.damage.base_offset = listing.bases[i]
        report.damage.position = info.st_size
        report.damage.first_offset = max(report.damage.first_offset, <int64_t>0 if is_short else checks.following)
        report.damage.next_offset = next_base
        report.damage.swap = False
        return LOG_CORRUPT
    return 0


cdef void _drop_checks(LogState* log, vector[int64_t]& wrong) noexcept nogil:
    """Removes checks that are wrong, and those of a last segment that was sealed before: it will be appended to."""
    cdef size_t i
    for i in range(log.segments.size()):
        if binary_search(wrong.begin(), wrong.end(), log.segments[i].base_offset) or (
            i + 1 == log.segments.size() and segment_checks_are_sealed(log.segments[i])
        ):
            segment_drop_checks(log.segments[i])


cdef int _clear_folder(const string& folder, Listing* out) noexcept nogil:
    """The same; and what is left of a crash, or of retention, goes."""
    cdef size_t i
    cdef int result = _list_folder(folder, out)
    for i in range(out.leftovers.size()):
        unlink(out.leftovers[i].c_str())
    return result


cdef void _remove_stray_checks(const string& folder, Listing* listing) noexcept nogil:
    """Kafka has removed their segments."""
    cdef size_t i
    cdef string path
    for i in range(listing.checks.size()):
        if not binary_search(listing.bases.begin(), listing.bases.end(), listing.checks[i]):
            path = segment_stem(folder, listing.checks[i])
            path.append(b".checks")
            unlink(path.c_str())


cdef void replay_batch(
    LogState* log, Segment* s, const BatchHeader* header, const uint8_t* bytes, int64_t position, bint index,
    int64_t now_ms
) noexcept nogil:
    cdef ProducerEntry e
    cdef EndedTxn ended
    cdef int64_t duplicate_of
    cdef int32_t coordinator_epoch = -1
    cdef int marker
    if header.magic < 2 or header.producer_id < 0:
        return
    e = producers_get(&log.producers, header.producer_id)
    if not batch_is_control(header):
        producer_data(&e, header, REPLICA, header.base_offset, now_ms, &duplicate_of)
        producers_put(&log.producers, &e, s.base_offset, position)
        return
    marker = batch_marker_type(bytes, header, &coordinator_epoch)
    if marker < 0:
        return
    producer_marker(&e, header, marker == MARKER_COMMIT, coordinator_epoch, REPLICA, header.base_offset, now_ms, &ended)
    producers_put(&log.producers, &e, -1, -1)
    if index and ended.aborted and ended.first_offset >= 0:
        segment_index_abort(
            s, ended.producer_id, ended.first_offset, ended.last_offset,
            producers_first_open(&log.producers, header.base_offset + 1),
        )


cdef int64_t _following(const LogState* log, size_t place) noexcept nogil:
    """The base offset of the first segment after that in `place` that has any bytes; -1: there is none."""
    cdef size_t i
    for i in range(place + 1, log.segments.size()):
        if log.segments[i].size > 0:
            return log.segments[i].base_offset
    return -1


cdef inline int64_t _next_base(const LogState* log, size_t place) noexcept nogil:
    """The base offset of the segment after that in `place`, which may be empty; -1: it is the last one."""
    return log.segments[place + 1].base_offset if place + 1 < log.segments.size() else <int64_t>-1


cdef inline int64_t _limit(const LogState* log, size_t place, int64_t wanted) noexcept nogil:
    """All offsets of a segment lie below: those of the next one that has any bytes, and what its .checks say (-1:
    nothing). They may say more than its last offset where compaction has removed what lay behind that."""
    cdef int64_t most = log.segments[place].base_offset + RELATIVE_MAX + 1
    cdef int64_t following = _following(log, place)
    if following >= 0:
        most = min(most, following)
    return most if wanted < 0 else min(most, wanted)


cdef int _walk(
    LogState* log, size_t place, int64_t start, int64_t end, int64_t wanted, int64_t from_offset, int what,
    int64_t now_ms, int64_t* good, RecoveryReport* report
) noexcept nogil:
    """Walks a segment from `start` (a batch boundary) to the end of its file. Only batches at or past `from_offset` are
    replayed. 0, or errno; `good` is where the right bytes end, s.next_offset and s.size what was seen."""
    cdef Segment* s = log.segments[place]
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int64_t counted = start
    cdef int result
    cdef bint checks = (what & WALK_CHECKS) != 0
    cdef int fd = segment_open(s, False)
    report.misplaced = False
    report.outdated = False
    if fd < 0:
        return -fd
    order_begin(
        &report.order, s.base_offset if start == 0 else s.next_offset, _limit(log, place, wanted),
        checks and log.dense,
    )
    walk_begin(&walk, fd, start, end, WALK_CHUNK if checks else HEADERS_CHUNK)
    while True:
        good[0] = walk.position
        if walk.position - counted >= WALK_CHUNK:
            count_walked(log, walk.position - counted)
            counted = walk.position
        result = walk_next(&walk, &header, &bytes, checks)
        if result < 0:
            return -result
        if result != WALK_BATCH:
            return 0
        if checks:
            report.batches_checked += 1
            if batch_check(bytes, &header, 0, CHECK_STORED) != 0:
                return 0
        if checks and log.replicated and header.magic >= 2:
            if header.leader_epoch < report.last_epoch:
                report.outdated = True
                return 0
            report.last_epoch = header.leader_epoch
        if not order_take(&report.order, &header, good[0]):
            report.misplaced = checks
            good[0] = order_blame(&report.order, &header, good[0])
            s.next_offset = report.order.expected
            return 0
        if not checks and what & WALK_PRODUCERS and batch_is_control(&header):
            walk.position = good[0]
            result = walk_next(&walk, &header, &bytes, True)
            if result != WALK_BATCH:
                return -result if result < 0 else 0
        if what & WALK_INDEXES:
            segment_index_batch(s, &header, good[0], log.index_interval_bytes)
        if checks and header.magic >= 2 and (
            log.epochs.entries.empty() or log.epochs.entries.back().epoch < header.leader_epoch
        ):
            epochs_assign(&log.epochs, header.leader_epoch, header.base_offset)
        if what & WALK_PRODUCERS and header.base_offset >= from_offset:
            replay_batch(log, s, &header, bytes, good[0], (what & WALK_INDEXES) != 0, now_ms)


cdef bint _whole_index(
    Segment* s, IndexFile* f, const char* suffix, size_t entry, bint needed, const uint8_t** entries, size_t* n
) noexcept nogil:
    """Whether an index file of a segment that wasn't walked can be right: it is there (if it must be) in whole entries,
    and its last entry lies within the segment. `entries` stay mapped."""
    cdef string path = s.stem
    cdef stat info
    path.append(suffix)
    if stat_path(path.c_str(), &info) != 0:
        n[0] = 0
        return not needed
    return index_view(f, path.c_str(), entries, n) == 0 and n[0] % entry == 0


cdef bint _indexes_look_right(Segment* s) noexcept nogil:
    """Without checks: whether the index files look right."""
    cdef const uint8_t* entries = NULL
    cdef size_t n = 0
    if not _whole_index(s, &s.txnindex, b".txnindex", TXNINDEX_ENTRY, False, &entries, &n):
        return False
    s.has_aborts = n > 0
    if not _whole_index(s, &s.timeindex, b".timeindex", TIMEINDEX_ENTRY, True, &entries, &n):
        return False
    # The last entry says the largest timestamp of the segment.
    if timeindex_last(entries, n, s.base_offset, &s.max_timestamp, &s.max_timestamp_offset):
        if s.max_timestamp < 0 or s.max_timestamp_offset < s.base_offset:
            return False
    elif s.size > 0:
        return False                   # only logs without timestamps have this; walking those is right, if slow
    if not _whole_index(s, &s.index, b".index", INDEX_ENTRY, True, &entries, &n):
        return False
    if n == 0:
        return True
    return get_i32(entries + n - INDEX_ENTRY) >= 0 and 0 < get_i32(entries + n - 4) < s.size


cdef bint _believe_indexes(LogState* log, Segment* s, bint whole) noexcept nogil:
    """Whether the indexes of a segment that wasn't walked are what they should be. `whole`: their files are read for
    it; else that is done when they are used."""
    cdef int found
    if s.size == 0:
        return False                   # there is nothing to walk, either
    found = segment_read_checks(s)
    if found == CHECKS_AGREE and (not whole or segment_view_indexes(s) != INDEX_WRONG):
        return True
    if found != CHECKS_AGREE and found != CHECKS_DISAGREE and _indexes_look_right(s):
        return True
    s.proved = False
    note(log, NOTE_REBUILT, s.base_offset, 0)
    return False


# Where a segment ends, by the headers behind its last index entry.
cdef struct Tail:
    int64_t position                   # of what doesn't fit; else the end
    int64_t found                      # offset of a batch that doesn't fit; -1: none
    BatchOrder order


cdef int _walk_tail(Segment* s, int64_t start, int64_t named, int64_t limit, bint dense, Tail* out) noexcept nogil:
    """From the batch at `start` on, whose last offset is `named` (-1: unknown). A WalkResult (WALK_GARBAGE: it doesn't
    fit), or -errno."""
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int result
    order_begin(&out.order, s.base_offset, limit, dense)
    out.found = -1
    walk_begin(&walk, s.fd, start, s.size, HEADERS_CHUNK)
    while True:
        out.position = walk.position
        result = walk_next(&walk, &header, &bytes, False)
        if result != WALK_BATCH:
            return result
        if named >= 0:
            # No more than that is known of what comes before.
            if batch_last_offset(&header) != named:
                return WALK_GARBAGE
            order_begin(&out.order, named + 1, limit, dense)
            named = -1
        elif not order_take(&out.order, &header, out.position):
            out.position = order_blame(&out.order, &header, out.position)
            out.found = header.base_offset
            return WALK_GARBAGE


cdef bint _last_entry(Segment* s, int64_t* position, int64_t* named) noexcept nogil:
    """The last entry of a segment's offset index; of its file no more is read, for there may be thousands of them. The
    batch there has to say whether it is right."""
    cdef uint8_t last[INDEX_ENTRY]
    cdef stat info
    cdef string path = s.stem
    cdef int fd
    cdef bint found
    path.append(b".index")
    fd = open_file(path.c_str(), O_RDONLY | O_CLOEXEC, 0)
    if fd < 0:
        return False
    found = (
        fstat(fd, &info) == 0
        and info.st_size >= INDEX_ENTRY
        and read_at(fd, last, INDEX_ENTRY, info.st_size - INDEX_ENTRY) == INDEX_ENTRY
    )
    close(fd)
    if found:
        named[0] = s.base_offset + get_i32(last)
        position[0] = get_i32(last + 4)
    return found and named[0] >= s.base_offset and 0 < position[0] < s.size


cdef int _read_tail(Segment* s, int64_t limit, int64_t wanted, bint dense, Tail* out) noexcept nogil:
    """From the last index entry on; should that lead elsewhere than to `wanted` (-1: unknown), from the segment's
    start. A WalkResult, or -errno."""
    cdef int64_t position, named
    cdef int result
    cdef int fd = segment_open(s, False)
    if fd < 0:
        return fd
    if _last_entry(s, &position, &named):
        result = _walk_tail(s, position, named, limit, dense, out)
        if result < 0 or (result == WALK_END and (wanted < 0 or out.order.expected == wanted)):
            return result
    return _walk_tail(s, 0, -1, limit, dense, out)


cdef int _corrupt(RecoveryReport* report, const Segment* s, int64_t position, int64_t next_offset) noexcept nogil:
    report.damage.kind = DAMAGE_BYTES
    report.damage.base_offset = s.base_offset
    report.damage.position = position
    report.damage.first_offset = s.next_offset
    report.damage.next_offset = next_offset
    report.damage.swap = False
    return LOG_CORRUPT


cdef int _validate_log_end(const LogState* log, const Segment* s, int64_t good, RecoveryReport* report) noexcept nogil:
    """Whether a log that ends with this segment, whose right bytes end at `good`, has all that it had. 0 or
    LOG_CORRUPT."""
    if max(s.next_offset, log.log_start) >= log.known_end:
        return 0
    _corrupt(report, s, good, log.known_end)
    report.damage.kind = DAMAGE_END
    return LOG_CORRUPT


cdef int _corrupt_end(
    RecoveryReport* report, Segment* s, const BatchOrder* order, int64_t end, int64_t wanted
) noexcept nogil:
    """A segment doesn't end where it should: its last batch lies, if offsets are missing before it."""
    s.next_offset = order.expected if order.jumped < 0 else order.sure
    return _corrupt(report, s, end if order.jumped < 0 else order.jumped, wanted)


cdef bint _find_end(LogState* log, size_t place) noexcept nogil:
    """Finds the end of a segment that is believed, from its last index entry on. False: it isn't what its index or its
    .checks say."""
    cdef Segment* s = log.segments[place]
    cdef BatchOrder order
    cdef int64_t wanted = s.next_offset if s.checked else -1
    cdef int64_t limit = _limit(log, place, wanted)
    cdef const uint8_t* entries
    cdef size_t n
    cdef int64_t start = 0, position
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int result
    cdef int64_t expected = s.base_offset
    cdef bint first = True
    cdef string path = s.stem
    cdef int fd = segment_open(s, False)
    path.append(b".index")
    if fd < 0 or index_view(&s.index, path.c_str(), &entries, &n) != 0:
        return False
    if n >= INDEX_ENTRY:
        start = get_i32(entries + n - 4)
        expected = s.base_offset + get_i32(entries + n - INDEX_ENTRY)
    order_begin(&order, s.base_offset, limit, log.dense)
    walk_begin(&walk, fd, start, s.size, HEADERS_CHUNK)
    while True:
        position = walk.position
        result = walk_next(&walk, &header, &bytes, False)
        if result != WALK_BATCH:
            break
        if first and start > 0:
            if batch_last_offset(&header) != expected:
                return False
            order_begin(&order, expected + 1, limit, log.dense)
        elif not order_take(&order, &header, position):
            return False
        if position == 0:
            s.first_timestamp = header.max_timestamp
        if header.max_timestamp > s.max_timestamp and header.record_count > 0:
            s.max_timestamp = header.max_timestamp
            s.max_timestamp_offset = batch_last_offset(&header)
        if first and start > 0:
            s.bytes_since_index = 0
        s.bytes_since_index += header.size
        first = False
        s.next_offset = batch_last_offset(&header) + 1
    return result == WALK_END and (wanted < 0 or not log.dense or s.next_offset == wanted)


cdef void _first_timestamp(Segment* s) noexcept nogil:
    """The timestamp of the first batch decides when the segment is rolled."""
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int fd
    if s.size == 0 or s.first_timestamp >= 0:
        return
    fd = segment_open(s, False)
    if fd < 0:
        return
    walk_begin(&walk, fd, 0, s.size, 4096)
    if walk_next(&walk, &header, &bytes, False) == WALK_BATCH:
        s.first_timestamp = header.max_timestamp


cdef inline bint _may_have_holes(const LogState* log, const Segment* s) noexcept nogil:
    """Whether what follows the right bytes of a segment needn't be right: the kernel writes pages in an order of its
    own, so that a power cut leaves holes with whole batches behind them. A kill leaves none."""
    return log.power_cut and s.next_offset >= log.recovery_point


cdef int64_t _offset_behind(int fd, int64_t position, int64_t end, int64_t expected, int64_t limit) noexcept nogil:
    """The base offset of the whole batch at `position`, which isn't the one that is expected there, if offsets are
    missing before it; -1 if its own offset must be wrong, as the batch after it shows."""
    cdef LogWalk walk
    cdef BatchHeader header, after
    cdef const uint8_t* bytes
    walk_begin(&walk, fd, position, end, HEADERS_CHUNK)
    if walk_next(&walk, &header, &bytes, False) != WALK_BATCH or header.magic < 2:
        return -1
    if header.base_offset <= expected or batch_last_offset(&header) >= limit:
        return -1
    if walk_next(&walk, &after, &bytes, False) == WALK_BATCH and after.base_offset <= batch_last_offset(&header):
        return -1
    return header.base_offset


cdef int _validate_end(
    LogState* log, size_t place, int64_t good, int64_t end, bint* room, RecoveryReport* report
) noexcept nogil:
    """Whether what lies behind the right bytes of a segment is what a write that was cut short leaves: then it may go.
    0, LOG_CORRUPT or errno; `room`: it is room ahead and nothing else."""
    cdef Segment* s = log.segments[place]
    cdef BatchHeader header
    cdef int64_t following = _following(log, place), next_base = _next_base(log, place), found
    cdef int result, fd = -1
    cdef bint is_short
    room[0] = False
    if good < end:
        fd = segment_open(s, False)
        if fd < 0:
            return -fd
        result = room_is_zeros(fd, good, end)
        if result < 0:
            return -result
        room[0] = result
    if report.outdated:
        return 0
    if _may_have_holes(log, s) and not report.misplaced:
        return 0
    if following >= 0 and log.dense and following > log.log_start and not report.misplaced:
        return _corrupt(report, s, good, following) if s.next_offset < following else 0
    # The log goes on where the next segment begins, be it empty.
    is_short = log.dense and not report.misplaced and next_base > max(s.next_offset, log.log_start)
    if is_short and (good == end or room[0]):
        return _corrupt(report, s, good, next_base)
    if good == end:
        return 0                       # a dense log's end is compared with its .checks next
    if room[0]:
        return _corrupt(report, s, good, report.checked_end) if s.next_offset < report.checked_end else 0
    if report.misplaced:
        found = _offset_behind(fd, good, end, s.next_offset, _limit(log, place, -1))
        if found >= 0:
            return _corrupt(report, s, good, found)
    result = find_batch(fd, good + report.misplaced, end, s.next_offset, _limit(log, place, -1) - 1, &header, &found)
    if result == WALK_BATCH:
        return _corrupt(report, s, good, header.base_offset)
    if result < 0:
        return -result
    if is_short:
        return _corrupt(report, s, good, next_base)
    if (
        report.misplaced
        or following >= 0
        or s.next_offset < max(log.recovery_point, report.checked_end)
        or result != WALK_END
    ):
        return _corrupt(report, s, good, max(following, log.known_end) if following < 0 else following)
    return 0


cdef int _cut(LogState* log, Segment* s, int64_t good, int64_t end, bint room, RecoveryReport* report) noexcept nogil:
    cdef int fd, result
    cdef bint kept = False
    cdef string path = s.stem
    s.size = good
    if good == end:
        return 0
    fd = segment_open(s, False)
    if fd < 0:
        return -fd
    path.append(b".log")
    if not room:
        # A full disk doesn't keep the log from being opened: that nobody was told of what is cut is known.
        result = set_aside(fd, path, good, end, &kept)
        if result != 0 and not is_full(result):
            return result
    if ftruncate(fd, good) != 0:
        return errno
    if not room:
        report.cut_bytes += end - good
    if kept:
        note(log, NOTE_CUT, s.base_offset, good)
    return 0


cdef int _rebuild(
    LogState* log, size_t place, int64_t from_offset, int64_t now_ms, bint* was_cut, RecoveryReport* report
) noexcept nogil:
    """Walks a whole segment that isn't believed. 0, LOG_CORRUPT or errno."""
    cdef Segment* s = log.segments[place]
    cdef int64_t following, wanted
    cdef bint room = False
    cdef int64_t good = 0
    cdef int64_t end = s.size
    cdef int result
    wanted = segment_checked_end(s)
    segment_reset_indexes(s)
    s.size = 0
    result = _walk(
        log, place, 0, end, wanted, from_offset, WALK_CHECKS | WALK_INDEXES | WALK_PRODUCERS, now_ms, &good, report
    )
    if result != 0:
        s.size = end
        return result
    result = _validate_end(log, place, good, end, &room, report)
    if result == 0 and good == end and log.dense and 0 <= wanted != s.next_offset:
        result = _corrupt_end(report, s, &report.order, good, wanted)
    if result != 0:
        return result
    following = _following(log, place)
    was_cut[0] = good != end and following < 0
    if report.outdated:
        was_cut[0] = True
    elif _may_have_holes(log, s):
        was_cut[0] = good != end or (log.dense and _next_base(log, place) > max(s.next_offset, log.log_start))
    if was_cut[0] or place + 1 == log.segments.size():
        result = _validate_log_end(log, s, good, report)
        if result != 0:
            return result
    return _cut(log, s, good, end, room, report)


cdef int _drop_from(LogState* log, size_t first, RecoveryReport* report) noexcept nogil:
    """Segments after a cut have nothing, or their first offset lies within the one before: what they have is set
    aside."""
    cdef Segment* s
    cdef int result = 0, error
    cdef string path, aside
    while log.segments.size() > first:
        s = log.segments.back()
        log.segments.pop_back()
        report.cut_bytes += s.size
        path = s.stem
        path.append(b".log")
        aside = path
        aside.append(b".cut-0")
        if s.size > 0 and rename(path.c_str(), aside.c_str()) == 0:
            note(log, NOTE_CUT, s.base_offset, 0)
        error = segment_delete(s)
        segment_release(s)
        if error != 0:
            result = error
    return result


cdef int64_t _load_snapshot(LogState* log, vector[int64_t]& snapshots, int64_t most, int64_t now_ms) noexcept nogil:
    """The newest valid snapshot at or below `most` into the producer states; the offset from which batches must be
    replayed."""
    cdef size_t i = snapshots.size()
    while i > 0:
        i -= 1
        if snapshots[i] > most:
            continue
        if producers_read(&log.producers, snapshot_stem(log.folder, snapshots[i]), now_ms):
            return snapshots[i]
        note(log, NOTE_SNAPSHOT, snapshots[i], 0)
        producers_remove(snapshot_stem(log.folder, snapshots[i]))
        snapshots.erase(snapshots.begin() + i)
    producers_clear(&log.producers)
    return 0


cdef int _make_segments(LogState* log, const vector[int64_t]& bases, int64_t now_ms) noexcept nogil:
    cdef size_t i
    cdef Segment* s
    cdef stat info
    cdef string path
    for i in range(bases.size()):
        s = segment_new(log.folder, bases[i], now_ms)
        log.segments.push_back(s)
        path = s.stem
        path.append(b".log")
        if stat_path(path.c_str(), &info) != 0:
            return errno
        s.size = info.st_size
        s.created_ms = <int64_t>info.st_mtime * 1000
        s.sealed = i + 1 < bases.size()
        s.next_offset = bases[i + 1] if s.sealed else bases[i]
    return 0


cdef int _replay_between(LogState* log, int64_t from_offset, size_t count, int64_t now_ms) noexcept nogil:
    """Replays by headers what lies between the snapshot and the first segment that is walked whole."""
    cdef size_t i
    cdef Segment* s
    cdef int64_t good
    cdef RecoveryReport unused
    cdef int result
    for i in range(count):
        s = log.segments[i]
        if s.next_offset <= from_offset:
            continue
        result = _walk(log, i, 0, s.size, -1, from_offset, WALK_PRODUCERS, now_ms, &good, &unused)
        if result != 0:
            return result
    return 0


cdef int _recover_indexes(
    LogState* log, vector[int64_t]& snapshots, size_t place, int64_t end, int64_t now_ms, int64_t* good
) noexcept nogil:
    cdef int64_t from_offset = _load_snapshot(log, snapshots, log.segments[place].base_offset, now_ms)
    cdef int result = _replay_between(log, from_offset, place, now_ms)
    if result != 0:
        return result
    segment_reset_indexes(log.segments[place])
    return recover_more(log, place, end, now_ms, good)


cdef int recover_indexes(LogState* log, size_t place, int64_t end, int64_t now_ms, int64_t* good) noexcept nogil:
    cdef Listing listing
    cdef int result = _list_folder(log.folder, &listing)
    log.segments[place].size = 0
    return result if result != 0 else _recover_indexes(log, listing.snapshots, place, end, now_ms, good)


cdef int recover_more(LogState* log, size_t place, int64_t end, int64_t now_ms, int64_t* good) noexcept nogil:
    cdef RecoveryReport unused
    cdef Segment* s = log.segments[place]
    return _walk(log, place, s.size, end, -1, 0, WALK_INDEXES | WALK_PRODUCERS, now_ms, good, &unused)


cdef int _validate_border(LogState* log, size_t place, RecoveryReport* report) noexcept nogil:
    """Whether a segment that is believed ends where its .checks say, or the next one begins. 0, LOG_CORRUPT or
    errno."""
    cdef Segment* s = log.segments[place]
    cdef Tail tail
    cdef int64_t next_base, limit, found, wanted = s.next_offset if s.checked else -1
    cdef int result, fd
    if place + 1 == log.segments.size():
        return 0
    next_base = log.segments[place + 1].base_offset
    s.next_offset = next_base          # reads go on here
    if next_base <= log.log_start:
        return 0
    limit = next_base if wanted < 0 else min(next_base, wanted)
    wanted = next_base if log.dense else -1
    result = _read_tail(s, limit, wanted, log.dense, &tail)
    s.touched = False
    segment_close_idle(s)              # thousands of them may be looked at
    if result < 0:
        return -result
    if result == WALK_END:
        if wanted < 0 or tail.order.expected == wanted:
            return 0
        return _corrupt_end(report, s, &tail.order, tail.position, wanted)
    if tail.found < 0 and wanted < 0 and not s.checked:
        return 0                       # bytes that are no batch: readers are told
    s.next_offset = tail.order.expected
    fd = segment_open(s, False)
    if fd < 0:
        return -fd
    found = _offset_behind(fd, tail.position, s.size, s.next_offset, next_base) if tail.found >= 0 else <int64_t>-1
    return _corrupt(report, s, tail.position, found if found >= 0 else next_base)


cdef int _validate_walked(LogState* log, size_t place, int64_t good, RecoveryReport* report) noexcept nogil:
    """The same for one whose headers were walked, up to `good`."""
    cdef Segment* s = log.segments[place]
    cdef int64_t next_base
    if not log.dense or place + 1 == log.segments.size():
        return 0
    next_base = log.segments[place + 1].base_offset
    if next_base <= log.log_start or s.next_offset == next_base:
        return 0
    return _corrupt(report, s, good, next_base)


cdef int _believe(
    LogState* log, vector[int64_t]& snapshots, size_t count, int64_t now_ms, RecoveryReport* report
) noexcept nogil:
    """Segments below the first one that has to be walked are believed; one whose index is wrong gets it rebuilt by its
    headers. 0, LOG_CORRUPT or errno."""
    cdef size_t i
    cdef Segment* s
    cdef int64_t good = 0
    cdef int64_t end
    cdef int result
    for i in range(count):
        s = log.segments[i]
        if _believe_indexes(log, s, False):
            result = _validate_border(log, i, report)
            if result != 0:
                return result
            continue
        end = s.size
        s.size = 0
        result = _recover_indexes(log, snapshots, i, end, now_ms, &good)
        s.size = end
        if result == 0:
            result = _validate_walked(log, i, good, report)
        if result != 0:
            return result
        s.next_offset = log.segments[i + 1].base_offset if i + 1 < log.segments.size() else s.next_offset
        segment_seal(s)
        s.walked = True
        if good != end:
            s.proved = False
            s.corrupt = True
            note(log, NOTE_CORRUPT_BATCH, s.base_offset, good)
    return 0


cdef int _walk_rest(
    LogState* log, size_t first, int64_t from_offset, int64_t now_ms, RecoveryReport* report
) noexcept nogil:
    """Walks the segments from `first` on. 0 or errno."""
    cdef size_t i = first
    cdef Segment* s
    cdef bint was_cut = False
    cdef int result
    while i < log.segments.size():
        s = log.segments[i]
        if was_cut:
            return _drop_from(log, i, report)
        if i > 0 and s.base_offset < log.segments[i - 1].next_offset:
            # A roll that failed has left its file: nothing is in it, or the one before would end here.
            log.segments.erase(log.segments.begin() + i)
            result = segment_delete(s)
            segment_release(s)
            if result != 0:
                return result
            continue
        if i > 0:
            log.segments[i - 1].next_offset = s.base_offset    # reads go on here, should records be missing between
        result = _rebuild(log, i, from_offset, now_ms, &was_cut, report)
        if result != 0:
            return result
        if i + 1 < log.segments.size():
            segment_seal(s)
        i += 1
    return 0


cdef size_t _first_to_walk(LogState* log, bint clean) noexcept nogil:
    """Where the walk begins: the segment that holds the recovery point. All of them count as believed after a clean
    stop."""
    cdef size_t i = log.segments.size()
    if clean:
        return i
    while i > 0 and log.segments[i - 1].base_offset > log.recovery_point:
        i -= 1
    return i - 1 if i > 0 else 0


cdef int _begin_segment(LogState* log, int64_t base_offset, int64_t now_ms) noexcept nogil:
    cdef Segment* s = segment_new(log.folder, base_offset, now_ms)
    cdef int fd
    log.segments.push_back(s)
    segment_reset_indexes(s)
    fd = segment_open(s, True)
    return -fd if fd < 0 else 0


cdef int _set_ends(LogState* log, bint believed, int64_t now_ms) noexcept nogil:
    """The log's ends, once its segments are known; an empty folder gets its first segment."""
    cdef Segment* s
    cdef int result = 0
    if not log.segments.empty() and log.segments.back().next_offset < log.log_start:
        # What was kept lies wholly below the log start: nothing of it may be read again.
        while not log.segments.empty():
            s = log.segments.back()
            log.segments.pop_back()
            segment_delete(s)
            segment_release(s)
        producers_clear(&log.producers)
    if log.segments.empty():
        result = _begin_segment(log, log.log_start, now_ms)
    if result != 0:
        return result
    s = log.segments.back()
    s.sealed = False
    log.log_end = s.next_offset
    if log.log_start < log.segments.front().base_offset:
        log.log_start = log.segments.front().base_offset
    if believed:
        log.recovery_point = log.log_end
    elif log.recovery_point > s.base_offset:
        log.recovery_point = s.base_offset     # what was rebuilt of it isn't on disk yet
    _first_timestamp(s)
    return 0


cdef void _end_compacted(LogState* log) noexcept nogil:
    """Ends transactions that a snapshot has as open and whose marker a pass has removed, with all their records. No
    pass goes past the first record of an open one: what it left of others, it left as committed."""
    cdef vector[int64_t] ended
    cdef ProducerEntry e
    cdef size_t i
    if log.first_dirty > log.log_end:
        return                         # compaction was of another log
    place = log.producers.open_txns.begin()
    while place != log.producers.open_txns.end():
        e = producers_get(&log.producers, at(place).second.producer_id)
        # Records from there on may be those of its next transaction. Below the log start none of it is left.
        if max(at(place).first, log.log_start) < log.first_dirty and (
            e.count == 0 or e.batches[e.count - 1].last_offset < log.first_dirty
        ):
            ended.push_back(e.producer_id)
        step(place)
    for i in range(ended.size()):
        e = producers_get(&log.producers, ended[i])
        e.txn_first_offset = NO_OFFSET
        producers_put(&log.producers, &e, -1, -1)


cdef void _remove_strays(LogState* log, const vector[int64_t]& snapshots) noexcept nogil:
    cdef size_t i, j
    cdef bint known
    for i in range(snapshots.size()):
        known = i + 1 == snapshots.size() and snapshots[i] <= log.log_end
        for j in range(log.segments.size()):
            known = known or log.segments[j].base_offset == snapshots[i]
        if not known:
            producers_remove(snapshot_stem(log.folder, snapshots[i]))


cdef void remove_stray_snapshots(LogState* log) noexcept nogil:
    cdef Listing listing
    if _clear_folder(log.folder, &listing) == 0:
        _remove_stray_checks(log.folder, &listing)
        _remove_strays(log, listing.snapshots)


cdef int recover(LogState* log, bint clean, int64_t now_ms, RecoveryReport* report) noexcept nogil:
    cdef Listing listing
    cdef size_t first, believed
    cdef vector[int64_t] wrong
    cdef int64_t from_offset, most
    cdef int result
    cdef bint changed, believed_end
    cdef string path = log.folder
    report.batches_checked = 0
    report.cut_bytes = 0
    report.checked_end = 0
    report.last_epoch = -1
    path.append(b"/leader-epoch-checkpoint")
    report.damage.kind = DAMAGE_BYTES
    result = _list_folder(log.folder, &listing)
    if result == 0 and listing.swaps:
        result = _clear_folder(log.folder, &listing)
        if result == 0:
            result = swap_recover(log.folder, &report.damage)
        if result == 0:
            result = _list_folder(log.folder, &listing)
    if result == 0:
        result = _validate_begin(log, &listing, report)
    if result == 0:
        result = _validate_chain(log, &listing, clean, wrong, report)
    if result == 0:
        result = _clear_folder(log.folder, &listing)
    if result == 0:
        result = epochs_read(&log.epochs, path.c_str())
    if result == 0:
        result = _make_segments(log, listing.bases, now_ms)
    if result != 0:
        return result
    first = _first_to_walk(log, clean)
    if clean and not log.segments.empty():
        # Believing ends where the last segment isn't what its own indexes say: that one is then walked all the same.
        believed_end = _believe_indexes(log, log.segments.back(), True)
        if log.segments.back().checked:
            report.checked_end = log.segments.back().next_offset
        if not believed_end or not _find_end(log, first - 1):
            first -= 1
    believed = first
    if believed > 0 and believed == log.segments.size():
        believed -= 1                  # it was looked at just now
    result = _believe(log, listing.snapshots, believed, now_ms, report)
    if result != 0:
        return result
    if first < log.segments.size():
        most = log.segments[first].base_offset
    else:
        most = log.segments.back().next_offset if first > 0 else 0
    from_offset = _load_snapshot(log, listing.snapshots, most, now_ms)
    result = _replay_between(log, from_offset, first, now_ms)
    if result == 0:
        result = _walk_rest(log, first, from_offset, now_ms, report)
    report.end_found = log.log_start if log.segments.empty() else log.segments.back().next_offset
    if result == 0 and not log.segments.empty():
        result = _validate_log_end(log, log.segments.back(), log.segments.back().size, report)
    if result == 0:
        _remove_stray_checks(log.folder, &listing)
        _drop_checks(log, wrong)
        result = _set_ends(log, clean and report.batches_checked == 0, now_ms)
    if result != 0:
        return result
    _end_compacted(log)
    changed = epochs_cut_end(&log.epochs, log.log_end)
    changed = epochs_cut_start(&log.epochs, log.log_start) or changed
    if changed or report.batches_checked > 0:
        # Should there be no room, or this be cut short: the next recovery learns them from the batches again.
        epochs_write(&log.epochs, path.c_str(), False)
    _remove_strays(log, listing.snapshots)
    return 0
