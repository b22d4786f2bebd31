"""What is said when Spark's JVM can't start: the reason that Java or Spark gave."""

from __future__ import annotations

import pytest

from penstock.pipeline.etl.jvm import reason

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
