"""Calls of the kernel that the data plane does without where it doesn't get them, tried one by one."""

def cachestat(fd: int) -> int:
    """Whether the kernel tells what of a file is in the page cache: 0 or errno."""

def time_slice(ns: int) -> int:
    """Ask for a time slice for the calling thread, which keeps it: call it on a thread that ends afterwards. 0 or errno."""
