"""MirrorMaker 2, as Apache Kafka brings it: one process that copies topics exactly once, tuned for throughput."""

from __future__ import annotations

from penstock.bench.apache_kafka import LOG4J, kafka_classpath
from penstock.bench.stages import Stage
from penstock.bench.world import World
from penstock.pipeline.etl import maven
from penstock.ports import hold_ports

# The newest that can be had. Its class path has Kafka of the same version.
VERSION = "4.3.1"
JARS = [maven.Jar(f"org.apache.kafka:{name}:{VERSION}") for name in ("connect-mirror", "connect-mirror-client")]
# The options of its own start script.
JVM = [
    *("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
]
# Topic names stay, and what only serves to fail over is left out: it would cost more.
PROPERTIES = {
    "clusters": "source,target",
    "source->target.enabled": "true",
    "target->source.enabled": "false",
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "source->target.emit.heartbeats.enabled": "false",
    "target->source.emit.heartbeats.enabled": "false",
    "source->target.emit.checkpoints.enabled": "false",
    "source->target.sync.topic.configs.enabled": "false",
    "source->target.sync.topic.acls.enabled": "false",
    **{f"{topic}.replication.factor": "1" for topic in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")},
    **{f"{topic}.storage.replication.factor": "1" for topic in ("offset", "status", "config")},
    "replication.factor": "1",
    # Exactly once.
    "dedicated.mode.enable.internal.rest": "true",
    "source.exactly.once.source.support": "enabled",
    "target.exactly.once.source.support": "enabled",
    "source.consumer.isolation.level": "read_committed",
    # Tuned: a transaction a poll, so polls are large; batches as large as the source's, or larger.
    "source.consumer.max.poll.records": "20000",
    "source.consumer.fetch.max.bytes": str(64 << 20),
    "source.consumer.max.partition.fetch.bytes": str(8 << 20),
    "source.consumer.receive.buffer.bytes": str(1 << 20),
    "target.producer.batch.size": str(128 << 10),
    "target.producer.linger.ms": "20",
    "target.producer.compression.type": "lz4",
    "target.producer.buffer.memory": str(128 << 20),
    "target.producer.max.request.size": str(8 << 20),
}


def mirror_maker(world: World, source: str, target: str, topic: str, tasks: int) -> Stage:
    """Copies a topic between two brokers, given by their addresses, by so many tasks. Raises MavenError."""
    jars = maven.fetch(JARS)
    config, logging, (port,) = world.path("mirrormaker"), world.path("log4j2").with_suffix(".yaml"), hold_ports(1)
    logging.write_text(LOG4J, encoding="utf-8")
    own = {
        "source.bootstrap.servers": source,
        "target.bootstrap.servers": target,
        "source->target.topics": topic,
        "tasks.max": str(tasks),
        "listeners": f"http://127.0.0.1:{port}",
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in {**PROPERTIES, **own}.items()), encoding="utf-8")
    classpath = ":".join([kafka_classpath(VERSION), *map(str, jars)])
    command = ["java", *JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", classpath]
    command += ["org.apache.kafka.connect.mirror.MirrorMaker", str(config)]
    return Stage(command, config.with_suffix(".log"))
