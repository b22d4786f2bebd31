"""The rim around handlers: what is answered, what closes a connection, and that nothing stops the loop."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker import dispatch
from penstock.broker.configs.features import Features
from penstock.broker.context import Call, Context
from penstock.pyx.wire.header import REQUESTS, decode_response, encode_request
from penstock.pyx.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    ProduceRequest,
)


@dataclass
class Frame:
    """A request as the data plane would hand it over."""

    token: int
    api_key: int
    api_version: int
    correlation_id: int
    frame: bytes
    peer: str = "127.0.0.1:1"
    listener: str = "PLAINTEXT"
    handed_over: bool = False


@dataclass
class Answers:
    """Keeps what was answered and closed."""

    answered: dict[int, bytes] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)

    def answer(self, token: int, frame: bytes) -> None:
        assert token not in self.answered
        self.answered[token] = frame

    def close_connection(self, token: int) -> None:
        self.closed.append(token)


def run(*frames: Frame) -> tuple[Answers, dispatch.Dispatch]:
    async def main() -> tuple[Answers, dispatch.Dispatch]:
        answers = Answers()
        # ApiVersions needs only the features; a handler that needs more fails, which is a case below.
        rim = dispatch.Dispatch(cast(Context, SimpleNamespace(features=Features())), cast(Any, answers))
        rim.take(cast(Any, list(frames)))
        for _ in range(5):
            await asyncio.sleep(0)
        await rim.stop()
        return answers, rim

    return asyncio.run(main())


def api_versions(version: int, token: int = 1) -> Frame:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    return Frame(token, 18, version, 7, encode_request(request, version, 7, "me"))


@pytest.mark.parametrize("version", range(5))
def test_api_versions_tells_exactly_what_is_registered(version: int) -> None:
    answers, _ = run(api_versions(version))
    correlation_id, response = decode_response(ApiVersionsResponse, answers.answered[1], version)
    assert correlation_id == 7 and response.error_code == 0
    told = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    assert told == {key: handler.versions for key, handler in dispatch.registry().items()}
    assert told[0] == (0, 13) and told[1] == (0, 18) and told[3] == (0, 13) and told[18] == (0, 4)


def test_every_advertised_version_has_a_wire_table() -> None:
    for key, handler in dispatch.registry().items():
        assert (
            REQUESTS[key].MIN_VERSION
            <= handler.versions[0]
            <= handler.versions[1]
            <= REQUESTS[key].MAX_VERSION
        )


def test_an_unknown_version_of_api_versions_is_answered_with_its_range() -> None:
    answers, _ = run(Frame(1, 18, 99, 7, b"\x00\x12\x00\x63\x00\x00\x00\x07whatever"))
    _, response = decode_response(ApiVersionsResponse, answers.answered[1], 0)
    assert response.error_code == 35
    assert [(key.api_key, key.min_version, key.max_version) for key in response.api_keys] == [(18, 0, 4)]


@pytest.mark.parametrize(
    "frame",
    [
        Frame(1, 9999, 0, 7, b"\x27\x0f\x00\x00\x00\x00\x00\x07\xff\xff"),
        Frame(1, 3, 99, 7, b"\x00\x03\x00\x63\x00\x00\x00\x07\xff\xff"),
        Frame(1, 3, 9, 7, b"\x00\x03\x00\x09\x00\x00\x00\x07\xff\xff\x00\xff\xff\xff\xff\x0f"),
        Frame(1, 3, 1, 7, b"\x00\x03"),
        Frame(1, 0, 2, 7, encode_request(ProduceRequest(acks=1, timeout_ms=1), 2, 7, None)),
    ],
    ids=["unknown api", "unknown version", "array longer than the frame", "cut header", "produce 2"],
)
def test_what_is_wrong_closes_its_connection_and_no_other(frame: Frame) -> None:
    answers, rim = run(frame, api_versions(3, token=2))
    assert answers.closed == [1]
    assert list(answers.answered) == [2]
    assert rim.failed == 0


def test_a_handler_that_fails_closes_its_connection_and_is_counted() -> None:
    frame = Frame(1, 3, 12, 7, encode_request(MetadataRequest(topics=None), 12, 7, None))
    answers, rim = run(frame, api_versions(3, token=2))
    assert answers.closed == [1] and list(answers.answered) == [2]
    assert rim.failed == 1


def test_handlers_start_in_the_order_of_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str | None] = []

    async def handle(context: Context, request: Any, call: Call) -> ApiVersionsResponse:
        started.append(call.client_id)
        await asyncio.sleep(0)
        return ApiVersionsResponse()

    dispatch.HANDLERS.update(dispatch.registry())
    monkeypatch.setitem(dispatch.HANDLERS, 18, dispatch.Handler(18, (0, 4), handle, "api_versions"))
    frames = [Frame(n, 18, 0, n, encode_request(ApiVersionsRequest(), 0, n, f"c{n}")) for n in range(50)]
    answers, _ = run(*frames)
    assert started == [f"c{n}" for n in range(50)]
    assert list(answers.answered) == list(range(50))
