"""Messages of magic 0 and 1 as batches of magic 2, which every client of today reads: what old producers send, before
it is appended, and what a log has from before, when it is fetched.

Keys, values, timestamps (magic 0: -1) and the codec stay. Nothing is known of a producer or a leader epoch: -1.
"""

from libc.stdint cimport int8_t, int16_t, int64_t, uint8_t
from libcpp.vector cimport vector

from penstock.pyx.record.batch cimport BatchHeader

# How batches are made, and the one that is being filled.
cdef struct Upconversion:
    int codec
    int level                                   # -1: the codec's default
    int64_t fill_bytes                          # a batch takes no record that makes it larger before it is compressed
    size_t batches_max                          # that `headers` may get
    vector[BatchHeader]* headers                # gets those of all batches; NULL: nobody asks
    vector[uint8_t] records
    BatchHeader header                          # record_count 0: no batch is being filled

cdef void upconversion_begin(
    Upconversion* u, int codec, int level, int64_t fill_bytes, size_t batches_max, vector[BatchHeader]* headers
) noexcept nogil

# Appends the batches of a set of plain messages. They are numbered 0, 1, 2, ... whatever offsets a producer has given
# them. 0 or a BatchFault: BATCH_TOO_LARGE for more than batches_max.
cdef int set_upconvert(Upconversion* u, const uint8_t* p, size_t n, int8_t magic, vector[uint8_t]& out) noexcept nogil

# Whole stored batches in, batches of magic 2 out, appended to `out`; those that are of magic 2 stay as they are.
# Offsets stay. A wrapper becomes one batch, plain messages that follow one another share one. Records below the one
# that was asked for may lead, as in what is stored. A batch that is cut off at the end is left out.
# Results, `opened` and memory as of convert_down (convert.pxd).
cdef int16_t convert_up(const uint8_t* p, size_t n, size_t* opened, vector[uint8_t]& out) noexcept nogil
