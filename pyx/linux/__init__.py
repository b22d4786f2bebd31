"""What the data plane asks of Linux.

posix        system calls and libc, and atomic numbers
boottime     the clock that counts through suspend
gate         a gate that threads pass between two pieces of work
descriptors  file descriptors, which the whole process shares
kernel       the data plane's calls of the kernel, tried one by one
"""
