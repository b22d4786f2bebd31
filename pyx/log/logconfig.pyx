"""The configuration of a log, as Python gives it and as the data plane keeps it."""

from libc.stdint cimport INT64_MAX, INT64_MIN

from penstock.pyx.log.files cimport LOG_MAX_BYTES
from penstock.pyx.log.timeindex cimport TIMEINDEX_ENTRY

SEGMENT_BYTES_MIN = 14                 # Kafka's smallest record, of format 0
SEGMENT_BYTES_MAX = LOG_MAX_BYTES
INDEX_BYTES_MIN = TIMEINDEX_ENTRY      # each index holds an entry

DEFAULTS = {
    "segment_bytes": 1 << 30,
    "segment_ms": 604_800_000,
    "index_interval_bytes": 4096,
    "segment_index_bytes": 10 << 20,
    "retention_ms": 604_800_000,
    "retention_bytes": -1,
    "flush_messages": INT64_MAX,
    "flush_ms": INT64_MAX,
    "max_message_bytes": (1 << 20) + 12,
    "timestamp_before_max_ms": INT64_MAX,
    "timestamp_after_max_ms": 3_600_000,
    "producer_id_expiration_ms": 86_400_000,
    "file_delete_delay_ms": 60_000,
    "min_compaction_lag_ms": 0,        # a log alone takes what its pass is given
    "delete_retention_ms": 0,
    "segment_jitter_ms": 0,
    "log_append_time": 0,
    "cleanup_delete": 1,
    "cleanup_compact": 0,
    "preallocate": 0,
    "verify_transactions": 0,          # a log alone has no coordinator to ask
    "validate_records": 2,             # what is in the log any client can read
    "compression_codec": -1,
    "compression_level": -1,
    "message_magic": 2,
}


cdef object read_config(LogConfig* out, dict config):
    unknown = set(config) - set(DEFAULTS)
    if unknown:
        raise ValueError(f"unknown log configuration: {', '.join(sorted(unknown))}")
    merged = {**DEFAULTS, **config}
    for name, value in merged.items():
        if not INT64_MIN <= value <= INT64_MAX:
            raise ValueError(f"{name}={value} is not a number of 64 bits")
    if not SEGMENT_BYTES_MIN <= merged["segment_bytes"] <= SEGMENT_BYTES_MAX:
        raise ValueError(
            f"segment_bytes={merged['segment_bytes']} is not within {SEGMENT_BYTES_MIN}..{SEGMENT_BYTES_MAX}"
        )
    for name in ("segment_ms", "flush_messages", "producer_id_expiration_ms"):
        if merged[name] < 1:
            raise ValueError(f"{name}={merged[name]} is less than 1")
    times = (
        "timestamp_before_max_ms", "timestamp_after_max_ms", "flush_ms", "min_compaction_lag_ms", "delete_retention_ms"
    )
    for name in ("index_interval_bytes", "max_message_bytes", "file_delete_delay_ms", "segment_jitter_ms", *times):
        if merged[name] < 0:
            raise ValueError(f"{name}={merged[name]} is negative")
    if merged["segment_index_bytes"] < INDEX_BYTES_MIN:
        raise ValueError(
            f"segment_index_bytes={merged['segment_index_bytes']} is less than {INDEX_BYTES_MIN}: "
            "an index must hold an entry"
        )
    for name, least, most in (("validate_records", 0, 2), ("compression_codec", -1, 4), ("message_magic", 0, 2)):
        if not least <= merged[name] <= most:
            raise ValueError(f"{name}={merged[name]} is not known")
    out.segment_bytes = merged["segment_bytes"]
    out.segment_ms = merged["segment_ms"]
    out.index_interval_bytes = merged["index_interval_bytes"]
    out.segment_index_bytes = merged["segment_index_bytes"]
    out.retention_ms = merged["retention_ms"]
    out.retention_bytes = merged["retention_bytes"]
    out.flush_messages = merged["flush_messages"]
    out.flush_ms = merged["flush_ms"]
    out.max_message_bytes = merged["max_message_bytes"]
    out.timestamp_before_max_ms = merged["timestamp_before_max_ms"]
    out.timestamp_after_max_ms = merged["timestamp_after_max_ms"]
    out.producer_id_expiration_ms = merged["producer_id_expiration_ms"]
    out.file_delete_delay_ms = merged["file_delete_delay_ms"]
    out.min_compaction_lag_ms = merged["min_compaction_lag_ms"]
    out.delete_retention_ms = merged["delete_retention_ms"]
    out.segment_jitter_ms = merged["segment_jitter_ms"]
    out.log_append_time = bool(merged["log_append_time"])
    out.cleanup_delete = bool(merged["cleanup_delete"])
    out.cleanup_compact = bool(merged["cleanup_compact"])
    out.preallocate = bool(merged["preallocate"])
    out.verify_transactions = bool(merged["verify_transactions"])
    out.validate_records = merged["validate_records"]
    out.compression_codec = merged["compression_codec"]
    out.compression_level = merged["compression_level"]
    out.message_magic = merged["message_magic"]
    return merged


def check_config(config: dict) -> None:
    """Raise ValueError unless `LogManager.lead` takes these keys; see logconfig.pyi."""
    cdef LogConfig unused
    read_config(&unused, config)
