"""Every metric of a broker: its name, its type, what it means.

Names that begin with `kafka_` are those that the JMX exporter's rules and kafka_exporter give, with their labels, so that
dashboards made for Kafka show this broker; ours begin with `penstock_`. On one node without replicas some never move: what
they say is true all the same.
"""

from __future__ import annotations

from penstock.metrics import Family, dropped_series

PHASES = (
    "total, queue (until its work begins), local (its work), waiting (for records, members, disks), send (until it is sent)"
)

# Topics.
_TOPIC = ("topic",)
_TOPIC_STEM = "kafka_server_brokertopicmetrics_"
MESSAGES_IN = Family(f"{_TOPIC_STEM}messagesin", "counter", "Records that were appended; without a topic: of all.", _TOPIC)
BYTES_IN = Family(f"{_TOPIC_STEM}bytesin", "counter", "Bytes of batches that were appended, as producers sent them.", _TOPIC)
BYTES_OUT = Family(f"{_TOPIC_STEM}bytesout", "counter", "Bytes of batches that consumers were sent.", _TOPIC)
PRODUCES = Family(f"{_TOPIC_STEM}totalproducerequests", "counter", "Partitions that produce requests named.", _TOPIC)
FETCHES = Family(f"{_TOPIC_STEM}totalfetchrequests", "counter", "Partitions that fetch requests asked for.", _TOPIC)
FAILED_PRODUCES = Family(f"{_TOPIC_STEM}failedproducerequests", "counter", "Of those, answered with an error.", _TOPIC)
FAILED_FETCHES = Family(f"{_TOPIC_STEM}failedfetchrequests", "counter", "Of those, answered with an error.", _TOPIC)
TOPIC_PARTITIONS = Family("kafka_topic_partitions", "gauge", "Partitions of a topic.", _TOPIC)

# Requests.
_REQUEST_STEM = "kafka_network_requestmetrics_"
_REQUEST = ("request",)
REQUESTS = Family(f"{_REQUEST_STEM}requests", "counter", "Requests, by the version that clients use.", ("request", "version"))
REQUEST_SECONDS = Family("penstock_request_seconds", "histogram", f"Time of requests; phase: {PHASES}.", ("request", "phase"))
TIMES = {
    phase: Family(f"{_REQUEST_STEM}{name}", "summary", f"Milliseconds of the last minutes' requests: {words}.", _REQUEST)
    for phase, name, words in (
        ("total", "totaltimems", "from reading to sent"),
        ("queue", "requestqueuetimems", "until work begins"),
        ("local", "localtimems", "work"),
        ("waiting", "remotetimems", "waiting for records, members or disks"),
        ("throttle", "throttletimems", "held back by quotas, of which there are none"),
        ("send", "responsesendtimems", "until the answer is sent"),
    )
}
SLOW_REQUESTS = Family(
    "penstock_slow_requests", "counter", "Requests that took longer than `penstock.slow.request.ms`.", _REQUEST
)

# Connections, threads, the control plane's loop.
CONNECTIONS = Family("penstock_connections", "gauge", "Connections of clients.")
CONNECTIONS_ACCEPTED = Family("penstock_connections_accepted", "counter", "Connections that were accepted.")
CONNECTIONS_CLOSED = Family(
    "penstock_connections_closed", "counter", "Connections that were closed, by what for; `peer`: by their client.", ("reason",)
)
_LISTENER = ("listener", "networkProcessor")
_SOCKET_STEM = "kafka_server_socket_server_metrics_"
CONNECTION_COUNT = Family(f"{_SOCKET_STEM}connection_count", "gauge", "Connections of a network thread.", _LISTENER)
CLIENTS = Family(
    "penstock_clients", "gauge", "Connections by the software that their client says it is.", ("software", "version")
)
NETWORK_IDLE = Family(
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "gauge",
    "Part of the last minute that network threads waited, on average: 0 to 1.",
)
HANDLER_IDLE = Family(
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "gauge",
    "Part of the last minute that the control plane's loop and the worker threads had nothing to do, on average: 0 to 1.",
)
THREAD_BUSY = Family(
    "penstock_network_thread_busy_seconds", "counter", "Time that a thread of the data plane did not wait.", ("thread",)
)
THREAD_BEATS = Family(
    "penstock_network_thread_beats",
    "counter",
    "Turns of a network thread, one a second at least; jobs of a worker or reader thread.",
    ("thread",),
)
THREAD_STANDS = Family(
    "penstock_network_thread_stands_seconds",
    "gauge",
    "For how long a thread of the data plane has been at one piece of work: it waits for a disk, or is caught; 0: it moves.",
    ("thread",),
)
LOOP_BUSY = Family("penstock_control_loop_busy_seconds", "counter", "Processor time of the control plane's loop.")
LOOP_DELAY = Family(
    "penstock_control_loop_delay_seconds", "histogram", "How much later than asked the loop comes to a timer, twice a second."
)

# Logs and their folders.
_FOLDER = ("folder",)
FOLDER_FREE = Family("penstock_log_folder_free_bytes", "gauge", "Free bytes of the disk that a log folder lies on.", _FOLDER)
FOLDER_SIZE = Family("penstock_log_folder_size_bytes", "gauge", "Bytes of the disk that a log folder lies on.", _FOLDER)
FOLDER_USED = Family("penstock_log_folder_used_bytes", "gauge", "Bytes of the segments in a log folder.", _FOLDER)
FOLDER_WAITS = Family(
    "penstock_log_folder_waits_seconds",
    "gauge",
    "For how long the folder's disk has owed an answer to a flush, which it is asked for every 15 s; 0: it owes none.",
    _FOLDER,
)
FOLDER_OFFLINE = Family("penstock_log_folder_offline", "gauge", "1: the folder's disk has failed, or it is missing.", _FOLDER)
FOLDER_FULL = Family("penstock_log_folder_full", "gauge", "1: clients' appends are refused as the disk is full.", _FOLDER)
OFFLINE_FOLDERS = Family("kafka_log_logmanager_offlinelogdirectorycount", "gauge", "Log folders that are offline.")
_PARTITION = ("topic", "partition")
LOG_SIZE = Family("kafka_log_log_size", "gauge", "Bytes of a partition's segments.", _PARTITION)
LOG_START = Family("kafka_log_log_logstartoffset", "gauge", "The first offset of a partition's log.", _PARTITION)
LOG_END = Family("kafka_log_log_logendoffset", "gauge", "The offset that a partition's next record gets.", _PARTITION)
CURRENT_OFFSET = Family("kafka_topic_partition_current_offset", "gauge", "The same, by kafka_exporter's name.", _PARTITION)
OLDEST_OFFSET = Family("kafka_topic_partition_oldest_offset", "gauge", "The first offset, by its name.", _PARTITION)
REPLICAS = Family("kafka_topic_partition_replicas", "gauge", "Copies of a partition.", _PARTITION)
IN_SYNC = Family("kafka_topic_partition_in_sync_replica", "gauge", "Copies that are in sync.", _PARTITION)
UNDER_REPLICATED = Family(
    "kafka_topic_partition_under_replicated_partition", "gauge", "1: fewer are in sync than there are.", _PARTITION
)
LEADER_IS_PREFERRED = Family("kafka_topic_partition_leader_is_preferred", "gauge", "1: the first copy leads.", _PARTITION)
REPLICAS_COUNT = Family("kafka_cluster_partition_replicascount", "gauge", "Copies, by Kafka's name.", _PARTITION)
UNDER_MIN_ISR = Family("kafka_cluster_partition_underminisr", "gauge", "1: fewer than `min.insync.replicas`.", _PARTITION)
AT_MIN_ISR = Family("kafka_cluster_partition_atminisr", "gauge", "1: just as many as `min.insync.replicas`.", _PARTITION)

# The broker in its cluster. What is said of a partition its leader says; without one, the controller.
_REPLICA_STEM = "kafka_server_replicamanager_"
PARTITION_COUNT = Family(f"{_REPLICA_STEM}partitioncount", "gauge", "Partitions that this broker has a copy of.")
LEADER_COUNT = Family(f"{_REPLICA_STEM}leadercount", "gauge", "Partitions that it leads: their logs are open and online.")
UNDER_REPLICATED_COUNT = Family(f"{_REPLICA_STEM}underreplicatedpartitions", "gauge", "With fewer in sync than copies.")
UNDER_MIN_ISR_COUNT = Family(f"{_REPLICA_STEM}underminisrpartitioncount", "gauge", "With fewer than `min.insync.replicas`.")
AT_MIN_ISR_COUNT = Family(f"{_REPLICA_STEM}atminisrpartitioncount", "gauge", "With just as many as `min.insync.replicas`.")
OFFLINE_REPLICAS = Family(f"{_REPLICA_STEM}offlinereplicacount", "gauge", "Whose disk has failed, or whose log is missing.")
ISR_SHRINKS = Family(f"{_REPLICA_STEM}isrshrinks", "counter", "How often a copy fell behind, of partitions that it leads.")
ISR_EXPANDS = Family(f"{_REPLICA_STEM}isrexpands", "counter", "How often a copy came back, of those.")
_CONTROLLER_STEM = "kafka_controller_kafkacontroller_"
QUEUE = Family("kafka_controller_controllereventmanager_eventqueuesize", "gauge", "Events that wait for the controller.")
ACTIVE_CONTROLLERS = Family(f"{_CONTROLLER_STEM}activecontrollercount", "gauge", "1: this broker is the controller.")
_ALONE = "The controller says it, others 0."
OFFLINE_PARTITIONS = Family(
    f"{_CONTROLLER_STEM}offlinepartitionscount", "gauge", f"Partitions that no broker can serve. {_ALONE}"
)
GLOBAL_TOPICS = Family(f"{_CONTROLLER_STEM}globaltopiccount", "gauge", f"Topics of the cluster. {_ALONE}")
GLOBAL_PARTITIONS = Family(f"{_CONTROLLER_STEM}globalpartitioncount", "gauge", f"Partitions of the cluster. {_ALONE}")
IMBALANCE = Family(
    f"{_CONTROLLER_STEM}preferredreplicaimbalancecount", "gauge", f"Partitions that another copy leads. {_ALONE}"
)
_STATS_STEM = "kafka_controller_controllerstats_"
ELECTIONS = Family(f"{_STATS_STEM}leaderelectionrateandtimems", "counter", "Elections of leaders; their times aren't measured.")
UNCLEAN_ELECTIONS = Family(f"{_STATS_STEM}uncleanleaderelections", "counter", "Elections of a copy that lacks records.")
MAX_LAG = Family("kafka_server_replicafetchermanager_maxlag", "gauge", "The most records that a copy lacks of its leader's.")
REPLICATION_BYTES_IN = Family(f"{_TOPIC_STEM}replicationbytesin", "counter", "Bytes that this broker fetched from leaders.")
LEASE_LEFT = Family(
    "penstock_lease_left_seconds",
    "gauge",
    "How long it may answer for acks=0 and 1, and coordinate, without hearing from ZooKeeper; -1: it needs no lease.",
)
HANGS = Family(
    "penstock_disk_hangs", "counter", "How often it left its cluster as a write hung, and others led its partitions."
)
FULL_FOLDERS = Family(
    "penstock_reported_full_log_folders",
    "gauge",
    "Log folders that the controller has been told of as full: brokers in sync lead what this one led there.",
)
SESSIONS_LOST = Family(
    "kafka_server_sessionexpirelistener_zookeeperexpires",
    "counter",
    "How often it registered again, as its session was over or its registration gone: others led its partitions.",
)
ISOLATED = Family(
    "penstock_isolated_partitions",
    "gauge",
    "Partitions that it leads and serves to no client, as the lease is over and a follower is silent.",
)
FETCH_ERRORS = Family("penstock_replica_fetch_errors", "counter", "Answers of leaders that were errors, or could not be used.")
REFUSED_TRUNCATIONS = Family(
    "penstock_refused_truncations",
    "counter",
    "How often a copy didn't follow a leader that lacks records below its high watermark.",
)
COPIES_BEGUN_AGAIN = Family(
    "penstock_copies_begun_again",
    "counter",
    "How often a copy of a compacted partition was emptied and made again: it might have kept what was deleted.",
)
HANGING_TRANSACTIONS = Family(
    "penstock_hanging_transactions",
    "counter",
    "Transactions that no coordinator would have ended, by what this broker did; `unknown`: nothing, as the outcome is lost.",
    ("outcome",),
)
BROKERS = Family("kafka_brokers", "gauge", "Brokers of the cluster.")
BROKER_INFO = Family("kafka_broker_info", "gauge", "Always 1.", ("id", "address"))
DISK_READ = Family(
    "kafka_server_kafkaserver_linux_disk_read_bytes", "gauge", "Bytes that this process had read from disks; it only grows."
)
DISK_WRITTEN = Family(
    "kafka_server_kafkaserver_linux_disk_write_bytes", "gauge", "Bytes that it had written to them; it only grows."
)

# Groups.
_GROUP_PARTITION = ("consumergroup", "topic", "partition")
_WHICH = "Groups of the mirror, which hold offsets of another cluster, have none."
GROUP_LAG = Family(
    "kafka_consumergroup_lag",
    "gauge",
    f"Offsets from a group's committed one, or the log's start if that is later, to the log's end. {_WHICH}",
    _GROUP_PARTITION,
)
GROUP_OFFSET = Family("kafka_consumergroup_current_offset", "gauge", f"A group's committed offset. {_WHICH}", _GROUP_PARTITION)
GROUP_LAG_SUM = Family("kafka_consumergroup_lag_sum", "gauge", "The lag of all of a topic's partitions.", _GROUP_PARTITION[:2])
GROUP_MEMBERS = Family("kafka_consumergroup_members", "gauge", "Members of a group.", ("consumergroup",))
GROUP_LAG_SECONDS = Family(
    "penstock_consumergroup_lag_seconds",
    "gauge",
    "Age of the first batch that a group has not read, by the time that its producer gave it; looked up every 15 s.",
    _GROUP_PARTITION,
)
GROUP_LAG_ESTIMATED = Family(
    "penstock_consumergroup_lag_estimated",
    "gauge",
    "1: the lag is at least as long. That batch isn't in memory: its age is that of its segment's newest record. Or it is "
    "stamped in the future: it has been known for so long.",
    _GROUP_PARTITION,
)

# The broker's own state.
READY = Family("penstock_broker_ready", "gauge", "1: started, every log open or offline, the metadata store answers.")
RECOVERING = Family("penstock_broker_recovering_partitions", "gauge", "Partitions whose logs are not open yet.")
CLOCK_SETTLED = Family(
    "penstock_clock_settled", "gauge", "0: the wall clock has jumped ahead and is not believed: nothing is deleted by its age."
)
CLOCK_JUMPS = Family("penstock_clock_jumps", "counter", "How often it has jumped ahead.")
DROPPED = dropped_series()

FAMILIES = tuple(value for value in list(globals().values()) if isinstance(value, Family)) + tuple(TIMES.values())
"""All of them, but those of the process itself (`penstock.metrics`)."""
