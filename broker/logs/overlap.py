"""Log folders that are one and the same folder, or of which one lies in another: neither works.

A partition's folder in the outer one could have the inner one's name, and would be taken for a partition or set aside. Links
and `..` are followed, and bind mounts are seen as far as /proc/self/mountinfo shows them. The folders may be absent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from penstock.broker.mounts import mount_of, mountinfo


def overlap(paths: Sequence[Path]) -> str:
    """One sentence about the first two that don't work together; empty if all do."""
    mounts = mountinfo()
    places = [(path, *_place(path, mounts)) for path in dict.fromkeys(path.absolute() for path in paths)]
    for (one, one_device, one_at), (other, other_device, other_at) in combinations(places, 2):
        if one_device != other_device:
            continue
        if one_at == other_at:
            return f"`{one}` and `{other}` are the same folder, by a link, `..` or a mount: take one of them out of `log.dirs`"
        if one_at.is_relative_to(other_at) or other_at.is_relative_to(one_at):
            outer, inner = (one, other) if other_at.is_relative_to(one_at) else (other, one)
            return (
                f"the log folder `{inner}` lies inside the log folder `{outer}`: a topic's partition there could have its "
                "name. Give `log.dirs` folders of which none lies in another"
            )
    return ""


def _place(path: Path, mounts: str) -> tuple[str, Path]:
    """Device and path in its file system, without links and bind mounts."""
    real = Path(os.path.realpath(path))
    mount = mount_of(real, mounts)
    if mount is None:
        return "", real
    return mount.number, Path(mount.root) / real.relative_to(mount.point)
