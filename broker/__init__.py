"""The broker. `from penstock.broker import Broker` gives one inside this process (`inprocess.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if __name__ != "penstock.broker":
    raise ImportError("`broker` is a part of penstock: `import penstock.broker`")

if TYPE_CHECKING:
    from penstock.broker.inprocess import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> Any:
    # Loaded at its first use: whoever wants one module of the broker must not load all of them.
    if name == "Broker":
        from penstock.broker.inprocess import Broker

        return Broker
    raise AttributeError(f"module `penstock.broker` has no `{name}`")
