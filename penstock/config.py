"""Typed property tables: Kafka's names and defaults, ours prefixed `penstock.`; unknown keys are refused.

A part declares its table once:

    SCHEMA = Schema("broker", [
        Property("log.segment.bytes", parse_int(minimum=14), 1 << 30, "Size at which a segment is rolled, bytes."),
    ])
    config = SCHEMA.load(path="server.properties", overrides=["log.segment.bytes=1048576"])
    config["log.segment.bytes"]

Files have the syntax of javaproperties.py, and values the references of references.py.

A property whose name says that it is a secret has a `Secret` as its value: its text is what stands in the file, so that no
error, log line or answer shows it, and a reference in it is resolved by whoever needs it alone.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import javaproperties, references
from penstock.suggestions import nearest

Parser = Callable[[str], Any]
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


class ConfigError(ValueError):
    """A property file or override is wrong; the text says which key and what to do."""


@dataclass(frozen=True)
class Property:
    """One configuration key: its Kafka name, how its text is read, its default, one line of help.

    A default of `REQUIRED` means that the user has to give it.
    """

    name: str
    parse: Parser
    default: Any
    doc: str


REQUIRED: Any = object()


def parse_str(text: str) -> str:
    """Any text."""
    return text


def parse_bool(text: str) -> bool:
    """`true` or `false`, as Kafka has it."""
    if text.lower() not in ("true", "false"):
        raise ValueError("is not `true` or `false`")
    return text.lower() == "true"


_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")  # Python's own `int` also takes 1_000, and Kafka other alphabets' digits


@dataclass(frozen=True)
class WholeNumber:
    """Reads whole numbers within bounds (both included)."""

    minimum: int | None = None
    maximum: int | None = None

    def __call__(self, text: str) -> int:
        """Read a number. Raises ValueError."""
        if _WHOLE.fullmatch(text) is None:
            raise ValueError("is not a whole number")
        number = int(text)
        if self.minimum is not None and number < self.minimum:
            raise ValueError(f"is less than {self.minimum}")
        if self.maximum is not None and number > self.maximum:
            raise ValueError(f"is more than {self.maximum}")
        return number

    def nearest(self, text: str) -> int | None:
        """The number that this takes and that is nearest to what the text says; None if that is no whole number."""
        if _WHOLE.fullmatch(text) is None:
            return None
        number = int(text)
        if self.minimum is not None:
            number = max(number, self.minimum)
        return number if self.maximum is None else min(number, self.maximum)


def parse_int(minimum: int | None = None, maximum: int | None = None) -> WholeNumber:
    """A parser of whole numbers within bounds (both included)."""
    return WholeNumber(minimum, maximum)


# Python's own `float` also takes 1_0 and other alphabets' digits.
_NUMBER = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf(inity)?)", re.IGNORECASE | re.ASCII)


def parse_float(text: str) -> float:
    """A finite number."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError("is not a number")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("is not a finite number")
    return number


def parse_list(text: str) -> list[str]:
    """Comma-separated words, blanks around them dropped."""
    return [word.strip() for word in text.split(",") if word.strip()]


SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[0-9A-Za-z%._:-]+):([0-9]{1,10})", re.ASCII)


def parse_server(text: str) -> tuple[str, int]:
    """Host and port of `host:port`; an address of IPv6 stands in brackets. Raises ValueError."""
    found = SERVER.fullmatch(text)
    if found is None:
        raise ValueError("is not host:port")
    if not 0 < int(found[2]) < 65_536:
        raise ValueError("is not host:port: a port is from 1 to 65535")
    return found[1].strip("[]"), int(found[2])


def parse_servers(text: str) -> str:
    """Comma-separated `host:port` words."""
    words = parse_list(text)
    for word in words:
        try:
            parse_server(word)
        except ValueError as error:
            raise ValueError(f"names `{word}`, which {error}" if len(words) > 1 else str(error)) from None
    return ",".join(words)


def parse_choice(*choices: str) -> Parser:
    """A parser that takes one of the given words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"is not one of {', '.join(choices)}")
        return text

    return parse


SECRET = re.compile(r"secret|password|token|credential|access\.?key|account\.key", re.IGNORECASE)


class Secret:
    """A value that nobody may see. It is shown as `***`."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text

    def __str__(self) -> str:
        return "***"

    __repr__ = __str__

    def reveal(self) -> str:
        """The value itself, for whoever has to give it to somebody. Raises ConfigError."""
        return _resolved(self._name, self._text)


def _resolved(name: str, text: str) -> str:
    try:
        return references.resolve(text)
    except ValueError as error:
        raise ConfigError(f"`{name}`: {error}") from None


class Config(Mapping[str, Any]):
    """The values of a schema, by property name, plus `given`: the names that the user set."""

    def __init__(self, values: dict[str, Any], given: frozenset[str]) -> None:
        self._values = values
        self.given = given

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def secrets(self) -> dict[str, str]:
        """Those whose values are secrets, with what these are. Raises ConfigError for one that stands for nothing."""
        return {name: value.reveal() for name, value in self._values.items() if isinstance(value, Secret)}


class Schema:
    """A part's table of properties.

    A name may hold `*` for a user's own word (`source.*.bootstrap.servers`), `**` for several with dots between: such a
    property has no value until a key matches it, and then stands in the config under the key that was given.

    `refused`: keys that users may bring along from elsewhere (`*` stands for anything), with what to do instead.
    `listed_by`: the command that lists all keys, for one that resembles none.
    """

    def __init__(
        self, part: str, properties: Iterable[Property], refused: Mapping[str, str] | None = None, listed_by: str = ""
    ) -> None:
        self.part = part
        self._listed_by = listed_by
        self._refused = dict(refused or {})
        self.properties: dict[str, Property] = {}
        for prop in properties:
            if prop.name in self.properties:
                raise ValueError(f"{part} property `{prop.name}` is declared twice")
            self.properties[prop.name] = prop
        self._patterns = [
            (re.compile(re.escape(prop.name).replace(r"\*\*", r"[^*]+").replace(r"\*", r"([^.*]+)") + r"\Z"), prop)
            for prop in self.properties.values()
            if "*" in prop.name
        ]

    def _known(self, name: str) -> Property | None:
        prop = self.properties.get(name)
        if prop is not None and "*" not in name:
            return prop
        return next((prop for pattern, prop in self._patterns if pattern.match(name)), None)

    def meant(self, name: str) -> str | None:
        """The key that an unknown one was probably meant to be, with the user's own word in it; None for a known one."""
        if self._known(name) is not None:
            return None
        words = name.split(".")
        keys = []
        for key in self.properties:
            parts = key.split(".")
            if key.count("*") == 1 and len(parts) == len(words):
                # The user's own word is no likeness: without it the two have to be alike, too.
                rest = ".".join(word for part, word in zip(parts, words, strict=True) if part != "*")
                if nearest(rest, [key.replace("*.", "").replace(".*", "")]) is None:
                    continue
                key = ".".join(word if part == "*" and word else part for part, word in zip(parts, words, strict=True))
            keys.append(key)
        return nearest(name, keys)

    def _find(self, name: str) -> Property:
        prop = self._known(name)
        if prop is not None:
            return prop
        for pattern_text, instead in self._refused.items():
            if fnmatch.fnmatchcase(name, pattern_text):
                raise ConfigError(f"the {self.part} property `{name}`: {instead}")
        near = self.meant(name)
        listed = f"; `{self._listed_by}` lists all that there are" if self._listed_by else ""
        hint = f"; did you mean `{near}`?" if near and near != name else listed
        raise ConfigError(f"unknown {self.part} property `{name}`{hint}")

    def parse(self, texts: Mapping[str, str]) -> Config:
        """Read texts by key into typed values; defaults fill the rest.

        Raises ConfigError for an unknown key, a value that does not parse, or a required key that is missing.
        """
        config, findings = self.validate(texts)
        if findings:
            raise ConfigError(findings[0])
        return config

    def validate(self, texts: Mapping[str, str]) -> tuple[Config, list[str]]:
        """What can be read of the texts, and all that is wrong with them, one sentence each."""
        findings: list[str] = []
        values = {
            prop.name: prop.default
            for prop in self.properties.values()
            if "*" not in prop.name and prop.default is not REQUIRED
        }
        for name, text in texts.items():
            try:
                values[name] = _value(self._find(name), name, text)
            except ConfigError as error:
                findings.append(str(error))
            except ValueError as error:
                findings.append(f"`{name}={text}` {error}")
        for name, prop in self.properties.items():
            if prop.default is REQUIRED and "*" not in name and name not in texts:
                findings.append(f"the {self.part} configuration lacks `{name}`: {prop.doc}")
        return Config(values, frozenset(texts)), findings

    def load(self, path: str | Path | None = None, overrides: Iterable[str] = ()) -> Config:
        """Read a properties file, then `key=value` overrides on top. Raises ConfigError."""
        return self.parse(read_texts(path, overrides))


def _value(prop: Property, name: str, text: str) -> Any:
    """A value as its property reads it. Raises ValueError with the words that follow the text."""
    if prop.parse is parse_str and SECRET.search(name):
        return Secret(name, text.strip())
    if references.REFERENCE.search(text) is None:
        return prop.parse(text.strip())
    resolved = _resolved(name, text)
    try:
        return prop.parse(resolved.strip())
    except ValueError:
        # What is wrong with it would be said with the value, which may be a password that stands in the wrong place.
        raise ValueError("stands for a value that this property doesn't take") from None


def read_texts(path: str | Path | None = None, overrides: Iterable[str] = (), twice: list[str] | None = None) -> dict[str, str]:
    """The keys and values of a file, with `key=value` overrides on top. Raises ConfigError.

    `twice` gets a sentence for each key that stands in the file a second time; the last value is in force, as in Java.
    """
    texts = {} if path is None else read_properties(path, twice)
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"`{override}` is not of the form key=value")
        if SECRET.search(name) and references.REFERENCE.fullmatch(text.strip()) is None:
            raise ConfigError(
                f"the value of `{name.strip()}` would be seen by every user of this machine, as all command lines are: put it "
                f"into a file and give `{name.strip()}=${{file:/path:key}}`"
            )
        texts[name.strip()] = text
    return texts


def read_properties(path: str | Path, twice: list[str] | None = None) -> dict[str, str]:
    """The keys and values of a file; a byte order mark at its begin is no part of them. Raises ConfigError.

    `twice` as in `read_texts`.
    """
    try:
        content = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"cannot read `{path}`: {error}") from None
    return parse_properties(content, str(path), twice)


def parse_properties(content: str, where: str = "properties", twice: list[str] | None = None) -> dict[str, str]:
    """The keys and values of a properties file. Raises ConfigError with the line's number. `twice` as in `read_texts`."""
    try:
        return javaproperties.parse(content, where, twice)
    except ValueError as error:
        raise ConfigError(str(error)) from None
