"""The beginning and the end of `make release`, which leaves all that a release publishes in `dist/release`.

`begin` refuses a tree that has changes, empties the folder, and writes the commit and the changelog's section into it.
`end` adds the packages from `dist`, refuses a release that lacks a part, and writes the checksum of each file.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from penstock import __version__

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
RELEASE = DIST / "release"
COMMIT = "COMMIT"
SUMS = "SHA256SUMS"
# What is published -> the pattern of its file.
PARTS = {
    "sdist": f"penstock-{__version__}.tar.gz",
    "wheel for Python 3.11": f"penstock-{__version__}-cp311-*manylinux*.whl",
    "wheel for Python 3.13": f"penstock-{__version__}-cp313-*manylinux*.whl",
    "package of Debian": f"penstock-{__version__}_{__version__}_*.deb",
    "package of Debian for nights": f"penstock-etl-{__version__}_{__version__}_*.deb",
    "bundle": f"penstock-bundle-{__version__}.tar",
    "changelog": f"CHANGELOG-{__version__}.md",
}


def main() -> None:
    """Exits with a sentence if something isn't as a release needs it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("step", choices=["begin", "end"])
    {"begin": begin, "end": end}[options.parse_args().step]()


def begin() -> None:
    """Makes the folder, with the commit and what the changelog says of this version."""
    commit = clean_commit()
    section = changelog_section()
    shutil.rmtree(RELEASE, ignore_errors=True)
    RELEASE.mkdir(parents=True)
    (RELEASE / COMMIT).write_text(f"{commit}\n")
    (RELEASE / f"CHANGELOG-{__version__}.md").write_text(section)


def end() -> None:
    """Adds the packages and the checksums."""
    commit, begun = clean_commit(), (RELEASE / COMMIT).read_text().strip()
    if commit != begun:
        sys.exit(f"the release began at commit {begun}, and the tree is at {commit} now\nhint: make release")
    for package in (*DIST.glob("deb/*.deb"), *DIST.glob(PARTS["bundle"])):
        (RELEASE / package.name).unlink(missing_ok=True)
        (RELEASE / package.name).hardlink_to(package)
    missing = [part for part, pattern in PARTS.items() if not any(RELEASE.glob(pattern))]
    if missing:
        sys.exit(f"`{RELEASE}` has no {', no '.join(missing)}\nhint: make release")
    names = sorted(path.name for path in RELEASE.iterdir() if path.name != SUMS)
    (RELEASE / SUMS).write_text("".join(f"{digest(RELEASE / name)}  {name}\n" for name in names))
    print(f"`{RELEASE}` has version {__version__} of commit {commit[:7]}:", *names, SUMS, sep="\n  ")


def clean_commit() -> str:
    """The commit that the tree is at, if the tree has nothing else."""
    changes = git("status", "--porcelain").splitlines()
    if changes:
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        sys.exit(
            f"the tree has changes that no commit has: `{changes[0][3:]}`{more}\n"
            "hint: git stash push --include-untracked  # or commit them"
        )
    return git("rev-parse", "HEAD").strip()


def changelog_section() -> str:
    """What CHANGELOG.md says of this version, with its heading."""
    sections = re.split(r"^(?=## )", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    heading = re.compile(rf"## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d\n")
    found = [section for section in sections if heading.match(section)]
    if len(found) != 1:
        sys.exit(
            f"CHANGELOG.md has {len(found)} dated sections of version {__version__} instead of one\n"
            f"hint: its heading is `## [{__version__}] - YYYY-MM-DD`"
        )
    return found[0].rstrip() + "\n"


def digest(path: Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git(*arguments: str) -> str:
    """What git prints."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"git could not read `{ROOT}`: {done.stderr.strip()}\nhint: a release is made in a clone of the repository")
    return done.stdout


if __name__ == "__main__":
    main()
