"""The answer to a follower's fetch, read while it comes. For tests: the fetcher threads read without Python."""

from typing import NamedTuple

class Part(NamedTuple):
    """A partition of an answer."""

    topic_id: bytes
    partition: int
    error: int
    high_watermark: int
    log_start: int
    records: bytes
    diverging: tuple[int, int] | None  # the leader's largest epoch up to the one that was asked with, and where it ends
    removed_below: int  # of the leader's log, if it is past the fetch's offset; else 0

class Answer(NamedTuple):
    """A Fetch answer of version 17."""

    correlation_id: int
    error: int
    session_id: int
    parts: list[Part]

def read_answer(answer: bytes, *, piece_bytes: int, records_max: int) -> Answer:
    """Read an answer, its size in front, that comes in pieces of so many bytes.

    Raises EOFError if it isn't whole, ValueError if no answer looks like that, or a partition has more than records_max bytes.
    """
