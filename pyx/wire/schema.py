"""Parser of the `.api` files, which say how every Kafka message is written at every version.

    api Heartbeat key 12, v0-4, flexible v4+

    request
      group_id: string // v0+
      group_instance_id: string = null // v3+, nullable

    response
      ...

- Head: `api <Name> key <api key>, <versions>, flexible <versions or "never">`, then the sections `request`
  and `response`. A record that isn't asked for starts with `record <Name> <versions>, flexible ...`.
- Field: `name: type [= default] // versions [, nullable [versions]] [, tag n] [, ignorable]`.
- Versions: `v3` (only 3), `v3-7`, `v3+`.
- A type in capitals is a struct: the deeper indented lines below are its fields, unless `struct <Name>` in
  the same section has them (for one that is used twice). `[]` before a type is an array.
- `nullable` without versions holds for every version of the field. `ignorable`: a value that the version at
  hand can't carry is dropped silently; without it, encoding such a value is refused.
- A default that isn't written is Kafka's: 0, false, "", no bytes, empty array, nil uuid, struct of defaults.
- `# ...` lines are prose for the reader.

Names and numbers are those of Kafka's message definitions, with field names in snake_case.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

NEVER = 1 << 15
"""First flexible version of a message that has none: above every version that an int16 can name."""

PRIMITIVES = frozenset(
    (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "float64",
        "string",
        "bytes",
        "records",
        "uuid",
    )
)


class SchemaError(ValueError):
    """An `.api` file doesn't follow the grammar; says file and line."""


@dataclass(frozen=True)
class Versions:
    """A closed range of versions."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def cut(self, other: "Versions") -> "Versions":
        """What both have in common; empty if last < first."""
        return Versions(max(self.first, other.first), min(self.last, other.last))

    def covers(self, other: "Versions") -> bool:
        return self.first <= other.first and other.last <= self.last


@dataclass
class Field:
    """One field of a struct. `default` is the text after `=`, None where the type's own default holds."""

    name: str
    type: str
    array: bool
    default: str | None
    versions: Versions
    nullable: Versions | None
    tag: int | None
    ignorable: bool

    @property
    def is_struct(self) -> bool:
        return self.type not in PRIMITIVES

    def nullable_at(self, version: int) -> bool:
        return self.nullable is not None and version in self.nullable


@dataclass
class Struct:
    """Fields in wire order. `versions` are those at which the struct can occur at all."""

    name: str
    fields: list[Field]
    versions: Versions


@dataclass
class Message:
    """One request, response or record; `root` has its name, `structs` everything nested in it by name."""

    key: int
    kind: str
    flexible_from: int
    root: Struct
    structs: dict[str, Struct] = field(default_factory=dict)


@dataclass
class _Line:
    place: str
    indent: int
    text: str


_HEAD = re.compile(r"(api|record) (\w+) (?:key (\d+), )?(v[\d+-]+), flexible (never|v\d+\+)$")
_FIELD = re.compile(r"(\w+): (\[\])?(\w+)(?: = (\"[^\"]*\"|\S+))? // (.+)$")
_VERSIONS = re.compile(r"v(\d+)(?:(\+)|-(\d+))?$")


def parse(path: Path) -> list[Message]:
    """All messages of one file. Raises SchemaError."""
    messages: list[Message] = []
    head: re.Match[str] | None = None
    lines = _lines(path)
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if new_head := _HEAD.match(line.text):
            head = new_head
            if head[1] == "api":
                continue
            kind = "record"
        elif head is not None and line.text in ("request", "response"):
            kind = line.text
        else:
            raise SchemaError(f"{line.place}: neither a head line nor a section: {line.text}")
        end = at
        while end < len(lines) and lines[end].indent > line.indent:
            end += 1
        messages.append(_message(head, kind, line, lines[at:end]))
        at = end
    return messages


def _lines(path: Path) -> list[_Line]:
    found = []
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        text = raw.strip()
        if text and not text.startswith("#"):
            found.append(_Line(f"{path.name}:{number}", len(raw) - len(raw.lstrip()), text))
    return found


def _message(head: re.Match[str], kind: str, line: _Line, body: list[_Line]) -> Message:
    versions = _versions(head[4], line, last=0)
    flexible = NEVER if head[5] == "never" else int(head[5][1:-1])
    name = head[2] + {"request": "Request", "response": "Response", "record": ""}[kind]
    structs: dict[str, list[Field]] = {}
    fields = _fields(body, versions.last, structs)
    message = Message(int(head[3] or -1), kind, flexible, Struct(name, fields, versions))
    _place_structs(message, structs, message.root, line)
    if unused := structs.keys() - message.structs.keys():
        raise SchemaError(f"{line.place}: unused structs {sorted(unused)}")
    return message


def _fields(body: list[_Line], last: int, structs: dict[str, list[Field]]) -> list[Field]:
    """Fields of one level; deeper levels and `struct` blocks go into `structs`."""
    fields: list[Field] = []
    at = 0
    while at < len(body):
        line = body[at]
        at += 1
        end = at
        while end < len(body) and body[end].indent > line.indent:
            end += 1
        inner = body[at:end]
        at = end
        if line.text.startswith("struct "):
            name = line.text.removeprefix("struct ")
        else:
            fields.append(_field(line, last))
            name = fields[-1].type
        if inner:
            if name in structs or name in PRIMITIVES:
                raise SchemaError(f"{line.place}: {name} can't have fields here")
            structs[name] = []
            structs[name] = _fields(inner, last, structs)
    return fields


def _field(line: _Line, last: int) -> Field:
    match = _FIELD.match(line.text)
    if not match:
        raise SchemaError(f"{line.place}: not a field: {line.text}")
    name, array, type_, default, notes = match.groups()
    first, *rest = notes.split(", ")
    made = Field(name, type_, bool(array), default, _versions(first, line, last), None, None, False)
    for note in rest:
        if note == "nullable":
            made.nullable = made.versions
        elif note.startswith("nullable "):
            made.nullable = _versions(note.removeprefix("nullable "), line, last)
        elif note.startswith("tag "):
            made.tag = int(note.removeprefix("tag "))
        elif note == "ignorable":
            made.ignorable = True
        else:
            raise SchemaError(f"{line.place}: unknown note {note!r}")
    return made


def _versions(text: str, line: _Line, last: int) -> Versions:
    match = _VERSIONS.match(text)
    if not match:
        raise SchemaError(f"{line.place}: not versions: {text!r}")
    first = int(match[1])
    return Versions(first, last if match[2] else int(match[3] or first))


def _place_structs(message: Message, bodies: dict[str, list[Field]], parent: Struct, line: _Line) -> None:
    """Fills message.structs in order of use and widens each to the versions of every place that uses it."""
    for item in parent.fields:
        if not item.is_struct:
            continue
        if item.type not in bodies:
            raise SchemaError(f"{line.place}: {parent.name}.{item.name}: no type or struct {item.type}")
        used = item.versions.cut(parent.versions)
        known = message.structs.get(item.type)
        if known is None:
            known = message.structs[item.type] = Struct(item.type, bodies[item.type], used)
        else:
            known.versions = Versions(min(known.versions.first, used.first), max(known.versions.last, used.last))
        _place_structs(message, bodies, known, line)
