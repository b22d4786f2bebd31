"""The reference that `make reference` writes has each public name, its functions, and the tables."""

from __future__ import annotations

import html
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.pipeline as pipeline
from penstock.pipeline.clients import properties

SCRIPT = Path(__file__).parents[3] / "deploy" / "reference.py"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page as HTML."""
    folder = tmp_path_factory.mktemp("reference")
    made = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    return (folder / "penstock" / "pipeline.html").read_text()


def test_each_public_name_is_there_with_its_functions(page: str) -> None:
    anchors = set(re.findall(r'<section id="([\w.]+)"', page)) | set(re.findall(r'<div id="([\w.]+)"', page))
    assert set(pipeline.__all__) <= anchors
    for name in pipeline.__all__:
        made = getattr(pipeline, name)
        if isinstance(made, type) and not issubclass(made, int):  # the codes of errors are a table
            written = {key for key, member in vars(made).items() if inspect.isfunction(member) and not key.startswith("_")}
            assert {f"{name}.{key}" for key in written} <= anchors


def test_properties_and_error_codes_are_tables(page: str) -> None:
    cells = [html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<td>(.*?)</td>", page, re.S)]
    assert {*properties.PRODUCER.properties, *properties.CONSUMER.properties} <= set(cells)
    assert {code.name for code in pipeline.ErrorCode} <= set(cells)
    at = cells.index("record.id")
    assert cells[at : at + 4] == ["record.id", "none", "", "Penstock"]


def test_the_page_loads_nothing_from_elsewhere(page: str) -> None:
    assert not re.search(r'<(script|img|iframe)[^>]+src="https?:|<link[^>]+href="https?:|@import|url\(["\']?https?:', page)
