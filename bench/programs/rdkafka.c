/* librdkafka as it is commonly used, as cheap as it goes.
 *
 *   rdkafka produce  BOOTSTRAP TOPIC COUNT SIZE [property=value]...
 *   rdkafka consume  BOOTSTRAP TOPIC COUNT 0 [property=value]...    all partitions from their start, without a group
 *
 * The few declarations below are librdkafka's public, stable binary interface: Debian's kcat brings the library without its
 * header. Prints one JSON object; time runs from the first produce call (consume: first message) to the last one's end. */
#include "common.h"

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct {
    int err;
    rd_kafka_topic_t *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} rd_kafka_message_t;
typedef struct { int32_t id; char *host; int port; } rd_kafka_metadata_broker_t;
typedef struct { char *topic; int partition_cnt; void *partitions; int err; } rd_kafka_metadata_topic_t;
typedef struct {
    int broker_cnt;
    rd_kafka_metadata_broker_t *brokers;
    int topic_cnt;
    rd_kafka_metadata_topic_t *topics;
} rd_kafka_metadata_t;
enum { PRODUCER, CONSUMER };
enum { COPY = 2, QUEUE_FULL = -184, BEGINNING = -2 };
rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, void *);
int rd_kafka_metadata(rd_kafka_t *, int, rd_kafka_topic_t *, const rd_kafka_metadata_t **, int);
rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *);
int rd_kafka_consume_start_queue(rd_kafka_topic_t *, int32_t, int64_t, rd_kafka_queue_t *);
ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
void rd_kafka_message_destroy(rd_kafka_message_t *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
int rd_kafka_last_error(void);
int rd_kafka_poll(rd_kafka_t *, int);

enum { PAYLOADS = 4096, PATIENCE_S = 120 };
static int64_t done, failed;
static void delivered(rd_kafka_t *k, const rd_kafka_message_t *m, void *o) {
    (void)k, (void)o;
    if (m->err) failed++;
    else done++;
}

static int report(int64_t wanted, int64_t bytes, int64_t t0, int64_t t1) {
    printf("{\"records\": %ld, \"bytes\": %ld, \"seconds\": %.6f, \"errors\": %ld, \"client_cpu_s\": %.3f}\n", (long)done,
           (long)bytes, (t1 - t0 > 1000 ? t1 - t0 : 1000) / 1e9, (long)failed, own_cpu_s());
    fflush(stdout);
    _exit(done < wanted || failed > 0); /* without the library's slow goodbye */
}

int main(int argc, char **argv) {
    if (argc < 6) { fprintf(stderr, "rdkafka produce|consume BOOTSTRAP TOPIC COUNT SIZE [property=value]...\n"); return 2; }
    bool consume = !strcmp(argv[1], "consume");
    int64_t wanted = atoll(argv[4]), bytes = 0;
    size_t size = (size_t)atoi(argv[5]);
    char error[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    for (int i = 5; i < argc; i++) {
        char *equals = i == 5 ? NULL : strchr(argv[i], '=');
        if (i > 5 && !equals) return 2;
        if (equals) *equals = 0;
        if (rd_kafka_conf_set(conf, i == 5 ? "bootstrap.servers" : argv[i], i == 5 ? argv[2] : equals + 1, error, sizeof error)) {
            fprintf(stderr, "%s\n", error);
            return 2;
        }
    }
    if (!consume) rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    rd_kafka_t *k = rd_kafka_new(consume ? CONSUMER : PRODUCER, conf, error, sizeof error);
    if (!k) { fprintf(stderr, "%s\n", error); return 1; }
    rd_kafka_topic_t *topic = rd_kafka_topic_new(k, argv[3], NULL);
    const rd_kafka_metadata_t *metadata;
    if (rd_kafka_metadata(k, 0, topic, &metadata, 20000)) { fprintf(stderr, "no metadata\n"); return 1; }
    int partitions = metadata->topics[0].partition_cnt;
    if (partitions < 1) { fprintf(stderr, "no such topic\n"); return 1; }
    if (consume) {
        rd_kafka_queue_t *queue = rd_kafka_queue_new(k);
        for (int p = 0; p < partitions; p++) rd_kafka_consume_start_queue(topic, p, BEGINNING, queue);
        rd_kafka_message_t *got[2000];
        int64_t t0 = 0, last = now_ns();
        while (done < wanted && now_ns() - last < PATIENCE_S * 1000000000LL / 6) {
            ssize_t n = rd_kafka_consume_batch_queue(queue, 500, got, 2000);
            if (n > 0) last = now_ns();
            if (!t0 && n > 0) t0 = last;
            for (ssize_t i = 0; i < n; i++) {
                if (got[i]->err) failed++;
                else { done++; bytes += got[i]->len; }
                rd_kafka_message_destroy(got[i]);
            }
        }
        return report(wanted, bytes, t0, last);
    }
    char *payloads = malloc(size * PAYLOADS + 1); /* many, so that none repeats within a batch */
    srand(1);
    for (size_t i = 0; i < size * PAYLOADS; i++) payloads[i] = 'A' + rand() % 26;
    int64_t t0 = now_ns();
    for (int64_t i = 0; i < wanted; i++) {
        while (rd_kafka_produce(topic, (int32_t)(i % partitions), COPY, payloads + (i % PAYLOADS) * size, size, NULL, 0, NULL)) {
            if (rd_kafka_last_error() != QUEUE_FULL) { failed++; break; }
            rd_kafka_poll(k, 5);
        }
        if (i % 256 == 0) rd_kafka_poll(k, 0);
    }
    while (done + failed < wanted && now_ns() - t0 < PATIENCE_S * 1000000000LL) rd_kafka_poll(k, 10);
    return report(wanted, done * (int64_t)size, t0, now_ns());
}
