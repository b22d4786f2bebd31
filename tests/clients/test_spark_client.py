"""Spark's own Kafka sink and source against the broker, unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.harness import BrokerProcess

# A process of its own: a Spark session is one a process, and other tests hold theirs.
JOB = """
import json, sys
from pathlib import Path
from penstock.pipeline import job
from penstock.pipeline.etl import session

bootstrap, topic, config, folder = sys.argv[1:]
spark = session.start(job.load(config), "UTC", Path(folder))
rows = spark.range(0, 5000, 1, 4).selectExpr("concat('k', id) AS key", "concat('v', id * 3) AS value")
rows.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
read = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
read = read.option("kafka.isolation.level", "read_committed").option("startingOffsets", "earliest").load()
found = read.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "partition").collect()
stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
stream = stream.option("startingOffsets", "earliest").load().writeStream.format("memory").queryName("seen")
stream.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
print(json.dumps({
    "right": sum(row.value == f"v{int(row.key[1:]) * 3}" for row in found),
    "keys": len({row.key for row in found}),
    "partitions": len({row.partition for row in found}),
    "streamed": spark.table("seen").count(),
}))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_writes_reads_and_streams(
    make_broker: Callable[..., BrokerProcess], new_topic: Callable[[str], str], tmp_path: Path
) -> None:
    broker = make_broker(**{"num.partitions": 3})
    config = tmp_path / "pipeline.properties"
    config.write_text(
        f"bootstrap.servers={broker.bootstrap}\nsource.A.bootstrap.servers={broker.bootstrap}\ntopics=events\n"
        f"penstock.dedupe.data={tmp_path}/ids\npenstock.etl.table={tmp_path}/table\n"
        "penstock.etl.schema=id STRING\npenstock.etl.event.day=date(timestamp)\n"
    )
    arguments = [broker.bootstrap, new_topic("spark"), str(config), str(tmp_path / "spark")]
    done = subprocess.run([sys.executable, "-c", JOB, *arguments], capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"right": 5000, "keys": 5000, "partitions": 3, "streamed": 5000}
