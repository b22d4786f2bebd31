"""What a Spark user writes in place of `penstock etl`: read a topic, parse its JSON, write a Delta table, partitioned by day.

No check of what was read, no plan, no counts, Spark's defaults. Run by cases/nights.py:

    bare_night.py BOOTSTRAP TOPIC TABLE SCHEMA EVENT_DAY CLASSPATH
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

bootstrap, topic, table, schema, event_day, classpath = sys.argv[1:]
spark = (
    SparkSession.builder.appName("bare-night")
    .config("spark.driver.extraClassPath", classpath)
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
print("Spark is up", file=sys.stderr, flush=True)
records = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("endingOffsets", "latest")
    .option("kafka.isolation.level", "read_committed")
    .load()
)
event = F.from_json(F.col("value").cast("string"), schema).alias("event")
rows = (
    records.select(event, "topic", "partition", "offset", "timestamp")
    .select("event.*", "topic", "partition", "offset", "timestamp")
    .withColumn("event_day", F.expr(f"cast(({event_day}) AS DATE)"))
)
rows.write.format("delta").partitionBy("event_day").save(table)
print("done", flush=True)
spark.stop()
