"""A coordinator's machine on a clock of the test's own, with a log that takes what is appended unless it is told not to."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from penstock.broker.coordination.machines import Append, Appended, Now, Reply, Tick


class MachineBench(abc.ABC):
    """Feeds a machine as the shell does. `hold` keeps its actions back, `refuse` is the error of each append."""

    def __init__(self) -> None:
        self.mono_ms, self.wall_ms = 1_000, 1_700_000_000_000
        self.log: list[Any] = []
        self.held: list[Any] = []
        self.hold = False
        self.refuse = 0
        self.replies: dict[object, Any] = {}
        self.tokens = 0

    @property
    def now(self) -> Now:
        return Now(self.mono_ms, self.wall_ms)

    @property
    @abc.abstractmethod
    def wake_at_ms(self) -> int:
        """When the machine wants a tick."""

    @abc.abstractmethod
    def step(self, event: object) -> Sequence[Any]:
        """Feed the machine one event; its actions."""

    def feed(self, event: object) -> None:
        queue = [event]
        while queue:
            for action in self.step(queue.pop(0)):
                if isinstance(action, Reply):
                    assert action.token not in self.replies, "a request is answered once"
                    self.replies[action.token] = action.result
                elif self.hold:
                    self.held.append(action)
                else:
                    queue.append(self.carry_out(action))

    def carry_out(self, action: Any) -> object:
        """An append, as the log answers it."""
        assert isinstance(action, Append)
        if self.refuse:
            return Appended(action.id, self.refuse)
        self.log.extend(action.records)
        return Appended(action.id, 0, len(self.log) - len(action.records))

    def release(self) -> None:
        """Carry out what was held."""
        held, self.held, self.hold = self.held, [], False
        for action in held:
            self.feed(self.carry_out(action))

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass the way the shell does: a tick whenever the machine wants one."""
        end = self.mono_ms + duration_ms
        while self.wake_at_ms <= end:
            self.wall_ms += max(0, self.wake_at_ms - self.mono_ms)
            self.mono_ms = max(self.mono_ms, self.wake_at_ms)
            self.feed(Tick())
            assert self.wake_at_ms > self.mono_ms, "a tick leaves nothing due"
        self.wall_ms += end - self.mono_ms
        self.mono_ms = end

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    def ask(self, event: Any) -> Any:
        event.token = self.token()
        self.feed(event)
        return self.replies.get(event.token)
