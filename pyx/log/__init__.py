"""The log of a partition: segments, indexes, producer state, recovery, appends and reads."""
