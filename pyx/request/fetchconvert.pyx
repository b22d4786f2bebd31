"""Message sets for old clients; see fetchconvert.pxd."""

from libc.stdint cimport int8_t, int16_t
from libcpp.vector cimport vector

from penstock.pyx.errorcodes cimport KAFKA_STORAGE_ERROR
from penstock.pyx.log.files cimport dropped, made, read_at
from penstock.pyx.log.pagecache cimport read_cached_at
from penstock.pyx.log.read cimport partition_read, read_release
from penstock.pyx.record.batch cimport BatchHeader, batch_last_offset, batch_parse
from penstock.pyx.record.convert cimport CONVERT_OPENED_ENOUGH_BYTES, convert_down
from penstock.pyx.request.fetch cimport FetchRange, range_release
from penstock.pyx.request.fetchset cimport FetchPartition
from penstock.pyx.request.versions cimport FETCH_MAGIC_1_FROM

cdef enum:
    READS_MAX = 16                    # of one partition, while all that is read are markers


cdef size_t _whole_batches(const uint8_t* p, size_t n, int64_t* next_offset) noexcept nogil:
    """Bytes of the whole batches at the front, and the offset after them."""
    cdef BatchHeader header
    cdef size_t done = 0
    while batch_parse(p + done, n - done, &header) == 0:
        done += <size_t>header.size
        next_offset[0] = batch_last_offset(&header) + 1
    return done


cdef bint _load(FetchRange* r, vector[uint8_t]& stored, bint may_block) noexcept nogil:
    """The stored bytes of a range. False: they aren't in memory."""
    cdef size_t n = <size_t>r.read.length
    stored.resize(n)
    if not may_block:
        return read_cached_at(r.read.fd, stored.data(), n, r.read.position) == r.read.length
    if read_at(r.read.fd, stored.data(), n, r.read.position) != r.read.length:
        r.error = KAFKA_STORAGE_ERROR
    return True


cdef bint _convert_range(
    FetchJob* job, const FetchPartition* partition, FetchRange* r, bint may_block, size_t* opened
) noexcept nogil:
    """The range as messages; while that gives nothing (markers of transactions), what follows it in the log, as an
    old client that gets nothing stays where it is. False: it has to be read into memory first.
    """
    cdef int8_t to_magic = 1 if job.version >= FETCH_MAGIC_1_FROM else 0
    cdef vector[uint8_t] stored
    cdef vector[uint8_t]* out = made[vector[uint8_t]]()
    cdef int64_t next_offset = partition.offset
    cdef size_t n
    cdef int16_t error
    cdef int32_t max_bytes, _i
    for _i in range(READS_MAX):
        if not _load(r, stored, may_block):
            dropped[vector[uint8_t]](out)
            return False
        n = _whole_batches(stored.data(), stored.size(), &next_offset) if r.error == 0 else 0
        error = convert_down(stored.data(), n, to_magic, partition.offset, opened, out[0])
        if out.size() or n == 0:
            break
        r.error = error
        if r.error:
            break
        max_bytes = <int32_t>r.read.length
        read_release(&r.read)
        r.error = partition_read(partition.partition, next_offset, max_bytes, True, job.isolation, &r.read)
        if r.error or r.read.length == 0:
            break
    range_release(r)
    r.converted = out
    return True


cdef int32_t fetch_convert(FetchJob* job, bint may_block) noexcept nogil:
    cdef FetchRange* r
    cdef size_t opened = 0
    cdef int32_t i
    for i in range(job.range_count):
        r = &job.ranges[i]
        if opened >= CONVERT_OPENED_ENOUGH_BYTES:
            range_release(r)                          # for the next fetch
        elif r.read.length > 0 and not _convert_range(job, &job.set.partitions[r.at], r, may_block, &opened):
            return i
    return CONVERT_DONE
