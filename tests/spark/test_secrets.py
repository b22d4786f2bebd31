"""A secret of the nights reaches Spark, and nobody who looks at the processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

HIDDEN = "hunter2"
SCRIPT = """\
import sys
from pathlib import Path
from penstock.pipeline import job
from penstock.pipeline.etl import session

spark = session.start(job.SCHEMA.load(sys.argv[1]), "UTC", Path(sys.argv[2]))
lines = []
for one in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        lines.append(one.read_bytes().decode(errors="replace"))
    except OSError:
        pass
value = spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
print(value, sum("deploy.Spark" + "Submit" in line and sys.argv[2] in line for line in lines))
print(any(value in line for line in lines))
session.stop(spark)
"""


@pytest.mark.timeout(300)
def test_it_is_not_on_the_command_line_of_the_jvm(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text(f"s3={HIDDEN}\n")
    config = tmp_path / "pipeline.properties"
    config.write_text(f"spark.hadoop.fs.s3a.secret.key=${{file:{tmp_path}/secrets:s3}}\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(config), str(tmp_path / "spark")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [HIDDEN, "1", "False"], done.stderr
    said = [path for path in (tmp_path / "spark").rglob("*") if path.is_file() and HIDDEN in path.read_text(errors="replace")]
    assert said == []
