"""Writes the reference of the client library, penstock/pipeline.html, out of its docstrings; the page needs no network.

python deploy/reference.py build/reference
"""

from __future__ import annotations

import inspect
import sys
import warnings
from pathlib import Path

import pdoc.render

import penstock
from penstock import pipeline

CLIENTS = Path(__file__).resolve().parents[1] / "pipeline" / "clients"


def main(folder: Path) -> None:
    """Writes it."""
    for name in pipeline.__all__:
        vars(pipeline)[name] = getattr(pipeline, name)  # imported at its first use: pdoc looks, and doesn't ask
    pipeline.__doc__ = str(pipeline.__doc__).partition(" In reading order:")[0]  # the map is for readers of the source
    _add(pipeline.Producer, (CLIENTS / "PRODUCER.md").read_text().replace("# ", "### ", 1))
    _add(pipeline.Consumer, (CLIENTS / "CONSUMER.md").read_text().replace("# ", "### ", 1))
    _add(pipeline.ErrorCode, _error_codes())
    # pdoc looks for the types of a named tuple's fields where the class is shown; it then shows their names, without a link.
    warnings.filterwarnings("ignore", "Error parsing type annotation ForwardRef")
    pdoc.render.configure(docformat="markdown", show_source=False, footer_text=f"Penstock {penstock.__version__}")
    pdoc.pdoc("penstock.pipeline", output_directory=folder)


def _add(cls: type, page: str) -> None:
    """Put a page of Markdown after a class's own text."""
    cls.__doc__ = f"{inspect.getdoc(cls)}\n\n{page}"


def _error_codes() -> str:
    """The error codes as a table."""
    rows = [f"| {int(one)} | `{one.name}` | {'yes' if one.retriable else ''} | {one.text} |" for one in pipeline.ErrorCode]
    return "\n".join(["| code | name | retriable | what has happened |", "| --- | --- | --- | --- |", *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
