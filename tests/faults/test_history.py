"""The judge judged: a lawful history has no anomaly, and each planted one is found."""

import copy
from collections.abc import Callable

import pytest

from support.history import (
    FINAL,
    Assigned,
    Commit,
    End,
    History,
    Outcome,
    Poll,
    Send,
    check,
    decode,
    encode,
    kinds,
)


def lawful() -> History:
    """Two producers, one transactional; a group member and the final read; offsets have lawful gaps."""
    history = History()
    for n in range(10):
        history.sends.append(Send("a", n, 0, f"a{n}", Outcome.OK, n, n, n + 0.5))
    for n in range(6):
        # Transactions of two: committed at 0 and 1, aborted at 3 and 4, unknown but written at 6 and 7.
        outcome = (Outcome.OK, Outcome.FAIL, Outcome.INFO)[n // 2]
        offset = n + n // 2
        history.sends.append(Send("t", n, 1, f"t{n}", outcome, offset, n, n + 0.5, f"txn{n // 2}"))
    history.sends.append(Send("a", 10, 0, "a10", Outcome.INFO, None, 11, 12))
    first = [(0, n, f"a{n}") for n in range(10)]
    second = [(1, 0, "t0"), (1, 1, "t1"), (1, 6, "t4"), (1, 7, "t5")]
    history.polls += [
        Poll("g", 1, first[:5], 20, 21),
        Poll("g", 1, first[5:] + second[:1], 21, 22),
        Poll(FINAL, 0, first, 30, 31),
        Poll(FINAL, 0, second, 31, 32),
    ]
    history.assigned += [Assigned("g", {0: 0, 1: 0}, 19), Assigned("g", {0: 5}, 25)]
    history.commits.append(Commit("g", {0: 5}, Outcome.OK, 21.5, 22))
    history.ends += [End(0, 10, 15, 16), End(1, 9, 15, 16), End(0, 10, 17, 18)]
    return history


def test_a_lawful_history_is_valid() -> None:
    assert check(lawful()) == []


def put(consumer: str, partition: int, offset: int, value: str) -> Callable[[History], None]:
    """Let a consumer read one record more, in a poll of its own."""

    def plant(history: History) -> None:
        history.polls.append(Poll(consumer, 9, [(partition, offset, value)], 40, 41))

    return plant


def drop(partition: int, offset: int) -> Callable[[History], None]:
    """Take a record out of all that was read."""

    def plant(history: History) -> None:
        for poll in history.polls:
            poll.records = [record for record in poll.records if record[:2] != (partition, offset)]

    return plant


def swap_offsets(history: History) -> None:
    history.sends[3].offset, history.sends[4].offset = 4, 3


def skip_in_poll(history: History) -> None:
    del history.polls[0].records[2]


def skip_between_polls(history: History) -> None:
    del history.polls[1].records[0]


def go_back(history: History) -> None:
    history.polls.insert(2, Poll("g", 1, [(0, 3, "a3")], 23, 24))


def forget_in_final_read(history: History) -> None:
    del history.polls[2].records[2]


def no_acknowledgement(history: History) -> None:
    for send in history.sends:
        send.outcome = Outcome.INFO


def no_final_read(history: History) -> None:
    history.polls = [poll for poll in history.polls if poll.consumer != FINAL]


PLANTS: list[tuple[str, Callable[[History], None]]] = [
    ("inconsistent_offset", put("x", 0, 4, "a10")),
    ("duplicate", put("x", 0, 12, "a4")),
    ("ack_offset_mismatch", swap_offsets),
    ("corrupt_payload", put("x", 0, 12, decode(b"garbage that is no payload"))),
    ("wrong_partition", put("x", 1, 12, "a10")),
    ("phantom", put("x", 0, 12, "nobody")),
    ("aborted_read", put("x", 1, 3, "t2")),
    ("lost_write", drop(0, 4)),
    ("unseen", drop(0, 9)),
    ("torn_txn", drop(1, 6)),
    ("reread_differs", forget_in_final_read),
    ("nonmonotonic_send", swap_offsets),
    ("poll_skip", skip_in_poll),
    ("poll_skip", skip_between_polls),
    ("poll_nonmonotonic", go_back),
    ("group_rewound", lambda history: history.assigned.append(Assigned("g", {0: 4}, 50))),
    ("group_skip", lambda history: history.assigned.append(Assigned("g", {0: 6}, 50))),
    ("stale_end", lambda history: history.ends.append(End(0, 9, 60, 61))),
    ("end_regression", lambda history: history.ends.append(End(1, 8, 60, 61))),
    ("vacuous", no_acknowledgement),
    ("vacuous", no_final_read),
]


@pytest.mark.parametrize(("kind", "plant"), PLANTS, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(PLANTS)])
def test_each_planted_anomaly_is_found(kind: str, plant: Callable[[History], None]) -> None:
    history = copy.deepcopy(lawful())
    plant(history)
    assert kind in kinds(check(history))


def test_a_payload_tells_when_it_was_damaged() -> None:
    payload = encode("a1", 100)
    assert len(payload) == 100 and decode(payload) == "a1"
    for place in range(len(payload)):
        damaged = bytearray(payload)
        damaged[place] ^= 1
        assert decode(bytes(damaged)).startswith("!corrupt")
    assert decode(None).startswith("!corrupt")
