"""Counters of topics: records and bytes in and out, requests, refusals. A thread writes plain numbers under the
partition's lock, or adds atomically. Readers sum them without a lock that an append or a fetch waits for.

A partition's tally belongs to its topic, not to its log: a log that moves to another folder, or is opened again, goes
on with the tally of the log before it. A deleted topic takes its tallies along; the sum of all topics keeps them.

Kafka's meanings (its BrokerTopicMetrics), with these differences:
  - A batch that is in the log already (a producer sent it again) adds no messages or bytes; Kafka counts it again.
  - Each error that a partition is answered with is a failed request. Kafka leaves out those that it knows (not the
    leader, too large, corrupt, out of range ...).
  - A request for a partition that isn't here is counted in the sum of all, under no topic: clients choose its name.
As in Kafka a request counts once for each partition that it names, and appends of the coordinators are counted, too.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport atomic_add32, atomic_load64, pthread_mutex_t, relaxed_add64

# Of a partition: one line of the processor's cache.
cdef struct PartitionTally:
    int64_t messages_in                # this and the next two: under the partition's lock
    int64_t bytes_in                   # of records as their producers sent them
    int64_t appends                    # produces that took the lock
    int64_t refusals                   # atomic, as are all that follow: produces that were refused before that
    int64_t appends_failed             # of `appends`
    int64_t fetches
    int64_t fetches_failed
    int64_t bytes_out                  # of records in answers

# Reference counted: by the set, and by each log of the topic.
cdef struct TopicTally:
    int32_t refs
    int32_t led                        # partitions of the set; under its lock
    uint32_t number                    # from 1, in the order in which a set's topics came; none is given twice
    string name
    vector[PartitionTally*] partitions  # by index; NULL: there is none. Changed under the set's lock

# The tallies of a set of logs.
cdef struct Tallies:
    pthread_mutex_t lock               # of those who sum them, and of a topic that goes; taken before the set's
    unordered_map[string, TopicTally*] topics          # under the set's lock
    uint32_t numbered                  # under the set's lock
    vector[TopicTally*] leaving        # of topics that are gone, while a request still has one of their logs
    PartitionTally gone                # what those had that nobody has any more
    PartitionTally nobody              # of partitions that aren't here

cdef inline void tally_refusals(PartitionTally* tally, int64_t n) noexcept nogil:
    relaxed_add64(&tally.refusals, n)

# A fetch was asked for the partition.
cdef inline void tally_fetch(PartitionTally* tally) noexcept nogil:
    relaxed_add64(&tally.fetches, 1)

# What a fetch was answered with.
cdef inline void tally_fetched(PartitionTally* tally, int64_t n, bint failed) noexcept nogil:
    if failed:
        relaxed_add64(&tally.fetches_failed, 1)
    elif n > 0:
        relaxed_add64(&tally.bytes_out, n)

cdef inline void topic_tally_retain(TopicTally* topic) noexcept nogil:
    atomic_add32(&topic.refs, 1)

# Adds to a sum.
cdef inline void tally_sum(PartitionTally* total, const PartitionTally* one) noexcept nogil:
    cdef size_t field
    for field in range(sizeof(PartitionTally) // sizeof(int64_t)):
        (<int64_t*>total)[field] += atomic_load64(&(<const int64_t*>one)[field])

cdef void tallies_open(Tallies* tallies) noexcept nogil
# After the last log of the set was released.
cdef void tallies_close(Tallies* tallies) noexcept nogil
# A topic's with a reference for the caller, and a partition's in `partition`: made if there is none.
cdef TopicTally* tallies_take(
    Tallies* tallies, const string& name, int32_t index, PartitionTally** partition
) noexcept nogil
cdef void topic_tally_release(TopicTally* topic) noexcept nogil
# Under both locks. A topic was deleted: unless the set has a partition of it, it is none of `topics` any more.
cdef void tallies_drop(Tallies* tallies, const string& name) noexcept nogil
# The sum of a topic.
cdef void topic_tally_sum(const TopicTally* topic, PartitionTally* total) noexcept nogil
# Under `lock`: the sum of all but `topics`.
cdef void tallies_sum_others(Tallies* tallies, PartitionTally* total) noexcept nogil
