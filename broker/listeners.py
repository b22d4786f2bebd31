"""The broker's listeners: their names, addresses and limits, read from the properties and bound.

Kafka's properties: `listeners`, `advertised.listeners` (by name; a listener that isn't there is advertised as it is bound),
`listener.security.protocol.map`, `inter.broker.listener.name` or `security.inter.broker.protocol`, and
`listener.name.<name>.` in front of `max.connections` and `max.connection.creation.rate`. Names are upper case, as Kafka takes
them. Every listener is PLAINTEXT: TLS and SASL are refused with a sentence. A listener whose host is left out, 0.0.0.0 or [::]
takes connections on every interface. Its clients are told the advertised host, or else this machine's name; both are logged at
start.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock import log
from penstock.broker import tasks
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.properties import INT_MAX
from penstock.broker.endpoint import Endpoint
from penstock.config import ConfigError, parse_list
from penstock.pyx.net.border import DataPlane

PLAINTEXT = "PLAINTEXT"
LIMITS = (
    "max.connections",
    "max.connection.creation.rate",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
)
DEFAULT_LISTEN = "127.0.0.1:9092"
LISTEN = "--listen"
EVERYWHERE = ("0.0.0.0", "::")
BETWEEN_BROKERS = "inter.broker.listener.name"
IN_CLUSTER = "zookeeper.connect"
PROTOCOLS = {
    PLAINTEXT: "",
    "SSL": "TLS is not served yet: make it PLAINTEXT on an address that only trusted clients can reach",
    "SASL_PLAINTEXT": "SASL is not served yet: make it PLAINTEXT on an address that only trusted clients can reach",
    "SASL_SSL": "TLS and SASL are not served yet: make it PLAINTEXT on an address that only trusted clients can reach",
}


_log = log.get(__name__)


class ListenError(Exception):
    """An address can't be bound; the text is one sentence for the user."""


class Listener(NamedTuple):
    """Where connections come in, and which address their clients get."""

    name: str
    bind: Endpoint
    advertised: Endpoint | None = None  # None: as it is bound; port 0: the bound port

    def client_endpoint(self) -> Endpoint:
        """The address for clients, of a listener that is bound."""
        if self.advertised is None:
            return self.bind
        return self.advertised._replace(port=self.advertised.port or self.bind.port)


def single(bind: Endpoint) -> list[Listener]:
    """One listener that is advertised as it is bound."""
    return [Listener(PLAINTEXT, bind)]


def plan(config: Mapping[str, Any], listen: str | None = None, advertised: str | None = None) -> list[Listener]:
    """The listeners of the properties; `listen` (one address) wins over them, and `advertised` over what clients get.

    Raises ConfigError.
    """
    protocols = _protocols(config)
    bound = _endpoints(listen or config["listeners"] or DEFAULT_LISTEN, "the listen address")
    given = _endpoints(advertised or config["advertised.listeners"] or "", "the advertised address")
    for name in bound:
        if name not in protocols:
            raise ConfigError(f"the listener `{name}` has no protocol: give one in `listener.security.protocol.map`")
        if PROTOCOLS[protocols[name]]:
            raise ConfigError(f"the listener `{name}` is {protocols[name]}: {PROTOCOLS[protocols[name]]}")
    for name in given:
        if name not in bound:
            raise ConfigError(f"`advertised.listeners` has `{name}`, which is not among the `listeners`")
    if between_brokers(config, list(bound)) is None and config[IN_CLUSTER] is not None:
        raise ConfigError(f"no listener is called {PLAINTEXT}: name the one that other brokers use by `{BETWEEN_BROKERS}`")
    for key in _own_limits(config):
        if key[0] not in bound:
            raise ConfigError(f"`listener.name.{key[0].lower()}.{key[1]}`: there is no such listener")
    listeners = [Listener(name, bind, given.get(name)) for name, bind in bound.items()]
    return [_reachable(listener) for listener in listeners]


def between_brokers(config: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Which of the listeners other brokers use, by its name: the one that the properties name. By default it is the only one,
    or of several, as in Kafka, the one that is called PLAINTEXT. None: no listener is called so.

    Raises ConfigError.
    """
    name, protocol = config[BETWEEN_BROKERS], config["security.inter.broker.protocol"]
    if name is not None and protocol is not None:
        raise ConfigError(
            f"`{BETWEEN_BROKERS}` and `security.inter.broker.protocol` name the same listener: remove one of them"
        )
    if name is not None:
        if name.upper() not in names:
            raise ConfigError(f"`{BETWEEN_BROKERS}={name}` is not among the `listeners`")
        return str(name.upper())
    if protocol is not None:
        given = f"`security.inter.broker.protocol={protocol}`"
        if protocol.upper() not in PROTOCOLS:
            raise ConfigError(f"{given} is no security protocol: there are {', '.join(PROTOCOLS)}")
        if PROTOCOLS[protocol.upper()]:
            raise ConfigError(f"{given}: {PROTOCOLS[protocol.upper()]}")
        if protocol.upper() not in names:
            raise ConfigError(f"{given}: no listener has that name; name the one for brokers by `{BETWEEN_BROKERS}`")
        return str(protocol.upper())
    if len(names) == 1:
        return names[0]
    return PLAINTEXT if PLAINTEXT in names else None


def _reachable(listener: Listener) -> Listener:
    """With hosts where none was given: every interface to bind, this machine's name to advertise. Raises ConfigError."""
    bind, advertised = listener.bind, listener.advertised
    if not bind.host:
        bind = bind._replace(host="::" if socket.has_dualstack_ipv6() else "0.0.0.0")
    if advertised is None and bind.host in EVERYWHERE:
        advertised = Endpoint("", 0)
    if advertised is not None and not advertised.host:
        advertised = advertised._replace(host=_own_name(bind))
    if advertised is not None and advertised.host in EVERYWHERE:
        raise ConfigError(f"clients can't be told `{advertised}`: advertise an address that they can reach")
    return Listener(listener.name, bind, advertised)


def _own_name(bind: Endpoint) -> str:
    """The name under which other machines know this one, as Kafka finds it. Raises ConfigError."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
    except OSError:
        raise ConfigError(
            f"clients can't be told `{bind}`, and this machine's name `{name}` has no address: give `--advertised HOST:PORT`"
        ) from None
    return found[0][3] or name


def _protocols(config: Mapping[str, Any]) -> dict[str, str]:
    """Listener name -> security protocol."""
    text = config["listener.security.protocol.map"]
    if text is None:
        return {name: name for name in PROTOCOLS}
    found: dict[str, str] = {}
    for pair in parse_list(text):
        name, colon, protocol = (word.strip().upper() for word in pair.partition(":"))
        if not colon or not name or protocol not in PROTOCOLS:
            raise ConfigError(f"`listener.security.protocol.map`: `{pair}` is not of the form NAME:PROTOCOL")
        if found.setdefault(name, protocol) != protocol:
            raise ConfigError(f"`listener.security.protocol.map` has `{name}` twice")
    return found


def _endpoints(text: str, what: str) -> dict[str, Endpoint]:
    """`host:port`, or `NAME://host:port` with commas between them, by name; a host may be left out. Raises ConfigError."""
    found: dict[str, Endpoint] = {}
    for one in parse_list(text):
        name, separator, rest = one.rpartition("://")
        name = name.upper() if separator else PLAINTEXT
        host, colon, port = rest.rpartition(":")
        if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535 or not name:
            raise ConfigError(f"{what} `{one}` is not of the form host:port or NAME://host:port")
        if name in found:
            raise ConfigError(f"{what} `{text}`: the listener `{name}` is there twice")
        found[name] = Endpoint(host.strip("[]"), int(port))
    return found


def _own_limits(config: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """(listener, property) -> value of what is set for one listener."""
    found = {}
    for key in config:
        if key.startswith("listener.name.") and "*" not in key:
            name, _, prop = key.removeprefix("listener.name.").partition(".")
            found[name.upper(), prop] = config[key]
    return found


def _rate(per_second: int) -> int:
    return 0 if per_second == INT_MAX else per_second


def _address_limits(text: str) -> dict[str, int]:
    """`host:count` with commas between them; names are looked up. Raises ConfigError."""
    found: dict[str, int] = {}
    for pair in parse_list(text):
        host, _, count = pair.rpartition(":")
        try:
            addresses = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except OSError:
            raise ConfigError(f"`max.connections.per.ip.overrides`: the host `{host}` is unknown") from None
        for address in addresses:
            found[str(ipaddress.ip_address(str(address[4][0]).partition("%")[0]))] = int(count)
    return found


def _limit(data_plane: DataPlane, config: Mapping[str, Any], of_addresses: dict[str, int]) -> None:
    data_plane.limit_connections(
        config["max.connections"],
        _rate(config["max.connection.creation.rate"]),
        config["max.connections.per.ip"],
        of_addresses,
    )


class Limits:
    """Keeps the limits of connections as the properties say, which may be altered at run time. On the loop."""

    def __init__(self, data_plane: DataPlane, config: BrokerConfig) -> None:
        self._data_plane = data_plane
        self._config = config
        self._set = self._wanted()
        self._task: asyncio.Task[None] | None = None
        config.watch(self._altered)

    def _wanted(self) -> tuple[Any, ...]:
        return tuple(self._config[name] for name in LIMITS)

    def _altered(self) -> None:
        if self._task is None and self._wanted() != self._set:
            self._task = tasks.start(self._apply(), "limits of connections")

    async def _apply(self) -> None:
        """Names of hosts are looked up elsewhere: a slow answer must not hold the loop up."""
        loop = asyncio.get_running_loop()
        try:
            while (wanted := self._wanted()) != self._set:
                self._set = wanted
                try:
                    own = await loop.run_in_executor(None, _address_limits, self._config["max.connections.per.ip.overrides"])
                except ConfigError as error:
                    _log.error("the limits of connections stay as they were: %s", error)
                else:
                    _limit(self._data_plane, self._config, own)
        finally:
            self._task = None


def refused(address: Endpoint, error: OSError, given_by: str = LISTEN) -> str:
    """Why an address can't be bound."""
    return f"cannot listen on {address}: {error.strerror or error}; choose another `{given_by}`"


def bind(data_plane: DataPlane, listeners: Sequence[Listener], config: Mapping[str, Any]) -> list[Listener]:
    """Bind all of them, with their limits; gives them back with the ports that they got.

    Raises ListenError, ConfigError.
    """
    _limit(data_plane, config, _address_limits(config["max.connections.per.ip.overrides"]))
    own = _own_limits(config)
    in_cluster = config[IN_CLUSTER] is not None
    between = between_brokers(config, [one.name for one in listeners])
    named = in_cluster or any(config[one] is not None for one in (BETWEEN_BROKERS, "security.inter.broker.protocol"))
    bound = []
    for listener in listeners:
        try:
            port = data_plane.listen(
                *listener.bind,
                listener.name,
                max_connections=own.get((listener.name, "max.connections"), INT_MAX),
                rate=_rate(own.get((listener.name, "max.connection.creation.rate"), INT_MAX)),
                kept_open=listener.name == between and named and len(listeners) > 1,
                between_brokers=listener.name == between and in_cluster,
                send_buffer_bytes=config["socket.send.buffer.bytes"],
                receive_buffer_bytes=config["socket.receive.buffer.bytes"],
                congestion=config["penstock.tcp.congestion"],
            )
        except OSError as error:
            raise ListenError(refused(listener.bind, error)) from None
        bound.append(listener._replace(bind=Endpoint(listener.bind.host, port)))
        if listener.bind.host in EVERYWHERE:
            _log.info(
                "the listener %s takes connections on every interface (%s); its clients are told %s",
                listener.name, bound[-1].bind, bound[-1].client_endpoint(),
            )  # fmt: skip
    return bound
