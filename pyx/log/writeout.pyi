"""Bytes of a file written out to the disk while more are written to it, so that a sync at its end finds little to do."""

def write_out(fd: int, position: int, n: int, wait: bool) -> None:
    """Let the kernel begin to write a range of a file to the disk; or wait until that is done. Nothing of the file's metadata
    is written: a sync has to follow. Raises OSError."""
