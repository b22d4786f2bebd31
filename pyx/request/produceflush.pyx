"""Produce to partitions with flush.messages; see produceflush.pxd."""

from libc.stdint cimport int32_t, int64_t

from penstock.pyx.log.files cimport wall_ms
from penstock.pyx.log.partition cimport (
    Partition, logset_flushes, partition_flushes, partition_folder, partition_offsets, partition_release,
)
from penstock.pyx.log.partitionlog cimport log_of
from penstock.pyx.log.upkeep cimport flush_until
from penstock.pyx.record.frame cimport skip_tags
from penstock.pyx.request.producerequest cimport (
    ProduceTerms, ProduceTopic, produce_find, produce_part, produce_partitions, produce_terms, produce_topic,
)

cdef void _add_folder(NamedFolders* folders, size_t folder) noexcept nogil:
    """A C array: a C++ container's allocation may take the GIL."""
    cdef size_t i
    for i in range(folders.count):
        if folders.folder[i] == folder:
            return
    if folders.count < NAMED_FOLDERS_MAX:
        folders.folder[folders.count] = folder
        folders.count += 1


cdef int _flush(Partition* partition) noexcept nogil:
    """What the partition has now. 0 or errno."""
    cdef int64_t log_start, last_stable, high_watermark, log_end
    partition_offsets(partition, &log_start, &last_stable, &high_watermark, &log_end)
    return flush_until(log_of(partition), log_end, wall_ms())


cdef bint _each_flushing(
    LogSet* logs, const RequestHead* head, Reader body, NamedFolders* folders, int* flushed
) noexcept nogil:
    """Whether a partition that is named has flush.messages. `folders` gets the folders of all; unless `flushed` is NULL
    those with flush.messages are flushed, and it gets what went wrong."""
    cdef Reader* r = &body
    cdef ProduceTerms terms
    cdef ProduceTopic topic
    cdef Partition* partition
    cdef int32_t index, _i, _j
    cdef int result
    cdef bint flushes = False
    if not logset_flushes(logs) or produce_partitions(head, body) < 0:
        return False
    produce_terms(r, head, &terms)
    for _i in range(terms.topics):
        produce_topic(r, terms.version, &topic)
        for _j in range(topic.partitions):
            produce_part(r, terms.version, &index)
            partition = produce_find(logs, &topic, index)
            if partition == NULL:
                continue
            if partition_flushes(partition):
                flushes = True
                result = _flush(partition) if flushed != NULL else 0
                if result != 0:
                    flushed[0] = result
            if folders != NULL:
                _add_folder(folders, partition_folder(partition))
            partition_release(partition)
        skip_tags(r, terms.flexible)
    return flushes


cdef bint produce_flushes(LogSet* logs, const RequestHead* head, Reader body, NamedFolders* folders) noexcept nogil:
    return _each_flushing(logs, head, body, folders, NULL)


cdef int produce_flush(LogSet* logs, const RequestHead* head, Reader body) noexcept nogil:
    cdef int result = 0
    _each_flushing(logs, head, body, NULL, &result)
    return result
