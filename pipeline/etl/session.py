"""Spark for the load: one session, with the JVM that it runs in."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock import log
from penstock.config import Config
from penstock.pipeline.etl import maven, s3logstore
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.etl.eventreader import READER
from penstock.pipeline.etl.jars import spark_jars
from penstock.pipeline.etl.jvm import JVM, check_java

# A night is small beside a Spark start: one file listing, few partitions, no interface, no extra jobs.
# Invalid dates and casts give NULL (and so a reject), never an exception that ends the night: hence no ANSI
# mode.
SETTINGS = {
    "spark.app.name": "penstock-etl",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Not as INT96, which holds the years 1677 to 2262 for most readers.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A task's rows are of few days: a file open for each costs less than sorting the rows, in time and in memory.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}
# Where tasks run in the driver's process nobody else is to reach it; executors of their own have to.
ALONE = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
S3A = {"spark.delta.logStore.s3a.impl": s3logstore.CLASS}
# What Spark has to say goes to a file beside the plans; what ends a night is said in our words.
LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.append = false
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""


# The JVM of a night of few records: quick to start, and over before its second compiler would pay.
SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# All tasks wait while garbage is collected, so every processor does it; a collector that works beside the tasks takes more of
# them and of memory. Spark's classes alone need more metaspace than a JVM takes before it collects garbage for it.
LARGE_JVM = "-XX:+UseParallelGC -XX:MetaspaceSize=256m"
SMALL_OFFSETS = 500_000
CLASSES = "classes"  # the folder of ours


def start(config: Config, time_zone: str, folder: Path, offsets: int = 0) -> Any:
    """A Spark session with the Kafka source and Delta, for about so many records. `spark.*` properties of the config come
    on top.

    Raises EtlError when Java, Maven or a jar is missing.
    """
    settings = _start_jvm(config, folder, offsets)
    from pyspark.sql import SparkSession  # here, since `status` and the command's help must not pay for it

    builder = SparkSession.builder
    for name, value in ({"spark.sql.session.timeZone": time_zone} | settings).items():
        builder = builder.config(name, value)
    try:
        with ThreadPoolExecutor(1) as beside:  # a session takes as long to start as the class to compile
            loading = beside.submit(READER.load_into, jvm(), folder / CLASSES)
            spark = builder.getOrCreate()
            loading.result()
        if not _in_driver(str(spark.sparkContext.master)):
            spark.sparkContext._jsc.addJar(str(READER.pack(folder / CLASSES).absolute()))
    except Exception as error:  # noqa: BLE001  (pyspark raises several kinds, all mean the same here)
        raise EtlError(f"Spark did not start: {cause(error)}") from None
    return spark


def gateway(config: Config, folder: Path) -> Any:
    """What py4j calls the JVM: started here, without Spark, unless it runs already. Raises EtlError as `start` does."""
    from pyspark import SparkContext

    if SparkContext._jvm is None:
        _start_jvm(config, folder, None)
    return jvm()


def jvm() -> Any:
    """What py4j calls the JVM that runs."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm


def hadoop_settings(config: Config) -> Any:
    """Hadoop's configuration as Spark makes it, in the JVM."""
    spark = jvm().org.apache.spark
    hadoop = spark.deploy.SparkHadoopUtil.get().newConfiguration(spark.SparkConf())
    prefix = "spark.hadoop."
    for name, value in _given(config).items():
        if name.startswith(prefix):
            hadoop.set(name.removeprefix(prefix), value)
    return hadoop


def array(kind: Any, values: list[Any]) -> Any:
    """A Java array of these values."""
    from pyspark import SparkContext

    made = SparkContext._gateway.new_array(kind, len(values))
    for index, value in enumerate(values):
        made[index] = value
    return made


def _start_jvm(config: Config, folder: Path, offsets: int | None) -> dict[str, str]:
    """Start the JVM unless there is one, for about so many records (None: nobody knows yet); what Spark is to be told."""
    from pyspark.logger import PySparkLogger

    check_java()
    given = _given(config)
    remote_tasks = not _in_driver(given.get("spark.master", "local"))
    on_s3 = any(str(value).startswith("s3a://") for value in config.values())
    try:
        jars = [str(path) for path in spark_jars(s3a=on_s3)]
    except maven.MavenError as error:
        raise EtlError(f"Spark lacks its jars (`python -m penstock.pipeline.etl.jars` fetches them ahead): {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    quiet = folder / "log4j2.properties"
    quiet.write_text(LOG4J.format(folder=folder), encoding="utf-8")
    # As a URI, since Spark splits the options at blanks.
    chosen = config["spark.driver.extraJavaOptions"]
    if chosen is None:
        # A driver without tasks plans and commits, however many records there are.
        small = remote_tasks or (offsets is not None and offsets < SMALL_OFFSETS)
        chosen = SMALL_JVM if small else LARGE_JVM
    java_options = f"{chosen} -Dlog4j2.configurationFile={quiet.absolute().as_uri()}"
    settings = SETTINGS | (S3A if on_s3 else {}) | ({} if remote_tasks else ALONE) | given
    settings |= {"spark.driver.extraClassPath": ":".join(jars), "spark.driver.extraJavaOptions": java_options}
    if remote_tasks:
        settings["spark.jars"] = ",".join([*jars, *filter(None, [given.get("spark.jars")])])
    # PySpark's client logs a lost JVM, and an expression that Spark refuses, with tracebacks; we say it in a sentence.
    logging.root.addHandler(logging.NullHandler())
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    # Secrets go by the connection to the JVM, never by its command line.
    secrets = config.secrets()
    JVM.start({name: value for name, value in settings.items() if name not in secrets}, folder)
    if on_s3:
        s3logstore.STORE.load_into(jvm(), folder / CLASSES)
    return settings


def _in_driver(master: str) -> bool:
    """Whether tasks run in the driver's process, by Spark's master."""
    return re.match(r"local(\[|$)", master) is not None


def _given(config: Config) -> dict[str, str]:
    """What the user says to Spark, secrets with it."""
    said = {name: str(config[name]) for name in config if name.startswith("spark.") and config[name] is not None}
    return said | {name: value for name, value in config.secrets().items() if name.startswith("spark.")}


def stop(spark: Any) -> None:
    """Stop a session; one whose JVM is gone already is stopped."""
    from py4j.protocol import Py4JError

    # PySpark warns of a JVM that is gone; how it went is in our own sentence (`JVM.gone`), or we ended it.
    with contextlib.suppress(Py4JError, ConnectionError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()


@contextlib.contextmanager
def failures_as_words(what: str) -> Iterator[None]:
    """Turn what Spark raises inside into an EtlError with the first line of its cause, the rest to the debug log."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, ConnectionError) as error:
        log.get(__name__).debug("%s failed", what, exc_info=True)
        if _lost(error):
            raise EtlError(
                f"Spark's JVM ended {JVM.gone() or f'or does not answer ({error})'}: run the night again, nothing is loaded"
                " twice; a JVM that lacked memory takes `spark.driver.memory`"
            ) from error
        raise EtlError(f"{what}: Spark failed: {cause(error)}") from error


# What fails at a batch: Spark's Kafka client, or Spark's own times, which don't hold all that Kafka's do.
AT_BATCHES = ("org.apache.kafka.common.", "java.lang.ArithmeticException", "java.time.DateTimeException")


def came_from_batches(error: EtlError) -> bool:
    """Whether it may be a batch that Spark couldn't read, by the chain of causes."""
    return any(name in str(error.__cause__) for name in AT_BATCHES)


def _lost(error: BaseException) -> bool:
    """Whether it is the connection to the JVM that failed, rather than what it was asked."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return True
    return isinstance(error, Py4JError) and getattr(error, "java_exception", None) is None and bool(JVM.gone())


def cause(error: BaseException) -> str:
    """The first line of the innermost cause, which names what went wrong; outer ones say which task it stopped."""
    if _lost(error):
        return f"its JVM ended {JVM.gone() or f'or does not answer ({error})'}"
    cause = getattr(error, "java_exception", None)
    with contextlib.suppress(Exception):  # the JVM may be gone
        while cause is not None and cause.getCause() is not None:
            cause = cause.getCause()
        if cause is not None:
            return str(cause.toString()).splitlines()[0]
    return (str(error).splitlines() or [type(error).__name__])[0]
