"""What the commands and logs of a cluster say when brokers or its ZooKeeper are away: sentences with a cause, and counts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.security import make_acl

from penstock.broker.process import PROGRAM
from penstock.broker.store.base import paths
from penstock.errors import ErrorCode
from penstock.ports import hold_ports
from penstock.pyx.wire.messages import InitProducerIdRequest
from support.asking import complaint
from support.cluster_world import ClusterProcesses, cluster
from support.harness import WireConnection
from support.patience import until
from support.zookeeper import ZooKeeper, connected

pytestmark = pytest.mark.kafka

WAIT_S = 150


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    """One that a test may stop."""
    server = ZooKeeper(tmp_path / "zookeeper").start()
    try:
        yield server
    finally:
        server.kill()


def run(world: ClusterProcesses, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    patience = [] if "--timeout" in words else ["--timeout", str(WAIT_S)]
    command = [*PROGRAM, *words, "--bootstrap", world.bootstrap, *patience]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def until_said(world: ClusterProcesses, number: int, pattern: str, times: int = 1) -> list[re.Match[str]]:
    """What matches in a broker's log, once it is there so often."""

    def found() -> list[re.Match[str]]:
        return list(re.finditer(pattern, world.brokers[number].log_text()))

    until(lambda: len(found()) >= times, f"broker {number} to say {pattern}", world.log_text)
    return found()


def test_a_broker_that_is_gone_is_said_in_counts(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path) as world:
        world.create("t", partitions=6, min_insync_replicas="3")
        assert run(world, "produce", "t", stdin="a\n").returncode == 0
        world.create("groups")
        assert run(world, "consume", "groups", "--from", "earliest", "--group", "g", "--end").returncode == 0
        world.brokers[3].kill()
        for number in (1, 2):
            (gone,) = until_said(world, number, r"broker 3 is gone: it led (\d+) partitions")
            (taken,) = until_said(world, number, r"of the partitions that broker 3 led (.*); 0 have no leader")
            led = sum(int(count) for count in re.findall(r"broker [12] leads (\d+)", taken[1]))
            assert led == int(gone[1]) > 0
        (below,) = until_said(world, 1, r"(\d+) partitions that this broker leads have fewer replicas in sync")
        assert int(below[1]) > 0
        shown = run(world, "cluster")
        assert shown.returncode == 1 and not re.search(r"\b(None|True|False)\b", shown.stdout), shown.stdout
        assert "under min ISR" in shown.stdout and not re.search(r"__consumer_offsets +\d", shown.stdout), shown.stdout
        assert re.search(r"__consumer_offsets: \d+ partitions under-replicated; --all shows them", shown.stdout), shown.stdout
        every = run(world, "cluster", "--all").stdout
        assert len(re.findall(r"__consumer_offsets +\d+", every)) > 1, every
        elected = run(world, "cluster", "elect", "t")
        assert elected.returncode == 1 and "hint: a preferred leader that is away" in elected.stderr, elected
        world.brokers[3].start()
        until_said(world, 1, "broker 3 is there again")
        world.until_known({1, 2, 3})
        until_said(world, 1, "has min.insync.replicas in sync again")
        assert run(world, "cluster", "elect", "--all").returncode == 0
        assert run(world, "cluster", "elect").returncode == 2


def test_a_reassignment_of_an_old_tool_is_said(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, count=1) as world:
        world.create("t", factor=1)
        with connected(world.servers) as client:
            asked = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2]}]}
            client.create(paths.REASSIGNMENT, json.dumps(asked).encode())
        until_said(world, 1, f"the node `{paths.REASSIGNMENT}` asks to move replicas")
        shown = run(world, "cluster")
        assert "nothing is moved" in shown.stdout and f"delete {world.servers[world.servers.index('/') :]}" in shown.stdout
        assert json.loads(run(world, "cluster", "--json").stdout)["reassignment"]
        with connected(world.servers) as client:
            assert client.exists(paths.REASSIGNMENT) is not None, "it was removed"
            client.delete(paths.REASSIGNMENT)
        until(lambda: "nothing is moved" not in run(world, "cluster").stdout, "no more words of it", world.log_text)
        assert len(until_said(world, 1, "asks to move replicas")) == 1


def test_commands_end_by_their_timeout_while_zookeeper_hangs(own_zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(own_zookeeper, tmp_path) as world:
        world.create("t")
        assert run(world, "produce", "t", stdin="a\n").returncode == 0
        for number in world.brokers:
            until_said(world, number, r"producer ids from \d+ to")
        ends = {number: broker.log_text().count("the lease is over") for number, broker in world.brokers.items()}
        process = own_zookeeper.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            for number in world.brokers:
                until_said(world, number, "the lease is over: .* refuses produce with acks=0 and 1", ends[number] + 1)
            consumed = run(world, "consume", "t", "--from", "earliest", "--end", "--timeout", "3")
            assert consumed.returncode == 1 and "NOT_LEADER_OR_FOLLOWER" in consumed.stderr, consumed
            assert "hint: `penstock cluster" in consumed.stderr
            shown = run(world, "cluster")
            assert "no controller: is ZooKeeper" in shown.stdout, shown
            # Each broker has a block of ids since its start, and the followers still fetch: acks=all goes on.
            produced = run(world, "produce", "t", "--timeout", "30", stdin="x\n")
            assert produced.returncode == 0, produced
            for broker in world.brokers.values():
                with WireConnection(broker.bootstrap) as wire:
                    while wire.ask(InitProducerIdRequest(transactional_id=None), 4).error_code == ErrorCode.NONE:
                        pass
            produced = run(world, "produce", "t", "--timeout", "3", stdin="x\n")
            assert produced.returncode == 1 and "producer id" in produced.stderr, produced
        finally:
            process.send_signal(signal.SIGCONT)
        for number in world.brokers:
            until_said(world, number, r"the lease is back after \d", ends[number] + 1)
            assert len(until_said(world, number, "the lease is over")) == ends[number] + 1
        assert run(world, "produce", "t", stdin="b\n").returncode == 0


def test_a_zookeeper_that_is_not_there_is_said_before_it_is_given_up(tmp_path: Path) -> None:
    (port,) = hold_ports(1)
    servers = f"127.0.0.1:{port}/kafka"
    given = ["broker", "--id", "1", "--zookeeper", servers, "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    # A long limit: the test waits for the sentence, and ends the start then.
    broker = subprocess.Popen(
        [*PROGRAM, *given, "--set", "zookeeper.connection.timeout.ms=300000"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert broker.stderr is not None
        assert f"ZooKeeper at `{servers}` doesn't answer: Connection refused" in broker.stderr.readline()
    finally:
        broker.kill()
        broker.communicate()
    limit = ["--set", "zookeeper.connection.timeout.ms=1500"]
    for more in ([], ["--check"]):
        done = subprocess.run([*PROGRAM, *given, *limit, *more], capture_output=True, text=True, check=False, timeout=WAIT_S)
        assert done.returncode == 1 and "has answered in 1.5 s: Connection refused" in complaint(done.stderr), done.stderr
    assert "hint: `echo srvr | nc 127.0.0.1" in done.stderr
    name = [*given[:4], "no-such-host.invalid:2181", *given[5:], *limit, "--check"]
    done = subprocess.run([*PROGRAM, *name], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.returncode == 1 and "Cannot resolve no-such-host.invalid" in complaint(done.stderr), done.stderr


def test_a_check_asks_zookeeper_and_writes_nothing(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, count=2) as world:
        world.create("t", factor=2)

        def checked(number: int, data: Path, servers: str = world.servers, *more: str) -> tuple[int, str]:
            command = [*PROGRAM, "broker", "--check", "--id", str(number), "--zookeeper", servers, "--listen", "127.0.0.1:0"]
            done = subprocess.run(
                [*command, "--data", str(data), *more], capture_output=True, text=True, check=False, timeout=WAIT_S
            )
            return done.returncode, done.stderr

        assert checked(1, world.brokers[1].data) == (0, "")  # It runs, and may be restarted.
        code, said = checked(1, tmp_path / "new")
        assert code == 1 and "another broker has the id 1" in said and "has replicas of 1 partitions" in said
        assert checked(3, tmp_path / "new") == (0, "")
        forget = "--forget-log-dir"
        assert checked(1, world.brokers[1].data, world.servers, forget, str(world.brokers[1].data)) == (0, "")
        code, said = checked(1, world.brokers[1].data, world.servers, forget, "/elsewhere")
        assert code == 1 and "has no log folder `/elsewhere` to forget" in said
        below = f"{zookeeper.address}/new-{tmp_path.name}/of/kafka"
        assert checked(1, tmp_path / "new", below) == (0, "")
        code, said = checked(1, world.brokers[1].data, below)
        assert code == 1 and "knows no cluster" in said
        with connected(zookeeper.address) as client:
            assert client.exists(f"/new-{tmp_path.name}") is None
            client.create(f"/closed-{tmp_path.name}", acl=[make_acl("world", "anyone", read=True)])
        code, said = checked(1, tmp_path / "new", f"{zookeeper.address}/closed-{tmp_path.name}/kafka")
        assert code == 1 and "forbids to make it" in said
        assert not (tmp_path / "new").exists()


def test_a_broker_in_a_new_folder_is_refused_while_its_replicas_lie_elsewhere(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, count=2) as world:
        world.create("t", partitions=3, factor=2)
        assert run(world, "produce", "t", stdin="a\nb\nc\n").returncode == 0
        broker = world.brokers[2]
        assert broker.stop() == 0
        there, slip = broker.data, tmp_path / "slip"
        command = [*PROGRAM, "broker", *broker.arguments, "--listen", "127.0.0.1:0", "--data", str(slip)]
        for _ in range(2):  # A refused start leaves nothing that would let the next one in.
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
            assert done.returncode == 1, done.stderr
            assert f"has replicas of 3 partitions, in `{there}`; `{slip}` has no log" in complaint(done.stderr)
            assert f"--forget-log-dir {there}" in done.stderr
        broker.start()
        world.until_known({1, 2})
        until(lambda: set(world.state("t")["isr"]) == {1, 2}, "both in sync", world.log_text)
        assert broker.stop() == 0
        broker.data, broker.arguments = slip, [*broker.arguments, "--forget-log-dir", str(there)]
        broker.start()
        until(lambda: (slip / "t-0").is_dir(), "a copy", world.log_text)
        until(lambda: set(world.state("t")["isr"]) == {1, 2}, "both in sync again", world.log_text)


def test_a_node_that_cannot_be_is_named_with_the_way_to_mend_it(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, count=1) as world:
        assert world.brokers[1].stop() == 0
        with connected(world.servers) as client:
            client.set(paths.CLUSTER_ID, b"no JSON")
        command = [*PROGRAM, "broker", *world.brokers[1].arguments, "--listen", "127.0.0.1:0"]
        done = subprocess.run(
            [*command, "--data", str(world.brokers[1].data)], capture_output=True, text=True, check=False, timeout=WAIT_S
        )
        assert done.returncode == 1 and "/cluster/id: what the metadata store holds there can't be" in complaint(done.stderr)
        root = world.servers[world.servers.index("/") :]
        assert f"zkCli.sh -server {zookeeper.address} get {root}/cluster/id" in done.stderr
        assert "metadata.db" not in done.stderr and "--restore-metadata" not in done.stderr
