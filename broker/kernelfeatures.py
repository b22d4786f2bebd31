"""Which of the kernel's features this process has that the broker does without where it must - and says so at its start.

An old kernel lacks some; a sandbox (a unit's system call filter) takes others away without a word: the data plane then
falls back to slower ways in silence. Each is tried by the call that the data plane itself makes.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock import log
from penstock.pyx.linux import kernel

TIME_SLICE_NS = 1_000_000
_BLOCK_BYTES = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = log.get(__name__)


@dataclass(frozen=True)
class Feature:
    """One feature: what its lack costs, and the errno with which it was refused (0: it is there)."""

    name: str
    cost: str
    refused: int = 0

    @property
    def why(self) -> str:
        """Who took it away, as far as the error tells."""
        said = os.strerror(self.refused)
        if self.refused == errno.ENOSYS:
            return f"{said}: the kernel is too old, or a sandbox hides it"
        if self.refused in (errno.EPERM, errno.EACCES):
            return f"{said}: a sandbox refuses it"
        return said


COSTS = {
    "cachestat": "cold reads go through the page cache, and looking for them starts the kernel's reading ahead",
    "direct_io": "cold reads take pages of the page cache from those who read at the end of a log",
    "time_slice": "a network thread that wakes doesn't go before others that run",
    "nice": "threads that read from disks take as much of a processor as those that serve the network",
    "boot_id": "a start after a kill counts as one after a power cut: holes in what wasn't flushed are cut off",
}


def find(folders: Iterable[Path]) -> list[Feature]:
    """Try every feature; what files are needed for in the folders that are there. Slow: a thread, a nameless file a folder."""
    found = {"cachestat": 0, "direct_io": 0, "boot_id": _errno(lambda: _BOOT_ID.read_text(encoding="ascii"))}
    for folder in folders:
        if folder.is_dir():
            for name, refused in _try_in(folder).items():
                found[name] = found[name] or refused

    def ask_for_thread() -> None:
        found["time_slice"] = kernel.time_slice(TIME_SLICE_NS)
        found["nice"] = _errno(lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19))

    thread = threading.Thread(target=ask_for_thread, name="kernel-features")
    thread.start()
    thread.join()
    return [Feature(name, cost, found[name]) for name, cost in COSTS.items()]


def say(features: Iterable[Feature]) -> None:
    """One line with what is there, and a warning for each that isn't."""
    features = list(features)
    there = [feature.name for feature in features if not feature.refused]
    _log.info("kernel features: %s", " ".join(there) or "none")
    for feature in features:
        if feature.refused:
            _log.warning("kernel feature missing: %s (%s): %s", feature.name, feature.why, feature.cost)


def _errno(call: Callable[[], object]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _try_in(folder: Path) -> dict[str, int]:
    """The errno of each feature of files in a folder. It is tried on a file of our own, as logs are: of others' files Linux
    tells nothing. The file has no name, so nothing is left behind."""
    try:
        file_fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return {}  # A folder that can't be written is said by those who need to write in it.
    try:
        os.pwrite(file_fd, bytes(_BLOCK_BYTES), 0)
        # By way of /proc, as the reader threads open a log again.
        again = f"/proc/self/fd/{file_fd}"
        direct = _errno(lambda: os.close(os.open(again, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)))
        return {"cachestat": kernel.cachestat(file_fd), "direct_io": direct}
    except OSError:
        return {}  # A full disk, say.
    finally:
        os.close(file_fd)
