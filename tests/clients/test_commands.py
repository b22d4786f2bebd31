"""The daily commands as people and programs use them, against our broker and against Apache Kafka."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow.ipc
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer

from penstock.cli import root
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.options import Invocation, Timeouts
from penstock.pyx.log.logmanager import room_end
from support.harness import BrokerProcess, topic_name
from support.patience import until

Run = Callable[..., str]
Ask = Callable[..., Any]


@pytest.fixture(params=["penstock", pytest.param("kafka", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    name = "shared_broker" if request.param == "penstock" else "apache_kafka"
    return str(request.getfixturevalue(name).bootstrap)


@pytest.fixture
def run(bootstrap: str) -> Run:
    """Run a command and give its standard output; another exit code than expected is an error."""

    def command(*words: str, stdin: str | None = None, code: int = 0) -> str:
        result = CliRunner().invoke(root, [*words], input=stdin, env={"PENSTOCK_BOOTSTRAP": bootstrap})
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout if code == 0 else f"{result.output}{result.exception}"

    return command


@pytest.fixture
def ask(run: Run) -> Ask:
    """Run a command for its JSON."""
    return lambda *words, **rest: json.loads(run(*words, "--json", **rest))


@pytest.fixture
def topic(run: Run) -> str:
    """A topic of 100 records in each of two partitions: values `<partition>-<number>`, keys like them, 1 s apart."""
    name = topic_name("commands")
    run("topics", "create", name, "-p", "2", "-c", "retention.ms=-1")
    lines = [
        json.dumps({"key": f"k{number}", "value": f"{part}-{number}", "partition": part, "timestamp_ms": number * 1000})
        for part in range(2)
        for number in range(100)
    ]
    assert "200 records" in run("produce", name, "--format", "jsonl", stdin="\n".join(lines))
    return name


def test_topics_are_listed_and_described(run: Run, ask: Ask, topic: str) -> None:
    listed = {row["topic"]: row for row in ask("topics", "list")}
    assert listed[topic] == {"topic": topic, "partitions": 2, "replicas": 1, "offsets": 200, "without_leader": 0}
    described = ask("topics", "describe", topic)
    assert [(row["partition"], row["start"], row["end"]) for row in described["partitions"]] == [(0, 0, 100), (1, 0, 100)]
    # Kafka 4 says its own min.insync.replicas of each topic, too.
    assert {"topic": topic, "config": "retention.ms", "value": "-1"} in described["configs"]
    assert topic in run("topics", "list")
    assert "retention.ms" in run("topics", "describe", topic)


def test_log_folders_are_shown(run: Run, ask: Ask, topic: str) -> None:
    shown = ask("topics", "log-dirs")
    assert {row["state"] for row in shown} == {"online"}
    assert sum(row["partitions"] for row in shown) >= 2
    assert all(0 <= row["bytes"] < row["disk_bytes"] and row["free_bytes"] < row["disk_bytes"] for row in shown)
    assert shown[0]["log_dir"] in run("topics", "log-dirs")


def test_topics_are_created_grown_and_deleted(run: Run, ask: Ask) -> None:
    name = topic_name("commands")
    run("topics", "create", name, "-p", "1")
    assert "exists" in run("topics", "create", name, code=1).lower()
    run("topics", "create", name, "--if-not-exists")
    run("topics", "grow", name, "-p", "3")
    assert [row["partitions"] for row in ask("topics", "list") if row["topic"] == name] == [3]
    run("topics", "delete", name, code=1, stdin="n\n")
    assert ask("topics", "delete", name, "--yes") == {"deleted": [name]}
    assert name not in [row["topic"] for row in ask("topics", "list")]


def test_offsets_by_time_and_records_trimmed(run: Run, ask: Ask, topic: str) -> None:
    at = ask("topics", "offsets", topic, "--at", "50000")
    assert [(row["partition"], row["offset"]) for row in at] == [(0, 50), (1, 50)]
    assert [row["offset"] for row in ask("topics", "offsets", f"{topic}:1", "--at", "1970-01-01T00:00:10Z")] == [10]
    plan = ask("topics", "trim", f"{topic}:0", "--before", "@30")
    assert plan == [{"topic": topic, "partition": 0, "from": 0, "to": 30}]
    assert [row["offset"] for row in ask("topics", "offsets", topic, "--at", "earliest")] == [0, 0]
    ask("topics", "trim", f"{topic}:0", "--before", "@30", "--execute")
    assert [row["offset"] for row in ask("topics", "offsets", topic, "--at", "earliest")] == [30, 0]


def test_what_is_consumed_can_be_produced_again(run: Run, topic: str) -> None:
    lines = run("consume", topic, "--from", "earliest", "--json").splitlines()
    assert len(lines) == 200
    copy = topic_name("commands")
    run("topics", "create", copy, "-p", "2")
    run("produce", copy, "--format", "jsonl", stdin="\n".join(lines))
    again = [json.loads(line) for line in run("consume", copy, "--from", "earliest", "--json").splitlines()]
    assert [{**record, "topic": topic} for record in sorted(again, key=lambda r: (r["partition"], r["offset"]))] == sorted(
        map(json.loads, lines), key=lambda r: (r["partition"], r["offset"])
    )


def test_bytes_that_are_no_text_survive_json(run: Run) -> None:
    name = topic_name("commands")
    run("topics", "create", name)
    run("produce", name, "--header", "h=1", stdin=b"\xff\xfe\n")
    (line,) = run("consume", name, "--from", "earliest", "--json").splitlines()
    assert json.loads(line)["value"] == {"base64": "//4="}
    assert json.loads(line)["headers"] == [["h", "1"]]
    run("produce", name, "--format", "jsonl", stdin=line)
    assert [json.loads(one)["value"] for one in run("consume", name, "--from", "earliest", "--json").splitlines()] == [
        {"base64": "//4="}
    ] * 2


def test_lines_with_keys_and_tombstones(run: Run) -> None:
    name = topic_name("commands")
    run("topics", "create", name)
    run("produce", name, "--key-separator", ":", "--empty-as-null", stdin="a:1\nb:\n:plain\n")
    records = [json.loads(line) for line in run("consume", name, "--from", "earliest", "--json").splitlines()]
    assert [(record["key"], record["value"]) for record in records] == [("a", "1"), ("b", None), ("", "plain")]
    assert run("consume", name, "--from", "earliest", "--keys", "-n", "1") == "a\t1\n"


NO_RECORDS = [
    ("{", "line 2 is no record: "),
    ("[1]", "line 2 is no record: it is not a JSON object"),
    ('{"key": "a", "valu": "x"}', "line 2 is no record: `valu` is no field"),
    ('{"headers": [["a", "1", "2"]]}', "line 2 is no record: `headers` is not a list of [name, value]"),
    ('{"headers": {"a": "1"}}', "line 2 is no record: `headers` is not a list of [name, value]"),
    ('{"timestamp_ms": "soon"}', "line 2 is no record: `timestamp_ms` is not a whole number"),
    ('{"value": {"base64": "?"}}', "line 2 is no record: bad base64"),
]


def test_a_line_that_is_no_record_is_named_before_any_is_sent(run: Run, ask: Ask, tmp_path: Path) -> None:
    name = topic_name("commands")
    run("topics", "create", name)
    lines = tmp_path / "lines"
    for text, words in NO_RECORDS:
        lines.write_text(f'{{"value": "good"}}\n{text}\n')
        assert words in run("produce", name, "--format", "jsonl", "--file", str(lines), code=1)
        assert words in run("produce", name, "--format", "jsonl", stdin=lines.read_text(), code=1)
    said = run("produce", name, "--key-separator", ":", stdin="a:1\nplain\n", code=1)
    assert "line 2 has no `:`" in said
    assert [row["offsets"] for row in ask("topics", "list") if row["topic"] == name] == [0]


def test_no_command_creates_a_topic_by_asking_for_it(bootstrap: str, run: Run, ask: Ask) -> None:
    """Of clusters that create what is asked for; a slip of the pen is no wish."""
    name = topic_name("wbe")
    said = run("produce", name, stdin="a\n", code=1)
    assert f"topic `{name}` isn't there, and nothing was sent" in said
    assert f"hint: `penstock topics list` shows the topics; `penstock topics create {name}` or `--create`" in said
    for words in (
        ["consume", name, "--from", "earliest"],
        ["consume", name, "--end", "--group", f"group-{name}"],
        ["topics", "describe", name],
        ["topics", "offsets", name],
        ["topics", "trim", name, "--before", "@1"],
        ["topics", "grow", name, "-p", "3"],
        ["configs", "show", "topic", name],
        ["configs", "set", "topic", name, "retention.ms=1"],
        ["groups", "reset", f"group-{name}", name, "--to", "earliest", "--execute"],
    ):
        assert run(*words, code=1)
        assert name not in {row["topic"] for row in ask("topics", "list")}, words
    done = ask("produce", name, "--create", stdin="a\nb\n")
    assert done == {"topic": name, "acknowledged": 2, "created": True}
    assert ask("produce", name, "--create", stdin="c\n") == {"topic": name, "acknowledged": 1, "created": False}
    assert run("consume", name, "--from", "earliest").split() == ["a", "b", "c"]


def produce_from_a_pipe(bootstrap: str, *words: str) -> subprocess.Popen[bytes]:
    # Whoever runs the tests in the background may have SIGINT ignored, and children inherit that.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-m", "penstock", "produce", *words, "-b", bootstrap]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heard)


def test_what_was_acknowledged_is_said_when_producing_ends_early(bootstrap: str, run: Run, ask: Ask) -> None:
    name = topic_name("commands")
    run("topics", "create", name)
    with produce_from_a_pipe(bootstrap, name, "--format", "jsonl") as process:
        _, complained = process.communicate(b'{"value": "a"}\n{"value": "b"}\n{"valu": "c"}\n', timeout=120)
    assert process.returncode == 1
    assert b"after 2 acknowledged records: line 3 is no record" in complained
    with produce_from_a_pipe(bootstrap, name) as process:
        assert process.stdin is not None and process.stderr is not None
        # Far more than the pipe and the reader's buffer hold: what follows has been read.
        process.stdin.write(b"line\n" * 100_000)
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        complained = process.stderr.read()
        process.wait(120)
    assert process.returncode == 130
    found = re.search(rb"interrupted: (\d+) records acknowledged", complained)
    assert found is not None, complained
    (end,) = [row["offset"] for row in ask("topics", "offsets", name)]
    assert 0 < int(found[1]) <= end - 2


def test_positions_of_our_stages_are_no_consumers(bootstrap: str, run: Run, ask: Ask, topic: str) -> None:
    """The mirror's are offsets of its source; neither stage takes a position that the command line wrote."""

    async def commit(group: str) -> None:
        async with Admin(bootstrap) as admin:
            await admin.commit(group, {(topic, 0): (7, '{"topic_id": "ab"}')})

    for kind, instead in (("mirror", "penstock mirror begin"), ("dedupe", "penstock dedupe position")):
        group = f"penstock-{kind}.{topic_name('stage')}"
        asyncio.run(commit(group))
        (row,) = ask("groups", "describe", group)
        shown = (row["committed"], row["end"], row["lag"], row["lag_seconds"])
        if kind == "mirror":
            assert shown == (7, None, None, None)
        else:
            assert shown[:3] == (7, 100, 93)
        assert instead in run("groups", "reset", group, topic, "--to", "earliest", "--execute", code=1)
        (again,) = ask("groups", "describe", group)
        assert again["committed"] == 7


def test_a_position_that_the_log_does_not_have_is_said(run: Run, ask: Ask, topic: str) -> None:
    assert "holds offsets 0 to 100, not 101" in run("consume", f"{topic}:0", "--from", "@101", code=1)
    group = topic_name("group")
    run("consume", f"{topic}:0", "--from", "earliest", "-n", "5", "--group", group)
    ask("topics", "trim", f"{topic}:0", "--before", "@30", "--execute")
    said = run("consume", f"{topic}:0", "--end", "--group", group, code=1)
    assert "holds offsets 30 to 100, not 5" in said and "penstock groups reset" in said


def test_an_address_where_nobody_is_is_named(tmp_path: Path) -> None:
    nowhere = "127.0.0.1:1"
    for words in (["topics", "list"], ["groups", "list"], ["configs", "show", "broker", "1"], ["consume", "t"]):
        result = CliRunner().invoke(root, [*words, "-b", nowhere, "--timeout", "1"])
        assert result.exit_code == 1 and f"cannot connect to `{nowhere}`: Connection refused" in result.output
        assert "Errno" not in result.output
    result = CliRunner().invoke(root, ["produce", "t", "-b", nowhere, "--timeout", "1"], input="x\n")
    assert result.exit_code == 1 and nowhere in result.output
    # The default is for people, too: this test would time out with a client's usual patience for each of ten.
    result = CliRunner().invoke(root, ["topics", "list", "-b", "no-such-host.invalid:9092"])
    assert result.exit_code == 1 and "no-such-host.invalid:9092" in result.output and "Errno" not in result.output


def test_a_reader_that_has_enough_is_no_failure(bootstrap: str, topic: str) -> None:
    words = ["consume", topic, "--from", "earliest", "--follow", "-b", bootstrap]
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen([sys.executable, "-m", "penstock", *words], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    _, complained = process.communicate(timeout=120)
    assert (process.returncode, complained) == (0, b"")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_columns(run: Run, topic: str, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"records.{suffix}"
    run("consume", f"{topic}:1", "--from", "@40", "--columns", str(path))
    if suffix == "parquet":
        table = pyarrow.parquet.read_table(path)
    else:
        with pyarrow.ipc.open_file(path) as file:
            table = file.read_all()
    assert table.num_rows == 60
    assert table["value"].to_pylist() == [b"1-%d" % number for number in range(40, 100)]
    assert table["key"].to_pylist()[0] == b"k40"
    assert table["offset"].to_pylist() == list(range(40, 100))
    assert [when.timestamp() for when in table["timestamp"].to_pylist()] == list(range(40, 100))
    assert set(table["topic"].to_pylist()) == {topic}
    assert list(tmp_path.iterdir()) == [path]


def test_a_group_is_described_with_its_lag_and_reset(run: Run, ask: Ask, topic: str) -> None:
    group = topic_name("group")
    run("consume", f"{topic}:0", "--from", "earliest", "-n", "60", "--group", group)
    (row,) = ask("groups", "describe", group)
    assert (row["committed"], row["end"], row["lag"], row["owner"]) == (60, 100, 40, None)
    # The first unread record is of 1970-01-01T00:01:00Z.
    assert abs(row["lag_seconds"] - (time.time() - 60)) < 3600
    assert run("consume", f"{topic}:0", "--end", "--group", group).splitlines()[0] == "0-60"
    assert [row["lag"] for row in ask("groups", "describe", group)] == [0]
    plan = ask("groups", "reset", group, topic, "--to", "50000")
    assert [(row["partition"], row["from"], row["to"]) for row in plan] == [(0, 100, 50), (1, None, 50)]
    assert [row["committed"] for row in ask("groups", "describe", group)] == [100]
    ask("groups", "reset", group, topic, "--to", "50000", "--execute")
    assert [row["committed"] for row in ask("groups", "describe", group)] == [50, 50]
    ask("groups", "reset", group, f"{topic}:1", "--shift", "-20", "--execute")
    ask("groups", "reset", group, f"{topic}:0", "--to-offset", "9999", "--execute")
    assert [row["committed"] for row in ask("groups", "describe", group)] == [100, 30]
    ask("groups", "delete", group, "--topic", f"{topic}:1", "--yes")
    assert [row["partition"] for row in ask("groups", "describe", group)] == [0]
    assert "one of" in run("groups", "reset", group, topic, code=2)
    ask("groups", "delete", group, "--yes")
    assert group not in [row["group"] for row in ask("groups", "list")]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_own_their_partitions(bootstrap: str, run: Run, ask: Ask, topic: str, protocol: str) -> None:
    group = topic_name("group")
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    end = time.monotonic() + 120
    while not consumer.assignment() and time.monotonic() < end:
        consumer.poll(0.2)
    (member,) = ask("groups", "describe", group, "--members")
    assert member["partitions"] == [f"{topic}:0", f"{topic}:1"]
    consumer.commit(asynchronous=False) if consumer.poll(10) else None
    assert {row["owner"] for row in ask("groups", "describe", group)} == {"rdkafka"}
    listed = {row["group"]: row for row in ask("groups", "list", "--state", "stable")}
    assert listed[group]["type"].lower() == protocol
    assert "error" not in run("groups", "reset", group, topic, "--to", "earliest").lower()
    assert run("groups", "reset", group, topic, "--to", "earliest", "--execute", code=1)
    consumer.close()


def test_configs_are_set_shown_and_unset(run: Run, ask: Ask, topic: str) -> None:
    run("configs", "set", "topic", topic, "segment.ms=60000", "retention.ms=1000000000")
    shown = {row["config"]: row["value"] for row in ask("configs", "show", "topic", topic)}
    assert shown.items() >= {"retention.ms": "1000000000", "segment.ms": "60000"}.items()
    assert "cleanup.policy" not in shown
    run("configs", "unset", "topic", topic, "segment.ms")
    assert "segment.ms" not in run("configs", "show", "topic", topic)
    assert "segment.ms" in run("configs", "show", "topic", topic, "--all")
    assert "nonsense" in run("configs", "set", "topic", topic, "nonsense=1", code=1)
    assert "key=value" in run("configs", "set", "topic", topic, "nonsense", code=2)


def test_configs_of_what_is_not_there(run: Run) -> None:
    """It isn't asked for again and again, as a topic that is just being created would be."""
    for words in (("show",), ("unset", "retention.ms")):
        assert "topic `nothing-here`" in run("configs", words[0], "topic", "nothing-here", *words[1:], code=1)
    assert "there is no broker `77`, only 1" in run("configs", "show", "broker", "77", code=1)


def test_tables_are_not_folded_in_a_pipe(bootstrap: str, run: Run) -> None:
    (line,) = (line for line in run("configs", "show", "broker", "1").splitlines() if line.startswith("advertised"))
    assert bootstrap in line


def consuming(bootstrap: str, topic: str, stderr: int | None = None) -> subprocess.Popen[bytes]:
    """A process that consumes for a group of the topic's name until it is interrupted."""
    words = ("consume", topic, "--from", "earliest", "--follow", "--group", topic, "-b", bootstrap, "--json")
    command = [sys.executable, "-m", "penstock", *words]
    # Whoever runs the tests in the background may have SIGINT ignored, and children inherit that.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, preexec_fn=heard)


def test_a_group_is_committed_when_it_is_interrupted(bootstrap: str, ask: Ask, topic: str) -> None:
    with consuming(bootstrap, topic) as process:
        assert process.stdout is not None
        for _ in range(200):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert [row["committed"] for row in ask("groups", "describe", topic)] == [100, 100]


def test_an_interrupt_while_records_are_printed_commits_all_that_are(bootstrap: str, ask: Ask, topic: str) -> None:
    with consuming(bootstrap, topic) as process:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        until(lambda: waits_to_print(process), "output that nobody takes")
        process.send_signal(signal.SIGINT)
        printed = process.stdout.readlines()
    assert process.returncode == 0 and printed
    assert sum(row["committed"] or 0 for row in ask("groups", "describe", topic)) == len(printed)


def waits_to_print(process: subprocess.Popen[bytes]) -> bool:
    """Whether its first thread is in a system call that writes to standard output: number 1, with the descriptor 1."""
    return Path(f"/proc/{process.pid}/syscall").read_text().startswith("1 0x1 ")


def test_what_is_not_there_is_one_sentence(run: Run, topic: str, bootstrap: str) -> None:
    assert "no-such" in run("topics", "describe", "no-such", code=1)
    assert "no partition 9" in run("consume", f"{topic}:9", code=1)
    assert "none of earliest" in run("topics", "offsets", topic, "--at", "soon", code=2)
    assert "nonsense" in run("topics", "list", "--property", "nonsense=1", code=1)
    assert "parquet" in run("consume", topic, "--columns", "x.csv", code=2)
    for name in ("o.parquet", "o.arrow"):
        path = f"/no/dir/{name}"
        command = [sys.executable, "-m", "penstock", "consume", topic, "-b", bootstrap, "--from", "earliest", "--columns", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, f"penstock: `{path}`: No such file or directory\n")


def test_a_misspelt_name_is_answered_with_the_nearest_one(run: Run, topic: str) -> None:
    slip, meant = topic[:-1], f"did you mean `{topic}`?"
    commands: list[tuple[str, ...]] = [
        ("topics", "describe", slip), ("topics", "delete", slip, "--yes"), ("topics", "grow", slip, "-p", "3"),
        ("topics", "offsets", slip), ("consume", slip), ("configs", "show", "topic", slip),
    ]  # fmt: skip
    for words in commands:
        said = run(*words, code=1)
        assert meant in said and "hint: `penstock topics list`" in said, words
    assert meant in run("produce", slip, stdin="x\n", code=1)
    run("consume", topic, "--from", "earliest", "-n", "1", "--group", topic)
    for words in (("groups", "describe", slip), ("groups", "delete", slip, "--yes")):
        said = run(*words, code=1)
        assert meant in said and "hint: `penstock groups list`" in said, words


def test_a_misspelt_config_or_command_is_answered_with_the_nearest_one(shared_broker: BrokerProcess) -> None:
    run = runner(shared_broker)
    name = topic_name("slips")
    assert "did you mean `retention.ms`?" in run("topics", "create", name, "-c", "retention.msec=1", code=1)
    run("topics", "create", name)
    assert "did you mean `retention.ms`?" in run("configs", "set", "topic", name, "retention.mss=1", code=1)
    assert "did you mean `topics`?" in run("topic", code=2)


def test_timeout_bounds_all_that_a_command_asks(shared_broker: BrokerProcess) -> None:
    invocation = Invocation(shared_broker.bootstrap, {}, as_json=False, timeouts=Timeouts(1))
    with pytest.raises(click.ClickException, match="given up after 1 s: no answer from"):
        invocation.ask(lambda admin: asyncio.sleep(60))


def test_a_commit_that_cannot_succeed_is_said_and_left_by_a_second_interrupt(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker()
    run = runner(broker)
    run("topics", "create", "t", "-p", "1")
    run("produce", "t", stdin="a\n")
    with consuming(broker.bootstrap, "t", stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        broker.signal(signal.SIGSTOP)
        try:
            process.send_signal(signal.SIGINT)
            assert b"committing the positions of group `t`; Ctrl-C again ends without that" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            broker.signal(signal.SIGCONT)
    assert process.returncode == 130


def runner(broker: BrokerProcess) -> Run:
    """Runs a command of `penstock` beside that broker; what it printed."""

    def run(*words: str, code: int = 0, stdin: str | None = None) -> str:
        result = CliRunner().invoke(root, [*words], input=stdin, env={"PENSTOCK_BOOTSTRAP": broker.bootstrap})
        assert result.exit_code == code, (result.output, result.exception)
        return result.output if code else result.stdout

    return run


def test_logs_are_dumped_and_verified(broker: BrokerProcess, tmp_path: Path) -> None:
    run = runner(broker)
    run("topics", "create", "dumped")
    run("produce", "dumped", "--compression", "zstd", "--key-separator", ":", stdin="a:1\nb:2\n")
    run("consume", "dumped", "--from", "earliest", "--group", "dumpers")
    broker.stop()
    log = broker.data / "dumped-0" / f"{0:020d}.log"
    rows = [json.loads(line) for line in run("log", "dump", str(log), "--records", "--json").splitlines()]
    assert [record["value"] for row in rows for record in row["records"]] == ["1", "2"]
    assert {row["codec"] for row in rows} == {"zstd"}
    text = run("log", "dump", str(broker.data), "--records")
    assert "key=a value=1" in text
    assert "dumpers" in text  # the commit, decoded
    assert "OffsetRecord" in text
    for name in ("recovery-point-offset-checkpoint", "meta.properties"):
        assert "text=" in run("log", "dump", str(broker.data / name))
    (broker.data / "tmp").mkdir()
    (broker.data / "tmp" / "spark.log").write_text("INFO SparkContext: of another program\n")
    (broker.data / "dumped-0" / "00001.log").write_text("of somebody")
    found = json.loads(run("log", "verify", str(broker.data), "--json"))
    assert (found["damage"], found["batches"] > 0) == ([], True)
    damaged = bytearray(log.read_bytes())
    room = bytes(room_end(len(damaged)) - len(damaged))
    log.write_bytes(damaged + room)  # as a broker at work, or a killed one, may have it
    assert json.loads(run("log", "verify", str(broker.data), "--json")) == found | {"bytes": found["bytes"] + len(room)}
    for tail in (room + b"\0", room[:-1], room[:-1] + b"\1"):
        log.write_bytes(damaged + tail)
        assert len(json.loads(run("log", "verify", str(broker.data), "--json", code=1))["damage"]) == 1
    damaged[-1] ^= 1
    log.write_bytes(damaged)
    run("log", "dump", str(log), code=1)
    assert json.loads(run("log", "verify", str(broker.data), "--json", code=1))["damage"][0]["file"] == str(log)


def test_what_cannot_be_verified_is_not_called_sound(broker: BrokerProcess, tmp_path: Path) -> None:
    run = runner(broker)
    run("topics", "create", "checked")
    run("produce", "checked", stdin="a\n")
    broker.stop()
    checks = next((broker.data / "checked-0").glob("*.checks"))
    dumped = run("log", "dump", str(checks))
    assert "log_bytes=" in dumped and "formats=2" in dumped
    data = bytearray(checks.read_bytes())
    data[20] ^= 1
    checks.write_bytes(data)
    assert json.loads(run("log", "verify", str(broker.data), "--json", code=1))["damage"][0]["file"] == str(checks)
    empty = tmp_path / "nothing here"
    empty.mkdir()
    assert "no file of a log" in run("log", "verify", str(empty), code=1)
    assert "none of a log folder's files" in run("log", "verify", str(broker.data / "metadata.db"), code=1)


def test_a_repair_that_the_system_refuses_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / ".lock").mkdir()
    result = CliRunner().invoke(root, ["log", "repair", str(tmp_path / "t-0")])
    assert (result.exit_code, result.output) == (1, f"Error: `{tmp_path / '.lock'}`: Is a directory\n")
