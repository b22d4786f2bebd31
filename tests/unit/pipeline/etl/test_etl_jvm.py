"""The options of Spark's JVM, and what is said when it can't start: the reason that Java or Spark gave, or no Java."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.etl.jvm import check_java, reason
from penstock.pipeline.etl.session import LARGE_JVM, SMALL_JVM

MASTER = """\
WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or start with spark, k8s, or local
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1031)
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
"""
OLD_JAVA = """\
Error: LinkageError occurred while loading main class org.apache.spark.launcher.Main
\tjava.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main has been compiled by a more recent version
"""
HEAP = """\
Invalid maximum heap size: -Xmx12q
Error: Could not create the Java Virtual Machine.
Error: A fatal exception has occurred. Program will exit.
"""
CAUSED = """\
Exception in thread "main" java.lang.reflect.InvocationTargetException: outer
\tat a.B.c(B.java:1)
Caused by: java.io.IOException: No space left on device
\t... 3 more
"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (MASTER, "Master must either be yarn or start with spark, k8s, or local"),
        (OLD_JAVA, "org/apache/spark/launcher/Main has been compiled by a more recent version"),
        (HEAP, "Invalid maximum heap size: -Xmx12q"),
        (CAUSED, "No space left on device"),
        ("Error: Unknown option\n", "Error: Unknown option"),
        ("JAVA_HOME is not set\n", "JAVA_HOME is not set"),
        ("", ""),
    ],
)
def test_the_reason_is_the_line_that_names_the_cause(said: str, expected: str) -> None:
    assert reason(said) == expected


def test_without_java_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EtlError, match=r"none was found .*apt install default-jre-headless"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EtlError, match=r"JAVA_HOME is .* which has no bin/java"):
        check_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("")
    java.chmod(0o755)
    check_java()


@pytest.mark.spark
@pytest.mark.parametrize("options", [SMALL_JVM, LARGE_JVM])
def test_java_takes_the_options_for_a_night_of_any_size(options: str) -> None:
    done = subprocess.run(["java", *shlex.split(options), "-version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
