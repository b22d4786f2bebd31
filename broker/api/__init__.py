"""One file an API: its key, its versions, its handler, and on top what it does and does not do.

    KEY, VERSIONS = 3, (0, 13)
    async def handle(context: Context, request: MetadataRequest, call: Call) -> MetadataResponse: ...

A file in this folder is registered by being there (`dispatch.py`), and what ApiVersions answers is read
from the same registry. Versions are those that Apache Kafka 4.4.0 advertises.
"""
