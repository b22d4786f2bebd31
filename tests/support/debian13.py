"""Commands in a Debian 13 (Python 3.13, RocksDB 9.10) that lies below build/; as root.

    python -m support.debian13 [--checkout] [--bind PATH ...] COMMAND...

debootstrap makes its root once. Each command runs there in namespaces of its own: its mounts, and all that it starts, end with
it, however it ends. A copy of the checkout keeps what was built in it, so that the second time is quick.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.machines import debian

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = ROOT / "build" / "debian-13"
COPY = "penstock"
# Whom this machine trusts, which names it knows, and where its Python packages come from: that holds in there, too.
CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
NAMES = (Path("etc/hosts"), Path("etc/resolv.conf"))
KEPT = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "http_proxy", "https_proxy", "no_proxy", "TESTS_AT_A_TIME")
# Arguments: the root, whether a path is to be bound (any number of pairs), `--`, the command.
ENTER = """\
set -eu
root=$1
shift
mount --bind "$root" "$root" # so that its `/` is a mount, as on a machine
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root${1%/*}"; touch "$root$1"; fi
    mount --bind "$1" "$root$1"
    mount -o remount,bind,ro "$root$1"
    shift
done
shift
exec chroot "$root" env "$@"
"""


def main() -> None:
    """Runs the command and ends with its exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--checkout", action="store_true", help="run the command in a copy of this checkout")
    options.add_argument("--bind", type=Path, action="append", default=[], help="a path that is there, too; read only")
    options.add_argument("command", nargs=argparse.REMAINDER)
    given = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("a Debian 13 below build/ is made and entered by root only\nhint: sudo make debian-13")
    debian(DEBIAN, "ca-certificates,git,make,python3-venv", "trixie")
    for file in (CERTIFICATES, *NAMES):
        if Path("/", file).exists():
            shutil.copy(Path("/", file), DEBIAN / file)
    place = "/"
    if given.checkout:
        copy_checkout(DEBIAN / COPY)
        place = f"/{COPY}"
    kept = [f"{name}={os.environ[name]}" for name in KEPT if name in os.environ]
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    fixed = [path, "HOME=/root", "LC_ALL=C.UTF-8", f"PIP_CERT=/{CERTIFICATES}", "PIP_ROOT_USER_ACTION=ignore"]
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", str(DEBIAN)]
    bound = [str(one.resolve()) for one in given.bind]
    command = ["--", "-i", f"--chdir={place}", *fixed, *kept, *given.command]
    sys.exit(subprocess.run([*enter, *bound, *command], check=False).returncode)


def copy_checkout(target: Path) -> None:
    """Copies the files that git has or would take; those of an earlier copy that are gone since are removed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    names = {name for name in listed.split("\0") if name and os.path.lexists(ROOT / name)}
    target.mkdir(exist_ok=True)
    noted = DEBIAN / "copied"
    if noted.exists():
        for name in set(noted.read_text().split("\0")) - names - {""}:
            (target / name).unlink(missing_ok=True)
    noted.write_text("\0".join(sorted(names)))
    for name in names:
        source, copy = ROOT / name, target / name
        # A file that didn't change keeps its time: make would build everything again.
        if not os.path.lexists(copy) or source.lstat().st_mtime_ns != copy.lstat().st_mtime_ns:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    # What asks git for its commit finds one.
    git = ["git", "-C", str(target), "-c", "user.name=Nobody", "-c", "user.email=nobody@localhost"]
    for step in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--allow-empty", "-m", "A copy of the checkout"]):
        subprocess.run([*git, *step], check=True)


if __name__ == "__main__":
    main()
