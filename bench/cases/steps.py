"""Where the CPU time of a request goes, step by step, by sampling our broker while one of the other cases runs.

The kernel's stacks say which system call a sample belongs to; a sample outside of them belongs to the module whose code ran,
and modules of the data plane are named after what they do. Shares of samples, times the CPU time of a request, give
nanoseconds. Needs `perf` (Debian: linux-perf) and leave to use it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.case import Case, Sample
from penstock.bench.sides import PENSTOCK
from penstock.bench.world import Skipped, World

SAMPLES_PER_S = 1999
# System call -> step. What isn't named is "other system calls".
CALLS = {
    "recvfrom": "receive: recv",
    "recvmsg": "receive: recv",
    "read": "wake-ups: eventfd",
    "write": "wake-ups: eventfd",
    "pwrite64": "append: pwrite",
    "pwritev": "append: pwrite",
    "pread64": "find, read: pread",
    "preadv": "find, read: pread",
    "preadv2": "find, read: pread",
    "sendto": "answer: send",
    "sendmsg": "answer: send",
    "writev": "answer: send",
    "sendfile64": "answer: sendfile",
    "epoll_wait": "wait: epoll",
    "epoll_pwait": "wait: epoll",
    "futex": "locks: futex",
    "fdatasync": "flush: fdatasync",
    "unlink": "retention: unlink, close (pages are freed)",
    "unlinkat": "retention: unlink, close (pages are freed)",
    "close": "retention: unlink, close (pages are freed)",
    "rename": "roll: open, rename",
    "openat": "roll: open, rename",
}
# Module of the data plane, or how its name begins -> step; the first that fits.
MODULES = {
    "crc": "CRC32C",
    "batch": "check of the batch",
    "validator": "check of the batch",
    "codec": "check of the records (codec)",
    "produce": "parse and answer of a produce",
    "fetch": "parse, find and answer of a fetch",
    "sessions": "parse, find and answer of a fetch",
    "coldreader": "cold reads",
    "read": "find: log and index",
    "upkeep": "upkeep",
    "logmanager": "upkeep",
    "partition": "lock, append, index",
    "append": "lock, append, index",
    "segment": "lock, append, index",
    "producerstate": "lock, append, index",
    "connection": "network loop",
    "input": "network loop",
    "output": "network loop",
    "requests": "network loop",
    "mailbox": "network loop",
    "acceptor": "network loop",
    "plane": "network loop",
    "reactor": "network loop",
    "waiting": "network loop",
    "control": "network loop",
}
# Where the compiler has made a jump of the last call, the entry itself is in no stack.
_CALL = re.compile(r"^(?:__(?:x64|arm64|ia32)_sys_|do_(?=pwritev$|preadv$))(\w+)")
_FRAME = re.compile(r"^\s*[0-9a-f]+ (.+?) \((.*)\)$")
_MODULE = re.compile(r"/pyx/(?:\w+/)?(\w+)\.")


def step_of(stack: Iterable[tuple[str, str]]) -> str:
    """The step that a sample belongs to; its stack is (symbol, file) from the innermost outwards."""
    frames = list(stack)
    for symbol, _ in frames:
        call = _CALL.match(symbol)
        if call:
            return CALLS.get(call[1], "other system calls")
    for _, file in frames:
        module = _MODULE.search(file)
        if module:
            return next((step for name, step in MODULES.items() if module[1].startswith(name)), module[1])
    innermost = frames[0][1] if frames else ""
    if innermost.startswith("[kernel") or innermost.startswith("[guest"):
        return "interrupts and switches"
    if "python" in innermost:
        return "control plane (Python)"
    return "clock" if innermost == "[vdso]" else "C library"


def steps(script: str) -> Counter[str]:
    """Samples by step of what `perf script` printed."""
    found: Counter[str] = Counter()
    for block in script.split("\n\n"):
        stack = [(match[1], match[2]) for line in block.splitlines() if (match := _FRAME.match(line))]
        if stack:
            found[step_of((symbol.split("+0x")[0], file) for symbol, file in stack)] += 1
    return found


class Sampling:
    """`perf record` of a process, for as long as the block lasts: it takes no sample before it is asked to."""

    def __init__(self, pid: int, kept: Path) -> None:
        self._pid, self._kept = pid, kept
        self.complained = ""

    def __enter__(self) -> Sampling:
        ask_end, self._ask = os.pipe()
        self._told, told_end = os.pipe()
        options = ["-q", "-g", "-e", "cpu-clock", "-F", str(SAMPLES_PER_S), "--delay=-1"]
        options += [f"--control=fd:{ask_end},{told_end}", "-o", str(self._kept), "-p", str(self._pid)]
        self._perf = subprocess.Popen(
            ["perf", "record", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(ask_end, told_end),
        )
        os.close(ask_end)
        os.close(told_end)
        with contextlib.suppress(BrokenPipeError):  # perf has ended: its complaint is read in the end
            os.write(self._ask, b"enable\n")
        os.read(self._told, 16)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._perf.poll() is None:
            self._perf.send_signal(signal.SIGINT)
        _, self.complained = self._perf.communicate()
        os.close(self._ask)
        os.close(self._told)


@dataclass
class Steps(Case):
    """Another case on our broker, sampled."""

    inner: Case
    sides: tuple[str, ...] = (PENSTOCK,)
    rounds_max: int = 1

    def __post_init__(self) -> None:
        self.name = f"steps-{self.inner.name}"
        self.title = f"steps, ns a request: {self.inner.title}"

    def prepare(self, world: World, side: str) -> None:
        self.inner.prepare(world, side)

    def run(self, world: World, side: str) -> Sample:
        if shutil.which("perf") is None:
            raise Skipped("`perf` is not installed; Debian has it as `linux-perf`")
        kept = world.path("perf")
        with Sampling(world.broker(side).pid, kept) as sampling:
            sample = self.inner.run(world, side)
        found = self._found(kept, sampling.complained)
        ns = sample["cpu_us_per_request"] * 1e3
        total = sum(found.values())
        shares = {f"{name} ns": ns * count / total for name, count in found.most_common()}
        return {"whole request ns": ns, **shares, "samples": float(total)}

    def _found(self, kept: Path, complained: str) -> Counter[str]:
        if not kept.exists():
            raise Skipped(f"perf may not sample here: {complained.strip()[-200:]}")
        command = ["perf", "script", "-i", str(kept), "-F", "ip,sym,dso"]
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        kept.unlink()
        found = steps(printed)
        if not found:
            raise Skipped("perf took no sample: too short, or the kernel hides its symbols")
        return found

    def finish(self, world: World, side: str) -> None:
        self.inner.finish(world, side)
