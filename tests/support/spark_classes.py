"""The archive of Spark's classes: a JVM that maps it takes a quarter less CPU for its first night, 24 s instead of 33."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

import pyspark

from penstock.pipeline.etl.children import CHILDREN
from penstock.pipeline.etl.jars import spark_jars
from support.class_archive import archived
from support.etl_world import WarmJvm, World
from support.harness import BrokerProcess

# A JVM that ends with its caller has no time to write its classes down, so it is told to while it runs.
LEARNING = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+RecordDynamicDumpInfo"


@functools.cache
def options() -> str:
    """What SPARK_SUBMIT_OPTS has to say, so that drivers share the classes; other class paths ignore them."""
    return " ".join(archived("spark", f"{pyspark.__version__} {spark_jars(s3a=False)}", _run_once))


def _run_once(archive: Path) -> None:
    """Load a night with a reject, and write the classes that it took."""
    with tempfile.TemporaryDirectory(prefix="penstock-classes-") as name:
        folder = Path(name)
        broker = BrokerProcess(folder / "broker", {"log.retention.ms": -1}).start()
        try:
            world = World(broker.bootstrap, folder, properties={"spark.driver.extraJavaOptions": LEARNING})
            world.events("2025-01-01", 20)
            world.send("2025-01-01", [b"no row"])
            world.events("2025-01-02", 2)  # of after the night, in both partitions
            world.arrive()
            jvm = WarmJvm(world.config, folder / "spark")
            done = world.etl("--night", "2025-01-01", jvm=jvm)
            assert done.returncode == 0, done.stderr
            (pid,) = CHILDREN.running()
            subprocess.run(["jcmd", str(pid), "VM.cds", "dynamic_dump", str(archive)], check=True, stdout=subprocess.DEVNULL)
            jvm.close()
        finally:
            broker.close()


if __name__ == "__main__":  # while a run of tests begins: the first of them that need it wait for the rest of it
    options()
