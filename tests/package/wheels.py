"""Tries the wheels of dist/ in empty environments: for each Python that is given, on this Debian and on Debian 13."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from penstock import __version__

HERE = Path(__file__).resolve().parent
TRY = [str(HERE / "run.py"), "--wheel"]
ASK = "import json, sys; print(json.dumps([sys.base_prefix, sys.version_info[:2]]))"


def main() -> None:
    """Exits with the first run's code that fails."""
    for python in sys.argv[1:]:
        prefix, (major, minor) = json.loads(subprocess.run([python, "-c", ASK], capture_output=True, check=True).stdout)
        (wheel,) = (HERE.parents[1] / "dist").glob(f"penstock-{__version__}-cp{major}{minor}-*manylinux*.whl")
        _run([sys.executable, *TRY, str(wheel), "--python", python])
        there = [sys.executable, "-m", "support.debian13", "--bind", str(HERE), "--bind", str(wheel)]
        if (major, minor) == (3, 13):
            _run([*there, "python3", *TRY, str(wheel)])
        elif prefix == "/usr":
            print(f"Debian 13 has no Python {major}.{minor}, and this one can't be lent to it: its wheel isn't tried there")
        else:
            _run([*there, "--bind", prefix, f"{prefix}/bin/python{major}.{minor}", *TRY, str(wheel)])


def _run(command: list[str]) -> None:
    print("+", *command, flush=True)
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        sys.exit(code)


if __name__ == "__main__":
    main()
