import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.zip.CRC32;

import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;

/**
 * Java's clients over a cluster that fails, and what they were told: a line each, for `java_clients.py`.
 *
 * Arguments: the brokers, the topic, the number of its partitions, and the clients: "idempotent" and "transactional" produce,
 * "classic" and "consumer" read as a group of that protocol. When standard input ends, producers end; then all partitions are read
 * from their beginning by one consumer more, and the process ends. Whatever nobody expects ends it with an error.
 */
public class JavaClients {
    static final int PAYLOAD = 100;
    static final Duration POLL = Duration.ofMillis(100);
    static final PrintStream TOLD = System.out;
    static String brokers, topic;
    static int partitions;
    static volatile boolean ends;

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // The clients' own log goes there: it is no line of what they were told.
        brokers = arguments[0];
        topic = arguments[1];
        partitions = Integer.parseInt(arguments[2]);
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        List<Thread> producing = new ArrayList<>();
        for (String client : List.of(arguments).subList(3, arguments.length)) {
            Thread thread = new Thread(switch (client) {
                case "idempotent" -> JavaClients::produce;
                case "transactional" -> JavaClients::transact;
                default -> () -> consume(client);
            }, client);
            thread.setDaemon(true);
            thread.start();
            if (client.equals("idempotent") || client.equals("transactional")) producing.add(thread);
        }
        while (System.in.read() >= 0) { }
        ends = true;
        for (Thread thread : producing) thread.join();
        Thread reading = new Thread(JavaClients::readAll); // of which the handler hears, unlike of what this thread throws
        reading.start();
        reading.join();
        TOLD.flush();
        Runtime.getRuntime().halt(0);
    }

    static synchronized void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) line.append(line.length() == 0 ? "" : "\t").append(word);
        TOLD.println(line);
    }

    static double now() {
        return System.nanoTime() / 1e9;
    }

    static Properties properties(String... more) {
        Properties made = new Properties();
        made.put("bootstrap.servers", brokers);
        made.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        made.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        made.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        made.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        made.put("request.timeout.ms", "10000");
        for (int i = 0; i < more.length; i += 2) made.put(more[i], more[i + 1]);
        return made;
    }

    /** As `history.encode` has it. */
    static byte[] payload(String value) {
        StringBuilder body = new StringBuilder(value).append('|');
        while (body.length() < PAYLOAD - 8) body.append('.');
        CRC32 sum = new CRC32();
        sum.update(body.toString().getBytes());
        return body.append(String.format("%08x", sum.getValue())).toString().getBytes();
    }

    static void sent(String producer, int number, int partition, String value, String outcome, long offset, double started, String transaction) {
        say("send", producer, number, partition, value, outcome, offset, started, now(), transaction);
    }

    static void produce() {
        Properties own = properties("acks", "all", "enable.idempotence", "true", "linger.ms", "2");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(own)) {
            for (int number = 0; !ends; number++) {
                int mine = number, partition = number % partitions;
                String value = "i" + number;
                double started = now();
                producer.send(new ProducerRecord<>(topic, partition, null, payload(value)), (told, error) ->
                    sent("idempotent", mine, partition, value, error == null ? "ok" : "info", error == null ? told.offset() : -1, started, ""));
                rest(2);
            }
        }
    }

    static int transactions = 0;

    static void transact() {
        while (!ends) {
            Properties own = properties("transactional.id", "java", "transaction.timeout.ms", "20000", "linger.ms", "0");
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(own)) {
                untilDone(producer::initTransactions);
                while (!ends && transact(producer)) { }
            } catch (KafkaException error) {
                System.err.println("its next producer goes on: " + error);
            }
        }
    }

    /** One transaction, into all partitions; each third one is aborted. Whether the producer can go on. */
    static boolean transact(KafkaProducer<byte[], byte[]> producer) {
        int number = transactions++;
        double started = now();
        List<Future<RecordMetadata>> told = new ArrayList<>();
        String outcome = "info";
        boolean goesOn = true;
        try {
            producer.beginTransaction();
            for (int partition = 0; partition < partitions; partition++)
                told.add(producer.send(new ProducerRecord<>(topic, partition, null, payload("t" + number + "." + partition))));
            if (number % 3 == 2) {
                producer.flush();
                untilDone(producer::abortTransaction);
                outcome = "fail";
            } else {
                untilDone(producer::commitTransaction);
                outcome = "ok";
            }
        } catch (KafkaException error) {
            System.err.println("transaction " + number + ": " + error);
            try {
                untilDone(producer::abortTransaction);
                outcome = "fail";
            } catch (KafkaException fatal) {
                goesOn = false;
            }
        }
        for (int partition = 0; partition < partitions; partition++) {
            long offset = -1;
            if (outcome.equals("ok")) {
                try {
                    offset = told.get(partition).get().offset();
                } catch (Exception error) {
                    throw new IllegalStateException("committed without " + partition, error);
                }
            }
            sent("transactional", number, partition, "t" + number + "." + partition, outcome, offset, started, "t" + number);
        }
        return goesOn;
    }

    static void untilDone(Runnable step) {
        while (true) {
            try {
                step.run();
                return;
            } catch (TimeoutException error) {
                System.err.println("asked again: " + error);
            }
        }
    }

    static void consume(String protocol) {
        Properties own = properties("group.id", protocol, "group.protocol", protocol, "enable.auto.commit", "false",
            "auto.offset.reset", "earliest", "isolation.level", "read_committed", "default.api.timeout.ms", "120000");
        int[] assignment = {0};
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(own)) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> gone) { }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> here) {
                    assignment[0]++;
                    double started = now();
                    Map<Integer, Long> positions = new HashMap<>();
                    for (TopicPartition one : here) positions.put(one.partition(), consumer.position(one));
                    say("assigned", protocol, shown(positions), started);
                }
            });
            while (true) {
                if (poll(consumer, protocol, assignment[0]) == 0) continue;
                Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
                for (TopicPartition one : consumer.assignment()) positions.put(one, new OffsetAndMetadata(consumer.position(one)));
                Map<Integer, Long> committed = new HashMap<>();
                positions.forEach((one, position) -> committed.put(one.partition(), position.offset()));
                double started = now();
                String outcome = "info";
                try {
                    consumer.commitSync(positions);
                    outcome = "ok";
                } catch (KafkaException error) {
                    System.err.println("commit of " + protocol + ": " + error);
                }
                say("commit", protocol, shown(committed), outcome, started, now());
            }
        }
    }

    static int poll(KafkaConsumer<byte[], byte[]> consumer, String name, int assignment) {
        double started = now();
        ConsumerRecords<byte[], byte[]> got = consumer.poll(POLL);
        if (got.isEmpty()) return 0;
        StringBuilder words = new StringBuilder();
        for (ConsumerRecord<byte[], byte[]> one : got)
            words.append(words.length() == 0 ? "" : " ").append(one.partition()).append(':').append(one.offset()).append(':').append(new String(one.value()));
        say("poll", name, assignment, words, started, now());
        return got.count();
    }

    static String shown(Map<Integer, Long> positions) {
        StringBuilder words = new StringBuilder();
        positions.forEach((one, position) -> words.append(words.length() == 0 ? "" : " ").append(one).append(':').append(position));
        return words.toString();
    }

    /** All partitions to where they end once nothing is open in them. */
    static void readAll() {
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) all.add(new TopicPartition(topic, partition));
        Map<TopicPartition, Long> ends;
        try (KafkaConsumer<byte[], byte[]> plain = new KafkaConsumer<>(properties("default.api.timeout.ms", "120000"))) {
            ends = plain.endOffsets(all);
        }
        Properties own = properties("isolation.level", "read_committed", "auto.offset.reset", "none", "default.api.timeout.ms", "120000");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(own)) {
            consumer.assign(all);
            consumer.seekToBeginning(all);
            while (!all.stream().allMatch(one -> consumer.position(one) >= ends.get(one))) poll(consumer, "final", 0);
        }
    }

    static void rest(int ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
