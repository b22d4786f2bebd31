"""Swapping segments' files; see swap.pxd."""

from libc.stdint cimport int64_t, uint8_t

from penstock.pyx.linux.posix cimport (
    DIR, ENOENT, O_CLOEXEC, O_RDONLY, close, closedir, dirent, errno, fstat, fsync, open, opendir, readdir, rename,
    stat, unlink,
)
from penstock.pyx.log.batchorder cimport BatchOrder, order_begin, order_blame, order_take
from penstock.pyx.log.checks cimport Checks, checks_read
from penstock.pyx.log.damage cimport LOG_CORRUPT, Damage
from penstock.pyx.log.files cimport is_passing, sync_folder
from penstock.pyx.log.index cimport RELATIVE_MAX
from penstock.pyx.log.segment cimport (
    HEADERS_CHUNK, WALK_BATCH, WALK_END, WALK_GARBAGE, LogWalk, segment_named_offset, segment_stem, walk_begin,
    walk_next,
)
from penstock.pyx.record.batch cimport CHECK_STORED, BatchHeader, batch_check, batch_last_offset

cdef enum:
    WALK_CHUNK = 1 << 20               # one read of a whole walk
    FILES = 5                          # of a segment
    LOG = FILES - 1                    # its place in SUFFIXES

# In the order in which a segment's files are renamed and removed: the .log says that the others are there.
cdef const char* SUFFIXES[FILES]
SUFFIXES[0] = b".txnindex"
SUFFIXES[1] = b".timeindex"
SUFFIXES[2] = b".index"
SUFFIXES[3] = b".checks"
SUFFIXES[LOG] = b".log"


cdef string _name(const string& stem, const char* suffix, const char* state) noexcept nogil:
    cdef string path = stem
    path.append(suffix)
    path.append(state)
    return path


cdef void _add(vector[FileStep]& steps, int kind, const string& source, const string& target) noexcept nogil:
    cdef FileStep step
    step.kind = kind
    step.source = source
    step.target = target
    steps.push_back(step)


cdef void swap_steps(
    const string& stem, const vector[Segment*]& old, bint empty_txnindex, vector[FileStep]& out, size_t* committed
) noexcept nogil:
    cdef size_t i
    cdef int k
    cdef string nothing
    for k in range(FILES):
        _add(out, STEP_RENAME, _name(stem, SUFFIXES[k], b".cleaned"), _name(stem, SUFFIXES[k], b".swap"))
    committed[0] = out.size()
    _add(out, STEP_SYNC, nothing, nothing)
    for i in range(old.size()):
        if old[i].stem != stem:
            for k in range(FILES):
                _add(out, STEP_REMOVE, _name(old[i].stem, SUFFIXES[k], b""), nothing)
    for k in range(FILES):
        _add(out, STEP_RENAME, _name(stem, SUFFIXES[k], b".swap"), _name(stem, SUFFIXES[k], b""))
    if empty_txnindex:
        _add(out, STEP_REMOVE, _name(stem, SUFFIXES[0], b""), nothing)
    _add(out, STEP_SYNC, nothing, nothing)


cdef int swap_step(const FileStep* step, int folder_fd) noexcept nogil:
    if step.kind == STEP_RENAME:
        return 0 if rename(step.source.c_str(), step.target.c_str()) == 0 else errno
    if step.kind == STEP_REMOVE:
        return 0 if unlink(step.source.c_str()) == 0 or errno == ENOENT else errno
    return 0 if fsync(folder_fd) == 0 else errno


cdef bint swap_again(const FileStep* step, int error) noexcept nogil:
    return step.kind != STEP_SYNC and is_passing(error)


cdef void swap_undo(const string& stem) noexcept nogil:
    cdef int k
    for k in range(LOG, -1, -1):       # the .log first: without it the rest means nothing
        unlink(_name(stem, SUFFIXES[k], b".swap").c_str())
        unlink(_name(stem, SUFFIXES[k], b".cleaned").c_str())


cdef int _list(const string& folder, vector[int64_t]* swaps, vector[int64_t]& bases) noexcept nogil:
    """Base offsets of the `.swap` files, by the suffix in front of that (as in SUFFIXES), and of the segments. 0 or
    errno."""
    cdef dirent* entry
    cdef string name
    cdef int k
    cdef DIR* listing = opendir(folder.c_str())
    if listing == NULL:
        return errno
    while True:
        entry = readdir(listing)
        if entry == NULL:
            break
        for k in range(FILES):
            name.assign(SUFFIXES[k])
            name.append(b".swap")
            if segment_named_offset(entry.d_name, name.c_str()) >= 0:
                swaps[k].push_back(segment_named_offset(entry.d_name, name.c_str()))
        if segment_named_offset(entry.d_name, b".log") >= 0:
            bases.push_back(segment_named_offset(entry.d_name, b".log"))
    closedir(listing)
    return 0


cdef int64_t _checked_end(const string& stem, int64_t base, int64_t size) noexcept nogil:
    """The next offset by the .checks of the new segment, which may have its name already; -1: it isn't there."""
    cdef Checks checks
    if checks_read(&checks, _name(stem, b".checks", b".swap").c_str()) or checks_read(
        &checks, _name(stem, b".checks", b"").c_str()
    ):
        if checks.base_offset == base and checks.size == size:
            return checks.next_offset
    return -1


cdef int _has_batch(const string& path, const BatchHeader* wanted) noexcept nogil:
    """Whether a segment's file has a batch of the same offsets. 1, 0 or -errno."""
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef stat info
    cdef int result = WALK_BATCH
    cdef bint found = False
    cdef int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return -errno
    if fstat(fd, &info) != 0:
        result = -errno
    else:
        walk_begin(&walk, fd, 0, info.st_size, HEADERS_CHUNK)
    while result == WALK_BATCH and not found:
        result = walk_next(&walk, &header, &bytes, False)
        found = (
            result == WALK_BATCH
            and header.base_offset == wanted.base_offset
            and batch_last_offset(&header) == batch_last_offset(wanted)
        )
    close(fd)
    return result if result < 0 else <int>found


cdef int _last_is_there(
    const string& folder, int64_t base, const vector[int64_t]& bases, const BatchHeader* last
) noexcept nogil:
    """Whether the last batch, with offsets missing before it, is one of the old segments', or there is none left
    that it could be of. 1, 0 or -errno."""
    cdef int64_t owner = base
    cdef size_t i
    for i in range(bases.size()):
        if owner < bases[i] <= last.base_offset:
            owner = bases[i]
        if last.base_offset < bases[i] <= batch_last_offset(last):
            return 0
    return 1 if owner == base else _has_batch(_name(segment_stem(folder, owner), b".log", b""), last)


cdef int _walk_all(int fd, int64_t size, BatchOrder* order, BatchHeader* last, Damage* damage) noexcept nogil:
    """Whether a file's batches are right and in order. A WalkResult (WALK_GARBAGE: they aren't), or -errno."""
    cdef LogWalk walk
    cdef const uint8_t* bytes
    cdef int result
    walk_begin(&walk, fd, 0, size, WALK_CHUNK)
    while True:
        damage.position = walk.position
        damage.first_offset = order.expected
        result = walk_next(&walk, last, &bytes, True)
        if result != WALK_BATCH:
            return result
        if batch_check(bytes, last, 0, CHECK_STORED) != 0:
            return WALK_GARBAGE
        if not order_take(order, last, damage.position):
            damage.position = order_blame(order, last, damage.position)
            damage.first_offset = order.expected
            damage.next_offset = last.base_offset
            return WALK_GARBAGE


cdef int _prove(
    const string& folder, int64_t base, const vector[int64_t]& bases, int64_t* next_offset, Damage* damage
) noexcept nogil:
    """Whether the new segment is what compaction has written: old ones are removed because of it. `next_offset`: one
    past its last record. 0, LOG_CORRUPT or errno."""
    cdef BatchOrder order
    cdef BatchHeader last
    cdef stat info
    cdef int64_t wanted
    cdef string stem = segment_stem(folder, base)
    cdef int result, fd = open(_name(stem, b".log", b".swap").c_str(), O_RDONLY | O_CLOEXEC)
    order_begin(&order, base, base + RELATIVE_MAX + 1, False)
    damage.base_offset = base
    damage.next_offset = -1
    damage.swap = True
    if fd < 0:
        return errno
    if fstat(fd, &info) != 0:
        result = -errno
    else:
        result = _walk_all(fd, info.st_size, &order, &last, damage)
    close(fd)
    if result != WALK_END:
        return -result if result < 0 else <int>LOG_CORRUPT
    next_offset[0] = order.expected
    wanted = _checked_end(stem, base, info.st_size)
    if wanted == order.expected or (wanted < 0 and order.jumped < 0):
        return 0
    if wanted < 0:
        result = _last_is_there(folder, base, bases, &last)
        if result != 0:
            return 0 if result > 0 else -result
    if order.jumped >= 0:
        damage.position = order.jumped
        damage.first_offset = order.sure
    damage.next_offset = wanted
    return LOG_CORRUPT


cdef int _finish(const string& folder, int64_t base, const vector[int64_t]& bases, Damage* damage) noexcept nogil:
    """The new segment of this base is whole: old ones within it go, it takes its name. 0, LOG_CORRUPT or errno."""
    cdef size_t i
    cdef int k
    cdef string old, stem = segment_stem(folder, base)
    cdef int64_t next_offset = base
    cdef int result = _prove(folder, base, bases, &next_offset, damage)
    if result != 0:
        return result
    for i in range(bases.size()):
        if base < bases[i] < next_offset:
            old = segment_stem(folder, bases[i])
            for k in range(FILES):
                if unlink(_name(old, SUFFIXES[k], b"").c_str()) != 0 and errno != ENOENT:
                    return errno
    for k in range(FILES):
        # One that isn't there has its name already.
        if rename(_name(stem, SUFFIXES[k], b".swap").c_str(), _name(stem, SUFFIXES[k], b"").c_str()) != 0:
            if errno != ENOENT:
                return errno
    return 0


cdef int swap_recover(const string& folder, Damage* damage) noexcept nogil:
    cdef vector[int64_t] swaps[FILES]
    cdef vector[int64_t] bases
    cdef size_t i
    cdef int k
    cdef int result = _list(folder, swaps, bases)
    for i in range(swaps[LOG].size()):
        if result == 0:
            result = _finish(folder, swaps[LOG][i], bases, damage)
    if result != 0:
        return result
    for k in range(LOG):
        # Those of a whole segment have their names by now; others mean nothing.
        for i in range(swaps[k].size()):
            unlink(_name(segment_stem(folder, swaps[k][i]), SUFFIXES[k], b".swap").c_str())
    return sync_folder(folder.c_str()) if swaps[LOG].size() > 0 else 0
