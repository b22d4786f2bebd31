"""kcat against a broker, of today or speaking as one of an old release would be spoken to. `make build` installs it."""

from __future__ import annotations

import subprocess

from harness import BrokerProcess


def kcat(broker: BrokerProcess, *arguments: str, version: str = "", stdin: str = "") -> str:
    """What it printed. `version`: kcat is told that the broker is of that release (`broker.version.fallback`)."""
    old = ["-X", f"broker.version.fallback={version}", "-X", "api.version.request=false"] if version else []
    done = subprocess.run(
        ["kcat", "-b", broker.bootstrap, *old, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
