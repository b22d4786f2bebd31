"""The one file that describes a pipeline: sources, aggregate, mirror, dedupe, table.

`penstock mirror`, `dedupe`, `etl` and `audit` all take the same file (`--config pipeline.properties`); each reads the
keys of its part and knows the others', so a misspelt key is refused by all of them. Client properties of Kafka
(`client.id`, ...) have Kafka's names; ours start with `penstock.`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from penstock.config import (
    REQUIRED,
    Config,
    ConfigError,
    Property,
    Schema,
    parse_bool,
    parse_choice,
    parse_int,
    parse_list,
    parse_str,
)

SCHEMA = Schema(
    "pipeline",
    [
        Property("bootstrap.servers", parse_str, REQUIRED, "The aggregate cluster, host:port[,host:port]."),
        Property("source.*.bootstrap.servers", parse_str, None, "A source cluster, by its name."),
        Property("topics", parse_list, REQUIRED, "Topics that the mirror copies, same name on both sides."),
        Property("penstock.mirror.name", parse_str, "mirror", "The mirror's identity: a newer one fences an older."),
        Property("penstock.mirror.batch.bytes", parse_int(1), 4 << 20, "Bytes of one mirror transaction."),
        Property("penstock.mirror.position.refresh.ms", parse_int(1000), 3_600_000,
                 "Idle positions are committed again this often, so that they don't expire on the target."),
        Property("penstock.watch.ms", parse_int(100), 30_000,
                 "How often inputs are looked at for growth or a new topic of the same name."),
        Property("penstock.dedupe.name", parse_str, "dedupe", "The stage's identity: a newer worker fences an older."),
        Property("penstock.dedupe.input.topic", parse_str, None, "What dedupe reads; default the first of `topics`."),
        Property("penstock.dedupe.output.topic", parse_str, None, "What dedupe writes; default INPUT.deduped."),
        Property("penstock.dedupe.partitions", parse_list, [], "Partitions of this process; default all."),
        Property("penstock.dedupe.data", parse_str, REQUIRED, "Folder of the RocksDB databases, one a partition."),
        Property("penstock.dedupe.size.max.bytes", parse_int(1 << 20), 8 << 30,
                 "Bound of one partition's database; the oldest ids go first."),
        Property("penstock.dedupe.memory.max.ids", parse_int(1000), 1_000_000,
                 "Ids of a partition held in memory, some 100 bytes each, before they become a sorted file."),
        Property("penstock.dedupe.batch.bytes", parse_int(1), 4 << 20,
                 "Bytes of one dedupe transaction, about, as they came in."),
        Property("penstock.dedupe.id", parse_str, "key",
                 "Where the id is: `key`, `header:NAME`, or `json:FIELD` of the value (slower)."),
        Property("penstock.etl.topic", parse_str, None, "What is loaded; default dedupe's output topic."),
        Property("penstock.etl.table", parse_str, REQUIRED, "Folder of the Delta table."),
        Property("penstock.etl.rejects", parse_str, None, "Folder of the rejects' table; default TABLE-rejects."),
        Property("penstock.etl.schema", parse_str, REQUIRED, "Columns, `name TYPE[ NOT NULL], ...` in Spark SQL."),
        Property("penstock.etl.event.day", parse_str, REQUIRED, "Spark SQL expression of a row's event day."),
        Property("penstock.etl.time.zone", parse_str, "UTC", "Time zone in which a night ends."),
        Property("penstock.etl.incomplete", parse_choice("wait", "fail", "mark"), "wait",
                 "What to do while a source has not delivered the whole night."),
        Property("penstock.etl.wait.seconds", parse_int(0), 3600, "Limit of `wait`."),
        Property("penstock.etl.clock", parse_choice("wall", "records"), "wall",
                 "Whether a night is over by the wall clock or by the sources' record timestamps."),
        Property("spark.master", parse_str, "local[*]", "Where Spark runs."),
        Property("spark.driver.memory", parse_str, "1g", "Heap of the driver."),
        Property("spark.driver.extraJavaOptions", parse_str, "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
                 "Spark's JVM; the default starts quickly, for nights of many millions set it empty."),
        Property("spark.*.*", parse_str, None, "Any other property of Spark."),
        Property("spark.*.*.*", parse_str, None, "Any other property of Spark."),
        Property("spark.*.*.*.*", parse_str, None, "Any other property of Spark."),
        Property("penstock.check.crcs", parse_bool, True, "Check each batch's CRC32C as it is read (`check.crcs`)."),
    ],
)  # fmt: skip


def load(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a pipeline's file. Raises ConfigError."""
    config = SCHEMA.load(path, overrides)
    if not config["topics"]:
        raise ConfigError("`topics` names no topic")
    return config


def sources(config: Config) -> dict[str, str]:
    """The source clusters' bootstrap addresses by name. Raises ConfigError when there is none."""
    found = {
        name.removeprefix("source.").removesuffix(".bootstrap.servers"): config[name]
        for name in config
        if name.startswith("source.")
    }
    if not found:
        raise ConfigError("no source cluster: give `source.NAME.bootstrap.servers`")
    return found


def input_topic(config: Config) -> str:
    """The topic that dedupe reads."""
    return str(config["penstock.dedupe.input.topic"] or config["topics"][0])


def output_topic(config: Config) -> str:
    """The topic that dedupe writes."""
    return str(config["penstock.dedupe.output.topic"] or f"{input_topic(config)}.deduped")


def etl_topic(config: Config) -> str:
    """The topic that the nights are loaded from."""
    return str(config["penstock.etl.topic"] or output_topic(config))


def mirror_group(config: Config, source: str) -> str:
    """The group on the target under which the mirror's positions in a source cluster are committed."""
    return f"penstock-mirror.{config['penstock.mirror.name']}.{source}"


def dedupe_group(config: Config) -> str:
    """The group under which dedupe's input positions are committed."""
    return f"penstock-dedupe.{config['penstock.dedupe.name']}"
