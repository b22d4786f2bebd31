"""The id store against a Python set, over random adds, questions, spills, restarts and leftovers of a crash."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pyx.ids.store import IdStore
from support.id_columns import column, spill, unseen

# Few different ids, so that they meet again; some empty, some long, some like the store's own keys.
IDS = st.one_of(
    st.none(),
    st.integers(0, 40).map(lambda i: b"%d" % i),
    st.binary(max_size=3),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 3), st.integers(0, 9000)),
)
BATCHES = st.lists(IDS, max_size=60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), BATCHES),
        st.tuples(st.just("add"), BATCHES),
        st.tuples(st.sampled_from(["spill", "reopen", "crash"]), st.binary(max_size=20)),
    ),
    max_size=15,
)


class Model:
    """What the store must know."""

    def __init__(self) -> None:
        self.memory: set[bytes] = set()
        self.files: set[bytes] = set()
        self.added = 0
        self.in_files_to = 0

    def unseen(self, ids: list[bytes | None]) -> list[bool]:
        here: set[bytes] = set()
        mask = []
        for word in ids:
            mask.append(word is None or word not in self.memory | self.files | here)
            if word is not None:
                here.add(word)
        return mask


@settings(max_examples=40)
@given(STEPS, st.integers(1, 30))
def test_the_store_is_a_set(steps: list[tuple[str, list[bytes | None] | bytes]], memory_max_ids: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ids"
        store = IdStore(str(path), 64 << 20, memory_max_ids)
        model = Model()
        for kind, what in steps:
            if kind == "ask":
                assert isinstance(what, list)
                assert unseen(store, what) == model.unseen(what)
            elif kind == "add":
                assert isinstance(what, list)
                add(store, model, what)
            elif kind == "spill":
                spill(store)
                model.files |= model.memory
                model.memory.clear()
                model.in_files_to = model.added
            else:
                if kind == "crash":
                    store.write_file()  # and never ingested
                store.close()
                if kind == "crash":
                    (left,) = path.glob("*.ids")
                    assert isinstance(what, bytes)
                    left.write_bytes(what)
                store = IdStore(str(path), 64 << 20, memory_max_ids)
                model.memory.clear()
                model.added = model.in_files_to
            assert store.complete_to == model.added
        everything = [*model.files, *model.memory, b"never added"]
        assert unseen(store, everything) == [False] * (len(everything) - 1) + [True]
        store.close()


def add(store: IdStore, model: Model, ids: list[bytes | None]) -> None:
    """Add as the worker does; the model follows each spill on the way."""
    taken = 0
    while True:
        before, taken = taken, store.add(*column(ids), model.added + len(ids), 1, taken)
        model.memory |= {word for word in ids[before:taken] if word is not None}
        if taken == len(ids):
            model.added += len(ids)
        if store.is_full():
            spill(store)
            model.files |= model.memory
            model.memory.clear()
            model.in_files_to = model.added
        if taken == len(ids):
            return
