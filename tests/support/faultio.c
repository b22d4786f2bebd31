/* Preloaded into a broker: makes calls on files fail as a test says.
 *
 * FAULT_CTL names a control file, read at each call. A line is `CALL ERRNO SUBSTRING [N]`: the call on a file whose path
 * contains SUBSTRING (`TAIL$`: ends with TAIL) fails with that errno; `short` instead of an errno makes a write put only 7 bytes, `hang` a call
 * wait for as long as the line is there, with a file of the control file's name and `.hangs` beside it, `slow100` one take 100 ms
 * longer. With N, the first N such calls since the control file was last changed succeed. CALL is write
 * (write, pwrite, pwritev, posix_fallocate, open for creation), open (of a file that is there), read (read, pread,
 * preadv2, sendfile), direct (pread past the page cache), sync (fsync, fdatasync, syncfs), remove (unlink, unlinkat, by
 * the path as it is given) or rename (rename, link, by the old path as it is given).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define SHORT (-1)
#define HANG (-2)
#define SLOW (-3) /* and below: milliseconds */

static const char *control;

static int fits(const char *path, const char *where) {
    size_t n = strlen(where), m = strlen(path);
    if (!n || where[n - 1] != '$') return strstr(path, where) != NULL;
    return m >= n - 1 && !strncmp(path + m - (n - 1), where, n - 1);
}

/* Whether the first calls that a line lets pass are over. */
static int is_due(const char *text, int line, int pass) {
    static char last[4096];
    static int passed[64];
    if (strcmp(last, text)) {
        memset(passed, 0, sizeof passed);
        strcpy(last, text);
    }
    return pass <= 0 || __atomic_add_fetch(&passed[line % 64], 1, __ATOMIC_RELAXED) > pass;
}

static int rule(const char *call, const char *path) {
    char text[4096], whole[4096], verb[16], what[16], where[1024];
    int number = 0, pass;
    if (!control && !(control = getenv("FAULT_CTL"))) return 0;
    int fd = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    long n = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    text[n > 0 ? n : 0] = 0;
    strcpy(whole, text);
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), number++)
        if ((pass = 0, sscanf(line, "%15s %15s %1023s %d", verb, what, where, &pass)) >= 3 && !strcmp(verb, call) &&
            fits(path, where) && is_due(whole, number, pass))
            return !strcmp(what, "short") ? SHORT : !strcmp(what, "hang") ? HANG :
                   !strncmp(what, "slow", 4) ? SLOW - atoi(what + 4) : atoi(what);
    return 0;
}

static int wait_out(const char *call, const char *path) {
    char mark[1024];
    int f;
    while ((f = rule(call, path)) == HANG) {
        snprintf(mark, sizeof mark, "%s.hangs", control);
        int fd = syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd >= 0) syscall(SYS_close, fd);
        usleep(1000);
    }
    if (f <= SLOW) usleep((SLOW - f) * 1000);
    return f;
}

static int fault(const char *call, int fd) {
    char link[64], path[4096];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (n <= 0 || path[0] != '/') return 0;
    path[n] = 0;
    return wait_out(call, path);
}

static const char *how_read(int fd) { return fcntl(fd, F_GETFL) & O_DIRECT ? "direct" : "read"; }

#define FAILS(call, fd) \
    int f = fault(call, fd); \
    if (f > 0) { errno = f; return -1; }

ssize_t write(int fd, const void *p, size_t n) {
    FAILS("write", fd)
    return REAL(write)(fd, p, f == SHORT && n > 7 ? 7 : n);
}
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) {
    FAILS("write", fd)
    return REAL(pwrite)(fd, p, f == SHORT && n > 7 ? 7 : n, at);
}
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at) {
    FAILS("write", fd)
    return REAL(pwrite64)(fd, p, f == SHORT && n > 7 ? 7 : n, at);
}
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) {
    FAILS("write", fd)
    if (f == SHORT) return REAL(pwrite)(fd, v->iov_base, v->iov_len > 7 ? 7 : v->iov_len, at);
    return REAL(pwritev)(fd, v, n, at);
}
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at) {
    FAILS("write", fd)
    if (f == SHORT) return REAL(pwrite64)(fd, v->iov_base, v->iov_len > 7 ? 7 : v->iov_len, at);
    return REAL(pwritev64)(fd, v, n, at);
}
ssize_t read(int fd, void *p, size_t n) { FAILS("read", fd) return REAL(read)(fd, p, n); }
ssize_t pread(int fd, void *p, size_t n, off_t at) { FAILS(how_read(fd), fd) return REAL(pread)(fd, p, n, at); }
ssize_t pread64(int fd, void *p, size_t n, off64_t at) { FAILS(how_read(fd), fd) return REAL(pread64)(fd, p, n, at); }
ssize_t preadv2(int fd, const struct iovec *v, int n, off_t at, int how) { FAILS("read", fd) return REAL(preadv2)(fd, v, n, at, how); }
ssize_t preadv64v2(int fd, const struct iovec *v, int n, off64_t at, int how) { FAILS("read", fd) return REAL(preadv64v2)(fd, v, n, at, how); }
ssize_t sendfile(int to, int fd, off_t *at, size_t n) { FAILS("read", fd) return REAL(sendfile)(to, fd, at, n); }
ssize_t sendfile64(int to, int fd, off64_t *at, size_t n) { FAILS("read", fd) return REAL(sendfile64)(to, fd, at, n); }
int fsync(int fd) { FAILS("sync", fd) return REAL(fsync)(fd); }
int fdatasync(int fd) { FAILS("sync", fd) return REAL(fdatasync)(fd); }
int syncfs(int fd) { FAILS("sync", fd) return REAL(syncfs)(fd); }

static int refuse_removal(const char *path) {
    int f = wait_out("remove", path);
    if (f > 0) errno = f;
    return f > 0;
}
int rename(const char *old, const char *new) {
    int f = wait_out("rename", old);
    if (f > 0) { errno = f; return -1; }
    return REAL(rename)(old, new);
}
int link(const char *old, const char *new) {
    int f = wait_out("rename", old);
    if (f > 0) { errno = f; return -1; }
    return REAL(link)(old, new);
}
int unlink(const char *path) { return refuse_removal(path) ? -1 : REAL(unlink)(path); }
int unlinkat(int fd, const char *path, int flags) { return refuse_removal(path) ? -1 : REAL(unlinkat)(fd, path, flags); }

int open(const char *path, int flags, ...) {
    int mode = 0;
    if (flags & O_CREAT) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, int);
        va_end(rest);
        int f = access(path, F_OK) ? rule("write", path) : 0;
        if (f > 0) { errno = f; return -1; }
    } else {
        int f = wait_out("open", path);
        if (f > 0) { errno = f; return -1; }
    }
    return REAL(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) __attribute__((alias("open")));
