"""Transactions on the way through a log; see txntrack.pxd."""

from cython.operator cimport dereference as at

from penstock.pyx.record.batch cimport MARKER_COMMIT, batch_is_transactional, batch_last_offset, batch_marker_type


cdef void track_begin(TxnTrack* t) noexcept nogil:
    t.ongoing.clear()
    t.committed.clear()
    t.next = 0


cdef void _track_to(TxnTrack* t, int64_t offset) noexcept nogil:
    """Transactions that begin up to `offset` are under way."""
    cdef OngoingAbort ongoing
    while t.next < t.aborted.size() and t.aborted[t.next].first_offset <= offset:
        ongoing.span = t.aborted[t.next]
        ongoing.observed = False
        t.ongoing[ongoing.span.producer_id] = ongoing
        t.next += 1


cdef bint track_data(TxnTrack* t, const BatchHeader* header) noexcept nogil:
    cdef unordered_map[int64_t, OngoingAbort].iterator found
    _track_to(t, batch_last_offset(header))
    if not batch_is_transactional(header):
        return False
    found = t.ongoing.find(header.producer_id)
    if found != t.ongoing.end() and at(found).second.span.last_offset > header.base_offset:
        at(found).second.observed = True
        return True
    t.committed.insert(header.producer_id)
    return False


cdef bint track_control(TxnTrack* t, const uint8_t* bytes, const BatchHeader* header, AbortSpan* ended) noexcept nogil:
    cdef unordered_map[int64_t, OngoingAbort].iterator found
    cdef bint observed
    cdef int marker
    ended.producer_id = -1
    _track_to(t, batch_last_offset(header))
    if header.record_count == 0:
        return True                    # emptied before
    marker = batch_marker_type(bytes, header, NULL)
    if marker < 0:
        return False
    observed = t.committed.erase(header.producer_id) > 0
    if marker == MARKER_COMMIT:
        return not observed
    found = t.ongoing.find(header.producer_id)
    if found != t.ongoing.end():
        if at(found).second.span.last_offset == header.base_offset:
            ended[0] = at(found).second.span
        observed = observed or at(found).second.observed
        t.ongoing.erase(found)
    return not observed
