"""Swapping segments' files; see swap.pxd."""

from libc.stdint cimport int64_t, uint8_t

from penstock.pyx.log.files cimport is_passing, sync_folder
from penstock.pyx.log.segment cimport (
    HEADERS_CHUNK, WALK_BATCH, LogWalk, segment_named_offset, segment_stem, walk_begin, walk_next,
)
from penstock.pyx.posix cimport (
    DIR, ENOENT, O_CLOEXEC, O_RDONLY, close, closedir, dirent, errno, fstat, fsync, open, opendir, readdir, rename,
    stat, unlink,
)
from penstock.pyx.record.batch cimport BatchHeader, batch_last_offset

cdef enum:
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


cdef int64_t _next_offset(const string& path, int64_t base) noexcept nogil:
    """One past the last record of a segment's file. An offset, or -errno."""
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef stat info
    cdef int64_t next_offset = base
    cdef int result
    cdef int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return -errno
    if fstat(fd, &info) != 0:
        result = -errno
    else:
        walk_begin(&walk, fd, 0, info.st_size, HEADERS_CHUNK)
        while True:
            result = walk_next(&walk, &header, &bytes, False)
            if result != WALK_BATCH:
                break
            next_offset = batch_last_offset(&header) + 1
    close(fd)
    return result if result < 0 else next_offset


cdef int _finish(const string& folder, int64_t base, const vector[int64_t]& bases) noexcept nogil:
    """The new segment of this base is whole: old ones within it go, it takes its name. 0 or errno."""
    cdef size_t i
    cdef int k
    cdef string old, stem = segment_stem(folder, base)
    cdef int64_t next_offset = _next_offset(_name(stem, b".log", b".swap"), base)
    if next_offset < 0:
        return <int>-next_offset
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


cdef int swap_recover(const string& folder) noexcept nogil:
    cdef vector[int64_t] swaps[FILES]
    cdef vector[int64_t] bases
    cdef size_t i
    cdef int k
    cdef int result = _list(folder, swaps, bases)
    for i in range(swaps[LOG].size()):
        if result == 0:
            result = _finish(folder, swaps[LOG][i], bases)
    if result != 0:
        return result
    for k in range(LOG):
        # Those of a whole segment have their names by now; others mean nothing.
        for i in range(swaps[k].size()):
            unlink(_name(segment_stem(folder, swaps[k][i]), SUFFIXES[k], b".swap").c_str())
    return sync_folder(folder.c_str()) if swaps[LOG].size() > 0 else 0
