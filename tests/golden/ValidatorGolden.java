// Prints what Apache Kafka 3.9's broker makes of message sets that old producers send, one a line:
// <name in records_java.hex> <codec of the topic, or producer> <CreateTime|LogAppendTime> <hex>.
// Kafka 4 has no such conversion any more. Standard input: records_java.hex.
//     javac -cp "$CLASSPATH_OF_KAFKA_3_9_1" ValidatorGolden.java
//     java -cp "$CLASSPATH_OF_KAFKA_3_9_1:." ValidatorGolden < records_java.hex > validator_java_39.hex
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;

public class ValidatorGolden {
    static final class Nobody implements LogValidator.MetricsRecorder {
        public void recordInvalidMagic() { }
        public void recordInvalidOffset() { }
        public void recordInvalidSequence() { }
        public void recordInvalidChecksums() { }
        public void recordNoKeyCompactedTopic() { }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("# Made by Apache Kafka 3.9.1's LogValidator through ValidatorGolden.java (Java 17): "
            + "<source in records_java.hex> <compression.type> <message.timestamp.type> <hex>.");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (!words[0].matches("v[01]-[a-z0-9]+")) continue;
            byte[] set = HexFormat.of().parseHex(words[1]);
            CompressionType source = CompressionType.forName(words[0].substring(3));
            print(words[0], set, source, source, "producer", TimestampType.CREATE_TIME);
            print(words[0], set, source, source, "producer", TimestampType.LOG_APPEND_TIME);
            if (words[0].equals("v1-none")) print(words[0], set, source, CompressionType.ZSTD, "zstd", TimestampType.CREATE_TIME);
            if (words[0].equals("v0-gzip")) print(words[0], set, source, CompressionType.NONE, "uncompressed", TimestampType.CREATE_TIME);
        }
    }

    static void print(
        String name, byte[] set, CompressionType source, CompressionType target, String topic, TimestampType time
    ) {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(set.clone()));
        LogValidator validator = new LogValidator(records, new TopicPartition("t", 0), Time.SYSTEM, source,
            Compression.of(target).build(), false, (byte) 2, time, Long.MAX_VALUE, Long.MAX_VALUE, 0,
            AppendOrigin.CLIENT, MetadataVersion.latestProduction());
        LogValidator.ValidationResult result = validator.validateMessagesAndAssignOffsets(
            PrimitiveRef.ofLong(0), new Nobody(), BufferSupplier.NO_CACHING);
        ByteBuffer made = result.validatedRecords.buffer().duplicate();
        byte[] bytes = new byte[made.remaining()];
        made.get(bytes);
        System.out.println(name + " " + topic + " " + time.name + " " + HexFormat.of().formatHex(bytes));
    }
}
