"""Whole reads and writes of files, for everything in the log that isn't on the hot path. Results: 0 or an errno."""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.linux.descriptors cimport open_file
from penstock.pyx.linux.posix cimport (
    CLOCK_REALTIME, EDQUOT, EFBIG, EINTR, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC, O_CLOEXEC, O_CREAT, O_DIRECTORY,
    O_RDONLY, O_TRUNC, O_WRONLY, clock_gettime, close, errno, fstat, fsync, iovec, pread, pwrite, pwritev, rename, stat,
    timespec, unlink,
)

# C++ objects behind plain structs: Cython has no `new` for a struct.
cdef extern from *:
    """
    #ifndef PENSTOCK_MADE
    #define PENSTOCK_MADE
    template <class T> static inline T* made() { return new T(); }
    template <class T> static inline void dropped(T* p) { delete p; }
    #endif
    """
    T* made[T]() noexcept nogil
    void dropped[T](T* p) noexcept nogil

cdef enum:
    FILE_MODE = 0o600
    LOG_MAX_BYTES = 0x7fffffff         # Kafka opens no larger .log file

cdef inline int64_t ms_of(const timespec* time) noexcept nogil:
    return <int64_t>time.tv_sec * 1000 + time.tv_nsec // 1_000_000

cdef inline int64_t wall_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return ms_of(&now)

# A time that is `delay_ms` from now; the largest there is if it doesn't fit.
cdef inline int64_t later_ms(int64_t now_ms, int64_t delay_ms) noexcept nogil:
    return now_ms + delay_ms if delay_ms < INT64_MAX - now_ms else INT64_MAX

# Bytes read (less than n only at the end of the file), or -errno.
cdef inline int64_t read_at(int fd, void* to, size_t n, int64_t position) noexcept nogil:
    cdef size_t done = 0
    cdef ssize_t got
    while done < n:
        got = pread(fd, <char*>to + done, n - done, position + <int64_t>done)
        if got < 0:
            if errno == EINTR:
                continue
            return -errno
        if got == 0:
            break
        done += <size_t>got
    return <int64_t>done

# 0 or an errno; `pieces` are changed.
cdef inline int write_pieces_at(int fd, iovec* pieces, int count, int64_t position) noexcept nogil:
    cdef ssize_t put = 0
    while True:
        position += put
        while count > 0 and <size_t>put >= pieces[0].iov_len:
            put -= <ssize_t>pieces[0].iov_len
            pieces += 1
            count -= 1
        if count == 0:
            return 0
        pieces[0].iov_base = <char*>pieces[0].iov_base + put
        pieces[0].iov_len -= <size_t>put
        if count == 1:
            put = pwrite(fd, pieces[0].iov_base, pieces[0].iov_len, position)
        else:
            put = pwritev(fd, pieces, count, position)
        if put == 0:
            return EIO
        if put < 0:
            if errno != EINTR:
                return errno
            put = 0

cdef inline int write_at(int fd, const void* source, size_t n, int64_t position) noexcept nogil:
    cdef iovec piece
    piece.iov_base = <void*>source
    piece.iov_len = n
    return write_pieces_at(fd, &piece, 1, position)

cdef inline int read_whole(const char* path, vector[uint8_t]& out) noexcept nogil:
    cdef stat info
    cdef int64_t got
    cdef int fd = open_file(path, O_RDONLY | O_CLOEXEC, 0)
    if fd < 0:
        return -fd
    if fstat(fd, &info) != 0:
        close(fd)
        return EIO
    out.resize(<size_t>info.st_size)
    got = read_at(fd, out.data(), out.size(), 0)
    close(fd)
    if got < 0:
        return <int>-got
    out.resize(<size_t>got)
    return 0

# Makes names that were created, renamed or removed in the folder survive a power cut.
cdef inline int sync_folder(const char* path) noexcept nogil:
    cdef int result = 0
    cdef int fd = open_file(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)
    if fd < 0:
        return -fd
    if fsync(fd) != 0:
        result = errno
    close(fd)
    return result

# Replaces the file in one step: a crash leaves the old content or the new one. `sync`: the new one survives a power
# cut.
cdef inline int replace_whole(const char* path, const uint8_t* data, size_t n, bint sync) noexcept nogil:
    cdef string temporary = string(path)
    cdef int fd, result
    temporary.append(b".tmp")
    fd = open_file(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, FILE_MODE)
    if fd < 0:
        return -fd
    result = write_at(fd, data, n, 0)
    if result == 0 and sync and fsync(fd) != 0:
        result = errno
    close(fd)
    if result == 0 and rename(temporary.c_str(), path) != 0:
        result = errno
    if result != 0:
        unlink(temporary.c_str())
    return result

# No descriptor was free: nothing was tried, and it says nothing about the disk.
cdef inline bint is_shortage(int error) noexcept nogil:
    return error == EMFILE or error == ENFILE

# The disk is full, or the quota is used up.
cdef inline bint is_full(int error) noexcept nogil:
    return error == ENOSPC or error == EDQUOT

# What may go well the next time. Anything else says that the disk can't be believed any more. A failed fsync is never
# passing, whatever its errno: the kernel has dropped what it couldn't write.
cdef inline bint is_passing(int error) noexcept nogil:
    return is_full(error) or is_shortage(error) or error == EFBIG or error == ENOMEM or error == EINTR

# Opens, fsyncs and closes; a file that isn't there is fine.
cdef inline int sync_file(const char* path) noexcept nogil:
    cdef int result = 0
    cdef int fd = open_file(path, O_RDONLY | O_CLOEXEC, 0)
    if fd < 0:
        return 0 if fd == -ENOENT else -fd
    if fsync(fd) != 0:
        result = errno
    close(fd)
    return result
