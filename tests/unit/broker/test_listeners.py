"""Several named listeners: what the properties say, what is refused, and which address each listener's clients are told."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from penstock.broker.configs.brokerconfig import load
from penstock.broker.endpoint import Endpoint
from penstock.broker.listeners import Listener, between_brokers, bind, plan
from penstock.config import ConfigError
from penstock.errors import ErrorCode
from penstock.pyx.net.border import DataPlane
from penstock.pyx.wire.messages import (
    DescribeClusterRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from support.harness import BrokerProcess, WireConnection
from support.patience import until

MAP = "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"
BOTH = "listeners=INSIDE://127.0.0.1:0,OUTSIDE://[::1]:0"
CLUSTER = "zookeeper.connect=127.0.0.1:2181"


def planned(*overrides: str) -> list[Listener]:
    return plan(load(overrides=list(overrides)))


def test_one_listener_without_any_property() -> None:
    assert planned() == [Listener("PLAINTEXT", Endpoint("127.0.0.1", 9092))]


def test_names_addresses_and_what_is_advertised() -> None:
    found = planned(MAP, BOTH, "advertised.listeners=outside://broker.example:9999", "inter.broker.listener.name=inside")
    assert found == [
        Listener("INSIDE", Endpoint("127.0.0.1", 0)),
        Listener("OUTSIDE", Endpoint("::1", 0), Endpoint("broker.example", 9999)),
    ]
    assert [one.client_endpoint() for one in found] == [Endpoint("127.0.0.1", 0), Endpoint("broker.example", 9999)]


def test_the_command_lines_address_wins() -> None:
    config = load(overrides=["listeners=PLAINTEXT://10.0.0.1:1", "advertised.listeners=PLAINTEXT://a:1"])
    assert plan(config, "127.0.0.1:5", "b:6") == [Listener("PLAINTEXT", Endpoint("127.0.0.1", 5), Endpoint("b", 6))]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["listeners=SSL://h:1"], "TLS is not served yet"),
        (["listeners=SASL_PLAINTEXT://h:1"], "SASL is not served yet"),
        (["listeners=INSIDE://h:1"], "`INSIDE` has no protocol"),
        ([MAP, "listeners=PLAINTEXT://h:1"], "`PLAINTEXT` has no protocol"),
        (["listener.security.protocol.map=A:SSL", "listeners=A://h:1"], "`A` is SSL"),
        (["listener.security.protocol.map=A:TLS"], "`A:TLS`"),
        (["listener.security.protocol.map=A:SSL,a:PLAINTEXT"], "`A` twice"),
        (["listeners=PLAINTEXT://h:1,PLAINTEXT://h:2"], "`PLAINTEXT` is there twice"),
        (["listeners=PLAINTEXT://h"], "not of the form"),
        (["listeners=PLAINTEXT://h:65536"], "not of the form"),
        (["listeners=PLAINTEXT://:1", "advertised.listeners=PLAINTEXT://[::]:1"], "clients can't be told `[::]:1`"),
        (["advertised.listeners=PLAINTEXT://0.0.0.0:1"], "clients can't be told `0.0.0.0:1`"),
        ([MAP, BOTH, "advertised.listeners=OTHER://h:1"], "`OTHER`, which is not among"),
        ([MAP, BOTH, "inter.broker.listener.name=OTHER"], "is not among the `listeners`"),
        ([MAP, BOTH, "security.inter.broker.protocol=PLAINTEXT"], "no listener has that name; name the one for brokers by"),
        (
            [MAP, BOTH, CLUSTER],
            "name the one that other brokers use by `inter.broker.listener.name`",
        ),
        (["security.inter.broker.protocol=SASL_SSL"], "TLS and SASL are not served yet"),
        (["security.inter.broker.protocol=TLS"], "`security.inter.broker.protocol=TLS` is no security protocol"),
        (["security.inter.broker.protocol=PLAINTEXT", "inter.broker.listener.name=PLAINTEXT"], "remove one of them"),
        (["listener.name.other.max.connections=5"], "there is no such listener"),
        (["control.plane.listener.name=PLAINTEXT"], "by one listener"),
        (["ssl.keystore.location=x"], "TLS is not served yet"),
        (["max.connections=0"], "less than 1"),
        (["max.connections.per.ip.overrides=here:1,there"], "`there`, which is not of the form"),
    ],
)
def test_what_is_refused_says_why(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        planned(*overrides)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "PLAINTEXT"),
        (["listener.security.protocol.map=A:PLAINTEXT", "listeners=A://h:1"], "A"),
        ([MAP, BOTH], None),
        ([MAP, BOTH, "inter.broker.listener.name=outside"], "OUTSIDE"),
        (["security.inter.broker.protocol=plaintext"], "PLAINTEXT"),
        (["listener.security.protocol.map=A:PLAINTEXT,PLAINTEXT:PLAINTEXT", "listeners=A://h:1,PLAINTEXT://h:2"], "PLAINTEXT"),
    ],
)
def test_which_listener_is_for_brokers(overrides: list[str], name: str | None) -> None:
    config = load(overrides=overrides)
    assert between_brokers(config, [one.name for one in plan(config)]) == name


class Plane:
    """Notes for which listeners the limits and the replica ids of brokers count."""

    def __init__(self) -> None:
        self.kept_open: list[str] = []
        self.between_brokers: list[str] = []

    def limit_connections(self, *limits: object) -> None:
        """None of them matters here."""

    def listen(self, host: str, port: int, name: str, *, kept_open: bool, between_brokers: bool, **_: object) -> int:
        self.kept_open += [name] * kept_open
        self.between_brokers += [name] * between_brokers
        return 9


@pytest.mark.parametrize(
    ("overrides", "kept_open", "believed"),
    [
        ([], [], []),
        ([CLUSTER], [], ["PLAINTEXT"]),
        ([MAP, BOTH], [], []),
        ([MAP, BOTH, "inter.broker.listener.name=INSIDE"], ["INSIDE"], []),
        ([MAP, BOTH, "inter.broker.listener.name=INSIDE", CLUSTER], ["INSIDE"], ["INSIDE"]),
        ([MAP + ",PLAINTEXT:PLAINTEXT", BOTH + ",PLAINTEXT://127.0.0.1:0"], [], []),
        ([MAP + ",PLAINTEXT:PLAINTEXT", BOTH + ",PLAINTEXT://127.0.0.1:0", CLUSTER], ["PLAINTEXT"], ["PLAINTEXT"]),
    ],
)
def test_a_replica_id_counts_in_a_cluster_on_the_listener_for_brokers_alone(
    overrides: list[str], kept_open: list[str], believed: list[str]
) -> None:
    config, plane = load(overrides=overrides), Plane()
    bind(cast(DataPlane, plane), plan(config), config)
    assert (plane.kept_open, plane.between_brokers) == (kept_open, believed)


def own_name() -> str:
    """Of this machine, as others may know it."""
    return socket.getaddrinfo(socket.gethostname(), None, flags=socket.AI_CANONNAME)[0][3] or socket.gethostname()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
@pytest.mark.parametrize("given", ["listeners", "listen"])
def test_a_listener_of_every_interface_tells_this_machines_name(host: str, given: str) -> None:
    if given == "listen":
        (found,) = plan(load(), f"{host}:9092")
    else:
        (found,) = planned(f"listeners=PLAINTEXT://{host}:9092")
    assert found.bind.host in (("::", "0.0.0.0") if host == "" else (host.strip("[]"),))
    assert found.client_endpoint() == Endpoint(own_name(), 9092)


@pytest.mark.parametrize(("bind", "bound"), [("", {"::", "0.0.0.0"}), ("127.0.0.1", {"127.0.0.1"})])
def test_a_host_that_is_left_out_of_what_is_advertised_is_this_machines(bind: str, bound: set[str]) -> None:
    (found,) = planned(f"listeners=PLAINTEXT://{bind}:9092", "advertised.listeners=PLAINTEXT://:9999")
    assert found.bind.host in bound
    assert found.client_endpoint() == Endpoint(own_name(), 9999)


@pytest.mark.parametrize(
    "given", [("PLAINTEXT://:1", ""), ("PLAINTEXT://0.0.0.0:1", ""), ("PLAINTEXT://h:1", "PLAINTEXT://:2")]
)
def test_a_machine_without_a_name_has_to_be_told_what_it_advertises(
    given: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.host.invalid")
    with pytest.raises(ConfigError, match=r"`no\.such\.host\.invalid` has no address: give `--advertised HOST:PORT`"):
        planned(f"listeners={given[0]}", f"advertised.listeners={given[1]}")
    assert plan(load(), given[0], "h:2")[0].advertised == Endpoint("h", 2)


class ByProperties(BrokerProcess):
    """A broker whose addresses are its properties only."""

    def command(self) -> list[str]:
        words = super().command()
        at = words.index("--listen")
        return words[:at] + words[at + 2 :]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    properties = {
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "advertised.listeners": "OUTSIDE://localhost:0",
        "listener.name.outside.max.connections": 50,
        "max.connections.per.ip.overrides": "localhost:100",
        "offsets.topic.num.partitions": 1,
        "penstock.tcp.congestion": "reno",
        "socket.send.buffer.bytes": 102400,
    }
    made = ByProperties(tmp_path_factory.mktemp("listeners") / "data", properties)
    yield made.start()
    made.close()


def ports(broker: BrokerProcess) -> dict[str, int]:
    """The bound port of each listener, as the broker describes itself."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    described = admin.describe_configs([resource])[resource].result(30)
    return {one.partition("://")[0]: int(one.rpartition(":")[2]) for one in described["listeners"].value.split(",")}


def test_each_listener_tells_its_own_address(broker: BrokerProcess) -> None:
    found = ports(broker)
    assert set(found) == {"INSIDE", "OUTSIDE"}
    for name, host in (("INSIDE", "127.0.0.1"), ("OUTSIDE", "localhost")):
        with WireConnection(f"127.0.0.1:{found[name]}") as wire:
            (told,) = wire.ask(MetadataRequest(topics=[]), 12).brokers
            assert (told.host, told.port) == (host, found[name])
            (told,) = wire.ask(DescribeClusterRequest(), 1).brokers
            assert (told.host, told.port) == (host, found[name])
            told = wire.ask(FindCoordinatorRequest(key="g", key_type=0), 3)
            assert (told.host, told.port) == (host, found[name])


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_every_interface_is_served_and_it_is_said(tmp_path: Path, host: str) -> None:
    """127.0.0.2 is an address of this machine, and not the one that other brokers of tests listen on."""
    made = ByProperties(tmp_path / "data", {"listeners": f"PLAINTEXT://{host}:0"})
    try:
        port = made.start().port
        addresses = ["127.0.0.1", "127.0.0.2"]
        if socket.has_dualstack_ipv6() and host != "0.0.0.0":
            addresses.append("::1")
        for address in addresses:
            with WireConnection(f"{address}:{port}") as wire:
                (told,) = wire.ask(MetadataRequest(topics=[]), 12).brokers
                assert (told.host, told.port) == (own_name(), port)
        said = [line for line in made.log_text().splitlines() if "on every interface" in line]
        assert len(said) == 1 and said[0].endswith(f"its clients are told {own_name()}:{port}")
    finally:
        made.close()


def test_a_client_of_the_outer_listener_works(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": f"localhost:{ports(broker)['OUTSIDE']}"})
    producer.produce("through-outside", b"x")
    assert producer.flush(30) == 0


def test_a_wrong_property_ends_the_start_with_one_sentence(tmp_path: Path) -> None:
    for given in ({"penstock.tcp.congestion": "no-such"}, {"max.connections.per.ip.overrides": "no.such.host.invalid:1"}):
        made = BrokerProcess(tmp_path / "data", given)
        with pytest.raises(AssertionError, match="did not start"):
            made.start()
        made.close()
        (line,) = list(made.log_text().splitlines()[-1:])
        assert line.startswith("penstock: ")
        assert "Traceback" not in made.log_text()


def test_limits_of_connections_are_altered_at_run_time(tmp_path: Path) -> None:
    made = BrokerProcess(tmp_path / "data", {"offsets.topic.num.partitions": 1}).start()
    with contextlib.closing(made), WireConnection(made.bootstrap) as wire:

        def alter(name: str, value: str) -> int:
            setting = IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value=value)
            resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=4, resource_name="1", configs=[setting]
            )
            answer = wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
            return int(answer.responses[0].error_code)

        def comes_in() -> bool:
            try:
                with WireConnection(made.bootstrap) as other:
                    other.ask(MetadataRequest(topics=[]), 12)
            except (OSError, EOFError):
                return False
            return True

        assert comes_in()
        assert alter("max.connections.per.ip.overrides", "127.0.0.1") == ErrorCode.INVALID_REQUEST
        assert alter("max.connections.per.ip", "1") == 0
        until(lambda: not comes_in(), "the second connection to be refused")
        assert alter("max.connections.per.ip.overrides", "no.such.host.invalid:7") == 0
        until(lambda: "`no.such.host.invalid` is unknown" in made.log_text(), "a line about the host")
        assert not comes_in()
        assert alter("max.connections.per.ip.overrides", "localhost:7,127.0.0.1:7") == 0
        until(comes_in, "a second connection")
        made.restart()
        assert comes_in()
