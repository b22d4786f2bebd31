"""A Produce request looked through whole; see producerequest.pxd."""

cdef int64_t produce_partitions(const RequestHead* head, Reader body) noexcept nogil:
    cdef Reader* r = &body
    cdef ProduceTerms terms
    cdef ProduceTopic topic
    cdef int32_t index, _i, _j
    cdef int64_t total = 0
    produce_terms(r, head, &terms)
    if terms.topics > PRODUCE_PARTITIONS_MAX:
        return -1
    for _i in range(terms.topics):
        produce_topic(r, terms.version, &topic)
        total += topic.partitions
        if total > PRODUCE_PARTITIONS_MAX:
            return -1
        for _j in range(topic.partitions):
            produce_part(r, terms.version, &index)
            if r.bad:
                return -1
        skip_tags(r, terms.flexible)
        if r.bad:
            return -1
    skip_tags(r, terms.flexible)
    return -1 if r.bad else total
