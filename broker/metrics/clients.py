"""`/clients`: who is connected, in JSON. It has addresses and client ids, so `/metrics` hasn't."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from penstock.broker.turns import Turns
from penstock.http import Answer
from penstock.pyx.net.border import DataPlane

CONNECTIONS_MAX = 10_000
JSON = "application/json"


async def answer(data_plane: DataPlane, headers: Mapping[str, str]) -> Answer:
    """`{"time": SECONDS, "connections": ALL, "clients": [...]}`; at most CONNECTIONS_MAX clients are listed.
    Numbers are counted since a client connected: how busy it is, two looks say."""
    turns, rows = Turns(), []
    for one in data_plane.connections(CONNECTIONS_MAX):
        await turns.take()
        rows.append(json.dumps(one._asdict()))
    head = {"time": time.time(), "connections": data_plane.counters()["connections"]}
    body = f'{json.dumps(head)[:-1]}, "clients": [\n' + ",\n".join(rows) + "\n]}\n"
    return Answer(200, JSON, body.encode())
