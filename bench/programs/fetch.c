/* A consumer that opens no record: asks, reads the whole answer into memory, walks the batches' headers, asks again.
 *
 *   fetch --to HOST:PORT --frame FILE --offset-at BYTE [--from OFFSET] --until OFFSET [--times 1] [--recv 65536]
 *
 * FILE is a Fetch request of version 4 for one partition, its size in front; offset-at: where its offset stands, behind the
 * size. Reads the range so many times. Bytes are really copied out of the socket, at most `recv` of them a call: with MSG_TRUNC
 * the kernel would move their cost to the broker. Prints one JSON object. */
#include "common.h"

static uint8_t *buffer;
static size_t capacity;
static int fd;
static size_t recv_bytes;

static void read_exactly(uint8_t *into, size_t n) {
    while (n) {
        ssize_t got = recv(fd, into, n < recv_bytes ? n : recv_bytes, 0);
        if (got <= 0) { if (!got) errno = 0; die("recv: the broker closed the connection"); }
        into += got;
        n -= got;
    }
}

int main(int argc, char **argv) {
    size_t n;
    uint8_t *frame = map_file(argument(argc, argv, "frame", NULL), &n), size[4];
    int64_t offset_at = number(argc, argv, "offset-at", NULL), from = number(argc, argv, "from", "0");
    int64_t until = number(argc, argv, "until", NULL), times = number(argc, argv, "times", "1");
    int64_t bytes = 0, records = 0, requests = 0, empty = 0;
    recv_bytes = number(argc, argv, "recv", "65536");
    capacity = 4 << 20;
    buffer = malloc(capacity);
    fd = connect_to(argument(argc, argv, "to", NULL));
    int64_t t0 = now_ns();
    for (int64_t i = 0; i < times; i++) {
        for (int64_t next = from; next < until; requests++) {
            put64(frame + 4 + offset_at, next);
            for (size_t at = 0; at < n;) {
                ssize_t sent = send(fd, frame + at, n - at, MSG_NOSIGNAL);
                if (sent < 0) die("send");
                at += sent;
            }
            read_exactly(size, 4);
            size_t length = (size_t)get32(size);
            if (length > capacity) {
                free(buffer);
                buffer = malloc(capacity = length + (length >> 2));
            }
            read_exactly(buffer, length);
            struct records r;
            int64_t base, before = next;
            int32_t count;
            size_t whole;
            fetch_answer(buffer, length, &r);
            if (r.error) { errno = 0; fprintf(stderr, "error %d at offset %ld\n", r.error, (long)next); die("fetch"); }
            while (next_batch(&r, &base, &count, &whole, &next)) {
                bytes += whole;
                records += count;
            }
            if (next == before && ++empty > 100) { errno = 0; die("fetch: nothing comes any more"); }
        }
    }
    double seconds = (now_ns() - t0) / 1e9;
    printf("{\"bytes\": %ld, \"records\": %ld, \"requests\": %ld, \"seconds\": %.6f, \"client_cpu_s\": %.3f}\n", (long)bytes,
           (long)records, (long)requests, seconds, own_cpu_s());
    return 0;
}
