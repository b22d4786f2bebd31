"""The error table is the clients' own, and KafkaError keeps numbers that it doesn't know."""

import inspect
import pickle
from pathlib import Path

import kafka.errors
import pytest

from penstock.errors import ErrorCode, KafkaError, raise_for

GOLDEN = Path(__file__).parents[2] / "golden" / "errors_java.tsv"


def test_table_is_apache_kafkas() -> None:
    rows = [line.split("\t") for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    theirs = {int(code): (name, retriable == "true") for code, name, retriable in rows}
    assert {int(e): (e.name, e.retriable) for e in ErrorCode} == theirs


def test_every_code_of_kafka_python_is_known() -> None:
    codes = {
        code
        for made in vars(kafka.errors).values()
        if inspect.isclass(made) and isinstance(code := getattr(made, "errno", None), int)
    }
    assert len(codes) > 120
    assert codes <= {int(e) for e in ErrorCode}


def test_every_code_has_its_own_text() -> None:
    assert len({e.text for e in ErrorCode}) == len(ErrorCode)


def test_known_code() -> None:
    with pytest.raises(KafkaError, match="fetch of a-0: NOT_LEADER_OR_FOLLOWER: ") as caught:
        raise_for(6, "fetch of a-0")
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert caught.value.retriable
    raise_for(0, "nothing")


def test_unknown_code_keeps_its_number() -> None:
    error = KafkaError(12_345, "x")
    assert (error.code, error.retriable) == (12_345, False)
    assert "12345" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, str(again)) == (error.code, str(error))
