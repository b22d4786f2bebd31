"""The jars that Spark lacks for this job: its Kafka source and Delta, and for tables at s3a:// Hadoop's client for S3.

`python -m penstock.pipeline.etl.jars` fetches them. Spark's own `spark.jars.packages` can't: the token
provider isn't published under the version of the source that names it, so its nearest is taken. What the jars need beyond
this list is part of Spark itself. `maven.py` holds each against `jars.lock`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.pipeline.etl import maven

SPARK_JARS = [
    maven.Jar(coordinates)
    for coordinates in (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
        "io.delta:delta-spark_4.1_2.13:4.4.0",
        "io.delta:delta-storage:4.4.0",
        "io.delta:delta-kernel-api:4.4.0",
        "io.delta:delta-kernel-defaults:4.4.0",
    )
]


# Hadoop's client for S3, of the version of PySpark's Hadoop, and the parts of Amazon's SDK that it needs: 14 MB, where the
# bundle that it names has more than 600. Their Netty, HTTP client and logging are Spark's own.
S3A_JARS = [
    maven.Jar(coordinates)
    for coordinates in (
        "org.apache.hadoop:hadoop-aws:3.4.2",
        "org.reactivestreams:reactive-streams:1.0.4",
        "software.amazon.eventstream:eventstream:1.0.1",
        *(
            f"software.amazon.awssdk:{part}:2.29.52"
            for part in (
                "annotations", "apache-client", "arns", "auth", "aws-core", "aws-query-protocol", "aws-xml-protocol",
                "checksums", "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws",
                "http-auth-aws-eventstream", "http-auth-spi", "http-client-spi", "identity-spi", "json-utils", "metrics-spi",
                "netty-nio-client", "profiles", "protocol-core", "regions", "retries", "retries-spi", "s3",
                "s3-transfer-manager", "sdk-core", "sts", "third-party-jackson-core", "utils",
            )
        ),
    )
]  # fmt: skip


def spark_jars(*, s3a: bool) -> list[Path]:
    """The jars' paths, with those for tables at s3a:// if they are asked for. Raises maven.MavenError."""
    return [path for jars in (SPARK_JARS, *([S3A_JARS] if s3a else [])) for path in maven.fetch(jars)]


def main() -> int:
    """Fetch the jars that each load needs, with `--s3a` the others too; quick when they are there already."""
    try:
        spark_jars(s3a="--s3a" in sys.argv[1:])
    except maven.MavenError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
