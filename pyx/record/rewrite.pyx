"""New header, same payload.

CRC32C is linear: for messages of equal length, crc(new) ^ crc(old) depends only on where they differ. They differ
in the 40 bytes of header that the checksum covers, followed by the same n bytes of payload, so
crc(new) = crc(old) ^ shift(crc(new header) ^ crc(old header), n), and shifting by n bytes takes O(log n). A
checksum that was wrong stays wrong by the same difference: what went bad on the way is still found out.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memmove

from penstock.pyx.record.batch cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BATCH_BAD_MAGIC, BATCH_CONTROL, CRC_AT, DELETE_HORIZON_BIT, LEADER_EPOCH_AT,
    LOG_APPEND_TIME_BIT, MAGIC_2, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_AT, TRANSACTIONAL_BIT, batch_is_control,
)
from penstock.pyx.record.crc cimport crc32c_join, crc32c_update
from penstock.pyx.record.endian cimport get_i16, get_u32, put_i16, put_i32, put_i64, put_u32
from penstock.pyx.record.rawbatch cimport RawBatch, raise_fault

cdef enum:
    COVERED = RECORDS_AT - ATTRIBUTES_AT        # bytes of the header under the checksum


cdef void header_rewrite(
    const uint8_t* p, int64_t size, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
    bint transactional, uint8_t* out
) noexcept nogil:
    cdef uint32_t change = crc32c_update(0, p + ATTRIBUTES_AT, COVERED)
    cdef int attributes = get_i16(p + ATTRIBUTES_AT)
    attributes &= ~(<int>LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT | TRANSACTIONAL_BIT)
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    memmove(out, p, RECORDS_AT)
    put_i32(out + LEADER_EPOCH_AT, -1)
    put_i16(out + ATTRIBUTES_AT, <int16_t>attributes)
    put_i64(out + PRODUCER_ID_AT, producer_id)
    put_i16(out + PRODUCER_EPOCH_AT, producer_epoch)
    put_i32(out + BASE_SEQUENCE_AT, base_sequence)
    change ^= crc32c_update(0, out + ATTRIBUTES_AT, COVERED)
    put_u32(out + CRC_AT, crc32c_join(change, get_u32(out + CRC_AT), <uint64_t>(size - RECORDS_AT)))


def rewrite_header(
    RawBatch raw, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence, bint transactional=True
):
    """See rewrite.pyi."""
    cdef uint8_t out[RECORDS_AT]
    if raw.header.magic != MAGIC_2:
        raise_fault(BATCH_BAD_MAGIC, raw.header.base_offset)
    if batch_is_control(&raw.header):
        raise_fault(BATCH_CONTROL, raw.header.base_offset)
    header_rewrite(raw.data, raw.header.size, producer_id, producer_epoch, base_sequence, transactional, out)
    return PyBytes_FromStringAndSize(<const char*>out, RECORDS_AT)
