"""The jars that Spark lacks for this job: its Kafka source and Delta.

`python -m penstock.pipeline.etl.jars` fetches them. Spark's own `spark.jars.packages` can't: the token
provider is published under another version than the source that names it. What the jars need beyond this
list is part of Spark itself.
"""

from __future__ import annotations

import sys

from penstock.pipeline.etl import maven

SPARK_JARS = [
    maven.Jar(coordinates)
    for coordinates in (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
        "io.delta:delta-spark_4.1_2.13:4.4.0",
        "io.delta:delta-storage:4.4.0",
        "io.delta:delta-kernel-api:4.4.0",
        "io.delta:delta-kernel-defaults:4.4.0",
    )
]


def spark_classpath() -> str:
    """The jars' paths, separated as a Java class path has them. Raises maven.MavenError."""
    return ":".join(str(path) for path in maven.fetch(SPARK_JARS))


def main() -> int:
    """Fetch the jars; quick when they are there already."""
    try:
        maven.fetch(SPARK_JARS)
    except maven.MavenError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
