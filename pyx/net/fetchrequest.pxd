"""A follower's fetch: Fetch 17, with topics by id and the follower's broker epoch, in a session (KIP-227) or for one.

  header 2 | max_wait, min_bytes, max_bytes int32 | isolation int8 | session_id, session_epoch int32
  | topics: topic_id 16 | partitions: index, leader epoch int32 | offset int64 | last epoch int32 | log start int64
    | partition_max_bytes int32 | tags
  | topics to forget: topic_id 16 | indexes | rack | tags (1: ReplicaState {id int32, broker epoch int64})
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.vector cimport vector

from penstock.pyx.record.frame cimport TOPIC_ID_BYTES, Slice, Writer

# What all requests of a thread have in common, but for the session and the wait.
cdef struct FetchTerms:
    int32_t node_id
    int64_t broker_epoch
    int32_t wait_ms
    int32_t min_bytes
    int32_t answer_bytes
    int32_t partition_bytes
    int32_t session_id
    int32_t session_epoch
    Slice client_id

cdef struct FetchKey:
    uint8_t topic_id[TOPIC_ID_BYTES]
    int32_t index

cdef struct FetchPart:
    FetchKey key
    int32_t leader_epoch
    int64_t offset
    int32_t last_epoch                # of the log's last batch; -1: the log is empty
    int64_t log_start

# Partitions that follow each other and are of one topic are one topic of the request. With its size in front.
cdef void write_fetch(
    Writer* w, int32_t correlation_id, const FetchTerms* terms, const vector[FetchPart]& parts,
    const vector[FetchKey]& forgotten
) noexcept nogil
