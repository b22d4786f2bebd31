"""librdkafka's own tests in C, those that need a broker; built from the source that its npm package carries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from suite import FAIL, PASS, SKIP, CheckError, Outcome, Run, call, npm_package

from support.kafka_jars import kafka_classpath

NEEDS = "npm, gcc, g++, make, java, headers of OpenSSL, zlib and libcurl (libssl-dev zlib1g-dev libcurl4-openssl-dev)"
VERSION = "1.10.1"
# They want several brokers, SASL or TLS, or a cluster that librdkafka starts by itself; 0028, 0047 and 0079 are
# known issues of the suite; 0038 and 0055 measure speed; 0118 races with itself, with any broker.
LEFT_OUT = {"0028", "0038", "0047", "0055", "0079", "0097", "0101", "0118", "0126", "0135", "0142", "8000", "8001"}
# 017x to 019x, which we don't have.
SHARE_GROUPS = re.compile(r"_share_consumer")
TEST_LIMIT_S = 180
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
VERDICT = re.compile(r"Test (\d{4}_\w+) (PASSED|FAILED|SKIPPED)")
BEGUN = re.compile(r"Running test (\d{4}_\w+)")
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-configs.sh": "org.apache.kafka.tools.ConfigCommand",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-run-class.sh": "",
}


def built(cache: Path) -> Path:
    """The folder of librdkafka's source with its test program in `tests/`."""
    source = npm_package(cache, "@confluentinc/kafka-javascript", VERSION) / "deps" / "librdkafka"
    if not (source / "tests" / "test-runner").exists():
        (source / "configure").chmod(0o755)
        call(["bash", "./configure", "--disable-gssapi", "--disable-syslog"], source)
        call(["make", "-j2", "libs"], source)
        call(["make", "-j2", "-C", "tests", "build"], source)
    return source


def names(source: Path) -> list[str]:
    """Numbers of the tests that need a broker, out of the program's table."""
    text = (source / "tests" / "test.c").read_text()
    table = re.search(r"^struct test tests\[\][^\n]*\n(.*?)^};", text, re.DOTALL | re.MULTILINE)
    assert table is not None, "test.c has no table of tests"
    found = []
    for entry in table[1].split("_TEST(")[1:]:
        name = re.match(r"(\d{4})_\w+", entry)
        if name is None or "TEST_F_LOCAL" in entry or name[1] in LEFT_OUT:
            continue
        if not name[0].endswith("_mock") and not SHARE_GROUPS.search(name[0]):
            found.append(name[0])
    return found


def _scripts(folder: Path) -> None:
    """Some tests call scripts of Kafka's distribution: here they are, over the same programs."""
    (folder / "bin").mkdir(parents=True)
    java = f'exec java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "{kafka_classpath()}"'
    for name, program in TOOLS.items():
        path = folder / "bin" / name
        path.write_text(f'#!/bin/sh\n{java} {program} "$@"\n')
        path.chmod(0o755)


def _test(run: Run, source: Path, number: str) -> list[Outcome]:
    """All tests of one number, in a process of their own: a crash takes no other with it."""
    configuration = run.work / "test.conf"
    changes = {
        "TESTS": number,
        "RDKAFKA_TEST_CONF": str(configuration),
        "LD_LIBRARY_PATH": f"{source / 'src'}:{source / 'src-cpp'}",
        "KAFKA_PATH": str(run.work / "kafka"),
        "BROKERS": run.bootstrap,
        "TEST_KAFKA_VERSION": "4.2.0",
    }
    if run.group_protocol != "classic":
        changes["TEST_CONSUMER_GROUP_PROTOCOL"] = run.group_protocol
    tests = source / "tests"
    try:
        text = run.done(number, [tests / "test-runner", "-L", "-Q", "-p1"], TEST_LIMIT_S, tests, **changes)
    except CheckError:
        text = (run.work / f"{number}.out").read_text(errors="replace")
    text = COLOURS.sub("", text)
    found = dict.fromkeys(BEGUN.findall(text), FAIL)
    for name, verdict in VERDICT.findall(text):
        found[name] = {"PASSED": PASS, "SKIPPED": SKIP}.get(verdict, FAIL)
    return sorted((name, outcome) for name, outcome in found.items() if not name.endswith("_mock"))


def run(run: Run) -> Iterator[Outcome]:
    """Outcomes as the tests end, several at a time."""
    source = built(run.cache)
    _scripts(run.work / "kafka")
    (run.work / "test.conf").write_text(f"bootstrap.servers={run.bootstrap}\ntest.topic.random=true\n")
    wanted = sorted({name[:4] for name in names(source) if run.wants(name)})
    with ThreadPoolExecutor(run.jobs) as pool:
        for one in as_completed([pool.submit(_test, run, source, number) for number in wanted]):
            yield from one.result()
    for left in (source / "tests").glob("stats_*.json"):
        left.unlink()
