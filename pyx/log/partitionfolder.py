"""A partition's folder, renamed or removed. Each rename and each removal of one, by the broker or its logs, goes through here.

A log folder, this broker's or another's, is never set aside or deleted, whatever name it has, nor is a folder that has one in
it: somebody may have mounted it there. Nor is any folder inside a partition's removed, which has none of its own.
"""

from __future__ import annotations

import os
from errno import EEXIST
from pathlib import Path

LOG_FOLDER_FILES = ("meta.properties", "metadata.db")
"""A folder that holds one of these is a broker's log folder."""


def log_folder_in(path: Path) -> str:
    """The first log folder at a path or below; empty: there is none."""
    for folder, _, files in os.walk(path):
        if any(name in LOG_FOLDER_FILES for name in files):
            return folder
    return ""


def refuse_log_folder(path: Path) -> None:
    """Raises OSError where a partition's folder is, or holds, a log folder."""
    if found := log_folder_in(path):
        raise OSError(EEXIST, f"`{found}` is a log folder of a broker, and stays where it is")


def rename_folder(path: Path, to: Path) -> None:
    """Give a partition's folder another name. Raises OSError, also where it is, or holds, a log folder."""
    refuse_log_folder(path)
    path.rename(to)


def remove_folder(path: Path) -> None:
    """Remove a partition's folder and the files in it. Raises OSError, also where it is, or holds, a log folder."""
    refuse_log_folder(path)
    for file in list(path.iterdir()):
        file.unlink()
    path.rmdir()
