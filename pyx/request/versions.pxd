"""The versions of Produce and Fetch that are served, and from which of them on something holds."""

cdef enum:
    PRODUCE_KEY = 0
    PRODUCE_VERSION_MIN = 0
    PRODUCE_VERSION_MAX = 13
    PRODUCE_FLEXIBLE_FROM = 9         # compact lengths and tagged fields

    # What requests may bring.
    PRODUCE_TRANSACTIONS_FROM = 3     # and batches of magic 2, one for each partition
    PRODUCE_ZSTD_FROM = 7
    PRODUCE_ADDS_PARTITIONS_FROM = 12  # the broker adds a partition to its transaction by itself
    PRODUCE_TOPIC_IDS_FROM = 13

    # What answers bring.
    PRODUCE_THROTTLE_FROM = 1
    PRODUCE_APPEND_TIME_FROM = 2
    PRODUCE_STORAGE_ERROR_FROM = 4    # older clients take KAFKA_STORAGE_ERROR for fatal; NOT_LEADER they try again
    PRODUCE_LOG_START_OFFSET_FROM = 5
    PRODUCE_RECORD_ERRORS_FROM = 8
    PRODUCE_LEADERS_FROM = 10         # of partitions that another broker leads (leaders.pxd)

cdef enum:
    FETCH_KEY = 1
    FETCH_VERSION_MIN = 0
    FETCH_VERSION_MAX = 18
    FETCH_FLEXIBLE_FROM = 12

    # What requests and answers bring.
    FETCH_THROTTLE_FROM = 1
    FETCH_MAX_BYTES_FROM = 3
    FETCH_ISOLATION_FROM = 4
    FETCH_LOG_START_OFFSET_FROM = 5
    FETCH_SESSIONS_FROM = 7
    FETCH_LEADER_EPOCH_FROM = 9
    FETCH_RACK_FROM = 11
    FETCH_LAST_FETCHED_EPOCH_FROM = 12
    FETCH_TOPIC_IDS_FROM = 13
    FETCH_REPLICA_STATE_FROM = 15     # replica_id moved into a tagged field
    FETCH_LEADERS_FROM = 16           # of partitions that another broker leads; the field is there since 12

    # Formats of records that clients read.
    FETCH_MAGIC_1_FROM = 2
    FETCH_MAGIC_2_FROM = 4
