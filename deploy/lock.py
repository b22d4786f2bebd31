"""Writes the locks: every Python package that a build, a test or a Debian package gets, each file pinned by its hash.

`make lock` runs it when a pin should move, `make lock KEEP=1` when pyproject.toml names a new package. Read the difference
before you commit it. One resolution gives all three files, so that what is tested is what the packages carry. It is made with
the Python of the boxes; where a version has another file for Debian 13's Python, the line has that file's hash, too. The pins
are for the processor that this runs on. No line says from where a file comes: its hash says which one it is.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEB = ROOT / "deploy" / "deb"
INSTALLED = "Installed with --require-hashes --no-deps."
# They build the others' source distributions, and are installed before them.
TOOLS = ["pip", "wheel"]
# The Python of Debian 13, and the newest glibc whose wheels Debian 12 can load, too.
LATER_PYTHON, GLIBC = "3.13", 36


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
    fixed = [line.split()[0] for name, line in (known or {}).items() if name not in TOOLS]
    constraints = ROOT / "build" / "constraints.txt"
    constraints.parent.mkdir(exist_ok=True)
    constraints.write_text("".join(f"{line}\n" for line in fixed))
    files = chosen(["-c", str(constraints), *requirements])
    for pin, later in chosen_later([pin for pin, file in files.items() if file["url"].endswith(".whl")]).items():
        files[pin]["hashes"] = sorted({*files[pin]["hashes"], *later["hashes"]})
    return {
        pin.split("==")[0]: " ".join([pin, *(f"--hash=sha256:{one}" for one in file["hashes"])]) for pin, file in files.items()
    }


def chosen_later(pins: list[str]) -> dict[str, dict[str, Any]]:
    """What `chosen` returns for the later Python, of versions that have wheels; a source distribution is the same for both."""
    machine = platform.machine()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)] + [f"manylinux2014_{machine}"]
    options = ["--no-deps", "--only-binary", ":all:", "--target", str(ROOT / "build" / "none")]  # a dry run makes no folder
    return chosen([*options, "--python-version", LATER_PYTHON, *(f"--platform={one}" for one in platforms), *pins])


def chosen(arguments: list[str]) -> dict[str, dict[str, Any]]:
    """NAME==VERSION -> address and hashes of the file, of all that pip would install in an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found = {}
    for one in json.loads(done.stdout)["install"]:
        name, version = one["metadata"]["name"].lower(), one["metadata"]["version"]
        file = one["download_info"]
        found[f"{name}=={version}"] = {"url": file["url"], "hashes": [file["archive_info"]["hashes"]["sha256"]]}
    return found


def write(path: Path, pins: dict[str, str], what: str) -> None:
    """One line a file, in the order of names."""
    path.write_text(f"# {what}, made by `make lock`. {INSTALLED}\n" + "".join(f"{pins[name]}\n" for name in sorted(pins)))
    print(f"{path.relative_to(ROOT)}: {len(pins)} pins")


if __name__ == "__main__":
    main()
