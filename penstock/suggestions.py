"""The name that a misspelt one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of these words that is most like another word; None: none of them is."""
    return next(iter(difflib.get_close_matches(word, list(words), n=1)), None)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: a question for the nearest of these words; "" if none of them is near."""
    near = nearest(word, words)
    return "" if near is None else f"; did you mean `{near}`?"
