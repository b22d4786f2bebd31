"""Makes a bundle: all that a box without network needs to install Penstock - our packages, every Debian package that they
need down to libc, an index for apt, and the checksum of each file.

On the box: check SHA256SUMS, name the folder as a source of apt's, and install (the role `package` does).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SUMS = "SHA256SUMS"


def main() -> None:
    """Fills a folder, which must be new or a bundle."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True)
    # python3-apt is Ansible's: a small Debian lacks it, and Ansible then installs it by itself, out of the bundle.
    tools = "xfsprogs,fdisk,chrony,python3-apt,prometheus,prometheus-node-exporter"
    options.add_argument("--tools", default=tools, help="Debian packages that the roles install too")
    options.add_argument("--tar", type=Path, help="make an archive of it, as the role `package` wants it")
    options.add_argument("packages", nargs="+", type=Path, help="our .deb files")
    given = options.parse_args()
    out: Path = given.out.absolute()
    if out.exists() and any(out.iterdir()) and not (out / SUMS).is_file():
        sys.exit(f"`{out}` holds other things than a bundle: give a new folder")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        if old.suffix == ".deb":
            old.unlink()
    _download(out, [*(str(path.absolute()) for path in given.packages), *given.tools.split(",")])
    for package in given.packages:
        shutil.copy(package, out)
    index = subprocess.run(["dpkg-scanpackages", "--multiversion", "."], cwd=out, capture_output=True, check=True).stdout
    (out / "Packages").write_bytes(index)
    names = sorted(path.name for path in out.iterdir() if path.name != SUMS)
    sums = (f"{hashlib.sha256((out / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (out / SUMS).write_text("".join(sums))
    if given.tar is not None:
        with tarfile.open(given.tar, "w") as archive:
            for name in [*names, SUMS]:
                archive.add(out / name, name, filter=_of_root)
    made = given.tar or out
    version = next(path.name for path in given.packages if path.name.startswith("penstock-")).split("_")[1]
    size = sum((out / name).stat().st_size for name in names) >> 20
    print(f"`{made}` has {len(names) - 1} packages ({size} MB): in an inventory, penstock_version: {version}")


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode = 0o644
    return member


def _download(out: Path, packages: list[str]) -> None:
    """What our packages need on a machine that has nothing, as apt finds it; what this machine has doesn't count."""
    with tempfile.TemporaryDirectory(prefix="penstock-bundle-") as folder:
        nothing = Path(folder, "status")
        nothing.touch()
        (out / "partial").mkdir(exist_ok=True)
        settings = {
            "Dir::State::status": str(nothing),
            "Dir::Cache::archives": str(out),
            "APT::Sandbox::User": "root",
            "APT::Keep-Downloaded-Packages": "true",
        }
        command = ["apt-get", "-q", "-y", "--no-install-recommends", "--download-only"]
        command += [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        done = subprocess.run(
            [*command, "install", *packages],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"apt-get could not fetch what the packages need:\n{done.stdout}{done.stderr}")
    shutil.rmtree(out / "partial", ignore_errors=True)
    (out / "lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
