"""Whether batches follow one another as they should.

No checksum covers a batch's base offset: a flipped bit there shows only in the order. A batch that lies past the end
that is known, or that has an offset lower than the batch before, is damage; so is a missing offset where nothing was
ever compacted. Elsewhere offsets may be missing, and whether the batch behind them tells the truth shows in the next
one.
"""

from libc.stdint cimport int64_t

from penstock.pyx.record.batch cimport BatchHeader, batch_last_offset

cdef struct BatchOrder:
    bint dense                         # no offset is missing
    int64_t limit                      # all offsets lie below
    int64_t expected                   # the least offset that may come
    int64_t jumped                     # position of the last batch, if offsets are missing before it; -1: none are
    int64_t sure                       # what was expected there

cdef inline void order_begin(BatchOrder* order, int64_t expected, int64_t limit, bint dense) noexcept nogil:
    order.dense = dense
    order.limit = limit
    order.expected = expected
    order.jumped = -1
    order.sure = expected

# Whether the batch at `position` may come next; if so it is taken.
cdef inline bint order_take(BatchOrder* order, const BatchHeader* header, int64_t position) noexcept nogil:
    cdef int64_t last = batch_last_offset(header)
    if last < order.expected or last >= order.limit:
        return False
    if header.magic >= 2 and (
        header.base_offset < order.expected or (order.dense and header.base_offset > order.expected)
    ):
        return False
    order.jumped = position if header.magic >= 2 and header.base_offset > order.expected else -1
    order.sure = order.expected
    order.expected = last + 1
    return True

# The batch at `position` isn't taken: where the damage begins. That is the batch before if this one would fit without
# it; it is then given up.
cdef inline int64_t order_blame(BatchOrder* order, const BatchHeader* header, int64_t position) noexcept nogil:
    if order.jumped < 0 or header.magic < 2 or not order.sure < header.base_offset < order.expected:
        return position
    order.expected = order.sure
    return order.jumped
