"""Small files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIDE_FOLDER = "_penstock"


def side_folder(table_path: str) -> Path:
    """Our own folder inside the table's; Delta leaves names with a leading underscore alone."""
    return Path(table_path) / SIDE_FOLDER


def write_json(path: Path, document: dict[str, Any], before_rename: Callable[[], None]) -> None:
    """Write a JSON file: temporary file, fsync, `before_rename`, rename, fsync of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    before_rename()
    aside.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def holds(path: Path, document: dict[str, Any]) -> bool:
    """Whether the file is there and holds this document."""
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")) == document)
    except (OSError, ValueError):
        return False
