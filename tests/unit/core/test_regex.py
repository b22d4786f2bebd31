"""Expressions of RE2's syntax: what they match, what is refused, and that no pattern takes long."""

from __future__ import annotations

import random
import re

import pytest

from penstock.regex import CACHE_MAX, PATTERN_MAX, Regex, RegexError, compile_regex


@pytest.mark.parametrize(
    ("pattern", "text", "whole"),
    [
        ("topic-.*", "topic-1", True),
        ("topic", "topic-1", False),
        ("foo|bar", "bar", True),
        ("(?i)TOPIC", "tOpIc", True),
        ("a(?i)b|c", "C", True),
        ("(?:a(?i)b)c", "aBC", False),
        (r"\Qa.b\E+", "a.bb", True),
        ("[[:alpha:]_]+", "ab_", True),
        ("[[:^digit:]]", "1", False),
        (r"\p{Lu}\pL\P{Nd}", "Aß-", True),
        ("a{,2}", "a{,2}", True),
        ("(?P<n>a)(?<m>b)", "ab", True),
        ("^a$", "a", True),
        ("a^b", "a^b", False),
        (r"[^\d]+", "abc", True),
        (r"\x41\x{42}\103", "ABC", True),
        ("[]a]+", "]a", True),
        (r"[a\-z]+", "a-z", True),
        ("", "", True),
        ("(?s).*", "a\nb", True),
        (".*", "a\nb", False),
        (r"(?m)a$\n^b", "a\nb", True),
        (r"\bfoo\b.*", "foo-bar", True),
        (r"foo\Bbar", "foobar", True),
        ("x{2,3}?", "xxx", True),
        ("x{2}", "xxx", False),
    ],
)
def test_whole_names(pattern: str, text: str, whole: bool) -> None:
    assert compile_regex(pattern).matches(text) is whole


@pytest.mark.parametrize(
    "pattern",
    [
        "a**",
        "(",
        ")",
        "[a",
        "a{2,1}",
        "a{1001}",
        "(?=a)",
        "(?<=a)",
        r"\1",
        r"\8",
        r"\x{110000}",
        "*a",
        "\\",
        "[[:foo:]]",
        "((a{100}){100})",
        "(?P<1>a)",
        "[b-a]",
        "(?z)",
        "(" * 200,
        "a" * (PATTERN_MAX + 1),
        r"\p{Greek}",
    ],
)
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(RegexError):
        Regex(pattern)


def test_patterns_that_backtrack_for_ages_are_read_in_one_pass() -> None:
    name = "a" * 249
    assert not Regex("(a*)*b").matches(name)
    assert not Regex("(a|aa)+b").matches(name)
    assert Regex("(a?){100}a{100,200}").matches("a" * 150)
    many = Regex("(.*a.*b.*c.*)|(x|y|z.*){30}")
    assert sum(many.matches(f"topic-{number}-abc") for number in range(2_000)) == 2_000
    assert many._kept <= CACHE_MAX


def _pattern(chance: random.Random, depth: int = 0) -> str:
    kind = chance.random()
    if depth > 3 or kind < 0.35:
        return chance.choice("abc.")
    if kind < 0.5:
        return _pattern(chance, depth + 1) + _pattern(chance, depth + 1)
    if kind < 0.6:
        return f"({_pattern(chance, depth + 1)}|{_pattern(chance, depth + 1)})"
    if kind < 0.7:
        return f"({_pattern(chance, depth + 1)}){chance.choice(['*', '+', '?', '{2}', '{1,3}', '{0,2}', '*?', '{2,}'])}"
    if kind < 0.85:
        return chance.choice(["[ab]", "[^a]", "[a-c]", r"\w", r"\d", r"\W", "^", r"\b"])
    return f"(?:{_pattern(chance, depth + 1)}{_pattern(chance, depth + 1)})"


def test_agrees_with_pythons_own_where_both_mean_the_same() -> None:
    chance = random.Random(5)
    for _ in range(600):
        pattern = _pattern(chance)
        ours, theirs = Regex(pattern), re.compile(pattern, re.ASCII)
        for _ in range(6):
            text = "".join(chance.choice("abc-") for _ in range(chance.randrange(7)))
            assert ours.matches(text) is (theirs.fullmatch(text) is not None), (pattern, text)
