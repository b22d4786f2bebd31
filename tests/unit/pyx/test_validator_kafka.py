"""Kafka's dump tool reads what the log keeps of message sets."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.kafka_jars import jvm, kafka_classpath
from support.logs import Log
from support.messagesets import Message, pack_set, wrap

DUMP = ["org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--print-data-log", "--files"]


@pytest.mark.kafka
def test_the_dump_tool_reads_message_sets(tmp_path: Path) -> None:
    expected = []
    logs = [Log(tmp_path, message_magic=magic) for magic in (0, 1)]
    for magic, log in enumerate(logs):
        for codec in range(4):
            messages = [Message(i, b"k%d" % i, b"v%d" % codec, 5 + i if magic else -1) for i in range(3)]
            log.append(wrap(magic, messages, codec, 2, timestamp_ms=7) if codec else pack_set(magic, messages))
            time = ("CreateTime", 5) if magic else ("NoTimestampType", -1)
            expected += [(str(3 * codec + i), time[0], str(time[1] + i * magic), f"k{i}", f"v{codec}") for i in range(3)]
        log.stop()
    files = ",".join(str(log.files(".log")[0]) for log in logs)
    java = ["java", *jvm(), "-cp", kafka_classpath(), *DUMP, files]
    done = subprocess.run(java, capture_output=True, text=True, timeout=120, check=True)
    line = re.compile(r"\| offset: (\d+) (\w+): (-?\d+) .* isValid: true .* key: (\w+) payload: (\w+)")
    assert line.findall(done.stdout) == expected
