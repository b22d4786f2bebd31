"""What the client of a connection has said of itself. Its network thread writes; others copy it without a lock, and
notice if it was written meanwhile.
"""

from libc.stdint cimport int16_t, int32_t, uint8_t

from penstock.pyx.linux.posix cimport atomic_load32, atomic_store32, memcmp, memcpy
from penstock.pyx.record.endian cimport get_i16
from penstock.pyx.record.frame cimport CLIENT_ID_AT

cdef enum:
    CLIENT_ID_BYTES = 64              # of longer ones the beginning
    SOFTWARE_BYTES = 40               # of a name, and of a version

cdef struct Client:
    int32_t edition                   # atomic; odd while it is written
    int16_t id_n                      # as the client says; -1: it has none
    uint8_t software_name_n
    uint8_t software_version_n
    uint8_t id[CLIENT_ID_BYTES]
    char software_name[SOFTWARE_BYTES]
    char software_version[SOFTWARE_BYTES]

cdef extern from *:
    """
    static inline void fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    """
    void fence() noexcept nogil

cdef inline int client_kept(int16_t n) noexcept nogil:
    return min(max(n, 0), <int>CLIENT_ID_BYTES)

cdef inline void client_write(Client* client) noexcept nogil:
    atomic_store32(&client.edition, client.edition + 1)
    # What is written next mustn't be seen before that.
    fence()

cdef inline void client_written(Client* client) noexcept nogil:
    atomic_store32(&client.edition, client.edition + 1)

# Nobody has said anything yet.
cdef inline void client_open(Client* client) noexcept nogil:
    client_write(client)
    client.id_n = -1
    client.software_name_n = 0
    client.software_version_n = 0
    client_written(client)

# The client id of a request's header, if it is another than that of the last one.
cdef inline void client_note_id(Client* client, const uint8_t* frame, int32_t n) noexcept nogil:
    cdef int16_t id_n
    if n < CLIENT_ID_AT + 2:
        return
    id_n = get_i16(frame + CLIENT_ID_AT)
    if id_n < -1 or n - CLIENT_ID_AT - 2 < id_n:
        return
    if id_n == client.id_n and memcmp(client.id, frame + CLIENT_ID_AT + 2, <size_t>client_kept(id_n)) == 0:
        return
    client_write(client)
    client.id_n = id_n
    memcpy(client.id, frame + CLIENT_ID_AT + 2, <size_t>client_kept(id_n))
    client_written(client)

# The names of its software: their bytes, one behind the other.
cdef inline void client_note_software(
    Client* client, const uint8_t* names, size_t name_n, size_t version_n
) noexcept nogil:
    client_write(client)
    client.software_name_n = <uint8_t>min(name_n, <size_t>SOFTWARE_BYTES)
    client.software_version_n = <uint8_t>min(version_n, <size_t>SOFTWARE_BYTES)
    memcpy(client.software_name, names, client.software_name_n)
    memcpy(client.software_version, names + name_n, client.software_version_n)
    client_written(client)

# A copy; False: it was written meanwhile.
cdef inline bint client_copy(const Client* client, Client* out) noexcept nogil:
    cdef int32_t edition = atomic_load32(&client.edition)
    out[0] = client[0]
    fence()
    return edition % 2 == 0 and atomic_load32(&client.edition) == edition
