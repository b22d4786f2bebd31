"""Commits that a stop lets come to their end."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.dedupe.worker import DedupeWorker
from penstock.mirror.position import MirrorPosition
from penstock.mirror.worker import MirrorWorker
from penstock.pipeline.stages import completion


class Sender:
    """Notes what a worker does in a transaction; the offsets' answer comes when the test lets it."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def begin(self) -> None:
        self.did.append("begin")

    async def send_offsets(self, group: str, offsets: object) -> None:
        self.did.append("offsets")
        self.asked.set()
        await self.answered.wait()

    async def commit(self) -> None:
        await asyncio.sleep(0)
        self.did.append("commit")


POSITION: Any = MirrorPosition(1, b"", b"")  # to the steps of a commit all positions are alike


def mirrors(sender: Sender) -> Any:
    names = SimpleNamespace(group="g", into=("t", 0))
    worker: Any = SimpleNamespace(_sender=sender, identity=names)
    worker._transact_position = partial(MirrorWorker._transact_position, worker)
    return MirrorWorker._commit_position(worker, POSITION)


def dedupes(sender: Sender) -> Any:
    worker: Any = SimpleNamespace(
        _sender=sender, tp=("t", 0), _settings=SimpleNamespace(group="g"), _input=SimpleNamespace(position=None)
    )
    worker._transact = partial(DedupeWorker._transact, worker)
    return DedupeWorker._commit(worker, POSITION, alone=True)


@pytest.mark.parametrize("commit", [mirrors, dedupes])
@pytest.mark.parametrize("answers", [True, False], ids=["the cluster answers", "the cluster is away"])
def test_a_commit_that_is_cancelled_ends_first(monkeypatch: pytest.MonkeyPatch, commit: Any, answers: bool) -> None:
    if not answers:
        monkeypatch.setattr(completion, "LAST_TURN_S", 0.0)

    async def main() -> list[str]:
        sender = Sender()
        committing = asyncio.create_task(commit(sender))
        await asyncio.wait(
            [asked := asyncio.ensure_future(sender.asked.wait()), committing], return_when=asyncio.FIRST_COMPLETED
        )
        assert asked.done(), committing.exception()
        committing.cancel()
        await asyncio.sleep(0)
        if answers:
            sender.answered.set()
        with pytest.raises(asyncio.CancelledError):
            await committing
        return sender.did

    assert asyncio.run(main()) == ["begin", "offsets", *(["commit"] if answers else [])]
