"""Records in the formats that clients can read; see fetchconvert.pxd."""

from libc.stdint cimport int8_t, int16_t
from libcpp.vector cimport vector

from penstock.pyx.errorcodes cimport CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
from penstock.pyx.log.files cimport dropped, made, read_at
from penstock.pyx.log.pagecache cimport read_cached_at
from penstock.pyx.log.read cimport (
    partition_ask_formats, partition_read, partition_tell_corrupt, read_release,
)
from penstock.pyx.log.segment cimport FORMATS_NEW, FORMATS_UNKNOWN
from penstock.pyx.record.batch cimport MAGIC_2, BatchHeader, batch_last_offset, batch_parse
from penstock.pyx.record.convert cimport CONVERT_OPENED_ENOUGH_BYTES, convert_down
from penstock.pyx.record.upconvert cimport convert_up
from penstock.pyx.request.fetch cimport FetchRange, range_release
from penstock.pyx.request.fetchset cimport FetchPartition
from penstock.pyx.request.versions cimport FETCH_MAGIC_1_FROM, FETCH_MAGIC_2_FROM

cdef enum:
    READS_MAX = 16                    # of one partition, while all that is read are markers


# The whole batches at the front of a range.
cdef struct Whole:
    size_t n                          # bytes
    int64_t next_offset               # after them
    bint old                          # some are of magic 0 or 1


cdef Whole _whole_batches(const uint8_t* p, size_t n, int64_t offset) noexcept nogil:
    """`offset`: what comes next if there is none."""
    cdef BatchHeader header
    cdef Whole whole
    whole.n = 0
    whole.next_offset = offset
    whole.old = False
    while batch_parse(p + whole.n, n - whole.n, &header) == 0:
        whole.n += <size_t>header.size
        whole.next_offset = batch_last_offset(&header) + 1
        whole.old = whole.old or header.magic < MAGIC_2
    return whole


cdef bint _load(FetchRange* r, vector[uint8_t]& stored, bint may_block) noexcept nogil:
    """The stored bytes of a range. False: they aren't in memory."""
    cdef size_t n = <size_t>r.read.length
    stored.resize(n)
    if not may_block:
        return read_cached_at(r.read.fd, stored.data(), n, r.read.position) == r.read.length
    if read_at(r.read.fd, stored.data(), n, r.read.position) != r.read.length:
        r.error = KAFKA_STORAGE_ERROR
    return True


cdef void _give(FetchRange* r, vector[uint8_t]* out) noexcept nogil:
    """`out` in place of the range."""
    range_release(r)
    r.converted = out
    r.read.length = <int64_t>out.size()


cdef inline void _tell_corrupt(const FetchPartition* partition, const FetchRange* r) noexcept nogil:
    """Clients hear of it by the error, the operator by the broker's log."""
    if r.error == CORRUPT_MESSAGE:
        partition_tell_corrupt(partition.partition, &r.read)


cdef bint _convert_up(
    const FetchPartition* partition, FetchRange* r, bint may_block, size_t* opened
) noexcept nogil:
    """The range in batches of magic 2, if it has any others. False: it has to be read into memory first."""
    cdef vector[uint8_t] stored
    cdef vector[uint8_t]* out
    cdef Whole whole
    if not _load(r, stored, may_block):
        return False
    whole = _whole_batches(stored.data(), stored.size() if r.error == 0 else 0, 0)
    if whole.old:
        out = made[vector[uint8_t]]()
        r.error = convert_up(stored.data(), whole.n, opened, out[0])
        if out.size():
            r.error = 0                               # the next fetch begins with the bad batch, and gets its error
        _tell_corrupt(partition, r)
        _give(r, out)
    return True


cdef bint _convert_down(
    FetchJob* job, const FetchPartition* partition, FetchRange* r, bint may_block, size_t* opened
) noexcept nogil:
    """The range as messages; while that gives nothing (markers of transactions), what follows it in the log, as an
    old client that gets nothing stays where it is. False: it has to be read into memory first.
    """
    cdef int8_t to_magic = 1 if job.version >= FETCH_MAGIC_1_FROM else 0
    cdef vector[uint8_t] stored
    cdef vector[uint8_t]* out = made[vector[uint8_t]]()
    cdef Whole whole
    cdef int64_t next_offset = partition.offset
    cdef int16_t error
    cdef int32_t max_bytes, _i
    for _i in range(READS_MAX):
        if not _load(r, stored, may_block):
            dropped[vector[uint8_t]](out)
            return False
        whole = _whole_batches(stored.data(), stored.size() if r.error == 0 else 0, next_offset)
        next_offset = whole.next_offset
        error = convert_down(stored.data(), whole.n, to_magic, partition.offset, opened, out[0])
        if out.size() or whole.n == 0:
            break
        r.error = error
        _tell_corrupt(partition, r)
        if r.error:
            break
        max_bytes = <int32_t>r.read.length
        read_release(&r.read)
        r.error = partition_read(partition.partition, next_offset, max_bytes, True, job.isolation, &r.read)
        if r.error or r.read.length == 0:
            break
    _give(r, out)
    return True


cdef inline bint _convert_range(FetchJob* job, FetchRange* r, bint may_block, size_t* opened) noexcept nogil:
    cdef const FetchPartition* partition = &job.set.partitions[r.at]
    if job.version < FETCH_MAGIC_2_FROM:
        return _convert_down(job, partition, r, may_block, opened)
    if r.read.formats == FORMATS_UNKNOWN:
        partition_ask_formats(partition.partition, &r.read)
    return _convert_up(partition, r, may_block, opened)


cdef int32_t fetch_convert(FetchJob* job, bint may_block) noexcept nogil:
    cdef FetchRange* r
    cdef size_t opened = 0
    cdef int32_t i
    for i in range(job.range_count):
        r = &job.ranges[i]
        if r.read.length == 0 or r.converted != NULL:
            continue
        if job.version >= FETCH_MAGIC_2_FROM and r.read.formats == FORMATS_NEW:
            continue
        if opened >= CONVERT_OPENED_ENOUGH_BYTES:
            range_release(r)                          # for the next fetch
        elif not _convert_range(job, r, may_block, &opened):
            return i
    return CONVERT_DONE
