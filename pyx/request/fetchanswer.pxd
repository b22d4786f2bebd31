"""The answer of a job that is FETCH_READY: bytes in the connection's output and, for record ranges of
SENDFILE_BYTES_MIN and more, `FilePiece`s: ranges of segment files that go out by sendfile at their place between
those bytes.
"""

from libc.stdint cimport int32_t, int64_t

from penstock.pyx.log.read cimport ReadResult
from penstock.pyx.record.frame cimport Writer
from penstock.pyx.request.fetch cimport FetchJob

cdef enum:
    SENDFILE_BYTES_MIN = 16384        # below it, reading into the answer and one send is cheaper

# A range of a segment file, to be sent before out.p[at]. `read` keeps the file; released by `piece_release`.
cdef struct FilePiece:
    size_t at
    int64_t position
    int64_t left
    int64_t asked_until               # file position up to which a reader thread has had it
    ReadResult read

cdef struct Pieces:
    FilePiece* p
    int32_t first                     # those before it have been sent
    int32_t n
    int32_t capacity

# The pieces take over the job's ranges. What a session's client now knows is written down, and a new session made if
# the job wants one. Gives the bytes of records, or -1 when there was no memory: the connection has to be closed then,
# as `out` may hold half an answer.
cdef int64_t fetch_answer(FetchJob* job, int64_t now_ms, Writer* out, Pieces* pieces, int64_t* errors) noexcept nogil
cdef void piece_release(FilePiece* piece) noexcept nogil
