"""Ids as the columns that `IdStore` takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.pyx.ids.store import IdStore
from penstock.pyx.record.columns import Column


def column(ids: Sequence[bytes | None]) -> Column:
    """A column of ids; None is a record without one."""
    present = [word or b"" for word in ids]
    starts = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum([len(word) for word in present], out=starts[1:])
    data = np.frombuffer(b"".join(present), dtype=np.uint8)
    return Column(data, starts, np.array([word is None for word in ids], dtype=np.bool_))


def unseen(store: IdStore, ids: Sequence[bytes | None]) -> list[bool]:
    """Ask for ids."""
    return list(store.unseen(*column(ids)))


def spill(store: IdStore) -> None:
    """Make a file of what is in memory."""
    store.write_file()
    store.ingest_file()


def add(store: IdStore, ids: Sequence[bytes | None], complete_to: int, now_ms: int = 1) -> None:
    """Add ids as the worker does, spilling whenever memory is full."""
    taken = 0
    while True:
        taken = store.add(*column(ids), complete_to, now_ms, taken)
        if store.is_full():
            spill(store)
        if taken == len(ids):
            return
