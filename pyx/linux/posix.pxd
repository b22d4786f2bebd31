"""Every libc extern of the data plane, in one place. All are nogil and noexcept: errors come back as the C
library gives them (-1 and `errno`, or the error number itself for pthread_*). Append here; never declare an
extern elsewhere.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "sys/types.h" nogil:
    ctypedef long long off_t
    ctypedef unsigned int mode_t
    ctypedef int pid_t
    ctypedef unsigned long long ino_t
    ctypedef long time_t
    ctypedef unsigned int socklen_t

cdef extern from "errno.h" nogil:
    int errno
    int EINTR, EAGAIN, EWOULDBLOCK, EINPROGRESS, ENOENT, EEXIST, EIO, ENOSPC, EDQUOT, EROFS, EMFILE
    int ENFILE, ENOMEM, ECONNRESET, ECONNABORTED, EPIPE, ENOTCONN, EADDRINUSE, EINVAL, EBADF, ENOTDIR
    int ENOTEMPTY, EACCES, EPERM
    int ENOSYS, EOPNOTSUPP, EFBIG, EXDEV, ETIMEDOUT, EBUSY, EPROTO, EOVERFLOW

cdef extern from "sys/resource.h" nogil:
    cdef struct rlimit:
        unsigned long long rlim_cur
    int RLIMIT_NOFILE
    int getrlimit(int what, rlimit* out) noexcept

cdef extern from "sys/vfs.h" nogil:
    cdef struct statfs:
        long f_type
    int fstatfs(int fd, statfs* out) noexcept

cdef extern from "sys/ioctl.h" nogil:
    int ioctl(int fd, unsigned long request, ...) noexcept

cdef extern from "linux/sockios.h" nogil:
    unsigned long SIOCOUTQ

cdef extern from "linux/magic.h" nogil:
    long EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC

cdef extern from "string.h" nogil:
    void* memcpy(void* to, const void* source, size_t n) noexcept
    void* memmove(void* to, const void* source, size_t n) noexcept
    void* memset(void* to, int byte, size_t n) noexcept
    int memcmp(const void* a, const void* b, size_t n) noexcept
    void* memchr(const void* p, int byte, size_t n) noexcept
    size_t strlen(const char* s) noexcept
    size_t strnlen(const char* s, size_t most) noexcept
    int strcmp(const char* a, const char* b) noexcept
    int strncmp(const char* a, const char* b, size_t n) noexcept
    char* strdup(const char* s) noexcept
    char* strerror(int number) noexcept

cdef extern from "stdlib.h" nogil:
    void* malloc(size_t n) noexcept
    void* calloc(size_t count, size_t n) noexcept
    void* realloc(void* p, size_t n) noexcept
    void free(void* p) noexcept
    int posix_memalign(void** out, size_t alignment, size_t n) noexcept
    void abort() noexcept
    long long strtoll(const char* text, char** end, int base) noexcept
    void qsort(void* base, size_t count, size_t n,
               int (*compare)(const void*, const void*) noexcept nogil) noexcept

cdef extern from "stdio.h" nogil:
    int rename(const char* old, const char* new) noexcept
    int snprintf(char* to, size_t n, const char* form, ...) noexcept

cdef extern from "fcntl.h" nogil:
    int O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_CLOEXEC, O_DIRECTORY, O_NONBLOCK
    int O_NOFOLLOW, O_DIRECT
    int AT_FDCWD, AT_REMOVEDIR
    int F_GETFL, F_SETFL, F_GETFD, F_SETFD, F_DUPFD_CLOEXEC, FD_CLOEXEC
    int FALLOC_FL_KEEP_SIZE
    int POSIX_FADV_DONTNEED, POSIX_FADV_WILLNEED, POSIX_FADV_SEQUENTIAL, POSIX_FADV_RANDOM
    int open(const char* path, int flags, ...) noexcept
    int openat(int folder, const char* path, int flags, ...) noexcept
    int fcntl(int fd, int command, ...) noexcept
    int posix_fadvise(int fd, off_t offset, off_t length, int advice) noexcept
    unsigned int SYNC_FILE_RANGE_WAIT_BEFORE, SYNC_FILE_RANGE_WRITE, SYNC_FILE_RANGE_WAIT_AFTER
    int sync_file_range(int fd, off_t offset, off_t n, unsigned int flags) noexcept
    int posix_fallocate(int fd, off_t offset, off_t length) noexcept
    int fallocate(int fd, int mode, off_t offset, off_t length) noexcept
    ssize_t readahead(int fd, off_t offset, size_t n) noexcept

cdef extern from "unistd.h" nogil:
    int SEEK_SET, SEEK_CUR, SEEK_END
    int _SC_NPROCESSORS_ONLN, _SC_PAGESIZE
    int close(int fd) noexcept
    ssize_t read(int fd, void* to, size_t n) noexcept
    int syncfs(int fd) noexcept
    ssize_t write(int fd, const void* source, size_t n) noexcept
    int getpagesize() noexcept
    ssize_t pread(int fd, void* to, size_t n, off_t offset) noexcept
    ssize_t pwrite(int fd, const void* source, size_t n, off_t offset) noexcept
    off_t lseek(int fd, off_t offset, int whence) noexcept
    int fsync(int fd) noexcept
    int fdatasync(int fd) noexcept
    int ftruncate(int fd, off_t length) noexcept
    int unlink(const char* path) noexcept
    int unlinkat(int folder, const char* path, int flags) noexcept
    int rmdir(const char* path) noexcept
    int access(const char* path, int mode) noexcept
    int dup(int fd) noexcept
    int pipe2(int* ends, int flags) noexcept
    long sysconf(int name) noexcept
    pid_t getpid() noexcept
    int usleep(unsigned int microseconds) noexcept

cdef extern from "time.h" nogil:
    int CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_REALTIME_COARSE, CLOCK_THREAD_CPUTIME_ID
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* out) noexcept
    int nanosleep(const timespec* wanted, timespec* left) noexcept

cdef extern from "sys/stat.h" nogil:
    struct stat:
        off_t st_size
        mode_t st_mode
        ino_t st_ino
        time_t st_mtime
        timespec st_mtim
    int fstat(int fd, stat* out) noexcept
    int stat_path "stat"(const char* path, stat* out) noexcept
    int fstatat(int folder, const char* path, stat* out, int flags) noexcept
    int mkdir(const char* path, mode_t mode) noexcept
    int mkdirat(int folder, const char* path, mode_t mode) noexcept
    int S_ISDIR(mode_t mode) noexcept
    int S_ISREG(mode_t mode) noexcept
    int futimens(int fd, const timespec* accessed_and_modified) noexcept

cdef extern from "sys/random.h" nogil:
    ssize_t getrandom(void* to, size_t n, unsigned int flags) noexcept

cdef extern from "dirent.h" nogil:
    ctypedef struct DIR:
        pass
    struct dirent:
        char* d_name
        unsigned char d_type
    DIR* opendir(const char* path) noexcept
    DIR* fdopendir(int fd) noexcept
    dirent* readdir(DIR* folder) noexcept
    int closedir(DIR* folder) noexcept

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    int RWF_NOWAIT, RWF_APPEND, RWF_DSYNC
    ssize_t readv(int fd, const iovec* parts, int count) noexcept
    ssize_t writev(int fd, const iovec* parts, int count) noexcept
    ssize_t preadv(int fd, const iovec* parts, int count, off_t offset) noexcept
    ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) noexcept
    ssize_t preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) noexcept
    ssize_t pwritev2(int fd, const iovec* parts, int count, off_t offset, int flags) noexcept

cdef extern from "limits.h" nogil:
    int IOV_MAX, PATH_MAX, NAME_MAX

cdef extern from "sys/sendfile.h" nogil:
    ssize_t sendfile(int to, int source, off_t* offset, size_t n) noexcept

cdef extern from "sys/mman.h" nogil:
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MS_SYNC, MS_ASYNC, MREMAP_MAYMOVE
    int MADV_RANDOM, MADV_WILLNEED, MADV_DONTNEED
    void* MAP_FAILED
    void* mmap(void* where, size_t n, int protection, int flags, int fd, off_t offset) noexcept
    int munmap(void* where, size_t n) noexcept
    void* mremap(void* where, size_t old, size_t new, int flags, ...) noexcept
    int msync(void* where, size_t n, int flags) noexcept
    int madvise(void* where, size_t n, int advice) noexcept
    int mincore(void* where, size_t n, unsigned char* out) noexcept

cdef extern from "sys/epoll.h" nogil:
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLLRDHUP
        EPOLLET
        EPOLLEXCLUSIVE
        EPOLLONESHOT
    int EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CLOEXEC
    ctypedef union epoll_data_t:
        void* ptr
        int fd
        uint32_t u32
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags) noexcept
    int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept
    int epoll_wait(int epoll, epoll_event* out, int most, int timeout_ms) noexcept

cdef extern from "poll.h" nogil:
    short POLLOUT
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* what, unsigned long count, int timeout_ms) noexcept

cdef extern from "sys/eventfd.h" nogil:
    int EFD_NONBLOCK, EFD_CLOEXEC, EFD_SEMAPHORE
    int eventfd(unsigned int start, int flags) noexcept
    int eventfd_read(int fd, uint64_t* out) noexcept
    int eventfd_write(int fd, uint64_t value) noexcept

cdef extern from "sys/timerfd.h" nogil:
    int TFD_NONBLOCK, TFD_CLOEXEC
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags) noexcept
    int timerfd_settime(int fd, int flags, const itimerspec* new, itimerspec* old) noexcept

cdef extern from "sys/socket.h" nogil:
    int AF_INET, AF_INET6, AF_UNSPEC, SOCK_STREAM, SOCK_NONBLOCK, SOCK_CLOEXEC, SOL_SOCKET, SOMAXCONN
    int SO_REUSEADDR, SO_REUSEPORT, SO_SNDBUF, SO_RCVBUF, SO_KEEPALIVE, SO_ERROR, SO_LINGER
    int MSG_NOSIGNAL, MSG_MORE, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC
    int SHUT_RD, SHUT_WR, SHUT_RDWR
    struct sockaddr:
        unsigned short sa_family
    struct sockaddr_storage:
        unsigned short ss_family
    struct msghdr:
        void* msg_name
        socklen_t msg_namelen
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_control
        size_t msg_controllen
        int msg_flags
    struct linger:
        int l_onoff
        int l_linger
    int socket(int family, int kind, int protocol) noexcept
    int bind(int fd, const sockaddr* address, socklen_t n) noexcept
    int listen(int fd, int backlog) noexcept
    int accept4(int fd, sockaddr* out, socklen_t* n, int flags) noexcept
    int connect(int fd, const sockaddr* address, socklen_t n) noexcept
    int getsockname(int fd, sockaddr* out, socklen_t* n) noexcept
    int getpeername(int fd, sockaddr* out, socklen_t* n) noexcept
    int setsockopt(int fd, int level, int name, const void* value, socklen_t n) noexcept
    int getsockopt(int fd, int level, int name, void* out, socklen_t* n) noexcept
    int shutdown(int fd, int how) noexcept
    ssize_t recv(int fd, void* to, size_t n, int flags) noexcept
    ssize_t send(int fd, const void* source, size_t n, int flags) noexcept
    ssize_t sendmsg(int fd, const msghdr* message, int flags) noexcept
    ssize_t recvmsg(int fd, msghdr* message, int flags) noexcept

cdef extern from "netinet/in.h" nogil:
    int IPPROTO_TCP, IPPROTO_IPV6, IPV6_V6ONLY
    struct in_addr:
        uint32_t s_addr
    struct in6_addr:
        pass
    struct sockaddr_in:
        unsigned short sin_family
        uint16_t sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        unsigned short sin6_family
        uint16_t sin6_port
        in6_addr sin6_addr
    uint16_t htons(uint16_t value) noexcept
    uint16_t ntohs(uint16_t value) noexcept

cdef extern from "netinet/tcp.h" nogil:
    int TCP_NODELAY, TCP_CONGESTION, TCP_CORK, TCP_QUICKACK

cdef extern from "arpa/inet.h" nogil:
    const char* inet_ntop(int family, const void* address, char* to, socklen_t n) noexcept
    int inet_pton(int family, const char* text, void* out) noexcept

cdef extern from "netdb.h" nogil:
    struct addrinfo:
        int ai_flags
        int ai_family
        int ai_socktype
        int ai_protocol
        socklen_t ai_addrlen
        sockaddr* ai_addr
        addrinfo* ai_next
    int AI_PASSIVE, AI_NUMERICSERV
    int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** out) noexcept
    void freeaddrinfo(addrinfo* list) noexcept
    const char* gai_strerror(int number) noexcept

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_rwlock_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    ctypedef unsigned long pthread_t
    int pthread_mutex_init(pthread_mutex_t* lock, void* attributes) noexcept
    int pthread_mutex_destroy(pthread_mutex_t* lock) noexcept
    int pthread_mutex_lock(pthread_mutex_t* lock) noexcept
    int pthread_mutex_trylock(pthread_mutex_t* lock) noexcept
    int pthread_mutex_unlock(pthread_mutex_t* lock) noexcept
    int pthread_rwlock_init(pthread_rwlock_t* lock, void* attributes) noexcept
    int pthread_rwlock_destroy(pthread_rwlock_t* lock) noexcept
    int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept
    int pthread_rwlock_tryrdlock(pthread_rwlock_t* lock) noexcept
    int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept
    int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept
    int pthread_condattr_init(pthread_condattr_t* attributes) noexcept
    int pthread_condattr_setclock(pthread_condattr_t* attributes, int clock) noexcept
    int pthread_cond_init(pthread_cond_t* condition, const pthread_condattr_t* attributes) noexcept
    int pthread_cond_destroy(pthread_cond_t* condition) noexcept
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* lock) noexcept
    int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* lock,
                               const timespec* until) noexcept
    int pthread_cond_signal(pthread_cond_t* condition) noexcept
    int pthread_cond_broadcast(pthread_cond_t* condition) noexcept

cdef extern from "signal.h" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_BLOCK, SIG_SETMASK, SIGBUS
    int sigfillset(sigset_t* out) noexcept
    int sigdelset(sigset_t* out, int signal) noexcept
    int pthread_sigmask(int how, const sigset_t* wanted, sigset_t* old) noexcept
    pthread_t pthread_self() noexcept

cdef inline int64_t monotonic_us() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000 + now.tv_nsec // 1000

cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec

cdef inline int64_t thread_cpu_us() noexcept nogil:
    """Processor time of the calling thread."""
    cdef timespec used
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used)
    return <int64_t>used.tv_sec * 1_000_000 + used.tv_nsec // 1000

# Signals are for Python's main thread; a peer that has gone is an error of sendfile, not a signal. Nobody sends SIGBUS:
# the thread that touched the memory gets it (endslots.pxd).
cdef inline void block_signals() noexcept nogil:
    cdef sigset_t all_signals
    sigfillset(&all_signals)
    sigdelset(&all_signals, SIGBUS)
    pthread_sigmask(SIG_BLOCK, &all_signals, NULL)

cdef extern from *:
    """
    #include <sys/resource.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static inline void give_way(int nice) { setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice); }
    """
    # The calling thread, to the others of its control group. 19: it gets next to nothing while they want the processor.
    void give_way(int nice) noexcept nogil

# libc has no call for this one everywhere.
cdef extern from *:
    """
    #ifndef PENSTOCK_SLICE
    #define PENSTOCK_SLICE
    #include <errno.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static inline int set_time_slice(uint64_t ns) {
        struct {
            uint32_t size, policy;
            uint64_t flags;
            int32_t nice;
            uint32_t priority;
            uint64_t runtime, deadline, period;
        } attr = {};
        if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) != 0) return errno;
        if (attr.policy != 0) return 0;
        attr.runtime = ns;
        return syscall(SYS_sched_setattr, 0, &attr, 0) != 0 ? errno : 0;
    }
    #endif
    """
    # The calling thread's, if it is scheduled as any other. 0 or errno; kernels before 6.12 take it and do nothing.
    int set_time_slice(uint64_t ns) noexcept nogil

# The compiler's atomics, for counters, stop flags and append-only tables that are read without a lock.
cdef extern from *:
    """
    #ifndef PENSTOCK_ATOMICS
    #define PENSTOCK_ATOMICS
    #include <stdint.h>
    static inline int64_t atomic_load64(const int64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void atomic_store64(int64_t* p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline int64_t atomic_add64(int64_t* p, int64_t v) {
        return __atomic_add_fetch(p, v, __ATOMIC_ACQ_REL);
    }
    static inline void relaxed_add64(int64_t* p, int64_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
    static inline uint64_t atomic_or64(uint64_t* p, uint64_t v) {
        return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL);
    }
    static inline uint64_t atomic_swap64(uint64_t* p, uint64_t v) {
        return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
    }
    static inline int32_t atomic_load32(const int32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void atomic_store32(int32_t* p, int32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline int32_t atomic_add32(int32_t* p, int32_t v) {
        return __atomic_add_fetch(p, v, __ATOMIC_ACQ_REL);
    }
    static inline int32_t atomic_swap32(int32_t* p, int32_t v) {
        return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
    }
    static inline void* atomic_load_pointer(void** p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void atomic_store_pointer(void** p, void* v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline int lowest_bit(uint64_t v) { return __builtin_ctzll(v); }
    #endif
    """
    # The adders give the new value; or and swap give the old one. Loads acquire, stores release.
    int64_t atomic_load64(const int64_t* p) noexcept nogil
    void atomic_store64(int64_t* p, int64_t value) noexcept nogil
    int64_t atomic_add64(int64_t* p, int64_t value) noexcept nogil
    void relaxed_add64(int64_t* p, int64_t value) noexcept nogil       # a count that orders nothing
    uint64_t atomic_or64(uint64_t* p, uint64_t value) noexcept nogil
    uint64_t atomic_swap64(uint64_t* p, uint64_t value) noexcept nogil
    int32_t atomic_load32(const int32_t* p) noexcept nogil
    void atomic_store32(int32_t* p, int32_t value) noexcept nogil
    int32_t atomic_add32(int32_t* p, int32_t value) noexcept nogil
    int32_t atomic_swap32(int32_t* p, int32_t value) noexcept nogil
    void* atomic_load_pointer(void** p) noexcept nogil
    void atomic_store_pointer(void** p, void* value) noexcept nogil
    # Number of the lowest bit that is set; the value isn't 0.
    int lowest_bit(uint64_t value) noexcept nogil

cdef extern from *:
    """
    #ifndef PENSTOCK_CACHESTAT
    #define PENSTOCK_CACHESTAT
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #ifndef SYS_cachestat
    #define SYS_cachestat 451  /* everywhere; headers before Linux 6.5 don't have it */
    #endif
    static inline int cached_pages(int fd, uint64_t position, uint64_t n, uint64_t* pages, uint64_t* unwritten) {
        struct { uint64_t position, n; } range = {position, n};
        struct { uint64_t cached, dirty, writeback, evicted, recently_evicted; } found;
        if (syscall(SYS_cachestat, fd, &range, &found, 0) != 0) return -1;
        *pages = found.cached;
        *unwritten = found.dirty + found.writeback;
        return 0;
    }
    #endif
    """
    # -1: this kernel has no cachestat, or doesn't allow it.
    int cached_pages(int fd, uint64_t position, uint64_t n, uint64_t* pages, uint64_t* unwritten) noexcept nogil
