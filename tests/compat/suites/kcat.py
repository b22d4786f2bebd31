"""kcat of the distribution (librdkafka 2.0.2): what an old and widely used client does."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

from suite import Check, Outcome, Run, each, expect, tool

NEEDS = "kcat (Debian package)"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Versions whose clients can't ask what the broker knows: 0.8 and 0.9 write messages of format 0, 0.10.0 of format 1.
OLD = ("0.8.2", "0.9.0", "0.10.0")
LINES = [f"line {number} of many" for number in range(3000)]
LIMIT_S = 60


def kcat(run: Run, *words: str, stdin: str = "") -> str:
    """Standard output of one call; it must succeed."""
    command = [tool("kcat"), "-b", run.bootstrap, *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    expect(done.returncode == 0, command, done.stderr)
    return done.stdout


def produce(run: Run, topic: str, lines: list[str], *words: str) -> None:
    """Lines to partition 0."""
    kcat(run, "-P", "-t", topic, "-p", "0", *words, stdin="".join(f"{line}\n" for line in lines))


def consume(run: Run, topic: str, *words: str, start: str = "beginning") -> list[str]:
    """Partition 0 from an offset to its end, as lines."""
    return kcat(run, "-C", "-t", topic, "-p", "0", "-o", start, "-e", "-q", *words).splitlines()


def fresh(hint: str) -> str:
    """A topic that nobody used."""
    return f"kcat-{hint}-{uuid4().hex[:8]}"


def lists_brokers_and_topics(run: Run) -> None:
    topic = fresh("list")
    produce(run, topic, ["x"])
    said = kcat(run, "-L", "-t", topic)
    expect(f'topic "{topic}"' in said and re.search(r"broker \d+ at ", said) is not None, said)


def round_trip(run: Run, codec: str) -> None:
    topic = fresh(codec)
    produce(run, topic, LINES, "-z", codec)
    expect(consume(run, topic) == LINES, "what was read isn't what was written")


def without_api_versions(run: Run, version: str) -> None:
    topic, old = fresh("old"), ("-X", "api.version.request=false", "-X", f"broker.version.fallback={version}")
    produce(run, topic, LINES, *old)
    expect(consume(run, topic, *old) == LINES, "what was read isn't what was written")


def keys_headers_and_timestamps(run: Run) -> None:
    topic = fresh("headers")
    produce(run, topic, ["k:v"], "-K:", "-H", "a=1", "-H", "b=2")
    (said,) = consume(run, topic, "-f", "%k %s %h %o %T\\n")
    expect(re.fullmatch(r"k v a=1,b=2 0 \d{13}", said) is not None, said)


def a_null_value(run: Run) -> None:
    topic = fresh("null")
    produce(run, topic, ["k:"], "-K:", "-Z")
    expect(consume(run, topic, "-f", "%k %S\\n") == ["k -1"], "the value is not null")


def offsets(run: Run) -> None:
    topic = fresh("offsets")
    produce(run, topic, LINES)
    expect(consume(run, topic, start="-3") == LINES[-3:], "the last three")
    expect(consume(run, topic, "-c", "2", start="100") == LINES[100:102], "two from an offset")
    for time, offset in ((-1, len(LINES)), (-2, 0), (1, 0)):
        said = kcat(run, "-Q", "-t", f"{topic}:0:{time}")
        expect(f"offset {offset}" in said, said)


def a_group_reads_once(run: Run) -> None:
    topic, group = fresh("group"), fresh("group")
    produce(run, topic, LINES)
    words = ("-G", group, "-X", "auto.offset.reset=earliest", "-q")
    expect(sorted(kcat(run, *words, "-c", str(len(LINES)), topic).splitlines()) == sorted(LINES), "the first member")
    expect(kcat(run, *words, "-e", topic) == "", "a second one reads something again")


def acknowledgements(run: Run) -> None:
    topic = fresh("acks")
    for words in (("enable.idempotence=true",), ("acks=all",), ("acks=1",)):
        produce(run, topic, LINES, "-X", *words)
    expect(consume(run, topic) == LINES * 3, "each line three times")


def a_large_message(run: Run) -> None:
    topic, large = fresh("large"), "x" * 900_000
    produce(run, topic, [large])
    expect(consume(run, topic) == [large], "it changed")


CHECKS: dict[str, Check] = {
    "lists_brokers_and_topics": lists_brokers_and_topics,
    **{f"round_trip_{codec}": partial(round_trip, codec=codec) for codec in CODECS},
    **{f"without_api_versions_{version}": partial(without_api_versions, version=version) for version in OLD},
    "keys_headers_and_timestamps": keys_headers_and_timestamps,
    "a_null_value": a_null_value,
    "offsets": offsets,
    "a_group_reads_once": a_group_reads_once,
    "acknowledgements": acknowledgements,
    "a_large_message": a_large_message,
}


def run(run: Run) -> Iterator[Outcome]:
    """Outcomes of all checks, in order."""
    yield from each(run, CHECKS)
