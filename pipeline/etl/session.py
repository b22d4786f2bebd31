"""Spark for the load: one session, started when the first night needs it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock import log
from penstock.config import Config
from penstock.pipeline.etl import maven
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.etl.jars import spark_classpath
from penstock.pipeline.etl.jvm import JVM, check_java

# A night is small beside a Spark start: one file listing, few partitions, no interface, no extra jobs.
# Invalid dates and casts give NULL (and so a reject), never an exception that ends the night: hence no ANSI
# mode.
SETTINGS = {
    "spark.app.name": "penstock-etl",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # A task's rows are of few days: a file open for each costs less than sorting the rows, in time and in memory.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}
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
LARGE_JVM = "-XX:+UseParallelGC"
SMALL_OFFSETS = 500_000


def start(config: Config, time_zone: str, folder: Path, offsets: int = 0) -> Any:
    """A Spark session with the Kafka source and Delta, for about so many records. `spark.*` properties of the config come
    on top.

    Raises EtlError when Java, Maven or a jar is missing.
    """
    check_java()
    try:
        classpath = spark_classpath()
    except maven.MavenError as error:
        raise EtlError(str(error)) from None
    folder.mkdir(parents=True, exist_ok=True)
    quiet = folder / "log4j2.properties"
    quiet.write_text(LOG4J.format(folder=folder), encoding="utf-8")
    from pyspark.sql import SparkSession  # here, since `status` and the command's help must not pay for it

    # As a URI, since Spark splits the options at blanks.
    chosen = config["spark.driver.extraJavaOptions"]
    if chosen is None:
        chosen = SMALL_JVM if offsets < SMALL_OFFSETS else LARGE_JVM
    java_options = f"{chosen} -Dlog4j2.configurationFile={quiet.absolute().as_uri()}"
    secrets = config.secrets()
    given = {name: str(config[name]) for name in config if name.startswith("spark.") and name not in secrets}
    builder = SparkSession.builder
    settings = SETTINGS | {"spark.sql.session.timeZone": time_zone} | given
    settings |= {"spark.driver.extraClassPath": classpath, "spark.driver.extraJavaOptions": java_options}
    # By the connection to the JVM, never by its command line.
    for name, value in (settings | secrets).items():
        builder = builder.config(name, value)
    # PySpark's client logs a lost JVM by the root logger, with tracebacks; we say it in a sentence.
    logging.root.addHandler(logging.NullHandler())
    JVM.start(settings, folder)
    try:
        return builder.getOrCreate()
    except Exception as error:  # noqa: BLE001  (pyspark raises several kinds, all mean the same here)
        raise EtlError(f"Spark did not start: {_cause(error)}") from None


def stop(spark: Any) -> None:
    """Stop a session; one whose JVM is gone already is stopped."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, ConnectionError):
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
        raise EtlError(f"{what}: Spark failed: {_cause(error)}") from error


def came_from_kafka(error: EtlError) -> bool:
    """Whether Spark's Kafka client is what failed, by the chain of causes."""
    return "org.apache.kafka.common." in str(error.__cause__)


def _lost(error: BaseException) -> bool:
    """Whether it is the connection to the JVM that failed, rather than what it was asked."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return True
    return isinstance(error, Py4JError) and getattr(error, "java_exception", None) is None and bool(JVM.gone())


def _cause(error: BaseException) -> str:
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
