"""A program that runs another one under a filter of system calls, as a unit's `SystemCallFilter=` sets it: those that it is
given aren't made, and answer with an errno.

    python sandbox.py ERRNO CALL,... COMMAND...
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

# By the machine's name; Linux has numbered new calls alike everywhere since 2019.
NUMBERS = {
    "x86_64": {"setpriority": 141, "sched_setattr": 314, "cachestat": 451},
    "aarch64": {"setpriority": 140, "sched_setattr": 274, "cachestat": 451},
}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
MODE_FILTER = 2
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF: of struct seccomp_data, `nr` comes first
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def known() -> dict[str, int]:
    """The numbers of the calls on this machine; none where they aren't listed."""
    return NUMBERS.get(platform.machine(), {})


def sandboxed(error: int, calls: Iterable[str], command: Iterable[str]) -> list[str]:
    """The command line of a command to which these calls answer with this errno."""
    return [sys.executable, str(Path(__file__)), str(error), ",".join(calls), *command]


def forbid(error: int, numbers: Iterable[int]) -> None:
    """Set the filter, for this process and all that come of it."""
    steps = [(LOAD_NUMBER, 0, 0, 0)]
    for number in numbers:
        steps += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | error)]
    steps.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for given in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*given) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid(int(sys.argv[1]), [known()[name] for name in sys.argv[2].split(",")])
    os.execvp(sys.argv[3], sys.argv[3:])
