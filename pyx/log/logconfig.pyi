"""Bounds of a log's configuration, and a check of one before anything is stored by it."""

SEGMENT_BYTES_MIN: int
SEGMENT_BYTES_MAX: int
INDEX_BYTES_MIN: int

def check_config(config: dict[str, int]) -> None:
    """Raise ValueError unless `LogManager.lead` and `reconfigure` take these keys. No log is touched."""
