"""Stores that tables lie at: a NameNode and a DataNode of Hadoop's own, and an S3 server (versitygw, built as a Go module)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from penstock.pipeline.etl import maven
from penstock.ports import hold_ports

LIMIT_S = 120.0
HDFS_JARS = [
    maven.Jar("org.apache.hadoop:hadoop-client-minicluster:3.4.2", transitive=True),
    maven.Jar("org.apache.hadoop:hadoop-client-api:3.4.2"),
    maven.Jar("org.apache.hadoop:hadoop-client-runtime:3.4.2", transitive=True),
]
S3_SERVER = Path("build") / "s3" / "versitygw"
KEY, SECRET, BUCKET = "penstock", "penstock-secret", "lake"


class Hdfs:
    """One NameNode and one DataNode, in a JVM."""

    def __init__(self, folder: Path) -> None:
        classpath = ":".join(str(path) for path in maven.fetch(HDFS_JARS))
        details = folder / "hdfs.json"
        words = ["-format", "-datanodes", "1", "-nnport", "0", "-writeDetails", str(details), "-Ddfs.replication=1"]
        java = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath]
        with (folder / "hdfs.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*java, "org.apache.hadoop.test.MiniDFSClusterManager", *words], cwd=folder, stdout=log, stderr=log
            )
        deadline = time.monotonic() + LIMIT_S
        while not details.exists() or not details.read_text():
            assert self._process.poll() is None and time.monotonic() < deadline, (folder / "hdfs.log").read_text()
            time.sleep(0.1)
        self.place = f"hdfs://localhost:{json.loads(details.read_text())['namenode_port']}/data/table"
        self.properties: dict[str, str] = {}

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class S3:
    """A server with one bucket, whose objects are files in a folder."""

    def __init__(self, folder: Path) -> None:
        port = hold_ports(1)[0]
        (folder / "objects" / BUCKET).mkdir(parents=True)
        environment = os.environ | {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        with (folder / "s3.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(S3_SERVER.absolute()), "--port", f"127.0.0.1:{port}", "posix", str(folder / "objects")],
                cwd=folder, stdout=log, stderr=log, env=environment,
            )  # fmt: skip
        deadline = time.monotonic() + LIMIT_S
        while b"listening" not in (folder / "s3.log").read_bytes():
            assert self._process.poll() is None and time.monotonic() < deadline, (folder / "s3.log").read_text()
            time.sleep(0.05)
        self.place = f"s3a://{BUCKET}/data/table"
        self.properties = {
            "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{port}",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": KEY,
            "spark.hadoop.fs.s3a.secret.key": SECRET,
        }

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
