"""Kafka's error codes, and the exception that carries one.

The table has every code of Apache Kafka 4.4. Codes that it doesn't have can still come over the wire from a
newer peer; KafkaError keeps their number.
"""

import os
import re
import socket
from enum import IntEnum
from typing import Self


class ErrorCode(IntEnum):
    """An error code by Kafka's name. `retriable`: the same request may succeed later."""

    text: str
    retriable: bool

    def __new__(cls, code: int, text: str, retriable: bool = False) -> Self:
        made = int.__new__(cls, code)
        made._value_ = code
        made.text = text
        made.retriable = retriable
        return made

    UNKNOWN_SERVER_ERROR = -1, "The broker failed in a way that it didn't expect"
    NONE = 0, "No error"
    OFFSET_OUT_OF_RANGE = 1, "The offset is outside the range that the broker keeps for the partition"
    CORRUPT_MESSAGE = 2, "A record batch is damaged: its checksum, size or contents don't hold", True
    UNKNOWN_TOPIC_OR_PARTITION = 3, "The broker has no such topic or partition", True
    INVALID_FETCH_SIZE = 4, "The asked fetch size isn't valid"
    LEADER_NOT_AVAILABLE = 5, "The partition has no leader now; an election is under way", True
    NOT_LEADER_OR_FOLLOWER = 6, "The broker isn't the partition's leader, or not a replica of it", True
    REQUEST_TIMED_OUT = 7, "The request took longer than it allowed", True
    BROKER_NOT_AVAILABLE = 8, "The broker isn't available"
    REPLICA_NOT_AVAILABLE = 9, "The replica isn't available at the broker that was asked", True
    MESSAGE_TOO_LARGE = 10, "A record is larger than the topic accepts"
    STALE_CONTROLLER_EPOCH = 11, "The request comes from a controller that has been replaced"
    OFFSET_METADATA_TOO_LARGE = 12, "The metadata beside a committed offset is too long"
    NETWORK_EXCEPTION = 13, "The connection broke before the answer came", True
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator is still loading its state", True
    COORDINATOR_NOT_AVAILABLE = 15, "No coordinator is available now", True
    NOT_COORDINATOR = 16, "The broker isn't the coordinator of this group or transaction", True
    INVALID_TOPIC_EXCEPTION = 17, "The topic's name isn't valid, or clients may not touch the topic"
    RECORD_LIST_TOO_LARGE = 18, "The record batches of the request are larger than the topic's segments"
    NOT_ENOUGH_REPLICAS = 19, "Fewer replicas are in sync than the topic demands", True
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "The records were written, but too few replicas were in sync", True
    INVALID_REQUIRED_ACKS = 21, "The asked number of acknowledgements isn't 0, 1 or -1"
    ILLEGAL_GENERATION = 22, "The generation isn't the group's present one"
    INCONSISTENT_GROUP_PROTOCOL = 23, "The member's protocols have nothing in common with those of its group"
    INVALID_GROUP_ID = 24, "The group id isn't valid"
    UNKNOWN_MEMBER_ID = 25, "The group doesn't know the member"
    INVALID_SESSION_TIMEOUT = 26, "The session timeout is outside what the broker allows"
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing; members must join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, "The offsets are too large to be committed in one batch"
    TOPIC_AUTHORIZATION_FAILED = 29, "The principal may not use the topic"
    GROUP_AUTHORIZATION_FAILED = 30, "The principal may not use the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, "The principal may not do that to the cluster"
    INVALID_TIMESTAMP = 32, "A record's timestamp is outside what the topic accepts"
    UNSUPPORTED_SASL_MECHANISM = 33, "The broker doesn't offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, "The request doesn't fit the state of the SASL exchange"
    UNSUPPORTED_VERSION = 35, "The broker doesn't speak that version of the request"
    TOPIC_ALREADY_EXISTS = 36, "A topic of that name exists already"
    INVALID_PARTITIONS = 37, "The number of partitions isn't valid"
    INVALID_REPLICATION_FACTOR = (
        38,
        "The replication factor isn't valid, or higher than the number of brokers",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, "The assignment of replicas isn't valid"
    INVALID_CONFIG = 40, "A setting isn't valid"
    NOT_CONTROLLER = 41, "The broker isn't the controller", True
    INVALID_REQUEST = 42, "The request contradicts itself or what its version allows"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The records' format doesn't offer what was asked"
    POLICY_VIOLATION = 44, "A policy of the cluster forbids the request"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "The producer's sequence number doesn't follow the last one"
    DUPLICATE_SEQUENCE_NUMBER = 46, "The producer has sent that sequence number before"
    INVALID_PRODUCER_EPOCH = 47, "The producer's epoch is older than the one known to the broker"
    INVALID_TXN_STATE = 48, "The transaction's state doesn't allow that operation"
    INVALID_PRODUCER_ID_MAPPING = 49, "The producer id isn't the one that belongs to the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, "The transaction timeout is longer than the broker allows"
    CONCURRENT_TRANSACTIONS = 51, "Another operation on the same transaction is still under way", True
    TRANSACTION_COORDINATOR_FENCED = 52, "The transaction coordinator has been replaced by a newer one"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "The principal may not use the transactional id"
    SECURITY_DISABLED = 54, "The broker has no security features switched on"
    OPERATION_NOT_ATTEMPTED = 55, "The operation wasn't attempted, because another of the same request failed"
    KAFKA_STORAGE_ERROR = 56, "The broker's disk is full or has failed", True
    LOG_DIR_NOT_FOUND = 57, "The log folder isn't among those of the broker"
    SASL_AUTHENTICATION_FAILED = 58, "The SASL exchange failed: the credentials aren't accepted"
    UNKNOWN_PRODUCER_ID = 59, "The broker has no state of that producer id any more"
    REASSIGNMENT_IN_PROGRESS = 60, "A reassignment of the partition is under way"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, "The broker doesn't have the delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal isn't owner or renewer of the delegation token"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        "Delegation tokens can't be asked for over this kind of connection",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "The principal may not use delegation tokens"
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "The principal's type isn't supported"
    NON_EMPTY_GROUP = 68, "The group has members"
    GROUP_ID_NOT_FOUND = 69, "There is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, "The broker doesn't have the fetch session", True
    INVALID_FETCH_SESSION_EPOCH = 71, "The fetch session's epoch isn't the expected one", True
    LISTENER_NOT_FOUND = 72, "The leader has no listener like the one the request came through", True
    TOPIC_DELETION_DISABLED = 73, "The cluster doesn't allow topics to be deleted"
    FENCED_LEADER_EPOCH = 74, "The leader epoch is older than the broker's", True
    UNKNOWN_LEADER_EPOCH = 75, "The leader epoch is newer than the broker's", True
    UNSUPPORTED_COMPRESSION_TYPE = 76, "The asker's version can't read the compression of these records"
    STALE_BROKER_EPOCH = 77, "The broker's own epoch has been replaced"
    OFFSET_NOT_AVAILABLE = 78, "The new leader doesn't know its high watermark yet", True
    MEMBER_ID_REQUIRED = 79, "The member must join again with the id that came with this answer"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The preferred leader isn't available", True
    GROUP_MAX_SIZE_REACHED = 81, "The group is full"
    FENCED_INSTANCE_ID = 82, "Another member has taken over the group instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "None of the partition's eligible leaders is available", True
    ELECTION_NOT_NEEDED = 84, "The partition needs no election", True
    NO_REASSIGNMENT_IN_PROGRESS = 85, "No reassignment of the partition is under way"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "The group subscribes to the topic, so its offsets can't be deleted"
    INVALID_RECORD = 87, "A record isn't one that the topic accepts"
    UNSTABLE_OFFSET_COMMIT = 88, "Offsets of unfinished transactions hide the committed one", True
    THROTTLING_QUOTA_EXCEEDED = 89, "The client exceeds its quota", True
    PRODUCER_FENCED = 90, "A newer producer with the same transactional id has taken over"
    RESOURCE_NOT_FOUND = 91, "There is no such resource"
    DUPLICATE_RESOURCE = 92, "The resource exists already"
    UNACCEPTABLE_CREDENTIAL = 93, "The credential isn't acceptable"
    INCONSISTENT_VOTER_SET = 94, "The two sides know different sets of voters"
    INVALID_UPDATE_VERSION = 95, "The update's version isn't valid"
    FEATURE_UPDATE_FAILED = 96, "The feature couldn't be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "The forwarded principal couldn't be read"
    SNAPSHOT_NOT_FOUND = 98, "There is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, "The position is beyond the end of the snapshot"
    UNKNOWN_TOPIC_ID = 100, "The broker has no topic of that id", True
    DUPLICATE_BROKER_REGISTRATION = 101, "A broker of that id is registered already"
    BROKER_ID_NOT_REGISTERED = 102, "The broker id isn't registered"
    INCONSISTENT_TOPIC_ID = 103, "The topic id isn't the one in the broker's log", True
    INCONSISTENT_CLUSTER_ID = 104, "The cluster id isn't the broker's"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "There is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "The topic ids don't fit the fetch session", True
    INELIGIBLE_REPLICA = 107, "The replica may not join those in sync"
    NEW_LEADER_ELECTED = 108, "A new leader has been elected"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The offset has been moved to tiered storage"
    FENCED_MEMBER_EPOCH = 110, "The coordinator has fenced the member by its epoch"
    UNRELEASED_INSTANCE_ID = 111, "The group instance id is still held by another member"
    UNSUPPORTED_ASSIGNOR = 112, "The group's coordinator doesn't offer the assignor"
    STALE_MEMBER_EPOCH = 113, "The member's epoch is old; it must retry with the new one"
    MISMATCHED_ENDPOINT_TYPE = 114, "The request was sent to the wrong kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "The endpoint type isn't supported"
    UNKNOWN_CONTROLLER_ID = 116, "The controller id isn't known"
    UNKNOWN_SUBSCRIPTION_ID = 117, "The telemetry subscription id isn't known"
    TELEMETRY_TOO_LARGE = 118, "The telemetry is larger than the broker accepts"
    INVALID_REGISTRATION = 119, "The broker's registration isn't valid"
    TRANSACTION_ABORTABLE = 120, "The transaction failed and must be aborted; the producer may go on"
    INVALID_RECORD_STATE = 121, "The record's state doesn't allow the acknowledgement"
    SHARE_SESSION_NOT_FOUND = 122, "There is no such share session", True
    INVALID_SHARE_SESSION_EPOCH = 123, "The share session's epoch isn't the expected one", True
    FENCED_STATE_EPOCH = 124, "The share coordinator has fenced the state epoch"
    INVALID_VOTER_KEY = 125, "The voter's key isn't that of the receiver"
    DUPLICATE_VOTER = 126, "The voter is among the voters already"
    VOTER_NOT_FOUND = 127, "The voter isn't among the voters"
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression isn't valid"
    REBOOTSTRAP_REQUIRED = 129, "The client should start again from its bootstrap servers"
    STREAMS_INVALID_TOPOLOGY = 130, "The streams topology isn't valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The streams topology's epoch isn't valid"
    STREAMS_TOPOLOGY_FENCED = 132, "The streams topology has been replaced by a newer one"
    SHARE_SESSION_LIMIT_REACHED = 133, "The broker can't hold more share sessions", True
    GROUP_DELETION_FAILED = 134, "The group could not be deleted; the message of its result says why"
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, "The broker could not take the topology description; its message says why"
    CONTROLLER_ID_NOT_REGISTERED = 136, "The controller id isn't registered"


_BY_CODE: dict[int, ErrorCode] = {int(member): member for member in ErrorCode}


class KafkaError(Exception):
    """A request or a part of one was answered with an error code, maybe one that ErrorCode doesn't have."""

    def __init__(self, code: int, what: str = "") -> None:
        known = _BY_CODE.get(code)
        self.code = int(code)
        self.name = known.name if known is not None else f"error {self.code}"
        self.retriable = known is not None and known.retriable
        text = known.text if known is not None else "a code unknown to this version"
        super().__init__(f"{what}: {self.name}: {text}" if what else f"{self.name}: {text}")
        self.what = what

    def __reduce__(self) -> tuple[type["KafkaError"], tuple[int, str]]:
        return type(self), (self.code, self.what)


def raise_for(code: int, what: str = "") -> None:
    """Raises KafkaError unless `code` is 0. `what` says what was attempted and leads the message."""
    if code != ErrorCode.NONE:
        raise KafkaError(code, what)


def os_error_text(error: OSError) -> str:
    """An error of the operating system for people: what it is about and what is wrong, without its number."""
    about = f"`{error.filename}`: " if error.filename is not None else ""
    if isinstance(error, socket.gaierror) or not error.errno:
        return about + (error.strerror or re.sub(r"\[Errno -?\d+\] ", "", str(error)))
    return about + os.strerror(error.errno)
