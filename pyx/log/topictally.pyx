"""What is counted of topics; see topictally.pxd."""

from cython.operator cimport dereference as at, postincrement as step

from penstock.pyx.linux.posix cimport (
    atomic_load32, free, memset, posix_memalign, pthread_mutex_destroy, pthread_mutex_init,
)
from penstock.pyx.log.files cimport dropped, made

cdef enum:
    LINE_BYTES = 64

cdef PartitionTally _uncounted                        # without memory: what is counted here nobody reads


cdef void tallies_open(Tallies* tallies) noexcept nogil:
    pthread_mutex_init(&tallies.lock, NULL)
    tallies.numbered = 0
    memset(&tallies.gone, 0, sizeof(PartitionTally))
    memset(&tallies.nobody, 0, sizeof(PartitionTally))


cdef PartitionTally* _partition_new() noexcept nogil:
    """Two threads that count for two partitions don't share a line."""
    cdef PartitionTally* tally = NULL
    if posix_memalign(<void**>&tally, LINE_BYTES, sizeof(PartitionTally)) != 0:
        return NULL
    memset(tally, 0, sizeof(PartitionTally))
    return tally


cdef TopicTally* tallies_take(
    Tallies* tallies, const string& name, int32_t index, PartitionTally** partition
) noexcept nogil:
    cdef TopicTally* topic
    found = tallies.topics.find(name)
    if found != tallies.topics.end():
        topic = at(found).second
    else:
        topic = made[TopicTally]()
        topic.refs = 1
        topic.led = 0
        tallies.numbered += 1
        topic.number = tallies.numbered
        topic.name = name
        tallies.topics[name] = topic
    if topic.partitions.size() <= <size_t>index:
        topic.partitions.resize(<size_t>index + 1)
    if topic.partitions[index] == NULL:
        topic.partitions[index] = _partition_new()
    partition[0] = topic.partitions[index] if topic.partitions[index] != NULL else &_uncounted
    topic_tally_retain(topic)
    return topic


cdef void topic_tally_release(TopicTally* topic) noexcept nogil:
    cdef size_t i
    if atomic_add32(&topic.refs, -1) != 0:
        return
    for i in range(topic.partitions.size()):
        free(topic.partitions[i])
    dropped[TopicTally](topic)


cdef void tallies_drop(Tallies* tallies, const string& name) noexcept nogil:
    found = tallies.topics.find(name)
    if found != tallies.topics.end() and at(found).second.led == 0:
        tallies.leaving.push_back(at(found).second)
        tallies.topics.erase(found)


cdef void topic_tally_sum(const TopicTally* topic, PartitionTally* total) noexcept nogil:
    cdef size_t i
    for i in range(topic.partitions.size()):
        if topic.partitions[i] != NULL:
            tally_sum(total, topic.partitions[i])


cdef void tallies_sum_others(Tallies* tallies, PartitionTally* total) noexcept nogil:
    cdef TopicTally* topic
    cdef size_t i = 0
    while i < tallies.leaving.size():
        topic = tallies.leaving[i]
        if atomic_load32(&topic.refs) > 1:             # a request that goes on may still count
            topic_tally_sum(topic, total)
            i += 1
            continue
        topic_tally_sum(topic, &tallies.gone)
        topic_tally_release(topic)
        tallies.leaving[i] = tallies.leaving.back()
        tallies.leaving.pop_back()
    tally_sum(total, &tallies.gone)
    tally_sum(total, &tallies.nobody)


cdef void tallies_close(Tallies* tallies) noexcept nogil:
    cdef size_t i
    one = tallies.topics.begin()
    while one != tallies.topics.end():
        topic_tally_release(at(one).second)
        step(one)
    tallies.topics.clear()
    for i in range(tallies.leaving.size()):
        topic_tally_release(tallies.leaving[i])
    tallies.leaving.clear()
    pthread_mutex_destroy(&tallies.lock)
