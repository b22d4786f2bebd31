"""The paths and URIs that a table can lie at."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.config import Config, ConfigError
from penstock.pipeline import job
from penstock.pipeline.etl.localstorage import LocalStorage
from penstock.pipeline.etl.storage import Storage

_URI = re.compile(r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://|file:)")


def at(place: str, config: Config) -> Storage:
    """The storage of a table at a path or a URI. `config` has what Spark, and so a remote place, is to be asked with.

    Raises ConfigError for a place that a table can't lie at.
    """
    given = _URI.match(place)
    if given is None:
        return LocalStorage(Path(place))
    parts = urlsplit(place)
    match (given["scheme"] or "file").lower():
        case "file" if not parts.netloc and parts.path.startswith("/") and len(parts.path) > 1:
            return LocalStorage(Path(unquote(parts.path)))
        case "hdfs" if len(parts.path) > 1:
            from penstock.pipeline.etl.hadoopstorage import HdfsStorage  # here, since a local table needs nothing of Spark

            return HdfsStorage(place.rstrip("/"), config)
        case "s3a" if parts.netloc and len(parts.path) > 1:
            from penstock.pipeline.etl.hadoopstorage import S3Storage

            return S3Storage(place.rstrip("/"), config)
        case "s3" | "s3n":
            raise ConfigError(f"`{place}` is no place for a table: Spark's name for S3 is s3a://BUCKET/PATH")
    raise ConfigError(
        f"`{place}` is no place for a table: give a folder, file:///PATH, hdfs://NAMENODE:PORT/PATH or s3a://BUCKET/PATH"
    )


def rejects(config: Config) -> str:
    """Where the rejects' table lies."""
    given: str | None = config["penstock.etl.rejects"]
    return given or job.default_rejects(config["penstock.etl.table"])
