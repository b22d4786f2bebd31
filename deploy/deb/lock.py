"""Writes `requirements.lock` and `requirements-etl.lock`: what the packages carry, each file pinned by its hash.

Run by hand when a pin should move, and looked at in the diff: `make deb-lock`. The pins are for the Python and the
processor that it runs on, those of the boxes. Nothing says from where a file comes: its hash says which one it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main() -> None:
    """Writes both files."""
    with (ROOT / "pyproject.toml").open("rb") as text:
        project = tomllib.load(text)["project"]
    base = resolve(project["dependencies"])
    everything = resolve([*project["dependencies"], *project["optional-dependencies"]["etl"]])
    moved = [name for name, pin in base.items() if everything.get(name) != pin]
    if moved:
        sys.exit(f"the ETL's wheels want other versions than the broker's: {', '.join(moved)}")
    write(HERE / "requirements.lock", base, "penstock")
    write(HERE / "requirements-etl.lock", {n: p for n, p in everything.items() if n not in base}, "penstock-etl")


def resolve(requirements: list[str]) -> dict[str, str]:
    """Name -> its line, of all that pip would install for these in an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found = {}
    for one in json.loads(done.stdout)["install"]:
        name, version = one["metadata"]["name"].lower(), one["metadata"]["version"]
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        found[name] = f"{name}=={version} --hash=sha256:{digest}"
    return found


def write(path: Path, pins: dict[str, str], package: str) -> None:
    """One line a file, in the order of names."""
    head = f"# What the package {package} carries, made by `make deb-lock`. Installed with --require-hashes --no-deps.\n"
    path.write_text(head + "".join(f"{pins[name]}\n" for name in sorted(pins)))
    print(f"{path.relative_to(ROOT)}: {len(pins)} pins")


if __name__ == "__main__":
    main()
