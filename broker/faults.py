"""Faults that a test asks of an in-process broker: delay, refuse or drop the n-th request of an API.

A fault is named by the API's name as Kafka writes it (`Produce`, `Fetch`, `OffsetCommit`, ...) and counts that API's requests
from the moment at which it was planted, over all connections. Produce and Fetch, which the network threads serve by
themselves, come to the control plane while a fault of theirs is planted, and go back to be served.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol

from penstock.broker.dispatch import HANDLERS
from penstock.broker.refusal import has_error, refusal
from penstock.errors import ErrorCode
from penstock.pyx.net.border import Request
from penstock.pyx.wire.header import REQUESTS, RESPONSES, decode_request_header, encode_response

PRODUCE, FETCH = 0, 1
# Of no connection: the network threads drop an answer to it.
NO_TOKEN = (1 << 64) - 1
Kind = Literal["delay", "error", "drop", "lose_answer"]


class FaultError(ValueError):
    """A fault that can't be planted; the text says why."""


class Plane(Protocol):
    """What of the network threads a fault needs (`penstock.pyx.net.border.DataPlane`)."""

    def divert(self, api_key: int, on: bool) -> None:
        """Send an API's requests to the control plane, or no longer."""
        ...

    def resume(self, request: Request, *, lose_answer: bool = False) -> None:
        """Serve a diverted request after all."""
        ...

    def answer(self, token: int, frame: bytes) -> None:
        """Answer a request."""
        ...

    def close_connection(self, token: int) -> None:
        """Close a request's connection."""
        ...


@dataclass
class Fault:
    """A planted fault. `hits`: how many requests it has met so far."""

    api: str
    kind: Kind
    first: int
    last: int
    seconds: float = 0.0
    code: ErrorCode = ErrorCode.NONE
    seen: int = 0
    hits: int = 0

    @property
    def done(self) -> bool:
        """Whether it has met every request that it was planted for."""
        return self.seen >= self.last


@cache
def served_versions(api_key: int) -> range:
    """The versions of Produce or Fetch that the network threads serve."""
    low, high = HANDLERS[api_key].versions
    return range(low, high + 1)


@cache
def api_keys() -> dict[str, int]:
    """Every API's name and key."""
    return {request.__name__.removesuffix("Request"): key for key, request in REQUESTS.items()}


class Faults:
    """The faults of one broker; `plant` and `clear` may be called from any thread, also while it is stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planted: list[Fault] = []
        self._plane: Plane | None = None

    def delay(self, api: str, seconds: float, *, nth: int = 1, times: int = 1) -> Fault:
        """Carry out the n-th request (and the `times - 1` after it) that much later. Raises FaultError."""
        return self._plant(Fault(api, "delay", nth, nth + times - 1, seconds=seconds))

    def error(self, api: str, code: ErrorCode | str, *, nth: int = 1, times: int = 1) -> Fault:
        """Answer with Kafka's error code and carry nothing out. Raises FaultError, also for an API whose answer has no
        place for an error."""
        try:
            known = ErrorCode[code] if isinstance(code, str) else code
        except KeyError:
            raise FaultError(f"Kafka has no error `{code}`") from None
        if api in api_keys() and not has_error(RESPONSES[api_keys()[api]]):
            raise FaultError(f"an answer to {api} has no error code")
        return self._plant(Fault(api, "error", nth, nth + times - 1, code=known))

    def drop(self, api: str, *, nth: int = 1, times: int = 1) -> Fault:
        """Close the connection and carry nothing out: the request was lost. Raises FaultError."""
        return self._plant(Fault(api, "drop", nth, nth + times - 1))

    def lose_answer(self, api: str, *, nth: int = 1, times: int = 1) -> Fault:
        """Carry the request out and close the connection instead of answering. Raises FaultError."""
        return self._plant(Fault(api, "lose_answer", nth, nth + times - 1))

    def clear(self) -> None:
        """Forget every fault; what is delayed is carried out in its time."""
        with self._lock:
            self._planted.clear()
            self._divert()

    def before(self, take: Callable[[list[Request]], None], plane: Plane) -> Callable[[list[Request]], None]:
        """What takes requests instead of `take`, for a broker that starts with these network threads."""
        with self._lock:
            self._plane = plane
            self._divert()
        return FaultyRim(self, take, plane).take

    def meet(self, api_key: int) -> Fault | None:
        """Count a request; the fault that it meets, if any."""
        with self._lock:
            met = None
            for fault in self._planted:
                if api_keys()[fault.api] != api_key:
                    continue
                fault.seen += 1
                if met is None and fault.first <= fault.seen <= fault.last:
                    fault.hits += 1
                    met = fault
            if met is not None:
                self._planted = [fault for fault in self._planted if not fault.done]
                self._divert()
            return met

    def _plant(self, fault: Fault) -> Fault:
        if fault.api not in api_keys():
            raise FaultError(f"there is no API `{fault.api}`; Kafka's names are {', '.join(sorted(api_keys()))}")
        if fault.first < 1 or fault.last < fault.first:
            raise FaultError("`nth` and `times` start at 1")
        with self._lock:
            self._planted.append(fault)
            self._divert()
        return fault

    def _divert(self) -> None:
        if self._plane is None:
            return
        wanted = {api_keys()[fault.api] for fault in self._planted}
        for api_key in (PRODUCE, FETCH):
            self._plane.divert(api_key, api_key in wanted)


class FaultyRim:
    """Stands before a broker's dispatch and lets planted faults happen. Runs on the broker's loop."""

    def __init__(self, faults: Faults, take: Callable[[list[Request]], None], plane: Plane) -> None:
        self._faults = faults
        self._plane = plane
        self._dispatch = take

    def take(self, requests: list[Request]) -> None:
        """Requests as they came; never raises for what is in them."""
        for request in requests:
            if request.handed_over:  # By the network thread that served it: it was counted before.
                self._dispatch([request])
                continue
            fault = self._faults.meet(request.api_key)
            if fault is None:
                self._go_on(request)
            elif fault.kind == "delay":
                asyncio.get_running_loop().call_later(fault.seconds, self._go_on, request)
            elif fault.kind == "error":
                self._refuse(request, fault.code)
            elif fault.kind == "lose_answer" and request.api_key == PRODUCE:
                self._plane.resume(request, lose_answer=True)
            elif fault.kind == "lose_answer" and request.api_key != FETCH:
                self._lose_answer(request)
            else:
                self._plane.close_connection(request.token)

    def _go_on(self, request: Request) -> None:
        if request.api_key in (PRODUCE, FETCH) and request.api_version in served_versions(request.api_key):
            self._plane.resume(request)
        else:
            self._dispatch([request])

    def _lose_answer(self, request: Request) -> None:
        # Carried out under a token that no client waits for; the connection ends at once.
        self._dispatch([request._replace(token=NO_TOKEN)])
        self._plane.close_connection(request.token)

    def _refuse(self, request: Request, code: ErrorCode) -> None:
        try:
            header = decode_request_header(request.frame)
            body = memoryview(request.frame)[header.body_start :]
            asked = REQUESTS[request.api_key].decode(body, request.api_version, trailing=True)
            answer = refusal(asked, code)
            frame = encode_response(answer, request.api_version, request.correlation_id)
        except (ValueError, LookupError):
            self._plane.close_connection(request.token)
            return
        self._plane.answer(request.token, frame)
