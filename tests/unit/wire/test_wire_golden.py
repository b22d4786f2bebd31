"""Bytes made by other implementations are read and written again unchanged."""

from pathlib import Path

import pytest

from penstock.pyx.wire import messages
from penstock.pyx.wire.header import decode_request, encode_request
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import ApiVersionsRequest

GOLDEN = Path(__file__).parents[2] / "golden"


def lines(file: str) -> list[list[str]]:
    text = (GOLDEN / file).read_text()
    return [line.split(" ") for line in text.splitlines() if not line.startswith("#")]


def by_message() -> dict[str, list[tuple[int, str, bytes]]]:
    found: dict[str, list[tuple[int, str, bytes]]] = {}
    for file in ("wire_java.hex", "wire_java_39.hex", "wire_kafka_python.hex"):
        for name, version, kind, content in lines(file):
            found.setdefault(name, []).append((int(version), kind, bytes.fromhex(content)))
    return found


GOLDEN_MESSAGES = by_message()


@pytest.mark.parametrize("name", GOLDEN_MESSAGES)
def test_reads_and_writes_what_others_make(name: str) -> None:
    message_class: type[Message] = getattr(messages, name)
    for version, kind, content in GOLDEN_MESSAGES[name]:
        message = message_class.decode(content, version)
        assert message.encode(version) == content, f"v{version} {kind}"
        if kind == "default":
            assert message == message_class()
        elif content.strip(b"\x00"):
            assert message != message_class(), f"v{version}"


def test_goldens_cover_every_version_but_known_ones() -> None:
    without = {
        ("GroupMetadataKey", 2),  # Kafka 4 writes the key's kind apart
        ("OffsetCommitKey", 1),
        ("ConsumerGroupMetadataKey", 3),
        ("ConsumerGroupPartitionMetadataKey", 4),
        ("ConsumerGroupMemberMetadataKey", 5),
        ("ConsumerGroupTargetAssignmentMetadataKey", 6),
        ("ConsumerGroupTargetAssignmentMemberKey", 7),
        ("ConsumerGroupCurrentMemberAssignmentKey", 8),
        ("ConsumerGroupRegularExpressionKey", 16),
        ("StickyAssignorUserData", 1),  # Kafka's assignor writes it without such a class: tests/clients/test_javas_assignors.py
    }
    known = {
        (name, version)
        for name, made in vars(messages).items()
        if isinstance(made, type) and issubclass(made, Message) and made is not Message
        for version in range(made.MIN_VERSION, made.MAX_VERSION + 1)
    }
    golden = {(name, version) for name, made in GOLDEN_MESSAGES.items() for version, _, _ in made}
    assert known - golden == without


def test_named_fields_of_a_golden_message() -> None:
    """Values are numbered in the order of fields, so each must come out under its own name."""
    content = next(c for v, kind, c in GOLDEN_MESSAGES["FetchRequest"] if v == 18 and kind == "full")
    request = messages.FetchRequest.decode(content, 18)
    assert request.max_wait_ms == 1_000_001
    assert request.min_bytes == 1_000_002
    assert request.max_bytes == 1_000_003
    assert request.topics[0].partitions[0].partition < request.topics[0].partitions[0].current_leader_epoch
    assert request.rack_id.startswith("s")
    assert request.cluster_id is not None and request.replica_state.replica_epoch > 10_000_000_000


@pytest.mark.parametrize(("client", "content"), lines("wire_frames.hex"))
def test_first_frames_of_clients(client: str, content: str) -> None:
    frame = bytes.fromhex(content)
    header, request = decode_request(frame)
    assert isinstance(request, ApiVersionsRequest)
    assert header.client_id == "golden"
    if header.api_version >= 3:
        assert client.rpartition("-")[2] in request.client_software_version
    assert encode_request(request, header.api_version, header.correlation_id, header.client_id) == frame


def test_a_null_struct_in_a_tagged_field_is_as_kafka_writes_it() -> None:
    content = bytes.fromhex("000001010100ffffffff0001000100")  # ConsumerGroupMemberMetadataValue, all null
    member = messages.ConsumerGroupMemberMetadataValue.decode(content, 0)
    assert member.classic_member_metadata is None and member.server_assignor is None
    assert member.encode(0) == content
