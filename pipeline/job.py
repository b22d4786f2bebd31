"""The one file that describes a pipeline: sources, aggregate, mirror, dedupe, table.

`penstock mirror`, `dedupe`, `etl` and `audit` all take the same file (`--config pipeline.properties`); each reads the
keys of its part, asks for no other's, and knows them all, so a misspelt key is refused by all of them. Names without
`penstock.` are Kafka's or Spark's, but for those that say what is copied and loaded: `source.*`, `topics`, `etl.*`.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from penstock.config import (
    INT_MAX,
    LONG_MAX,
    Config,
    ConfigError,
    Property,
    Schema,
    parse_bool,
    parse_choice,
    parse_int,
    parse_list,
    parse_servers,
    parse_str,
    read_texts,
)
from penstock.groupnames import DEDUPE_GROUPS, MIRROR_GROUPS
from penstock.pipeline.idfields import parse_id
from penstock.suggestions import nearest

HDFS_PORT = 8020  # of a namenode whose address has none

TOPIC_MAX = 249
TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_MAX}}}")
MADE = "penstock."  # topics that begin so are made by the pipeline itself


def parse_topic(text: str) -> str:
    """A name that Kafka takes for a topic."""
    if text and (TOPIC.fullmatch(text) is None or text in (".", "..")):
        raise ValueError("is no topic's name: that has letters, digits, `.`, `_` and `-`, 249 at most, and is not `.` or `..`")
    return text


def parse_topics(text: str) -> list[str]:
    """Comma-separated names of topics, each once."""
    names = parse_list(text)
    for number, name in enumerate(names):
        try:
            parse_topic(name)
        except ValueError as error:
            raise ValueError(f"names `{name}`, which {error}" if len(names) > 1 else str(error)) from None
        if name in names[:number]:
            raise ValueError(f"names `{name}` twice")
    return names


SCHEMA = Schema(
    "pipeline",
    [
        Property("bootstrap.servers", parse_servers, None, "The aggregate cluster, host:port[,host:port]."),
        Property("source.*.bootstrap.servers", parse_servers, None, "A source cluster, by its name."),
        Property("topics", parse_topics, [],
                 "Topics that the mirror copies and dedupe reads, by name; all sources are expected to have them."),
        Property("topics.include", parse_str, "",
                 "Topics that the mirror copies where a source has them: a regular expression (RE2) of the whole name."),
        Property("topics.exclude", parse_str, "", "Topics that `topics.include` leaves out: an expression like it."),
        Property("penstock.mirror.rename", parse_str, "${topic}",
                 "What a topic is called on the target, such as `${source}.${topic}`."),
        Property("penstock.mirror.name", parse_str, "mirror", "The mirror's identity: only one process may run under it."),
        Property("penstock.mirror.batch.bytes", parse_int(1, INT_MAX), 4 << 20, "Bytes of one mirror transaction."),
        Property("penstock.mirror.linger.ms", parse_int(0, INT_MAX), 50,
                 "How long what was fetched may wait for more of its partition, to share a transaction with it."),
        Property("penstock.mirror.transactions.max", parse_int(1, INT_MAX), 500,
                 "Transactions with data that a mirror begins in a second at most; beyond, partitions linger longer."),
        Property("penstock.mirror.position.refresh.ms", parse_int(1000, INT_MAX), 3_600_000,
                 "Idle positions (of mirror and dedupe) are committed again this often, so that they don't expire."),
        Property("session.timeout.ms", parse_int(1, INT_MAX), 10_000,
                 "How long a partition that another process took over is left to it before it is taken back, once."),
        Property("penstock.stalled.after.ms", parse_int(1, INT_MAX), 300_000,
                 "A partition that meets the same failure for so long is stalled: it tries on, and its position says so."),
        Property("penstock.watch.ms", parse_int(100, INT_MAX), 30_000,
                 "How often inputs are looked at for growth or a new topic of the same name, and positions for commands."),
        Property("penstock.dedupe.name", parse_str, "dedupe", "The stage's identity: a newer worker fences an older."),
        Property("penstock.dedupe.input.topic", parse_topic, None, "The one topic that dedupe reads; default all of `topics`."),
        Property("penstock.dedupe.output.topic", parse_topic, None, "What dedupe writes of one topic; default TOPIC.deduped."),
        Property("penstock.dedupe.partitions", parse_list, [], "Partitions of this process, of each topic; default all."),
        Property("penstock.dedupe.data", parse_str, None, "Folder of the RocksDB databases, one a partition."),
        Property("penstock.dedupe.size.max.bytes", parse_int(1 << 20, LONG_MAX), 8 << 30,
                 "Bound of one partition's database; the oldest ids go first."),
        Property("penstock.dedupe.memory.max.ids", parse_int(1000, INT_MAX), 1_000_000,
                 "Ids of a partition held in memory, some 100 bytes each, before they become a sorted file."),
        Property("penstock.dedupe.spill.ms", parse_int(100, INT_MAX), 900_000,
                 "Ids become a file after so long at the latest, so that a crash finds them when their output has expired."),
        Property("penstock.dedupe.output.retention.bytes", parse_int(-1, LONG_MAX), 64 << 30,
                 "`retention.bytes` of the output topic (each partition) if dedupe makes it; it has no limit by time."),
        Property("penstock.dedupe.batch.bytes", parse_int(1, INT_MAX), 4 << 20,
                 "Bytes of one dedupe transaction, about, as they came in."),
        Property("penstock.dedupe.id", parse_id, "key",
                 "Where the id is: `key`, `header:NAME`, or `json:FIELD` of the value (slower). A path `json:meta.id` leads "
                 "into nested objects, `json:user,ts` are several fields together; a name with `.` or `,` is in backquotes."),
        Property("penstock.dedupe.id.in.schema", parse_bool, True,
                 "Whether `penstock check` refuses a field of a `json:` id that is no column of a table loaded after dedupe."),
        Property("penstock.dedupe.without.id", parse_choice("pass", "stop", "quarantine"), "pass",
                 "A record without an id (missing, null, empty; JSON's true, false, NaN, object, array) passes, stops its "
                 "partition, or goes to the topic penstock.quarantine."),
        Property("penstock.dedupe.misplaced", parse_choice("move", "pass", "stop"), "move",
                 "An id in another partition than murmur2 gives, where its repeats are looked for, moves there by way of the "
                 "topic penstock.moved.STAGE.INPUT, passes (counted and said), or stops its partition."),
        Property("penstock.etl.topic", parse_topic, None, "What is loaded; default dedupe's output topic."),
        Property("penstock.etl.table", parse_str, None, "The Delta table: a folder, file:///, hdfs:// or s3a://."),
        Property("penstock.etl.rejects", parse_str, None, "The rejects' table likewise; default TABLE-rejects."),
        Property("penstock.etl.schema", parse_str, None,
                 "Columns, `name TYPE[ NOT NULL], ...` in Spark SQL; `penstock config --types` says what each type takes."),
        Property("penstock.etl.event.day", parse_str, None, "Spark SQL expression of a row's event day."),
        Property("penstock.etl.record.columns", parse_list, [],
                 "Columns beside an event's: `key`, `headers`, `header:NAME`, each perhaps with ` AS COLUMN`."),
        Property("penstock.etl.time.zone", parse_str, "UTC", "Time zone in which a night ends."),
        Property("penstock.etl.incomplete", parse_choice("wait", "fail", "mark"), "wait",
                 "What to do while a source has not delivered the whole night."),
        Property("penstock.etl.wait.seconds", parse_int(0, INT_MAX), 3600, "Limit of `wait`."),
        Property("penstock.etl.retry.backoff.ms", parse_int(0, INT_MAX), 60_000,
                 "How long `--follow` waits after a failure before it tries that table again."),
        Property("penstock.etl.clock", parse_choice("wall", "records"), "wall",
                 "Whether a night is over by the wall clock or by the sources' record timestamps."),
        Property("penstock.etl.groups.gone", parse_list, [],
                 "Groups of mirrors on the target, `penstock-mirror.MIRROR.SOURCE`, whose source delivers no more: nights are "
                 "loaded without it."),
        Property("penstock.etl.after", parse_choice("dedupe", "mirror"), "dedupe",
                 "The stage that a night waits for: `mirror` loads a topic that isn't deduplicated, `penstock.etl.topic`."),
        Property("etl.*.topic", parse_topic, None, "What the table of this name is loaded from; there may be several."),
        Property("etl.*.table", parse_str, None, "Its folder."),
        Property("etl.*.rejects", parse_str, None, "Folder of its rejects' table; default TABLE-rejects."),
        Property("etl.*.schema", parse_str, None, "Its columns."),
        Property("etl.*.event.day", parse_str, None, "Its event day."),
        Property("etl.*.record.columns", parse_list, [], "Its columns beside an event's."),
        Property("etl.*.after", parse_choice("dedupe", "mirror"), "dedupe", "The stage that its nights wait for."),
        Property("spark.master", parse_str, "local[*]", "Where Spark runs."),
        Property("spark.driver.memory", parse_str, "1g", "Heap of the driver."),
        Property("spark.driver.extraJavaOptions", parse_str, None,
                 "Spark's JVM; default by the first night's records: quick to start, or quick with many."),
        Property("spark.jars", parse_str, None, "More jars for the driver and its executors."),
        Property("spark.files", parse_str, None, "Files for the executors."),
        Property("spark.speculation", parse_str, None, "Whether a slow task is started once more elsewhere."),
        Property("spark.*.**", parse_str, None, "Any other property of Spark."),
        Property("penstock.mirror.http.listen", parse_str, "",
                 "HOST:PORT of the mirror's figures (`/metrics`) and health (`/health/live`, `/health/ready`); empty: none."),
        Property("penstock.dedupe.http.listen", parse_str, "", "The same of the dedupe stage."),
        Property("penstock.etl.http.listen", parse_str, "", "The same of `penstock etl --follow`."),
        Property("penstock.http.public", parse_bool, False,
                 "Whether these addresses may be reached from other machines, which then see the names of topics."),
        Property("penstock.metrics.partitions", parse_choice("auto", "true", "false"), "auto",
                 "Whether each partition has figures of its own; `auto`: up to 2,000 of them, else the sums of topics."),
        Property("penstock.etl.textfile", parse_str, "",
                 "File of a night's figures for node_exporter's textfile collector, such as "
                 "`/var/lib/prometheus/node-exporter/penstock-etl-NAME.prom`; empty: none."),
        Property("penstock.log.format", parse_choice("text", "json"), "text",
                 "Log lines of mirror, dedupe and etl: `text`, or `json`, an object a line."),
        Property("penstock.check.crcs", parse_bool, True, "Check each batch's CRC32C as it is read (`check.crcs`)."),
    ],
    listed_by="penstock config --list",
)  # fmt: skip


# What begins the names of properties that each table has.
OF_A_TABLE = "penstock.etl."
TABLE_KEYS = ("topic", "table", "rejects", "schema", "event.day", "record.columns", "after")
BESIDE = ("record.columns", "after")  # those that make no table by themselves

# What each part can't do without; of several names between bars one is enough.
INPUT = "penstock.dedupe.input.topic|topics"
SOURCES = ("bootstrap.servers", INPUT, "source.*.bootstrap.servers")
NEEDED = {
    "mirror": ("bootstrap.servers", "topics|topics.include", "source.*.bootstrap.servers"),
    "dedupe": ("bootstrap.servers", INPUT, "penstock.dedupe.data"),
    "etl": (*SOURCES, "penstock.etl.table", "penstock.etl.schema", "penstock.etl.event.day"),
    "audit": (*SOURCES, "penstock.etl.table"),
}


def load(path: str | Path, overrides: Iterable[str] = (), part: str = "") -> Config:
    """Read a pipeline's file for one part of it (for all parts without a name). Raises ConfigError, which names all
    that the part lacks.
    """
    twice: list[str] = []
    texts = read_texts(path, overrides, twice)
    if twice:
        raise ConfigError(twice[0])
    config = SCHEMA.parse(texts)
    if part in ("", "etl", "audit") and (idle := idle_keys(config)):
        raise ConfigError(idle[0])
    missing = lacking(config, [part] if part else NEEDED)
    if missing:
        raise ConfigError(f"{part or 'the pipeline'} needs more than `{path}` gives: {'; '.join(missing)}")
    return config


def lacking(config: Config, parts: Iterable[str], meant: Collection[str] = ()) -> list[str]:
    """The properties that some parts need and don't have, each with its help. Those that were `meant` are there, misspelt."""
    needed = dict.fromkeys(names for part in parts for names in _needed(config, part))
    return [
        " or ".join(f"`{name}` ({_help(name)})" for name in names.split("|"))
        for names in needed
        if not any(_given(config, name) or fnmatch.filter(meant, name) for name in names.split("|"))
    ]


def _needed(config: Config, part: str) -> list[str]:
    """The names of `NEEDED`, with those of a table for each table that the file has."""
    shared = [names for names in NEEDED[part] if not names.startswith(OF_A_TABLE)]
    own = [names.removeprefix(OF_A_TABLE) for names in NEEDED[part] if names.startswith(OF_A_TABLE)]
    if not own:
        return shared
    names = table_names(config)
    if all(_given(config, key_of(name, "topic")) and config.get(key_of(name, "after")) == "mirror" for name in names):
        shared.remove(INPUT)  # nothing is asked of dedupe
    return shared + [key_of(name, key) for name in names for key in (["topic", *own] if name else own)]


def _given(config: Config, name: str) -> bool:
    """Whether a property has a value; of a name with `*`, whether any key matches it."""
    if "*" in name:
        return any(fnmatch.fnmatchcase(key, name) and value for key, value in config.items())
    return bool(config.get(name))


def _help(name: str) -> str:
    prop = SCHEMA.properties.get(name) or SCHEMA.properties[re.sub(r"^etl\.[^.]+\.", "etl.*.", name)]
    return prop.doc.rstrip(".")


def key_of(table: str, key: str) -> str:
    """The name of a table's property; the plain ones are those of the table without a name."""
    return f"etl.{table}.{key}" if table else OF_A_TABLE + key


def table_names(config: Config) -> list[str]:
    """The tables that the file describes, by name: "" is the one of the plain keys, there unless only others are given."""
    names = dict.fromkeys(name.split(".")[1] for name in config if name.startswith("etl."))
    plain = any(config.get(OF_A_TABLE + key) for key in TABLE_KEYS if key not in BESIDE)
    return ["", *names] if plain or not names else list(names)


def idle_keys(config: Config) -> list[str]:
    """A sentence for each plain key that is given and has no effect, since the file describes named tables alone."""
    names = table_names(config)
    given = [] if "" in names else [key for key in BESIDE if OF_A_TABLE + key in config.given]
    return [
        f"`{OF_A_TABLE}{key}` belongs to no table, since all that the file describes have names: give each table its own, "
        f"such as `{key_of(names[0], key)}`"
        for key in given
    ]


def one_table(config: Config, name: str) -> Config:
    """The pipeline as if this table were its only one: its properties under the plain keys. Raises ConfigError."""
    if name not in table_names(config):
        raise ConfigError(f"the file describes no table `{name}`, but {words_for_tables(table_names(config))}")
    of_it = {OF_A_TABLE + key: config.get(key_of(name, key), SCHEMA.properties[OF_A_TABLE + key].default) for key in TABLE_KEYS}
    return Config({**config, **of_it}, config.given)


def words_for_tables(names: Iterable[str]) -> str:
    """Tables as messages name them."""
    return ", ".join(f"the table `{name}`" if name else "the table of `penstock.etl.*`" for name in names)


def check_tables(config: Config) -> None:
    """See that no two tables share a folder, nor one lies in another, and that the stage that one comes after writes its topic.
    Raises ConfigError."""
    folders = {"penstock.dedupe.data": config["penstock.dedupe.data"]}
    for name in table_names(config):
        topic, key = config.get(key_of(name, "topic")), key_of(name, "after")
        if name and topic and config.get(key, "dedupe") == "dedupe" and topic not in (pairs := deduped(config)).values():
            raise ConfigError(_not_deduped(key_of(name, "topic"), topic, pairs, key))
        table = config.get(key_of(name, "table"))
        folders[key_of(name, "table")] = table
        folders[key_of(name, "rejects")] = config.get(key_of(name, "rejects")) or (table and default_rejects(table))
    _check_apart({key: folder for key, folder in folders.items() if folder})


def _check_apart(folders: Mapping[str, str]) -> None:
    """See that none of the folders, by the keys that name them, is another or lies in another. Raises ConfigError."""
    for (key, folder), (other, its_folder) in itertools.combinations(folders.items(), 2):
        place, its_place = _place(folder), _place(its_folder)
        if place == its_place:
            raise ConfigError(f"`{other}={its_folder}` is the folder of `{key}`, too: each needs one of its own")
        if place.is_relative_to(its_place) or its_place.is_relative_to(place):
            inner, outer = (other, key) if its_place.is_relative_to(place) else (key, other)
            raise ConfigError(
                f"`{inner}={folders[inner]}` lies inside `{outer}={folders[outer]}`, whose care removes files that it doesn't "
                "know: give each a folder next to the other"
            )


def _not_deduped(key: str, topic: str, pairs: Mapping[str, str], after: str) -> str:
    """What is wrong with the topic of a table that comes after dedupe, which writes the topics `pairs` gives."""
    near = pairs.get(topic) or nearest(topic, pairs.values())
    hint = f"did you mean `{near}`?" if near else "correct it."
    return (
        f"`{key}={topic}` is no topic that dedupe writes ({', '.join(pairs.values())}); {hint} A topic that isn't deduplicated "
        f"needs `{after}=mirror`"
    )


def default_rejects(table: str) -> str:
    """Where the rejects of a table lie if nobody says it."""
    return f"{table.rstrip('/')}-rejects"


def _place(folder: str) -> PurePosixPath:
    """A folder or URI as one path, however it is written: /SCHEME:/HOST:PORT/PATH of a URI."""
    uri = re.fullmatch(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<host>[^/]*))?(?P<path>/.*)", folder)
    if uri is None:
        return PurePosixPath(Path(folder).resolve())
    scheme, host = uri["scheme"].lower(), (uri["host"] or "").lower()
    if scheme == "file" and not host:
        return PurePosixPath(Path(unquote(uri["path"])).resolve())
    if scheme == "hdfs" and host and ":" not in host:
        host += f":{HDFS_PORT}"
    path = posixpath.normpath(f"/{uri['path'].lstrip('/')}")  # Hadoop, too, takes several slashes for one.
    return PurePosixPath(f"/{scheme}:/{host}{path}")


def sources(config: Config) -> dict[str, str]:
    """The source clusters' bootstrap addresses by name."""
    return {
        name.removeprefix("source.").removesuffix(".bootstrap.servers"): config[name]
        for name in config
        if name.startswith("source.")
    }


def one_cluster(config: Config) -> list[str]:
    """A sentence for each two clusters that share an address, though the mirror would refuse to copy between them."""
    addresses = {f"source {name}": set(given.lower().split(",")) for name, given in sources(config).items() if given}
    if config["bootstrap.servers"] and config["penstock.mirror.rename"] == "${topic}":
        addresses["the target (`bootstrap.servers`)"] = set(config["bootstrap.servers"].lower().split(","))
    return [
        f"{one} and {other} have the address `{min(addresses[one] & addresses[other])}` in common, and a cluster is mirrored "
        "once, not into itself: correct one of them"
        for one, other in itertools.combinations(addresses, 2)
        if addresses[one] & addresses[other]
    ]


def deduped(config: Config) -> dict[str, str]:
    """The topics that dedupe reads, each with the one that its messages go to. Raises ConfigError."""
    given, output = config["penstock.dedupe.input.topic"], config["penstock.dedupe.output.topic"]
    topics = [given] if given else list(dict.fromkeys(config["topics"]))
    if output and len(topics) > 1:
        raise ConfigError(
            f"`penstock.dedupe.output.topic` names one topic and dedupe reads {len(topics)}: leave it out, so that each goes "
            "to TOPIC.deduped, or say which one is read with `penstock.dedupe.input.topic`"
        )
    pairs = {topic: str(output or f"{topic}.deduped") for topic in topics}
    circular = sorted(set(pairs) & set(_made(config, pairs)))
    if circular:
        raise ConfigError(f"dedupe would read `{circular[0]}` and write it: give them different names")
    return pairs


def moved_topic(topic: str, stage: str) -> str:
    """Where a dedupe stage puts the records of a topic whose id belongs into another partition. No expression matches the name,
    and no two pairs of stage and topic share it."""
    escaped = re.sub(r"[^a-zA-Z0-9-]", lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), stage)
    name = f"{MADE}moved.{escaped}.{topic}"
    return name if len(name) <= TOPIC_MAX else f"{MADE}moved.{hashlib.sha256(name.encode()).hexdigest()}"


def shared_moved_topic(topic: str) -> str:
    """Where earlier versions put them, whatever the stage; one that has positions there goes on with it."""
    return f"{topic}.moved"


def made_topics(config: Config) -> list[str]:
    """The topics that dedupe makes, if the file describes one."""
    try:
        return _made(config, deduped(config)) if config["penstock.dedupe.data"] else []
    except ConfigError:
        return []  # said where it matters


def _made(config: Config, pairs: Mapping[str, str]) -> list[str]:
    """The topics that dedupe makes of those that it reads: outputs, and moved records of this version and of earlier ones."""
    moved = [moved_topic(topic, config["penstock.dedupe.name"]) for topic in pairs]
    return [*pairs.values(), *moved, *map(shared_moved_topic, pairs)]


def input_topic(config: Config) -> str:
    """The topic that dedupe reads and the nights' rows come from; of a table that is loaded after the mirror, the mirror's.

    Raises ConfigError when nothing says which of several.
    """
    if config["penstock.etl.after"] == "mirror":
        if not config["penstock.etl.topic"] and len(config["topics"]) != 1:
            raise ConfigError("`penstock.etl.after=mirror` needs `penstock.etl.topic`: the one topic that is loaded")
        return str(config["penstock.etl.topic"] or config["topics"][0])
    pairs = deduped(config)
    given = config["penstock.etl.topic"]
    loaded = [topic for topic, output in pairs.items() if output == given]
    if given and not loaded:
        raise ConfigError(_not_deduped("penstock.etl.topic", given, pairs, "penstock.etl.after"))
    if len(pairs) > 1 and not loaded:
        raise ConfigError(
            f"dedupe reads {len(pairs)} topics and one is loaded and audited: say which with `penstock.etl.topic`, such as "
            f"`penstock.etl.topic={next(iter(pairs.values()))}`"
        )
    return (loaded or list(pairs))[0]


def output_topic(config: Config) -> str:
    """The topic that the nights are loaded from: dedupe's output, after the mirror alone the mirror's. Raises ConfigError."""
    topic = input_topic(config)
    return topic if config["penstock.etl.after"] == "mirror" else deduped(config)[topic]


def mirror_group(config: Config, source: str) -> str:
    """The group on the target under which the mirror's positions in a source cluster are committed."""
    return MIRROR_GROUPS + mirror_identity(config["penstock.mirror.name"], source)


def mirror_identity(mirror: str, source: str) -> str:
    """A mirror's name for a source cluster. Dots part the words, so those inside a name are escaped (and what would
    look escaped already): else mirror `a.b` of source `c` would be mirror `a` of source `b.c`.
    """
    return ".".join(re.sub(r"%(?=2E|25)", "%25", name).replace(".", "%2E") for name in (mirror, source))


def mirror_and_source(group: str) -> tuple[str, str] | None:
    """The names of the mirror and of the source whose positions a group has; None for other groups."""
    names = group.removeprefix(MIRROR_GROUPS).split(".")
    if not group.startswith(MIRROR_GROUPS) or len(names) != 2:
        return None
    mirror, source = (name.replace("%2E", ".").replace("%25", "%") for name in names)
    return mirror, source


def dedupe_group(config: Config) -> str:
    """The group under which dedupe's input positions are committed."""
    return f"{DEDUPE_GROUPS}{config['penstock.dedupe.name']}"
