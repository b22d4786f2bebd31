"""The links between the brokers of one process, which a test cuts: the kernel drops packets, as a broken network does.

Each broker dials the others from a loopback address of its own, so that both ends of a connection tell whose it is. A filter
(BPF) on the socket that must not get packets drops them before TCP sees them: no FIN and no RST comes, each side sends again
and waits. A listener's filter drops the first packets of those who may not reach it, so they don't connect. Once a link is
healed, TCP sends again what was lost, as late as after as long a time as the cut took.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
DROP, TAKE = 0, 0xFFFFFFFF
"""How many bytes of a packet are let through."""
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SOURCE_ADDRESS = 0x1_0000_0000 - 0x100000 + 12
"""Where a filter finds a packet's source address (IPv4): SKF_NET_OFF, and the header's byte 12."""

Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    """Linux' `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class Links:
    """Between brokers, by their ids. ports: where each of them listens. From any thread."""

    def __init__(self, ports: Callable[[], Mapping[int, int]]) -> None:
        self._ports = ports
        self._lock = threading.Lock()
        self._cut: set[tuple[int, int]] = set()  # (from, to)
        self._dialed: dict[tuple[str, int], int] = {}  # by its own address: to whom a broker has dialed

    def prepare(self, broker: int, to: int, sock: socket.socket) -> None:
        """Give a broker's socket its address before it is connected to another broker. Raises OSError."""
        with self._lock:
            sock.bind((_address(broker), 0))
            self._dialed[sock.getsockname()] = to
            if (to, broker) in self._cut:
                _attach(sock, [(_RETURN, 0, 0, DROP)])

    def cut(self, one: int, other: int, *, one_way: bool = False) -> None:
        """Lose what `one` sends to `other`, and unless one_way what `other` sends to `one`."""
        with self._lock:
            self._cut |= {(one, other)} if one_way else {(one, other), (other, one)}
            self._apply()

    def heal(self) -> None:
        """Lose nothing any more."""
        with self._lock:
            self._cut.clear()
            self._apply()

    def apply(self) -> None:
        """A broker listens again."""
        with self._lock:
            if self._cut:
                self._apply()

    def _apply(self) -> None:
        brokers = {port: broker for broker, port in self._ports().items()}
        for _ in range(2):  # What a listener had taken, and its broker had not, when it was looked for first.
            found = set()
            for entry in Path("/proc/self/fd").iterdir():
                with contextlib.suppress(OSError), _copy(int(entry.name)) as sock:
                    if sock.family == socket.AF_INET and sock.type == socket.SOCK_STREAM:
                        found.add(sock.getsockname())
                        self._filter(sock, brokers)
        self._dialed = {own: to for own, to in self._dialed.items() if own in found}

    def _filter(self, sock: socket.socket, brokers: Mapping[int, int]) -> None:
        own = sock.getsockname()
        if own in self._dialed:
            is_cut = (self._dialed[own], _broker(own[0])) in self._cut
        elif own[1] not in brokers:
            return
        elif sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            _attach(sock, _refusing([_address(one) for one, to in self._cut if to == brokers[own[1]]]))
            return
        else:
            is_cut = (_broker(sock.getpeername()[0]), brokers[own[1]]) in self._cut
        _attach(sock, [(_RETURN, 0, 0, DROP if is_cut else TAKE)])


def _address(broker: int) -> str:
    return f"127.0.{1 + broker // 256}.{broker % 256}"


def _broker(address: str) -> int:
    *_, high, low = map(int, address.split("."))
    return (high - 1) * 256 + low


def _copy(fd: int) -> socket.socket:
    """Another descriptor of the same socket, if it is one: this one may be closed, and be another's, in the next moment. Raises
    OSError."""
    copied = os.dup(fd)
    try:
        return socket.socket(fileno=copied)
    except OSError:
        os.close(copied)
        raise


def _refusing(addresses: Sequence[str]) -> list[Instruction]:
    """A program that drops the packets of these addresses."""
    left = [struct.unpack(">I", socket.inet_aton(one))[0] for one in addresses]
    compare = [(_JUMP_IF_EQUAL, len(left) - at, 0, address) for at, address in enumerate(left)]
    return [(_LOAD_WORD, 0, 0, _SOURCE_ADDRESS), *compare, (_RETURN, 0, 0, TAKE), (_RETURN, 0, 0, DROP)]


def _attach(sock: socket.socket, instructions: Sequence[Instruction]) -> None:
    """Raises OSError."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in instructions))
    program = _Program(len(instructions), ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, bytes(program))
