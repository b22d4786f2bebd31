"""What a published version says of itself: one version and one licence, the same wherever they are written. And its tools:
what a release refuses and writes, and hooks that fetch nothing."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock import __version__

ROOT = Path(__file__).resolve().parents[2]
APPLIANCE = "deploy/ansible/ansible_collections/penstock/appliance"
LICENCE = "Apache-2.0"
# File -> where the version stands in it; its first match counts.
VERSIONS = {
    "CHANGELOG.md": r"^## \[(\d.*?)\] - \d{4}-\d\d-\d\d$",
    f"{APPLIANCE}/CHANGELOG.md": r"^## (\S+)$",
    f"{APPLIANCE}/galaxy.yml": r"^version: (\S+)$",
    "deploy/ansible/inventories/example/group_vars/all.yml": r"^penstock_version: (\S+)$",
}
ROLES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / APPLIANCE / "roles").glob("*/meta/main.yml"))
LICENCES = {
    "pyproject.toml": r'^license = "(.*)"$',
    f"{APPLIANCE}/galaxy.yml": r"^license:\n  - (.*)$(?!\n  - )",
    **dict.fromkeys(ROLES, r"^  license: (.*)$"),
}


def said(name: str, pattern: str) -> str | None:
    found = re.search(pattern, (ROOT / name).read_text(), re.M)
    return found[1] if found else None


@pytest.mark.parametrize("name", VERSIONS)
def test_each_file_that_names_the_version_names_the_same(name: str) -> None:
    assert said(name, VERSIONS[name]) == __version__


def test_no_other_file_that_is_published_names_the_version() -> None:
    literal = re.compile(rf"(?<![\w.]){re.escape(__version__)}(?![\w.])")
    # Locks pin other projects' versions; the roadmap's table says which version each figure is of.
    files = [path for path in (*ROOT.glob("*"), *(ROOT / "deploy").rglob("*")) if path.is_file()]
    files = [path for path in files if path.suffix not in (".lock", ".pyc") and path.name != "ROADMAP.md"]
    found = {str(path.relative_to(ROOT)) for path in files if literal.search(path.read_text(errors="replace"))}
    assert found == VERSIONS.keys()


def test_setuptools_takes_the_version_from_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert declared["project"]["dynamic"] == ["version"]
    assert declared["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "penstock.__version__"}


@pytest.mark.parametrize("name", LICENCES)
def test_each_file_that_names_the_licence_names_the_same(name: str) -> None:
    assert said(name, LICENCES[name]) == LICENCE


def test_the_licence_is_there_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text and text.endswith("limitations under the License.\n")
    assert "/usr/share/common-licenses/Apache-2.0" in (ROOT / "deploy" / "deb" / "copyright").read_text()


def test_hooks_of_a_commit_fetch_nothing() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"^ +- repo: (.*)$", text, re.M) == ["local"]
    assert set(re.findall(r"^ +language: (.*)$", text, re.M)) == {"system"}


def git(tree: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Nobody", "-c", "user.email=nobody@localhost"]
    subprocess.run(["git", "-C", str(tree), *identity, *arguments], check=True, capture_output=True)


def release(tree: Path, step: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(tree / "deploy" / "release.py"), step], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clone with what a release reads before anything is built."""
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy" / "release.py", tmp_path / "deploy")
    for name in ("CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "All of it")
    return tmp_path


def test_a_release_refuses_a_tree_with_changes(tree: Path) -> None:
    assert release(tree, "begin") == (0, "")
    for change in ("untracked.py", "CHANGELOG.md"):
        with (tree / change).open("a") as file:
            file.write("\n")
        for step in ("begin", "end"):
            code, words = release(tree, step)
            assert code == 1 and words.startswith(f"the tree has changes that no commit has: `{change}`\nhint: git stash push ")
        git(tree, "stash", "push", "--include-untracked")
    assert release(tree, "begin") == (0, "")


def test_a_release_refuses_a_version_that_the_changelog_does_not_date(tree: Path) -> None:
    log = tree / "CHANGELOG.md"
    log.write_text(log.read_text().replace(f"## [{__version__}]", "## [Unreleased]"))
    git(tree, "commit", "-qam", "Nothing is released")
    code, words = release(tree, "begin")
    assert code == 1 and f"0 dated sections of version {__version__}" in words and "\nhint: " in words


def test_a_release_has_the_changelogs_section_and_a_checksum_of_each_file(tree: Path) -> None:
    log = tree / "CHANGELOG.md"
    log.write_text(log.read_text() + "\n## [0.0.1] - 2026-01-31\n\nOlder.\n")
    git(tree, "commit", "-qam", "An older version")
    assert release(tree, "begin") == (0, "")
    dist, folder = tree / "dist", tree / "dist" / "release"
    section = (folder / f"CHANGELOG-{__version__}.md").read_text()
    assert section.startswith(f"## [{__version__}] - ") and "### Security" in section and "Older" not in section
    code, words = release(tree, "end")
    assert (
        code == 1
        and "has no sdist, no wheel for Python 3.11, no wheel for Python 3.13, no package of Debian, "
        "no package of Debian for nights, no bundle\nhint: "
        in words
    )
    (dist / "deb").mkdir()
    made = [
        folder / f"penstock-{__version__}.tar.gz",
        folder / f"penstock-{__version__}-cp311-cp311-manylinux_2_36_x86_64.whl",
        folder / f"penstock-{__version__}-cp313-cp313-manylinux_2_36_x86_64.whl",
        *(dist / "deb" / f"{name}-{__version__}_{__version__}_amd64.deb" for name in ("penstock", "penstock-etl")),
        dist / f"penstock-bundle-{__version__}.tar",
    ]
    for path in made:
        path.write_text(path.name)
    assert release(tree, "end") == (0, "")
    lines = [line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in lines} == {*(path.name for path in made), "COMMIT", f"CHANGELOG-{__version__}.md"}
    for sum_, name in lines:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sum_


def test_a_release_is_of_one_commit(tree: Path) -> None:
    assert release(tree, "begin") == (0, "")
    git(tree, "commit", "-q", "--allow-empty", "-m", "Another")
    code, words = release(tree, "end")
    assert code == 1 and words.startswith("the release began at commit ") and words.endswith("\nhint: make release\n")
