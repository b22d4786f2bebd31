"""What a published version says of itself: one version and one licence, the same wherever they are written. And its tools:
what a release refuses and writes, and hooks that fetch nothing."""

from __future__ import annotations

import re
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
