"""The output of compaction; see cleaned.pxd."""

from penstock.pyx.compaction.cleaning cimport CLEAN_CANCELLED, CLEAN_CHUNK, CLEAN_DONE
from penstock.pyx.compaction.pace cimport pace_take
from penstock.pyx.linux.descriptors cimport open_file
from penstock.pyx.linux.posix cimport ENOMEM, O_CLOEXEC, O_CREAT, O_RDWR, O_TRUNC, errno, fsync, futimens, memcpy
from penstock.pyx.log.files cimport FILE_MODE, LOG_MAX_BYTES, write_at
from penstock.pyx.log.index cimport IndexFile, index_write
from penstock.pyx.log.segment cimport (
    segment_index_batch, segment_new, segment_reset_indexes, segment_seal, segment_write_cleaned_checks,
)
from penstock.pyx.record.codec cimport bytes_grow

cdef int cleaned_begin(Cleaning* c, const string& folder, const vector[Segment*]& group, Cleaned* out) noexcept nogil:
    cdef Segment* s = segment_new(folder, group[0].base_offset, group.back().created_ms)
    cdef string path = s.stem
    cdef size_t i
    cdef int fd
    out.segment = s
    out.position = 0
    out.spare = LOG_MAX_BYTES          # positions in an index are 32 bits
    out.changed = group.size() > 1
    for i in range(group.size()):
        out.spare -= group[i].size
    segment_reset_indexes(s)
    c.written.clear()
    path.append(b".log.cleaned")
    fd = open_file(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, FILE_MODE)
    if fd < 0:
        return -fd
    s.fd = fd
    return CLEAN_DONE


cdef int _flush(Cleaning* c, Cleaned* out) noexcept nogil:
    cdef int64_t n = <int64_t>c.written.size()
    cdef int result
    if n == 0:
        return CLEAN_DONE
    result = write_at(out.segment.fd, c.written.data(), <size_t>n, out.position - n)
    if result != 0:
        return result
    c.written.clear()
    c.stats.bytes_written += n
    return CLEAN_DONE if pace_take(c.pace, c.cancelled, n) else <int>CLEAN_CANCELLED


cdef int cleaned_write(Cleaning* c, Cleaned* out, const uint8_t* bytes, const BatchHeader* header) noexcept nogil:
    cdef size_t n = <size_t>header.size
    cdef size_t before = c.written.size()
    if not bytes_grow(c.written, before + n):
        return ENOMEM
    memcpy(c.written.data() + before, bytes, n)
    segment_index_batch(out.segment, header, out.position, c.index_interval_bytes)
    out.position += header.size
    return _flush(c, out) if c.written.size() >= CLEAN_CHUNK else CLEAN_DONE


cdef int _write_index(IndexFile* f, const string& stem, const char* suffix) noexcept nogil:
    cdef string path = stem
    path.append(suffix)
    return index_write(f, path.c_str(), False, True)


cdef int _write_files(Segment* s, const timespec* times) noexcept nogil:
    cdef int result = _write_index(&s.txnindex, s.stem, b".txnindex.cleaned")
    if result == 0:
        result = _write_index(&s.timeindex, s.stem, b".timeindex.cleaned")
    if result == 0:
        result = _write_index(&s.index, s.stem, b".index.cleaned")
    if result == 0 and (futimens(s.fd, times) != 0 or fsync(s.fd) != 0):
        result = errno
    return result


cdef int cleaned_end(Cleaning* c, Cleaned* out, int64_t next_base, const timespec* times) noexcept nogil:
    cdef int result = _flush(c, out)
    if result != CLEAN_DONE or not out.changed:
        return result
    segment_seal(out.segment)
    result = _write_files(out.segment, times)
    if result == 0:
        result = segment_write_cleaned_checks(out.segment, next_base)
    return result
