/* Sends ready-made requests and reads their answers: the cheapest client that there can be. One thread, epoll.
 *
 *   requests --to HOST:PORT --frames FILE [--connections 1] [--in-flight 1] [--requests N] [--seconds S]
 *            [--rate PER_SECOND] [--error-at BYTE] [--window SECONDS]
 *            [--tail FILE --tail-offset-at BYTE --tail-from OFFSET]
 *
 * FILE holds requests, each with its size in front; a connection sends them in turn, each connection from another place.
 * Without a rate each connection keeps so many in flight. With one, requests leave by the clock whether or not answers
 * came, and the latency counts from the real departure: how late this program woke up isn't the broker's doing.
 * error-at: where in an answer (behind its size) the error code is; -1 = nowhere.
 * window: prints a line for every so many seconds. tail: a fetch request; a consumer at the log's end on a connection of its
 * own measures send to arrival (one connection, one record a request, an otherwise unused partition).
 * Prints one JSON object. */
#include "common.h"
#include <sys/epoll.h>

enum { RING = 8192, HEAD = 512, SKIP = 262144, TAIL_BYTES = 4 << 20 };
struct frame {
    const uint8_t *p;
    size_t n;
};
struct connection {
    int fd;
    bool want_out;
    size_t next;           /* frame */
    size_t sent;           /* of it */
    uint32_t first, last;  /* running numbers of those in flight */
    int64_t started[RING];
    uint8_t head[HEAD];    /* the answer's first bytes, size included */
    size_t have;
    int64_t skip;          /* bytes of the answer that are not looked at */
};
static struct frame *frames;
static size_t frame_count;
static struct connection *connections;
static int connection_count, epoll_fd;
static int64_t in_flight, issued, answered, total, errors, first_error, error_at;
static struct histogram whole, window;
static uint8_t skipped[SKIP];
static int64_t *departed; /* of each request, for the tail */

static void read_frames(const char *path) {
    size_t size, at = 0, capacity = 0;
    uint8_t *p = map_file(path, &size);
    while (at + 4 <= size) {
        size_t n = 4 + (size_t)get32(p + at);
        if (at + n > size) die("frames");
        if (frame_count == capacity) frames = realloc(frames, (capacity = capacity ? 2 * capacity : 64) * sizeof *frames);
        frames[frame_count++] = (struct frame){p + at, n};
        at += n;
    }
}

static void watch(struct connection *c, bool out) {
    if (c->want_out == out) return;
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e)) die("epoll_ctl");
    c->want_out = out;
}

/* Sends one request or the rest of one. False: the socket is full. */
static bool send_one(struct connection *c) {
    struct frame *f = &frames[c->next];
    if (!c->sent) {
        int64_t t = now_ns();
        c->started[c->last++ % RING] = t;
        if (departed) departed[issued] = t;
        issued++;
    }
    while (c->sent < f->n) {
        ssize_t n = send(c->fd, f->p + c->sent, f->n - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) {
            if (errno != EAGAIN) die("send");
            watch(c, true);
            return false;
        }
        c->sent += n;
    }
    c->sent = 0;
    c->next = (c->next + 1) % frame_count;
    return true;
}

static void fill(struct connection *c) {
    if (c->sent && !send_one(c)) return;
    while (c->last - c->first < in_flight && issued < total)
        if (!send_one(c)) return;
    watch(c, false);
}

static void answer_done(struct connection *c, int64_t t) {
    int64_t ns = t - c->started[c->first++ % RING];
    histogram_add(&whole, ns);
    histogram_add(&window, ns);
    answered++;
}

static void take_answers(struct connection *c) {
    for (;;) {
        uint8_t *into = c->skip ? skipped : c->head + c->have;
        /* No more than one answer is read at a time, unless it is short: the head is then parsed piece by piece. */
        size_t room = c->skip ? (c->skip < SKIP ? (size_t)c->skip : SKIP) : HEAD - c->have;
        ssize_t n = recv(c->fd, into, room, MSG_DONTWAIT);
        if (n == 0) { errno = 0; die("the broker closed the connection"); }
        if (n < 0) {
            if (errno == EAGAIN) return;
            die("recv");
        }
        int64_t t = now_ns();
        if (c->skip) {
            c->skip -= n;
            if (!c->skip) answer_done(c, t);
            continue;
        }
        c->have += n;
        while (c->have >= 4) {
            size_t size = 4 + (size_t)get32(c->head);
            size_t wanted = error_at >= 0 && 4 + (size_t)error_at + 2 <= size ? 4 + (size_t)error_at + 2 : 8;
            if (c->have < wanted) break;
            if (error_at >= 0) {
                int16_t error = get16(c->head + 4 + error_at);
                if (error) { if (!errors++) first_error = error; }
            }
            if (c->have < size) {
                c->skip = size - c->have;
                c->have = 0;
                break;
            }
            answer_done(c, t);
            memmove(c->head, c->head + size, c->have -= size);
        }
        if ((size_t)n < room) return;
    }
}

/* --- the consumer at the end --- */
static struct {
    int fd;
    uint8_t *frame, *in;
    size_t frame_n, have, offset_at;
    int64_t from, next, seen;
    struct histogram latency;
} tail;

static void tail_ask(void) {
    put64(tail.frame + 4 + tail.offset_at, tail.next);
    for (size_t at = 0; at < tail.frame_n;) {
        ssize_t n = send(tail.fd, tail.frame + at, tail.frame_n - at, MSG_NOSIGNAL);
        if (n < 0) die("send of the tail");
        at += n;
    }
}

static void tail_take(void) {
    ssize_t n = recv(tail.fd, tail.in + tail.have, TAIL_BYTES - tail.have, MSG_DONTWAIT);
    if (n == 0) { errno = 0; die("the broker closed the tail's connection"); }
    if (n < 0) { if (errno == EAGAIN) return; die("recv of the tail"); }
    tail.have += n;
    if (tail.have < 4 || tail.have < 4 + (size_t)get32(tail.in)) return;
    int64_t t = now_ns(), base;
    struct records r;
    int32_t count;
    size_t size;
    fetch_answer(tail.in + 4, tail.have - 4, &r);
    if (r.error) { if (!errors++) first_error = r.error; }
    while (next_batch(&r, &base, &count, &size, &tail.next)) {
        if (base - tail.from >= 0 && base - tail.from < issued) histogram_add(&tail.latency, t - departed[base - tail.from]);
        tail.seen++;
    }
    tail.have = 0;
    tail_ask();
}

static void tail_begin(const char *to, const char *path, int argc, char **argv) {
    size_t n;
    tail.frame = map_file(path, &n);
    tail.frame_n = n;
    tail.in = malloc(TAIL_BYTES);
    tail.offset_at = number(argc, argv, "tail-offset-at", NULL);
    tail.next = tail.from = number(argc, argv, "tail-from", "0");
    tail.fd = connect_to(to);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &tail};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, tail.fd, &e)) die("epoll_ctl");
    tail_ask();
}

static void print_window(double from_s, double seconds) {
    printf("{\"window_s\": %.3f, \"seconds\": %.3f, \"requests\": %ld, ", from_s, seconds, (long)window.count);
    histogram_print("", &window);
    printf("}\n");
    fflush(stdout);
    memset(&window, 0, sizeof window);
}

int main(int argc, char **argv) {
    const char *to = argument(argc, argv, "to", NULL), *tail_path = argument(argc, argv, "tail", "");
    double rate = atof(argument(argc, argv, "rate", "0")), limit_s = atof(argument(argc, argv, "seconds", "0"));
    double window_s = atof(argument(argc, argv, "window", "0"));
    read_frames(argument(argc, argv, "frames", NULL));
    connection_count = number(argc, argv, "connections", "1");
    in_flight = rate > 0 ? RING : number(argc, argv, "in-flight", "1");
    total = number(argc, argv, "requests", "0");
    if (!total) total = INT64_MAX;
    error_at = number(argc, argv, "error-at", "-1");
    if (in_flight > RING || error_at > HEAD - 8 || (total == INT64_MAX && limit_s <= 0)) die("arguments");
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc(connection_count, sizeof *connections);
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        c->fd = connect_to(to);
        c->next = (size_t)i * frame_count / connection_count;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &e)) die("epoll_ctl");
    }
    if (*tail_path) {
        int64_t most = total == INT64_MAX ? (int64_t)(rate * limit_s) + RING : total;
        departed = calloc(most + 1, sizeof *departed);
        tail_begin(to, tail_path, argc, argv);
    }
    int64_t t0 = now_ns(), window_from = t0, until = limit_s > 0 ? t0 + (int64_t)(limit_s * 1e9) : INT64_MAX;
    int turn = 0;
    while (answered < total) {
        int64_t t = now_ns();
        if (t >= until) {
            total = issued; /* what is in flight is waited for, no longer than for 20 s */
            if (t - until > 20000000000LL) die("answers are missing");
        }
        if (window_s > 0 && t - window_from >= window_s * 1e9) {
            print_window((window_from - t0) / 1e9, (t - window_from) / 1e9);
            window_from = t;
        }
        struct timespec wait = {.tv_sec = 0, .tv_nsec = 100000000};
        if (rate > 0) {
            int64_t due = (int64_t)((t - t0) / 1e9 * rate) + 1, idle = 0;
            if (due > total) due = total;
            while (issued < due && idle < connection_count) {
                struct connection *c = &connections[turn++ % connection_count];
                if (c->sent || c->last - c->first >= RING) idle++;
                else { send_one(c); idle = 0; }
            }
            int64_t left = t0 + (int64_t)(issued / rate * 1e9) - now_ns();
            if (issued < total && left < wait.tv_nsec) wait.tv_nsec = left < 0 ? 0 : left;
        } else {
            for (; turn < connection_count; turn++) fill(&connections[turn]); /* once; then each answer asks for more */
        }
        struct epoll_event events[256];
        int n = epoll_pwait2(epoll_fd, events, 256, &wait, NULL);
        if (n < 0 && errno != EINTR) die("epoll_pwait2");
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &tail) { tail_take(); continue; }
            struct connection *c = events[i].data.ptr;
            if (events[i].events & ~EPOLLOUT) take_answers(c);
            if (rate <= 0) fill(c);
            else if (c->sent && send_one(c)) watch(c, false);
        }
    }
    double seconds = (now_ns() - t0) / 1e9;
    if (window_s > 0 && window.count) print_window((window_from - t0) / 1e9, seconds - (window_from - t0) / 1e9);
    for (int64_t end = now_ns() + 1000000000; *tail_path && tail.seen < answered && now_ns() < end;) {
        struct epoll_event e;
        if (epoll_wait(epoll_fd, &e, 1, 10) > 0 && e.data.ptr == &tail) tail_take();
    }
    printf("{\"requests\": %ld, \"seconds\": %.6f, \"errors\": %ld, \"first_error\": %ld, \"client_cpu_s\": %.3f, ",
           (long)answered, seconds, (long)errors, (long)first_error, own_cpu_s());
    histogram_print("", &whole);
    if (*tail_path) {
        printf(", \"tail_records\": %ld, ", (long)tail.seen);
        histogram_print("tail_", &tail.latency);
    }
    printf("}\n");
    return 0;
}
