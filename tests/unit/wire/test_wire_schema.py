"""The grammar of `.api` files: what it says is what is parsed, and mistakes are named with their line."""

from pathlib import Path

import pytest

from penstock.pyx.wire import codegen, schema

GOOD = """
# Prose.
api Thing key 7, v0-4, flexible v2+

request
  struct Shared
    id: int32 // v0+
  name: string = "x" // v1-3, nullable v2+, ignorable
  first: []Shared // v0-1
  second: []Shared // v3+, tag 0

response
  error_code: int16 // v0+
"""


def parse(tmp_path: Path, text: str) -> list[schema.Message]:
    path = tmp_path / "07_thing.api"
    path.write_text(text)
    return schema.parse(path)


def test_grammar(tmp_path: Path) -> None:
    request, response = parse(tmp_path, GOOD)
    assert (request.key, request.kind, request.flexible_from) == (7, "request", 2)
    assert request.root.name == "ThingRequest" and response.root.name == "ThingResponse"
    name, first, second = request.root.fields
    assert (name.default, name.versions, name.ignorable) == ('"x"', schema.Versions(1, 3), True)
    assert not name.nullable_at(1) and name.nullable_at(2)
    assert first.array and first.is_struct and first.versions == schema.Versions(0, 1)
    assert second.tag == 0
    assert request.structs["Shared"].versions == schema.Versions(0, 4)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("api Thing key 7, v0-4", "api Thing key 7, 0-4", "07_thing.api:3"),
        ("id: int32 // v0+", "id: int32", "07_thing.api:7: not a field"),
        ("id: int32 // v0+", "id: int32 // 0+", "07_thing.api:7: not versions"),
        (", ignorable", ", ignored", "07_thing.api:8: unknown note 'ignored'"),
        ("first: []Shared", "first: []Shard", "no type or struct Shard"),
        ("  struct Shared\n    id: int32 // v0+", "  struct Other\n    id: int32 // v0+", "struct Shared"),
        ("error_code: int16 // v0+", "error_code: int16 // v0+\n    deep: int8 // v0+", "can't have fields"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    with pytest.raises(schema.SchemaError, match=complaint):
        parse(tmp_path, GOOD.replace(old, new))


def test_generated_code_is_what_the_files_say() -> None:
    """The module that is imported was made from the present files by the present generator."""
    generated = Path(codegen.__file__).with_name("messages.py")
    assert generated.read_text() == codegen.generate()
