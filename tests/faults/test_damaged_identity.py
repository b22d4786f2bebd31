"""One flipped bit in each key and each value of `meta.properties`, which has no checksum, in each of two log folders: the
broker serves all that it served, or says one sentence that names the file; what the sentences say to do helps.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker import Broker
from penstock.broker.logs.folder import FolderError
from penstock.broker.server import ServerError
from support.asking import create, end_offset, metadata, produce

META = "meta.properties"
TOPICS = ("one", "two", "three", "four")
RECORDS = 3
KEYS = ("version", "broker.id", "cluster.id", "directory.id", "penstock.metadata.store", "penstock.metadata.store.id")
SENTENCES = 3  # A file that is written again lacks lines, of which the next starts speak.


def served(broker: Broker) -> bool:
    """Whether every topic is there with all its records."""
    answer = metadata(broker, *TOPICS)
    if any(partition.error_code for topic in answer.topics for partition in topic.partitions):
        return False
    return [end_offset(broker, topic) for topic in TOPICS] == [RECORDS] * len(TOPICS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Of two log folders, each with topics; it is stopped."""
    root = tmp_path_factory.mktemp("identity")
    made = Broker(root / "first", properties={"log.dirs": root / "second"})
    with made:
        assert [topic.error_code for topic in create(made, *TOPICS).topics] == [0] * len(TOPICS)
        assert [produce(made, topic, RECORDS) for topic in TOPICS] == [0] * len(TOPICS)
    for folder in ("first", "second"):
        assert sum((root / folder / f"{topic}-0").is_dir() for topic in TOPICS) == 2
        lines = (root / folder / META).read_text().splitlines()
        assert sorted(line.partition("=")[0] for line in lines) == sorted(KEYS)
    yield made
    made.close()


def flipped(text: str, key: str, part: str) -> str:
    """The text with one bit flipped in this key or in its value: a letter or digit becomes another one."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{key}=")]
    start = text.index(line) + (0 if part == "key" else len(key) + 1)
    at = next(at for at in range(start, len(text)) if text[at].isalnum())  # An id may begin with signs.
    bit = next(bit for bit in (1, 2, 4) if chr(ord(text[at]) ^ bit).isalnum())
    return text[:at] + chr(ord(text[at]) ^ bit) + text[at + 1 :]


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("folder", ["first", "second"])
def test_one_bit_of_an_identity(broker: Broker, caplog: pytest.LogCaptureFixture, folder: str, key: str, part: str) -> None:
    root = broker.data.parent
    meta = root / folder / META
    good = meta.read_text()
    try:
        meta.write_text(flipped(good, key, part))
        for _ in range(SENTENCES):
            sentence = started(broker, caplog, root)
            if not sentence:
                break
            assert META in sentence and str(root) in sentence, sentence
            follow(sentence, meta)
        assert not sentence or not started(broker, caplog, root)
    finally:
        broker.stop()
        meta.write_text(good)  # For the next of these tests.


def started(broker: Broker, caplog: pytest.LogCaptureFixture, root: Path) -> str:
    """Start and stop it; the sentence that it said where it didn't serve all. A start that is refused changes nothing."""
    before = kept(root)
    caplog.clear()
    try:
        broker.start()
    except (FolderError, ServerError) as refusal:
        assert kept(root) == before
        return str(refusal)
    whole = served(broker)
    broker.stop()
    if whole:
        return ""
    return next(record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)


def kept(root: Path) -> dict[Path, bytes]:
    """Every file but for the store and the lock, which names the process that looked."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith((".lock", "metadata.db")))
    return {path: path.read_bytes() for path in files}


def follow(sentence: str, meta: Path) -> None:
    """Do what a sentence says: put a line that it names into the file, or take one out; or write the file again."""
    lines = meta.read_text().splitlines()
    beside = meta.parent.parent / ("second" if meta.parent.name == "first" else "first") / META
    (cluster,) = [line for line in beside.read_text().splitlines() if line.startswith("cluster.id=")]
    if named := re.search(r"put `([\w.-]+)=([\w-]+)` into", sentence):
        lines = [line for line in lines if not line.startswith(f"{named[1]}=")] + [f"{named[1]}={named[2]}"]
    elif taken := re.search(r"take the line `([^`]+)` out of", sentence):
        lines.remove(taken[1])
    elif "put the same `cluster.id` into all of them" in sentence:
        lines = [line for line in lines if not line.startswith("cluster.id=")] + [cluster]
    else:
        assert "or write it again, `version=0`, `broker.id=1` and `cluster.id=`" in sentence, sentence
        lines = ["version=0", "broker.id=1", cluster]
    meta.write_text("".join(f"{line}\n" for line in lines))
