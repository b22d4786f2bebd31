"""What tests share, imported as `support.x`: `tests` is on pytest's path. One line a file:

Processes
- `harness`: a broker as a process on a free port, names that no other test uses, what a program printed
- `kafka_jars`: Apache Kafka as a process, and its own programs
- `class_archive`: classes that JVMs share, so that they start sooner
- `spark_classes`: those of Spark, for its drivers
- `kafka_fixtures`: the fixtures `apache_kafka` and `second_kafka`, nodes for a session, and `kafka_as`
- `stages`: mirror, dedupe and the load as processes, started like a user would
- `kcat`: kcat against a broker
- `spark_cluster`: a standalone Spark cluster with executors in processes of their own
- `remote_stores`: HDFS and an S3 server
- `scraping`: what a process shows by HTTP, read as Prometheus reads it
- `patience`: waiting for what another thread or process makes true
- `onloop`: tests that are coroutines
- `whole_day`: no midnight amid a test that is about today
- `leftovers`: the end of what a test process has started and left behind

Single requests to a broker
- `asking`: what tests ask a real broker again and again
- `config_asking`: values that are tried for configs, and the requests that carry them
- `entity_asking`: configs, quotas and credentials, asked of one broker and altered through one
- `one_partition`: topics of one partition, as client libraries make, fill, trim, read and delete them
- `members`: consumers of librdkafka as members of groups
- `our_members`: our consumers as members of groups
- `transaction_wire`: transactions, request by request
- `moves`: moves between the folders of a broker that has several
- `hostile_frames`: requests that are wrong in one place
- `flaky_broker`: a broker that fails as it is told, for clients

Worlds: topics, a stage between them, a ledger of what was sent
- `transaction_turns`: turns of our transactional client, and what they leave
- `moving_cluster`: a cluster whose brokers are killed one at a time
- `moving_kafka`: three nodes of Apache Kafka as such a cluster
- `mirror_world`: source clusters and a target
- `dedupe_world`: an input topic and a dedupe stage
- `etl_world`: a pipeline whose positions are set by hand
- `table_look`: what a table holds, wherever it lies
- `valuecorpus`: which JSON values a column of each type takes, case by case
- `store_ages`: an id store under a clock that is set ahead, and what its ids' ages say
- `dedupe_rot`: batches that are right by header and corrupt inside

Inside the test process
- `dataplane`: a data plane with real sockets and logs, and a control plane of a few lines
- `logs`: partition logs in a folder of their own
- `followed`: a follower's log, and batches as its leader sends them
- `replicas`: partition logs that follow a leader
- `compacted`: keyed batches, passes of the cleaner, what a reader finds
- `crafted`: batches of magic 2 made byte by byte, right ones and poisons
- `messagesets`: message sets of magic 0 and 1 in plain Python
- `rows`: what columns hold, as records
- `id_columns`: ids as the columns that `IdStore` takes
- `pagecache`: what of a file is in the page cache
- `machine_bench`: a coordinator's machine on a clock of the test's own
- `metadata_store`: the store of a broker that is stopped, changed node by node
- `store_homes`: the homes of a metadata store, with sessions that expire, for tests that hold for each
- `cluster_soak`: such a cluster around an ensemble, under load, to which everything happens; judged by its history
- `cluster_events`: what happens to it, one function an event
- `cluster_run`: a run of it by a seed (`make cluster-soak`)
- `cluster_world`: three broker processes around a ZooKeeper, killed, paused and looked at through public doors
- `cluster_clients`: its clients, held against what they were answered
- `cluster_transactions`: its transactional producers, and what is left of their transactions for consumers
- `java_clients`, `JavaClients.java`: Java's clients, and what they were told as `history` judges it
- `cut_logs`: logs that lost their end, while the rest of a cluster is as it was
- `cuttingproxy`: ways between brokers and ZooKeepers that a test cuts, one way too, and heals
- `zookeeper`: ZooKeeper from Kafka 3.9's jars, alone or an ensemble, and a proxy that cuts its connections

Machines (`make deploy-test`)
- `packages`: Debian packages and bundles of this checkout
- `machines`: Debian in systemd-nspawn, and Ansible against it
- `debian13`: commands in a Debian 13 (`make debian-13`)
- `emulated`: Debian in an emulated machine
- `fleet_world`: datacenters on such machines
- `callbacks`: what Ansible itself loads: one that kills it

Monitoring (`make monitoring-test`)
- `prometheus`: a real Prometheus over a test's processes, and node_exporter
- `watched_world`: a pipeline that shows its figures

Faults
- `failpoint_cells`: at which failpoints, with whose brokers, a stage is killed or paused
- `faultio`, `faultio.c`: calls on files that fail or hang, in a process that the library is preloaded into
- `clock`, `clock.c`: a wall clock that a test sets, likewise
- `sandbox`: a filter of system calls around a process
- `load`: load that writes down what it was told
- `lossy_disk`: a file system whose power can be cut
- `small_disk`: one whose room is taken and given back
- `history`: the judge of such a load and of the log
- `losses`: what a power cut of all in-sync replicas may take of a history
- `admin_run`: random admin work under kill -9 (`make faults`)
- `admin_work`: its workers
- `admin_look`: its look at a broker while nobody works
- `admin_world`: its model of all that was acknowledged
- `soak`: a pipeline that runs for an hour while all happens to it (`make soak`)
- `soak_world`: its processes, and what an operator asks of them
- `soak_events`: what happens, one function an event
- `soak_ledger`: what it has sent and owes
"""
