"""`penstock clients`."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from penstock.config import ConfigError, read_properties
from penstock.hints import quoted
from penstock.pipeline.options import AS_JSON, show_rows

DEFAULT_HTTP = "127.0.0.1:9404"
LISTEN = "penstock.http.listen"
PATIENCE_S = 10.0
COUNTED = ("requests", "bytes_in", "bytes_out")


@click.command("clients")
@click.option(
    "--http", "address", metavar="HOST:PORT", envvar="PENSTOCK_HTTP",
    help=f"The broker's `{LISTEN}`; also from $PENSTOCK_HTTP.  [default: {DEFAULT_HTTP}]",
)  # fmt: skip
@click.option("--config", "path", metavar="FILE", type=click.Path(path_type=Path), help="The broker's properties.")
@click.option(
    "--interval", "interval_s", metavar="SECONDS", type=click.FloatRange(min=0.1, max=3600), default=1.0, show_default=True,
    help="Time between the two looks that rates are made of.",
)  # fmt: skip
@AS_JSON
def command(address: str | None, path: Path | None, interval_s: float, as_json: bool) -> None:
    """Show who is connected to one of our brokers, with which software and version, and how busy it is, the busiest first.

    The broker tells this by HTTP, if its property `penstock.http.listen` is set. Of a cluster, ask each broker.

    Example: penstock clients --http 127.0.0.1:9404
    """
    where = address or (DEFAULT_HTTP if path is None else _listens_at(path))
    first = _look(where)
    time.sleep(interval_s)
    second = _look(where)
    passed_s = second["time"] - first["time"]
    before = {(one["peer"], one["listener"]): one for one in first["clients"]}
    rows = [
        _row(one, before.get((one["peer"], one["listener"])) if one["age_ms"] >= passed_s * 1000 else None, passed_s)
        for one in second["clients"]
    ]
    rows.sort(key=lambda row: (-row["requests_per_s"], row["idle_s"]))
    show_rows(rows, "clients", as_json=as_json)
    if (more := second["connections"] - len(rows)) > 0 and not as_json:
        click.echo(f"the broker doesn't list {more} further connections", err=True)


def _listens_at(path: Path) -> str:
    """Where the broker of a properties file serves HTTP. Raises ConfigError, ClickException."""
    listen = read_properties(path).get(LISTEN, "").strip()
    if not listen:
        raise click.ClickException(
            f"the broker of `{path}` doesn't serve HTTP: the file lacks `{LISTEN}`\n"
            f"hint: echo {LISTEN}={DEFAULT_HTTP} >> {quoted(path)}, and restart the broker"
        )
    host, _, port = listen.rpartition(":")
    if port == "0":
        raise click.ClickException(
            f"`{LISTEN}={listen}` of `{path}` is any free port: the broker's start line says which one\n"
            f"hint: penstock clients --http HOST:PORT"
        )
    return f"127.0.0.1:{port}" if host in ("", "0.0.0.0", "[::]") else listen


def _look(where: str) -> dict[str, Any]:
    """What a broker says of its clients. Raises ClickException."""
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"`--http {quoted(where)}` is not HOST:PORT")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PATIENCE_S)
    try:
        connection.request("GET", "/clients")
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise click.ClickException(
            f"no broker answers by HTTP at {where}: {reason}\n"
            f"hint: penstock broker --config FILE --set {quoted(f'{LISTEN}={where}')}"
        ) from None
    finally:
        connection.close()
    if answer.status != 200:
        said = body[:200].decode("utf-8", "replace").strip()
        raise click.ClickException(f"what listens at {where} answers {answer.status} for /clients: {said}")
    try:
        found = json.loads(body)
        if not isinstance(found, dict) or not found.keys() >= {"time", "connections", "clients"}:
            raise ValueError
    except ValueError:
        raise click.ClickException(f"what listens at {where} is no broker: its /clients can't be read") from None
    return found


def _row(one: Mapping[str, Any], before: Mapping[str, Any] | None, passed_s: float) -> dict[str, Any]:
    """A client as it is shown; `before`: the same one at the first look, so long ago."""
    if before is None:  # It has connected since.
        before, passed_s = dict.fromkeys(COUNTED, 0), one["age_ms"] / 1000
    rates = {name: round((one[name] - before[name]) / max(passed_s, 0.001), 1) for name in COUNTED}
    return {
        "peer": one["peer"],
        "client_id": one["client_id"],
        "software": one["software_name"],
        "version": one["software_version"],
        "listener": one["listener"],
        "connected_s": one["age_ms"] // 1000,
        "idle_s": one["idle_ms"] // 1000,
        "requests_per_s": rates["requests"],
        "bytes_in_per_s": rates["bytes_in"],
        "bytes_out_per_s": rates["bytes_out"],
    }
