"""Writes the locks: every Python package that a build, a test or a Debian package gets, each file pinned by its hash.

`make lock` runs it when a pin should move, `make lock KEEP=1` when pyproject.toml names a new package. Read the difference
before you commit it. One resolution gives all three files, so that what is tested is what the packages carry. The pins are
for the Python and the processor that this runs on, those of the boxes. No line says from where a file comes: its hash says
which one it is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEB = ROOT / "deploy" / "deb"
INSTALLED = "Installed with --require-hashes --no-deps."
# They build the others' source distributions, and are installed before them.
TOOLS = ["pip", "wheel"]


def main() -> None:
    """Writes the three files."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--keep", action="store_true", help="leave the pins that stand")
    given = options.parse_args()
    with (ROOT / "pyproject.toml").open("rb") as text:
        declared = tomllib.load(text)
    project, extras = declared["project"], declared["project"]["optional-dependencies"]
    everything = [*TOOLS, *declared["build-system"]["requires"], *project["dependencies"]]
    everything += [one for requirements in extras.values() for one in requirements]
    pins = resolve(everything, standing() if given.keep else None)
    # With every other version fixed, the smaller sets are parts of the whole.
    base = resolve(project["dependencies"], pins)
    etl = resolve([*project["dependencies"], *extras["etl"]], pins)
    write(ROOT / "requirements.lock", pins, "What `make build` installs")
    write(DEB / "requirements.lock", base, "What the package penstock carries")
    more = {name: pin for name, pin in etl.items() if name not in base}
    write(DEB / "requirements-etl.lock", more, "What the package penstock-etl carries")


def standing() -> dict[str, str]:
    """Name -> its line, of the lock as it is."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return {line.split("==")[0]: line for line in lines if not line.startswith("#")}


def resolve(requirements: list[str], known: dict[str, str] | None = None) -> dict[str, str]:
    """Name -> its line, of all that pip would install for these in an empty environment. Known pins are kept."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    fixed = [line.split()[0] for name, line in (known or {}).items() if name not in TOOLS]
    constraints = ROOT / "build" / "constraints.txt"
    constraints.parent.mkdir(exist_ok=True)
    constraints.write_text("".join(f"{line}\n" for line in fixed))
    done = subprocess.run([*command, "-c", str(constraints), *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found = {}
    for one in json.loads(done.stdout)["install"]:
        name, version = one["metadata"]["name"].lower(), one["metadata"]["version"]
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        found[name] = f"{name}=={version} --hash=sha256:{digest}"
    return found


def write(path: Path, pins: dict[str, str], what: str) -> None:
    """One line a file, in the order of names."""
    path.write_text(f"# {what}, made by `make lock`. {INSTALLED}\n" + "".join(f"{pins[name]}\n" for name in sorted(pins)))
    print(f"{path.relative_to(ROOT)}: {len(pins)} pins")


if __name__ == "__main__":
    main()
