// Prints what Apache Kafka's own classes make of every message that the wire table has, one line each:
//     <message class> <version> <full|default> <hex>
// "full" has a value other than the default in every field of the version, two elements in every array and every
// tagged field set; "default" is a message as constructed. The test decodes and encodes them again.
//     javac -cp kafka-clients-4.4.0.jar WireGolden.java
//     java -cp kafka-clients-4.4.0.jar:kafka-group-coordinator-4.4.0.jar:kafka-transaction-coordinator-4.4.0.jar:\
//         slf4j-api.jar:. WireGolden > wire_java.hex
// The versions that Kafka 4 dropped come from Kafka 3.9, which needs to know from where on they are not wanted; it has
// no class for some of the newest APIs, and its classes of records are left out:
//     java -cp kafka-clients-4.4.0.jar:slf4j-api.jar:. WireGolden lowest > lowest
//     java -cp kafka-clients-3.9.1.jar:slf4j-api.jar:. WireGolden before lowest > wire_java_39.hex
// Of what brokers say to each other we speak the last version alone; Kafka 4 has no messages of a controller's any more:
//     java -cp kafka-clients-3.9.1.jar:slf4j-api.jar:. WireGolden newest 4 5 6 7 56 >> wire_java_39.hex
import java.lang.reflect.Field;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collection;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;

public class WireGolden {
    static final int[] KEYS = {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27,
        28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 55, 57, 60, 61, 65, 66, 68, 69, 74,
        75};
    static final String[] RECORDS = {
        "org.apache.kafka.coordinator.group.generated.OffsetCommitKey",
        "org.apache.kafka.coordinator.group.generated.OffsetCommitValue",
        "org.apache.kafka.coordinator.group.generated.GroupMetadataValue",
        "org.apache.kafka.coordinator.group.generated.ConsumerGroupMetadataValue",
        "org.apache.kafka.coordinator.group.generated.ConsumerGroupMemberMetadataValue",
        "org.apache.kafka.coordinator.group.generated.ConsumerGroupTargetAssignmentMetadataValue",
        "org.apache.kafka.coordinator.group.generated.ConsumerGroupTargetAssignmentMemberValue",
        "org.apache.kafka.coordinator.group.generated.ConsumerGroupCurrentMemberAssignmentValue",
        "org.apache.kafka.coordinator.group.generated.ConsumerGroupRegularExpressionValue",
        "org.apache.kafka.coordinator.transaction.generated.TransactionLogKey",
        "org.apache.kafka.coordinator.transaction.generated.TransactionLogValue",
        "org.apache.kafka.common.message.ConsumerProtocolSubscription",
        "org.apache.kafka.common.message.ConsumerProtocolAssignment",
        "org.apache.kafka.common.message.EndTxnMarker"};
    static int counter;

    public static void main(String[] args) throws Exception {
        if (args.length == 1) {
            for (int key : KEYS)
                System.out.println(key + " " + ApiMessageType.fromApiKey((short) key).lowestSupportedVersion());
            return;
        }
        if (args.length > 0 && args[0].equals("newest")) {
            for (int i = 1; i < args.length; i++) {
                ApiMessageType api = ApiMessageType.fromApiKey(Short.parseShort(args[i]));
                printVersion(api, api.highestSupportedVersion(false));
            }
            return;
        }
        if (args.length == 2) {
            for (String line : Files.readAllLines(Path.of(args[1]))) {
                String[] words = line.split(" ");
                printApi(Integer.parseInt(words[0]), Integer.parseInt(words[1]));
            }
            return;
        }
        for (int key : KEYS)
            printApi(key, Integer.MAX_VALUE);
        for (String name : RECORDS) {
            Class<?> type = Class.forName(name);
            Schema[] schemas = (Schema[]) type.getField("SCHEMAS").get(null);
            for (short v = 0; v < schemas.length; v++)
                if (schemas[v] != null)
                    print((ApiMessage) type.getConstructor().newInstance(), schemas, v);
        }
    }

    /** Every version of an API below end that is for general use. */
    static void printApi(int key, int end) throws Exception {
        ApiMessageType api = ApiMessageType.fromApiKey((short) key);
        for (short v = api.lowestSupportedVersion(); v <= api.highestSupportedVersion(false) && v < end; v++)
            printVersion(api, v);
    }

    static void printVersion(ApiMessageType api, short version) throws Exception {
        print(api.newRequest(), api.requestSchemas(), version);
        print(api.newResponse(), api.responseSchemas(), version);
    }

    static void print(ApiMessage message, Schema[] schemas, short version) throws Exception {
        String name = message.getClass().getSimpleName().replaceFirst("Data$", "");
        System.out.println(name + " " + version + " default " + hex(message, version));
        counter = 0;
        fill(message, schemas[version]);
        System.out.println(name + " " + version + " full " + hex(message, version));
    }

    static String hex(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return HexFormat.of().formatHex(buffer.array());
    }

    static void fill(Object message, Schema schema) throws Exception {
        for (BoundField bound : schema.fields()) {
            if (bound.def.type instanceof TaggedFields tagged)
                for (org.apache.kafka.common.protocol.types.Field f : fields(tagged))
                    set(message, f.name, f.type);
            else
                set(message, bound.def.name, bound.def.type);
        }
    }

    /** Kafka 3 has no method for it. */
    @SuppressWarnings("unchecked")
    static Collection<org.apache.kafka.common.protocol.types.Field> fields(TaggedFields tagged) throws Exception {
        Field map = TaggedFields.class.getDeclaredField("fields");
        map.setAccessible(true);
        return ((Map<Integer, org.apache.kafka.common.protocol.types.Field>) map.get(tagged)).values();
    }

    @SuppressWarnings("unchecked")
    static void set(Object message, String snake, Type type) throws Exception {
        // `is_kraft_controller` is isKRaftController.
        Field field = Arrays.stream(message.getClass().getDeclaredFields())
            .filter(one -> one.getName().equalsIgnoreCase(snake.replace("_", ""))).findFirst().orElseThrow();
        field.setAccessible(true);
        Class<?> java = field.getType();
        if (!type.isArray()) {
            field.set(message, value(java, type));
            return;
        }
        Collection<Object> elements = (Collection<Object>) field.get(message);
        if (elements == null)
            field.set(message, elements = new java.util.ArrayList<>());
        Class<?> element = field.getGenericType() instanceof ParameterizedType generic
            ? (Class<?>) generic.getActualTypeArguments()[0]
            : Class.forName(java.getName().replaceFirst("Collection$", ""));
        for (int i = 0; i < 2; i++)
            elements.add(value(element, type.arrayElementType().get()));
    }

    static Object value(Class<?> java, Type type) throws Exception {
        counter++;
        if (java == boolean.class || java == Boolean.class) return true;
        if (java == byte.class || java == Byte.class) return (byte) (counter % 127 + 1);
        if (java == short.class || java == Short.class) return (short) (1000 + counter);
        if (java == int.class || java == Integer.class) return 1_000_000 + counter;
        if (java == long.class || java == Long.class) return 10_000_000_000L + counter;
        if (java == String.class) return "s" + counter;
        if (java == Uuid.class) return new Uuid(0x0102030405060708L, counter);
        if (java == byte[].class) return new byte[] {1, 2, (byte) counter};
        if (java == ByteBuffer.class) return ByteBuffer.wrap(new byte[] {3, 4, (byte) counter});
        if (java == double.class) return 0.5 + counter;
        if (java.getSimpleName().equals("BaseRecords"))
            return records(ByteBuffer.wrap(new byte[] {5, 6, (byte) counter}));
        Object struct = java.getConstructor().newInstance();
        fill(struct, schemaOf(type));
        return struct;
    }

    /** The class has moved between Kafka 3 and 4. */
    static Object records(ByteBuffer bytes) throws Exception {
        Class<?> type;
        try {
            type = Class.forName("org.apache.kafka.common.record.internal.MemoryRecords");
        } catch (ClassNotFoundException absent) {
            type = Class.forName("org.apache.kafka.common.record.MemoryRecords");
        }
        return type.getMethod("readableRecords", ByteBuffer.class).invoke(null, bytes);
    }

    static Schema schemaOf(Type type) throws Exception {
        if (type instanceof Schema schema) return schema;
        for (Field field : type.getClass().getDeclaredFields())
            if (field.getType() == Schema.class) {
                field.setAccessible(true);
                return (Schema) field.get(type);
            }
        throw new IllegalStateException("no schema in " + type);
    }
}
