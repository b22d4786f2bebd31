// Prints record batches that Apache Kafka's own classes build, one a line: <name> <hex>. The names say magic, codec and
// what is special; the records in them follow from their number alone (see `golden_record` in test_batch.py).
// With "read" as its argument: reads such lines from standard input and prints, for each, name, record count and a
// hash over offset, timestamp, key, value and headers of all records, after Kafka's own checks.
//     javac -cp kafka-clients-4.4.0.jar RecordsGolden.java
//     java -cp kafka-clients-4.4.0.jar:lz4-java.jar:snappy-java.jar:zstd-jni.jar:slf4j-api.jar:. RecordsGolden \
//         > records_java.hex
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.zip.CRC32;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;

public class RecordsGolden {
    static final int COUNT = 60;

    public static void main(String[] args) throws Exception {
        if (args.length > 0 && args[0].equals("read")) {
            read();
            return;
        }
        for (CompressionType type : CompressionType.values()) {
            for (byte magic = 0; magic <= 2; magic++) {
                if (type == CompressionType.ZSTD && magic < 2) continue;
                build("v" + magic + "-" + type.name, magic, type, TimestampType.CREATE_TIME, 1, false);
            }
            build("v2-" + type.name + "-holes", (byte) 2, type, TimestampType.CREATE_TIME, 3, false);
            build("v2-" + type.name + "-appendtime", (byte) 2, type, TimestampType.LOG_APPEND_TIME, 1, false);
            build("v2-" + type.name + "-transactional", (byte) 2, type, TimestampType.CREATE_TIME, 1, true);
        }
        marker("marker-commit", ControlRecordType.COMMIT);
        marker("marker-abort", ControlRecordType.ABORT);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void build(String name, byte magic, CompressionType type, TimestampType time, int step, boolean transactional) {
        ByteBuffer out = ByteBuffer.allocate(1 << 16);
        long producer = transactional ? 4711 : -1;
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(out, magic, Compression.of(type).build(), time, 1000,
            1700000099000L, producer, (short) (transactional ? 3 : -1), transactional ? 17 : -1, transactional, false,
            5, out.capacity());
        for (int i = 0; i < COUNT; i++) {
            Header[] headers = magic < 2 || i % 4 != 0 ? Record.EMPTY_HEADERS : new Header[] {
                new RecordHeader("h", bytes("" + i)), new RecordHeader("näll", (byte[]) null)};
            builder.appendWithOffset(1000 + (long) i * step, 1700000000000L + i * 10 - (i % 3) * 25,
                i % 5 == 0 ? null : bytes("key-" + i), i % 11 == 0 ? null : bytes(("value-" + i + " ").repeat(i % 7)),
                headers);
        }
        print(name, builder.build());
    }

    static void marker(String name, ControlRecordType type) {
        print(name, MemoryRecords.withEndTransactionMarker(1000, 1700000000000L, 5, 4711, (short) 3,
            new EndTransactionMarker(type, 9)));
    }

    static void print(String name, MemoryRecords records) {
        ByteBuffer buffer = records.buffer();
        byte[] out = new byte[buffer.remaining()];
        buffer.get(out);
        System.out.println(name + " " + HexFormat.of().formatHex(out));
    }

    static void read() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.isBlank() || line.startsWith("#")) continue;
            String[] parts = line.split(" ");
            CRC32 hash = new CRC32();
            int count = 0;
            for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(HexFormat.of().parseHex(parts[1]))).batches()) {
                batch.ensureValid();
                for (Record record : batch) {
                    record.ensureValid();
                    StringBuilder text = new StringBuilder();
                    text.append(record.offset()).append(' ').append(record.timestamp());
                    text.append(' ').append(hex(record.key())).append(' ').append(hex(record.value()));
                    for (Header header : record.headers()) {
                        text.append(' ').append(hex(ByteBuffer.wrap(bytes(header.key()))));
                        text.append('=').append(header.value() == null ? "null" : hex(ByteBuffer.wrap(header.value())));
                    }
                    text.append('\n');
                    hash.update(bytes(text.toString()));
                    count++;
                }
            }
            System.out.println(parts[0] + " " + count + " " + hash.getValue());
        }
    }

    static String hex(ByteBuffer buffer) {
        if (buffer == null) return "null";
        byte[] out = new byte[buffer.remaining()];
        buffer.duplicate().get(out);
        return HexFormat.of().formatHex(out);
    }
}
