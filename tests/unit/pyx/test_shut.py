"""A data plane that is shut has no connections, until it is open again."""

from __future__ import annotations

from support.dataplane import Broker, api_versions, echo


def test_all_connections_are_closed_and_new_ones_at_once() -> None:
    with Broker() as broker:
        held = [*broker.connect_each(), broker.between()]
        for peer in held:
            peer.send(api_versions())
            peer.receive()
        broker.plane.shut(True)
        assert all(peer.has_ended() for peer in held)
        assert broker.connect().has_ended()
        broker.plane.shut(False)
        assert broker.is_alive()


def test_an_answer_that_comes_late_goes_nowhere() -> None:
    with Broker(lambda request: None) as broker:
        peer = broker.connect()
        peer.send(api_versions())
        (request,) = broker.wait_held(1)
        broker.plane.shut(True)
        assert peer.has_ended()
        broker.plane.shut(False)
        broker.plane.answer(request.token, b"late")
        broker.control = echo
        assert broker.is_alive()


def test_threads_that_have_heard_of_it_keep_their_connections() -> None:
    with Broker() as broker:
        broker.plane.shut(True)
        assert broker.connect().has_ended()
        broker.plane.shut(False)
        assert broker.is_alive()
        broker.plane.hang_up_held()
        assert broker.is_alive()
