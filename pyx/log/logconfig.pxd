"""A topic's configs as the log needs them."""

from libc.stdint cimport INT64_MAX, int8_t, int32_t, int64_t

# Per topic. Times are ms, sizes bytes; -1 = no limit for retention_ms and retention_bytes.
cdef struct LogConfig:
    int64_t segment_bytes
    int64_t segment_ms
    int64_t index_interval_bytes
    int64_t segment_index_bytes
    int64_t retention_ms
    int64_t retention_bytes
    int64_t flush_messages
    int64_t flush_ms
    int64_t max_message_bytes
    int64_t timestamp_before_max_ms
    int64_t timestamp_after_max_ms
    int64_t producer_id_expiration_ms
    int64_t file_delete_delay_ms
    int64_t min_compaction_lag_ms      # a compaction pass by less than this, or the next, removes nothing
    int64_t delete_retention_ms
    int64_t segment_jitter_ms          # at most this is taken off segment_ms
    int8_t log_append_time
    int8_t cleanup_delete
    int8_t cleanup_compact
    int8_t preallocate                 # room for a whole segment is taken when it is begun
    int8_t verify_transactions         # a client's batch may not begin a transaction unasked (append.pxd)
    int8_t validate_records            # validator.pxd's VALIDATE_*
    int8_t compression_codec           # of what clients append; -1: as their producer made it
    int32_t compression_level          # -1: the codec's default
    int8_t message_magic               # 2: what clients append of magic 0 or 1 becomes magic 2; less: it stays

# Whether appends are synced before they are answered, all or some of them.
cdef inline bint config_flushes(const LogConfig* config) noexcept nogil:
    return config.flush_messages < INT64_MAX

# Whether a compaction pass by these ages may remove records of a log with this configuration.
cdef inline bint config_compacts(
    const LogConfig* config, int64_t min_compaction_lag_ms, int64_t delete_retention_ms
) noexcept nogil:
    return (
        config.cleanup_compact and config.min_compaction_lag_ms <= min_compaction_lag_ms
        and config.delete_retention_ms <= delete_retention_ms
    )

# Checks the keys that LogManager.lead takes, fills what is missing with Kafka's defaults, and answers all of them.
# Raises ValueError.
cdef object read_config(LogConfig* out, dict config)
