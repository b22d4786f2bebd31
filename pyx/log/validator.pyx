"""Records validated and prepared for the log; see validator.pxd."""

from libc.stdint cimport INT32_MAX, int8_t
from libc.string cimport memcpy

from penstock.pyx.errorcodes cimport INVALID_RECORD, KAFKA_STORAGE_ERROR, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE
from penstock.pyx.log.origin cimport REPLICA, Origin, from_client, from_coordinator
from penstock.pyx.record.batch cimport (
    BATCH_BAD_MAGIC, BATCH_BAD_PAYLOAD, BATCH_BAD_RECORDS, BATCH_BAD_TIMESTAMP, BATCH_BAD_TIMESTAMP_TYPE, BATCH_NO_KEY,
    BATCH_NO_MEMORY, BATCH_OK, BATCH_OVER_LIMIT, BATCH_TOO_LARGE, CHECK_CLIENT, CHECK_DENSE, CHECK_STORED, CODEC_MASK,
    LOG_APPEND_TIME_BIT, MAGIC_2, MESSAGE_CODEC_MAX, RECORDS_AT, RecordView, RecordsSeen, batch_check,
    batch_check_header, batch_error_code, batch_is_control, batch_marker_type, batch_parse, batch_set_max_timestamp,
    payload_fault, record_create_time, record_read, records_walk,
)
from penstock.pyx.record.builder cimport batch_append
from penstock.pyx.record.codec cimport (
    CODEC_GZIP, CODEC_LZ4, CODEC_SNAPPY, CODEC_ZSTD, bytes_grow, bytes_resize, codec_decompress_validated,
)
from penstock.pyx.record.messageset cimport (
    Inner, MessageView, message_next, message_set_timestamp, messages_number, wrapper_open, wrapper_write,
)
from penstock.pyx.record.upconvert cimport Upconversion, set_upconvert, upconversion_begin

cdef enum:
    SCRATCH_KEPT_BYTES = 4 << 20
    BATCHES_MAX = 1 << 17                      # in one append: their headers take memory, 88 bytes each
    LZ4_LEVEL_HIGH = 3                         # from here on lz4 searches for what it could shorten
    ZSTD_LEVEL_FAST = 3
    ZSTD_LEVEL_MEDIUM = 9

# A network thread inflates one batch after the other into the same memory: asking for it again each time would cost
# more than inflating does. What a large batch took is given back.
cdef extern from *:
    """
    #include <vector>
    #include <stdint.h>
    static thread_local std::vector<uint8_t> validation_scratch;
    static inline std::vector<uint8_t>* scratch_of_thread() { return &validation_scratch; }
    static inline void scratch_done(size_t kept) {
        if (validation_scratch.capacity() > kept) std::vector<uint8_t>().swap(validation_scratch);
    }
    """
    vector[uint8_t]* scratch_of_thread() noexcept nogil
    void scratch_done(size_t kept) noexcept nogil


cdef int16_t _error_of(int fault) noexcept nogil:
    # A producer sends again what CORRUPT_MESSAGE refuses, and splits what MESSAGE_TOO_LARGE does: a payload that its
    # codec can't read comes no better the second time, one that inflates to too much may.
    if fault == BATCH_OVER_LIMIT:
        return MESSAGE_TOO_LARGE
    if fault == BATCH_BAD_PAYLOAD:
        return INVALID_RECORD
    return KAFKA_STORAGE_ERROR if fault == BATCH_NO_MEMORY else batch_error_code(fault)


cdef inline size_t _may_inflate(const Validated* out, const BatchHeader* header) noexcept nogil:
    cdef int64_t most = min(INFLATED_MAX_BYTES + header.size * INFLATED_PER_BYTE, out.work_left)
    return <size_t>max(min(out.may_inflate, most), <int64_t>0)


cdef inline void _was_inflated(Validated* out, const vector[uint8_t]& into, size_t limit, int fault) noexcept nogil:
    # Of what went wrong only the room that it took says how much work it was.
    cdef size_t n = into.size() if fault == BATCH_OK else min(into.capacity(), limit)
    if fault == BATCH_OVER_LIMIT and <int64_t>limit >= out.work_left:
        out.too_much_work = True
    out.may_inflate -= <int64_t>n
    out.work_left -= <int64_t>n


cdef int _will_compress(Validated* out, int codec, int level, size_t n) noexcept nogil:
    """Whether n bytes may be compressed: a fault, if it is too much work."""
    cdef int64_t each = 0
    if codec == CODEC_SNAPPY or (codec == CODEC_LZ4 and level < LZ4_LEVEL_HIGH):
        each = WORK_FAST
    elif codec == CODEC_GZIP or codec == CODEC_LZ4:
        each = WORK_MEDIUM
    elif codec == CODEC_ZSTD:
        each = WORK_SLOW
        if level <= ZSTD_LEVEL_MEDIUM:
            each = WORK_FAST if level <= ZSTD_LEVEL_FAST else WORK_MEDIUM
    if each * <int64_t>n > out.work_left:
        out.too_much_work = True
        return BATCH_OVER_LIMIT
    out.work_left -= each * <int64_t>n
    return BATCH_OK


cdef inline int16_t _refuse(Validated* out, int fault) noexcept nogil:
    if out.too_much_work:
        return VALIDATE_TOO_MUCH_WORK
    out.refusal.fault = fault
    return _error_of(fault)


cdef inline void _refuse_record(Validated* out, int fault, int32_t number) noexcept nogil:
    # A wrong timestamp outweighs a missing key in the answer, as in Kafka.
    if out.refusal.fault != BATCH_BAD_TIMESTAMP:
        out.refusal.fault = fault
    if out.refusal.count < REFUSED_MAX:
        out.refusal.records[out.refusal.count] = number
        out.refusal.count += 1


cdef inline bint _timestamp_allowed(const LogConfig* config, int64_t timestamp_ms, int64_t now_ms) noexcept nogil:
    if config.log_append_time or timestamp_ms == -1:
        return True
    if timestamp_ms > now_ms:
        return timestamp_ms - now_ms <= config.timestamp_after_max_ms
    return timestamp_ms >= now_ms - config.timestamp_before_max_ms


cdef inline void _validate_record(
    const LogConfig* config, int32_t key_length, int64_t timestamp_ms, int32_t number, int64_t now_ms, Validated* out
) noexcept nogil:
    if config.cleanup_compact and key_length < 0:
        _refuse_record(out, BATCH_NO_KEY, number)
    elif not _timestamp_allowed(config, timestamp_ms, now_ms):
        _refuse_record(out, BATCH_BAD_TIMESTAMP, number)


# --- magic 2 ------------------------------------------------------------------------------------------------
cdef int _validate_records(
    const LogConfig* config, const BatchHeader* header, const uint8_t* p, size_t n, int64_t now_ms, Validated* out,
    int64_t* newest
) noexcept nogil:
    cdef const uint8_t* end = p + n
    cdef RecordsSeen seen
    cdef RecordView record
    cdef int32_t i
    cdef int fault = records_walk(header, p, n, &seen)
    newest[0] = seen.newest_ms
    if fault != BATCH_OK or (
        (not config.cleanup_compact or not seen.keyless)
        and _timestamp_allowed(config, seen.oldest_ms, now_ms) and _timestamp_allowed(config, seen.newest_ms, now_ms)
        and seen.oldest_ms != -1
    ):
        return fault
    # One of them may not be taken (-1, which always may, hides a record that is nearly as old): now they are named.
    for i in range(header.record_count):
        p = record_read(p, end, &record)
        _validate_record(config, record.key_length, record_create_time(header, &record), i, now_ms, out)
    return out.refusal.fault


cdef inline bint _copy_behind(Validated* out, const uint8_t* p, size_t n) noexcept nogil:
    cdef size_t before = out.rebuilt.size()
    if not bytes_grow(out.rebuilt, before + n):
        return False
    memcpy(out.rebuilt.data() + before, p, n)
    return True


cdef inline int _level(const LogConfig* config, int codec) noexcept nogil:
    # A producer's own codec is used again at its default level: what it was compressed at isn't known.
    return config.compression_level if codec == config.compression_codec else -1


cdef int _recompress(
    const LogConfig* config, const uint8_t* records, size_t done, BatchHeader* header, int codec, const uint8_t* data,
    size_t n, Validated* out
) noexcept nogil:
    # The same batch in this codec, behind what was rebuilt or stayed as it was before.
    cdef int fault
    if out.rebuilt.empty() and done and not _copy_behind(out, records, done):
        return BATCH_NO_MEMORY
    if _will_compress(out, codec, _level(config, codec), n) != BATCH_OK:
        return BATCH_OVER_LIMIT
    header.attributes = <int16_t>((header.attributes & ~<int>CODEC_MASK) | codec)
    fault = batch_append(data, n, _level(config, codec), header, out.rebuilt)
    if fault == BATCH_OK and 0 < config.max_message_bytes < header.size:
        return BATCH_TOO_LARGE
    return fault


cdef inline int _inflate_batch(
    const uint8_t* p, const BatchHeader* header, const uint8_t** data, size_t* n, bint* common, Validated* out
) noexcept nogil:
    cdef int codec = header.attributes & CODEC_MASK
    cdef vector[uint8_t]* scratch = scratch_of_thread()
    cdef size_t limit = _may_inflate(out, header)
    cdef int fault
    data[0] = p + RECORDS_AT
    n[0] = <size_t>header.size - RECORDS_AT
    common[0] = True
    if codec == 0:
        return BATCH_OK
    scratch.clear()
    fault = payload_fault(codec_decompress_validated(codec, data[0], n[0], limit, scratch[0], common))
    _was_inflated(out, scratch[0], limit, fault)
    data[0] = scratch.data()
    n[0] = scratch.size()
    return fault


cdef int _open_batch(
    const LogConfig* config, uint8_t* records, size_t done, BatchHeader* header, int64_t now_ms, Validated* out
) noexcept nogil:
    cdef uint8_t* p = records + done
    cdef int codec = header.attributes & CODEC_MASK
    cdef int wanted = config.compression_codec if config.compression_codec >= 0 else codec
    cdef const uint8_t* data
    cdef size_t n
    cdef bint common
    cdef int64_t newest
    cdef int fault = _inflate_batch(p, header, &data, &n, &common, out)
    if fault == BATCH_OK:
        fault = _validate_records(config, header, data, n, now_ms, out, &newest)
    if fault == BATCH_OK and newest != header.max_timestamp:
        # Old sarama and others leave it out: the log's time index needs the true one. Kafka mends it, too.
        batch_set_max_timestamp(p, header.size, newest, False)
        header.max_timestamp = newest
    if fault == BATCH_OK:
        if wanted != codec or not common:
            fault = _recompress(config, records, done, header, wanted, data, n, out)
        elif not out.rebuilt.empty() and not _copy_behind(out, p, <size_t>header.size):
            fault = BATCH_NO_MEMORY
    scratch_done(SCRATCH_KEPT_BYTES)
    return fault


cdef int _take_batch(
    const LogConfig* config, uint8_t* records, size_t done, BatchHeader* header, int64_t now_ms, Validated* out
) noexcept nogil:
    """A batch of a client that begins at `done`; once one was rebuilt, all are in `rebuilt`."""
    cdef int codec = header.attributes & CODEC_MASK
    # Some clients leave the largest timestamp out, which retention and searches by time go by. And what the header says
    # of times too far off, the records have to say, whose numbers belong into the answer.
    cdef bint timed = (
        header.max_timestamp >= header.base_timestamp
        and _timestamp_allowed(config, header.base_timestamp, now_ms)
        and _timestamp_allowed(config, header.max_timestamp, now_ms)
    )
    if config.validate_records == VALIDATE_FULL or config.cleanup_compact or not timed or (
        config.compression_codec >= 0 and config.compression_codec != codec
    ):
        return _open_batch(config, records, done, header, now_ms, out)
    if not out.rebuilt.empty() and not _copy_behind(out, records + done, <size_t>header.size):
        return BATCH_NO_MEMORY
    return BATCH_OK


cdef int _validate_batch(
    const LogConfig* config, const uint8_t* p, const BatchHeader* header, Origin origin
) noexcept nogil:
    cdef int flags = CHECK_STORED
    cdef int64_t max_bytes = 0                  # our own batches and the leader's have been validated before
    if from_client(origin):
        flags = CHECK_CLIENT
        max_bytes = config.max_message_bytes
        if config.validate_records == VALIDATE_NONE:
            return batch_check_header(header, max_bytes, flags)
    elif from_coordinator(origin):
        flags = CHECK_DENSE                     # offset commits of a transaction have a producer id, but no sequence
        if header.magic < MAGIC_2:
            return BATCH_BAD_MAGIC
        if batch_is_control(header) and (header.producer_id < 0 or batch_marker_type(p, header, NULL) < 0):
            return BATCH_BAD_RECORDS
    return batch_check(p, header, max_bytes, flags)


cdef int16_t _validate_batches(
    const LogConfig* config, uint8_t* records, size_t n, Origin origin, int64_t now_ms, Validated* out
) noexcept nogil:
    cdef size_t done = 0
    cdef size_t size
    cdef BatchHeader header
    cdef int fault
    while done < n:
        fault = batch_parse(records + done, n - done, &header)
        size = <size_t>header.size
        if fault == BATCH_OK:
            fault = _validate_batch(config, records + done, &header, origin)
        if fault == BATCH_OK and from_client(origin):
            fault = _take_batch(config, records, done, &header, now_ms, out)
        if fault == BATCH_OK and out.batches.size() == BATCHES_MAX:
            fault = BATCH_TOO_LARGE
        if fault != BATCH_OK:
            return _refuse(out, fault)
        out.batches.push_back(header)
        done += size
    return 0


cdef void stamp_validated(Validated* out, int64_t now_ms) noexcept nogil:
    cdef uint8_t* p = out.records
    cdef BatchHeader* header
    cdef size_t i
    for i in range(out.batches.size() if out.stamps else 0):
        header = &out.batches[i]
        if header.magic == MAGIC_2 and not batch_is_control(header):
            batch_set_max_timestamp(p, header.size, now_ms, True)
            header.max_timestamp = now_ms
        elif header.magic == 1:
            message_set_timestamp(p, header.size, now_ms, True)
            header.max_timestamp = now_ms
        p += header.size


# --- message sets -------------------------------------------------------------------------------------------
cdef int _validate_messages(
    const LogConfig* config, const uint8_t* p, size_t n, int8_t magic, int64_t now_ms, bint each, Validated* out
) noexcept nogil:
    """Plain messages whose form was looked at before: keys and times, and with `each` a header for each one, as they
    will lie in the log."""
    cdef BatchHeader header
    cdef MessageView message
    cdef int fault
    cdef int32_t number = 0
    while n:
        fault = message_next(&p, &n, magic, &header, &message)
        if fault != BATCH_OK:
            return fault
        if message.timestamp < -1 and config.message_magic == MAGIC_2:
            _refuse_record(out, BATCH_BAD_TIMESTAMP, number)       # Kafka converts none of those
        else:
            _validate_record(config, message.key_length, message.timestamp, number, now_ms, out)
        number += 1
        if each:
            if 0 < config.max_message_bytes < header.size or number > BATCHES_MAX:
                return BATCH_TOO_LARGE
            out.batches.push_back(header)
    return out.refusal.fault


cdef int _check_messages(
    const LogConfig* config, const uint8_t* p, size_t n, int8_t magic, BatchHeader* first
) noexcept nogil:
    """Each message's form, checksum and size; a wrapper stands alone."""
    cdef const uint8_t* at = p
    cdef const uint8_t* before
    cdef size_t left = n
    cdef BatchHeader header
    cdef MessageView message
    cdef int fault
    while left:
        before = at
        fault = message_next(&at, &left, magic, &header, &message)
        if fault != BATCH_OK:
            return fault
        header.base_offset = 0                  # some clients number their messages and some don't
        fault = batch_check(before, &header, config.max_message_bytes, CHECK_STORED)
        if fault != BATCH_OK:
            return fault
        if magic == 1 and header.attributes & LOG_APPEND_TIME_BIT:
            return BATCH_BAD_TIMESTAMP_TYPE
        if header.attributes & CODEC_MASK and header.size != <int64_t>n:
            return BATCH_BAD_RECORDS
        if before == p:
            first[0] = header
    return BATCH_OK


cdef int _wrap(
    const LogConfig* config, const BatchHeader* like, int codec, int32_t count, int64_t newest, Validated* out
) noexcept nogil:
    """The messages in `out.inner` as one wrapper: now (magic 1), or when their offsets are known (magic 0)."""
    cdef BatchHeader header = like[0]
    cdef int fault
    out.wrapper_codec = codec
    out.wrapper_level = _level(config, codec)
    header.attributes = <int16_t>codec
    header.last_offset_delta = count - 1
    header.max_timestamp = newest
    out.batches.clear()
    if _will_compress(out, codec, out.wrapper_level, out.inner.size()) != BATCH_OK:
        return BATCH_OVER_LIMIT
    if header.magic == 1:
        messages_number(out.inner.data(), out.inner.size(), 0)
        fault = wrapper_write(1, codec, out.wrapper_level, 0, count - 1, newest, out.inner.data(), out.inner.size(),
                              out.rebuilt)
        if fault != BATCH_OK:
            return fault
        out.inner.clear()
        header.size = <int64_t>out.rebuilt.size()
        if 0 < config.max_message_bytes < header.size:
            return BATCH_TOO_LARGE
    out.batches.push_back(header)
    return BATCH_OK


cdef int _take_wrapper(
    const LogConfig* config, uint8_t* p, BatchHeader* header, int wanted, int64_t now_ms, Validated* out
) noexcept nogil:
    cdef Inner found
    cdef size_t limit = _may_inflate(out, header)
    cdef int fault = wrapper_open(p, header, limit, True, out.inner, &found)
    _was_inflated(out, out.inner, limit, fault)
    if fault == BATCH_OK:
        fault = _validate_messages(config, found.data, found.n, header.magic, now_ms, wanted == 0, out)
    if fault != BATCH_OK:
        return fault
    if wanted == 0:
        # As plain messages; `batches` has their headers.
        out.rebuilt.swap(out.inner)
        out.inner.clear()
        return BATCH_OK
    if header.magic == 0 or not found.dense or not found.common or wanted != header.attributes & CODEC_MASK:
        return _wrap(config, header, wanted, found.count, found.max_timestamp, out)
    if header.max_timestamp != found.max_timestamp:
        message_set_timestamp(p, header.size, found.max_timestamp, False)
        header.max_timestamp = found.max_timestamp
    header.last_offset_delta = found.count - 1
    out.batches.push_back(header[0])
    out.inner.clear()
    return BATCH_OK


cdef int _upconvert(
    const LogConfig* config, const uint8_t* p, size_t n, const BatchHeader* first, int64_t now_ms, Validated* out
) noexcept nogil:
    """The messages, checked, as batches of magic 2. A wrapper becomes one batch, as in Kafka. Plain messages get as
    many as they need to stay within max.message.bytes: their producer counts each message, and can't split a set."""
    cdef Upconversion u
    cdef Inner found
    cdef vector[uint8_t]* scratch = scratch_of_thread()
    cdef size_t limit, i
    cdef int codec = first.attributes & CODEC_MASK
    cdef int64_t fill_bytes = config.max_message_bytes if codec == 0 and config.max_message_bytes > 0 else INT32_MAX
    cdef int fault
    if codec:
        limit = _may_inflate(out, first)
        fault = wrapper_open(p, first, limit, True, scratch[0], &found)
        _was_inflated(out, scratch[0], limit, fault)
        if fault != BATCH_OK:
            return fault
        p = found.data
        n = found.n
    fault = _validate_messages(config, p, n, first.magic, now_ms, False, out)
    if fault != BATCH_OK:
        return fault
    if config.compression_codec >= 0:
        codec = config.compression_codec
    if _will_compress(out, codec, _level(config, codec), n) != BATCH_OK:
        return BATCH_OVER_LIMIT
    upconversion_begin(&u, codec, _level(config, codec), fill_bytes, BATCHES_MAX, &out.batches)
    fault = set_upconvert(&u, p, n, first.magic, out.rebuilt)
    for i in range(out.batches.size()):
        if 0 < config.max_message_bytes < out.batches[i].size and fault == BATCH_OK:
            fault = BATCH_TOO_LARGE
    return fault


cdef int _keep_messages(
    const LogConfig* config, uint8_t* records, size_t n, BatchHeader* first, int64_t now_ms, Validated* out
) noexcept nogil:
    """The messages, checked, in their own format."""
    cdef int codec = first.attributes & CODEC_MASK
    cdef int wanted = codec
    cdef int64_t newest = -1
    cdef size_t i
    cdef int fault
    if 0 <= config.compression_codec <= MESSAGE_CODEC_MAX:
        wanted = config.compression_codec       # zstd has no place in a message set: it stays as it came
    if codec:
        return _take_wrapper(config, records, first, wanted, now_ms, out)
    fault = _validate_messages(config, records, n, first.magic, now_ms, True, out)
    if fault != BATCH_OK or wanted == 0:
        return fault
    if not bytes_resize(out.inner, n):
        return BATCH_NO_MEMORY
    memcpy(out.inner.data(), records, n)
    for i in range(out.batches.size()):
        newest = max(newest, out.batches[i].max_timestamp)
    return _wrap(config, first, wanted, <int32_t>out.batches.size(), newest, out)


cdef int16_t place_validated(const LogConfig* config, Validated* out, int64_t offset) noexcept nogil:
    cdef BatchHeader* header
    cdef int fault
    if out.inner.empty() or out.placed_at == offset:
        return 0
    header = &out.batches[0]
    messages_number(out.inner.data(), out.inner.size(), offset)
    out.rebuilt.clear()
    fault = wrapper_write(0, out.wrapper_codec, out.wrapper_level, 0, offset + header.last_offset_delta, -1,
                          out.inner.data(), out.inner.size(), out.rebuilt)
    if fault != BATCH_OK:
        return _refuse(out, fault)
    header.size = <int64_t>out.rebuilt.size()
    out.records = out.rebuilt.data()
    out.n = out.rebuilt.size()
    out.placed_at = offset
    if 0 < config.max_message_bytes < header.size or header.size > config.segment_bytes:
        return _refuse(out, BATCH_TOO_LARGE)
    return 0


# --- all ----------------------------------------------------------------------------------------------------
cdef int16_t validate_records(
    const LogConfig* config, uint8_t* records, size_t n, Origin origin, int64_t now_ms, Validated* out
) noexcept nogil:
    cdef BatchHeader first
    cdef int fault
    cdef int16_t error
    out.refusal.fault = BATCH_OK
    out.refusal.count = 0
    out.placed_at = -1
    out.too_much_work = False
    out.stamps = config.log_append_time and origin != REPLICA
    if n == 0:
        return INVALID_RECORD
    fault = batch_parse(records, n, &first)
    if fault != BATCH_OK:
        return _refuse(out, fault)
    if from_client(origin) and first.magic < MAGIC_2:
        fault = _check_messages(config, records, n, first.magic, &first)
        if fault == BATCH_OK and config.message_magic == MAGIC_2:
            fault = _upconvert(config, records, n, &first, now_ms, out)
            scratch_done(SCRATCH_KEPT_BYTES)
        elif fault == BATCH_OK:
            fault = _keep_messages(config, records, n, &first, now_ms, out)
        if fault != BATCH_OK:
            return _refuse(out, fault)
    else:
        error = _validate_batches(config, records, n, origin, now_ms, out)
        if error:
            return error
    out.records = records if out.rebuilt.empty() else out.rebuilt.data()
    out.n = n if out.rebuilt.empty() else out.rebuilt.size()
    # What a coordinator has decided, or a leader sent, is appended all or none of it, in a segment of its own if no
    # other has room.
    if not from_coordinator(origin) and origin != REPLICA and <int64_t>out.n > config.segment_bytes:
        return RECORD_LIST_TOO_LARGE
    return 0
