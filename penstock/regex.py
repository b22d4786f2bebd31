"""Regular expressions in RE2's syntax, matched in linear time: a client's pattern can't hold up the broker.

Python's `re` backtracks, so a pattern of a few characters can take it for years. Here a pattern becomes a
non-deterministic automaton of at most STATES_MAX states, and a name is read once, character by character, with the
set of states that it can be in; sets that were seen are remembered (a DFA that is built as it is needed, of bounded
size). `matches` asks for the whole name, as Kafka does for subscriptions (KIP-848) and filters.

Syntax: literals, `.`, classes with ranges, `\\d \\s \\w` and their negations, POSIX classes, `\\pL`-like classes of
general categories, groups (`(...)`, `(?:...)`, `(?P<name>...)`, `(?<name>...)`), flags `i m s U`, `|`,
`* + ? {n} {n,} {n,m}` and their lazy forms, `^ $ \\A \\z \\b \\B`, `\\Q...\\E` and escapes. As in RE2 there are no
back-references and no look-around, and repeats go up to 1000.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache

PATTERN_MAX = 4096  # characters
STATES_MAX = 2_000
REPEAT_MAX = 1_000
DEPTH_MAX = 100  # of nested groups
CACHE_MAX = 20_000  # states in the remembered steps of one expression, all together
COMPILED_MAX = 32  # expressions that are kept compiled


class RegexError(ValueError):
    """The text is no regular expression of this syntax; says why."""


Test = Callable[[str], bool]


class Look(Enum):
    """What an empty step asks of its surroundings."""

    ANYWHERE = auto()
    TEXT_START = auto()
    TEXT_END = auto()
    LINE_START = auto()
    LINE_END = auto()
    WORD = auto()
    NOT_WORD = auto()


@dataclass(slots=True)
class _State:
    """A state: steps that read nothing, and at most one that reads a character."""

    empty: list[tuple[Look, int]] = field(default_factory=list)
    test: Test | None = None
    then: int = -1


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


# --- syntax tree ----------------------------------------------------------------------------------------------
@dataclass(slots=True, frozen=True)
class _Char:
    test: Test


@dataclass(slots=True, frozen=True)
class _Assert:
    look: Look


@dataclass(slots=True, frozen=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(slots=True, frozen=True)
class _Choice:
    parts: tuple[_Node, ...]


@dataclass(slots=True, frozen=True)
class _Repeat:
    part: _Node
    least: int
    most: int  # -1 = any number


_Node = _Char | _Assert | _Sequence | _Choice | _Repeat

_PERL: dict[str, Test] = {
    "d": lambda c: "0" <= c <= "9",
    "s": lambda c: c in "\t\n\f\r ",
    "w": _is_word,
}
_POSIX: dict[str, Test] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": str.isascii,
    "blank": lambda c: c in "\t ",
    "cntrl": lambda c: c < " " or c == "\x7f",
    "digit": lambda c: "0" <= c <= "9",
    "graph": lambda c: "!" <= c <= "~",
    "lower": lambda c: "a" <= c <= "z",
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": lambda c: c in "\t\n\v\f\r ",
    "upper": lambda c: "A" <= c <= "Z",
    "word": _is_word,
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_ESCAPED = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_CATEGORIES = {"L", "M", "N", "P", "S", "Z", "C"}


def _negated(test: Test) -> Test:
    return lambda c: not test(c)


def _literal(character: str, fold: bool) -> Test:
    if not fold:
        return lambda c: c == character
    folded = character.casefold()
    return lambda c: c.casefold() == folded


def _between(low: str, high: str, fold: bool) -> Test:
    if not fold:
        return lambda c: low <= c <= high
    return lambda c: low <= c.lower() <= high or low <= c.upper() <= high


@dataclass(slots=True)
class _Flags:
    fold: bool = False
    lines: bool = False
    dot_all: bool = False

    def copy(self) -> _Flags:
        return _Flags(self.fold, self.lines, self.dot_all)


class _Parser:
    """Recursive descent over the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.flags = _Flags()

    def parse(self) -> _Node:
        node = self._choice()
        if self.at < len(self.text):
            raise RegexError("unexpected )")
        return node

    def _peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _take(self, what: str) -> bool:
        if self.text.startswith(what, self.at):
            self.at += len(what)
            return True
        return False

    def _next(self, why: str) -> str:
        if self.at >= len(self.text):
            raise RegexError(why)
        self.at += 1
        return self.text[self.at - 1]

    def _choice(self) -> _Node:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self.at < len(self.text) and self._peek() not in "|)":
            if self._take("\\Q"):
                parts += self._quoted()
                if parts:
                    parts.append(self._repeated(parts.pop()))
                continue
            atom = self._atom()
            if atom is not None:
                parts.append(self._repeated(atom))
        return _Sequence(tuple(parts))

    def _quoted(self) -> list[_Node]:
        end = self.text.find("\\E", self.at)
        literal = self.text[self.at :] if end < 0 else self.text[self.at : end]
        self.at = len(self.text) if end < 0 else end + 2
        return [_Char(_literal(character, self.flags.fold)) for character in literal]

    def _repeated(self, atom: _Node) -> _Node:
        count = 0
        while True:
            bounds = self._bounds()
            if bounds is None:
                return atom
            count += 1
            if count > 1:
                raise RegexError("invalid nested repetition operator")
            self._take("?")  # Lazy or not: the same names match.
            atom = _Repeat(atom, *bounds)

    def _bounds(self) -> tuple[int, int] | None:
        for sign, bounds in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if self._peek() != "{":
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(low) or (high and not _is_number(high)):
            return None  # As in RE2, a brace that begins no repeat is itself.
        self.at = end + 1
        least = int(low)
        most = least if not comma else int(high) if high else -1
        if max(least, most) > REPEAT_MAX or (most >= 0 and least > most):
            raise RegexError("invalid repeat count")
        return least, most

    def _atom(self) -> _Node | None:
        character = self._next("missing argument")
        if character == "(":
            return self._group()
        if character == "[":
            return _Char(self._class())
        if character == ".":
            return _Char(_anything if self.flags.dot_all else _no_line_end)
        if character == "^":
            return _Assert(Look.LINE_START if self.flags.lines else Look.TEXT_START)
        if character == "$":
            return _Assert(Look.LINE_END if self.flags.lines else Look.TEXT_END)
        if character in "*+?":
            raise RegexError("missing argument to repetition operator")
        if character == "\\":
            return self._escape()
        return _Char(_literal(character, self.flags.fold))

    def _group(self) -> _Node | None:
        outer = self.flags.copy()
        if self._take("?"):
            if self._take("P<") or (self._peek() == "<" and self.text[self.at + 1 : self.at + 2] not in "=!"):
                self._take("<")
                end = self.text.find(">", self.at)
                if end < 0 or not self.text[self.at : end].isidentifier():
                    raise RegexError("invalid named capture")
                self.at = end + 1
            elif not self._read_flags():
                return None  # Flags alone hold to the end of the group around.
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise RegexError("expression nests too deeply")
        node = self._choice()
        self.depth -= 1
        if not self._take(")"):
            raise RegexError("missing closing )")
        self.flags = outer
        return node

    def _read_flags(self) -> bool:
        """Read `i`, `m-s:` and the like; whether a group follows."""
        value = True
        while True:
            letter = self._next("missing closing )")
            if letter == "i":
                self.flags.fold = value
            elif letter == "m":
                self.flags.lines = value
            elif letter == "s":
                self.flags.dot_all = value
            elif letter == "-" and value:
                value = False
            elif letter in ":)":
                return letter == ":"
            elif letter != "U":
                raise RegexError("invalid or unsupported Perl syntax")

    def _escape(self) -> _Node:
        character = self._next("trailing \\ at end of expression")
        looks = {"A": Look.TEXT_START, "z": Look.TEXT_END, "b": Look.WORD, "B": Look.NOT_WORD}
        if character in looks:
            return _Assert(looks[character])
        test = self._escaped_class(character)
        return _Char(test if test is not None else _literal(self._escaped(character), self.flags.fold))

    def _escaped_class(self, character: str) -> Test | None:
        if character.lower() in _PERL:
            test = _PERL[character.lower()]
            return test if character.islower() else _negated(test)
        if character in "pP":
            return self._category(character == "P")
        return None

    def _category(self, negated: bool) -> Test:
        name = self._next("invalid character class range")
        if name == "{":
            end = self.text.find("}", self.at)
            if end < 0:
                raise RegexError("invalid character class range")
            name, self.at = self.text[self.at : end], end + 1
        if name.startswith("^"):
            name, negated = name[1:], not negated
        if name[:1] not in _CATEGORIES or len(name) > 2:
            raise RegexError("invalid character class range")

        def test(c: str) -> bool:
            return unicodedata.category(c).startswith(name) is not negated

        return test

    def _escaped(self, character: str) -> str:
        if character in _ESCAPED:
            return _ESCAPED[character]
        if character == "x":
            return self._hex()
        if character in "01234567":
            digits = character
            while len(digits) < 3 and self._peek() and self._peek() in "01234567":
                digits += self._next("")
            if digits != "0" and len(digits) == 1:
                raise RegexError("invalid escape sequence")  # A back-reference.
            return chr(int(digits, 8))
        if character.isascii() and not character.isalnum():
            return character
        raise RegexError("invalid escape sequence")

    def _hex(self) -> str:
        if self._take("{"):
            end = self.text.find("}", self.at)
            digits, self.at = self.text[self.at : max(end, self.at)], end + 1
        else:
            digits, self.at = self.text[self.at : self.at + 2], self.at + 2
        try:
            return chr(int(digits, 16)) if digits.isalnum() else ""[0]
        except (ValueError, IndexError, OverflowError):
            raise RegexError("invalid escape sequence") from None

    def _class(self) -> Test:
        negated = self._take("^")
        tests: list[Test] = []
        first = True
        while first or self._peek() != "]":
            first = False
            tests.append(self._class_item())
        self.at += 1
        fixed = tuple(tests)

        def test(c: str) -> bool:
            return any(one(c) for one in fixed) is not negated

        return test

    def _class_item(self) -> Test:
        if self._take("[:"):
            end = self.text.find(":]", self.at)
            name, self.at = self.text[self.at : max(end, self.at)], end + 2
            inverted = name.startswith("^")
            test = _POSIX.get(name.lstrip("^")) if end >= 0 else None
            if test is None:
                raise RegexError("invalid character class range")
            return _negated(test) if inverted else test
        low = self._next("missing closing ]")
        if low == "\\":
            escaped = self._next("trailing \\ at end of expression")
            test = self._escaped_class(escaped)
            if test is not None:
                return test
            low = self._escaped(escaped)
        if self._peek() != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return _literal(low, self.flags.fold)
        self.at += 1
        high = self._next("missing closing ]")
        if high == "\\":
            high = self._escaped(self._next("trailing \\ at end of expression"))
        if high < low:
            raise RegexError("invalid character class range")
        return _between(low, high, self.flags.fold)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


def _anything(c: str) -> bool:
    return True


def _no_line_end(c: str) -> bool:
    return c != "\n"


# --- automaton ------------------------------------------------------------------------------------------------
class _Builder:
    """From the tree to states; each node gets the number of the state that comes after it."""

    def __init__(self) -> None:
        self.states: list[_State] = []

    def state(self) -> int:
        if len(self.states) >= STATES_MAX:
            raise RegexError("expression too large")
        self.states.append(_State())
        return len(self.states) - 1

    def add(self, node: _Node, then: int) -> int:
        """The state in which `node` begins."""
        if isinstance(node, _Char):
            at = self.state()
            self.states[at].test, self.states[at].then = node.test, then
            return at
        if isinstance(node, _Assert):
            at = self.state()
            self.states[at].empty.append((node.look, then))
            return at
        if isinstance(node, _Sequence):
            for part in reversed(node.parts):
                then = self.add(part, then)
            return then
        if isinstance(node, _Choice):
            at = self.state()
            for part in node.parts:
                self.states[at].empty.append((Look.ANYWHERE, self.add(part, then)))
            return at
        return self._repeat(node, then)

    def _repeat(self, node: _Repeat, then: int) -> int:
        if node.most < 0:
            loop = self.state()
            begin = self.add(node.part, loop)
            self.states[loop].empty += [(Look.ANYWHERE, begin), (Look.ANYWHERE, then)]
            then = loop
        for _ in range(node.most - node.least if node.most >= 0 else 0):
            at = self.state()
            self.states[at].empty += [(Look.ANYWHERE, self.add(node.part, then)), (Look.ANYWHERE, then)]
            then = at
        for _ in range(node.least):
            then = self.add(node.part, then)
        return then


class Regex:
    """A compiled expression; `pattern` is its text."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        if len(pattern) > PATTERN_MAX:
            raise RegexError(f"longer than {PATTERN_MAX} characters")
        builder = _Builder()
        end = builder.state()
        begin = builder.add(_Parser(pattern).parse(), end)
        self._states = builder.states
        self._begin, self._end = begin, end
        self._steps: dict[tuple[frozenset[int], str, str, bool], frozenset[int]] = {}
        self._kept = 0  # states in `_steps`

    def matches(self, text: str) -> bool:
        """Whether the whole text is of this form."""
        now: frozenset[int] = frozenset((self._begin,))
        before = ""
        for character in text:
            now = self._step(now, before, character, False)
            if not now:
                return False
            before = character
        return self._end in self._step(now, before, "", True)

    def _step(self, now: frozenset[int], before: str, character: str, at_end: bool) -> frozenset[int]:
        """The states after a character; at the end those that can be reached by reading nothing."""
        # Only its being a word character or a line's end matters of the character before.
        key = (now, before if before in ("", "\n") else "w" if _is_word(before) else "-", character, at_end)
        known = self._steps.get(key)
        if known is None:
            reached = self._reached(now, before, character)
            known = reached if at_end else self._read(reached, character)
            self._kept += len(known) + 1
            if self._kept > CACHE_MAX:
                self._steps.clear()
                self._kept = len(known) + 1
            self._steps[key] = known
        return known

    def _read(self, reached: frozenset[int], character: str) -> frozenset[int]:
        states = (self._states[number] for number in reached)
        return frozenset(state.then for state in states if state.test is not None and state.test(character))

    def _reached(self, now: frozenset[int], before: str, after: str) -> frozenset[int]:
        word = bool(before and _is_word(before)) is not bool(after and _is_word(after))
        holds = {
            Look.ANYWHERE: True,
            Look.TEXT_START: not before,
            Look.TEXT_END: not after,
            Look.LINE_START: before in ("", "\n"),
            Look.LINE_END: after in ("", "\n"),
            Look.WORD: word,
            Look.NOT_WORD: not word,
        }
        seen = set(now)
        todo = list(now)
        while todo:
            for look, then in self._states[todo.pop()].empty:
                if holds[look] and then not in seen:
                    seen.add(then)
                    todo.append(then)
        return frozenset(seen)


@lru_cache(COMPILED_MAX)
def compile_regex(pattern: str) -> Regex:
    """The expression of that text. Raises RegexError."""
    return Regex(pattern)
