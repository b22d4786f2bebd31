// What Apache Kafka's own assignors make of cases on standard input, one a line, words separated by blanks:
//     <assignor> <topic>=<partition>|<partition>|...,... <member>=<subscription in hex>[=<group.instance.id>] ...
// A partition stands as the racks of its replicas: <rack>+<rack>..., empty if they have none.
// Prints for each case the members with their partitions: <member>=<topic>:<partition>,... A line `userdata <topic> <partition>,...
// <generation>` prints in hex what StickyAssignor adds to a subscription after that assignment.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public class JavasAssignors {
    static AbstractPartitionAssignor assignor(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            case "cooperative-sticky": return new CooperativeStickyAssignor();
            default: throw new IllegalArgumentException(name);
        }
    }

    static PartitionInfo partition(String topic, int number, String racks) {
        String[] named = racks.split("\\+");
        Node[] replicas = new Node[named.length];
        for (int i = 0; i < named.length; i++) replicas[i] = new Node(i, "localhost", 9092, named[i].isEmpty() ? null : named[i]);
        return new PartitionInfo(topic, number, replicas[0], replicas, replicas);
    }

    static String userData(String[] words) {
        List<TopicPartition> had = new ArrayList<>();
        for (String number : words[2].split(",")) had.add(new TopicPartition(words[1], Integer.parseInt(number)));
        StickyAssignor sticky = new StickyAssignor();
        sticky.onAssignment(new Assignment(had), new ConsumerGroupMetadata("g", Integer.parseInt(words[3]), "m", Optional.empty()));
        ByteBuffer data = sticky.subscriptionUserData(Set.of(words[1]));
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    static String assigned(String[] words) {
        Map<String, List<PartitionInfo>> partitions = new HashMap<>();
        for (String topic : words[1].split(",")) {
            String[] racks = topic.split("=")[1].split("\\|", -1);
            List<PartitionInfo> listed = new ArrayList<>();
            for (int i = 0; i + 1 < racks.length; i++) listed.add(partition(topic.split("=")[0], i, racks[i]));
            partitions.put(topic.split("=")[0], listed);
        }
        Map<String, Subscription> members = new HashMap<>();
        for (int i = 2; i < words.length; i++) {
            String[] member = words[i].split("=");
            Subscription wishes = ConsumerProtocol.deserializeSubscription(ByteBuffer.wrap(HexFormat.of().parseHex(member[1])));
            if (member.length > 2) wishes.setGroupInstanceId(Optional.of(member[2]));
            members.put(member[0], wishes);
        }
        return new TreeMap<>(assignor(words[0]).assignPartitions(partitions, members)).entrySet().stream()
            .map(entry -> entry.getKey() + "=" + entry.getValue().stream()
                .map(tp -> tp.topic() + ":" + tp.partition()).collect(Collectors.joining(",")))
            .collect(Collectors.joining(" "));
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            System.out.println(words[0].equals("userdata") ? userData(words) : assigned(words));
        }
    }
}
