"""kcat against a broker, of today or speaking as one of an old release would be spoken to. `make build` installs it."""

from __future__ import annotations

from support.harness import BrokerProcess, output


def kcat(broker: BrokerProcess, *arguments: str, version: str = "", stdin: str = "") -> str:
    """What it printed. `version`: kcat is told that the broker is of that release (`broker.version.fallback`)."""
    old = ["-X", f"broker.version.fallback={version}", "-X", "api.version.request=false"] if version else []
    return output(["kcat", "-b", broker.bootstrap, *old, *arguments], stdin=stdin, timeout_s=60)
