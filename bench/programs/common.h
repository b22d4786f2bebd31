/* What the load programs share: clocks, big-endian numbers, arguments, histograms, and as much of Kafka's fetch
 * answer (version 4, one topic, one partition) as a consumer that opens no record needs. */
#ifndef PENSTOCK_BENCH_COMMON_H
#define PENSTOCK_BENCH_COMMON_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static double own_cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static inline int16_t get16(const uint8_t *p) { return (int16_t)(p[0] << 8 | p[1]); }
static inline int32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return (int32_t)__builtin_bswap32(v);
}
static inline int64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return (int64_t)__builtin_bswap64(v);
}
static inline void put32(uint8_t *p, int32_t v) {
    uint32_t u = __builtin_bswap32((uint32_t)v);
    memcpy(p, &u, 4);
}
static inline void put64(uint8_t *p, int64_t v) {
    uint64_t u = __builtin_bswap64((uint64_t)v);
    memcpy(p, &u, 8);
}

/* --- arguments: `--name value` pairs --- */
static const char *argument(int argc, char **argv, const char *name, const char *otherwise) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, name)) return argv[i + 1];
    if (otherwise) return otherwise;
    fprintf(stderr, "--%s is missing\n", name);
    exit(2);
}
static int64_t number(int argc, char **argv, const char *name, const char *otherwise) {
    return strtoll(argument(argc, argv, name, otherwise), NULL, 10);
}

static int connect_to(const char *address) {
    char host[64];
    const char *colon = strrchr(address, ':');
    if (!colon || colon - address >= (long)sizeof host) die("address");
    memcpy(host, address, colon - address);
    host[colon - address] = 0;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) die("address");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* A file as memory; private, so that it may be written to. */
static uint8_t *map_file(const char *path, size_t *size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat s;
    if (fd < 0 || fstat(fd, &s) || !s.st_size) die(path);
    uint8_t *p = mmap(NULL, s.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (p == MAP_FAILED) die(path);
    close(fd);
    *size = s.st_size;
    return p;
}

/* --- latencies: logarithmic buckets of 1/64, exact enough for any percentile --- */
enum { FINE = 64, BUCKETS = FINE * 48 };
struct histogram {
    int64_t count, most;
    int64_t bucket[BUCKETS];
};
static void histogram_add(struct histogram *h, int64_t ns) {
    uint64_t v = ns < FINE ? FINE : (uint64_t)ns;
    int high = 63 - __builtin_clzll(v);                      /* v >= 64: high >= 6 */
    int at = (high - 6) * FINE + (int)((v >> (high - 6)) & (FINE - 1));
    h->bucket[at >= BUCKETS ? BUCKETS - 1 : at]++;
    h->count++;
    if (ns > h->most) h->most = ns;
}
static double histogram_us(const struct histogram *h, double share) {
    int64_t wanted = (int64_t)(h->count * share), seen = 0;
    if (!h->count) return 0;
    for (int i = 0; i < BUCKETS; i++) {
        seen += h->bucket[i];
        if (seen > wanted) {
            int high = i / FINE + 6;
            return (double)((1ULL << high) + ((uint64_t)(i % FINE) << (high - 6))) / 1e3;
        }
    }
    return h->most / 1e3;
}
static void histogram_print(const char *prefix, const struct histogram *h) {
    printf("\"%sp50_us\": %.1f, \"%sp99_us\": %.1f, \"%sp999_us\": %.1f, \"%smax_us\": %.1f", prefix, histogram_us(h, 0.5),
           prefix, histogram_us(h, 0.99), prefix, histogram_us(h, 0.999), prefix, h->most / 1e3);
}

/* --- fetch answers, version 4 --- */
struct records {
    const uint8_t *p;
    size_t n;
    int16_t error;
};
static void fetch_answer(const uint8_t *p, size_t n, struct records *out) {
    size_t at = 12; /* correlation id, throttle time, count of topics */
    out->error = -1;
    out->n = 0;
    if (n < at + 2) return;
    at += 2 + (size_t)get16(p + at) + 4 + 4; /* name, count of partitions, index */
    if (n < at + 22) return;
    out->error = get16(p + at);
    int32_t aborted = get32(p + at + 18);
    at += 22 + (aborted > 0 ? 16 * (size_t)aborted : 0);
    if (n < at + 4) return;
    int32_t size = get32(p + at);
    at += 4;
    if (size <= 0 || n < at + (size_t)size) return;
    out->p = p + at;
    out->n = (size_t)size;
}
/* The next whole batch of at least *next; moves on. */
static bool next_batch(struct records *r, int64_t *base, int32_t *count, size_t *size, int64_t *next) {
    while (r->n >= 61) {
        size_t whole = 12 + (size_t)get32(r->p + 8);
        if (whole > r->n) return false;
        *base = get64(r->p);
        int64_t last = *base + get32(r->p + 23);
        *count = get32(r->p + 57);
        *size = whole;
        r->p += whole;
        r->n -= whole;
        if (last < *next) continue; /* a sparse answer may begin before what was asked for */
        *next = last + 1;
        return true;
    }
    return false;
}
#endif
