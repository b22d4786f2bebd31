"""The docstrings of the public names, out of which the reference is made: each is there, and says what is raised."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType

import pytest

import penstock.pipeline as pipeline

CLASSES = [cls for name in pipeline.__all__ if isinstance(cls := getattr(pipeline, name), type)]


def functions(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """The constructor and the public functions of a class, those of its bases in this tree too, each by its name."""
    seen: set[str] = set()
    for base in cls.__mro__:
        for name, member in vars(base).items() if base.__module__.startswith("penstock.") else ():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            is_public = not name.startswith("_") or name == "__init__"
            if is_public and name not in seen and isinstance(function, FunctionType):
                seen.add(name)
                if function.__code__.co_filename.endswith(".py"):  # dataclasses and named tuples make some out of text
                    yield name, function


def raised(function: FunctionType) -> set[str]:
    """The names of exceptions that a function's own text raises."""
    called = [
        node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
        if isinstance(node, ast.Raise)
    ]
    return {one.id for one in called if isinstance(one, ast.Name) and one.id[0].isupper()}


@pytest.mark.parametrize("name", [name for name in pipeline.__all__ if callable(getattr(pipeline, name))])
def test_a_public_name_says_what_it_is(name: str) -> None:
    told = vars(getattr(pipeline, name)).get("__doc__") or getattr(pipeline, name).__doc__
    assert told, f"`{name}` has no docstring"
    assert not told.startswith(f"{name}("), f"`{name}` has the docstring that its kind of class makes by itself"
    assert "see the module" not in told, f"`{name}`: a reader doesn't see the module"


@pytest.mark.parametrize(
    ("cls", "name", "function"),
    [pytest.param(cls, *named, id=f"{cls.__name__}.{named[0]}") for cls in CLASSES for named in functions(cls)],
)
def test_a_public_function_says_what_it_does_and_raises(cls: type, name: str, function: FunctionType) -> None:
    told = f"{function.__doc__ or ''}{cls.__doc__ if name == '__init__' else ''}"
    assert told, f"{cls.__name__}.{name} has no docstring"
    missing = sorted(error for error in raised(function) if error not in told)
    assert not missing, f"{cls.__name__}.{name} raises {', '.join(missing)}, and its docstring doesn't say so"
