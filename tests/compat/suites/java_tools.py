"""Kafka's own programs of 4.4: topics, configs, groups, transactions, quotas, ACLs, verifiable clients, segment dumps."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

from suite import Check, CheckError, Outcome, Run, each, expect, tool

from support.kafka_jars import jvm, kafka_classpath

NEEDS = "java, mvn"
TOOLS = "org.apache.kafka.tools"
TOPICS, GROUPS = f"{TOOLS}.TopicCommand", f"{TOOLS}.consumer.group.ConsumerGroupCommand"
CONFIGS, ACLS, OFFSETS = f"{TOOLS}.ConfigCommand", f"{TOOLS}.AclCommand", f"{TOOLS}.GetOffsetShell"
PRODUCE, CONSUME = f"{TOOLS}.ConsoleProducer", f"{TOOLS}.consumer.ConsoleConsumer"
TRANSACTIONS, COPIER = f"{TOOLS}.TransactionsCommand", f"{TOOLS}.TransactionalMessageCopier"
DUMP = f"{TOOLS}.DumpLogSegments"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LIMIT_S = 120
MANY = 3000


def command(program: str, *words: str) -> list[str]:
    """The command line of a program."""
    return [tool("java"), *jvm(), "-cp", kafka_classpath(), program, *words]


def java(run: Run, program: str, *words: str, stdin: str = "", fails: bool = False) -> str:
    """What a program said, both streams; it must succeed, or with `fails` must not."""
    told = [] if "--bootstrap-server" in words or program in (COPIER, DUMP) else ["--bootstrap-server", run.bootstrap]
    done = subprocess.run(
        command(program, *told, *words), input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    said = done.stdout + done.stderr
    expect((done.returncode != 0) == fails, program, words, said[-1500:])
    return said


def fresh(hint: str) -> str:
    """A name that nobody used."""
    return f"tools-{hint}-{uuid4().hex[:8]}"


def create(run: Run, hint: str, partitions: int = 1, *words: str) -> str:
    """A new topic."""
    topic = fresh(hint)
    sized = ("--partitions", str(partitions), "--replication-factor", str(run.copies))
    java(run, TOPICS, "--create", "--topic", topic, *sized, *words)
    return topic


def fill(run: Run, topic: str, count: int = MANY, *words: str) -> None:
    """Records `0`, `1`, ... with acks=all."""
    java(run, PRODUCE, "--topic", topic, *words, stdin="".join(f"{number}\n" for number in range(count)))


def end(run: Run, topic: str, when: str = "latest") -> int:
    """The sum of a topic's offsets."""
    said = java(run, OFFSETS, "--topic", topic, "--time", when)
    return sum(int(number) for number in re.findall(rf"^{re.escape(topic)}:\d+:(\d+)$", said, re.MULTILINE))


def topics(run: Run) -> None:
    topic = create(run, "topics", 3, "--config", "retention.ms=3600000")
    said = java(run, TOPICS, "--describe", "--topic", topic)
    expect(len(re.findall(r"Leader: [123]\b", said)) == 3 and "retention.ms=3600000" in said, said)
    expect("already exists" in java(run, TOPICS, "--create", "--topic", topic, fails=True), "created twice")
    java(run, TOPICS, "--create", "--topic", "bad name", fails=True)
    said = java(run, TOPICS, "--create", "--topic", fresh("x"), "--replication-factor", "9", fails=True)
    expect("eplication" in said, said)
    java(run, TOPICS, "--alter", "--topic", topic, "--partitions", "5")
    expect("PartitionCount: 5" in java(run, TOPICS, "--describe", "--topic", topic), "not altered")
    java(run, TOPICS, "--delete", "--topic", topic)
    expect(topic not in java(run, TOPICS, "--list").split(), "not deleted")


def configs(run: Run) -> None:
    topic = create(run, "configs")
    entity = ("--entity-type", "topics", "--entity-name", topic)
    java(run, CONFIGS, *entity, "--alter", "--add-config", "max.message.bytes=100000,cleanup.policy=compact")
    expect("max.message.bytes=100000" in java(run, CONFIGS, *entity, "--describe"), "not set")
    java(run, CONFIGS, *entity, "--alter", "--delete-config", "max.message.bytes")
    expect("max.message.bytes" not in java(run, CONFIGS, *entity, "--describe"), "not unset")
    said = java(run, CONFIGS, "--entity-type", "brokers", "--entity-name", "1", "--all", "--describe")
    expect("log.retention" in said, said)


def quotas(run: Run) -> None:
    entity = ("--entity-type", "clients", "--entity-name", fresh("client"))
    java(run, CONFIGS, *entity, "--alter", "--add-config", "producer_byte_rate=1000000")
    expect("producer_byte_rate=1000000" in java(run, CONFIGS, *entity, "--describe"), "not set")
    java(run, CONFIGS, *entity, "--alter", "--delete-config", "producer_byte_rate")


def acls(run: Run) -> None:
    topic = fresh("acl")
    given = ("--allow-principal", "User:one", "--operation", "Read", "--topic", topic, "--force")
    for asked in (("--add", *given), ("--remove", *given), ("--list", "--topic", topic)):
        said = java(run, ACLS, *asked, fails=True)
        expect("SecurityDisabledException" in said, said)


def round_trip(run: Run, codec: str) -> None:
    topic = create(run, codec, 2)
    fill(run, topic, MANY, "--compression-codec", codec)
    wanted = ("--max-messages", str(MANY), "--timeout-ms", "30000")
    said = java(run, CONSUME, "--topic", topic, "--from-beginning", "--group", topic, *wanted)
    got = [int(line) for line in said.splitlines() if line.isdigit()]
    expect(sorted(got) == list(range(MANY)), len(got))


def a_record_too_large(run: Run) -> None:
    topic = create(run, "large", 1, "--config", "max.message.bytes=2000")
    said = java(run, PRODUCE, "--topic", topic, "--sync", stdin="x" * 50_000 + "\n", fails=True)
    expect("RecordTooLarge" in said and end(run, topic) == 0, said)


def verifiable_clients(run: Run, protocol: str) -> None:
    topic = create(run, "verifiable", 3)
    said = java(run, f"{TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", str(MANY), "--acks", "-1")
    expect(said.count("producer_send_success") == MANY, said[-500:])
    consumer = [f"{TOOLS}.VerifiableConsumer", "--bootstrap-server", run.bootstrap, "--topic", topic]
    consumer += ["--group-id", topic, "--group-protocol", protocol, "--reset-policy", "earliest"]
    consumer += ["--max-messages", str(MANY)]
    static = ["--group-instance-id", "one"] if protocol == "classic" else []
    done = subprocess.run(command(*consumer, *static), capture_output=True, text=True, timeout=LIMIT_S, check=True)
    said = done.stdout
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    expect(sum(one["count"] for one in events if one["name"] == "records_consumed") >= MANY, said[-500:])
    expect(any(one["name"] == "offsets_committed" and one["success"] for one in events), said[-500:])


def groups(run: Run) -> None:
    topic, group = create(run, "groups", 2), fresh("group")
    fill(run, topic)
    wanted = ("--max-messages", str(MANY), "--timeout-ms", "30000")
    java(run, CONSUME, "--topic", topic, "--group", group, "--from-beginning", *wanted)
    expect(group in java(run, GROUPS, "--list").split(), "not listed")
    expect("Empty" in java(run, GROUPS, "--describe", "--state", "--group", group), "not empty")
    java(run, GROUPS, "--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute")
    said = java(run, GROUPS, "--describe", "--group", group)
    lags = [int(line.split()[5]) for line in said.splitlines() if line.startswith(group)]
    expect(sum(lags) == MANY, said)
    java(run, GROUPS, "--group", group, "--topic", topic, "--delete-offsets")
    java(run, GROUPS, "--group", group, "--delete")
    expect(group not in java(run, GROUPS, "--list").split(), "not deleted")


def delete_records(run: Run) -> None:
    topic = create(run, "deleted")
    fill(run, topic, 100)
    path = run.work / "delete.json"
    path.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 40}]}))
    java(run, f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(path))
    expect((end(run, topic, "earliest"), end(run, topic)) == (40, 100), "not deleted")


def moves_nothing_elsewhere(run: Run) -> None:
    """Programs of clusters: elections and reassignments to where the partitions are, log directories."""
    topic = create(run, "moved", 2)
    java(run, f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--topic", topic, "--partition", "0")
    plan = run.work / "plan.json"
    placed = re.findall(r"Partition: (\d+).*Replicas: ([\d,]+)", java(run, TOPICS, "--describe", "--topic", topic))
    replicas = {int(number): [int(broker) for broker in brokers.split(",")] for number, brokers in placed}
    parts = [
        {"topic": topic, "partition": number, "replicas": brokers, "log_dirs": ["any"] * len(brokers)}
        for number, brokers in replicas.items()
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": parts}))
    assign = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    java(run, assign, "--reassignment-json-file", str(plan), "--execute")
    expect("complete" in java(run, assign, "--reassignment-json-file", str(plan), "--verify"), "not complete")
    said = java(run, f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
    expect(f'"partition":"{topic}-0"' in said, said)


def transactions(run: Run) -> None:
    source, target, name = create(run, "source"), create(run, "target"), fresh("tx")
    fill(run, source, 1000)
    copy = ["--broker-list", run.bootstrap, "--input-topic", source, "--input-partition", "0", "--output-topic", target]
    copy += ("--max-messages", "1000", "--consumer-group", name, "--transaction-size", "100")
    java(run, COPIER, *copy, "--transactional-id", name, "--enable-random-aborts")
    committed = ("--isolation-level", "read_committed", "--timeout-ms", "10000")
    said = java(run, CONSUME, "--topic", target, "--from-beginning", "--max-messages", "1000", *committed)
    got = [int(line) for line in said.splitlines() if line.isdigit()]
    expect(got == list(range(1000)), len(got))
    expect(name in java(run, TRANSACTIONS, "list"), "not listed")
    expect("Complete" in java(run, TRANSACTIONS, "describe", "--transactional-id", name), "not complete")
    java(run, TRANSACTIONS, "describe-producers", "--topic", target, "--partition", "0")


def dumps_segments(run: Run, codec: str) -> None:
    """Kafka's dump program reads our segments; needs a broker whose logs are here."""
    if run.log_dir is None:
        raise CheckError("where the broker's logs are isn't known (leave out --bootstrap)")
    topic = create(run, f"dump-{codec}")
    fill(run, topic, MANY, "--compression-codec", codec)
    log = run.log_dir / f"{topic}-0" / f"{0:020}.log"
    deadline = time.monotonic() + 10
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    said = java(run, DUMP, "--deep-iteration", "--print-data-log", "--files", str(log))
    payloads = [int(word) for word in re.findall(r"^\|.* payload: (\d+)$", said, re.MULTILINE)]
    expect(payloads == list(range(MANY)) and "isvalid: false" not in said, said[-500:])


CHECKS: dict[str, Check] = {
    "topics": topics,
    "configs": configs,
    "quotas": quotas,
    "acls": acls,
    **{f"round_trip_{codec}": partial(round_trip, codec=codec) for codec in CODECS},
    "a_record_too_large": a_record_too_large,
    **{f"verifiable_clients_{name}": partial(verifiable_clients, protocol=name) for name in ("classic", "consumer")},
    "groups": groups,
    "delete_records": delete_records,
    "moves_nothing_elsewhere": moves_nothing_elsewhere,
    "transactions": transactions,
    **{f"dumps_segments_{codec}": partial(dumps_segments, codec=codec) for codec in CODECS},
}


def run(run: Run) -> Iterator[Outcome]:
    """Outcomes of all checks, in order."""
    yield from each(run, CHECKS)
