"""The guards of `table.py` are where it says, and the tests that it names are there: `make mutants` takes them out."""

from __future__ import annotations

import ast

import pytest
from mutants.run import ROOT
from mutants.table import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_guard_stands_where_the_table_has_it(name: str) -> None:
    mutant = MUTANTS[name]
    source = ROOT / mutant.file
    assert source.suffix in (".py", ".pyx"), "what includes a .pxd would have to be compiled, too"
    assert source.read_text().count(mutant.guard) == 1
    assert mutant.broken != mutant.guard and mutant.tests
    for test in mutant.tests:
        file, _, function = test.partition("::")
        defined = [node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)]
        assert not function or function in defined, test
