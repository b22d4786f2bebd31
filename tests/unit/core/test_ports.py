"""Ports that are held for servers which start later, or again."""

from __future__ import annotations

import contextlib
import errno
import gc
import platform
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker import Broker
from penstock.ports import ADDRESS, HeldPort, hold_ports
from support.harness import BrokerProcess

IP_LOCAL_PORT_RANGE = 51
"""Of Linux 6.3 and later: the ports from which the kernel chooses for one socket."""
CAN_CHOOSE = tuple(map(int, platform.release().split(".")[:2])) >= (6, 3)


def ask_for_any(port: int) -> socket.socket:
    """A socket that asks for any free port where all others are taken."""
    made = socket.socket()
    made.setsockopt(socket.SOL_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port))
    return made


def is_given_away(port: int) -> bool:
    """Whether another process that asks for any free port may get this one, to listen on it or to connect from it."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server((ADDRESS, 0)))
        for listens in (True, False):
            with ask_for_any(port) as asked:
                try:
                    if listens:
                        asked.bind((ADDRESS, 0))
                    else:
                        asked.connect(server.getsockname())
                except OSError as error:
                    assert error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
                else:
                    return True
    return False


def test_a_held_port_can_be_listened_on_again_and_again() -> None:
    held = HeldPort()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((ADDRESS, held.number))
        with socket.create_server((ADDRESS, held.number)) as server, socket.create_connection(server.getsockname()):
            server.accept()[0].close()


def test_ports_that_are_held_are_no_one_elses() -> None:
    ports = hold_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((ADDRESS, port))


@pytest.mark.skipif(not CAN_CHOOSE, reason="before Linux 6.3 nothing can ask for one port as for any")
def test_a_held_port_is_given_to_nobody_until_its_holder_is_gone() -> None:
    held = HeldPort()
    number = held.number
    assert not is_given_away(number)
    del held
    gc.collect()
    assert is_given_away(number)


@pytest.mark.skipif(not CAN_CHOOSE, reason="before Linux 6.3 nothing can ask for one port as for any")
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_broker_that_is_down_keeps_its_port(make_broker: Callable[..., BrokerProcess], tmp_path: Path, end: str) -> None:
    """As a process, and inside this one."""
    brokers = make_broker(), Broker(tmp_path / "inside").start()
    for broker in brokers:
        getattr(broker, end)()
        port = int(broker.bootstrap.rpartition(":")[2])
        assert not is_given_away(port)
        broker.start()
        assert broker.bootstrap == f"{ADDRESS}:{port}"
    brokers[1].close()
