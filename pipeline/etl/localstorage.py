"""A table in a folder: of this machine, or one that several machines have mounted."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from penstock.durable import sync_folder
from penstock.pipeline.etl.storage import SIDE_FOLDER, Storage


class LocalStorage(Storage):
    """The folder's files; what is written survives a power cut."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.uri = f"file:{self.folder}"  # else it would be Hadoop's default file system that has the folder
        self.workspace = self.folder / SIDE_FOLDER

    def __str__(self) -> str:
        return str(self.folder)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def file(self, name: str) -> BinaryIO:
        return (self.folder / name).open("rb")

    @contextlib.contextmanager
    def written(self, name: str) -> Iterator[BinaryIO]:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink()
                raise
        sync_folder(path.parent)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in (self.folder / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, name: str, data: bytes, before: Callable[[], None]) -> None:
        path = self.folder / name
        aside = _write_aside(path, data)
        before()
        try:
            os.link(aside, path)
        finally:
            aside.unlink()
        sync_folder(path.parent)

    def replace(self, name: str, data: bytes, before: Callable[[], None]) -> None:
        path = self.folder / name
        aside = _write_aside(path, data)
        before()
        with contextlib.suppress(FileNotFoundError):
            aside.rename(path)
        sync_folder(path.parent)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)


def _write_aside(path: Path, data: bytes) -> Path:
    """A temporary file beside the one that it is to become, of this process alone."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    aside.parent.mkdir(parents=True, exist_ok=True)
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return aside
