"""Small files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.durable import sync_folder

SIDE_FOLDER = "_penstock"


def side_folder(table_path: str) -> Path:
    """Our own folder inside the table's; Delta leaves names with a leading underscore alone."""
    return Path(table_path) / SIDE_FOLDER


def write_json(path: Path, document: dict[str, Any], before_rename: Callable[[], None]) -> None:
    """Write a JSON file: temporary file, fsync, `before_rename`, rename, fsync of the folder.

    Another process that writes the same file may `sweep` the temporary one meanwhile: then the file is as that one has it.
    """
    aside = _write_aside(path, document)
    before_rename()
    with contextlib.suppress(FileNotFoundError):
        aside.rename(path)
    sync_folder(path.parent)


def create_json(path: Path, document: dict[str, Any], before_link: Callable[[], None]) -> None:
    """Write a JSON file that must not be there yet: another process, on another machine perhaps, may try the same.

    Raises FileExistsError.
    """
    aside = _write_aside(path, document)
    before_link()
    try:
        os.link(aside, path)
    finally:
        aside.unlink()
    sync_folder(path.parent)


def _write_aside(path: Path, document: dict[str, Any]) -> Path:
    """A temporary file beside the one that it is to become, of this process alone."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    aside.parent.mkdir(parents=True, exist_ok=True)
    with aside.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    return aside


def sweep(path: Path) -> None:
    """Remove temporary files that processes which were killed, or stand still, have left beside a file."""
    for aside in path.parent.glob(f".{path.name}.*tmp"):
        aside.unlink(missing_ok=True)


def holds(path: Path, document: dict[str, Any]) -> bool:
    """Whether the file is there and holds this document."""
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")) == document)
    except (OSError, ValueError):
        return False
