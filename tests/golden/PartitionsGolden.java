// Prints which partitions Apache Kafka's own classes choose, a line each:
//     key <key in hex> <partitions> <partition>          BuiltInPartitioner, for keys of many lengths
//     round_robin <partitions> <partition>...            RoundRobinPartitioner, record after record
//     java -cp kafka-clients-4.4.0.jar:slf4j-api.jar PartitionsGolden.java > partitions_java.txt
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.apache.kafka.clients.producer.RoundRobinPartitioner;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

public class PartitionsGolden {
    public static void main(String[] args) throws Exception {
        Random dice = new Random(42);
        for (int length = 0; length <= 40; length++)
            for (int partitions : new int[] {1, 2, 7, 100, 1000}) {
                byte[] key = new byte[length];
                dice.nextBytes(key);
                int chosen = BuiltInPartitioner.partitionForKey(key, partitions);
                System.out.println("key x" + HexFormat.of().formatHex(key) + " " + partitions + " " + chosen);
            }
        Node node = new Node(1, "localhost", 9092);
        for (int count : new int[] {1, 3, 7}) {
            List<PartitionInfo> parts = new ArrayList<>();
            for (int i = 0; i < count; i++)
                parts.add(new PartitionInfo("t", i, node, new Node[] {node}, new Node[] {node}));
            Cluster cluster = new Cluster("c", List.of(node), parts, Set.of(), Set.of());
            RoundRobinPartitioner partitioner = new RoundRobinPartitioner();
            partitioner.configure(Map.of());
            StringBuilder line = new StringBuilder("round_robin " + count);
            for (int i = 0; i < 20; i++)
                line.append(" ").append(partitioner.partition("t", null, null, null, null, cluster));
            System.out.println(line);
        }
    }
}
