"""What Prometheus asks a broker for, and how a broker is asked each second while something else is measured."""

from __future__ import annotations

import threading
import time
import urllib.request
from typing import Self

TIMEOUT_S = 60.0
HTTP = {"penstock.http.listen": "127.0.0.1:0"}
"""The properties of a broker that is scraped."""


def scrape(address: str) -> bytes:
    """The page of one scrape. Raises OSError."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
        return bytes(answer.read())


class Scraper:
    """Asks for a page each second, in a thread, while the block lasts."""

    def __init__(self, address: str, every_s: float = 1.0) -> None:
        self._address, self._every_s = address, every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.scrapes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            scrape(self._address)
            self.scrapes += 1
            due_s += self._every_s
