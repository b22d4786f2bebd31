/* What no broker can do without: a server that makes only the system calls that its work needs, and looks at nothing.
 *
 *   floor echo  --answer FILE                                   receives a request, sends an answer of the right size
 *   floor write --answer FILE --file F --wrap BYTES             the same, and writes what it received to a file (in a circle)
 *   floor send  --answer FILE --file F --bytes N --offset-at BYTE --batch BYTES --records N --chunk BYTES
 *                                                               answers with the file's first bytes by sendfile
 * The answer's file has the size in front; the correlation id is set to the request's. For `send` it ends with the size of the
 * records, and the file holds batches of `batch` bytes and N records each. One thread, epoll, any free port of
 * 127.0.0.1, which is printed. A benchmark reads its CPU time as that of a broker. */
#include "common.h"
#include <sys/epoll.h>
#include <sys/sendfile.h>

enum { HEAD = 512, SCRATCH = 262144 };
struct connection {
    int fd;
    uint8_t head[HEAD];
    size_t have;         /* of the head: the request's first bytes with its size */
    int64_t left;        /* bytes of the request that are still to come */
    off_t at;            /* sendfile: what is under way */
    size_t to_send;
    bool want_out;
};
static int epoll_fd, file = -1;
static bool writing, sending;
static uint8_t *answer, scratch[SCRATCH];
static size_t answer_n, batch_bytes, chunk;
static int64_t wrap, position, offset_at, batch_records;
static off_t file_size;

static void watch_out(struct connection *c, bool out) {
    if (c->want_out == out) return;
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
    c->want_out = out;
}

static void keep(const uint8_t *p, size_t n) {
    if (!writing) return;
    if (position + (int64_t)n > wrap) position = 0;
    if (pwrite(file, p, n, position) != (ssize_t)n) die("pwrite");
    position += n;
}

static void send_more(struct connection *c) {
    while (c->to_send) {
        ssize_t n = sendfile(c->fd, file, &c->at, c->to_send);
        if (n <= 0) {
            if (n < 0 && errno == EAGAIN) { watch_out(c, true); return; }
            die("sendfile");
        }
        c->to_send -= n;
    }
    watch_out(c, false);
}

static void answer_one(struct connection *c) {
    memcpy(answer + 4, c->head + 8, 4); /* the correlation id, behind size, key and version */
    if (sending) {
        c->at = (off_t)(get64(c->head + 4 + offset_at) / batch_records * (int64_t)batch_bytes);
        off_t left = c->at < file_size ? file_size - c->at : 0;
        c->to_send = (size_t)left < chunk ? (size_t)left : chunk;
        put32(answer, (int32_t)(answer_n - 4 + c->to_send));
        put32(answer + answer_n - 4, (int32_t)c->to_send);
    }
    if (send(c->fd, answer, answer_n, MSG_NOSIGNAL | (c->to_send ? MSG_MORE : 0)) != (ssize_t)answer_n) die("send");
    if (c->to_send) send_more(c);
}

static void end(struct connection *c) {
    close(c->fd);
    free(c);
}

/* Requests come whole or in pieces, several in one piece. */
static void take(struct connection *c) {
    for (;;) {
        ssize_t n = recv(c->fd, scratch, SCRATCH, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) { end(c); return; }
        for (uint8_t *p = scratch; n > 0;) {
            if (c->have < 4) {
                c->head[c->have++] = *p++;
                n--;
                if (c->have == 4) c->left = get32(c->head);
                continue;
            }
            size_t piece = (int64_t)n < c->left ? (size_t)n : (size_t)c->left;
            size_t keep_head = c->have < HEAD ? (piece < HEAD - c->have ? piece : HEAD - c->have) : 0;
            memcpy(c->head + c->have, p, keep_head);
            c->have += keep_head;
            keep(p, piece);
            p += piece;
            n -= piece;
            c->left -= piece;
            if (!c->left) {
                answer_one(c);
                c->have = 0;
            }
        }
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    writing = !strcmp(mode, "write");
    sending = !strcmp(mode, "send");
    answer = map_file(argument(argc, argv, "answer", NULL), &answer_n);
    if (writing) {
        file = open(argument(argc, argv, "file", NULL), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        wrap = number(argc, argv, "wrap", NULL);
    } else if (sending) {
        file = open(argument(argc, argv, "file", NULL), O_RDONLY | O_CLOEXEC);
        if (file < 0) die("file");
        /* Not the file's size: its broker may give back the room behind the last batch meanwhile. */
        file_size = number(argc, argv, "bytes", NULL);
        offset_at = number(argc, argv, "offset-at", NULL);
        batch_bytes = number(argc, argv, "batch", NULL);
        batch_records = number(argc, argv, "records", NULL);
        chunk = number(argc, argv, "chunk", "1048576");
    } else if (strcmp(mode, "echo")) {
        fprintf(stderr, "floor echo|write|send ...\n");
        return 2;
    }
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 128)) die("listen");
    getsockname(listener, (struct sockaddr *)&a, &n);
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int count = epoll_wait(epoll_fd, events, 256, -1);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (fd < 0) continue;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                c = calloc(1, sizeof *c);
                c->fd = fd;
                e.data.ptr = c;
                epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
                continue;
            }
            if (events[i].events & EPOLLOUT) send_more(c);
            if (events[i].events & ~EPOLLOUT) take(c);
        }
    }
}
